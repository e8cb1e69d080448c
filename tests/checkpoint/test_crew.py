"""When ranks see that all have ended; and what counts as progress of a write: bytes that move, and
what the drive takes in a long fsync."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlemu.checkpoint import crew
from dlemu.checkpoint.crew import Crew, Movement
from dlemu.ranks.world import Alone
from tests.lab.virtual import VirtualClock


class Tool:
    bytes_done = 0

    def stop(self) -> None: ...


class TwoRanks(Alone):
    """One of two ranks; the other one has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.num_ranks = 2

    def all_gather(self, value: Any) -> list[Any]:
        return [value, (7, True)]


@pytest.mark.parametrize(("seconds", "most"), [(0.2, 0.051), (0.8, 0.051), (100.0, 1.01)])
def test_several_ranks_see_soon_that_all_have_ended(
    tmp_path: Path, seconds: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They look again after a fiftieth of the time that has passed: after 0.05 to 1 s."""
    clock, ends = VirtualClock(), threading.Event()

    def wait_for(futures: Sequence[Future[object]], pause: float, until: str) -> object:
        if clock.time + pause < seconds:
            clock.time += pause
            return set(), set(futures)
        clock.time = max(clock.time, seconds)
        ends.set()
        return wait(futures)

    def sleep(pause: float) -> None:
        clock.time += pause

    monkeypatch.setattr(crew, "wait", wait_for)
    monkeypatch.setattr(crew, "time", SimpleNamespace(sleep=sleep))
    watch: Any = SimpleNamespace(at=lambda path: None)
    with Crew[object]([Tool()], tmp_path, TwoRanks(), watch, clock.now) as own:
        own.run(lambda _: ends.wait(60))
        assert clock.time <= seconds + most
        assert own.bytes_done == 7


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
