"""Locks on folders, between the processes of one host.

The lock is the kernel's, on the folder itself (flock): it needs no file, and ends with the process.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_POLL_SECONDS = 0.05


def lock_folder(folder: Path, *, seconds: float = 0.0) -> int:
    """Lock a folder; return the descriptor that holds the lock, for `unlock_folder`.

    Where the file system has no locks, nothing is locked.

    Raises:
        BlockingIOError: another process holds the lock, and still does after `seconds`.
        OSError: the folder cannot be opened, or was renamed or removed meanwhile.
    """
    end = time.monotonic() + seconds
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        while not _try_lock(descriptor):
            if time.monotonic() >= end:
                raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
            time.sleep(_POLL_SECONDS)
        if not os.path.samestat(os.fstat(descriptor), os.stat(folder)):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def unlock_folder(descriptor: int) -> None:
    """Unlock a folder, also for child processes that inherited the descriptor."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


@contextmanager
def locked(folder: Path, *, seconds: float = 0.0) -> Iterator[None]:
    """Keep a folder locked. Raises as `lock_folder` does."""
    descriptor = lock_folder(folder, seconds=seconds)
    try:
        yield
    finally:
        unlock_folder(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Lock an open folder; return False if another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a network file system without locks
    return True
