"""One checkpoint on its way: a thread for each accelerator of a rank, begun, watched and timed."""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from dlemu.datagen.target import Stopped
from dlemu.host.devices import PROC, devices_under, read_text
from dlemu.judge.own_rates import Moved
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import World
from dlemu.storage.place import place_of

T = TypeVar("T")
_SHORTEST_PAUSE, _LONGEST_PAUSE, _PAUSE_SHARE = 0.05, 1.0, 0.02
"""Seconds between two meetings of the ranks, and their share of the time so far: the end is seen at
the next meeting, and `Entry.between_barriers_seconds` lasts until then."""
_LOOK_SECONDS = 0.25
"""Between two looks of a rank that meets no others."""


class CheckpointIO(Protocol):
    """A Writer or a Reader."""

    @property
    def bytes_done(self) -> int: ...

    def stop(self) -> None: ...


class Crew(Generic[T]):
    """The accelerators of a rank. Each has a tool, and a thread in which it works.

    `now` is the clock of all times. After an error the `with` waits for no thread: one may be in a
    call to a drive that never returns.
    """

    def __init__(
        self,
        tools: Sequence[CheckpointIO],
        folder: Path,
        world: World,
        watch: Watchdog,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.tools: Sequence[Any] = tools
        self.now = now
        self._world, self._watch = world, watch
        self._movement = Movement(tools, folder)
        self._pool = ThreadPoolExecutor(max(1, len(tools)), thread_name_prefix="accelerator")
        self.bytes_done = 0
        """By all ranks that meet, since the crew was made."""
        self.moved: list[Moved] = []
        """What this rank's tools had moved at each look of the last `run`, from its start on."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop()
        self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def begin(self, act: Callable[[int], T]) -> "CrewRound[T]":
        """Call `act(n)` for each tool, all at once."""
        return CrewRound(self.tools, act, self._pool, self.now)

    def wait(self, crew_round: "CrewRound[T]", pause: float = _LOOK_SECONDS) -> bool:
        """Wait so many seconds, or until the round has ended on this rank; return whether it has.

        Raises what the first `act` that failed has raised, after all others were stopped.
        """
        done, pending = wait(crew_round.futures, pause, FIRST_EXCEPTION)
        errors = [error for future in done if (error := future.exception()) is not None]
        # One that only says that a tool was stopped is not the cause.
        for error in sorted(errors, key=lambda error: isinstance(error, Stopped)):
            self._stop()
            raise error
        if self._movement.seen():
            self._watch.at("")
        return not pending

    def run(self, act: Callable[[int], T]) -> list[tuple[float, T]]:
        """Let all ranks work; return seconds and result of each of this rank's accelerators.

        All ranks call it. They meet at least once a second: so one that fails ends the others soon.
        Raises as `wait` does.
        """
        try:
            before = float(sum(tool.bytes_done for tool in self.tools))
            crew_round, finished = self.begin(act), False
            self.moved = [(crew_round.begun, before)]
            while not finished:
                pause = _PAUSE_SHARE * (self.now() - crew_round.begun)
                pause = min(max(pause, _SHORTEST_PAUSE), _LONGEST_PAUSE)
                due = self.now() + pause
                ended = self.wait(crew_round, pause)
                if self._world.num_ranks > 1 and ended:
                    time.sleep(max(0.0, due - self.now()))
                self.moved.append((self.now(), float(self._movement.bytes_done)))
                states = self._world.all_gather((self._movement.bytes_done, ended))
                self.bytes_done = sum(num_bytes for num_bytes, _ in states)
                finished = all(ended for _, ended in states)
        except BaseException:
            self._stop()
            raise
        seconds = [end - crew_round.begun for end in crew_round.ends]
        return list(zip(seconds, crew_round.results(), strict=True))

    def _stop(self) -> None:
        for tool in self.tools:
            tool.stop()


class CrewRound(Generic[T]):
    """A checkpoint that the accelerators of a rank write or read. Any thread may ask for it."""

    def __init__(
        self,
        tools: Sequence[CheckpointIO],
        act: Callable[[int], T],
        pool: ThreadPoolExecutor,
        now: Callable[[], float],
    ) -> None:
        self._tools, self._before = tools, sum(tool.bytes_done for tool in tools)
        self.begun = now()
        self.ends = [math.inf] * len(tools)
        """Of each accelerator; infinite as long as it works."""

        def timed(number: int) -> T:
            try:
                return act(number)
            finally:
                self.ends[number] = now()

        self.futures: list[Future[T]] = [pool.submit(timed, n) for n in range(len(tools))]

    @property
    def span(self) -> tuple[float, float]:
        """From its start to its end on this rank; infinite as long as one accelerator works."""
        return self.begun, max(self.ends, default=self.begun)

    @property
    def bytes_done(self) -> int:
        """Bytes of it that this rank has written or read."""
        return sum(tool.bytes_done for tool in self._tools) - self._before

    def results(self) -> list[T]:
        """Return what `act` returned for each accelerator."""
        return [future.result() for future in self.futures]


class Movement:
    """Whether tools make progress: they move bytes, or in a long fsync the drive takes some.

    The drives under the folder count the latter. Where none is seen (a network file system) it is
    what the host's page cache holds that is not written yet, by any process.
    """

    def __init__(self, tools: Sequence[CheckpointIO], folder: Path) -> None:
        self._tools, self._on_drives_here = tools, place_of(folder).has_paths
        self._devices = devices_under(folder)
        self._last = (-1, -1)
        self.bytes_done = 0
        """By all tools, at the last look."""

    def seen(self) -> bool:
        """Return whether anything moved since the last call."""
        self.bytes_done = sum(tool.bytes_done for tool in self._tools)
        before, self._last = self._last, (self.bytes_done, self._on_drives())
        return self._last != before

    def _on_drives(self) -> int:
        if not self._on_drives_here:
            return 0
        if not self._devices:
            words = read_text(PROC / "meminfo").split()
            known = dict(pairwise(words))
            return 1024 * sum(int(known.get(name, "0")) for name in ("Dirty:", "Writeback:"))
        counted = [device.counters() for device in self._devices]
        return sum(each.written_bytes for each in counted if each is not None)


@dataclass(frozen=True)
class CheckpointProgress:
    """How far `dlemu checkpoint` is; without bytes to work through, `num_bytes` is 0."""

    doing: str
    num_done: int = 0
    num_bytes: int = 0
    seconds: float = 0.0


class Progress:
    """Follows `dlemu checkpoint`, for the thread that shows how far it is."""

    def __init__(self) -> None:
        self.does("starting")

    def does(self, doing: str, crew: Crew[T] | None = None, num_bytes: int = 0) -> None:
        """Show this from now on; `num_bytes` are those that the crew works through."""
        self._before = 0 if crew is None else crew.bytes_done
        self._num_bytes, self._begun = num_bytes, time.perf_counter()
        self._doing, self._crew = doing, crew

    def now(self) -> CheckpointProgress:
        """Return how far it is now."""
        if self._crew is None:
            return CheckpointProgress(self._doing)
        done = max(0, self._crew.bytes_done - self._before)
        seconds = time.perf_counter() - self._begun
        return CheckpointProgress(self._doing, done, self._num_bytes, seconds)
