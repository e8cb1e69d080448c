"""Samples through np.load, h5py and a TFRecord parser with CRC: what frameworks pay for decoding.

The libraries read through an ordinary Python file, as in a training job; it counts its bytes.
"""

import io
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from time import perf_counter
from typing import Any, TypeVar

import google_crc32c
import numpy as np

from dlemu.errors import DatasetError
from dlemu.formats import tfrecord
from dlemu.loaders.activity import READING, Note
from dlemu.loaders.source import Cost, Memory, Rows, Source, Task
from dlemu.storage.extents import ReadCounts
from dlemu.storage.regular import cannot_open, open_regular
from dlemu.tier.reader import TierReader
from dlemu.workload.sections import BARE, INDEXED, FormatName

_Returned = TypeVar("_Returned")
_MOST_AT_ONCE = 1 << 30
"""Bytes that one call asks for: Linux gives at most 2 GiB less a page, and h5py asks once."""
_MOST_DEFLATED = 1032
"""Bytes that one compressed byte can stand for (zlib's technical details)."""


def despite_other_threads(parse: Callable[[], _Returned]) -> _Returned:
    """Return what `parse` returns; call it again if Python's parser fails.

    The .npy header is a Python literal, and Python's parser may raise SystemError when two threads
    use it (CPython issue 106905; seen in 3.11).
    """
    for _ in range(100):
        try:
            return parse()
        except SystemError:
            time.sleep(0.001)
    return parse()


class CountedFile(io.FileIO):
    """A file that counts what is read from it."""

    def __init__(
        self,
        path: str,
        *,
        counts: ReadCounts | None = None,
        opener: Callable[[str], int] = open_regular,
    ) -> None:
        """`counts`: of this file and others; None: its own."""
        self.path = path
        self.counts = counts or ReadCounts()
        try:
            super().__init__(path, opener=lambda name, flags: opener(name))
        except OSError as error:
            raise cannot_open(path, error) from None

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer; fewer bytes come only at the file's end."""
        begin, into, done = perf_counter(), memoryview(buffer).cast("B"), 0
        while True:
            part = into[done : done + _MOST_AT_ONCE]
            got = super().readinto(part) or 0
            done += got
            self.counts.num_reads += 1
            if got < len(part) or done == len(into):
                break
        self.counts.read_seconds += perf_counter() - begin
        self.counts.bytes_read += done
        return done

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            size = max(0, os.fstat(self.fileno()).st_size - self.tell())
        data = bytearray(size)
        return bytes(data[: self.readinto(data)])


