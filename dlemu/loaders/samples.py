"""What workers are told to read, and the memory in which they hand it over."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlemu.errors import DatasetError, WorkloadError
from dlemu.files import Layout, Samples
from dlemu.loaders.checksums import CHECKSUMS
from dlemu.plan import EpochPlan
from dlemu.storage import ALIGNMENT, HEAD_BYTES, round_up, settle_direct
from dlemu.workload import Workload

Memory = NDArray[np.uint8]

_STEPS_AT_ONCE = 64
_CACHE_BYTES = 1 << 20
"""What a second-level cache holds of a CPU of 2020 or later, at least."""
_MOST_STDEVS = 8
"""Bound on a sample in a foreign file of many, where only their mean can be known beforehand."""


class Task(NamedTuple):
    """A batch that a worker is to make."""

    epoch: int
    step: int
    samples: Samples
    """Of the batch, int64 (batch,)."""
    fetch: Samples
    """Samples to be read from storage now, in this order."""
    sizes: Samples | None
    """Bytes of those, where a file holds one sample and dlemu wrote it; None: the file tells."""


@dataclass(frozen=True)
class Source:
    """A dataset, and how it is read."""

    workload: Workload
    layout: Layout
    folder: Path
    direct: bool
    known_places: bool

    @property
    def batches_ahead(self) -> int:
        """Batches that each worker may make before the training takes them.

        What PyTorch's `prefetch_factor` is for DLIO's `prefetch_size`.
        """
        reader = self.workload.reader
        return max(1, -(-reader.prefetch_size // max(1, reader.read_threads)))

    @property
    def batches_in_flight(self) -> int:
        """Batches of an accelerator that are made, waiting, or in use at once.

        The one that is computed on; the next, which a training loop has taken by then; and what
        is prefetched behind it.
        """
        return 2 + max(1, self.workload.reader.read_threads) * self.batches_ahead

    def tasks(self, epoch: int, plan: EpochPlan, accelerator: int, steps: range) -> Iterator[Task]:
        """Yield an accelerator's batches of these steps."""
        # Drawing sizes has a fixed cost, so it is done for many steps at once.
        for start in range(0, len(steps), _STEPS_AT_ONCE):
            block = steps[start : start + _STEPS_AT_ONCE]
            fetches = [plan.fetch(step, accelerator) for step in block]
            sizes: Sequence[Samples | None] = [None] * len(fetches)
            if self.known_places and self.layout.samples_per_file == 1:
                ends = np.cumsum([len(fetch) for fetch in fetches])
                sizes = np.split(self.layout.sizes(np.concatenate(fetches)), ends[:-1])
            for step, fetch, lengths in zip(block, fetches, sizes, strict=True):
                yield Task(epoch, step, plan.samples[step, accelerator], fetch, lengths)


def settle(workload: Workload, layout: Layout, folder: Path, *, known_places: bool) -> Source:
    """Return the source of a workload's samples; what cannot be is refused here, not in a worker.

    Raises:
        DatasetError: the first file cannot be read.
        WorkloadError: two keys exclude each other, or the storage refuses O_DIRECT.
    """
    reader = workload.reader
    if reader.decode == "library" and reader.odirect is True:
        raise WorkloadError(
            "reader.odirect must be false or auto where reader.decode=library, got true: "
            "np.load, h5py and TFRecord parsers read through the page cache"
        )
    if reader.check_crc and reader.decode == "raw" and layout.format not in CHECKSUMS:
        raise WorkloadError(
            f"reader.check_crc must be false for {layout.format} files, which have no checksums"
        )
    odirect = False if reader.decode == "library" else reader.odirect
    direct = settle_direct(folder / layout.path(0), odirect)
    return Source(workload, layout, folder, direct, known_places)


def sample_bytes(source: Source) -> int:
    """Return the room that a sample needs where it is handed over."""
    resize = source.workload.dataset.record_length_bytes_resize
    if resize is not None:
        return resize
    layout = source.layout
    if source.known_places:
        if layout.stdev_bytes == 0:
            return int(layout.mean_bytes) + layout.element_bytes
        return max(
            int(layout.sizes(np.arange(start, min(start + 65536, layout.num_samples))).max())
            for start in range(0, layout.num_samples, 65536)
        )
    largest = 0
    for number in range(layout.num_files):
        path = source.folder / layout.path(number)
        try:
            largest = max(largest, path.stat().st_size)
        except OSError as error:
            raise DatasetError(f"{path} cannot be read: {error.strerror}") from None
    mean = -(-largest // layout.samples_per_file)
    return min(largest, mean + int(_MOST_STDEVS * layout.stdev_bytes))


class Slots:
    """Memory in which an accelerator's batches are handed over; step s uses slot s % num_slots.

    If what is handed over is to be kept for the training, every batch that is in flight has a slot.
    Where nobody looks at it, a worker has one, and its rows are so few that they stay in the CPU's
    cache: the bytes are handed over all the same, but a host does not need memory for batches
    (75 MB a worker with ResNet-50) nor the time to fill it (0.035 CPU-s/GB).
    """

    def __init__(self, memory: memoryview, source: Source, row_bytes: int, *, keep: bool) -> None:
        """`memory` begins at a page and has `num_bytes`."""
        num_slots, num_rows = shape = _slots_and_rows(source, row_bytes, keep=keep)
        self.num_slots, self.num_rows = shape
        self.row_bytes = row_bytes
        table = 8 * num_slots * num_rows
        self.lengths, self.starts, self.filled = (
            memory[at : at + table].cast("q", shape) for at in range(0, 3 * table, table)
        )
        """int64 (slots, rows): a sample's bytes; where in its row they begin; and bytes from there
        on that may not be zero."""
        self._area_bytes = _area_bytes(row_bytes)
        self._areas = memory[round_up(3 * table) :]

    def begin(self) -> None:
        """Say of every row that it is whole, as is so where samples are cut or padded."""
        for slot in range(self.num_slots):
            for row in range(self.num_rows):
                self.lengths[slot, row] = self.row_bytes

    @staticmethod
    def num_bytes(source: Source, row_bytes: int, *, keep: bool) -> int:
        """Return the memory that an accelerator's slots take."""
        num_slots, num_rows = _slots_and_rows(source, row_bytes, keep=keep)
        rows = num_slots * num_rows
        return round_up(3 * 8 * rows) + rows * _area_bytes(row_bytes)

    def area(self, slot: int, row: int) -> memoryview:
        """Return the memory of a row: it begins at a page, and has room for a file's head."""
        at = (slot * self.num_rows + row) * self._area_bytes
        return self._areas[at : at + self._area_bytes]

    def arrays(self, slot: int) -> list[Memory]:
        """Return what a slot holds, a sample each."""
        arrays = []
        for row in range(self.num_rows):
            start, length = self.starts[slot, row], self.lengths[slot, row]
            arrays.append(np.frombuffer(self.area(slot, row)[start : start + length], np.uint8))
        return arrays


def _area_bytes(row_bytes: int) -> int:
    return HEAD_BYTES + round_up(row_bytes) + ALIGNMENT


def _slots_and_rows(source: Source, row_bytes: int, *, keep: bool) -> tuple[int, int]:
    reader = source.workload.reader
    if keep:
        return source.batches_in_flight, reader.batch_size
    in_cache = max(1, _CACHE_BYTES // row_bytes)
    return max(1, reader.read_threads), min(reader.batch_size, in_cache)
