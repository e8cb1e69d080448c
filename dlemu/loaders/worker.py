"""One worker: it makes the batches of its stream, in order.

All loaders use it. They differ in where workers run, and in how batches reach the training loop.
"""

import time
from collections.abc import Callable
from time import perf_counter

import numpy as np

from dlemu.dataset.layout import Samples
from dlemu.loaders import Batch
from dlemu.loaders.activity import IDLE, SLEEPING, Note
from dlemu.loaders.library import LibraryReader
from dlemu.loaders.readers import RunReader, WholeFileReader
from dlemu.loaders.slots import Rows, Slots
from dlemu.loaders.source import Cost, Source, Task

Reader = WholeFileReader | RunReader | LibraryReader


def make_reader(source: Source, rows: Rows, note: Note, *, max_open: int) -> Reader:
    """Return the reader that the workload's keys and the layout ask for."""
    if source.workload.reader.decode == "library":
        return LibraryReader(source, rows, note)
    if source.layout.samples_per_file == 1:
        return WholeFileReader(source, rows, note)
    return RunReader(source, rows, note, max_open=max_open)


class SampleReader:
    """Makes the batches of one stream. Not thread-safe."""

    def __init__(
        self,
        source: Source,
        *,
        accelerator: int,
        worker: int,
        slots: Slots | None,
        note: Note,
        max_open: int = 8,
    ) -> None:
        """Without slots the bytes are read and dropped."""
        workload = source.workload
        self._rows = Rows(slots, resize=workload.dataset.record_length_bytes_resize)
        self._reader = make_reader(source, self._rows, note, max_open=max_open)
        self._note = note
        self._seed = workload.train.seed
        self._accelerator, self._worker = accelerator, worker
        self._preprocess = workload.reader.preprocess_time
        self._draws = np.random.default_rng(0)

    def start_epoch(self, epoch: int) -> None:
        """Forget what an earlier epoch, perhaps ended early, has left."""
        self._rows.start_epoch()
        self._reader.start_epoch()
        self._draws = np.random.default_rng((self._seed, epoch, self._accelerator, self._worker))

    def make(self, task: Task, wanted: Callable[[], bool]) -> Cost | None:
        """Read a batch, into its slot if there are slots; return what it cost.

        `wanted` is called after each file or run of samples; if it returns False, None is returned
        at once.

        Raises:
            DatasetError: a file is missing, damaged or not what the workload says.
        """
        before = self._reader.so_far()
        if self._rows.slots is not None:
            self._rows.start_batch(task)
        for _ in self._reader.read(task):
            if not wanted():
                return None
        if self._preprocess.mean > 0:
            self._note(SLEEPING, -1)
            time.sleep(sum(self._preprocess.draw(self._draws) for _ in task.samples))
        self._note(IDLE, -1)
        return self._reader.so_far().since(before)

    def close(self) -> None:
        """Close all files."""
        self._reader.close()


def make_batch(
    cost: Cost, slots: Slots | None, *, epoch: int, step: int, accelerator: int, samples: Samples
) -> Batch:
    """Return a batch that is ready now, with its slot's arrays if there are slots."""
    slot = 0 if slots is None else step % slots.num_slots
    return Batch(
        epoch=epoch,
        step=step,
        accelerator=accelerator,
        samples=samples,
        num_bytes=cost.num_bytes,
        ready=perf_counter(),
        read_seconds=cost.read_seconds,
        decode_seconds=cost.decode_seconds,
        hand_over_seconds=cost.hand_over_seconds,
        data=None if slots is None else slots.data[slot],
        lengths=None if slots is None else slots.lengths[slot],
    )
