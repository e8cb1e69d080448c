"""What is read: the dataset with its way of reading, its workers' tasks, and memory for batches.

`CpuBurner` spends `reader.preprocess_time` by computing (`reader.preprocess=cpu`). A sleep takes no
core: a hundred workers sleep as long as one. Decoding takes a core, and workers that decode at the
same time slow each other down. So a worker decompresses a small block as often as fills the time.
Like decoding a picture, that is work on bits which lets go of Python's lock.
"""

import math
import subprocess
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from operator import sub
from statistics import fmean
from time import perf_counter, time
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dlemu.config.model import Workload
from dlemu.datagen.survey import SurveyedLayout
from dlemu.dataset.layout import Dataset, Layout, Samples, file_sizes
from dlemu.dataset.plan import EpochPlan
from dlemu.errors import VERIFY, DatasetError, DlemuError, WorkloadError
from dlemu.formats import format_of
from dlemu.host.processes import free_memory_bytes, usable_cpus
from dlemu.loaders.cache.reader import CacheReader
from dlemu.storage.counted import ReadCounts
from dlemu.storage.extents import Part, settle_direct
from dlemu.storage.objects import WHOLE_BYTES
from dlemu.units import ceil_div, counted, format_bytes, round_up

Memory = NDArray[np.uint8]

_STEPS_AT_ONCE = 64
_MOST_STDEVS = 8
"""Standard deviations above the mean that a sample may have, where only the mean of a file's
samples is known."""
_BLOCK_BYTES = 16_384
_SECONDS = 0.3
"""How long blocks are timed."""
_TIMED = f"""
import sys, time, zlib
block, end = sys.stdin.buffer.read(), float(sys.argv[1])
count, begin = 0, time.process_time()
while count < 2 or time.time() < end:
    zlib.decompress(block, bufsize={_BLOCK_BYTES})
    count += 1
print((time.process_time() - begin) / count)
"""


class Task(NamedTuple):
    """A batch that a worker is to make, or its part of one."""

    epoch: int
    step: int
    samples: Samples
    """Sample numbers that it hands over, int64 (samples,)."""
    rows: Samples
    """Row of the batch for each of them, int64 (samples,)."""
    fetch: Samples
    """Sample numbers to read from storage now, in this order, int64 (fetched,)."""
    places: Samples | None
    """int64 (3, fetched): the payload's offset, the payload's bytes, the file's bytes. Only where
    a file holds one sample and dlemu wrote it; None: each file's header must be parsed."""
    visits: Samples | None = None
    """int64 (fetched,): the visit of `cache.hits` in which each is read; None: no cache."""


class Cost(NamedTuple):
    """Seconds that a batch took its worker, by part."""

    num_bytes: int
    """Read from storage."""
    num_reads: int
    """Calls that read them."""
    read_seconds: float
    decode_seconds: float
    hand_over_seconds: float

    def since(self, before: "Cost") -> "Cost":
        """Return what came since an earlier count."""
        return Cost(*map(sub, self, before))


