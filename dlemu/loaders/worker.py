"""One worker: it makes the batches of its stream, in order.

All loaders use it. They differ in where workers run, and in how batches reach the training loop.
Samples are read in place, from files of one sample or in runs from larger files; or by a library:
np.load, h5py and a TFRecord parser with CRC, which is what frameworks pay for decoding. Libraries
read through an ordinary Python file, as in a training job; it counts its bytes.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from dlemu.dataset.layout import Samples
from dlemu.dataset.plan import EpochPlan
from dlemu.errors import VERIFY, DatasetError
from dlemu.formats import Places, format_of
from dlemu.formats.format import Checksum, Parsed
from dlemu.loaders import Batch
from dlemu.loaders.cache.reader import CacheReader
from dlemu.loaders.columns import ColumnReader
from dlemu.loaders.source import (
    Cost,
    CpuBurner,
    Memory,
    Note,
    Rows,
    Slots,
    Source,
    Task,
    TaskReader,
)
from dlemu.loaders.steps import IDLE, PREPROCESSING, READING
from dlemu.storage.counted import CountedFile, GetCounts, ReadCounts
from dlemu.storage.extents import HEAD_BYTES, ExtentReader, File, Part, ReadFile
from dlemu.storage.files import open_regular
from dlemu.storage.place import ReaderKeys

_MOST_CHECKED = 1024
_MOST_OVERSLEPT = 5e-4
"""Longest oversleep (seconds) that is made up for: beyond it the host is busy, and would delay a
real worker too."""


class _InPlaceReader(TaskReader):
    """Finds samples in files, checks headers and checksums, and reads the payloads."""

    def __init__(
        self,
        source: Source,
        rows: Rows,
        note: Note,
        cache: CacheReader | None,
        storage: ExtentReader,
    ) -> None:
        super().__init__(source, rows, note, storage, cache)
        self._format = format_of(source.layout)
        self._streamed = source.workload.streamed or source.workload.by_tf_data
        self._head = memoryview(bytearray(HEAD_BYTES))
        self._checks = source.workload.reader.check_crc
        self._storage = storage
        self._needs_sizes = storage.needs_sizes
        self._sound = b"", -1
        """First bytes and size of the file that was checked last."""
        self._read_before = 0

    def close(self) -> None:
        self._storage.close()

    def _keep_open(self, number: int) -> File:
        path = self._source.path(number)
        if self._needs_sizes:
            self._storage.know(path, self._source.file_bytes(number))
        return self._storage.keep_open(path)

    def _visit(self, number: int, visit: int) -> File:
        """Open a file, through the cache if there is one."""
        path = self._source.path(number)
        if self._cache is None:
            return self._storage.open(path)
        self._read_before = self._storage.bytes_read
        descriptor, num_bytes = self._cache.open(visit, number, path)
        self._storage.settle(f"/proc/self/fd/{descriptor}")
        return File(path, descriptor, num_bytes)

    def _end_visit(self, file: File, visit: int, num_samples: int) -> None:
        """Close a file that `_visit` opened."""
        if self._cache is not None:
            num_bytes = self._storage.bytes_read - self._read_before
            self._cache.close(visit, file.descriptor, num_samples, num_bytes)
        self._storage.close_file(file)

    def _locate(self, file: File, num_samples: int, *, ahead: bool) -> Places:
        """Return where the samples of a file lie, by its own headers.

        `ahead`: the file will be read from its first byte on.
        """
        self._storage.head(file, ahead=ahead)
        peek, path = partial(self._storage.peek, file), file.path
        with self._decoding(path):
            return self._format.locate(peek, file.num_bytes, num_samples=num_samples, path=path)

    def _checksum(self, file: File) -> Checksum | None:
        fields = self._format.checksum() if self._checks else None
        return None if fields is None else Checksum(file.path, fields)

    def _check_head(self, file: File, head: memoryview) -> None:
        """Check the header in a file's first bytes."""
        data = bytes(head[: file.num_bytes])
        if (data, file.num_bytes) == self._sound:  # files of equal samples all begin alike
            return
        with self._decoding(file.path):
            self._format.check_head(data, file.num_bytes)
        self._sound = data, file.num_bytes


