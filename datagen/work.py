"""Threads on every rank that work through files, and how far all ranks are."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from dlemu.dataset.layout import Samples
from dlemu.ranks.world import World

FILES_IN_FLIGHT = 4
"""Files that a rank works on at once: the drive is busy while the CPU computes, and syncs of small
files share the file system's commits. Each takes a MiB of memory, which must fit the CPU's cache:
with 8 a drive was hardly faster, and took a tenth more CPU time."""
_MEETING_SECONDS = 1.0


@dataclass(frozen=True)
class FileProgress:
    """How far all ranks together are."""

    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    seconds: float
    """Since the start. Files that were complete before are not counted."""


OnProgress = Callable[[FileProgress], None]


class Stopped(Exception):
    """Raised by a worker that was told to stop in the middle of a file."""


class Worker(ABC):
    """Works on one file after another, in a thread of its own."""

    def __init__(self) -> None:
        self.files_done = self.bytes_done = 0
        self.stopped = False
        """Set by the main thread: something failed elsewhere, or all is done."""

    @abstractmethod
    def do(self, file: int) -> None:
        """Work on a file. An exception ends the work of all ranks."""


def work_through(
    files: Samples,
    workers: Sequence[Worker],
    *,
    num_bytes: int,
    world: World,
    on_progress: OnProgress | None = None,
    every: float = _MEETING_SECONDS,
) -> None:
    """Let this rank's workers do its share of `files`; return when all ranks are done.

    All ranks call it with the same files, of `num_bytes` bytes in total. They meet once a second
    (`every`): that is how progress is summed up, and how they learn that another rank failed.
    """
    start = time.perf_counter()
    left = iter(files[world.rank :: world.num_ranks])
    with ThreadPoolExecutor(len(workers)) as pool:
        futures = {pool.submit(_run, worker, left) for worker in workers}
        try:
            finished = False
            while not finished:
                done, pending = wait(futures, every, FIRST_EXCEPTION)
                for future in done:
                    future.result()  # raises the worker's exception
                files_done = sum(worker.files_done for worker in workers)
                bytes_done = sum(worker.bytes_done for worker in workers)
                states = world.all_gather((files_done, bytes_done, not pending))
                finished = all(state[2] for state in states)
                if on_progress is not None and world.rank == 0:
                    files_done, bytes_done, _ = map(sum, zip(*states, strict=True))
                    seconds = time.perf_counter() - start
                    on_progress(
                        FileProgress(files_done, len(files), bytes_done, num_bytes, seconds)
                    )
        finally:
            for worker in workers:
                worker.stopped = True


def _run(worker: Worker, left: Iterator[np.int64]) -> None:
    while not worker.stopped:
        file = next(left, None)  # atomic under the GIL, so threads may share the iterator
        if file is None:
            return
        worker.do(int(file))
        worker.files_done += 1
