"""When ranks see that all have ended; and what counts as progress of a write: bytes that move, and
what the drive takes in a long fsync."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from dlemu.checkpoint import crew
from dlemu.checkpoint.crew import Movement


class Tool:
    bytes_done = 0

    def stop(self) -> None: ...


def test_bytes_that_are_written_or_reach_the_drive_are_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = SimpleNamespace(written_bytes=7)
    device = SimpleNamespace(counters=lambda: drive)
    monkeypatch.setattr(crew, "devices_under", lambda folder: [device])
    tools = [Tool(), Tool()]
    movement = Movement(tools, tmp_path)
    assert movement.seen() and not movement.seen()
    tools[1].bytes_done = 4
    assert movement.seen() and not movement.seen() and movement.bytes_done == 4
    drive.written_bytes = 8
    assert movement.seen() and not movement.seen()


def test_without_a_drive_the_page_cache_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "devices_under", lambda folder: [])
    monkeypatch.setattr(crew, "PROC", tmp_path)
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemFree: 1 kB\nDirty: 5 kB\nWriteback: 2 kB\n")
    movement = Movement([], tmp_path)
    assert movement.seen() and not movement.seen()
    meminfo.write_text("MemFree: 9 kB\nDirty: 5 kB\nWriteback: 2 kB\n")
    assert not movement.seen(), "memory of others"
    meminfo.write_text("MemFree: 9 kB\nDirty: 5 kB\nWriteback: 1 kB\n")
    assert movement.seen()