class _WholeFileReader(_InPlaceReader):
    """Reads files of one sample, each from its first byte to the payload's end."""

    def read(self, task: Task) -> Iterator[int]:
        places = repeat(None) if task.places is None else task.places.T.tolist()
        visits = repeat(-1) if task.visits is None else task.visits.tolist()
        if self._needs_sizes:
            self._storage.begin(self._files_of(task))
        for sample, place, visit in zip(task.fetch.tolist(), places, visits, strict=False):
            self._note(READING, sample)
            file = self._visit(sample, visit)
            try:
                self._read_file(file, sample, place)
            finally:
                self._end_visit(file, visit, 1)
            yield 1

    def _files_of(self, task: Task) -> Iterator[ReadFile]:
        """Yield what is known of a batch's objects: of those of other tools only their sizes."""
        if task.places is None:
            for file in task.fetch.tolist():
                num_bytes = self._source.file_bytes(file)
                yield ReadFile(self._source.path(file), num_bytes, num_bytes)
            return
        offsets, lengths, sizes = task.places
        wanted = sizes if self._checks else offsets + lengths
        known = zip(task.fetch.tolist(), sizes.tolist(), wanted.tolist(), strict=True)
        for file, size, most in known:
            yield ReadFile(self._source.path(file), size, most)

    def _read_file(self, file: File, number: int, place: Sequence[int] | None) -> None:
        if place is None:
            found = self._locate(file, 1, ahead=True)
            offset, length = int(found.offsets[0]), int(found.lengths[0])
            head: Part = offset
        else:
            offset, length, num_bytes = place
            _check_size(file, num_bytes)
            head = self._head[:offset]
        parts = [head, *self._rows.parts(file.path, number, length)]
        check = self._checksum(file)
        if check is not None:
            parts.append(file.num_bytes - offset - length)
        self._storage.read(file, 0, parts, check=check)
        if isinstance(head, memoryview):
            self._check_head(file, head)


@dataclass(slots=True)
class _OpenFile:
    """A file of many samples that is being read."""

    file: File
    places: Places
    check: Checksum | None
    array: Memory | None = None
    """The whole array, where samples are interleaved; it has no bytes if they are dropped."""
    visit: int = -1
    unread: int = 0
    """Samples that its visit still reads; with the last one, the file is closed."""


