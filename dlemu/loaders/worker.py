"""One worker's reading: the batches of its stream, in their order, byte for byte.

Both loaders are made of it; they differ in where workers run and how batches reach the training.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from time import perf_counter
from typing import NamedTuple

import numpy as np

from dlemu.errors import DatasetError
from dlemu.formats import FORMATS, Places
from dlemu.loaders.activity import IDLE, READING, SLEEPING
from dlemu.loaders.checksums import CHECKSUMS, Checksum
from dlemu.loaders.library import PARSERS, CountedFile, Parsed, despite_other_threads
from dlemu.loaders.source import Memory, Slots, Source, Task
from dlemu.storage.extents import HEAD_BYTES, File, Part, extent_reader

_RECORD_TRAILER = 4
"""Bytes between a TFRecord payload that dlemu wrote and the next record: a checksum."""
_MOST_SOUND_HEADS = 1024


class Cost(NamedTuple):
    """What a batch took."""

    num_bytes: int
    read_seconds: float
    decode_seconds: float
    hand_over_seconds: float

    def since(self, before: "Cost") -> "Cost":
        """Return what came since an earlier count."""
        return Cost(
            self.num_bytes - before.num_bytes,
            self.read_seconds - before.read_seconds,
            self.decode_seconds - before.decode_seconds,
            self.hand_over_seconds - before.hand_over_seconds,
        )


@dataclass(slots=True)
class _OpenFile:
    """A file of many samples that is being read."""

    file: File
    places: Places
    check: Checksum | None
    array: Memory | None = None
    """All samples, where they are interleaved."""


class SampleReader:
    """Makes the batches of one stream. Not to be shared by threads."""

    def __init__(
        self,
        source: Source,
        *,
        accelerator: int,
        worker: int,
        slots: Slots | None,
        note: Callable[[int, int], None],
        max_open: int = 8,
    ) -> None:
        """Without slots the bytes are read and dropped; `note(what, file)` is told what it does."""
        self._source = source
        self._layout = layout = source.layout
        self._format = FORMATS[layout.format]
        self._slots = slots
        self._note = note
        self._accelerator, self._worker = accelerator, worker
        reader = source.workload.reader
        self._storage = extent_reader(
            direct=source.direct,
            piece_bytes=reader.piece_bytes
            if layout.samples_per_file == 1
            else reader.transfer_size,
            io_depth=reader.io_depth,
            max_open=max_open,
        )
        self._folder = str(source.dataset.folder)
        self._parse = PARSERS[layout.format] if reader.decode == "library" else None
        self._checksum = CHECKSUMS[layout.format] if reader.check_crc else None
        self._resize = source.workload.dataset.record_length_bytes_resize
        self._preprocess = reader.preprocess_time
        self._draws = np.random.default_rng(0)
        self._decode_seconds = 0.0
        self._hand_over_seconds = 0.0
        self._head = memoryview(bytearray(HEAD_BYTES))
        self._slot = 0
        self._rows: dict[int, int] = {}
        # Samples that were read before they were asked for.
        self._held: dict[int, memoryview] = {}
        self._sound_heads: set[bytes] = set()
        self._opened: _OpenFile | None = None
        self._parsed: tuple[CountedFile, Parsed] | None = None
        self._parsed_bytes = 0
        self._parsed_seconds = 0.0

    def start_epoch(self, epoch: int) -> None:
        """Forget what an earlier epoch, perhaps ended early, has left."""
        self._held.clear()
        self._opened = None
        self._end_parsing()
        seed = self._source.workload.train.seed
        self._draws = np.random.default_rng((seed, epoch, self._accelerator, self._worker))

    def make(self, task: Task, wanted: Callable[[], bool]) -> Cost | None:
        """Read a batch, into its slot if there are slots; return what it took.

        None is returned if it is no longer wanted; this is asked after each sample or run of them.

        Raises:
            DatasetError: a file is missing, damaged or not what the workload says.
        """
        before = self._so_far()
        if self._slots is not None:
            self._slot = task.step % self._slots.num_slots
            samples, rows = task.samples.tolist(), task.rows.tolist()
            self._rows = dict(zip(samples, rows, strict=True))
            self._hand_over_held()
        for _ in self._read(task):
            if not wanted():
                return None
        if self._preprocess.mean > 0:
            self._note(SLEEPING, -1)
            time.sleep(sum(self._preprocess.draw(self._draws) for _ in task.samples))
        self._note(IDLE, -1)
        return self._so_far().since(before)

    def close(self) -> None:
        """Close all files."""
        self._end_parsing()
        self._storage.close()

    def _so_far(self) -> Cost:
        storage = self._storage
        num_bytes, seconds = self._parsed_bytes, self._parsed_seconds
        if self._parsed is not None:
            num_bytes += self._parsed[0].bytes_read
            seconds += self._parsed[0].read_seconds
        return Cost(
            num_bytes + storage.bytes_read,
            seconds + storage.read_seconds,
            self._decode_seconds - seconds,
            self._hand_over_seconds + storage.copy_seconds,
        )

    def _path(self, number: int) -> str:
        return f"{self._folder}/{self._layout.path(number)}"

    def _read(self, task: Task) -> Iterator[None]:
        """Read what a batch needs; yield after each file or run of samples."""
        samples = task.fetch
        per_file = self._layout.samples_per_file
        if self._parse is not None:
            for sample in samples.tolist():
                self._parse_sample(sample)
                yield
        elif per_file == 1:
            places = repeat(None) if task.places is None else task.places.T.tolist()
            for sample, place in zip(samples.tolist(), places, strict=False):
                self._read_file(sample, place)
                yield
        elif len(samples):
            new_file = np.diff(self._layout.file_of(samples)) != 0
            ends = np.flatnonzero(new_file | (np.diff(samples) != 1)) + 1
            for run in np.split(samples, ends):
                self._read_run(*divmod(int(run[0]), per_file), len(run))
                yield

    # Files of one sample

    def _read_file(self, number: int, place: Sequence[int] | None) -> None:
        """Read a file of one sample, from its first byte to the payload's end."""
        storage = self._storage
        self._note(READING, number)
        file = storage.open(self._path(number))
        try:
            if place is None:
                found = self._locate(file, 1)
                offset, length = int(found.offsets[0]), int(found.lengths[0])
                head: Part = offset
            else:
                offset, length, num_bytes = place
                _check_size(file, num_bytes)
                head = self._head[:offset]
            parts = [head, *self._parts(file, number, length)]
            check = None
            if self._checksum is not None:
                check = self._checksum(file.path)
                parts.append(file.num_bytes - offset - length)
            storage.read(file, 0, parts, check=check)
            if isinstance(head, memoryview):
                self._check_head(file, head)
        finally:
            storage.close_file(file)

    # Files of many samples

    def _read_run(self, number: int, first: int, count: int) -> None:
        """Read samples that follow one another in a file."""
        self._note(READING, number)
        opened = self._open(number)
        file, places = opened.file, opened.places
        start = number * self._layout.samples_per_file + first
        if places.interleaved > 1:
            self._read_interleaved(opened, range(start, start + count))
            return
        # All between two payloads of a stream is read, too; other formats are read in place.
        streamed = self._format.streamed
        offsets = places.offsets[first : first + count].tolist()
        lengths = places.lengths[first : first + count].tolist()
        at = offsets[0]
        if streamed:
            at = int(places.offsets[first - 1] + places.lengths[first - 1]) if first else 0
        begin = at
        parts: list[Part] = []
        between = memoryview(bytearray(offsets[-1] + lengths[-1] - at - sum(lengths)))
        used = 0
        heads: list[tuple[int, memoryview]] = []
        for sample, offset, length in zip(
            range(start, start + count), offsets, lengths, strict=True
        ):
            if offset > at:
                head = between[used : used + offset - at]
                used += offset - at
                heads.append((at, head))
                parts.append(head)
            parts += self._parts(file, sample, length)
            at = offset + length
        if streamed and first + count == self._layout.samples_per_file:
            parts.append(file.num_bytes - at)
        if opened.check is not None and opened.check.at != begin:
            self._storage.read(file, opened.check.at, [begin - opened.check.at], check=opened.check)
        self._storage.read(file, begin, parts, ahead=streamed, check=opened.check)
        if streamed and self._source.dataset.known_places:
            self._check_heads(file, heads)

    def _open(self, number: int) -> _OpenFile:
        """Return an open file, and where its samples lie."""
        path = self._path(number)
        file = self._storage.keep_open(path)
        if self._opened is not None and self._opened.file is file:
            return self._opened
        layout = self._layout
        if self._source.dataset.known_places:
            head = self._storage.head(file)
            begin = perf_counter()
            sizes = layout.sizes(layout.samples_of(number))
            _check_size(file, int(self._format.file_bytes(sizes[None])[0]))
            places = self._format.places(sizes, element_bytes=layout.element_bytes)
            self._decode_seconds += perf_counter() - begin
            self._check_head(file, head)
        else:
            places = self._locate(file, layout.samples_per_file)
        check = self._checksum(path) if self._checksum is not None else None
        self._opened = _OpenFile(file, places, check)
        return self._opened

    def _locate(self, file: File, num_samples: int) -> Places:
        """Return where the samples of a file lie, as its headers tell."""
        storage = self._storage
        storage.head(file)
        begin, before = perf_counter(), storage.read_seconds
        peek = partial(storage.peek, file)
        locate = partial(self._format.locate, num_samples=num_samples)
        try:
            found = despite_other_threads(lambda: locate(peek, file.num_bytes))
        except DatasetError as error:
            raise _of(file, error) from None
        self._decode_seconds += perf_counter() - begin - (storage.read_seconds - before)
        return found

    def _check_head(self, file: File, head: memoryview) -> None:
        """Check what a file's first bytes say."""
        begin = perf_counter()
        data = bytes(head[: file.num_bytes])
        try:
            despite_other_threads(lambda: self._format.check_head(data, file.num_bytes))
        except DatasetError as error:
            raise _of(file, error) from None
        self._decode_seconds += perf_counter() - begin

    def _check_heads(self, file: File, heads: list[tuple[int, memoryview]]) -> None:
        """Check what stands before each record that was read."""
        begin = perf_counter()
        for at, head in heads:
            skipped = _RECORD_TRAILER if at else 0
            record = bytes(head[skipped:])
            # Where the next one begins is known, so two heads that are alike are alike sound.
            if record in self._sound_heads:
                continue
            try:
                self._format.check_head(record, file.num_bytes - at - skipped)
            except DatasetError as error:
                raise _of(file, error) from None
            if len(self._sound_heads) == _MOST_SOUND_HEADS:
                self._sound_heads.clear()
            self._sound_heads.add(record)
        self._decode_seconds += perf_counter() - begin

    def _read_interleaved(self, opened: _OpenFile, samples: range) -> None:
        """Take samples of an array whose last axis they are: it is read whole, once."""
        places = opened.places
        offset, each = int(places.offsets[0]), int(places.lengths[0])
        size = each * places.interleaved
        if opened.array is None:
            keep = self._slots is not None
            opened.array = np.empty(size if keep else 0, np.uint8)
            middle: Part = opened.array.data if keep else size
            after = opened.file.num_bytes - offset - size
            self._storage.read(opened.file, 0, [offset, middle, after], check=opened.check)
        if self._slots is None:
            return
        elements = opened.array.reshape(-1, places.interleaved, places.element_bytes)
        for sample in samples:
            place = sample % places.interleaved
            self._give(opened.file, sample, np.ascontiguousarray(elements[:, place]).ravel())

    # Through libraries, as frameworks do

    def _parse_sample(self, sample: int) -> None:
        assert self._parse is not None
        number, place = divmod(sample, self._layout.samples_per_file)
        path = self._path(number)
        self._note(READING, number)
        begin = perf_counter()
        if self._parsed is None or self._parsed[0].path != path:
            self._end_parsing()
            file = CountedFile(path)
            self._parsed = file, self._parse(file, self._layout.samples_per_file)
        file, parsed = self._parsed
        data = parsed.sample(place)
        self._decode_seconds += perf_counter() - begin
        if self._slots is not None:
            self._give(file, sample, data)
        if self._layout.samples_per_file == 1:
            self._end_parsing()

    def _end_parsing(self) -> None:
        if self._parsed is not None:
            file, parsed = self._parsed
            parsed.close()
            self._parsed_bytes += file.bytes_read
            self._parsed_seconds += file.read_seconds
            self._parsed = None

    # Where samples go

    def _parts(self, file: File | CountedFile, sample: int, length: int) -> list[Part]:
        """Return where the bytes of a sample go."""
        if self._slots is None:
            return [length]
        kept = length
        if self._resize is not None:
            kept = length if length < self._resize else self._resize
        elif length > self._slots.row_bytes:
            raise DatasetError(
                f"{file.path} has a sample of {length} bytes, at most {self._slots.row_bytes} were "
                f"expected; set dataset.record_length_bytes_resize"
            )
        row = self._rows.get(sample)
        if row is None:
            memory = self._held[sample] = memoryview(bytearray(kept))
        else:
            memory = self._row(row, kept)
        return [memory] if kept == length else [memory, length - kept]

    def _row(self, row: int, kept: int) -> memoryview:
        """Return the first bytes of a row, which are to be filled."""
        assert self._slots is not None
        begin = perf_counter()
        length = kept if self._resize is None else self._resize
        memory = self._slots.row(self._slot, row, kept, length)
        self._hand_over_seconds += perf_counter() - begin
        return memory

    def _give(self, file: File | CountedFile, sample: int, data: Memory) -> None:
        """Copy a sample that is in memory already to where it goes."""
        target = self._parts(file, sample, len(data))[0]
        begin = perf_counter()
        if isinstance(target, memoryview):
            target[:] = data.data[: len(target)]
        self._hand_over_seconds += perf_counter() - begin

    def _hand_over_held(self) -> None:
        """Copy the samples that were read for earlier batches."""
        if not self._held:
            return
        begin = perf_counter()
        for sample, row in self._rows.items():
            held = self._held.pop(sample, None)
            if held is not None:
                self._row(row, len(held))[:] = held
        self._hand_over_seconds += perf_counter() - begin


def _check_size(file: File, num_bytes: int) -> None:
    if file.num_bytes != num_bytes:
        raise DatasetError(
            f"{file.path}: it holds {file.num_bytes} bytes, {num_bytes} are wanted; "
            f"dlemu verify lists what is damaged"
        )


def _of(file: File, error: DatasetError) -> DatasetError:
    return DatasetError(f"{file.path}: {error}")
