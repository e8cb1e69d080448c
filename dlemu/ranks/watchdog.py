"""Ends a run in which nothing moves, and says for each rank what it waits for."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from os import kill
from signal import SIGKILL
from typing import Self

from dlemu.clock import Clock
from dlemu.errors import RunError
from dlemu.ranks.ending import end_process, last_act
from dlemu.ranks.world import World
from dlemu.terminal import complain
from dlemu.units import format_seconds

_LAST_WORDS = 2.0
"""Seconds for other ranks to record why they end, before an interrupted rank ends all."""
_RANK_0_FIRST = 3.0
"""Seconds that other ranks wait longer than rank 0: if all are stuck, one line is enough."""
_OTHERS_FIRST = 6.0
"""Seconds that ranks at the barrier wait longer: a rank that is stuck in a read names the file."""
_WORKING_SECONDS = 1e-3
"""CPU time between two looks that shows that a thread is not stuck."""


@dataclass(frozen=True)
class _Phase:
    """What is watched; `where` is explained at `Watchdog.phase`."""

    name: str
    where: Callable[[], str] | None
    thread: int
    begun: float


class Watchdog:
    """A thread that ends the process if a phase makes no progress for `stall_seconds`.

    The main thread may be in a call that never returns. So this thread calls `record(error)`, kills
    the workers and ends the process, without cleaning up. Between phases nothing is watched: a rank
    that waits for other ranks relies on their watchdogs.
    """

    def __init__(
        self, stall_seconds: float, world: World, *, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self.record: Callable[[BaseException], object] = lambda error: None
        """Records why the run ends."""
        self.pids: Callable[[], list[int]] = lambda: []
        """Returns the processes to be killed when this one ends."""
        self._stall_seconds = stall_seconds
        self._world = world
        self._now = now
        self._phase: _Phase | None = None
        self._last = self._cpu = 0.0
        self._paths: dict[int, tuple[float, str]] = {}
        self._compute = self._prepare = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._until_left = ExitStack()

    def __enter__(self) -> Self:
        # Called in reverse order. `record` may be set later.
        for act in (self._tell_others, lambda error: self.record(error), self._kill):
            self._until_left.enter_context(last_act(act))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._until_left.close()

    @contextmanager
    def phase(self, name: str, where: Callable[[], str] | None = None) -> Iterator[None]:
        """Watch what the `with` does; `name` is as in "opening the loader".

        Progress is a call of `at` or `barrier`, and CPU time of this thread (imports, arithmetic).
        `where` returns what is waited for; with it CPU time is no progress, as the wait uses some.
        Without it the end names the file that a thread has been at for the longest. A phase may
        be inside another one, which then goes on.
        """
        outer, thread = self._phase, threading.get_ident()
        self._paths = {}
        self._cpu = _cpu_seconds(thread)
        self._last = begun = self._now()
        self._phase = _Phase(name, where, thread, begun)
        try:
            yield
        finally:
            self._last = self._now()
            self._phase = outer

    @property
    def doing(self) -> tuple[str, float]:
        """The phase's name, and for how many seconds it has lasted; "" and 0 between phases."""
        phase = self._phase
        return ("", 0.0) if phase is None else (phase.name, self._now() - phase.begun)

    def at(self, path: str) -> None:
        """Note that this thread begins with a file; with "" that it has ended its work."""
        self._last = now = self._now()
        self._paths[threading.get_ident()] = (now, path)

    def computing(
        self, wait_until: Callable[[float], None], clock: Clock
    ) -> Callable[[float], None]:
        """Return a `wait_until` during which the watchdog waits for the deadline as well."""

        def wait(deadline: float) -> None:
            self._last = self._now() + max(0.0, deadline - clock.now())
            wait_until(deadline)

        return wait

    def expect(self, *, compute: float, prepare: float) -> None:
        """Set the seconds that a step may compute on any rank, and a worker sleep for a batch."""
        self._compute, self._prepare = compute, prepare

    def barrier(self, *, patient: bool = False) -> None:
        """Wait for the other ranks; `patient`: for ever, if their own watchdogs find no fault.

        Raises:
            PeerError: another rank failed or ended.
            RunError: other ranks, which are named, do not come and have not said why.
        """
        phase, self._phase = self._phase, None
        limit = None if patient else self._limit + self._compute + _OTHERS_FIRST
        self._world.barrier(timeout=limit)
        self._last = self._now()
        self._phase = phase

    def look(self) -> None:
        """End the process if the phase has made no progress for too long."""
        phase = self._phase
        if phase is None:
            return
        if phase.where is None:
            cpu = _cpu_seconds(phase.thread)
            if cpu - self._cpu > _WORKING_SECONDS:
                self._cpu, self._last = cpu, self._now()
        waited = self._now() - self._last
        limit = self._limit + (_RANK_0_FIRST if self._world.rank else 0.0)
        if waited > limit and self._phase is phase:
            self._end(phase, waited)

    @property
    def _limit(self) -> float:
        return self._stall_seconds + self._prepare

    def _watch(self) -> None:
        while not self._ended.wait(min(1.0, self._stall_seconds / 4)):
            self.look()

    def _end(self, phase: _Phase, waited: float) -> None:
        world = self._world
        where = self.longest_at() if phase.where is None else phase.where()
        line = (
            f"no progress for {format_seconds(waited)} (output.stall_seconds) while {phase.name}"
            f"{': ' if where else ''}{where}"
        )
        complain(f"rank {world.rank} on host {world.host}: {line}")
        end_process(RunError(line), 1, leave=self._world.end)

    def longest_at(self) -> str:
        """Return the file that a thread has been at for the longest, "" if none is known."""
        return min((each for each in self._paths.values() if each[1]), default=(0.0, ""))[1]

    def _kill(self, error: BaseException) -> None:
        for pid in self.pids():
            with suppress(ProcessLookupError):
                kill(pid, SIGKILL)

    def _tell_others(self, error: BaseException) -> None:
        if self._world.num_ranks > 1:
            # Safe from this thread: the main thread, which uses the world, is not at the barrier.
            self._world.fail(str(error) or "interrupted")
            if isinstance(error, KeyboardInterrupt):  # in other cases all ranks agree to end
                time.sleep(_LAST_WORDS)


def _cpu_seconds(thread: int) -> float:
    """Return the CPU seconds that a running thread has used."""
    return time.clock_gettime(time.pthread_getcpuclockid(thread))