class _RunReader(_InPlaceReader):
    """Reads runs of samples that follow one another in a file of many."""

    _opened: _OpenFile | None = None

    def start_epoch(self) -> None:
        self._opened = None
        self._checked = set[bytes]()

    def read(self, task: Task) -> Iterator[int]:
        samples = task.fetch
        if not samples.size:
            return
        new_run = (np.diff(self._layout.file_of(samples)) != 0) | (np.diff(samples) != 1)
        # A sample is preprocessed before the next one is read. Objects come by requests of many.
        alone = self._source.workload.reader.preprocess_time.mean > 0 and not self._needs_sizes
        ends = np.flatnonzero(new_run | alone) + 1
        at = 0
        for run in np.split(samples, ends):
            start = int(run[0])
            visit = -1 if task.visits is None else int(task.visits[at])
            at += run.size
            opened = self._open(start, visit)
            try:
                if opened.places.interleaved > 1:
                    self._take_interleaved(opened, range(start, start + run.size))
                else:
                    self._read_run(opened, range(start, start + run.size))
            finally:
                self._took(opened, run.size)
            yield run.size

    def _took(self, opened: _OpenFile, num_samples: int) -> None:
        """Close a file when its visit's last samples have been read."""
        opened.unread -= num_samples
        if opened.visit >= 0 and opened.unread == 0:
            assert self._cache is not None
            self._end_visit(opened.file, opened.visit, self._cache.num_samples(opened.visit))
            self._opened = None

    def _open(self, sample: int, visit: int) -> _OpenFile:
        """Return the open file of a sample, and where its samples lie."""
        number, place = self._layout.find(sample)
        self._note(READING, number)
        if visit < 0:
            file = self._keep_open(number)
        elif self._opened is not None and self._opened.visit == visit:
            file = self._opened.file
        else:
            file = self._visit(number, visit)
        if self._opened is not None and self._opened.file is file:
            return self._opened
        unread = 0 if self._cache is None else self._cache.num_samples(visit)
        if file.found is None:
            file.found = self._look_into(file, number, ahead=self._streamed and place == 0)
        assert isinstance(file.found, Places)
        check = self._checksum(file)
        self._opened = _OpenFile(file, file.found, check, visit=visit, unread=unread)
        return self._opened

    def _look_into(self, file: File, number: int, *, ahead: bool) -> Places:
        """Return where the samples of a file lie; `ahead` as in `_locate`."""
        layout = self._layout
        if self._source.dataset.known_places:
            head = self._storage.head(file, ahead=ahead)
            with self._decoding():
                sizes = layout.sizes(layout.samples_of(number))
                _check_size(file, int(self._format.file_bytes(sizes[None])[0]))
                places = self._format.places(sizes, element_bytes=layout.element_bytes)
            self._check_head(file, head)
            return places
        return self._locate(file, layout.in_file(number), ahead=ahead)

    def _read_run(self, opened: _OpenFile, samples: range) -> None:
        """Read samples that lie one behind the other.

        In a streamed format the bytes between two payloads are read as well, and checked.
        """
        file, places, streamed = opened.file, opened.places, self._streamed
        number, first = self._layout.find(samples.start)
        end = first + samples.stop - samples.start
        offsets = places.offsets[first:end].tolist()
        lengths = places.lengths[first:end].tolist()
        begin = offsets[0]
        if streamed:
            begin = int(places.offsets[first - 1] + places.lengths[first - 1]) if first else 0
        parts: list[Part] = []
        heads: list[tuple[int, memoryview]] = []  # offset in the file, bytes before a payload
        between = memoryview(bytearray(offsets[-1] + lengths[-1] - begin - sum(lengths)))
        at, used = begin, 0
        for sample, offset, length in zip(samples, offsets, lengths, strict=True):
            if offset > at:
                head = between[used : used + offset - at]
                used += offset - at
                heads.append((at, head))
                parts.append(head)
            parts += self._rows.parts(file.path, sample, length)
            at = offset + length
        if streamed and end == self._layout.in_file(number):
            parts.append(file.num_bytes - at)
        check = opened.check
        if check is not None and check.at != begin:
            self._storage.read(file, check.at, [begin - check.at], check=check)
        self._storage.read(file, begin, parts, ahead=streamed, check=check)
        if streamed and self._source.dataset.known_places:
            self._check_heads(file, heads)

    def _check_heads(self, file: File, heads: list[tuple[int, memoryview]]) -> None:
        """Check the header of each record that was read."""
        with self._decoding(file.path):
            for at, head in heads:
                skipped = self._format.gap(at) if at else 0
                record = bytes(head[skipped:])
                # Identical header bytes need to be checked only once: the places are known, so
                # nothing depends on where in the file they stand.
                if record in self._checked:
                    continue
                self._format.check_head(record, file.num_bytes - at - skipped)
                if len(self._checked) == _MOST_CHECKED:
                    self._checked.clear()
                self._checked.add(record)

    def _take_interleaved(self, opened: _OpenFile, samples: range) -> None:
        """Take samples from an array whose last axis they are; it is read whole, once."""
        places = opened.places
        offset, each = int(places.offsets[0]), int(places.lengths[0])
        size = each * places.interleaved
        keep = self._rows.slots is not None
        if opened.array is None:
            opened.array = np.empty(size if keep else 0, np.uint8)
            middle: Part = opened.array.data if keep else size
            after = opened.file.num_bytes - offset - size
            self._storage.read(opened.file, 0, [offset, middle, after], check=opened.check)
        if not keep:
            return
        elements = opened.array.reshape(-1, places.interleaved, places.element_bytes)
        for sample in samples:
            data = np.ascontiguousarray(elements[:, self._layout.find(sample)[1]]).ravel()
            self._rows.copy(opened.file.path, sample, data)


class _RecordReader(_InPlaceReader):
    """Reads samples of bare files one by one, wherever they lie: each with one call."""

    def read(self, task: Task) -> Iterator[int]:
        layout = self._layout
        files = layout.file_of(task.fetch)
        order = np.argsort(files, kind="stable")
        ends = np.flatnonzero(np.diff(files[order])) + 1
        for samples in np.split(task.fetch[order], ends):
            number, _ = layout.find(int(samples[0]))
            self._note(READING, number)
            file = self._keep_open(number)
            offsets, lengths = self._extents(number, file, layout.place_of(samples))
            into: list[memoryview] = []
            if self._rows.slots is not None:
                found = zip(samples.tolist(), lengths, strict=True)
                into = [self._rows.memory(file.path, *each) for each in found]
            self._storage.read_each(file, offsets, lengths, into)
            yield samples.size

    def _extents(self, number: int, file: File, places: Samples) -> tuple[list[int], list[int]]:
        """Return where samples lie in a file, by their places there."""
        layout, same = self._layout, self._layout.equal_bytes
        if same is not None and self._source.dataset.known_places:
            _check_size(file, same * layout.samples_per_file)
            return (places * same).tolist(), [same] * len(places)
        if file.found is None:
            if self._source.dataset.known_places:
                sizes = layout.sizes(layout.samples_of(number))
                _check_size(file, int(sizes.sum()))
                file.found = self._format.places(sizes)
            else:
                file.found = self._locate(file, layout.in_file(number), ahead=False)
        found = file.found
        assert isinstance(found, Places)
        return found.offsets[places].tolist(), found.lengths[places].tolist()


