"""Has a loader's workers really prepare samples, for benchmarks that compare with the emulation."""

import mmap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from dlemu.loaders import worker

_MOST_WORKERS = 64


class Preparing:
    """Work on each sample: `prepare(number)` returns an array of bytes.

    The files hold random bytes. So a worker prepares a sample of its own for each that it has read.
    """

    def __init__(self, prepare: Callable[[int], Any]) -> None:
        self._prepare = prepare
        # Samples, their seconds and squared seconds: a place for each worker.
        self._timed = np.frombuffer(mmap.mmap(-1, 24 * _MOST_WORKERS)).reshape(_MOST_WORKERS, 3)

    @contextmanager
    def by_workers(self) -> Iterator[None]:
        """Make the workers of loaders that are opened in the block prepare, and hand that over."""
        make = worker.SampleReader.make

        def made(self_: Any, task: Any, wanted: Callable[[], bool]) -> Any:
            cost = make(self_, task, wanted)
            slots = self_._rows.slots
            if cost is not None:
                batch = None if slots is None else slots.data[task.step % slots.num_slots]
                timed = self._timed[self_._worker]
                for row, sample in zip(task.rows.tolist(), task.samples.tolist(), strict=True):
                    begin = time.perf_counter()
                    prepared = np.ravel(self._prepare(sample))
                    if batch is not None:
                        batch[row, : len(prepared)] = prepared
                    seconds = time.perf_counter() - begin
                    timed += (1, seconds, seconds**2)
            return cost

        self._timed[:] = 0
        with mock.patch.object(worker.SampleReader, "make", made):
            yield

    def seconds(self) -> tuple[float, float]:
        """Return mean and stdev of a sample's seconds in the workers of the last block."""
        samples, seconds, squares = self._timed.sum(0)
        mean = seconds / samples
        return float(mean), float(max(0.0, squares / samples - mean**2) ** 0.5)
