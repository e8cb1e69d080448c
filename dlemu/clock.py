"""Clock protocol; WallClock, whose sleeps end on time (calibrated)."""

import ctypes
import math
import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import Protocol, Self

_PR_SET_TIMERSLACK = 29  # linux/prctl.h
_SPIN_SECONDS, _SPIN_SHARE = 8e-5, 0.023
"""What may be spun, the larger of the two: 80 µs, 2.3 % of the shortest step in use (CosmoFlow's
3.5 ms), or that share of a longer sleep."""
_LONGEST_SPIN = 5e-4
"""A busy host would ask for milliseconds, in which no other thread could read."""


class Clock(Protocol):
    """Tells the time and waits for it."""

    def now(self) -> float:
        """Return seconds on the time base of perf_counter, the same in all processes of a host."""
        ...

    def sleep_until(self, deadline: float) -> None:
        """Return at `deadline` or just after it; at once if it has passed."""
        ...


@dataclass(frozen=True)
class WallClock:
    """Real time. Its sleeps end early, and a spin of the rest makes them end on time.

    The spin holds the interpreter's lock: threads that share a process should also share a sleeper.
    """

    oversleep: float
    """Seconds by which this host's sleeps may be late; they end early by that, within bounds."""
    _threads: threading.local = field(default_factory=threading.local, repr=False, compare=False)

    @classmethod
    def calibrate(cls, *, num_sleeps: int = 8, seconds: float = 0.01) -> Self:
        """Measure how late sleeps of `seconds` end, in `num_sleeps * seconds` (80 ms).

        10 ms are long enough for the core to fall asleep, as it does in most steps. Twice the
        median is kept, for it changes while a job runs (30 µs when the core is awake, 50 to 150 µs
        when it must wake).
        """
        clock = cls(oversleep=0.0)
        late = []
        for _ in range(num_sleeps):
            deadline = clock.now() + seconds
            clock.sleep_until(deadline)
            late.append(clock.now() - deadline)
        return cls(oversleep=min(_LONGEST_SPIN, 2 * statistics.median(late)))

    def now(self) -> float:
        return time.perf_counter()

    def sleep_until(self, deadline: float) -> None:
        if not hasattr(self._threads, "exact"):
            self._threads.exact = _end_sleeps_exactly()
        left = deadline - time.perf_counter()
        asleep = left - min(self.oversleep, max(_SPIN_SECONDS, _SPIN_SHARE * left))
        if asleep > 0:
            time.sleep(asleep)
        while time.perf_counter() < deadline:
            pass


def _end_sleeps_exactly() -> bool:
    """Ask the kernel to wake this thread on time, not up to 50 µs later; False if it will not.

    Only the thread itself can ask. Threads and processes that it starts afterwards inherit it.
    """
    return bool(ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0) == 0)


@dataclass(frozen=True)
class TimerError:
    """How far from their deadlines the sleeps of a clock ended, and what they cost."""

    mean: float
    """Seconds."""
    median: float
    """Seconds; unlike the mean it does not tell of a host that was busy with something else."""
    p99: float
    """Seconds; 99 % of the sleeps were no later."""
    cpu_share: float
    """CPU time of the sleeping thread / time passed."""


def timer_error(clock: Clock, *, seconds: float, num_sleeps: int) -> TimerError:
    """Sleep `num_sleeps` times for `seconds` and return how late that was."""
    late = []
    cpu, begin = time.thread_time(), clock.now()
    for _ in range(num_sleeps):
        deadline = clock.now() + seconds
        clock.sleep_until(deadline)
        late.append(clock.now() - deadline)
    cpu_share = (time.thread_time() - cpu) / (clock.now() - begin)
    late.sort()
    p99 = late[math.ceil(num_sleeps * 0.99) - 1]
    return TimerError(sum(late) / num_sleeps, statistics.median(late), p99, cpu_share)
