"""A file that counts what is read from it, for libraries that take an ordinary Python file."""

import io
import os
from collections.abc import Callable
from time import perf_counter
from typing import Any

from dlemu.storage.regular import cannot_open, open_regular

_MOST_AT_ONCE = 1 << 30
"""Bytes that one call asks for: Linux gives at most 2 GiB less a page, and h5py asks once."""


class ReadCounts:
    """What reading came to."""

    def __init__(self) -> None:
        self.bytes_read = self.num_reads = 0
        """Bytes, and the calls that read them. A look into the page cache is one as well."""
        self.read_seconds = 0.0
        """Time spent in read calls, or waiting for them."""


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
