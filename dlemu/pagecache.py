"""How much of files lies in the page cache, and how to get it out."""

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dlemu.errors import RunError

_PAGE = mmap.PAGESIZE
_THREADS = 8  # opening files waits for the storage, mostly
_FILES_AT_ONCE = 64  # that a thread takes: one at a time costs as much as the calls for the file
_CACHESTAT = 451  # system call since Linux 6.5; the number is the same on all but alpha
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


@dataclass(frozen=True)
class DropResult:
    """How files were dropped from the page cache, and whether that worked."""

    num_files: int
    seconds: float
    resident_after: float | None
    """Share (0-1) of their pages that stayed; None where the kernel does not tell."""


def cached_share(paths: Sequence[Path], *, max_files: int = 256) -> float | None:
    """Return the share (0-1) of the files' pages that memory would serve.

    More files than `max_files` are sampled at even distances, the same ones each time. None where
    the kernel does not tell, or where there is nothing to read.
    """
    step = max(1.0, len(paths) / max_files)
    sampled = [paths[int(index * step)] for index in range(min(len(paths), max_files))]
    return _add_up(_resident, sampled).share


def drop(paths: Iterable[Path | str]) -> DropResult:
    """Drop the files' pages from the page cache; needs no more than the right to read them.

    Pages that other processes have mapped or locked stay, and `resident_after` shows them. The
    paths are taken as they come, and not kept: there may be millions.
    """
    start = time.perf_counter()
    pages = _add_up(_drop, paths)
    return DropResult(pages.num_files, time.perf_counter() - start, pages.share)


def drop_all_caches(control: Path = Path("/proc/sys/vm/drop_caches")) -> None:
    """Drop all of the host's clean pages, directory entries and inodes, whoever needs them.

    Raises:
        RunError: this process may not.
    """
    os.sync()  # only clean pages can be dropped
    try:
        control.write_text("3\n", encoding="utf-8")
    except OSError as error:
        raise RunError(
            f"{control} cannot be written ({error.strerror}); run as root, or leave "
            "output.drop_all_caches=false: output.drop_caches drops the dataset's pages alone, and "
            "needs no rights"
        ) from error


def _drop(path: Path | str) -> tuple[int, int] | None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        resident = _resident_pages(file)
        if resident is None or resident[0]:
            # Pages that are still to be written stay; they are a new dataset's.
            os.fdatasync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            resident = _resident_pages(file)
        return resident
    finally:
        os.close(file)


def _resident(path: Path | str) -> tuple[int, int] | None:
    file = os.open(path, os.O_RDONLY)
    try:
        return _resident_pages(file)
    finally:
        os.close(file)


@dataclass
class _Pages:
    """Of files that were counted."""

    num_files: int = 0
    resident: int = 0
    pages: int = 0

    @property
    def share(self) -> float | None:
        return self.resident / self.pages if self.pages else None


def _add_up(
    count: Callable[[Path | str], tuple[int, int] | None], paths: Iterable[Path | str]
) -> _Pages:
    """Return the sum over the files, which threads take by turns."""
    total, left, lock = _Pages(), iter(paths), threading.Lock()

    def work(_: int) -> None:
        while taken := _take(left, lock):
            told = [count(path) for path in taken]
            with lock:
                total.num_files += len(taken)
                total.resident += sum(each[0] for each in told if each is not None)
                total.pages += sum(each[1] for each in told if each is not None)

    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(work, range(_THREADS)))
    return total


def _take(paths: Iterator[Path | str], lock: threading.Lock) -> list[Path | str]:
    with lock:
        return list(islice(paths, _FILES_AT_ONCE))


def _resident_pages(file: int) -> tuple[int, int] | None:
    """Return how many of a file's pages are in memory, and how many it has."""
    size = os.fstat(file).st_size
    pages = -(-size // _PAGE)
    if not pages:
        return 0, 0
    resident = resident_by_cachestat(file)
    if resident is None:
        resident = resident_by_mincore(file, size)
    return None if resident is None else (resident, pages)


def resident_by_cachestat(file: int) -> int | None:
    """Return how many pages of an open file are in memory, None where that cannot be asked."""
    whole = (ctypes.c_uint64 * 2)(0, 0)  # offset, length; 0 means to the end
    counts = (ctypes.c_uint64 * 5)()  # cached, dirty, in writeback, evicted, recently evicted
    failed = _LIBC.syscall(
        ctypes.c_long(_CACHESTAT), ctypes.c_long(file), whole, counts, ctypes.c_long(0)
    )
    return None if failed else int(counts[0])


def resident_by_mincore(file: int, size: int) -> int | None:
    """As `resident_by_cachestat`, on kernels before 6.5."""
    owner = os.fstat(file).st_uid
    if os.geteuid() not in (0, owner) and not os.access(f"/proc/self/fd/{file}", os.W_OK):
        return None  # the kernel then says that every page is there, so as not to tell secrets
    address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        return None
    try:
        pages = ctypes.create_string_buffer(-(-size // _PAGE))
        if _LIBC.mincore(address, size, pages):
            return None
        return sum(pages.raw.translate(_LOWEST_BIT))
    finally:
        _LIBC.munmap(address, size)


_LOWEST_BIT = bytes(byte & 1 for byte in range(256))  # the other bits of mincore are reserved
