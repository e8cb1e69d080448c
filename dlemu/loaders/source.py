"""What workers are told to read, and the memory in which they hand it over."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import psutil
from numpy.typing import NDArray

from dlemu.datagen.survey import Found, largest_file
from dlemu.dataset.layout import Dataset, Layout, Samples
from dlemu.dataset.plan import EpochPlan
from dlemu.errors import DatasetError, WorkloadError
from dlemu.formats import FORMATS
from dlemu.loaders.checksums import CHECKSUMS
from dlemu.storage.extents import settle_direct
from dlemu.units import ceil_div, counted, format_bytes, round_up
from dlemu.workload.model import Workload

Memory = NDArray[np.uint8]

_STEPS_AT_ONCE = 64
_MOST_STDEVS = 8
"""Bound on a sample in a foreign file of many, where only their mean can be known beforehand."""


class Task(NamedTuple):
    """A batch that a worker is to make, or its part of one."""

    epoch: int
    step: int
    samples: Samples
    """That it gives, int64."""
    rows: Samples
    """Row of the batch for each of them, int64."""
    fetch: Samples
    """Samples to be read from storage now, in this order."""
    places: Samples | None
    """Where a file holds one sample and dlemu wrote it, int64 (3, fetched): in each file, the
    payload's offset, its bytes, and the file's. None: the file tells."""


@dataclass(frozen=True)
class Source:
    """A dataset, and how it is read."""

    dataset: Dataset
    direct: bool
    """Whether O_DIRECT is used."""
    keep: int = 0
    """Batches that training may hold at once, the one in use included; 0: bytes are dropped."""

    @classmethod
    def open(cls, dataset: Dataset, *, keep: int) -> "Source":
        """Return how a dataset is read. What cannot be is refused here, not in a worker.

        Raises:
            DatasetError: the first file cannot be read.
            WorkloadError: two keys exclude each other, or the storage refuses O_DIRECT.
        """
        reader, layout = dataset.workload.reader, dataset.layout
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
        direct = settle_direct(dataset.folder / layout.path(0), odirect)
        return cls(dataset, direct, keep)

    @property
    def workload(self) -> Workload:
        return self.dataset.workload

    @property
    def layout(self) -> Layout:
        return self.dataset.layout

    @property
    def batches_in_flight(self) -> int:
        """Batches of an accelerator that are in use, taken early or read ahead at once."""
        return self.workload.batches_in_flight

    @property
    def takes_early(self) -> int:
        """Batches that the emulated loop takes while it computes: 1 if it is pipelined, else 0."""
        return 1 if self.workload.train.loop == "pipelined" else 0

    @property
    def batches_ahead(self) -> int:
        """Batches that may be read ahead of the last one taken."""
        return self.batches_in_flight - self.takes_early - 1

    @property
    def reads_when_asked(self) -> bool:
        """Whether a batch is read while the training loop waits for it, and never before."""
        return self.batches_in_flight == 1

    def tasks(
        self,
        epoch: int,
        plan: EpochPlan,
        accelerator: int,
        *,
        stream: int = 0,
        num_streams: int = 1,
    ) -> Iterator[Task]:
        """Yield what one of `num_streams` makes of an accelerator's batches, step by step.

        Stream w makes the batches of steps w, w + num_streams …; where the plan is interleaved,
        its part of every batch.
        """
        whole = np.arange(self.workload.reader.batch_size)
        steps: Sequence[int] = range(stream, plan.num_steps, num_streams)
        if plan.stream_of is not None:
            steps = np.flatnonzero(plan.takes_part(accelerator)[:, stream]).tolist()
        # Computing places has a fixed cost, so it is done for many steps at once.
        for start in range(0, len(steps), _STEPS_AT_ONCE):
            block = steps[start : start + _STEPS_AT_ONCE]
            if plan.stream_of is None:
                parts = [(whole, plan.fetch(step, accelerator)) for step in block]
            else:
                parts = [plan.part(step, accelerator, stream) for step in block]
            places = self._places([fetch for _, fetch in parts])
            for step, (rows, fetch), three in zip(block, parts, places, strict=True):
                samples = plan.samples[step, accelerator]
                samples = samples if rows is whole else samples[rows]
                yield Task(epoch, step, samples, rows, fetch, three)

    def _places(self, fetches: Sequence[Samples]) -> Sequence[Samples | None]:
        """Return the places of each batch's samples, None where the file tells."""
        if not self.dataset.known_places or self.layout.samples_per_file > 1:
            return [None] * len(fetches)
        file_format = FORMATS[self.layout.format]
        sizes = self.layout.sizes(np.concatenate(fetches))
        whole = file_format.file_bytes(sizes[:, None])
        ends = np.cumsum([len(fetch) for fetch in fetches])
        three = np.stack([file_format.starts(sizes), sizes, whole])
        return np.split(three, ends[:-1], axis=1)


