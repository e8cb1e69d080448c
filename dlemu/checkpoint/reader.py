"""Reads whole files of a checkpoint in pieces, and compares their bytes on request."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dlemu.checkpoint.times import ReadTimes
from dlemu.checkpoint.writer import Stopped
from dlemu.datagen.content import Content
from dlemu.errors import RunError
from dlemu.storage.buffers import aligned_buffer
from dlemu.storage.regular import open_sized
from dlemu.units import round_up

_AGAIN = "write the checkpoints again"


class Reader:
    """Reads files one after the other. Not thread-safe, but for `stop`.

    Args:
        piece_bytes: bytes of a read call.
        io_depth: threads that read a file.
        direct: read with O_DIRECT.
        content: where the bytes came from, to compare each; None reads and drops them.
    """

    def __init__(
        self,
        *,
        piece_bytes: int,
        io_depth: int = 1,
        direct: bool = False,
        content: Content | None = None,
    ) -> None:
        self._piece_bytes, self._direct = round_up(piece_bytes), direct
        self._content = content
        self._buffers = [aligned_buffer(self._piece_bytes) for _ in range(io_depth)]
        self._pool = ThreadPoolExecutor(io_depth) if io_depth > 1 else None
        self.bytes_done = 0
        """Bytes read so far, for another thread that shows progress; about right."""
        self._stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._pool is not None:
            self._pool.shutdown()

    def stop(self) -> None:
        """End the reading soon, from any thread: the next read call raises Stopped."""
        self._stopped = True

    def read(self, path: Path, num_bytes: int, *, sample: int = 0) -> ReadTimes:
        """Read a file from end to end and return its times. `sample` is that of its writing.

        Raises:
            RunError: it is missing or cannot be read, has another size, or holds other bytes; the
                line says where.
            Stopped: `stop` was called.
        """
        begin = time.perf_counter()
        try:
            file, size = open_sized(path, direct=self._direct, error=RunError)
            try:
                opened = time.perf_counter()
                if size != num_bytes:
                    raise RunError(
                        f"{path} holds {size:,} bytes, {num_bytes:,} were written", remedy=_AGAIN
                    )
                compared = self._read_all(_Open(path, file, size, sample))
                read = time.perf_counter()
            finally:
                os.close(file)
        except FileNotFoundError:
            raise RunError(f"{path} is missing", remedy=_AGAIN) from None
        except OSError as error:
            raise RunError(f"{path} cannot be read ({error.strerror})", remedy=_AGAIN) from None
        return ReadTimes(
            num_bytes=num_bytes,
            open=opened - begin,
            read=read - opened - compared,
            compare=compared,
            close=time.perf_counter() - read,
        )

    def _read_all(self, file: "_Open") -> float:
        """Read a file with all threads; return the mean seconds of comparing."""
        depth = len(self._buffers)
        if self._pool is None:
            return self._read_part(file, 0)
        parts = [self._pool.submit(self._read_part, file, turn) for turn in range(depth)]
        try:
            return sum(part.result() for part in parts) / depth
        finally:  # the file is closed after that
            self._stopped = self._stopped or sys.exception() is not None
            wait(parts)

    def _read_part(self, file: "_Open", turn: int) -> float:
        """Read each piece whose turn it is; return the seconds of comparing."""
        buffer, compared = self._buffers[turn], 0.0
        step = len(self._buffers) * self._piece_bytes
        for offset in range(turn * self._piece_bytes, file.num_bytes, step):
            size = min(self._piece_bytes, file.num_bytes - offset)
            got = 0
            while got < size:
                if self._stopped:
                    raise Stopped
                # With O_DIRECT the end of the file ends the read, so it may ask for whole pages.
                end = round_up(size) if self._direct else size
                more = os.preadv(file.number, [buffer[got:end]], offset + got)
                if not more:
                    raise RunError(f"{file.path} ends at byte {offset + got:,}", remedy=_AGAIN)
                got += more
            self.bytes_done += size
            if self._content is not None:
                begin = time.perf_counter()
                self._compare(self._content, np.frombuffer(buffer, np.uint8)[:size], file, offset)
                compared += time.perf_counter() - begin
        return compared

    def _compare(
        self, content: Content, got: NDArray[np.uint8], file: "_Open", offset: int
    ) -> None:
        wanted = np.empty(len(got), np.uint8)
        content.fill(wanted, file.sample, offset)
        if not np.array_equal(got, wanted):
            first = offset + int(np.argmax(got != wanted))
            raise RunError(f"{file.path} is damaged at byte {first:,}", remedy=_AGAIN)


@dataclass(frozen=True, slots=True)
class _Open:
    """A file that is being read."""

    path: Path
    number: int
    num_bytes: int
    sample: int
