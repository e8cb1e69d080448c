"""Read files once, from the first byte to the last, with several readers.

The ways:

    mmap     map the file, and copy from it: each page is a fault, and the kernel reads ahead
    pread    read calls through the page cache
    odirect  read calls past the page cache
    cufile   cuFile, into the GPU's memory

Readers are threads. Each takes the next piece of the next file, so k readers read k places at once.
Bytes go into a buffer of each reader that the next piece overwrites: a model may be larger than the
host's memory.
"""

import mmap
import os
import resource
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from dlemu.errors import RunError
from dlemu.storage.gpu.cuda import DeviceMemory, Gpu
from dlemu.storage.gpu.cufile import DeviceBuffer, DeviceFile, Driver
from dlemu.storage.regular import aligned_buffer, open_sized
from dlemu.units import round_up

Way = Literal["mmap", "pread", "odirect", "cufile"]
WAYS: tuple[Way, ...] = get_args(Way)

_PIECE = 64 << 20
"""Bytes of a file that a reader takes at once."""
_CALL = 4 << 20
"""Bytes of a read call."""

_Read = Callable[[int, int], int]
"""Reads so many bytes at an offset of a file; returns how many came."""


def read_once(
    files: Sequence[Path],
    *,
    way: Way,
    num_readers: int,
    at: Callable[[int], object] = lambda num_bytes: None,
) -> tuple[int, float, float]:
    """Read all files once; return their bytes, the seconds, and the CPU seconds that it took.

    `at` is called with the bytes of each call.

    Raises:
        RunError: a file is not there, ends early, or cannot be read this way.
    """
    sizes = {path: path.stat().st_size for path in files}
    pieces = deque(
        (path, start, min(_PIECE, size - start))
        for path, size in sizes.items()
        for start in range(0, size, _PIECE)
    )
    with ExitStack() as stack:
        gpu = stack.enter_context(Gpu()) if way == "cufile" else None
        driver = stack.enter_context(Driver(files[0].parent)) if way == "cufile" else None

        def work() -> None:
            with ExitStack() as own:
                own.callback(pieces.clear)  # none is left, or no reader need go on
                _read_pieces(pieces, _opener(way, gpu, driver, own), at)

        threads = stack.enter_context(ThreadPoolExecutor(num_readers))
        stack.callback(pieces.clear)  # an interrupt must not wait for all files
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        try:
            for reader in [threads.submit(work) for _ in range(num_readers)]:
                reader.result()
        except OSError as error:
            raise RunError(f"{way}: {error}") from error
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return sum(sizes.values()), seconds, cpu


def _read_pieces(
    pieces: deque[tuple[Path, int, int]],
    open_file: Callable[[Path, ExitStack], _Read],
    at: Callable[[int], object],
) -> None:
    with ExitStack() as opened:
        current, read = Path(), None
        while True:
            try:
                path, start, length = pieces.popleft()
            except IndexError:  # another reader has taken the last one
                return
            if read is None or path != current:
                opened.close()
                current, read = path, open_file(path, opened)
            for offset in range(start, start + length, _CALL):
                wanted = min(_CALL, start + length - offset)
                if read(wanted, offset) != wanted:
                    raise RunError(f"{path} ended early, at byte {offset}")
                at(wanted)


def _opener(
    way: Way, gpu: Gpu | None, driver: Driver | None, stack: ExitStack
) -> Callable[[Path, ExitStack], _Read]:
    """Return what opens a file for one reader; `stack` holds what all its files share."""
    if way == "cufile":
        assert gpu is not None and driver is not None
        return _by_cufile(gpu, driver, stack)
    buffer = aligned_buffer(_CALL)
    target = np.frombuffer(buffer, np.uint8)

    def by_call(path: Path, opened: ExitStack) -> _Read:
        file, _ = open_sized(path, direct=way == "odirect", error=RunError)
        opened.callback(os.close, file)

        def read(num_bytes: int, offset: int) -> int:
            # O_DIRECT takes whole pages only, also of a file's end.
            return os.preadv(file, [buffer[: round_up(num_bytes)]], offset)

        return read

    def by_mapping(path: Path, opened: ExitStack) -> _Read:
        file, _ = open_sized(path, error=RunError)
        opened.callback(os.close, file)
        source = np.frombuffer(mmap.mmap(file, 0, prot=mmap.PROT_READ), np.uint8)

        def read(num_bytes: int, offset: int) -> int:
            np.copyto(target[:num_bytes], source[offset : offset + num_bytes])
            return num_bytes

        return read

    return by_mapping if way == "mmap" else by_call


def _by_cufile(gpu: Gpu, driver: Driver, stack: ExitStack) -> Callable[[Path, ExitStack], _Read]:
    gpu.use()
    memory = stack.enter_context(DeviceMemory(_CALL))
    buffer = stack.enter_context(DeviceBuffer(driver, memory.address, _CALL))

    def by_cufile(path: Path, opened: ExitStack) -> _Read:
        file = opened.enter_context(DeviceFile(driver, path))
        return lambda num_bytes, offset: file.read(buffer, round_up(num_bytes), offset)

    return by_cufile