@dataclass(frozen=True)
class Source:
    """A dataset, and how it is read."""

    dataset: Dataset
    direct: bool
    """Whether O_DIRECT is used."""
    keep: int = 0
    """Batches that training may hold at once, the current one included; 0: bytes are dropped."""
    block_seconds: float = 0.0
    """Of a block of `CpuBurner`; 0: workers sleep for reader.preprocess_time."""

    @classmethod
    def open(cls, dataset: Dataset, *, keep: int) -> "Source":
        """Return how a dataset is read; raise what `open_loader` raises."""
        reader, layout = dataset.workload.reader, dataset.layout
        if reader.decode == "library" and reader.odirect is True:
            raise WorkloadError(
                "reader.odirect must be false or auto where reader.decode=library, got true: "
                "np.load, h5py and TFRecord parsers read through the page cache"
            )
        files = format_of(layout)
        if reader.check_crc and reader.decode == "raw" and files.checksum() is None:
            raise WorkloadError(
                f"reader.check_crc must be false for {layout.format} files, which have no checksums"
            )
        if keep and files.in_columns and reader.decode == "raw":
            raise WorkloadError(
                f"reader.hand_over=batch needs reader.decode=library for {layout.format} files: "
                "without decoding there are bytes of columns, and no rows"
            )
        computes = reader.preprocess == "cpu" and reader.preprocess_time.mean > 0
        block = block_seconds(dataset.workload.workers_of_rank) if computes else 0.0
        if not dataset.place.has_paths:
            return cls(dataset, False, keep, block)
        odirect = False if reader.decode == "library" else reader.odirect
        direct = settle_direct(dataset.folder / layout.path(0), odirect)
        return cls(dataset, direct, keep, block)

    @property
    def workload(self) -> Workload:
        return self.dataset.workload

    @property
    def layout(self) -> Layout:
        return self.dataset.layout

    def path(self, file: int) -> str:
        """Return the path of a file, or the name of an object."""
        return f"{self._folder}/{self.layout.path(file)}"

    @cached_property
    def _folder(self) -> str:
        return str(self.dataset.folder)

    def file_bytes(self, file: int) -> int:
        """Return the bytes of a file that dlemu wrote, or of an object, which was listed."""
        if (listed := self.layout.listed_bytes) is not None:
            return int(listed[file])
        sizes = self.layout.sizes(self.layout.samples_of(file))
        return int(format_of(self.layout).file_bytes(sizes[None])[0])

    @property
    def takes_early(self) -> int:
        """Batches that the training loop takes while it computes."""
        return self.workload.train.steps_ahead

    @property
    def launch_seconds(self) -> float:
        """Seconds in which a pipelined loop queues a step, before it asks for the next batch."""
        train = self.workload.train
        return train.launch_time * train.steps_ahead

    @property
    def reads_when_asked(self) -> bool:
        """Whether a batch is read while the training loop waits for it, and never before."""
        return self.workload.batches_in_flight == 1

    def tasks(
        self,
        epoch: int,
        plan: EpochPlan,
        accelerator: int,
        *,
        stream: int = 0,
        num_streams: int = 1,
    ) -> Iterator[Task]:
        """Yield the tasks of one of an accelerator's `num_streams` workers, step by step.

        Stream w makes the batches of steps w, w + num_streams …; in an interleaved plan, its part
        of every batch. With DALI all of them share each batch: stream w makes rows w, w +
        num_streams …
        """
        whole = np.arange(self.workload.reader.batch_size)
        own, shares = slice(None), self.shares_batches(plan)
        steps: Sequence[int] = range(stream, plan.num_steps, num_streams)
        if plan.stream_of is not None:
            steps = np.flatnonzero(plan.takes_part(accelerator)[:, stream]).tolist()
        elif shares:
            own = slice(stream, None, num_streams)
            steps = range(plan.num_steps if stream < len(whole) else 0)
        # Places are computed for many steps at once: each NumPy call has a fixed cost.
        for start in range(0, len(steps), _STEPS_AT_ONCE):
            block = steps[start : start + _STEPS_AT_ONCE]
            if plan.stream_of is None:
                rows = whole[own] if shares else whole
                parts = [(rows, plan.fetch(step, accelerator)[own]) for step in block]
            else:
                parts = [plan.part(step, accelerator, stream) for step in block]
            places = self._places([fetch for _, fetch in parts])
            for step, (rows, fetch), three in zip(block, parts, places, strict=True):
                samples = plan.batch(step, accelerator)
                samples = samples if rows is whole else samples[rows]
                visits = plan.visits_of(step, accelerator, stream)
                yield Task(epoch, step, samples, rows, fetch, three, visits)

    def shares_batches(self, plan: EpochPlan) -> bool:
        """Return whether an accelerator's streams share each batch, as DALI's threads do.

        Not those that read files from end to end: each of them has its own.
        """
        return self.workload.reader.loader.by_dali and plan.sequence is None

    def _places(self, fetches: Sequence[Samples]) -> Sequence[Samples | None]:
        """Return `Task.places` of each batch."""
        if not self.dataset.known_places or self.layout.samples_per_file > 1:
            return [None] * len(fetches)
        file_format = format_of(self.layout)
        sizes = self.layout.sizes(np.concatenate(fetches))
        whole = file_format.file_bytes(sizes[:, None])
        ends = np.cumsum([len(fetch) for fetch in fetches])
        three = np.stack([file_format.starts(sizes), sizes, whole])
        return np.split(three, ends[:-1], axis=1)


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
        slots = data[: num_slots * round_up(num_rows * row_bytes)].reshape(num_slots, -1)
        self.data = slots[:, : num_rows * row_bytes].reshape(num_slots, num_rows, row_bytes)
        """uint8 (slots, rows, row_bytes); a row is padded with zeros."""

    @staticmethod
    def num_bytes(source: Source, row_bytes: int) -> int:
        """Return the memory that an accelerator's slots take."""
        num_slots, num_rows = _slots_and_rows(source)
        return round_up(2 * 8 * num_slots * num_rows) + num_slots * round_up(num_rows * row_bytes)

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
    """Where one worker's samples go: into rows of the batch's slot; nowhere without slots."""

    def __init__(self, slots: Slots | None, *, resize: int | None) -> None:
        """`resize`: bytes that training gets of each sample; None: all of them."""
        self.slots = slots
        self.seconds = 0.0
        """Time spent copying and padding."""
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
        memory = self.memory(path, sample, length)
        kept = len(memory)
        return [memory] if kept == length else [memory, length - kept]

    def memory(self, path: str, sample: int, length: int) -> memoryview:
        """Return memory for the first bytes of a sample; training does not get the rest."""
        assert self.slots is not None
        kept = length
        if self._resize is not None:
            kept = length if length < self._resize else self._resize
        elif length > self.slots.row_bytes:
            raise DatasetError(
                f"{path} has a sample of {length} bytes, at most {self.slots.row_bytes} were "
                "expected",
                remedy="set dataset.record_length_bytes_resize",
            )
        row = self._row_of.get(sample)
        if row is None:
            memory = self._early[sample] = memoryview(bytearray(kept))
            return memory
        begin = perf_counter()
        memory = self._row(row, kept)
        self.seconds += perf_counter() - begin
        return memory

    def copy(self, path: str, sample: int, data: Memory) -> None:
        """Copy a sample that is in memory already to its row."""
        target = self.memory(path, sample, len(data))
        begin = perf_counter()
        target[:] = data.data[: len(target)]
        self.seconds += perf_counter() - begin

    def _row(self, row: int, kept: int) -> memoryview:
        assert self.slots is not None
        length = kept if self._resize is None else self._resize
        return self.slots.row(self._slot, row, kept, length)


