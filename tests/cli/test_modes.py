"""How much is printed, where else it is kept, and in which units."""

import re
from pathlib import Path

import pytest

from dlemu.cli import jobs
from dlemu.cli.jobs import watched
from dlemu.cli.main import run
from dlemu.config.model import load_workload
from dlemu.ranks.world import Alone
from dlemu.terminal import set_mode
from tests.lab.commands import QUICK, SMALL
from tests.lab.golden import FOLDER

BINARY = re.compile(r"\b[KMGT]iB/s")


@pytest.fixture(autouse=True)
def usual_mode() -> None:
    set_mode()


def job(data: str, folder: Path) -> list[str]:
    return ["run", *QUICK, data, f"output.folder={folder / 'run'}"]


def test_quiet_prints_the_verdict_only(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run([*job(data, tmp_path), "-q", f"output.log={tmp_path / 'log'}"]) == 0
    said = capsys.readouterr()
    assert re.fullmatch(r"PASS: AU .*\n", said.out) and said.err == ""
    log = (tmp_path / "log").read_text()
    assert "samples/s" in log and said.out.strip() in log, "what is hidden is kept"


def test_the_log_has_the_command_the_time_and_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a b.log"
    words = ["run", *SMALL, "dataset.data_folder=/nosuch", f"output.log={log}"]
    assert run(words) == 1
    time, command = log.read_text().splitlines()[0].split(" $ ")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", time)
    assert (
        command.startswith("dlemu run workload=unet3d_h100 ") and f"'output.log={log}'" in command
    )
    assert capsys.readouterr().err.rstrip("\n") == log.read_text().splitlines()[-1][20:]
    before = log.read_text()
    assert run(words) == 1
    assert log.read_text().startswith(before), "it is appended to"
    log.unlink()
    assert run([*words, "--cfg", "job"]) == 0 and not log.exists()


def test_rates_are_in_one_family_of_units() -> None:
    """10^6 and its powers; MiB/s are in DLIO's fields of summary.json alone."""
    assert [path.name for path in FOLDER.glob("*.txt") if BINARY.search(path.read_text())] == []


def test_a_verbose_command_ends_with_what_it_wrote(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drive = load_workload("unet3d_h100", {"drive.endurance": "14PB"}).drive
    with watched(Alone(), Path("/dev/shm"), drive=drive, written=lambda: 10**8):
        pass
    said = capsys.readouterr()
    assert said.out == said.err == "", "13 s of datagen tell no pace"
    monkeypatch.setattr(jobs, "detail", lambda text: told.append(text))
    told: list[str] = []
    with watched(Alone(), Path("/dev/shm"), drive=drive, written=lambda: 10**8):
        pass
    assert told == ["wear: not known; no drive is seen under the folder (tmpfs)"]
    with watched(Alone(), Path("/dev/shm"), drive=None, written=lambda: 10**8 - 1):
        pass
    assert len(told) == 1
