"""Runs shown again: recomputed from the steps, damaged ones named, as text, JSON and a page."""

import json
import os
import re
import shutil
from collections.abc import Callable
from html import escape
from pathlib import Path

import numpy as np
import pytest

from dlemu.cli.main import run
from dlemu.judge.records import read_config
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
    line = f"dlemu: {tmp_path}/summary.json is damaged: a run is named {name!r}\n"
    assert capsys.readouterr().err == line
