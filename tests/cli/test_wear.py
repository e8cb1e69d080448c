"""`dlemu wear`, and the line that commands end with."""

import json
from pathlib import Path

import pytest

from dlemu.cli import wear as wear_module
from dlemu.cli.main import run
from dlemu.cli.wear import watched
from dlemu.host.devices import BlockDevice
from dlemu.host.drive_counters import Lifetime
from dlemu.workload.model import load_workload
from dlemu.world.world import Alone


def test_scripts_get_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["drive.endurance=14PB", "drive.capacity=7.68TB", "wear.years=10", "wear.duty=25%"]
    assert run(["wear", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["drives"] == []
    assert found["sustained"]["bytes_per_second"] == pytest.approx(14e15 / 315_360_000 / 0.25)
    assert found["sustained"]["drive_writes_per_day"] == pytest.approx(14e15 / 7.68e12 / 3650)


def test_a_folder_s_drives_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    device = BlockDevice("nvme0n1", ())
    tells = Lifetime(
        name="nvme0n1",
        model="",
        capacity_bytes=10**12,
        block_bytes_written=None,
        host_bytes_written=None,
        host_bytes_read=None,
        media_bytes_written=None,
        media_source="",
        waf=None,
        percentage_used=None,
        available_spare=None,
        power_on_hours=None,
        media_errors=None,
        missing={"host_bytes_written": "asking /dev/nvme0 needs CAP_SYS_ADMIN"},
    )
    monkeypatch.setattr(wear_module, "devices_under", lambda path: [device])
    monkeypatch.setattr(wear_module, "lifetime", lambda each: tells)

    assert run(["wear", str(tmp_path), "drive.endurance=1.825PB"]) == 0

    said = capsys.readouterr().out
    assert "own counters: unknown: asking /dev/nvme0 needs CAP_SYS_ADMIN\n" in said
    [row] = [line for line in said.splitlines() if line.startswith("10^15 bytes")]
    assert row.endswith(" 1.00"), "of the drive that is there"


def test_a_verbose_command_ends_with_what_it_wrote(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drive = load_workload("unet3d_h100", {"drive.endurance": "14PB"}).drive
    with watched(Alone(), Path("/dev/shm"), drive=drive, written=lambda: 10**8):
        pass
    said = capsys.readouterr()
    assert said.out == said.err == "", "13 s of datagen tell no pace"
    monkeypatch.setattr(wear_module, "detail", lambda text: told.append(text))
    told: list[str] = []
    with watched(Alone(), Path("/dev/shm"), drive=drive, written=lambda: 10**8):
        pass
    assert told == ["wear: not known; no drive is seen under the folder (tmpfs)"]
    with watched(Alone(), Path("/dev/shm"), drive=None, written=lambda: 10**8 - 1):
        pass
    assert len(told) == 1
