"""The interface of a file format: where samples lie in a file, and what stands around them."""

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from dlemu.errors import VERIFY, DatasetError, DlemuError, in_short
from dlemu.storage.counted import CountedFile
from dlemu.units import N

Read = Callable[[int, int], bytes]
"""`read(offset, length)` returns `length` bytes of a file from `offset`; fewer only at its end."""
Crc = Callable[[NDArray[np.uint8], int], int]
"""`crc(data, value)` extends the checksum `value` by `data`, and returns it."""
Field = tuple[int, Callable[[memoryview], object]]
"""Bytes of the next field of a file, and the function that takes them, in parts."""
Way = Literal["stream", "random"]
"""How files of several samples are read: from end to end, or each sample alone."""
TO_THE_END = 1 << 62
"""Bytes of a last field that is not looked at."""
HOW_MANY = "dataset.num_samples_per_file says how many there are"
"""The remedy for a file of another number of samples."""


def crc32c(data: NDArray[np.uint8], value: int) -> int:
    """Extend a CRC-32C. That of a file's content may be computed from this one."""
    return google_crc32c.extend(value, data)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Places:
    """Where the payloads lie in one file.

    `offsets` and `lengths` are in bytes, int64 (samples,). If `interleaved` is k > 1, the file is
    one array whose last axis are its k samples. Then all offsets are the array's start, and sample
    i is every k-th element (of `element_bytes`) from element i on.
    """

    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    interleaved: int = 1
    element_bytes: int = 1

    @classmethod
    def in_turn(cls, sizes: NDArray[np.int64], start: int = 0) -> "Places":
        """Return the places of payloads that follow one another from `start` on."""
        return cls(offsets=start + np.cumsum(sizes) - sizes, lengths=sizes)


@dataclass(frozen=True)
class Arrays:
    """What a file of arrays says of itself: nothing there tells what a sample is."""

    shape: tuple[int, ...]
    """Of the array that holds the samples."""
    num_bytes: int
    num_labels: int = 0
    """First axis of an array beside it that has fewer axes: one label for each sample."""
    is_chunked: bool = False
    """Whether only the format's library finds the array's bytes."""


@dataclass(frozen=True)
class FileSamples:
    """The samples that one file holds: their numbers and payload bytes, both int64 (samples,)."""

    samples: NDArray[np.int64]
    sizes: NDArray[np.int64]
    dtype: np.dtype[np.generic]
    dims: tuple[int, ...] = ()
    """Shape of a sample in elements; empty: (n, 1), where its bytes make n elements."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the number and the payload bytes of each sample."""
        return zip(self.samples.tolist(), self.sizes.tolist(), strict=True)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of each sample in elements, in formats whose files are one array."""
        return self.dims or (int(self.sizes[0]) // self.dtype.itemsize, 1)


def varint(value: int) -> bytes:
    """Return a number as protocol buffers and Thrift write it: seven bits in each byte."""
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


class Sink(Protocol):
    """Takes a file from its first byte to its last: datagen writes it, `verify` compares it."""

    def content(self, sample: int, num_bytes: int) -> NDArray[np.uint8]:
        """Return the content of a sample, which a format writes in another form."""
        ...

    def write(self, data: bytes) -> None:
        """Take these bytes."""
        ...

    def payload(self, sample: int, num_bytes: int, crc: Crc | None = None, value: int = 0) -> int:
        """Take the content of a sample; return the checksum `value` extended by it."""
        ...

    def interleaved(self, file: FileSamples, crc: Crc | None = None, value: int = 0) -> int:
        """Take the content of all samples, one element of each in turn; return the checksum."""
        ...

    def reserve(self, num_bytes: int) -> None:
        """Leave room at the file's start, a page or more, for bytes that are known only at its end.

        Call it before everything else; the last call is then `fill`.
        """
        ...

    def fill(self, data: bytes) -> None:
        """Take the bytes for the room that `reserve` left."""
        ...


class ReadOnly(io.RawIOBase):
    """A file object for libraries, whose bytes come from `read`."""

    def __init__(self, read: Read, num_bytes: int) -> None:
        self._read, self._num_bytes, self._at = read, num_bytes, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        to = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence, self._num_bytes)
        if to < 0:
            raise OSError("a place before the file's first byte")
        self._at = to
        return to

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        data = self._read(self._at, min(len(buffer), max(0, self._num_bytes - self._at)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes, fewer at the file's end: a damaged size takes no memory."""
        left = max(0, self._num_bytes - self._at)
        data = self._read(self._at, left if size < 0 else min(size, left))
        self._at += len(data)
        return data