def row_bytes_of(source: Source, num_accelerators: int) -> int:
    """Return the bytes of a row where batches are handed over, 0 where they are dropped.

    Raises:
        DatasetError: a file cannot be read.
        WorkloadError: this host's memory cannot hold the batches of so many accelerators.
    """
    if not source.keep:
        return 0
    row_bytes = sample_bytes(source)
    wanted = num_accelerators * Slots.num_bytes(source, row_bytes)
    free = psutil.virtual_memory().available
    if wanted > free:
        num_slots, num_rows = _slots_and_rows(source)
        raise WorkloadError(
            f"handing over batches takes {format_bytes(wanted)} of memory in this rank "
            f"({counted(num_accelerators, 'accelerator')} x {num_slots} batches of "
            f"{format_bytes(num_rows * row_bytes)}), {format_bytes(free)} are free; set "
            "reader.hand_over=none, dataset.record_length_bytes_resize or a smaller "
            "reader.prefetch_size, or emulate fewer accelerators"
        )
    return row_bytes


def sample_bytes(source: Source) -> int:
    """Return the room that a sample needs where it is handed over."""
    resize = source.workload.dataset.record_length_bytes_resize
    if resize is not None:
        return resize
    layout = source.layout
    if source.dataset.known_places:
        if layout.stdev_bytes == 0:
            return round_up(int(np.ceil(layout.mean_bytes)), layout.element_bytes)
        return max(
            int(layout.sizes(np.arange(start, min(start + 65536, layout.num_samples))).max())
            for start in range(0, layout.num_samples, 65536)
        )
    largest = layout.largest_bytes if isinstance(layout, Found) else None
    if largest is None:
        try:
            largest = largest_file(source.dataset.folder, map(layout.path, range(layout.num_files)))
        except OSError as error:
            raise DatasetError(f"{error.filename} cannot be read: {error.strerror}") from None
    mean = ceil_div(largest, layout.samples_per_file)
    return min(largest, mean + int(_MOST_STDEVS * layout.stdev_bytes))


class Slots:
    """Memory in which an accelerator's batches are handed over; step s uses slot s % num_slots.

    Every batch that is in flight has one. A slot is one array (batch, row_bytes): what a DataLoader
    calls a collated batch. Slots exist only where somebody wants the bytes; else they are read and
    dropped, and a host needs no memory for batches (60 MB each with ResNet-50).
    """

    def __init__(self, memory: memoryview, source: Source, row_bytes: int) -> None:
        """`memory` begins at a page and has `num_bytes`, all zero."""
        num_slots, num_rows = shape = _slots_and_rows(source)
        self.num_slots = num_slots
        self.row_bytes = row_bytes
        tables = np.frombuffer(memory, np.int64, 2 * num_slots * num_rows).reshape(2, *shape)
        self.lengths, self._filled = tables
        """int64 (slots, rows): a sample's bytes, and bytes of its row that may not be zero."""
        data = np.frombuffer(memory[round_up(tables.nbytes) :], np.uint8)
        slots = data[: num_slots * _slot_bytes(source, row_bytes)].reshape(num_slots, -1)
        self.data = slots[:, : num_rows * row_bytes].reshape(num_slots, num_rows, row_bytes)
        """uint8 (slots, rows, row_bytes); a row is padded with zeros."""

    @staticmethod
    def num_bytes(source: Source, row_bytes: int) -> int:
        """Return the memory that an accelerator's slots take."""
        num_slots, num_rows = _slots_and_rows(source)
        return round_up(2 * 8 * num_slots * num_rows) + num_slots * _slot_bytes(source, row_bytes)

    def row(self, slot: int, row: int, kept: int, length: int) -> memoryview:
        """Return the first `kept` bytes of a row, to be filled; what follows becomes zero.

        `length` is what training is told of the sample: with a resize, more than is kept.
        """
        memory = self.data[slot, row]
        filled = self._filled[slot, row]
        if filled > kept:
            memory[kept:filled] = 0
        self._filled[slot, row] = kept
        self.lengths[slot, row] = length
        return memoryview(memory)[:kept]


def _slot_bytes(source: Source, row_bytes: int) -> int:
    return round_up(source.workload.reader.batch_size * row_bytes)


def _slots_and_rows(source: Source) -> tuple[int, int]:
    num_slots = source.batches_in_flight - 1 + source.keep
    return num_slots, source.workload.reader.batch_size
