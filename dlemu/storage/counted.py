"""Counts of what is read: by calls, by requests to a bucket, by the path to memory.

`CountedFile` counts for libraries that take an ordinary Python file.
"""

import io
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from time import perf_counter
from typing import Any

from dlemu.storage.files import cannot_open, open_regular

_STEPS = 16
"""Bins of each doubling of the duration: a quantile is right to 4 %."""
_LEAST = 1e-6
NUM_BINS = 32 * _STEPS
"""From 1 us to more than an hour."""


def bin_of(seconds: float) -> int:
    """Return the number of the bin that counts a duration."""
    return min(int(_STEPS * math.log2(max(seconds, _LEAST) / _LEAST)), NUM_BINS - 1)


def quantile_of(bins: Mapping[int, float], share: float) -> float | None:
    """Return the seconds that this share (0-1) did not exceed; `bins` has the count of each bin."""
    left = share * sum(bins.values())
    for number, count in sorted(bins.items()):
        left -= count
        if count and left <= 1e-9:
            return float(_LEAST * 2 ** ((number + 0.5) / _STEPS))
    return None


@dataclass(frozen=True, slots=True)
class Got:
    """Bytes of a file, and what they cost."""

    memory: memoryview
    object_bytes: int
    """Of the whole file."""
    seconds: float
    """Of the request that was answered."""
    retries: int = 0
    slow_downs: int = 0
    """Answers that ask for fewer requests."""


Get = Callable[..., Got]
"""`get(path, start, stop, given_up=event)` returns bytes of a file by its whole path."""


@dataclass(slots=True)
class GetCounts:
    """Requests for bytes (GET), of a reader or of many. Not thread-safe."""

    gets: int = 0
    """Requests that were answered; with retries and failures it is all that a server has seen."""
    retries: int = 0
    """Requests that were sent again, for whatever reason."""
    slow_downs: int = 0
    """Answers 503 or 429: the server asks for fewer requests."""
    received_bytes: int = 0
    needed_bytes: int = 0
    """Bytes that training asked for; more are received where ranges end behind them."""
    seconds: float = 0.0
    """Of all requests, each from its start to its last byte; retries and pauses are not in it."""
    _bins: Counter[int] = field(default_factory=Counter)

    def add(self, seconds: float, num_bytes: int) -> None:
        """Count an answered request."""
        self.gets += 1
        self.seconds += seconds
        self.received_bytes += num_bytes
        self._bins[bin_of(seconds)] += 1

    def quantile(self, share: float) -> float | None:
        """Return the seconds that this share (0-1) of the requests did not exceed."""
        return quantile_of(self._bins, share)

    def __add__(self, other: "GetCounts") -> "GetCounts":
        names = (each.name for each in fields(self))
        return GetCounts(*(getattr(self, name) + getattr(other, name) for name in names))


@dataclass(frozen=True)
class PathBytes:
    """Bytes by path, reads and writes together. p2pdma, nvidia_fs and compat are cuFile's paths."""

    p2pdma: int = 0
    nvidia_fs: int = 0
    compat: int = 0
    host: int = 0
    """Bytes that did not pass through cuFile; the code that read them counts them."""
    estimated: bool = False
    """Whether cuFile took several paths: it counts operations by path, but not bytes."""

    def __add__(self, other: "PathBytes") -> "PathBytes":
        return PathBytes(
            self.p2pdma + other.p2pdma,
            self.nvidia_fs + other.nvidia_fs,
            self.compat + other.compat,
            self.host + other.host,
            self.estimated or other.estimated,
        )

    @property
    def mode(self) -> str:
        """The path's name; several names are joined with "+"; "none" if nothing was read."""
        names = {
            "p2pdma": self.p2pdma,
            "nvidia-fs": self.nvidia_fs,
            "compat": self.compat,
            "host": self.host,
        }
        return "+".join(name for name, count in names.items() if count) or "none"


_MOST_AT_ONCE = 1 << 30
"""Bytes that one call asks for: Linux gives at most 2 GiB less a page, and h5py asks once."""


class ReadCounts:
    """Totals of all reads."""

    def __init__(self) -> None:
        self.bytes_read = self.num_reads = 0
        """Bytes, and the calls that read them. A look into the page cache is one as well."""
        self.read_seconds = self.copy_seconds = self.check_seconds = 0.0
        """Time spent in read calls, or waiting for them; copying out of buffers of the reader's
        own; and in checks of what was read."""


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
