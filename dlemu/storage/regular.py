"""Opens files that are to be read, and refuses what would hang its reader: a FIFO, a socket."""

import os
import stat
from pathlib import Path

from dlemu.errors import DatasetError, DlemuError

READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
"""Flags of an open that waits for no writer, and takes no terminal."""

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def open_regular(
    path: str | Path, flags: int = 0, *, error: type[DlemuError] = DatasetError
) -> int:
    """Return the descriptor of a file to be read.

    Raises:
        DlemuError: `error`: it is something else than a file.
        OSError: it is missing, or cannot be opened.
    """
    return open_sized(path, flags, error=error)[0]


def open_sized(
    path: str | Path, flags: int = 0, *, error: type[DlemuError] = DatasetError
) -> tuple[int, int]:
    """As `open_regular`; return the file's bytes, too."""
    try:
        number = os.open(path, READ | flags)
    except OSError:
        check_regular(path, error=error)  # a socket cannot be opened, nor a FIFO with O_DIRECT
        raise
    status = os.fstat(number)
    if not stat.S_ISREG(status.st_mode):
        os.close(number)
        raise error(_line(path, status.st_mode))
    # With the flag, reads of some network file systems fail where they should wait for a lock.
    os.set_blocking(number, True)
    return number, status.st_size


def read_regular(path: Path, *, error: type[DlemuError] = DatasetError) -> bytes:
    """Return the bytes of a file. Raises as `open_regular` does."""
    with open(open_regular(path, error=error), "rb", buffering=0) as file:
        return file.readall()


def check_regular(path: str | Path, *, error: type[DlemuError] = DatasetError) -> None:
    """Raise `error` if there is something else than a file at `path`; nothing is fine."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        raise error(_line(path, mode))


def _line(path: str | Path, mode: int) -> str:
    return f"{path} is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a file"
