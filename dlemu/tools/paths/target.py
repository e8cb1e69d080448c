"""A target of a sweep: a folder, in which files are written and removed, or a block device.

A block device is read only. Each worker has a file of random bytes of its own, which no storage
can compress or deduplicate, or a part of the device.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import count, repeat
from pathlib import Path

import numpy as np

from dlemu.errors import RunError
from dlemu.storage.atomic import create
from dlemu.storage.gpu import cuda
from dlemu.storage.gpu.cufile import availability
from dlemu.storage.owned import disk_bytes, room, scratch
from dlemu.storage.regular import NO_DIRECT, aligned_buffer, open_sized
from dlemu.tools.paths import uring
from dlemu.tools.paths.blocks import Asked, DataPath, Work
from dlemu.tools.paths.cells import Place
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


def least_block(path: DataPath, target: Path) -> int | str:
    """Return the bytes of the smallest block that a path takes on a target, or why it takes none.

    Raises:
        RunError: the target cannot be written.
    """
    if path in ("host_buffered", "cufile") and target.is_block_device():
        return "a block device is read with O_DIRECT; name a folder on it"
    if path == "host_buffered":
        return SECTOR
    if path == "cufile":
        return availability(target).why or PAGE_BYTES
    if path == "host_io_uring" and (problem := uring.problem()):
        return problem
    if path == "host_direct_gpu_copy":
        try:
            cuda.num_gpus()
        except RunError as error:
            return str(error)
    return smallest_direct(target) or "its file system does not open files with O_DIRECT"


def smallest_direct(target: Path) -> int | None:
    """Return the bytes of the smallest block that O_DIRECT reads on a target; it is tried.

    None: the file system does not open files with it. Raises as above.
    """
    with ExitStack() as stack:
        if target.is_block_device():
            file, _ = open_sized(target, direct=True, device=True)
        else:
            path = target / "dlemu_paths.probe"
            stack.enter_context(scratch(target, [path.name]))
            try:
                file = create(path, os.O_RDWR, direct=True)
            except OSError as error:
                if error.errno in NO_DIRECT:
                    return None
                raise RunError(
                    f"target {target} cannot be written ({error.strerror})", remedy="name another"
                ) from None
            os.pwrite(file, aligned_buffer(PAGE_BYTES), 0)
        stack.callback(os.close, file)
        for size in (SECTOR, 1024, 2048):
            with suppress(OSError):  # EINVAL: not a multiple of the logical block
                os.preadv(file, [aligned_buffer(PAGE_BYTES)[:size]], size)
                return size
    return PAGE_BYTES


@contextmanager
def works_of(
    place: Place, num: int, unit: int, asked: int | None, first: str, on_event: OnEvent
) -> Iterator[tuple[Callable[[Asked], Work], int]]:
    """Yield what gives a cell the files of its workers, and the bytes that were written for it.

    Each of `num` workers has a file, whose name begins with `first` and which is removed at the
    end, or a part of the device. Its bytes are a multiple of `unit`: `asked`, or as many as fit.
    """
    target, names = place.target, [f"{first}.{index}" for index in range(num)]
    files, starts = tuple(str(target / name) for name in names), (0,) * num
    with ExitStack() as stack:
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
            files, starts = (str(target),) * num, tuple(range(0, num * size, size))
        else:
            stack.enter_context(scratch(target, names))
            free = disk_bytes(target)[1]
            chosen = max(unit, min(_LARGEST_FILE, max(_SMALLEST_FILE, free // 4 // num)))
            size = (asked or chosen) // unit * unit
            what = f"{counted(num, 'file')} of {format_bytes(size)}"
            room(target, num * size, "free some, or lower file_size or workers", what=what)
            on_event(f"writing {what} into {target}")
            write_random_files([(path, size) for path in files])

        def work(cell: Asked) -> Work:
            return Work(
                **vars(cell),
                files=files[: cell.workers],
                file_bytes=size // cell.io_size * cell.io_size,
                starts=starts,
                cpus=place.cpus,
            )

        yield work, 0 if target.is_block_device() else num * size


def write_random_files(files: Sequence[tuple[str, int]]) -> None:
    """Write files, each with its own bytes; `files` has path and bytes of each.

    Raises:
        RunError: one cannot be written.
    """
    stopped = threading.Event()
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        try:
            paths, sizes = zip(*files, strict=True)
            list(threads.map(write_random_file, paths, count(), sizes, repeat(stopped)))
        finally:
            stopped.set()  # otherwise an interrupt would wait until all files are written


def write_random_file(
    path: str, seed: int, num_bytes: int, stopped: threading.Event | None = None
) -> None:
    """Write one file, unless `stopped` is set meanwhile, and sync it to the drive. Raises as above.

    Its bytes leave the page cache.
    """
    random = np.random.default_rng(seed)
    try:
        with open(path, "wb", buffering=0, opener=create) as file:
            for start in range(0, num_bytes, _PIECE):
                piece = random.integers(0, 1 << 64, _PIECE // 8, np.uint64).view(np.uint8)
                data = piece[: num_bytes - start].data
                while data:
                    data = data[file.write(data) :]
                if stopped is not None and stopped.is_set():
                    return
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}", remedy="free space") from None
