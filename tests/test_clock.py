import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dlemu.clock import Clock, WallClock, timer_error
from tests.virtual import VirtualClock

COSMOFLOW_STEP = 0.0035


class PlainClock:
    """Sleeps as time.sleep does."""

    def now(self) -> float:
        return time.perf_counter()

    def sleep_until(self, deadline: float) -> None:
        time.sleep(max(0.0, deadline - time.perf_counter()))


class LateClock(VirtualClock):
    """Is a second late at every hundredth sleep, and on time at the others."""

    num_sleeps = 0

    def sleep_until(self, deadline: float) -> None:
        self.num_sleeps += 1
        self.time = deadline + (self.num_sleeps % 100 == 0)


@pytest.mark.parametrize("clock", [WallClock(oversleep=5e-5), VirtualClock()])
def test_a_sleep_ends_at_its_deadline_or_after_it(clock: Clock) -> None:
    for seconds in (0.0, 1e-5, 1e-4, 5e-3):
        deadline = clock.now() + seconds
        clock.sleep_until(deadline)
        assert clock.now() >= deadline


@pytest.mark.parametrize("clock", [WallClock(oversleep=5e-5), VirtualClock(time=7.0)])
def test_a_deadline_that_has_passed_takes_no_time(clock: Clock) -> None:
    start = clock.now()
    clock.sleep_until(start - 5.0)
    assert clock.now() - start < 1.0


def test_a_step_is_exact_and_cheap() -> None:
    # The median: mean and p99 also tell of whatever else the host does, and stand in
    # benchmarks/emulate.py, which a quiet one runs.
    for _ in range(3):
        error = timer_error(WallClock.calibrate(), seconds=COSMOFLOW_STEP, num_sleeps=300)
        print(error)
        if error.median <= 0.002 * COSMOFLOW_STEP:
            break
    assert error.median <= 0.002 * COSMOFLOW_STEP
    assert error.cpu_share <= 0.03


def test_calibration_beats_plain_sleep() -> None:
    def error(clock: Clock) -> float:
        errors = (timer_error(clock, seconds=COSMOFLOW_STEP, num_sleeps=50) for _ in range(5))
        return min(each.median for each in errors)

    assert error(WallClock.calibrate()) < error(PlainClock()) / 3


def test_calibration_is_short_and_bounds_the_spin() -> None:
    start = time.perf_counter()
    clock = WallClock.calibrate(longest=2e-5)
    assert time.perf_counter() - start < 2.0
    assert clock.oversleep == 2e-5, "no host sleeps to 10 µs"
    assert 0 < WallClock.calibrate().oversleep <= 8e-5


def test_every_thread_sleeps_exactly() -> None:
    clock = WallClock(oversleep=0.0)
    slack: list[str] = []

    def sleep() -> None:
        path = Path(f"/proc/{threading.get_native_id()}/timerslack_ns")
        path.write_text("50000")  # the kernel's default; else this thread has it from its parent
        clock.sleep_until(clock.now() + 1e-4)
        slack.append(path.read_text())

    thread = threading.Thread(target=sleep)
    thread.start()
    thread.join()
    assert slack == ["1\n"]


def test_processes_of_a_host_share_the_time() -> None:
    before = WallClock(oversleep=0.0).now()
    code = "from dlemu.clock import WallClock; print(WallClock(oversleep=0.0).now())"
    inside = float(subprocess.check_output([sys.executable, "-c", code]))
    assert before < inside < WallClock(oversleep=0.0).now()


def test_the_timer_error_is_that_of_the_clock() -> None:
    error = timer_error(LateClock(), seconds=0.5, num_sleeps=200)
    assert error.mean == pytest.approx(0.01)
    assert error.p99 == pytest.approx(0.0), "two of 200 are beyond the 99th percentile"
