"""How many pages of files are in the page cache, and how to drop them."""

import ctypes
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dlemu.errors import RunError
from dlemu.storage.files import open_sized
from dlemu.units import ceil_div

_PAGE = mmap.PAGESIZE
_THREADS = 8  # opening a file mostly waits for the storage
_FILES_AT_ONCE = 64  # that a thread takes: taking one by one costs as much as the system calls
_CACHESTAT = 451  # system call since Linux 6.5; the number is the same on all but alpha
_TRIALS = 3
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_LOWEST_BIT = bytes(byte & 1 for byte in range(256))  # the other bits of mincore are reserved

OnFile = Callable[[str], object]
"""Called with the path that the calling thread looks at next; with "" when it has finished."""


@dataclass
class Pages:
    """Counts of pages, over all files that were looked at."""

    num_files: int = 0
    resident: int = 0
    """Pages in memory; where pages were dropped, those that stayed."""
    pages: int = 0
    unknown: int = 0
    """Files for which the kernel does not say."""

    @property
    def share(self) -> float | None:
        """Share (0-1) of the pages that is in memory; None if the kernel does not say."""
        return self.resident / self.pages if self.pages else None


def cached_share(
    paths: Sequence[Path], *, max_files: int = 256, at: OnFile = lambda path: None
) -> float | None:
    """Return the share (0-1) of the files' pages that is in memory, as `Pages.share` does.

    Of more than `max_files` files, that many are looked at, evenly spaced and the same each time.

    Raises:
        DatasetError: one is not a regular file.
        OSError: one is missing, or cannot be opened.
    """
    step = max(1.0, len(paths) / max_files)
    sampled = [paths[int(index * step)] for index in range(min(len(paths), max_files))]
    return look(sampled, at=at).share


def look(paths: Iterable[Path | str], *, at: OnFile = lambda path: None) -> Pages:
    """Return how many of the files' pages are in memory."""
    return _add_up(_resident_pages, paths, at)


def drop(
    paths: Iterable[Path | str],
    *,
    at: OnFile = lambda path: None,
    each_second: Callable[[int], object] = lambda num_files: None,
) -> Pages:
    """Drop the files' pages from the page cache; the right to read the files is enough.

    Pages that other processes have mapped or locked stay, and are `resident` in what is returned.
    `each_second` is called with the number of files that are done.
    """
    return _add_up(_drop, paths, at, each_second)


def drop_all_caches(control: Path = Path("/proc/sys/vm/drop_caches")) -> None:
    """Drop all clean pages, directory entries and inodes of the host, other users' as well.

    Raises:
        RunError: this process has not the right to.
    """
    os.sync()  # only clean pages can be dropped
    try:
        control.write_text("3\n", encoding="utf-8")
    except OSError as error:
        raise RunError.of_system(
            error,
            control,
            "cannot be written",
            "run as root, or leave output.drop_all_caches=false: output.drop_caches drops the "
            "dataset's pages alone, and needs no rights",
        ) from error


def _drop(file: int, size: int) -> tuple[int, int] | None:
    resident = None
    for dirty in (False, True):
        if dirty:  # pages that are not written yet, as a new dataset has, are not dropped
            os.fdatasync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        resident = _resident_pages(file, size)
        if resident is not None and not resident[0]:
            break
    return resident


def _add_up(
    count: Callable[[int, int], tuple[int, int] | None],
    paths: Iterable[Path | str],
    at: OnFile,
    each_second: Callable[[int], object] = lambda num_files: None,
) -> Pages:
    """Return the sum over the files of what `count` returns; several threads call it.

    The threads are daemons, and waiting for them can be interrupted: opening a file on dead storage
    may never return.
    """
    total, left, lock = Pages(), iter(paths), threading.Lock()
    stopped, ended = threading.Event(), threading.Semaphore(0)
    errors: list[Exception] = []

    def work() -> None:
        try:
            while True:
                with lock:
                    taken = list(islice(left, _FILES_AT_ONCE))
                if not taken:
                    return
                counts = []
                for path in taken:
                    if stopped.is_set():
                        return
                    at(str(path))
                    file, size = open_sized(path)
                    try:
                        counts.append(count(file, size))
                    finally:
                        os.close(file)
                known = [each for each in counts if each is not None]
                with lock:
                    total.num_files += len(counts)
                    total.resident += sum(each[0] for each in known)
                    total.pages += sum(each[1] for each in known)
                    total.unknown += len(counts) - len(known)
        except Exception as error:
            errors.append(error)
            stopped.set()
        finally:
            at("")
            ended.release()

    for _ in range(_THREADS):
        threading.Thread(target=work, daemon=True).start()
    try:
        for _ in range(_THREADS):
            while not errors and not ended.acquire(timeout=1.0):
                each_second(total.num_files)
    finally:
        stopped.set()
    if errors:
        raise errors[0]
    return total


