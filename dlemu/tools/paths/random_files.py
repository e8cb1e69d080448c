"""Files of random bytes, which no storage can compress or deduplicate."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dlemu.errors import RunError
from dlemu.storage.atomic import create

_AT_ONCE = 4
"""Files that are written at the same time."""
_PIECE = 16 << 20
"""Bytes of one write."""


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
