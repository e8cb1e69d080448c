"""Files: opened for reading without waiting, and written atomically.

What can block a reader is refused: a FIFO, a socket. A file that is written gets its name when it
is whole; if its writing fails, nothing changes.

`aligned_buffer` gives page-aligned memory to read into, as O_DIRECT needs it, in huge pages where
there are any.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

import numpy as np

from dlemu.errors import VERIFY, DatasetError, DlemuError, system_error
from dlemu.units import PAGE_BYTES, round_up

READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
"""Flags of open(2): do not wait for a FIFO's writer, do not take a terminal."""

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}

NO_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)
"""Errors of a file system that does not take O_DIRECT."""
UNITS = tuple(PAGE_BYTES << power for power in range(5))
"""Sizes of sectors that are tried, 4 to 64 KiB."""
PARTIAL = ".partial"
"""Suffix of the temporary name, which lies beside the file."""
_PIECE_BYTES = 8 << 20
_REMOVED = (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR)
"""What may be in the way of a new file; unlink(2) says what is wrong with a folder."""

NOT_SYNCED: list[str] = []
"""A folder whose file system has refused to sync it, if one has in this process."""

Write = Callable[[memoryview, int, int], None]
"""`write(data, offset, num_bytes)`: the first `num_bytes` of `data` are the file's bytes there."""


def open_regular(
    path: str | Path, *, direct: bool = False, error: type[DlemuError] = DatasetError
) -> int:
    """Open a file for reading, `direct`: with O_DIRECT; return its descriptor.

    Raises:
        DlemuError: it is not a regular file; the type is `error`.
        OSError: it is missing, or cannot be opened.
    """
    return open_sized(path, direct=direct, error=error)[0]


def open_sized(
    path: str | Path,
    *,
    direct: bool = False,
    writes: bool = False,
    device: bool = False,
    error: type[DlemuError] = DatasetError,
) -> tuple[int, int]:
    """As `open_regular`; return the descriptor and the file's size in bytes.

    `writes`: open it for writing, too. `device`: take a block device as well; never with `writes`.
    """
    assert not (writes and device), "a device is never written"
    flags = READ | (os.O_RDWR if writes else 0) | (os.O_DIRECT if direct else 0)
    try:
        number = os.open(path, flags)
    except OSError:
        if not (device and Path(path).is_block_device()):
            check_regular(path, error=error)  # a socket cannot be opened, nor a FIFO with O_DIRECT
        raise
    status = os.fstat(number)
    is_device = device and stat.S_ISBLK(status.st_mode)
    if not (is_device or stat.S_ISREG(status.st_mode)):
        os.close(number)
        raise error(_line(path, status.st_mode))
    # With O_NONBLOCK, reads on some network file systems fail instead of waiting for a lock.
    os.set_blocking(number, True)
    return number, os.lseek(number, 0, os.SEEK_END) if is_device else status.st_size


def direct_if_possible(open_file: Callable[..., int], path: str | Path) -> tuple[int, bool]:
    """Open a file with O_DIRECT, or without on a file system that does not take it.

    `open_file` is `open_regular` or `create`. Returns the descriptor and whether it is with
    O_DIRECT.
    """
    try:
        return open_file(path, direct=True), True
    except OSError as error:
        if error.errno not in NO_DIRECT:
            raise
        return open_file(path, direct=False), False


def direct_unit(path: str | Path) -> int | None:
    """Return the bytes of which O_DIRECT takes multiples in a file: 4096, or more.

    None: it takes none. The kernel is asked (statx, STATX_DIOALIGN: Linux 6.1); if it does not
    say, reads are tried. A drive of larger sectors asks for more than a page.

    Raises:
        OSError: the file cannot be opened or read.
    """
    asked = _asked_unit(path)
    if asked is not None:
        return max(PAGE_BYTES, asked) if asked else None
    try:
        number = open_regular(path, direct=True)
    except OSError as error:
        if error.errno not in NO_DIRECT:
            raise
        return None
    try:
        return next((unit for unit in UNITS if _is_taken(number, unit)), None)
    finally:
        os.close(number)


def _is_taken(number: int, unit: int) -> bool:
    """Return whether O_DIRECT reads this many bytes."""
    try:
        os.preadv(number, [aligned_buffer(unit)], 0)
    except OSError as error:
        if error.errno not in NO_DIRECT:
            raise
        return False
    return True


_STATX_DIOALIGN = 0x2000
_OFFSET_ALIGN = 156
"""Where `struct statx` has stx_dio_offset_align (linux/stat.h)."""


