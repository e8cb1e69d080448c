"""When the watchdog ends a run: by a clock that the test sets."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dlemu import watchdog
from dlemu.errors import RunError
from dlemu.watchdog import Watchdog
from dlemu.world import Alone

STALL = 0.04
"""Seconds; the watchdog looks at the clock after each quarter of them."""


class Clock:
    """Stands still until it is set; counts how often it was looked at."""

    def __init__(self) -> None:
        self.now = 0.0
        self._looks = 0
        self._looked = threading.Condition()

    def perf_counter(self) -> float:
        with self._looked:
            self._looks += 1
            self._looked.notify()
        return self.now

    def set(self, now: float) -> None:
        """Set it, and return when it was looked at often enough for anything to come of it."""
        self.now = now
        with self._looked:
            enough = self._looks + 3
            assert self._looked.wait_for(lambda: self._looks >= enough, timeout=20)


class Stuck:
    """A loader that waits for a file."""

    def waiting_for(self) -> str:
        return "worker 3 reads img_7.npz"

    def pids(self) -> list[int]:
        return []


class Ends:
    """What the watchdog said and did, instead of ending this process."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.errors: list[RunError] = []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watchdog, "time", clock)
    return clock


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    ends = Ends()
    monkeypatch.setattr("os._exit", ends.statuses.append)
    return ends


@pytest.fixture
def guarded(clock: Clock, ends: Ends) -> Iterator[Watchdog]:
    loader: Any = Stuck()
    with Watchdog(STALL, Alone(), loader, ends.errors.append) as running:
        yield running


def test_a_run_ends_when_no_step_has_finished_for_as_long_as_was_asked(
    guarded: Watchdog, clock: Clock, ends: Ends, capsys: pytest.CaptureFixture[str]
) -> None:
    clock.set(0.99 * STALL)
    assert ends.statuses == []
    clock.set(1.01 * STALL)
    assert ends.statuses and set(ends.statuses) == {1}
    line = "no step has finished for 40.4 ms (output.stall_seconds): worker 3 reads img_7.npz"
    assert str(ends.errors[0]) == line
    assert capsys.readouterr().err.startswith("dlemu: rank 0 on host ")


def test_each_step_begins_the_time_anew(guarded: Watchdog, clock: Clock, ends: Ends) -> None:
    for step in range(5):
        clock.set((step + 1) * 0.9 * STALL)
        guarded.step(step)
    assert ends.statuses == []


def test_a_rank_at_the_barrier_is_not_stuck_itself(clock: Clock, ends: Ends) -> None:
    timeouts: list[float | None] = []

    class World(Alone):
        def barrier(self, timeout: float | None = None) -> None:
            timeouts.append(timeout)
            clock.set(100 * STALL)

    loader: Any = Stuck()
    with Watchdog(STALL, World(), loader, ends.errors.append) as running:
        running.barrier()
        clock.set(100.9 * STALL)
    assert ends.statuses == []
    assert timeouts == [STALL + 5.0], "who is stuck in a read can name the file first"
