"""The memory in which batches are handed over: its layout, its size, and who fills which row."""

from time import perf_counter

import numpy as np
import psutil

from dlemu.datagen.survey import Found, largest_file
from dlemu.errors import DatasetError, WorkloadError
from dlemu.loaders.source import Memory, Source, Task
from dlemu.storage.extents import Part
from dlemu.units import ceil_div, counted, format_bytes, round_up

_MOST_STDEVS = 8
"""Standard deviations above the mean that a sample may have, where only the mean of a file's
samples is known."""


class Slots:
    """Memory in which an accelerator's batches are handed over; step s uses slot s % num_slots.

    A slot is one array (batch, row_bytes): what a DataLoader calls a collated batch. If nobody
    wants the bytes there are no slots: bytes are read and dropped, and need no memory.
    """

    def __init__(self, memory: memoryview, source: Source, row_bytes: int) -> None:
        """`memory` begins at a page, has `num_bytes` bytes and is all zero."""
        num_slots, num_rows = shape = _slots_and_rows(source)
        self.num_slots = num_slots
        self.row_bytes = row_bytes
        tables = np.frombuffer(memory, np.int64, 2 * num_slots * num_rows).reshape(2, *shape)
        self.lengths, self._filled = tables
        """int64 (slots, rows): bytes of each sample, and bytes of each row that may not be zero."""
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
        """Return the first `kept` bytes of a row, to be filled; the rest of the row becomes zero.

        `length` is the sample's size as training sees it: with a resize it may be more than `kept`.
        """
        memory = self.data[slot, row]
        filled = self._filled[slot, row]
        if filled > kept:
            memory[kept:filled] = 0
        self._filled[slot, row] = kept
        self.lengths[slot, row] = length
        return memoryview(memory)[:kept]


class Rows:
    """Where one worker's samples go: into rows of the batch's slot; nowhere if there are no slots.

    Attributes:
        seconds: time spent copying and padding.
    """

    def __init__(self, slots: Slots | None, *, resize: int | None) -> None:
        """`resize`: bytes that training gets of each sample; None: all of them."""
        self.slots = slots
        self.seconds = 0.0
        self._resize = resize
        self._slot = 0
        self._row_of: dict[int, int] = {}
        self._early: dict[int, memoryview] = {}  # samples that were read for a later batch

    def start_epoch(self) -> None:
        """Forget samples that an earlier epoch read and did not hand over."""
        self._early.clear()

    def start_batch(self, task: Task) -> None:
        """Choose the rows of a batch, and fill those whose samples have been read already."""
        assert self.slots is not None
        self._slot = task.step % self.slots.num_slots
        self._row_of = dict(zip(task.samples.tolist(), task.rows.tolist(), strict=True))
        if not self._early:
            return
        begin = perf_counter()
        for sample, row in self._row_of.items():
            early = self._early.pop(sample, None)
            if early is not None:
                self._row(row, len(early))[:] = early
        self.seconds += perf_counter() - begin

    def parts(self, path: str, sample: int, length: int) -> list[Part]:
        """Return where the `length` bytes of a sample of the file `path` are to be read to."""
        if self.slots is None:
            return [length]
        kept = length
        if self._resize is not None:
            kept = length if length < self._resize else self._resize
        elif length > self.slots.row_bytes:
            raise DatasetError(
                f"{path} has a sample of {length} bytes, at most {self.slots.row_bytes} were "
                f"expected; set dataset.record_length_bytes_resize"
            )
        row = self._row_of.get(sample)
        if row is None:
            memory = self._early[sample] = memoryview(bytearray(kept))
        else:
            begin = perf_counter()
            memory = self._row(row, kept)
            self.seconds += perf_counter() - begin
        return [memory] if kept == length else [memory, length - kept]

    def copy(self, path: str, sample: int, data: Memory) -> None:
        """Copy a sample that is in memory already to its row."""
        target = self.parts(path, sample, len(data))[0]
        begin = perf_counter()
        if isinstance(target, memoryview):
            target[:] = data.data[: len(target)]
        self.seconds += perf_counter() - begin

    def _row(self, row: int, kept: int) -> memoryview:
        assert self.slots is not None
        length = kept if self._resize is None else self._resize
        return self.slots.row(self._slot, row, kept, length)


def row_bytes_of(source: Source, num_accelerators: int) -> int:
    """Return the bytes of a row where batches are handed over, 0 where they are dropped.

    Raises:
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
    """Return the bytes that the largest sample needs where it is handed over."""
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


def _slot_bytes(source: Source, row_bytes: int) -> int:
    return round_up(source.workload.reader.batch_size * row_bytes)


def _slots_and_rows(source: Source) -> tuple[int, int]:
    num_slots = source.workload.batches_in_flight - 1 + source.keep
    return num_slots, source.workload.reader.batch_size