def _check_size(file: File, num_bytes: int) -> None:
    if file.num_bytes != num_bytes:
        raise DatasetError(
            f"{file.path}: it holds {file.num_bytes} bytes, {num_bytes} are wanted",
            remedy=VERIFY,
        )


def _open_storage(source: Source, *, number: int, max_open: int) -> ExtentReader:
    """Return what worker `number` of the job reads with. By worker, not by rank: one rank emulates
    many accelerators, and servers are dealt out in turn."""
    workload, reader = source.workload, source.workload.reader
    columns = format_of(source.layout).in_columns
    one = source.layout.samples_per_file == 1 and not columns
    keys = ReaderKeys(
        direct=source.direct,
        piece_bytes=reader.piece_bytes if one else reader.transfer_size,
        io_depth=reader.io_depth,
        range_bytes=reader.range_bytes,
        in_flight=reader.gets_in_flight,
        whole=one or (not columns and (workload.streamed or workload.by_tf_data)),
        max_open=1 if one or columns else max_open,
    )
    return source.dataset.place.at(number).reader(keys)


class Preparing:
    """Spends `reader.preprocess_time` for one worker's samples, by computing or by sleeping."""

    def __init__(self, source: Source, note: Note, *, accelerator: int, worker: int) -> None:
        workload = source.workload
        self._note = note
        self._seed = workload.train.seed, accelerator, worker
        self._time = workload.reader.preprocess_time
        self._burner = CpuBurner(source.block_seconds) if source.block_seconds else None
        self._draws = np.random.default_rng(0)
        self._overslept = 0.0

    def start_epoch(self, epoch: int) -> None:
        """Draw anew."""
        seed, accelerator, worker = self._seed
        self._draws = np.random.default_rng((seed, epoch, accelerator, worker))

    def spend(self, num_samples: int) -> float:
        """Spend the time of so many; return the seconds of it that were computing."""
        if not num_samples or self._time.mean == 0:
            return 0.0
        self._note(PREPROCESSING, -1)
        seconds = sum(self._time.draw(self._draws) for _ in range(num_samples))
        if self._burner is not None:
            return self._burner.burn(seconds)
        begin, asked = perf_counter(), max(0.0, seconds - self._overslept)
        time.sleep(asked)
        # A sleep ends late by what is a percent of a sample's: the next one is shorter by that.
        self._overslept = min(_MOST_OVERSLEPT, max(0.0, perf_counter() - begin - asked))
        return 0.0


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
        self._reader: TaskReader
        self._cache: CacheReader | None = None
        number = accelerator * workload.reader.num_streams + worker
        if source.dataset.cache_state:
            self._cache = CacheReader(source.dataset, row=number, direct=source.direct)
        cache = self._cache
        files, ways = format_of(source.layout), format_of(source.layout).ways
        decodes = workload.reader.decode == "library" and not files.in_columns
        storage = None
        if decodes:
            self._reader = LibraryReader(source, self._rows, note, cache)
        else:
            storage = _open_storage(source, number=number, max_open=max_open)
            if files.in_columns:
                self._reader = ColumnReader(source, self._rows, note, storage)
            elif source.layout.samples_per_file == 1:
                self._reader = _WholeFileReader(source, self._rows, note, cache, storage)
            elif len(ways) > 1 and workload.reader.access == "random":
                self._reader = _RecordReader(source, self._rows, note, cache, storage)
            else:
                self._reader = _RunReader(source, self._rows, note, cache, storage)
        self.gets = GetCounts() if storage is None else storage.counts
        """Requests so far, where the place counts them."""
        self._note = note
        self._preparing = Preparing(source, note, accelerator=accelerator, worker=worker)

    def start_epoch(self, epoch: int) -> None:
        """Forget what an earlier epoch, perhaps ended early, has left."""
        self._rows.start_epoch()
        if self._cache is not None:
            self._cache.start_epoch()
        self._reader.start_epoch()
        self._preparing.start_epoch(epoch)

    def make(self, task: Task, wanted: Callable[[], bool]) -> Cost | None:
        """Read a batch, into its slot if there are slots; return what it cost.

        A sample is preprocessed when it has been read, before the next one, as a dataset's
        __getitem__ does it: workers that read all at once, then compute all at once, would be
        slower than a job's. What is read together, as a row group, is preprocessed together.

        `wanted` is called after each file or run of samples; if it returns False, None is returned
        at once. Raises DatasetError if a file is missing, damaged or not what the workload says.
        """
        before = self._reader.cost()
        if self._rows.slots is not None:
            self._rows.start_batch(task)
        computed, unprepared = 0.0, len(task.samples)
        for num_samples in self._reader.read(task):
            if not wanted():
                self._note(IDLE, -1)
                return None
            # A stream may have read samples for later batches.
            computed += self._preparing.spend(min(num_samples, unprepared))
            unprepared -= min(num_samples, unprepared)
        computed += self._preparing.spend(unprepared)
        cost = self._reader.cost().since(before)
        self._note(IDLE, -1)
        return cost._replace(decode_seconds=cost.decode_seconds + computed)

    def close(self) -> None:
        """Close all files."""
        self._reader.close()
        if self._cache is not None:
            self._cache.end()


