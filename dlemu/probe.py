"""What storage gives when many read at once: the rate that a slow run is compared with."""

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from dlemu.storage import aligned_buffer

_PIECE = 1 << 20
_SETTLE_SHARE = 0.25
"""Part of the time that is left out, in which readers start and queues fill."""


def probe_rate(
    paths: Sequence[Path], *, num_readers: int, seconds: float, seed: int = 0
) -> float | None:
    """Return bytes per second that `num_readers` threads get from random 1 MiB pieces of files.

    Reads bypass the page cache where the file system lets them; None where nothing could be read.
    """
    counts = [0] * num_readers
    ended = threading.Event()

    def read(reader: int) -> None:
        generator = np.random.default_rng((seed, reader))
        buffer = aligned_buffer(_PIECE)
        while not ended.is_set():
            path = paths[int(generator.integers(len(paths)))]
            with suppress(OSError):
                file = _open_cold(path)
                try:
                    pieces = max(1, os.fstat(file).st_size // _PIECE)
                    for piece in generator.permutation(pieces)[:16]:
                        counts[reader] += os.preadv(file, [buffer], int(piece) * _PIECE)
                        if ended.is_set():
                            return
                finally:
                    os.close(file)

    threads = [
        threading.Thread(target=read, args=(number,), daemon=True) for number in range(num_readers)
    ]
    for thread in threads:
        thread.start()
    time.sleep(seconds * _SETTLE_SHARE)
    before, start = sum(counts), time.perf_counter()
    time.sleep(seconds * (1 - _SETTLE_SHARE))
    rate = (sum(counts) - before) / (time.perf_counter() - start)
    ended.set()
    for thread in threads:
        thread.join()
    return rate or None


def _open_cold(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        return file
