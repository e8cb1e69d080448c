"""Atomic writes: a file gets its name when it is whole; if its writing fails, nothing changes."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from dlemu.storage.regular import direct_if_possible

PARTIAL = ".partial"
"""Suffix of the temporary name, which lies beside the file."""
_PIECE_BYTES = 8 << 20
_REMOVED = (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR)
"""What may be in the way of a new file; unlink(2) says what is wrong with a folder."""

Write = Callable[[memoryview, int, int], None]
"""`write(data, offset, num_bytes)`: the first `num_bytes` of `data` are the file's bytes there."""


def partial_path(path: Path) -> Path:
    """Return the temporary name of a file that is being written."""
    return path.with_name(f"{path.name}{PARTIAL}")


def create(path: str | Path, flags: int = 0, *, direct: bool = False) -> int:
    """Open a new file for writing, with more flags of open(2); return its descriptor.

    `direct`: with O_DIRECT.

    What has its name is removed: a file that a killed process left, or a link that another user
    made, through which a foreign file would be overwritten. Also an `opener` of `open`.
    """
    flags = (flags & ~os.O_TRUNC) | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    flags |= os.O_DIRECT if direct else 0
    if not flags & os.O_RDWR:
        flags |= os.O_WRONLY
    try:
        return os.open(path, flags, 0o666)
    except FileExistsError:
        with suppress(FileNotFoundError):  # another rank has removed it meanwhile
            if stat.S_IFMT(os.lstat(path).st_mode) not in _REMOVED:
                raise
            os.unlink(path)
    return os.open(path, flags, 0o666)


def append_whole(file: FileIO, data: bytes | memoryview, *, sync: bool = True) -> None:
    """Append to an open unbuffered file; if that fails, the file stays as it was.

    With `sync`, the content is on the drive at the end.
    """
    size = file.seek(0, os.SEEK_END)
    try:
        while data:
            data = data[file.write(data) :]
        if sync:
            os.fsync(file.fileno())
    except BaseException:
        file.truncate(size)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path; the file that the block writes there, by `create`, becomes `path`.

    If the block fails, the temporary file is removed and `path` stays as it was.
    """
    partial = partial_path(path)
    try:
        yield partial
        os.rename(partial, path)
    except BaseException:
        with suppress(OSError):  # it may not be there
            os.unlink(partial)
        raise


@contextmanager
def writing(path: Path, *, direct: bool, sync: bool = True) -> Iterator[Write]:
    """Yield what writes a file, which becomes `path` in the size that was written.

    `direct`: nothing of it stays in the page cache; data are whole aligned pages then. `sync`: it
    is on the drive in the end. If the block fails, `path` stays as it was.
    """
    end = 0

    def write(data: memoryview, offset: int, num_bytes: int) -> None:
        nonlocal end
        done = 0
        while done < len(data):
            done += os.pwrite(number, data[done : done + _PIECE_BYTES], offset + done)
        end = max(end, offset + num_bytes)

    with replacing(path) as partial:
        number, is_direct = direct_if_possible(create, partial) if direct else (create(partial), 0)
        try:
            yield write
            os.ftruncate(number, end)  # O_DIRECT wrote the last page whole
            stays = direct and not is_direct
            if sync or stays:
                os.fsync(number)
            if stays:  # only clean pages can be dropped
                os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(number)


def write_atomically(path: Path, data: bytes | memoryview, *, sync: bool = True) -> None:
    """Write a file; with `sync`, its content is on the drive before it gets its name."""
    with replacing(path) as partial, open(partial, "wb", opener=create) as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
