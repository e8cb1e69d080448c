"""What share of a warm epoch a cache serves, and what origin and cache give together.

c is the capacity as a share of the dataset, and all files have one size. The shares are those of an
epoch long after the first. Derivations: docs/cache.md.
"""

import math

import numpy as np
from numpy.typing import NDArray

from dlemu.workload.sections import CachePolicy

_NUM_PARTS = 200
Shares = NDArray[np.float64]


def profile(policy: CachePolicy, capacity: float, *, shuffled: bool = True) -> Shares:
    """Return the hit share (0-1) along a warm epoch, in _NUM_PARTS equal parts of its reads.

    A reshuffled epoch begins with the most hits: the last reads of the epoch before are there yet.
    With `lru` a read at v (0-1) hits if its last one came after (1-c) / (1-v) of the epoch before.
    In one order for all epochs `lru` has given up each file when it is read again, and serves
    nothing unless all fits.
    """
    if policy == "none" or capacity <= 0:
        return np.zeros(_NUM_PARTS)
    if capacity >= 1:
        return np.ones(_NUM_PARTS)
    if policy == "keep":
        return np.full(_NUM_PARTS, capacity)
    if not shuffled:
        return np.zeros(_NUM_PARTS)
    at = (np.arange(_NUM_PARTS) + 0.5) / _NUM_PARTS
    return np.maximum(0.0, 1 - (1 - capacity) / (1 - at))


def seconds_a_byte(hits: Shares, *, origin: float, cache: float) -> Shares:
    """Return the least seconds for a byte, along an epoch with these hit shares.

    `origin` and `cache`: bytes per second. In each part the slower of both decides; what one part
    leaves idle, no other part can use.
    """
    return np.maximum((1 - hits) / origin, hits / cache)


def rate_at(slowest: Shares, au: float) -> float:
    """Return the demand, bytes per second, x AU at which AU is `au` (0-1).

    `slowest`: of `seconds_a_byte`. With one share all along it is the rate of the slower of both.
    """
    if not slowest.any():
        return math.inf
    low, high = 0.0, 1.0 / float(slowest.max())  # a part that waits for nothing has no bound
    while au_at(slowest, high) > au:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if au_at(slowest, middle) > au else (low, middle)
    return au * high


def au_at(slowest: Shares, demand: float) -> float:
    """Return the AU (0-1) at a demand in bytes per second; `slowest`: of `seconds_a_byte`."""
    return 1 / float(np.maximum(1.0, slowest * demand).mean())
