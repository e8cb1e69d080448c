"""Stored results shown again and side by side: recomputed, damaged ones named, exit statuses."""

import json
import os
import re
import shutil
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlemu.cli.main import run
from dlemu.judge.records import read_config
from dlemu.sizing.answers import document_of
from tests.lab.commands import QUICK, generate
from tests.lab.stored import SYSTEM, VERSIONS, sized, store_checkpoint, store_run, store_runs


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


def test_a_stored_verdict_is_shown_and_not_judged_again(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stored / "summary.json"
    reasons = {"verdict": "NO VERDICT", "reasons": ["the power was out"]}
    path.write_text(json.dumps(json.loads(path.read_text()) | reasons))
    assert run(["report", str(stored)]) == 1
    line, *_ = capsys.readouterr().out.splitlines()
    assert line.startswith("NO VERDICT: AU ") and "; the power was out" in line
    assert run(["report", str(stored), "metric.edition=v1.0"]) == 0, "overrides judge again"


def test_a_path_in_the_config_is_not_interpolated(stored: Path) -> None:
    config = stored / "config.yaml"
    path = "  data_folder: /mnt/${USER}/x"
    config.write_text(re.sub("(?m)^  data_folder: .*", path, config.read_text()))
    assert run(["report", str(stored)]) == 0
    assert read_config(stored, {}).dataset.data_folder == "/mnt/${USER}/x"


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def change(path: Path, **fields: object) -> int:
    return path.write_text(json.dumps(json.loads(path.read_text()) | fields))


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
        change(run / "summary.json", status="incomplete"),
        leave(run, 0),
    ),
    "{run} holds steps of 1 accelerator, the run had 2; a steps.<rank>.npy": lambda run: change(
        run / "summary.json", num_accelerators=2
    ),
    "{run}/host.0.jsonl is damaged: ": lambda run: (run / "host.0.jsonl").write_text(
        '{"time": 0}\n{"time": 1, "devices": 3}\n'
    ),
}
"""How a run's folder is damaged, by how its line must begin."""


