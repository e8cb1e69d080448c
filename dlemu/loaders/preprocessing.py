"""Spends `reader.preprocess_time` by computing (`reader.preprocess=cpu`).

A sleep takes no core: a hundred workers sleep as long as one. Decoding takes a core, and workers
that decode at the same time slow each other down. So a worker decompresses a small block as often
as fills the time on an idle host. Like decoding a picture, that is work on bits which lets go of
Python's lock.
"""

import zlib
from functools import cache
from time import perf_counter

import numpy as np

_BLOCK_BYTES = 16_384
_NUM_TRIED = 200
"""Blocks that are timed: a hundredth of a second."""


class Work:
    """Computes for given seconds of an idle core; the rest of a block is left for the next call."""

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
def block_seconds() -> float:
    """Return the least time of a block: nothing else disturbed that one.

    It must be called before workers start, which would slow each other down.
    """
    block, times = _block(), []
    for _ in range(_NUM_TRIED):
        begin = perf_counter()
        zlib.decompress(block, bufsize=_BLOCK_BYTES)
        times.append(perf_counter() - begin)
    return min(times)


@cache
def _block() -> bytes:
    """Return a compressed block whose values are distributed as those of a transformed picture."""
    values = np.random.default_rng(0).normal(0, 12, _BLOCK_BYTES)
    return zlib.compress(values.astype(np.int8).tobytes(), 6)