Note = Callable[[int, int], None]
"""`note(what, file)`: a worker says what it does from now on; `file` is -1 if it reads none."""


class TaskReader(ABC):
    """Reads what one worker's tasks need, and counts what it costs."""

    def __init__(
        self,
        source: Source,
        rows: Rows,
        note: Note,
        counts: ReadCounts,
        cache: CacheReader | None = None,
    ) -> None:
        """`counts`: of what opens and reads the files. `cache` opens them if there is a cache."""
        self._source, self._layout = source, source.layout
        self._rows, self._note, self._cache = rows, note, cache
        self._counts, self._decode_seconds = counts, 0.0

    def start_epoch(self) -> None:  # noqa: B027
        """Forget the file of an earlier epoch, which may have ended within it."""

    @abstractmethod
    def read(self, task: Task) -> Iterator[int]:
        """Read what a batch needs; after each file or run yield how many samples it gave."""

    @abstractmethod
    def close(self) -> None:
        """Close all files."""

    def cost(self) -> Cost:
        """Return what all batches so far have cost."""
        counts, cache = self._counts, self._cache
        return Cost(
            counts.bytes_read,
            counts.num_reads,
            counts.read_seconds if cache is None else counts.read_seconds + cache.seconds,
            self._decode_seconds + counts.check_seconds,
            self._rows.seconds + counts.copy_seconds,
        )

    @property
    def _read_seconds(self) -> float:
        return self._counts.read_seconds + (0.0 if self._cache is None else self._cache.seconds)

    def _decoding(self, path: str = "") -> Self:
        """Count the time of a `with` as that of decoding, but for the reads in it.

        `path`: of the file that an error of its format is to name.
        """
        # Entered for each sample: contextlib would take ten times as long.
        self._path = path
        return self

    def __enter__(self) -> None:
        self._before = self._read_seconds
        self._begun = perf_counter()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        reading = self._read_seconds - self._before
        self._decode_seconds += perf_counter() - self._begun - reading
        if self._path and isinstance(error, DlemuError):
            remedy = VERIFY if isinstance(error, DatasetError) else ""
            raise error.within(self._path, remedy) from None


