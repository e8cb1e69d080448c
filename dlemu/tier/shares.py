"""Hit shares in closed form: what share of an epoch a cache serves if each epoch is reshuffled.

c is the capacity as a share of the dataset, and all files have one size. The shares are those of an
epoch long after the first. Derivations: docs/cache.md.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dlemu.workload.sections import CachePolicy

SHOWN = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Capacities of the table of `dlemu predict --hit-shares`."""
_NUM_FILES, _NUM_EPOCHS, _COUNTED, _NUM_PARTS = 20_000, 12, 4, 200
Shares = NDArray[np.float64]


def hit_share(policy: CachePolicy, capacity: float, *, shuffled: bool = True) -> float:
    """Return the share (0-1) of a warm epoch's bytes that a cache of this capacity (0-1) serves.

    Without shuffling each epoch reads the files in one order. Then `lru` and `fifo` have given up
    each file when it is read again, and serve nothing unless all fits.
    """
    if policy == "none" or capacity <= 0:
        return 0.0
    if capacity >= 1:
        return 1.0
    if policy == "keep":
        return capacity
    if policy == "random":
        return _random_share(capacity, shuffled=shuffled)
    if not shuffled:
        return 0.0
    if policy == "lru":
        return capacity + (1 - capacity) * math.log(1 - capacity)
    return float(_fifo_profile(round(capacity, 6)).mean())


def _random_share(capacity: float, *, shuffled: bool) -> float:
    """Return the share of random eviction. An entry survives each eviction alike."""
    if shuffled:
        if 1 / capacity > 700:  # exp() would overflow
            return -capacity * math.log1p(-capacity)
        return 1 - capacity * math.log(capacity + (1 - capacity) * math.exp(1 / capacity))
    share = 0.0
    for _ in range(1000):  # a read is one epoch after the last, and that had 1 - share evictions
        share = math.exp((share - 1) / capacity)
    return share


@lru_cache
def _fifo_profile(capacity: float) -> Shares:
    """Return the shares of FIFO along an epoch, simulated: we know no closed form.

    A file is in the cache until as many files as fit have come after it.
    """
    order, num_files = np.random.default_rng(0), _NUM_FILES
    fits, misses, epochs = round(capacity * num_files), 0, []
    came = [-num_files] * num_files
    for _ in range(_NUM_EPOCHS):
        hits = []
        for file in order.permutation(num_files).tolist():
            hits.append(misses - came[file] <= fits)
            if not hits[-1]:
                misses += 1
                came[file] = misses
        epochs.append(hits)
    shares: Shares = np.array(epochs[-_COUNTED:]).mean(axis=0).reshape(_NUM_PARTS, -1).mean(axis=1)
    return shares


def profile(policy: CachePolicy, capacity: float, *, shuffled: bool = True) -> Shares:
    """Return the hit share along a warm epoch, in _NUM_PARTS equal parts of its reads.

    A reshuffled epoch begins with the most hits: the last reads of the epoch before are there yet.
    With `lru` a read at v (0-1) hits if its last one came after (1-c) / (1-v) of the epoch before.
    """
    capacity = min(max(capacity, 0.0), 1.0)
    at = (np.arange(_NUM_PARTS) + 0.5) / _NUM_PARTS
    if 0 < capacity < 1 and shuffled and policy == "lru":
        return np.maximum(0.0, 1 - (1 - capacity) / (1 - at))
    if 0 < capacity < 1 and shuffled and policy == "random" and 1 / capacity < 700:
        return capacity / (capacity + (1 - capacity) * np.exp(at / capacity))
    if 0 < capacity < 1 and shuffled and policy == "fifo":
        return _fifo_profile(round(capacity, 6))
    return np.full(_NUM_PARTS, hit_share(policy, capacity, shuffled=shuffled))


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


def table() -> str:
    """Return the hit share of each policy and capacity as text."""
    policies: Sequence[CachePolicy] = ("lru", "fifo", "random", "keep")
    lines = [
        "share of a warm epoch's bytes that a cache serves, each epoch in another order",
        "",
        f"{'capacity / dataset':<20}" + "".join(f"{name:>10}" for name in policies),
    ]
    for capacity in SHOWN:
        cells = "".join(f"{hit_share(name, capacity):>10.3f}" for name in policies)
        lines.append(f"{capacity:<20.1f}{cells}")
    lines += [
        "",
        f"lru, random and keep by their closed forms, fifo simulated with {_NUM_FILES:,} files; in "
        "one order for all epochs lru and fifo serve nothing below 1.0",
    ]
    return "\n".join(lines)
