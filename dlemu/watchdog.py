"""Ends a run in which nothing moves, and says for each rank what it waits for."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from dlemu.errors import RunError
from dlemu.loaders import Loader
from dlemu.terminal import complain
from dlemu.units import format_seconds
from dlemu.world import World

_LAST_WORDS = 2.0
"""Seconds that other ranks have to record why they end, before this one ends all."""
_OTHERS_FIRST = 5.0
"""Seconds longer that ranks at the barrier wait: who is stuck in a read can name the file."""


class Watchdog:
    """A thread that ends the process once no step has finished for `stall_seconds`.

    The main thread may be stuck in a read that never returns, so nothing is asked of it: the
    workers are killed and the process ends, without cleaning up. `on_stall` is called before.
    """

    def __init__(
        self,
        stall_seconds: float,
        world: World,
        loader: Loader,
        on_stall: Callable[[RunError], None],
    ) -> None:
        self._stall_seconds = stall_seconds
        self._world = world
        self._loader = loader
        self._on_stall = on_stall
        self._last = time.perf_counter()
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

    def barrier(self) -> None:
        """Wait for the other ranks.

        Raises:
            PeerError: another rank failed or ended.
            RunError: ranks, which are named, do not come, and did not say why.
        """
        self._at_barrier = True
        self._world.barrier(timeout=self._stall_seconds + _OTHERS_FIRST)
        self._last = time.perf_counter()
        self._at_barrier = False

    def _watch(self) -> None:
        while not self._ended.wait(min(1.0, self._stall_seconds / 4)):
            waited = time.perf_counter() - self._last
            if waited > self._stall_seconds and not self._at_barrier:
                self._end(waited)

    def _end(self, waited: float) -> None:
        world = self._world
        line = (
            f"no step has finished for {format_seconds(waited)} (output.stall_seconds): "
            f"{self._loader.waiting_for()}"
        )
        complain(f"rank {world.rank} on host {world.host}: {line}")
        self._on_stall(RunError(line))
        for pid in self._loader.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if world.num_ranks > 1:
            # The main thread, which alone may speak to the world, is not at the barrier.
            world.fail(line)
            time.sleep(_LAST_WORDS)
        os._exit(1)
