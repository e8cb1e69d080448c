"""The accelerators of one rank at work: a thread each, started together, stopped together."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

from dlemu.checkpoint.writer import Stopped
from dlemu.host.devices import PROC, devices_under, read_text
from dlemu.world.world import World

T = TypeVar("T")
_SHORTEST_PAUSE, _LONGEST_PAUSE, _PAUSE_SHARE = 0.05, 1.0, 0.02
"""Seconds between two meetings of the ranks, and their share of the time so far: the end is seen at
the next meeting, and `Entry.between_barriers_seconds` lasts until then."""


class Watch(Protocol):
    """What is used of run.watchdog.Watchdog."""

    record: Callable[[BaseException], object]

    def phase(
        self, name: str, where: Callable[[], str] | None = None
    ) -> AbstractContextManager[None]: ...

    def at(self, path: str) -> None: ...

    def longest_at(self) -> str: ...

    def barrier(self) -> None: ...


class Tool(Protocol):
    """A Writer or a Reader."""

    bytes_done: int

    def stop(self) -> None: ...


class Crew(Generic[T]):
    """Lets each tool work in a thread, and tells how far all ranks are.

    All ranks call `run`. They meet at least once a second: so a rank that fails ends the others
    soon.
    """

    def __init__(self, tools: Sequence[Tool], folder: Path, world: World, watch: Watch) -> None:
        self._tools, self._world, self._watch = tools, world, watch
        self._movement = Movement(tools, folder)
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
        begin = time.perf_counter()
        finished = False
        while not finished:
            pause = _PAUSE_SHARE * (time.perf_counter() - begin)
            pause = min(max(pause, _SHORTEST_PAUSE), _LONGEST_PAUSE)
            due = time.perf_counter() + pause
            done, pending = wait(futures, pause, FIRST_EXCEPTION)
            _raise_first(done)
            if self._movement.seen():
                self._watch.at("")
            own = self._movement.bytes_done
            if self._world.num_ranks == 1:
                finished, self.bytes_done = not pending, own
                continue
            if not pending:
                time.sleep(max(0.0, due - time.perf_counter()))
            states = self._world.all_gather((own, not pending))
            self.bytes_done = sum(num_bytes for num_bytes, _ in states)
            finished = all(ended for _, ended in states)


def _raise_first(done: set[Future[tuple[float, T]]]) -> None:
    """Raise a failure; one that only says that a tool was stopped is not the cause."""
    errors = [error for future in done if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, Stopped)):
        raise error


class Movement:
    """Tells whether tools get on: they move bytes, or in a long fsync the drive takes some.

    The drives under the folder tell the latter. Where none is seen (a network file system) it is
    what the host's page cache holds that is not written yet, whoever wrote it.
    """

    def __init__(self, tools: Sequence[Tool], folder: Path) -> None:
        self._tools = tools
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
        if not self._devices:
            return _unwritten_bytes()
        counted = [device.counters() for device in self._devices]
        return sum(each.written_bytes for each in counted if each is not None)


def _unwritten_bytes() -> int:
    """Return the bytes of the host's files that are not on a drive yet."""
    words = read_text(PROC / "meminfo").split()
    known = dict(pairwise(words))
    return 1024 * sum(int(known.get(name, "0")) for name in ("Dirty:", "Writeback:"))
