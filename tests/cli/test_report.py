"""Runs shown again: recomputed from the steps, damaged ones named, as text, JSON and a page."""

import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from dlemu.cli.main import run
from dlemu.results.metrics import measure
from dlemu.results.records import read_config, read_steps
from tests.lab.commands import QUICK, generate


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


@pytest.mark.parametrize("edition", ["v1.0", "v2.0"])
def test_another_edition_is_computed_from_the_same_steps(
    edition: str, original: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(original), f"metric.edition={edition}"]) == 0
    metrics = measure(read_steps(original), edition="v1.0" if edition == "v1.0" else "v2.0")
    text = capsys.readouterr().out
    assert text.startswith(f"PASS: AU {metrics.au_percentage:.2f}%")
    assert f"(edition {edition}, loop rule, hand-over batch)" in text


def test_another_threshold_judges_the_steps_and_not_the_summary(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = np.load(stored / "steps.0.npy")
    steps["wait"] += 1.0
    np.save(stored / "steps.0.npy", steps)
    assert run(["report", str(stored), "metric.au=0.9"]) == 2
    assert capsys.readouterr().out.startswith("FAIL: AU 0.")


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


def test_json_is_one_object_a_folder(
    original: Path, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", "--json", str(original), str(stored), "metric.edition=v2.0"]) == 0
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["folder"] for each in objects] == [str(original), str(stored)]
    written = json.loads((original / "summary.json").read_text())
    assert objects[0].keys() == written.keys() | {"folder"}
    assert objects[0]["metric"]["edition"] == "v2.0"
    assert written["metric"]["edition"] == "v1.0", "what was written stays"


def test_a_path_in_the_config_is_not_interpolated(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = stored / "config.yaml"
    text, changed = re.subn(
        "(?m)^  data_folder: .*", "  data_folder: /mnt/${USER}/x", config.read_text()
    )
    config.write_text(text)
    assert changed == 1 and run(["report", str(stored)]) == 0
    assert "PASS" in capsys.readouterr().out
    workload = read_config(stored, {"metric.au": 0.5})
    assert workload.dataset.data_folder == "/mnt/${USER}/x" and workload.metric.au == 0.5


def test_a_bad_folder_is_named_and_the_others_are_shown(
    original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(tmp_path), str(original)]) == 1
    said = capsys.readouterr()
    assert said.err == f"dlemu: {tmp_path} holds no summary.json; is it a run's folder?\n"
    assert said.out.endswith(f"results: {original}\n")


def damage(folder: Path, how: str) -> str:
    """Damage a run's folder; return how its line must begin."""
    summary = folder / "summary.json"
    match how:
        case "no steps":
            (folder / "steps.0.npy").unlink()
            return f"{folder} holds no steps.<rank>.npy; is it a run's folder?"
        case "cut steps":
            content = (folder / "steps.0.npy").read_bytes()
            (folder / "steps.0.npy").write_bytes(content[:-9])
            return f"{folder / 'steps.0.npy'} is damaged: "
        case "some steps":
            np.save(folder / "steps.0.npy", np.load(folder / "steps.0.npy")[:-1])
            return f"{folder}: its steps read "
        case "no config":
            (folder / "config.yaml").unlink()
            return f"{folder / 'config.yaml'} is missing; is {folder} a run's folder?"
        case "cut config":
            (folder / "config.yaml").write_text("dataset: {")
            return f"{folder / 'config.yaml'} is not YAML: "
        case "cut summary":
            summary.write_text(summary.read_text()[:100])
            return f"{summary} is damaged: "
        case "no end":
            summary.write_text(summary.read_text().replace('"complete"', '"incomplete"', 1))
            np.save(folder / "steps.0.npy", np.load(folder / "steps.0.npy")[:0])
            return f"{folder}: no verdict (incomplete), no whole epoch of all accelerators: the run"
        case "one rank less":
            told = json.loads(summary.read_text()) | {"num_accelerators": 2}
            summary.write_text(json.dumps(told))
            return f"{folder} holds steps of 1 accelerator, the run had 2; a steps.<rank>.npy"
        case _:
            raise AssertionError(how)


@pytest.mark.parametrize(
    "how",
    [
        "no steps",
        "cut steps",
        "some steps",
        "no config",
        "cut config",
        "cut summary",
        "no end",
        "one rank less",
    ],
)
def test_a_damaged_folder_has_no_verdict(
    how: str, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begins = damage(stored, how)
    for option in ([], ["--json"], ["--html", str(stored.parent / "page.html")]):
        assert run(["report", str(stored), *option]) == 1
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1
        assert said.err.startswith(f"dlemu: {begins}"), said.err
    assert not (stored.parent / "page.html").exists()


def age(folder: Path, seconds: int) -> None:
    """Make a result look older."""
    path = next(each for each in (folder / "summary.json", folder / "sizing.json") if each.exists())
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_without_a_folder_it_is_the_newest_result(
    original: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["report"]) == 1
    assert capsys.readouterr().err == (
        "dlemu: no result below outputs/ here; name a folder: dlemu report FOLDER\n"
    )
    old, new = Path("outputs/unet3d_h100/old"), Path("outputs/unet3d_h100/new")
    for folder, seconds in ((old, 100), (new, 50)):
        shutil.copytree(original, folder)
        age(folder, seconds)
    sizing = Path("outputs/size/a")
    (sizing / "runs").mkdir(parents=True)
    shutil.copytree(original, sizing / "runs" / "of it")  # newer than all, but the sizing's own
    (sizing / "sizing.json").write_text('{"kind": "sizing", "answers": []}')
    age(sizing, 70)
    assert run(["report"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[-1]) == (f"newest of 3 results: {new}", f"results: {new}")
    age(new, 90)
    assert run(["report", "--json"]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"newest of 3 results: {sizing}\n")


def test_several_results_of_both_tools_end_with_one_table(
    original: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dlio = Path(__file__).parents[1] / "data" / "dlio_2.0.0"
    assert run(["report", str(dlio), str(original)]) == 1
    head, _, *rows, _, legend = capsys.readouterr().out.splitlines()[-6:]
    heads, *cells = [re.split("  +", line) for line in (head, *rows)]
    assert heads[:5] == ["result", "workload", "verdict", "accelerators", "AU (%)"]
    assert [row[:2] for row in cells] == [
        [str(dlio), "unet3d_h100 (DLIO)"],
        [str(original), "unet3d_h100"],
    ]
    assert cells[0][4:7] == ["94.32", "81.23", "92.60"]
    assert heads[5:7] == ["with first step (%)", "as recorded (%)"]
    metrics = measure(read_steps(original))
    assert cells[1][4] == f"{metrics.au_percentage:.2f}"
    assert legend.startswith("AU by dlemu's formula, without the first step")


def test_earlier_attempts_are_named(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(stored, stored.with_name("run.attempt-1"))
    assert run(["report", str(stored)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"earlier attempts, which did not end: {stored}.attempt-1" in lines


class Elements(HTMLParser):
    """Checks that elements close in the order in which they were opened, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


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
    elements = Elements()
    elements.feed(html)
    assert elements.open == [] and elements.links == [], "well formed, and nothing is fetched"
    assert "a &lt;b&gt; &amp; c" in html and "a <b>" not in html
    verdict = next(line for line in said.out.splitlines() if line.startswith("PASS"))
    assert f'<p class="verdict caution">{verdict}</p>' in html, "BUT weakens it"
    assert elements.seen.count("table") == 2
    assert "svg" in elements.seen and "NaN" not in html and "nan" not in html
    # One dot an epoch and line of utilisation, inside the picture.
    dots = [(float(x), float(y)) for x, y in re.findall(r"M([\d.]+) ([\d.]+)h0", html)]
    dots = [dot for dot in dots if dot != (13, 5)]  # those of the legend
    assert len(dots) == 4 and all(0 <= x <= 1000 and 0 <= y <= 1000 for x, y in dots)


def test_a_page_that_cannot_be_written_is_one_line(
    original: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(original), "--html", "/nosuch/page.html"]) == 1
    assert capsys.readouterr().err == (
        "dlemu: --html /nosuch/page.html cannot be written (No such file or directory); name "
        "another file\n"
    )


def test_a_host_whose_counters_are_damaged_is_named(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (stored / "host.0.jsonl").write_text('{"time": 0}\n{"time": 1, "devices": 3}\n')
    assert run(["report", str(stored), "--html", str(tmp_path / "page.html")]) == 1
    assert capsys.readouterr().err.startswith(f"dlemu: {stored / 'host.0.jsonl'} is damaged: ")


@pytest.mark.parametrize("name", ["../run", "/etc", "..", "a/b", ""])
def test_a_run_of_several_lies_in_their_folder(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = {"kind": "runs", "status": "complete", "runs": [{"name": name}]}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert run(["report", str(tmp_path)]) == 1
    line = f"dlemu: {tmp_path}/summary.json is damaged: a run is named {name!r}\n"
    assert capsys.readouterr().err == line