@pytest.mark.parametrize("begins", DAMAGE)
def test_a_damaged_folder_has_no_verdict(
    begins: str, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGE[begins](stored)
    page = ["--html", str(stored.parent / "page.html")]
    for option in [page] if "host" in begins else [[], ["--json"], page]:
        assert run(["report", str(stored), *option]) == 1
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1
        assert said.err.startswith(f"dlemu: {begins.format(run=stored)}"), said.err
    assert not (stored.parent / "page.html").exists()


def test_without_a_folder_it_is_the_newest_result(
    original: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
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
    assert run(["report"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[-1]) == (f"newest of 3 results: {new}", f"results: {new}")
    os.utime(sizing, (then, then))
    assert run(["report", "--json"]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"newest of 3 results: {sizing.parent}\n")


def test_earlier_attempts_are_named(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(stored, stored.with_name("run.attempt-1"))
    assert run(["report", str(stored)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"earlier attempts, which did not end: {stored}.attempt-1" in lines


def test_the_page_stands_alone_and_shows_what_the_terminal_does(
    original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a <b> & c"
    shutil.copytree(original, folder)
    page = tmp_path / "page.html"
    assert run(["report", str(folder), "--html", str(page)]) == 0
    said = capsys.readouterr()
    assert said.err == f"page: {page}\n"
    html = page.read_text()
    for tag in ("section", "table", "tr", "td", "th", "svg", "details", "p"):
        assert len(re.findall(rf"<{tag}\b", html)) == html.count(f"</{tag}>"), tag
    assert "a &lt;b&gt; &amp; c" in html and "a <b>" not in html
    verdict = next(line for line in said.out.splitlines() if line.startswith("PASS"))
    assert f'<p class="verdict caution">{escape(verdict)}</p>' in html, "BUT weakens it"
    assert "<svg" in html and "NaN" not in html and "nan" not in html
    # One dot an epoch and line of utilisation, inside the picture.
    dots = [(float(x), float(y)) for x, y in re.findall(r"M([\d.]+) ([\d.]+)h0", html)]
    dots = [dot for dot in dots if dot != (13, 5)]  # those of the legend
    assert len(dots) == 4 and all(0 <= x <= 1000 and 0 <= y <= 1000 for x, y in dots)
    assert run(["report", str(folder), "--html", "/nosuch/page.html"]) == 1
    assert capsys.readouterr().err.endswith("(No such file or directory); name another file\n")


@pytest.mark.parametrize("name", ["../run", "/etc", ""])
def test_a_run_of_several_lies_in_their_folder(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = {"kind": "runs", "status": "complete", "runs": [{"name": name}]}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert run(["report", str(tmp_path)]) == 1
    line = f"dlemu: {tmp_path}/summary.json is damaged: a run is named {name!r}; restore it "
    assert capsys.readouterr().err == f"{line}from a copy, or run again\n"


# --- side by side ---------------------------------------------------------------------------------


def changed(folder: Path, wait: float = 0.25, **fields: Any) -> str:
    """Store a run whose steps waited so long for their batches, with other fields."""
    store_run(folder, wait=wait)
    tree = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(tree | fields))
    return str(folder)


def compared(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["compare", *words, "--json"]) == status
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_a_loss_shows_in_the_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, slow = changed(tmp_path / "one"), changed(tmp_path / "slow", wait=0.5)
    told = compared(capsys, one, slow, f"{one}/summary.json", "compare.max_loss=5%", status=2)
    rates = [each["figures"]["samples_per_second"]["value"] for each in told["results"]]
    lost = 1 - rates[1] / rates[0]
    assert lost > 0.1 and told["loss"] == pytest.approx([lost, 0.0])
    assert (told["differing_facts"], told["differing_keys"]) == ({}, {})
    slower, same = told["differences"]
    assert slower["samples_per_second"]["share"] == pytest.approx(-lost)
    assert {each["value"] for each in same.values()} == {0.0}
    assert same["samples_per_second"]["within_noise"] is None, "one run knows no noise of runs"
    for words, status in (
        ([one, slow], 0),
        ([one, slow, f"compare.max_loss={100 * lost + 0.1:.2f}%"], 0),
        ([one, slow, f"compare.max_loss={100 * lost - 0.1:.2f}%"], 2),
        ([slow, one, "compare.max_loss=0%"], 0),
    ):
        assert run(["compare", *words]) == status


def test_what_differs_in_hosts_and_keys_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drive = {"name": "nvme0n1", "model": "PM9A3", "firmware": "GDC5"}
    old = [SYSTEM | {"kernel": "6.1", "drives": [drive]}]
    new = [
        SYSTEM | {"kernel": "6.8", "file_system": "ext4", "drives": [drive | {"firmware": "GDC6"}]}
    ]
    before = changed(tmp_path / "before", system=old, versions=VERSIONS | {"dlemu": "0.0.9"})
    after = changed(tmp_path / "after", system=new)
    config = tmp_path / "after" / "config.yaml"
    text = config.read_text().replace("read_threads: 4", "read_threads: 8")
    config.write_text(text.replace("data_folder: ", "data_folder: /elsewhere"))
    told = compared(capsys, before, after)
    assert told["differing_facts"] == {
        "system.kernel": ["6.1", "6.8"],
        "drives.firmware": ["GDC5", "GDC6"],
        "system.file_system": ["xfs", "ext4"],
        "versions.dlemu": ["0.0.9", "1.2.3"],
    }
    assert list(told["differing_keys"]) == ["reader.read_threads", "dataset.data_folder"]
    assert told["differing_keys"]["reader.read_threads"] == [4, 8]
    unknown = changed(tmp_path / "unknown", system=None, versions=None, hostname="")
    assert compared(capsys, unknown, after)["differing_facts"] == {}


def test_several_runs_have_the_noise_of_their_spread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_runs(tmp_path / "several")
    told = compared(capsys, str(tmp_path / "several"), changed(tmp_path / "one"))
    first = told["results"][0]
    assert (first["basis"], first["num_accelerators"]) == ("3 runs", 4)
    rows = json.loads((tmp_path / "several" / "summary.json").read_text())["runs"]
    rates = [row["samples_per_second"] for row in rows if row["name"].startswith("run")]
    figure = first["figures"]["samples_per_second"]
    assert figure["value"] == pytest.approx(np.mean(rates))
    assert figure["error"] == pytest.approx(np.std(rates, ddof=1) / 3**0.5)


def sizing(folder: Path, number: int, real: float | None, **more: Any) -> Path:
    """Write the answer of a search whose runs are gone."""
    own: dict[str, Any] = {"num_accelerators": number, "real_accelerators": real}
    own |= {
        "at_least": real is None,
        "interval": None if real is None else [real - 0.3, real + 0.3],
    }
    document = document_of([sized()])
    document["answers"] = [document["answers"][0] | own | more]
    folder.mkdir()
    (folder / "sizing.json").write_text(json.dumps(document))
    return folder


def test_sizings_are_compared_by_their_accelerators(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sizing(tmp_path / "a", 10, 10.4)
    after = sizing(tmp_path / "b", 9, 9.8)
    bound = sizing(tmp_path / "c", 4, None)
    assert run(["compare", str(before), str(after), str(bound), "compare.max_loss=10%"]) == 2
    text = capsys.readouterr().out
    assert (
        f"LOSS: {bound} has 60.0% fewer accelerators" in text
        and "its number is a lower bound" in text
    )
    assert f"LOSS: {after}" not in text and "at least 4 accelerators" in text
    told = compared(capsys, str(before), str(after))
    found = told["differences"][0]["real_accelerators"]
    assert found["value"] == pytest.approx(-0.6)
    assert found["noise"] == pytest.approx(0.3 * 2**0.5) and found["within_noise"] is False


def test_a_damaged_result_and_one_of_another_kind_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = str(sizing(tmp_path / "a", 10, 10.4))
    infinite = str(sizing(tmp_path / "i", 10, float("inf"), interval=[9, 10]))
    other = str(sizing(tmp_path / "b", 10, 10.4, workload="resnet50_h100"))
    damaged = str(sizing(tmp_path / "c", 10, 10.4, confirmations=3))
    dlio = str(Path(__file__).parents[1] / "data" / "dlio_2.0.0")
    for first, second, line in (
        (answer, infinite, f"{infinite} holds a damaged result: its real_accelerators is no fi"),
        (infinite, answer, f"{infinite} holds a damaged result: its real_accelerators is no fi"),
        (answer, other, "a sizing of resnet50_h100"),
        (answer, damaged, f"{damaged} holds a damaged"),
        (answer, dlio, f"{dlio} a run of unet3d_h100"),
    ):
        capsys.readouterr()
        assert run(["compare", first, second]) == 1
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1 and line in said.err


def test_saves_are_not_compared_with_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_checkpoint(tmp_path / "both")
    tree = json.loads((tmp_path / "both" / "summary.json").read_text())
    for gone, kept in (("saves", "loads"), ("loads", "saves")):
        shutil.copytree(tmp_path / "both", tmp_path / kept)
        entries = tree["checkpoint"] | {gone: []}
        text = json.dumps(tree | {"checkpoint": entries})
        (tmp_path / kept / "summary.json").write_text(text)
    both, loads, saves = (str(tmp_path / name) for name in ("both", "loads", "saves"))
    assert compared(capsys, both, loads)["differences"][0].keys() == {"load_bytes_per_second"}
    assert run(["compare", saves, loads]) == 1
    assert "have no figure in common" in capsys.readouterr().err
