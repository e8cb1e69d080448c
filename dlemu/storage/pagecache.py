"""How much of files lies in the page cache, and how to get it out."""

import ctypes
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dlemu.errors import RunError
from dlemu.storage.regular import open_sized
from dlemu.units import ceil_div

_PAGE = mmap.PAGESIZE
_THREADS = 8  # opening files waits for the storage, mostly
_FILES_AT_ONCE = 64  # that a thread takes: one at a time costs as much as the calls for the file
_CACHESTAT = 451  # system call since Linux 6.5; the number is the same on all but alpha
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


OnFile = Callable[[str], object]
"""Told which file the calling thread comes to, "" when it has no more to do."""


@dataclass
class Pages:
    """Of files that were looked at."""

    num_files: int = 0
    resident: int = 0
    """Pages in memory: before nothing was done to them, or after they were dropped."""
    pages: int = 0
    unknown: int = 0
    """Files of which the kernel does not tell."""

    @property
    def share(self) -> float | None:
        """Share (0-1) of the pages that is in memory; None where the kernel does not tell."""
        return self.resident / self.pages if self.pages else None


def cached_share(
    paths: Sequence[Path], *, max_files: int = 256, at: OnFile = lambda path: None
) -> float | None:
    """Return the share (0-1) of the files' pages that memory would serve.

    More files than `max_files` are sampled at even distances, the same ones each time. None where
    the kernel does not tell, or where there is nothing to read.

    Raises:
        DatasetError: one is no file.
        OSError: one is missing, or cannot be opened.
    """
    step = max(1.0, len(paths) / max_files)
    sampled = [paths[int(index * step)] for index in range(min(len(paths), max_files))]
    return look(sampled, at=at).share


def look(paths: Iterable[Path | str], *, at: OnFile = lambda path: None) -> Pages:
    """Return how much of the files is in the page cache. Raises as `cached_share` does."""
    return _add_up(_resident, paths, at)


def drop(
    paths: Iterable[Path | str],
    *,
    at: OnFile = lambda path: None,
    each_second: Callable[[int], object] = lambda num_files: None,
) -> Pages:
    """Drop the files' pages from the page cache; needs no more than the right to read them.

    Pages that other processes have mapped or locked stay; they are the resident ones of what is
    returned. The paths are taken as they come, and not kept: there may be millions. `each_second`
    is told how many files are done. Raises as `cached_share` does.
    """
    return _add_up(_drop, paths, at, each_second)


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
    file, size = open_sized(path)
    try:
        resident = _resident_pages(file, size)
        if resident is None or resident[0]:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            resident = _resident_pages(file, size)
        if resident is None or resident[0]:
            # Pages that are still to be written stay; they are a new dataset's.
            os.fdatasync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            resident = _resident_pages(file, size)
        return resident
    finally:
        os.close(file)


def _resident(path: Path | str) -> tuple[int, int] | None:
    file, size = open_sized(path)
    try:
        return _resident_pages(file, size)
    finally:
        os.close(file)


def _add_up(
    count: Callable[[Path | str], tuple[int, int] | None],
    paths: Iterable[Path | str],
    at: OnFile,
    each_second: Callable[[int], object] = lambda num_files: None,
) -> Pages:
    """Return the sum over the files, which threads take by turns.

    Nothing waits for a thread whose file never opens: neither an interrupt, nor the process's end.
    """
    total, left, lock = Pages(), iter(paths), threading.Lock()
    stopped, ended = threading.Event(), threading.Semaphore(0)
    errors: list[Exception] = []

    def work() -> None:
        try:
            while taken := _take(left, lock):
                told = []
                for path in taken:
                    if stopped.is_set():
                        return
                    at(str(path))
                    told.append(count(path))
                known = [each for each in told if each is not None]
                with lock:
                    total.num_files += len(told)
                    total.resident += sum(each[0] for each in known)
                    total.pages += sum(each[1] for each in known)
                    total.unknown += len(told) - len(known)
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


def _take(paths: Iterator[Path | str], lock: threading.Lock) -> list[Path | str]:
    with lock:
        return list(islice(paths, _FILES_AT_ONCE))


def _resident_pages(file: int, size: int) -> tuple[int, int] | None:
    """Return how many pages of an open file are in memory, and how many it has."""
    pages = ceil_div(size, _PAGE)
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
        pages = ctypes.create_string_buffer(ceil_div(size, _PAGE))
        if _LIBC.mincore(address, size, pages):
            return None
        return sum(pages.raw.translate(_LOWEST_BIT))
    finally:
        _LIBC.munmap(address, size)


_LOWEST_BIT = bytes(byte & 1 for byte in range(256))  # the other bits of mincore are reserved
