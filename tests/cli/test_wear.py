"""`dlemu wear`, and the line that commands end with."""

from pathlib import Path

import pytest

from dlemu.cli import wear as wear_module
from dlemu.cli.wear import watched
from dlemu.config.model import load_workload
from dlemu.ranks.world import Alone


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
