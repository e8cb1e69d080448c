"""Stored results shown again and side by side: recomputed, damaged ones named, exit statuses."""

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlemu.cli.main import run
from dlemu.findings import fields_of, reason
from dlemu.judge.records import read_config
from dlemu.sizing.answers import document_of
from tests.lab.commands import QUICK, Printed, generate
from tests.lab.stored import STORED, SYSTEM, VERSIONS, sized, store_checkpoint, store_run


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run."""
    folder = tmp_path_factory.mktemp("stored")
    assert run(["run", *QUICK, generate(folder), f"output.folder={folder / 'run'}"]) == 0
    return folder / "run"


@pytest.fixture
def stored(original: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    shutil.copytree(original, tmp_path / "run")
    return tmp_path / "run"


def change(folder: Path, **fields: object) -> int:
    """Change fields of a summary."""
    path = folder / "summary.json"
    return path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def stored_below(parent: Path, *names: str, kind: str = "run") -> None:
    for name in names:
        (parent / name).parent.mkdir(parents=True, exist_ok=True)
        STORED[kind](parent / name)


def test_a_folder_of_folders_is_listed_newest_first(tmp_path: Path, printed: Printed) -> None:
    stored_below(tmp_path / "outputs", "a/1", "a/2", "deep/er/3")
    stored_below(tmp_path / "outputs", "size", kind="size")
    (tmp_path / "outputs" / "bad").mkdir()
    (tmp_path / "outputs" / "bad" / "summary.json").write_text("{")
    for age, name in enumerate(("deep/er/3", "bad", "a/2", "size", "a/1")):
        for file in ("summary.json", "sizing.json"):
            with suppress(FileNotFoundError):
                os.utime(tmp_path / "outputs" / name / file, (10**9 - age, 10**9 - age))
    told = json.loads(printed("report", tmp_path / "outputs", "--json"))
    rows = told["results"]
    below = [str(Path(row["folder"]).relative_to(tmp_path / "outputs")) for row in rows]
    assert below == ["deep/er/3", "bad", "a/2", "size", "a/1"]
    assert [row["kind"] for row in rows] == ["run", "", "run", "sizing", "run"]
    assert rows[1]["verdict"].startswith("no result: ")
    shown = printed("report", tmp_path / "outputs")
    for line in re.findall(r"dlemu report .*", shown):
        assert Path(line.split()[-1]).is_dir()
    (line,) = re.findall(r"the newest and the one before: dlemu (.*)", shown)
    printed(*shlex.split(line))
    page = tmp_path / "page.html"
    (tmp_path / "outputs" / "bad" / "summary.json").unlink()
    printed("report", tmp_path / "outputs", "--html", page, status=2)
    assert "dlemu: 4 results" in page.read_text()
    assert printed("report", tmp_path, "--trace", page, status=1).count("--trace") == 1


def test_compare_pairs_results_by_name(tmp_path: Path, printed: Printed) -> None:
    stored_below(tmp_path / "before", "x/20260101-000000", "y", "only")
    stored_below(tmp_path / "after", "x/20260202-000000", "y", "other")
    told = json.loads(printed("compare", tmp_path / "before", tmp_path / "after", "--json"))
    assert told["kind"] == "comparison", "the same path comes first"
    for name in ("before", "after"):
        (tmp_path / name / "y").rename(tmp_path / f"{name}.y")
    assert "20260202" in printed("compare", tmp_path / "before", tmp_path / "after")
    shutil.rmtree(tmp_path / "after" / "x")
    said = printed("compare", tmp_path / "before", tmp_path / "after", status=1)
    assert "no result of the same name lies below all of them" in said and "has other" in said


def test_a_stored_verdict_is_shown_and_not_judged_again(stored: Path, printed: Printed) -> None:
    out = reason("failed_after_the_end", error="the power was out")
    change(stored, verdict="NO VERDICT", findings=fields_of([out]))
    line, *_ = printed("report", stored, status=1).splitlines()
    assert line.startswith("NO VERDICT: AU ") and "; the power was out" in line
    per_epoch = json.loads((stored / "summary.json").read_text())["per_epoch"]
    change(stored, per_epoch=[{**each, "stored": True} for each in per_epoch])
    shown = json.loads(printed("report", stored, "--json", status=1))
    assert all(each["stored"] for each in shown["per_epoch"]), "not measured again"
    assert printed("report", stored, "metric.edition=v1.0"), "overrides judge again"


def test_a_run_of_a_version_with_sentences_is_shown_and_compared(
    stored: Path, printed: Printed
) -> None:
    """Until November 2026 a summary had them in place of findings."""
    path = stored / "summary.json"
    old = {name: each for name, each in json.loads(path.read_text()).items() if name != "findings"}
    old |= {"reasons": [], "remarks": ["BUT 12% of the bytes came from memory, not from storage"]}
    path.write_text(json.dumps(old | {"read_ahead": "", "unlike": "unlike unet3d_h100: all"}))
    first, *lines = printed("report", stored).splitlines()
    assert first.endswith("; BUT 12% of the bytes came from memory, not from storage")
    assert "unlike unet3d_h100: all" in lines
    (found, _) = json.loads(printed("report", stored, "--json"))["findings"]
    assert (found["kind"], found["weight"]) == ("as_written", "weakens")
    assert "AU" in printed("compare", stored, stored)


def test_a_path_in_the_config_is_not_interpolated(stored: Path) -> None:
    config = stored / "config.yaml"
    path = "  data_folder: /mnt/${USER}/x"
    config.write_text(re.sub("(?m)^  data_folder: .*", path, config.read_text()))
    assert read_config(stored, {}).dataset.data_folder == "/mnt/${USER}/x"


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def leave(folder: Path, steps: int) -> Path:
    path = folder / "steps.0.npy"
    np.save(path, np.load(path)[:steps])
    return path


DAMAGE: dict[str, Callable[[Path], object]] = {
    "{run} holds no steps.<rank>.npy; is it": lambda run: (run / "steps.0.npy").unlink(),
    "{run}/steps.0.npy is damaged: ": lambda run: cut(run / "steps.0.npy", -9),
    "{run}: its steps read ": lambda run: leave(run, -1),
    "{run}/config.yaml is missing; is {run} a run's": lambda run: (run / "config.yaml").unlink(),
    "{run}/config.yaml is not YAML: ": lambda run: (run / "config.yaml").write_text("dataset: {"),
    "{run}/summary.json is damaged: ": lambda run: cut(run / "summary.json", 100),
    "{run}: no verdict (incomplete), no whole epoch of all accelerators: the run": lambda run: (
        change(run, status="incomplete"),
        leave(run, 0),
    ),
    "{run} holds steps of 1 accelerator, the run had 2; a steps.<rank>.npy": lambda run: change(
        run, num_accelerators=2
    ),
    "{run}/host.0.jsonl is damaged: ": lambda run: (run / "host.0.jsonl").write_text(
        '{"time": 0}\n{"time": 1, "devices": 3}\n'
    ),
}
"""How a run's folder is damaged, by how its line must begin."""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"accuracy": 0.9, "loss": 0.1}', "it has accuracy, loss, but no status and no start"),
        ('{"status": "ok", "a": 1, "b": 2, "c": 3, "d": 4}', "it has a, b, c, but no start"),
        ('{"kind": "calibration"}', "it has kind, but no status"),
        ('{"runs": [{"id": 3}]}', "it has runs, but no status"),
        ("{}", "it has nothing, but no status and no start"),
    ],
)
def test_a_summary_of_another_program_is_not_called_damaged(
    tmp_path: Path, printed: Printed, text: str, said: str
) -> None:
    """Before: "damaged: KeyError 'status'; restore it from a copy, or run again"."""
    path = tmp_path / "theirs" / "summary.json"
    path.parent.mkdir()
    path.write_text(text)
    line = f"{path} is not of dlemu: {said}; name the folder of a run"
    assert printed("report", path.parent, status=1) == f"dlemu: {line}\n"
    assert printed("compare", path.parent, path.parent, status=1) == f"dlemu: {line}\n"
    assert f"no result: {path} is not of dlemu: {said}" in printed("report", tmp_path)


