"""Ends a run in which nothing moves, and says for each rank what it waits for."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from dlemu.loaders import Loader
from dlemu.units import format_seconds
from dlemu.world import World

_LAST_WORDS = 2.0
"""Seconds that other ranks have for their own line before this one ends."""


class Watchdog:
    """A thread that ends the process once no step has finished for `stall_seconds`.

    The main thread may be stuck in a read that never returns, so nothing is asked of it.
    `on_stall` is called with the line before the end.
    """

    def __init__(
        self,
        stall_seconds: float,
        world: World,
        loader: Loader,
        on_stall: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._stall_seconds = stall_seconds
        self._world = world
        self._loader = loader
        self._on_stall = on_stall
        self._last = time.perf_counter()
        self._steps = 0
        self._at_barrier = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def step(self, step: int) -> None:
        """Note that a step has finished."""
        self._last = time.perf_counter()
        self._steps += 1

    def barrier(self) -> None:
        """Wait for the other ranks, and let it be known."""
        self._at_barrier = True
        self._world.barrier()
        self._at_barrier = False

    def _watch(self) -> None:
        while not self._ended.wait(min(1.0, self._stall_seconds / 4)):
            waited = time.perf_counter() - self._last
            if waited > self._stall_seconds:
                self._end(waited)

    def _end(self, waited: float) -> None:
        world = self._world
        doing = "waits at the barrier" if self._at_barrier else self._loader.waiting_for()
        line = (
            f"no step has finished for {format_seconds(waited)} (output.stall_seconds); rank "
            f"{world.rank} on host {world.host}: {doing}"
        )
        print(f"dlemu: {line}", file=sys.stderr, flush=True)
        self._on_stall(line)
        for pid in self._loader.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if world.num_ranks > 1:
            time.sleep(_LAST_WORDS)
        os._exit(1)
