"""Random orders that are computed number by number: no array of all is needed."""

import numpy as np
from numpy.typing import NDArray

from dlemu.dataset.layout import Samples, hashed

_ROUNDS = 4
"""Of a Feistel network; with four it looks like a random permutation (Luby and Rackoff, 1988)."""
_PURPOSE = 16
"""Of the first round, for `hashed`; each round has its own."""


def permuted(numbers: Samples, size: int, seed: int) -> Samples:
    """Return where a random permutation of 0..size-1 puts each number, any shape.

    Different seeds make different permutations. Each takes about 0.2 µs a number.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    found = _permuted(numbers.ravel().astype(np.uint64), half, seed)
    # The network permutes the numbers below a power of four. Those that leave 0..size-1 go through
    # it again until they are back (cycle walking), which keeps it a permutation.
    out = np.flatnonzero(found >= size)
    while len(out):
        found[out] = _permuted(found[out], half, seed)
        out = out[found[out] >= size]
    result: Samples = found.astype(np.int64).reshape(numbers.shape)
    return result


def _permuted(numbers: NDArray[np.uint64], half: int, seed: int) -> NDArray[np.uint64]:
    """Permute the numbers of twice `half` bits."""
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = numbers >> bits, numbers & mask
    for number in range(_ROUNDS):
        mixed = hashed(seed, right.astype(np.int64), purpose=_PURPOSE + number)
        left, right = right, left ^ (mixed & mask)
    return left << bits | right
