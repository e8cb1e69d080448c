"""A clock whose sleeps end on time: it sleeps a little short, and spins for the rest."""

import ctypes
import hashlib
import math
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, Self

_PR_SET_TIMERSLACK = 29  # linux/prctl.h
_SPIN_SECONDS, _SPIN_SHARE = 8e-5, 0.023
"""Longest spin, the larger of both: 80 µs, which is 2.3 % of the shortest step in use (CosmoFlow's
3.5 ms), or 2.3 % of the sleep."""
_LONGEST_SPIN = 5e-4
"""Upper bound of `oversleep`. A busy host measures milliseconds; no other thread can read in a
spin."""

_CALL = bytes(8192)
"""What a call of `after_launch` digests: 5 to 20 µs, as the launch of a kernel takes."""


class Clock(Protocol):
    """Tells the time and waits for it."""

    def now(self) -> float:
        """Return seconds, as perf_counter does: comparable between the processes of a host."""

    def sleep_until(self, deadline: float) -> None:
        """Return at `deadline` or shortly after; at once if it has passed."""


@dataclass(frozen=True)
class WallClock:
    """Real time. A sleep ends early by `oversleep`; a spin waits for the rest.

    A spin holds Python's global lock, so the threads of a process should share one sleeping thread.
    """

    oversleep: float
    """Seconds that this host's sleeps may be late; sleeps are shortened by that, within bounds."""
    _threads: threading.local = field(default_factory=threading.local, repr=False, compare=False)

    @classmethod
    def calibrate(cls, *, num_sleeps: int = 8, seconds: float = 0.01) -> Self:
        """Measure how late sleeps of `seconds` end, in `num_sleeps * seconds` (80 ms).

        In 10 ms the core goes idle, as in most steps. Twice the median is kept: the delay changes
        while a job runs (30 µs on an active core, 50 to 150 µs on an idle one).
        """
        late = _delays(cls(oversleep=0.0), seconds, num_sleeps)
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


def after_launch(
    seconds: float, wait_until: Callable[[float], None], now: Callable[[], float]
) -> Callable[[float], None]:
    """Return `wait_until`; before it, compute for `seconds` of CPU time, in many short calls.

    So a job queues a step's kernels: each call lets go of Python's lock and takes it again. Where
    the thread does not get its core or the lock it takes longer, and the step may end late. It asks
    for no more CPU time than is left until the deadline: a step that was drawn short has a short
    launch, else the drawn times would grow in the mean.
    """
    if not seconds:
        return wait_until

    def compute(deadline: float) -> None:
        end = time.thread_time() + min(seconds, deadline - now())
        while time.thread_time() < end:
            hashlib.sha256(_CALL)
        wait_until(deadline)

    return compute


def _end_sleeps_exactly() -> bool:
    """Set this thread's timer slack to 1 ns, from 50 µs; return False if the kernel refuses.

    A thread can only set its own. Threads and processes that it starts later inherit it.
    """
    return bool(ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0) == 0)


def _delays(clock: Clock, seconds: float, num_sleeps: int) -> list[float]:
    """Sleep `num_sleeps` times; return how many seconds late each sleep ended."""
    late = []
    for _ in range(num_sleeps):
        deadline = clock.now() + seconds
        clock.sleep_until(deadline)
        late.append(clock.now() - deadline)
    return late


@dataclass(frozen=True)
class TimerError:
    """How late the sleeps of a clock end, and their CPU time."""

    mean: float
    """Seconds."""
    median: float
    """Seconds; unlike the mean, it does not depend on what else the host did."""
    p99: float
    """Seconds; 99 % of the sleeps were no later."""
    cpu_share: float
    """CPU time of the sleeping thread divided by the time passed."""


def timer_error(clock: Clock, *, seconds: float, num_sleeps: int) -> TimerError:
    """Sleep `num_sleeps` times for `seconds` and return how late that was."""
    cpu, begin = time.thread_time(), clock.now()
    late = sorted(_delays(clock, seconds, num_sleeps))
    cpu_share = (time.thread_time() - cpu) / (clock.now() - begin)
    p99 = late[math.ceil(num_sleeps * 0.99) - 1]
    return TimerError(sum(late) / num_sleeps, statistics.median(late), p99, cpu_share)