class Parsed:
    """A file of samples that a library has opened."""

    _file: Any
    """What `close` closes."""

    def sample(self, place: int) -> Memory:
        """Return the bytes of the file's sample number `place`, from 0, or raise DatasetError."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Array(Parsed):
    """A file that is one array; of several samples, the last axis."""

    _axis: tuple[Any, ...] = (...,)
    """Index of the axes before that of the samples."""

    def __init__(self, file: CountedFile, num_samples: int) -> None:
        self._counted, self._num_samples = file, num_samples
        self._file = io.BufferedReader(file)
        counts, begin = file.counts, perf_counter()
        bytes_before, seconds_before = counts.bytes_read, counts.read_seconds
        try:
            self._array: Any = despite_other_threads(self._load)
            if not self._is_zip:
                # np.load reads .npy through the descriptor, uncounted, and decodes nothing.
                counts.bytes_read = bytes_before + os.lseek(file.fileno(), 0, os.SEEK_CUR)
                counts.read_seconds = seconds_before + perf_counter() - begin
        except Exception as error:  # libraries raise many types for damaged files
            raise _damaged(file, error) from None

    def sample(self, place: int) -> Memory:
        try:
            array = self._array[(*self._axis, place) if self._num_samples > 1 else ...]
            return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        except Exception as error:  # libraries raise many types for damaged files
            raise _damaged(self._counted, error) from None

    def _load(self) -> Any:
        self._file.seek(0)
        loaded = np.load(self._file)
        self._is_zip = isinstance(loaded, np.lib.npyio.NpzFile)
        return loaded["x"] if self._is_zip else loaded  # a member's header is parsed here


class _Hdf5(_Array):
    _axis = ()

    def __init__(self, file: CountedFile, num_samples: int) -> None:
        import h5py

        self._counted, self._num_samples = file, num_samples
        try:
            self._file = h5py.File(file, "r")
            name = "records_0" if "records_0" in self._file else "records"
            self._array = self._file[name]
            num_bytes, file_bytes = int(self._array.nbytes), os.fstat(file.fileno()).st_size
        except Exception as error:  # libraries raise many types for damaged files
            raise _damaged(file, error) from None
        # A damaged header may ask for more memory than the host has.
        if num_bytes > _MOST_DEFLATED * file_bytes:
            raise DatasetError(
                f"{file.path} is damaged: {name} has {num_bytes} bytes by its header, the file "
                f"{file_bytes}"
            )

    def close(self) -> None:
        super().close()
        self._counted.close()


class _Records(Parsed):
    """A TFRecord file, read from its start: samples are asked for in order, others are skipped."""

    def __init__(self, file: CountedFile, num_samples: int) -> None:
        self._file = file
        self._next = 0
        self._records = self._parse(io.BufferedReader(file, 262_144))  # tf.data's default

    def sample(self, place: int) -> Memory:
        for data in self._records:
            self._next += 1
            if self._next == place + 1:
                return data
        raise DatasetError(f"{self._file.path} holds {self._next} records, {place + 1} are wanted")

    def _parse(self, file: io.BufferedReader) -> Iterator[Memory]:
        while frame := file.read(12):
            at = file.tell() - len(frame)
            try:
                left = os.fstat(self._file.fileno()).st_size - at
                tfrecord.check_head(frame, left)
                record = file.read(int.from_bytes(frame[:8], "little") + 4)
                data = np.frombuffer(record, np.uint8)[:-4]
                if tfrecord.masked_crc(google_crc32c.value(data)) != record[-4:]:
                    raise DatasetError("the checksum of its data is wrong; the file is damaged")
                whole = frame + record
                place = tfrecord.locate(partial(_slice, whole), len(whole), num_samples=1)
            except DatasetError as error:
                raise DatasetError(f"{self._file.path}: record at byte {at}: {error}") from None
            start = int(place.offsets[0])
            yield np.frombuffer(whole, np.uint8)[start : start + int(place.lengths[0])]


def _slice(data: bytes, start: int, size: int) -> bytes:
    return data[start : start + size]


def _damaged(file: CountedFile, error: Exception) -> DatasetError:
    return DatasetError(f"{file.path} is damaged: {' '.join(str(error).split())[:120]}")


class _Bare(Parsed):
    """Files whose bytes are the samples; there is nothing to parse."""

    def __init__(self, file: CountedFile, num_samples: int) -> None:
        self._file = file
        self._size, rest = divmod(os.fstat(file.fileno()).st_size, num_samples)
        if rest:
            raise DatasetError(f"{file.path} is damaged: its samples have different sizes")

    def sample(self, place: int) -> Memory:
        self._file.seek(place * self._size)
        data = np.frombuffer(self._file.read(self._size), np.uint8)
        if not data.size:
            raise DatasetError(f"{self._file.path} is damaged: sample {place} is empty")
        return data


class _Indexed(_Bare):
    """Samples that lie where two index files say; the indexes are mapped, as Megatron does."""

    def __init__(self, file: CountedFile, num_samples: int) -> None:
        self._file = file
        try:
            self._offsets, self._sizes = (
                np.memmap(f"{file.path}.{each}.idx", "<u8", "r") for each in ("off", "sz")
            )
            whole = len(self._offsets) == len(self._sizes) == num_samples
        except (OSError, ValueError) as error:
            raise _damaged(file, error) from None
        if not whole:
            raise DatasetError(f"{file.path} is damaged: its index has not {num_samples} samples")

    def sample(self, place: int) -> Memory:
        start, size = int(self._offsets[place]), int(self._sizes[place])
        if start + size > os.fstat(self._file.fileno()).st_size:
            raise DatasetError(f"{self._file.path} is damaged: its index points past its end")
        self._file.seek(start)
        return np.frombuffer(self._file.read(size), np.uint8)


PARSERS: dict[FormatName, Callable[[CountedFile, int], Parsed]] = {
    "npz": _Array,
    "npy": _Array,
    "hdf5": _Hdf5,
    "tfrecord": _Records,
    **dict.fromkeys(BARE, _Bare),
    **dict.fromkeys(INDEXED, _Indexed),
}


class LibraryReader:
    """Reads samples through the format's library, file by file."""

    def __init__(
        self, source: Source, rows: Rows, note: Note, tier: TierReader | None = None
    ) -> None:
        """`tier` opens the files if there is a cache."""
        self._tier, self._visit, self._taken = tier, -1, 0
        self._source, self._layout = source, source.layout
        self._rows, self._note = rows, note
        self._parse = PARSERS[source.layout.format]
        self._opened: tuple[CountedFile, Parsed] | None = None
        self._counts = ReadCounts()
        self._read_before = 0  # bytes, when the file was opened
        self._seconds = 0.0  # in the library, reads included

    def read(self, task: Task) -> Iterator[int]:
        """Read what a batch needs; after each sample yield 1."""
        visits = repeat(-1) if task.visits is None else task.visits.tolist()
        for sample, visit in zip(task.fetch.tolist(), visits, strict=False):
            self._read_sample(sample, visit)
            yield 1

    def so_far(self) -> Cost:
        """Return what all batches so far have cost."""
        counts = self._counts
        reading = counts.read_seconds + (0.0 if self._tier is None else self._tier.seconds)
        decoding = self._seconds - reading
        return Cost(counts.bytes_read, counts.num_reads, reading, decoding, self._rows.seconds)

    def _read_sample(self, sample: int, visit: int) -> None:
        number, place = divmod(sample, self._layout.samples_per_file)
        path = self._source.path(number)
        self._note(READING, number)
        begin = perf_counter()
        if self._opened is None or self._opened[0].path != path or self._visit != visit:
            self.close()
            self._visit, self._taken, self._read_before = visit, 0, self._counts.bytes_read
            opener = partial(self._open, number, visit)
            file = CountedFile(path, counts=self._counts, opener=opener)
            self._opened = file, self._parse(file, self._layout.samples_per_file)
        file, parsed = self._opened
        data = parsed.sample(place)
        self._taken += 1
        self._seconds += perf_counter() - begin
        if self._rows.slots is not None:
            self._rows.copy(path, sample, data)
        # Through a cache a file is closed when its visit ends: others may wait to remove it.
        ends = self._tier is not None and self._taken == self._tier.num_samples(visit)
        if ends or self._layout.samples_per_file == 1:
            self.close()

    def _open(self, number: int, visit: int, path: str) -> int:
        if self._tier is None:
            return open_regular(path)
        return self._tier.open(visit, number, path)[0]

    def close(self) -> None:
        """Close the file."""
        if self._opened is not None:
            file, parsed = self._opened
            if self._tier is not None:
                num_bytes = self._counts.bytes_read - self._read_before
                self._tier.close(self._visit, file.fileno(), self._taken, num_bytes)
            parsed.close()
            self._opened = None

    start_epoch = close  # an earlier epoch may have ended within a file
