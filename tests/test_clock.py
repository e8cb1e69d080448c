import itertools
import threading
from pathlib import Path

import pytest

from dlemu.clock import WallClock, after_launch, timer_error
from tests.lab.virtual import VirtualClock

COSMOFLOW_STEP = 0.0035


class LateClock(VirtualClock):
    """Is a second late at every hundredth sleep, and on time at the others."""

    num_sleeps = 0

    def sleep_until(self, deadline: float) -> None:
        self.num_sleeps += 1
        self.time = deadline + (self.num_sleeps % 100 == 0)


class Host:
    """Stands for the module `time`: wakes `late` seconds after it should, and counts CPU time."""

    def __init__(self, late: float) -> None:
        self.time, self.late = 0.0, late
        self.cpu_seconds = 0.0

    def perf_counter(self) -> float:
        self.time += 1e-7
        self.cpu_seconds += 1e-7
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds + self.late

    def thread_time(self) -> float:
        return self.cpu_seconds


@pytest.mark.parametrize(
    ("late", "later", "seconds", "cpu_share", "median"),
    [
        (5e-6, 5e-6, COSMOFLOW_STEP, 0.03, 1e-6),
        (7e-5, 7e-5, 0.05, 0.03, 1e-6),
        (5e-3, 5e-3, COSMOFLOW_STEP, 0.03, 5e-3 - 0.02 * COSMOFLOW_STEP),
        (5e-3, 5e-3, 0.05, 0.03, 5e-3 - 4.9e-4),
        # The spin keeps Python's lock, so it is short however long a step is.
        (5e-3, 5e-3, 0.5, 0.0011, 5e-3 - 4.9e-4),
        # A host may wake twice as late as when it was measured.
        (3e-5, 5.9e-5, COSMOFLOW_STEP, 0.03, 1e-6),
        # Many accelerators of one process end their steps a fraction of a millisecond apart.
        (4e-5, 4e-5, 3e-4, 0.3, 1e-6),
    ],
)
def test_a_step_is_as_exact_as_3_percent_of_a_core_can_make_it(
    late: float,
    later: float,
    seconds: float,
    cpu_share: float,
    median: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How exact a real host's are `dlemu doctor` tells: that is the host's doing."""
    host = Host(late)
    monkeypatch.setattr("dlemu.clock.time", host)
    clock = WallClock.calibrate()
    host.late = later
    error = timer_error(clock, seconds=seconds, num_sleeps=20)
    assert error.cpu_share <= cpu_share
    assert 0 <= error.median <= median


def test_every_thread_of_a_real_host_sleeps_exactly() -> None:
    clock = WallClock.calibrate(num_sleeps=3)
    assert clock.oversleep > 0
    slack: list[str] = []

    def sleep() -> None:
        path = Path(f"/proc/{threading.get_native_id()}/timerslack_ns")
        path.write_text("50000")  # the kernel's default; else this thread has it from its parent
        deadline = clock.now() + 1e-4
        clock.sleep_until(deadline)
        assert clock.now() >= deadline
        slack.append(path.read_text())

    thread = threading.Thread(target=sleep)
    thread.start()
    thread.join()
    assert slack == ["1\n"]


def test_the_timer_error_is_that_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter((7.0, 8.02))
    monkeypatch.setattr("dlemu.clock.time.thread_time", lambda: next(looks))
    error = timer_error(LateClock(), seconds=0.5, num_sleeps=200)
    assert error.cpu_share == pytest.approx(0.01), "1.02 s of 102 s"
    assert error.mean == pytest.approx(0.01)
    assert error.p99 == pytest.approx(0.0), "two of 200 are beyond the 99th percentile"


def test_launching_takes_cpu_time_before_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.5 s of CPU time, in a short step 0.3: each look at that clock moves it by 0.2 s."""
    looks = itertools.count(0, 0.2)
    monkeypatch.setattr("dlemu.clock.time.thread_time", lambda: next(looks))
    waited: list[float] = []
    compute = after_launch(0.5, waited.append, lambda: 6.0)
    compute(7.0)
    assert waited == [7.0] and next(looks) == pytest.approx(0.8)
    compute(6.3)
    assert waited == [7.0, 6.3] and next(looks) == pytest.approx(1.6)
    compute(5.0)
    assert next(looks) == pytest.approx(2.2), "a step that is late already launches no longer"
    assert after_launch(0.0, waited.append, lambda: 6.0) == waited.append