def _resident_pages(file: int, size: int) -> tuple[int, int] | None:
    """Return how many pages of an open file are in memory, and how many it has; None: not known."""
    pages = ceil_div(size, _PAGE)
    if not pages:
        return 0, 0
    resident = resident_by_cachestat(file)
    if resident:
        _SURE[os.fstat(file).st_dev] = True
    elif resident is None or not _cachestat_is_sure(file, size):
        resident = resident_by_mincore(file, size)
        if not resident and not _mincore_is_sure(file, size):
            return None
    return None if resident is None else (resident, pages)


_SURE: dict[int, bool] = {}
"""By device number: whether cachestat sees the pages of that file system."""
_MINCORE_SURE: dict[int, bool] = {}


def _cachestat_is_sure(file: int, size: int) -> bool:
    """Return whether cachestat would see a page of this file; found out once per file system.

    An overlay's file has its pages in a file of a layer below, and cachestat then answers 0
    whatever is in memory; file systems with a cache of their own (ZFS, GPFS, some of FUSE) do so
    as well.
    """
    device = os.fstat(file).st_dev
    if device not in _SURE:
        _SURE[device] = _sees(file, lambda: resident_by_cachestat(file), size)
    return _SURE[device]


def _mincore_is_sure(file: int, size: int) -> bool:
    """As `_cachestat_is_sure`, of mincore."""
    device = os.fstat(file).st_dev
    if device not in _MINCORE_SURE:
        _MINCORE_SURE[device] = _sees(file, lambda: resident_by_mincore(file, size), size)
    return _MINCORE_SURE[device]


def _sees(file: int, resident: Callable[[], int | None], size: int) -> bool:
    """Return whether `resident` counts a page that was read this moment, and drop it again.

    A page of the file itself is surely cached then, which takes no right to write.
    """
    was_in_memory = resident_by_mincore(file, size)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)  # that page alone, none ahead
    try:
        for _ in range(_TRIALS):  # the kernel may give up a page at any time
            os.pread(file, 1, 0)
            if resident():
                return True
        return False
    except OSError:  # the readers will say so
        return False
    finally:
        if not was_in_memory:
            os.posix_fadvise(file, 0, _PAGE, os.POSIX_FADV_DONTNEED)


def resident_by_cachestat(file: int) -> int | None:
    """Return how many pages of an open file are in memory; None if the kernel lacks the call."""
    whole = (ctypes.c_uint64 * 2)(0, 0)  # offset, length; 0 means to the end
    counts = (ctypes.c_uint64 * 5)()  # cached, dirty, in writeback, evicted, recently evicted
    failed = _LIBC.syscall(
        ctypes.c_long(_CACHESTAT), ctypes.c_long(file), whole, counts, ctypes.c_long(0)
    )
    return None if failed else int(counts[0])


def resident_by_mincore(file: int, size: int) -> int | None:
    """As `resident_by_cachestat`, for kernels before 6.5; None also without the right to ask."""
    owner = os.fstat(file).st_uid
    if os.geteuid() not in (0, owner) and not os.access(f"/proc/self/fd/{file}", os.W_OK):
        return None  # without write permission, mincore reports every page as resident
    address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        return None
    try:
        pages = ctypes.create_string_buffer(ceil_div(size, _PAGE))
        if _LIBC.mincore(address, size, pages):
            return None
        return sum(pages.raw.translate(_LOWEST_BIT))
    finally:
        _LIBC.munmap(address, size)
