"""The accelerators of one rank at work: a thread each, started together, stopped together."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Generic, Protocol, Self, TypeVar

from dlemu.checkpoint.writer import Stopped
from dlemu.host.devices import PROC, read_text
from dlemu.world.world import World

T = TypeVar("T")
_FIRST_MEETING, _MEETING = 0.05, 1.0
"""Seconds until the ranks meet first, and between two meetings."""


class Watch(Protocol):
    """What is used of run.watchdog.Watchdog."""

    record: Callable[[BaseException], object]

    def phase(
        self, name: str, where: Callable[[], str] | None = None
    ) -> AbstractContextManager[None]: ...

    def at(self, path: str) -> None: ...

    def barrier(self) -> None: ...


class Tool(Protocol):
    """A Writer or a Reader."""

    bytes_done: int

    def stop(self) -> None: ...


class Crew(Generic[T]):
    """Lets each tool work in a thread, and tells how far all ranks are.

    All ranks call `run`. They meet about once a second: so a rank that fails ends the others soon.
    """

    def __init__(self, tools: Sequence[Tool], world: World, watch: Watch) -> None:
        self._tools, self._world, self._watch = tools, world, watch
        self._pool = ThreadPoolExecutor(max(1, len(tools)), thread_name_prefix="accelerator")
        self.bytes_done = 0
        """By all ranks, since the crew was made."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for tool in self._tools:
            tool.stop()
        # After an error a thread may be in a call to a drive that never returns.
        self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def run(self, act: Callable[[int], T]) -> list[tuple[float, T]]:
        """Call `act(n)` for each tool at once; return seconds and result of each.

        Raises what the first `act` that failed has raised, after all others were stopped.
        """
        begin = time.perf_counter()

        def timed(number: int) -> tuple[float, T]:
            result = act(number)
            return time.perf_counter() - begin, result

        futures = [self._pool.submit(timed, number) for number in range(len(self._tools))]
        try:
            self._wait(futures)
        except BaseException:
            for tool in self._tools:
                tool.stop()
            raise
        return [future.result() for future in futures]

    def _wait(self, futures: Sequence[Future[tuple[float, T]]]) -> None:
        """Wait until all ranks have ended, or one has failed."""
        pause, progress = _FIRST_MEETING, (-1, -1)
        finished = False
        while not finished:
            due = time.perf_counter() + pause
            done, pending = wait(futures, pause, FIRST_EXCEPTION)
            _raise_first(done)
            now = (sum(tool.bytes_done for tool in self._tools), unwritten_bytes())
            if now != progress:  # also the page cache's way to the drive, in a long fsync
                progress = now
                self._watch.at("")
            if self._world.num_ranks == 1:
                finished, self.bytes_done = not pending, now[0]
                continue
            if not pending:
                time.sleep(max(0.0, due - time.perf_counter()))
            states = self._world.all_gather((now[0], not pending))
            self.bytes_done = sum(num_bytes for num_bytes, _ in states)
            finished = all(ended for _, ended in states)
            pause = min(2 * pause, _MEETING)


def _raise_first(done: set[Future[tuple[float, T]]]) -> None:
    """Raise a failure; one that only says that a tool was stopped is not the cause."""
    errors = [error for future in done if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, Stopped)):
        raise error


def unwritten_bytes() -> int:
    """Return the bytes of the host's files that are not on a drive yet."""
    words = read_text(PROC / "meminfo").split()
    known = dict(pairwise(words))
    return 1024 * sum(int(known.get(name, "0")) for name in ("Dirty:", "Writeback:"))
