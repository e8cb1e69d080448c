"""What workers are told to read, and the memory in which they hand it over."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlemu.errors import DatasetError, WorkloadError
from dlemu.files import Layout, Samples
from dlemu.formats import FORMATS
from dlemu.loaders.checksums import CHECKSUMS
from dlemu.plan import EpochPlan
from dlemu.storage import ALIGNMENT, HEAD_BYTES, round_up, settle_direct
from dlemu.workload import Workload

Memory = NDArray[np.uint8]

_STEPS_AT_ONCE = 64
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
    places: Samples | None
    """Where a file holds one sample and dlemu wrote it, int64 (3, fetched): in each file, the
    payload's offset, its bytes, and the file's. None: the file tells."""


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
        # Computing places has a fixed cost, so it is done for many steps at once.
        layout, known = self.layout, self.known_places and self.layout.samples_per_file == 1
        file_format = FORMATS[layout.format]
        for start in range(0, len(steps), _STEPS_AT_ONCE):
            block = steps[start : start + _STEPS_AT_ONCE]
            fetches = [plan.fetch(step, accelerator) for step in block]
            places: Sequence[Samples | None] = [None] * len(fetches)
            if known:
                sizes = layout.sizes(np.concatenate(fetches))
                whole = file_format.file_bytes(sizes[:, None])
                ends = np.cumsum([len(fetch) for fetch in fetches])
                three = np.stack([file_format.starts(sizes), sizes, whole])
                places = np.split(three, ends[:-1], axis=1)
            for step, fetch, three_each in zip(block, fetches, places, strict=True):
                yield Task(epoch, step, plan.samples[step, accelerator], fetch, three_each)


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

    Every batch that is in flight has one. There are slots only if somebody looks at what is handed
    over: else bytes are read and dropped, and a host needs no memory for batches (75 MB each with
    ResNet-50) nor the time to fill it.
    """

    def __init__(self, memory: memoryview, source: Source, row_bytes: int) -> None:
        """`memory` begins at a page and has `num_bytes`."""
        num_slots, num_rows = shape = _slots_and_rows(source)
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
    def num_bytes(source: Source, row_bytes: int) -> int:
        """Return the memory that an accelerator's slots take."""
        num_slots, num_rows = _slots_and_rows(source)
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


def _slots_and_rows(source: Source) -> tuple[int, int]:
    return source.batches_in_flight, source.workload.reader.batch_size
