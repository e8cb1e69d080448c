"""Reads whole files of a checkpoint in pieces, and compares their bytes on request."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from dlemu.checkpoint.times import ReadTimes
from dlemu.checkpoint.writer import Stopped
from dlemu.datagen.assemble import Content
from dlemu.errors import DatasetError, RunError
from dlemu.storage.extents import ExtentReader, File
from dlemu.storage.regular import open_sized

_AGAIN = "write the checkpoints again"


class Reader:
    """Reads the files of one accelerator. Not thread-safe, but for `stop`.

    Args:
        reader: the storage's; it is closed in the end.
        content: where the bytes came from, to compare each; None reads and drops them.
    """

    def __init__(self, reader: ExtentReader, content: Content | None = None) -> None:
        self._reader, self._content = reader, content
        self._stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._reader.close()

    @property
    def bytes_done(self) -> int:
        """Bytes read so far, for another thread that shows progress; about right."""
        return self._reader.bytes_read

    def stop(self) -> None:
        """End the reading soon, from any thread: it raises Stopped after the next piece."""
        self._stopped = True

    def read_share(
        self,
        folder: Path,
        files: Sequence[tuple[str, int, int]],
        at: Callable[[str], object] = lambda path: None,
    ) -> ReadTimes:
        """Read an accelerator's files (name, bytes, sample); `at` gets the path of each before.

        Raises as `read` does.
        """
        total = ReadTimes()
        for name, num_bytes, sample in files:
            at(str(folder / name))
            total += self.read(folder / name, num_bytes, sample=sample)
        return total

    def read(self, path: Path, num_bytes: int, *, sample: int = 0) -> ReadTimes:
        """Read a file from end to end and return its times. `sample` is that of its writing.

        Raises:
            RunError: it is missing or cannot be read, has another size, or holds other bytes; the
                line says where.
            Stopped: `stop` was called.
        """
        begin = time.perf_counter()
        file = self._open(path, num_bytes)
        opened = time.perf_counter()
        try:
            if file.num_bytes != num_bytes:
                problem = f"{path} holds {file.num_bytes:,} bytes, {num_bytes:,} were written"
                raise RunError(problem, remedy=_AGAIN)
            compared = self._read_all(file, sample)
            read = time.perf_counter()
        except DatasetError as error:
            raise RunError(error.problem, remedy=_AGAIN) from None
        finally:
            self._reader.close_file(file)
        return ReadTimes(
            num_bytes=num_bytes,
            open=opened - begin,
            read=read - opened - compared,
            compare=compared,
            close=time.perf_counter() - read,
        )

    def _open(self, path: Path, num_bytes: int) -> File:
        try:
            number, size = open_sized(path, direct=self._reader.direct, error=RunError)
        except FileNotFoundError:
            raise RunError(f"{path} is missing", remedy=_AGAIN) from None
        except OSError as error:
            raise RunError(f"{path} cannot be read ({error.strerror})", remedy=_AGAIN) from None
        return File(str(path), number, size)

    def _read_all(self, file: File, sample: int) -> float:
        """Read a file; return the seconds of comparing."""
        content, reader, offset = self._content, self._reader, 0

        def check(got: memoryview) -> None:
            nonlocal offset
            if self._stopped:
                raise Stopped
            if content is not None:
                wanted = np.empty(len(got), np.uint8)
                content.fill(wanted, sample, offset)
                same = np.frombuffer(got, np.uint8) == wanted
                if not same.all():
                    first = offset + int(np.argmin(same))
                    raise RunError(f"{file.path} is damaged at byte {first:,}", remedy=_AGAIN)
            offset += len(got)

        before = reader.check_seconds
        reader.read(file, 0, [file.num_bytes], check=check)
        return 0.0 if content is None else reader.check_seconds - before