class Sum:
    """A checksum that is computed part by part."""

    def __init__(self, extend: Callable[[Any, int], int]) -> None:
        """`extend(data, value)` extends the checksum `value` by `data`."""
        self.value = 0
        self._extend = extend

    def take(self, data: memoryview) -> None:
        """Extend it by these bytes."""
        self.value = self._extend(data, self.value)


class Checksum:
    """Checks a file: it is called with the file's bytes from the first on, in order.

    A generator of the format yields field after field, and raises DatasetError on a wrong checksum.
    """

    def __init__(self, path: str, fields: Iterator[Field]) -> None:
        self.at = 0
        """Bytes taken so far."""
        self._path, self._fields = path, fields
        self._want, self._take = next(fields)

    def __call__(self, data: memoryview) -> None:
        self.at += len(data)
        while len(data):
            part = data[: self._want]
            self._take(part)
            data = data[len(part) :]
            self._want -= len(part)
            while self._want == 0:
                try:
                    self._want, self._take = next(self._fields)
                except DatasetError as error:
                    raise error.within(self._path, VERIFY) from None


class Parsed:
    """A file of samples that a library has opened, or that is read by its places."""

    def __init__(self, file: CountedFile, num_samples: int) -> None:
        self._file: Any = file
        """The open file that `close` closes."""

    def sample(self, place: int) -> NDArray[np.uint8]:
        """Return the bytes of the file's sample number `place`, from 0, or raise DatasetError."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Streamed(Parsed):
    """A file that is read from its start: samples are asked for in order, others are skipped."""

    def __init__(self, file: CountedFile, samples: Iterator[bytes]) -> None:
        self._file, self._samples, self._next = file, samples, 0

    def sample(self, place: int) -> NDArray[np.uint8]:
        for data in self._samples:
            self._next += 1
            if self._next == place + 1:
                return np.frombuffer(data, np.uint8)
        raise DatasetError(
            f"{self._file.path} holds {self._next} samples, {place + 1} are wanted", remedy=VERIFY
        )


class _Located(Parsed):
    """A file that is read by the places of its samples: there is nothing to parse."""

    def __init__(self, file: CountedFile, num_samples: int, format: "Format") -> None:
        super().__init__(file, num_samples)
        size = os.fstat(file.fileno()).st_size
        try:
            self._places = format.locate(self._read, size, num_samples=num_samples, path=file.path)
        except DatasetError as error:
            raise damaged(file, error) from None

    def sample(self, place: int) -> NDArray[np.uint8]:
        start, length = self._places.offsets[place], self._places.lengths[place]
        return np.frombuffer(self._read(int(start), int(length)), np.uint8)

    def _read(self, offset: int, length: int) -> bytes:
        self._file.seek(offset)
        data: bytes = self._file.read(length)
        return data


def damaged(file: CountedFile, error: Exception) -> DatasetError:
    """Return the error for a file in which a library finds one."""
    why = error.problem if isinstance(error, DlemuError) else in_short(error)
    return DatasetError(f"{file.path} is damaged: {why}", remedy=VERIFY)


class Format(ABC):
    """A file format; a module names an instance of it FORMAT. `dlemu.contract` checks it.

    It neither opens nor reads a file, and keeps nothing between two calls. Sizes, offsets and bytes
    are counted in bytes. What is not overridden holds for `head_bytes` of anything, then the
    samples as records, one behind the other, then `tail_bytes` of anything. A record is `lead`, the
    payload, and `gap`.
    """

    suffix = ""
    """End of the files' names, without its dot; "": the format's name, or the last part of it."""
    other_suffixes: tuple[str, ...] = ()
    """Ends of other tools' names for such files, in small letters; "": names without an end."""
    head_bytes = tail_bytes = 0
    ways: tuple[Way, ...] = ("stream",)
    """How files of several samples can be read, the usual way first."""
    why_equal = "the file is one array, its samples are equal"
    """Why the samples of one file must have one size; "": they may differ."""
    needs = ""
    """A package without which such files are neither written nor read."""
    in_columns = False
    """Whether a sample is a row, scattered over columns: see `parquet`, the only such format."""
    by_dali = False
    """Whether DALI has a reader for such files."""
    counts_by_reading = False
    """Whether `count` reads all parts of a file, where no index lies beside it."""
    is_picture = False
    """Whether a file of one sample is a picture, which PIL and DALI decode."""

    def of(self, layout: Any) -> "Format":
        """Return the format of the files of a layout (`dlemu.dataset.layout.Layout`)."""
        return self

    def stored(self, content: bytes, num_bytes: int) -> bytes:
        """Return the payload of `num_bytes` of a sample with this content: it, but for text."""
        return content

    @abstractmethod
    def locate(self, read: Read, file_bytes: int, *, num_samples: int, path: str = "") -> Places:
        """Return where the payloads lie in a file of `file_bytes` bytes, by its own headers.

        `path` is the file's, for formats with indexes beside it.

        Raises:
            DatasetError: the file is damaged or holds something else. The caller adds the path, and
                where it names no remedy that for a damaged file.
        """

    def count(self, read: Read, file_bytes: int, *, path: str = "") -> int | None:
        """Return how many samples a file of another tool holds; None: nothing there tells.

        It may open an index beside the file: `locate` finds out whether that is true.

        Raises:
            DatasetError: the file is damaged or holds something else. The caller adds the path, and
                where it names no remedy that for a damaged file.
        """
        return None

    def arrays(self, read: Read, file_bytes: int) -> Arrays | None:
        """Return the array of a file of another tool; None: files of this format are no arrays.

        Raises:
            DatasetError: the file is damaged or holds something else. The caller adds the path, and
                where it names no remedy that for a damaged file.
        """
        return None

    @abstractmethod
    def write(self, sink: Sink, file: FileSamples) -> None:
        """Write one file into `sink`, in order."""

    def places(self, sizes: NDArray[np.int64], *, element_bytes: int = 1) -> Places:
        """Return where the payloads lie in a file that `write` wrote.

        `sizes`: of its samples, int64 (samples,).
        """
        ends = np.cumsum(self.record_bytes(sizes)) - self.gap(sizes)
        return Places(self.head_bytes + ends - sizes, sizes)

    def starts(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the payload's offset in each file of one sample that `write` wrote.

        `sizes` and the offsets: int64 (files,).
        """
        return self.head_bytes + self.lead(sizes)

    def file_bytes(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of each file that `write` writes, int64 (files,).

        `sizes`: of their samples, int64 (files, samples).
        """
        records: NDArray[np.int64] = self.record_bytes(sizes).sum(axis=1)
        return self.head_bytes + records + self.tail_bytes

    def record_bytes(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of each sample's record, in the shape of `sizes`."""
        return self.lead(sizes) + sizes + self.gap(sizes)

    def lead(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes from each record's start to its payload, in the shape of `sizes`."""
        return np.zeros_like(sizes)

    def check_head(self, head: bytes, file_bytes: int) -> None:  # noqa: B027
        """Check a file that `write` wrote by its first bytes: PAGE_BYTES or more, or all of it.

        Loaders have read these bytes anyway, so this costs no read. Where a file is a sequence of
        records, the bytes may begin at any record, and `file_bytes` then counts from there.

        Raises:
            DatasetError: the file is of another format, or was cut. The caller adds the path, and
                where it names no remedy that for a damaged file.
        """

    def gap(self, end: N) -> N:
        """Return the bytes between a payload that ends at `end` and the next record.

        For an array, of each; a record's start counts as 0.
        """
        return end * 0

    def index_paths(self, path: str) -> tuple[str, ...]:
        """Return the paths of a file's indexes; it and they are below the data folder."""
        return ()

    def indexes(self, sizes: NDArray[np.int64]) -> tuple[bytes, ...]:
        """Return the content of a file's indexes; `sizes`: of its samples, int64 (samples,)."""
        return ()

    def index_bytes(self, sizes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the bytes of each index of each file, int64 (files,) for each of `index_paths`.

        `sizes`: of their samples, int64 (files, samples).
        """
        return []

    def checksum(self) -> Iterator[Field] | None:
        """Yield the fields of a file that has checksums from its first byte on; None: it has none.

        Raises:
            DatasetError: a checksum is wrong. The caller adds the path.
        """
        return None

    def parse(self, file: CountedFile, num_samples: int) -> Parsed:
        """Return a file that is read as frameworks do (reader.decode=library), by a library.

        Raises:
            DatasetError: the file is damaged. The line begins with its path.
        """
        return _Located(file, num_samples, self)