def make_batch(
    cost: Cost,
    slots: Slots | None,
    plan: EpochPlan,
    accelerator: int,
    *,
    epoch: int,
    step: int,
    handed: tuple[Memory, NDArray[np.int64]] | None = None,
) -> Batch:
    """Return a batch that is ready now, with its slot's arrays if there are slots.

    `handed`: its data and lengths where it came in memory of its own.
    """
    if slots is not None:
        slot = step % slots.num_slots
        handed = slots.data[slot], slots.lengths[slot]
    data, lengths = handed or (None, None)
    return Batch(
        epoch=epoch,
        step=step,
        accelerator=accelerator,
        samples=plan.batch(step, accelerator),
        num_bytes=cost.num_bytes,
        num_reads=cost.num_reads,
        ready=perf_counter(),
        read_seconds=cost.read_seconds,
        decode_seconds=cost.decode_seconds,
        hand_over_seconds=cost.hand_over_seconds,
        data=data,
        lengths=lengths,
    )


class LibraryReader(TaskReader):
    """Reads samples through the format's library, file by file."""

    def __init__(
        self, source: Source, rows: Rows, note: Note, cache: CacheReader | None = None
    ) -> None:
        super().__init__(source, rows, note, ReadCounts(), cache)
        self._visit, self._taken = -1, 0
        self._parse = format_of(source.layout).parse
        self._opened: tuple[CountedFile, Parsed] | None = None
        self._read_before = 0  # bytes, when the file was opened

    def read(self, task: Task) -> Iterator[int]:
        visits = repeat(-1) if task.visits is None else task.visits.tolist()
        for sample, visit in zip(task.fetch.tolist(), visits, strict=False):
            self._read_sample(sample, visit)
            yield 1

    def _read_sample(self, sample: int, visit: int) -> None:
        number, place = self._layout.find(sample)
        path = self._source.path(number)
        self._note(READING, number)
        with self._decoding():
            if self._opened is None or self._opened[0].path != path or self._visit != visit:
                self.close()
                self._visit, self._taken, self._read_before = visit, 0, self._counts.bytes_read
                opener = partial(self._open, number, visit)
                file = CountedFile(path, counts=self._counts, opener=opener)
                self._opened = file, self._parse(file, self._layout.in_file(number))
            file, parsed = self._opened
            data = parsed.sample(place)
        self._taken += 1
        if self._rows.slots is not None:
            self._rows.copy(path, sample, data)
        # Through a cache a file is closed when its visit ends: others may wait to remove it.
        ends = self._cache is not None and self._taken == self._cache.num_samples(visit)
        if ends or self._layout.samples_per_file == 1:
            self.close()

    def _open(self, number: int, visit: int, path: str) -> int:
        if self._cache is None:
            return open_regular(path)
        return self._cache.open(visit, number, path)[0]

    def close(self) -> None:
        if self._opened is not None:
            file, parsed = self._opened
            if self._cache is not None:
                num_bytes = self._counts.bytes_read - self._read_before
                self._cache.close(self._visit, file.fileno(), self._taken, num_bytes)
            parsed.close()
            self._opened = None

    start_epoch = close