@pytest.mark.parametrize("begins", DAMAGE)
def test_a_damaged_folder_has_no_verdict(begins: str, stored: Path, printed: Printed) -> None:
    DAMAGE[begins](stored)
    page = ["--html", f"{stored.parent}/page.html"]
    for option in [page] if "host" in begins else [[], ["--json"], page]:
        line = printed("report", stored, *option, status=1)
        assert line.startswith(f"dlemu: {begins.format(run=stored)}") and line.count("\n") == 1
    assert not (stored.parent / "page.html").exists()


def test_without_a_folder_it_is_the_newest_result(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    monkeypatch.chdir(tmp_path)
    then = 2e9

    def store(name: str, seconds: int) -> Path:
        folder = Path("outputs", name)
        shutil.copytree(original, folder)
        os.utime(folder / "summary.json", (then - seconds, then - seconds))
        return folder

    store("unet3d_h100/old", 100)
    new, _ = store("unet3d_h100/new", 50), store("size/a/runs/of it", 0)  # the sizing's own
    sizing = Path("outputs/size/a/sizing.json")
    sizing.write_text('{"kind": "sizing", "answers": []}')
    os.utime(sizing, (then - 70, then - 70))
    lines = printed("report").splitlines()
    assert (lines[0], lines[-1]) == (f"newest of 3 results: {new}", f"results: {new}")
    os.utime(sizing, (then, then))
    said = printed("report", "--json", status=1)
    assert said.startswith(f"newest of 3 results: {sizing.parent}\n")


def test_earlier_attempts_are_named(stored: Path, printed: Printed) -> None:
    shutil.copytree(stored, stored.with_name("run.attempt-1"))
    line = f"earlier attempts, which did not end: {stored}.attempt-1"
    assert line in printed("report", stored).splitlines()


def test_the_page_shows_what_the_terminal_does(
    original: Path, tmp_path: Path, printed: Printed
) -> None:
    page = tmp_path / "page.html"
    lines = printed("report", original, "--html", page).splitlines()
    assert lines[-1] == f"page: {page}"
    html = page.read_text()
    verdict = next(line for line in lines if line.startswith("PASS"))
    assert f'<p class="verdict caution">{escape(verdict)}</p>' in html, "BUT weakens it"
    # One dot an epoch and line of utilisation, inside the picture.
    dots = [(float(x), float(y)) for x, y in re.findall(r"M([\d.]+) ([\d.]+)h0", html)]
    dots = [dot for dot in dots if dot != (13, 5)]  # those of the legend
    assert len(dots) == 4 and all(0 <= x <= 1000 and 0 <= y <= 1000 for x, y in dots)
    refused = printed("report", original, "--html", "/nosuch/page.html", status=1)
    assert refused.endswith("(No such file or directory); name another file\n")


@pytest.mark.parametrize("name", ["../run", "/etc", ""])
def test_a_run_of_several_lies_in_their_folder(name: str, tmp_path: Path, printed: Printed) -> None:
    summary = {"kind": "runs", "status": "complete", "runs": [{"name": name}]}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    line = f"dlemu: {tmp_path}/summary.json is damaged: a run is named {name!r}; restore it "
    assert printed("report", tmp_path, status=1) == f"{line}from a copy, or run again\n"


# --- side by side ---------------------------------------------------------------------------------


def changed(folder: Path, wait: float = 0.25, **fields: Any) -> Path:
    """Store a run whose steps waited so long for their batches, with other fields."""
    store_run(folder, wait=wait)
    change(folder, **fields)
    return folder


def test_a_loss_shows_in_the_exit_status(tmp_path: Path, printed: Printed) -> None:
    one, slow = changed(tmp_path / "one"), changed(tmp_path / "slow", wait=0.5)
    words = ["compare", one, slow, one / "summary.json", "compare.max_loss=5%", "--json"]
    told = json.loads(printed(*words, status=2))
    rates = [each["figures"]["samples_per_second"]["value"] for each in told["results"]]
    lost = 1 - rates[1] / rates[0]
    assert lost > 0.1 and told["loss"] == pytest.approx([lost, 0.0])
    assert (told["differing_facts"], told["differing_keys"]) == ({}, {})
    slower, same = told["differences"]
    assert slower["samples_per_second"]["share"] == pytest.approx(-lost)
    assert {each["value"] for each in same.values()} == {0.0}
    assert same["samples_per_second"]["within_noise"] is None, "one run knows no noise of runs"
    printed("compare", one, slow, f"compare.max_loss={100 * lost + 0.1:.2f}%", status=0)
    printed("compare", one, slow, f"compare.max_loss={100 * lost - 0.1:.2f}%", status=2)
    printed("compare", slow, one, "compare.max_loss=0%", status=0)


def test_what_differs_in_hosts_and_keys_is_named(tmp_path: Path, printed: Printed) -> None:
    drive = {"name": "nvme0n1", "model": "PM9A3", "firmware": "GDC5"}
    old = [SYSTEM | {"kernel": "6.1", "drives": [drive]}]
    new = [
        SYSTEM | {"kernel": "6.8", "file_system": "ext4", "drives": [drive | {"firmware": "GDC6"}]}
    ]
    before = changed(tmp_path / "before", system=old, versions=VERSIONS | {"dlemu": "0.0.9"})
    after = changed(tmp_path / "after", system=new)
    config = after / "config.yaml"
    text = config.read_text().replace("read_threads: 4", "read_threads: 8")
    config.write_text(text.replace("data_folder: ", "data_folder: /elsewhere"))
    told = json.loads(printed("compare", before, after, "--json"))
    assert told["differing_facts"] == {
        "system.kernel": ["6.1", "6.8"],
        "drives.firmware": ["GDC5", "GDC6"],
        "system.file_system": ["xfs", "ext4"],
        "versions.dlemu": ["0.0.9", "1.2.3"],
    }
    assert list(told["differing_keys"]) == ["reader.read_threads", "dataset.data_folder"]
    assert told["differing_keys"]["reader.read_threads"] == [4, 8]
    unknown = changed(tmp_path / "unknown", system=None, versions=None, hostname="")
    told = json.loads(printed("compare", unknown, after, "--json"))
    assert told["differing_facts"] == {}


def sizing(folder: Path, number: int, real: float | None, **more: Any) -> Path:
    """Write the answer of a search whose runs are gone."""
    interval = real and [real - 0.3, real + 0.3]
    own = {"num_accelerators": number, "real_accelerators": real, "interval": interval}
    document = document_of([sized()])
    document["answers"] = [document["answers"][0] | own | {"at_least": real is None} | more]
    folder.mkdir()
    (folder / "sizing.json").write_text(json.dumps(document))
    return folder


def test_sizings_are_compared_by_their_accelerators(tmp_path: Path, printed: Printed) -> None:
    before = sizing(tmp_path / "a", 10, 10.4)
    after = sizing(tmp_path / "b", 9, 9.8)
    bound = sizing(tmp_path / "c", 4, None)
    text = printed("compare", before, after, bound, "compare.max_loss=10%", status=2)
    assert f"LOSS: {bound} has 60.0% fewer accelerators" in text
    assert "its number is a lower bound" in text
    assert f"LOSS: {after}" not in text and "at least 4 accelerators" in text
    told = json.loads(printed("compare", before, after, "--json"))
    found = told["differences"][0]["real_accelerators"]
    assert found["value"] == pytest.approx(-0.6)
    assert found["noise"] == pytest.approx(0.3 * 2**0.5) and found["within_noise"] is False


def test_a_damaged_result_and_one_of_another_kind_are_named(
    tmp_path: Path, printed: Printed
) -> None:
    answer = sizing(tmp_path / "a", 10, 10.4)
    infinite = sizing(tmp_path / "i", 10, float("inf"), interval=[9, 10])
    other = sizing(tmp_path / "b", 10, 10.4, workload="resnet50_h100")
    damaged = sizing(tmp_path / "c", 10, 10.4, confirmations=3)
    dlio = Path(__file__).parents[1] / "data" / "dlio_2.0.0"
    for first, second, line in (
        (answer, infinite, f"{infinite} holds a damaged result: its real_accelerators is no fi"),
        (infinite, answer, f"{infinite} holds a damaged result: its real_accelerators is no fi"),
        (answer, other, "a sizing of resnet50_h100"),
        (answer, damaged, f"{damaged}/sizing.json has a form that dlemu "),
        (answer, dlio, f"{dlio} a run of unet3d_h100"),
    ):
        said = printed("compare", first, second, status=1)
        assert said.startswith("dlemu: ") and said.count("\n") == 1 and line in said
        remedies = ("restore it from a copy, or run again", "or name another output.folder")
        has_remedy = said.rstrip().endswith(remedies)
        assert has_remedy == ("damaged" in line or "has a form" in line)


def test_saves_are_not_compared_with_loads(tmp_path: Path, printed: Printed) -> None:
    store_checkpoint(tmp_path / "both")
    tree = json.loads((tmp_path / "both" / "summary.json").read_text())
    for gone, kept in (("saves", "loads"), ("loads", "saves")):
        shutil.copytree(tmp_path / "both", tmp_path / kept)
        change(tmp_path / kept, checkpoint=tree["checkpoint"] | {gone: []})
    both, loads, saves = (tmp_path / name for name in ("both", "loads", "saves"))
    told = json.loads(printed("compare", both, loads, "--json"))
    assert told["differences"][0].keys() == {"load_bytes_per_second"}
    assert "have no figure in common" in printed("compare", saves, loads, status=1)
