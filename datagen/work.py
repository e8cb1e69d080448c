"""Files worked through in threads on every rank, and how far all of them are."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dlemu.world.world import World

FILES_IN_FLIGHT = 4
"""Files that a rank has in work at once: the drive has something while the CPU computes, and syncs
of small files share the file system's commits. A MiB of memory each, which the CPUs' caches feel:
with 8 a drive was hardly faster, and CPU time a tenth more.
"""
_SECONDS = 1.0


@dataclass(frozen=True)
class Progress:
    """How far all ranks together are."""

    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    seconds: float
    """Since the start; what was there before is in neither number."""


OnProgress = Callable[[Progress], None]


class Stopped(Exception):
    """Raised by a worker that was told to stop in the middle of a file."""


class Worker(Protocol):
    """Does one file after another, in a thread of its own."""

    files_done: int
    bytes_done: int
    stopped: bool
    """Set from outside: something failed elsewhere."""

    def do(self, file: int) -> None:
        """Do a file. Raises what stops everything."""
        ...


def work_through(
    files: NDArray[np.int64],
    workers: Sequence[Worker],
    *,
    world: World,
    files_total: int,
    bytes_total: int,
    on_progress: OnProgress | None,
) -> None:
    """Let this rank's workers do its files; return when those of all ranks have done theirs.

    Ranks meet once a second: so they learn how far all are, and soon that one of them failed. One
    that has no more to do sleeps there.
    """
    start = time.perf_counter()
    left = iter(files)
    with ThreadPoolExecutor(len(workers)) as pool:
        futures = {pool.submit(_run, worker, left) for worker in workers}
        try:
            finished = False
            while not finished:
                done, pending = wait(futures, _SECONDS, FIRST_EXCEPTION)
                for future in done:
                    future.result()
                files_done = sum(worker.files_done for worker in workers)
                bytes_done = sum(worker.bytes_done for worker in workers)
                states = world.all_gather((files_done, bytes_done, not pending))
                finished = all(state[2] for state in states)
                if on_progress is not None and world.rank == 0:
                    on_progress(
                        Progress(
                            files_done=sum(state[0] for state in states),
                            files_total=files_total,
                            bytes_done=sum(state[1] for state in states),
                            bytes_total=bytes_total,
                            seconds=time.perf_counter() - start,
                        )
                    )
        finally:
            for worker in workers:
                worker.stopped = True


def _run(worker: Worker, left: Iterator[np.int64]) -> None:
    while not worker.stopped:
        file = next(left, None)  # one step to other threads
        if file is None:
            return
        worker.do(int(file))
