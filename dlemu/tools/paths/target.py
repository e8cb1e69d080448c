"""A target of a sweep: a folder, in which files are written and removed, or a block device.

A block device is read only. Each worker has a file of random bytes of its own, which no storage
can compress or deduplicate, or a part of the device.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np

from dlemu.errors import RunError
from dlemu.storage.atomic import create
from dlemu.storage.buffers import aligned_buffer
from dlemu.storage.gpu import cuda
from dlemu.storage.gpu.availability import availability
from dlemu.storage.owned import direct, disk_bytes, room, scratch
from dlemu.storage.regular import open_sized
from dlemu.tools.paths import uring
from dlemu.tools.paths.blocks import DataPath
from dlemu.units import PAGE_BYTES, counted, format_bytes

SECTOR = 512
"""Smallest logical block of a drive."""
_LARGEST_FILE = 2 << 30
"""Bytes per worker that published runs used for large blocks (gdsio -s 2048M)."""
_SMALLEST_FILE = 16 << 20
_AT_ONCE = 4
"""Files that are written at the same time."""
_PIECE = 16 << 20
"""Bytes of one write."""
OnEvent = Callable[[str], object]


def path_problem(path: DataPath, target: Path) -> str | None:
    """Return why a path cannot be measured on a target; None if it can."""
    if target.is_block_device():
        if path in ("host_buffered", "cufile"):
            return "a block device is read with O_DIRECT; name a folder on it"
    elif path == "cufile":
        found = availability(target)
        return None if found.usable else found.why
    else:
        try:
            if path != "host_buffered" and not direct(target):
                return "its file system does not open files with O_DIRECT"
        except OSError as error:
            raise RunError(
                f"target {target} cannot be written ({error.strerror})", remedy="name another"
            ) from None
    if path == "host_io_uring":
        return uring.problem()
    if path == "host_direct_gpu_copy":
        try:
            cuda.num_gpus()
        except RunError as error:
            return str(error)
    return None


def smallest_direct(target: Path) -> int:
    """Return the bytes of the smallest block that O_DIRECT reads on a target; it is tried."""
    with ExitStack() as stack:
        if target.is_block_device():
            file, _ = open_sized(target, direct=True, device=True)
        else:
            path = target / "dlemu_paths.probe"
            stack.enter_context(scratch(target, [path.name]))
            file = create(path, os.O_RDWR, direct=True)
            os.pwrite(file, aligned_buffer(PAGE_BYTES), 0)
        stack.callback(os.close, file)
        size = SECTOR
        while size < PAGE_BYTES:
            with suppress(OSError):  # EINVAL: not a multiple of the logical block
                os.preadv(file, [aligned_buffer(PAGE_BYTES)[:size]], size)
                return size
            size *= 2
    return PAGE_BYTES


@contextmanager
def parts_of(
    target: Path, num: int, unit: int, asked: int | None, first: str, on_event: OnEvent
) -> Iterator[tuple[tuple[str, ...], tuple[int, ...], int]]:
    """Yield a file for each of `num` workers, the byte where its part begins, and a part's bytes.

    Files are written into a folder, and removed at the end; their names begin with `first`. A
    part's bytes are a multiple of `unit`, and `asked` if that is not None.
    """
    if target.is_block_device():
        file, whole = open_sized(target, direct=True, device=True)
        os.close(file)
        size = min(asked or whole, whole // num) // unit * unit
        if not size:
            raise RunError(
                f"target {target} has {format_bytes(whole)}, too little for "
                f"{counted(num, 'part')} of {format_bytes(unit)}",
                remedy="lower workers, io_sizes or queue_depths",
            )
        yield (str(target),) * num, tuple(range(0, num * size, size)), size
        return
    names = [f"{first}.{index}" for index in range(num)]
    with scratch(target, names):
        free = disk_bytes(target)[1]
        chosen = max(unit, min(_LARGEST_FILE, max(_SMALLEST_FILE, free // 4 // num)))
        size = (asked or chosen) // unit * unit
        what = f"{counted(num, 'file')} of {format_bytes(size)}"
        room(target, num * size, "free some, or lower file_size or workers", what=what)
        on_event(f"writing {what} into {target}")
        files = tuple(str(target / name) for name in names)
        write_random_files([(file, size) for file in files])
        yield files, (0,) * num, size


def write_random_files(files: Sequence[tuple[str, int]]) -> None:
    """Write files, each with its own bytes; `files` has path and bytes of each.

    Raises:
        RunError: one cannot be written.
    """
    stopped = threading.Event()
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        try:
            written = [
                threads.submit(write_random_file, path, seed, size, stopped)
                for seed, (path, size) in enumerate(files)
            ]
            for each in written:
                each.result()
        finally:
            stopped.set()  # otherwise an interrupt would wait until all files are written


def write_random_file(
    path: str, seed: int, num_bytes: int, stopped: threading.Event | None = None
) -> None:
    """Write one file, unless `stopped` is set meanwhile, and sync it to the drive. Raises as above.

    Its bytes leave the page cache.
    """
    random = np.random.default_rng(seed)
    pool = random.integers(0, 1 << 64, _PIECE // 8, np.uint64)
    block = np.empty_like(pool)
    try:
        with open(path, "wb", buffering=0, opener=create) as file:
            for start in range(0, num_bytes, _PIECE):
                np.bitwise_xor(pool, random.integers(0, 1 << 64, dtype=np.uint64), out=block)
                data = block.view(np.uint8)[: num_bytes - start].data
                while data:
                    data = data[file.write(data) :]
                if stopped is not None and stopped.is_set():
                    return
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}", remedy="free space") from None
