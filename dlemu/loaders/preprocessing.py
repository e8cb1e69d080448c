"""Spends `reader.preprocess_time` by computing (`reader.preprocess=cpu`).

A sleep takes no core: a hundred workers sleep as long as one. Decoding takes a core, and workers
that decode at the same time slow each other down. So a worker decompresses a small block as often
as fills the time. Like decoding a picture, that is work on bits which lets go of Python's lock.
"""

import math
import subprocess
import sys
import zlib
from functools import cache
from statistics import fmean
from time import perf_counter, time

import numpy as np

from dlemu.host.processes import usable_cpus

_BLOCK_BYTES = 16_384
_SECONDS = 0.3
"""How long blocks are timed."""
_TIMED = f"""
import sys, time, zlib
block, end = sys.stdin.buffer.read(), float(sys.argv[1])
count, begin = 0, time.process_time()
while count < 2 or time.time() < end:
    zlib.decompress(block, bufsize={_BLOCK_BYTES})
    count += 1
print((time.process_time() - begin) / count)
"""


class Work:
    """Computes for given seconds of a core; the rest of a block is left for the next call."""

    def __init__(self, block_seconds: float) -> None:
        self._block_seconds, self._owed = block_seconds, 0.0

    def spend(self, seconds: float) -> float:
        """Compute; return how long it took."""
        begin = perf_counter()
        self._owed += seconds
        block = _block()
        while self._owed >= self._block_seconds:
            zlib.decompress(block, bufsize=_BLOCK_BYTES)
            self._owed -= self._block_seconds
        return perf_counter() - begin


@cache
def block_seconds(workers: int) -> float:
    """Return the CPU seconds of a block where so many processes decompress at once.

    Cores that share caches and memory slow each other down, this work by another factor than
    decoding: so it is timed as `preprocess_time` was, with all workers at work. More processes
    than there are CPUs only wait for one another, which is no CPU time.
    """
    end = str(time() + _SECONDS)
    processes = [
        subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _TIMED, end],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(min(workers, math.ceil(usable_cpus())))
    ]
    try:
        for process in processes:  # all have their block before one is waited for
            assert process.stdin is not None
            process.stdin.write(_block())
            process.stdin.close()
        return fmean(float(process.stdout.read()) for process in processes if process.stdout)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@cache
def _block() -> bytes:
    """Return a compressed block whose values are distributed as those of a transformed picture."""
    values = np.random.default_rng(0).normal(0, 12, _BLOCK_BYTES)
    return zlib.compress(values.astype(np.int8).tobytes(), 6)
