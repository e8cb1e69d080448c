"""--dry-run says what a command would do, refuses what it would refuse, and leaves nothing."""

import os
from pathlib import Path

import pytest

from dlemu.cli.main import run
from tests.lab.commands import QUICK, SMALL


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset."""
    folder = tmp_path_factory.mktemp("dry") / "data"
    assert run(["datagen", str(folder), *SMALL]) == 0
    return folder


def everything(folder: Path) -> list[tuple[str, int]]:
    """Return all that lies below a folder, files with the time of the last change."""
    times = {path: path.stat().st_mtime_ns * path.is_file() for path in folder.rglob("*")}
    return sorted((str(path), time) for path, time in times.items())


def dry(words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines of a dry run that is accepted; nothing below `folder` changes."""
    before, here = everything(folder), Path.cwd()
    capsys.readouterr()
    os.chdir(folder)
    try:
        assert run([*words, "--dry-run"]) == 0
    finally:
        os.chdir(here)
    assert everything(folder) == before
    return capsys.readouterr().out.splitlines()


def line(lines: list[str], name: str) -> str:
    """Return what stands behind "name:", once."""
    (found,) = [each for each in lines if each.startswith(f"{name}:")]
    return found.removeprefix(f"{name}:").strip()


def test_datagen_counts_what_is_missing(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = dry(["datagen", str(data), "dataset.num_files_train=60"], data.parent, capsys)
    assert line(lines, "write").startswith("4 files, ")
    lines = dry(["datagen", str(data), f"cache.folder={data}/cache"], data.parent, capsys)
    assert line(lines, "write") == "0 files, 0 B" and not any("time:" in each for each in lines)
    assert line(lines, "cache").startswith("dlemu run would refuse it: cache.folder")


def test_a_cache_is_foretold(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*QUICK[5:], "cache.policy=keep", "cache.capacity=0.5", "reader.batch_size=1"]
    cache = f"cache.folder={data.parent}/cache"
    lines = dry(["run", str(data), cache, *words], data.parent, capsys)
    said = line(lines, "cache")
    assert said.startswith(f"{data.parent}/cache, 718.0 KiB for 56 files of 1.4 MiB, ")
    (cold, warm) = [each.strip() for each in lines if each.startswith("          epoch")]
    assert cold.startswith("epoch 1: planned hits 0.0%, 0 B from the cache, 1.3 MiB from the")
    assert warm.startswith("epoch 2: planned hits 50.0%")
    assert warm.endswith(", 0 B written to the cache")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "num_accelerators=9"], "56 samples are too few for 2 steps"),
        (["run", "dataset.num_files_train=auto"], "dataset.num_files_train=auto asks for"),
        (["run", "output.folder={data}/dlemu.json"], "cannot be written (File exists)"),
        (["run", "division=closed"], "division=closed: "),
        (["datagen", "dataset.seed=7"], "dataset.seed is 0, the workload's is 7"),
        (["size"], "are needed for 1 accelerator"),
        (["size", "size.quick=true"], "a quick search needs 50"),
    ],
)
def test_what_would_be_refused_is_refused_with_the_same_line(
    words: list[str],
    said: str,
    data: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("run.forecast", "sizing.start"):  # advice depends on what a probe reads
        monkeypatch.setattr(f"dlemu.{module}.probe_dataset", lambda *_, **__: 1e9)
    before = everything(data.parent)
    command, *keys = [word.format(data=data) for word in words]
    capsys.readouterr()
    assert run([command, str(data), *keys, "--dry-run"]) == 1
    refused = capsys.readouterr().err
    assert refused.count("\n") == 1 and said in refused
    assert everything(data.parent) == before
    assert run([command, str(data), *keys]) == 1
    assert capsys.readouterr().err == refused