def row_bytes_of(source: Source, num_accelerators: int) -> int:
    """Return the bytes of a row where batches are handed over, 0 where they are dropped."""
    if not source.keep:
        return 0
    row_bytes = sample_bytes(source)
    wanted = num_accelerators * Slots.num_bytes(source, row_bytes)
    free = free_memory_bytes()
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


def readers_memory(dataset: Dataset, num_accelerators: int) -> int:
    """Return the bytes that a rank's readers take: batches handed over, and buffers of pieces.

    Raises:
        WorkloadError: the batches need more memory than is free.
    """
    reader = dataset.workload.reader
    source = Source(dataset, direct=False, keep=int(dataset.workload.hands_over))
    row_bytes = row_bytes_of(source, num_accelerators)
    one = dataset.layout.samples_per_file == 1
    piece = reader.io_depth * round_up(int(reader.piece_bytes if one else reader.transfer_size))
    if not dataset.place.has_paths:
        whole = dataset.layout.samples_per_file * dataset.layout.mean_bytes
        piece = reader.gets_in_flight * round(min(reader.range_bytes or WHOLE_BYTES, whole))
    batches = Slots.num_bytes(source, row_bytes) if row_bytes else 0
    return num_accelerators * (batches + reader.num_streams * piece)


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
    largest = layout.largest_bytes if isinstance(layout, SurveyedLayout) else None
    if largest is None:
        largest = int(file_sizes(source.dataset).max())
    mean = ceil_div(largest, layout.samples_per_file)
    return min(largest, mean + int(_MOST_STDEVS * layout.stdev_bytes))


def square_side(num_bytes: int | None) -> int | None:
    """Return the side of a square picture in RGB of so many bytes; None: there is none."""
    if num_bytes is None:
        return None
    side = math.isqrt(num_bytes // 3)
    return side if 3 * side * side == num_bytes else None


def _slots_and_rows(source: Source) -> tuple[int, int]:
    num_slots = source.workload.batches_in_flight - 1 + source.keep
    return num_slots, source.workload.reader.batch_size


class CpuBurner:
    """Computes for given seconds of a core; the rest of a block is left for the next call."""

    def __init__(self, block_seconds: float) -> None:
        self._block_seconds, self._owed = block_seconds, 0.0

    def burn(self, seconds: float) -> float:
        """Compute; return how long it took."""
        begin = perf_counter()
        self._owed += seconds
        block = _block()
        while self._owed >= self._block_seconds:
            zlib.decompress(block, bufsize=_BLOCK_BYTES)
            self._owed -= self._block_seconds
        return perf_counter() - begin


@cache
def block_seconds(workers: int) -> float:
    """Return the CPU seconds of a block where so many processes decompress at once.

    Cores that share caches and memory slow each other down, this work by another factor than
    decoding: so it is timed as `preprocess_time` was, with all workers at work. More processes
    than there are CPUs only wait for one another, which is no CPU time.
    """
    end = str(time() + _SECONDS)
    processes = [
        subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _TIMED, end],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(min(workers, math.ceil(usable_cpus())))
    ]
    try:
        for process in processes:  # all have their block before one is waited for
            assert process.stdin is not None
            process.stdin.write(_block())
            process.stdin.close()
        return fmean(float(process.stdout.read()) for process in processes if process.stdout)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@cache
def _block() -> bytes:
    """Return a compressed block whose values are distributed as those of a transformed picture."""
    values = np.random.default_rng(0).normal(0, 12, _BLOCK_BYTES)
    return zlib.compress(values.astype(np.int8).tobytes(), 6)
