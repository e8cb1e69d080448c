"""--dry-run says what a command would do, refuses what it would refuse, and leaves nothing."""

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


def test_nothing_stays(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed is in golden/dry.txt."""
    monkeypatch.chdir(data.parent)
    before = everything(data.parent)
    cache = [f"cache.folder={data.parent}/cache", "cache.capacity=0.5"]
    assert run(["run", str(data), *QUICK[5:], *cache, "--dry-run"]) == 0
    assert run(["datagen", str(data), "dataset.num_files_train=60", "--dry-run"]) == 0
    assert everything(data.parent) == before


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
    for module in ("run.forecast", "sizing.measured"):  # advice depends on what a probe reads
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
