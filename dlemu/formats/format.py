"""The interface of a file format: where samples lie in a file, and what stands around them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import google_crc32c
import numpy as np
from numpy.typing import NDArray

Read = Callable[[int, int], bytes]
"""`read(offset, length)` returns `length` bytes of a file from `offset`; fewer only at its end."""
Crc = Callable[[NDArray[np.uint8], int], int]
"""`crc(data, value)` extends the checksum `value` by `data`, and returns it."""


def crc32c(data: NDArray[np.uint8], value: int) -> int:
    """Extend a CRC-32C. Whoever takes a file may compute that of its content from this one."""
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
class FileSamples:
    """The samples that one file holds: their numbers and payload bytes, both int64 (samples,)."""

    samples: NDArray[np.int64]
    sizes: NDArray[np.int64]
    dtype: np.dtype[np.generic]
    dims: tuple[int, ...] = ()
    """Shape of a sample in elements; empty: (n, 1), where its bytes make n elements."""

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


class Format(Protocol):
    """A file format, as each module of this package. tests/formats/test_formats.py checks it."""

    def locate(self, read: Read, file_bytes: int, *, num_samples: int) -> Places:
        """Return where the payloads lie in a file of `file_bytes` bytes, by its own headers.

        Raises:
            DatasetError: the file is damaged or holds something else. The caller adds the path.
        """
        ...

    def places(self, sizes: NDArray[np.int64], *, element_bytes: int = 1) -> Places:
        """Return where the payloads lie in a file that `write` wrote.

        `sizes`: bytes of its samples, int64 (samples,).
        """
        ...

    def starts(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the payload's offset in each file of one sample that `write` wrote.

        `sizes` and the offsets are in bytes, int64 (files,).
        """
        ...

    def file_bytes(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of each file that `write` writes, int64 (files,).

        `sizes`: bytes of their samples, int64 (files, samples).
        """
        ...

    def check_head(self, head: bytes, file_bytes: int) -> None:
        """Check a file by its first bytes: PAGE_BYTES or more, or all of it.

        Loaders have read these bytes anyway, so this costs no read. Where a file is a sequence of
        records, the bytes may begin at any record, and `file_bytes` then counts from there.

        Raises:
            DatasetError: the file is of another format, or was cut. The caller adds the path.
        """
        ...

    def write(self, sink: Sink, file: FileSamples) -> None:
        """Write one file into `sink`, in order."""
        ...