def _asked_unit(path: str | Path) -> int | None:
    """Return what the kernel says of a file's offsets with O_DIRECT; 0: none. None: it is silent.

    Raises:
        OSError: the file is not there.
    """
    try:
        statx = ctypes.CDLL(None, use_errno=True).statx
    except AttributeError:  # an old C library
        return None
    found = (ctypes.c_uint32 * 64)()
    if statx(-100, os.fsencode(path), 0, _STATX_DIOALIGN, found):  # -100: AT_FDCWD
        number = ctypes.get_errno()
        if number in (errno.ENOSYS, errno.EPERM):  # not in this kernel, or a filter forbids it
            return None
        raise system_error(number, path)
    return int(found[_OFFSET_ALIGN // 4]) if found[0] & _STATX_DIOALIGN else None


def write_at(number: int, data: memoryview, offset: int) -> None:
    """Write all of `data` at an offset of an open file.

    What a drive of larger sectors does not take with O_DIRECT, a last piece of whole pages, goes
    through the page cache, and leaves it.
    """
    done = 0
    while done < len(data):
        try:
            done += os.pwrite(number, data[done : done + _PIECE_BYTES], offset + done)
        except OSError as error:
            odd = (offset + done) % UNITS[-1] or len(data) % UNITS[-1]
            is_direct = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_DIRECT
            if not (error.errno == errno.EINVAL and odd and is_direct):
                raise
            with _cached(number, os.O_WRONLY) as again:  # other threads go on with O_DIRECT
                write_at(again, data[done:], offset + done)
                os.fdatasync(again)
            return


def read_at(number: int, into: memoryview, offset: int) -> int:
    """Read into memory from an offset of an open file, past `write_at`'s kind of limit."""
    try:
        return os.preadv(number, [into], offset)
    except OSError as error:
        if error.errno != errno.EINVAL or not fcntl.fcntl(number, fcntl.F_GETFL) & os.O_DIRECT:
            raise
        with _cached(number, os.O_RDONLY) as again:
            return os.preadv(again, [into], offset)


@contextmanager
def _cached(number: int, mode: int) -> Iterator[int]:
    """Yield an open file once more, without O_DIRECT; then its clean pages leave the cache."""
    again = os.open(f"/proc/self/fd/{number}", mode | os.O_CLOEXEC)
    try:
        yield again
        os.posix_fadvise(again, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(again)


def count_linked(paths: Iterable[str]) -> int:
    """Return how many of these files have several names: hard links, or links to one of them.

    Files that cannot be looked at are left out.
    """
    found = []
    for path in {*paths}:
        with suppress(OSError):
            found.append(os.stat(path))
    names = Counter((each.st_dev, each.st_ino) for each in found)
    return sum(each.st_nlink > 1 or names[each.st_dev, each.st_ino] > 1 for each in found)


def cannot_open(path: str | Path, error: OSError) -> DatasetError:
    """Return what to tell of a dataset's file that could not be opened."""
    if isinstance(error, FileNotFoundError):
        return DatasetError(f"{path} is missing", remedy=VERIFY)
    remedy = "let this user read it" if isinstance(error, PermissionError) else VERIFY
    return DatasetError.of_system(error, path, "cannot be opened", remedy)


def read_regular(path: Path, *, error: type[DlemuError] = DatasetError) -> bytes:
    """Return the bytes of a file. Raises as `open_regular` does."""
    with open(open_regular(path, error=error), "rb", buffering=0) as file:
        return file.readall()


def check_regular(path: str | Path, *, error: type[DlemuError] = DatasetError) -> None:
    """Raise `error` if `path` is there and is not a regular file."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        raise error(_line(path, mode))


def _line(path: str | Path, mode: int) -> str:
    return f"{path} is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a file"


class _HugePages:
    """Memory in huge pages, from which buffers are cut one after the other.

    The kernel describes a buffer to the drive as runs of neighbouring pages: for 1 MiB that is 256
    pages of 4 KiB, or one huge page. Each run costs CPU time, and on a virtual drive much more.
    """

    _PAGE = 2 << 20

    def __init__(self) -> None:
        self.forget()
        # A forked child maps its own: shared with the parent, it would be copied in 4 KiB pages.
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Cut the next buffer from new memory."""
        self._lock = threading.Lock()
        self._left = memoryview(b"")

    def cut(self, num_bytes: int) -> memoryview:
        """Return zeroed memory of this process alone; it begins at a page, huge if possible."""
        taken = round_up(num_bytes)
        with self._lock:
            if taken > len(self._left):
                size = round_up(taken, self._PAGE)
                memory = mmap.mmap(-1, size + self._PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                with suppress(OSError):  # this kernel has no huge pages; pages of 4 KiB work, too
                    memory.madvise(mmap.MADV_HUGEPAGE)
                start = -np.frombuffer(memory, np.uint8).ctypes.data % self._PAGE
                self._left = memoryview(memory)[start : start + size]
            cut, self._left = self._left[:num_bytes], self._left[taken:]
        return cut


aligned_buffer = _HugePages().cut


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
    except BaseException as error:
        with suppress(OSError):  # it may not be there
            os.unlink(partial)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # write and fsync know a descriptor alone
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
        write_at(number, data, offset)
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
    """Make the names in a folder survive a power failure.

    Some file systems (FUSE, SMB) do not sync folders: `NOT_SYNCED` has one of them.

    Raises:
        OSError: the drive fails; it names the folder.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            error.filename = str(folder)
            raise
        NOT_SYNCED[:] = NOT_SYNCED or [str(folder)]
    finally:
        os.close(descriptor)
