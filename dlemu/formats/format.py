"""What a file format has to say: where samples lie in a file, and what stands around them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Read = Callable[[int, int], bytes]
"""`read(offset, length)` returns a file's bytes from there on; fewer only at the file's end."""
Crc = Callable[[NDArray[np.uint8], int], int]
"""`crc(data, value)` returns the checksum of what had `value` before, followed by `data`."""


@dataclass(frozen=True)
class Places:
    """Where the payloads lie in one file, in bytes.

    `offsets` and `lengths` are int64 (samples,). Where `interleaved` is k > 1 the file is one array
    with the sample axis last: all offsets are the array's start, and sample i is every k-th
    element of `element_bytes` from element i on.
    """

    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    interleaved: int = 1
    element_bytes: int = 1


@dataclass(frozen=True)
class FileSamples:
    """The samples that one file holds: numbers and payload bytes, int64 (samples,) both."""

    samples: NDArray[np.int64]
    sizes: NDArray[np.int64]
    dtype: np.dtype[np.generic]
    dims: tuple[int, ...] = ()
    """Shape of a sample in elements; empty: one column of as many elements as its bytes make."""
    older_name: bool = True
    """HDF5: whether `records`, DLIO's older name, leads to the samples too."""

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of each sample, in formats whose files are one array."""
        return self.dims or (int(self.sizes[0]) // self.dtype.itemsize, 1)


class Sink(Protocol):
    """Takes a file from its first byte to its last: the generator writes it, `verify` compares."""

    def write(self, data: bytes) -> None:
        """Take these bytes."""
        ...

    def payload(self, sample: int, num_bytes: int, crc: Crc | None = None, value: int = 0) -> int:
        """Take the content of a sample; return the checksum that goes on from `value`."""
        ...

    def interleaved(self, file: FileSamples, crc: Crc | None = None, value: int = 0) -> int:
        """Take the content of all samples, an element of each in turn; return the checksum."""
        ...

    def reserve(self, num_bytes: int) -> None:
        """Leave room at the file's start for what is known only at its end, a whole page or more.

        It comes before everything else, and `fill` at the end.
        """
        ...

    def fill(self, data: bytes) -> None:
        """Take the bytes that room was left for."""
        ...


class Format(Protocol):
    """A file format. The modules of this package are such formats themselves."""

    streamed: bool
    """Files of many samples are read from end to end; else any sample is read alone."""

    def locate(self, read: Read, file_bytes: int, *, num_samples: int) -> Places:
        """Return where the payloads lie in a file of `file_bytes` bytes, whoever wrote it.

        Raises:
            DatasetError: the file is damaged or holds something else; no path, the caller has it.
        """
        ...

    def places(self, sizes: NDArray[np.int64], *, element_bytes: int = 1) -> Places:
        """Return where the payloads lie in a file that `write` wrote, from their sizes alone."""
        ...

    def starts(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where the payload begins in each of many such files of one sample."""
        ...

    def file_bytes(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of each file that `write` writes; sizes are (files, samples)."""
        ...

    def check_head(self, head: bytes, file_bytes: int) -> None:
        """Check a file by its first piece, PAGE_BYTES or more (or all of it), at no extra read.

        Raises:
            DatasetError: it is no file of this format, or was cut; no path, the caller has it.
        """
        ...

    def write(self, sink: Sink, file: FileSamples) -> None:
        """Hand one file to `sink`."""
        ...
