"""Predicts a storage with a cache before it: cold and warm epochs, from closed forms of its hits.

    cold = min(origin, what the cache can be written with)      policy keep: until the cache is full
    warm = min(origin / (1 - h), cache / h)                     readers of both overlap

h is the hit share along a warm epoch (`profile`): it is highest at the begin. So both hold for a
part of an epoch, and what takes the drive's place in `formula` is the rate at which the whole epoch
has the AU that is asked. Derivations: docs/cache.md.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from dlemu.config.model import Drive, Workload
from dlemu.errors import WorkloadError
from dlemu.loaders.cache.hits import PlannedCache
from dlemu.sizing import formula
from dlemu.sizing.formula import PredictionInput
from dlemu.sizing.predict import Predicted, keep, needed_rates

_NUM_PARTS = 200
Shares = NDArray[np.float64]


@dataclass(frozen=True)
class Supply:
    """What an origin and the cache before it give together."""

    hits: float
    """Share (0-1) of a warm epoch's bytes that the cache serves."""
    cold: Shares
    """Least seconds for a byte, along the epoch in equal parts of its reads."""
    warm: Shares
    cold_limit: str
    """Which of the rates decides: "origin", "cache writes" or "cache"."""
    warm_limit: str


def supply_of(workload: Workload, *, origin: float, reads: float, writes: float) -> Supply:
    """Return what an origin and a cache with these rates, in bytes per second, give.

    `math.inf` is a rate that is no limit.
    """
    reader, cache = workload.reader, workload.cache
    shuffled = (reader.file_shuffle, reader.sample_shuffle) != ("off", "off")
    hits = profile(cache.policy, capacity_share(workload), shuffled=shuffled)
    if cache.fill == "off" or cache.policy == "none":
        writes = math.inf
    filling, slower = min(origin, writes), "cache writes" if writes < origin else "origin"
    cold, misses_by = np.full(hits.size, 1 / filling), (filling, slower)
    if cache.policy == "keep":  # it is written until it is full, and not again
        full = round(capacity_share(workload) * hits.size)
        cold[full:] = 1 / origin
        if cold[:full].sum() < cold[full:].sum():
            slower = "origin"
        misses_by = origin, "origin"
    share = float(hits.mean())
    by_misses = (1 - share) / misses_by[0] > share / reads
    return Supply(
        hits=share,
        cold=cold,
        # In each part the slower of both decides: what it leaves idle, no other part can use.
        warm=np.maximum((1 - hits) / misses_by[0], hits / reads),
        cold_limit=slower,
        warm_limit=misses_by[1] if by_misses else "cache",
    )


@dataclass(frozen=True)
class CachedPrediction:
    """The predictions for a cold and a warm epoch; `dlemu.show` makes text of it."""

    workload: Workload
    drive: Drive
    """One of the cache's drives."""
    supply: Supply
    cold: Predicted
    warm: Predicted

    @property
    def document(self) -> dict[str, object]:
        """The content of predict.json; the supply is the mean over an epoch, in bytes/s."""
        workload = self.workload
        return {
            "kind": "cached prediction",
            "workload": workload.name,
            "drive": self.drive.name,
            "drives": workload.drives,
            "origin_bytes_per_second": workload.origin.read_bandwidth,
            "policy": workload.cache.policy,
            "capacity_share": capacity_share(workload),
            "hit_share": self.supply.hits,
            "cold_supply_limit": self.supply.cold_limit,
            "warm_supply_limit": self.supply.warm_limit,
            "cold_supply_bytes_per_second": 1 / float(self.supply.cold.mean()),
            "warm_supply_bytes_per_second": 1 / float(self.supply.warm.mean()),
            "cold": self.cold.document,
            "warm": self.warm.document,
        }


def asks_for_cache(workload: Workload) -> bool:
    """Return whether a prediction is asked for a cache."""
    return any(key.startswith(("cache.", "origin.")) for key in workload.given)


def capacity_share(workload: Workload) -> float:
    """Return cache.capacity as a share of the dataset.

    Raises:
        WorkloadError: it is given in bytes, and the number of files is not.
    """
    capacity, files = workload.cache.capacity, workload.dataset.num_files_train
    if capacity <= 1:
        return capacity
    if files == "auto":
        raise WorkloadError(
            "cache.capacity must be a share of the dataset where dataset.num_files_train=auto; "
            "set one of the two to a number: cache.capacity=0.8"
        )
    total = files * workload.dataset.num_samples_per_file * workload.dataset.mean_bytes
    return min(1.0, capacity / total)


def predict_cached(workload: Workload) -> CachedPrediction:
    """Predict cold and warm epochs with a cache of `drives` such drives before an origin.

    Raises:
        WorkloadError: the origin's rate or the cache's drive is not given.
        RunError: predict.json cannot be written.
    """
    origin = workload.origin.read_bandwidth
    if origin is None:
        raise WorkloadError(
            "origin.read_bandwidth is not set: a prediction with a cache needs the rate of the "
            "storage behind it; add origin.read_bandwidth=2GB"
        )
    drive, _ = needed_rates(workload)
    if drive.read_bandwidth is None:
        raise WorkloadError(
            "drive is not set: server.read_bandwidth says nothing of the drive that holds the "
            "cache; name its datasheet (drive=d7_ps1010), or give its rate "
            "(drive.read_bandwidth=7GB)"
        )
    given = supply_of(
        workload,
        origin=origin,
        reads=workload.drives * drive.read_rate,
        writes=workload.drives * (drive.write_bandwidth or math.inf),
    )
    cold, warm = (_predicted(workload, drive, slowest) for slowest in (given.cold, given.warm))
    found = CachedPrediction(workload, drive, given, cold, warm)
    keep(workload, found.document)
    return found


def _predicted(workload: Workload, drive: Drive, slowest: Shares) -> Predicted:
    """Return the prediction for a storage that takes so many seconds a byte along an epoch."""
    drives = workload.drives
    supply = rate_at(slowest, workload.metric.au)
    each = max(1, round(supply / drives))
    stands_for = Drive.model_construct(name=f"{drive.name} as a cache", read_bandwidth=each)
    _, calibration = needed_rates(workload)
    job = replace(PredictionInput.of(workload, drive), drive_read_bytes_per_second=each)
    found = formula.predict(job, calibration)
    # That rate holds where AU is at the threshold. With this number of accelerators AU is another.
    running = max(1, found.num_accelerators)
    demand = running * job.demand
    got = au_at(slowest, demand) * demand
    there = replace(job, accelerators=running, drive_read_bytes_per_second=got / drives)
    reached = vars(formula.predict(there, calibration))
    at_it = {key: reached[key] for key in reached if key.startswith(("au_", "read_"))}
    return Predicted(**(vars(found) | at_it), workload=workload, drive=stands_for)


def profile(policy: str, capacity: float, *, shuffled: bool = True) -> Shares:
    """Return the hit share (0-1) along a warm epoch, in _NUM_PARTS equal parts of its reads.

    `capacity` is a share of the dataset, all files have one size, and the epoch is long after the
    first. A reshuffled epoch begins with the most hits: the last reads of the epoch before are
    there yet. With `lru` a read at v (0-1) hits if its last one came after (1-c) / (1-v) of the
    epoch before, c being the capacity. In one order for all epochs `lru` has given up each file
    when it is read again, and serves nothing unless all fits.
    """
    if policy == "none" or capacity <= 0:
        return np.zeros(_NUM_PARTS)
    if capacity >= 1:
        return np.ones(_NUM_PARTS)
    if policy == "keep":
        return np.full(_NUM_PARTS, capacity)
    if policy != "lru":
        return _simulated(policy, capacity, shuffled=shuffled)
    if not shuffled:
        return np.zeros(_NUM_PARTS)
    at = (np.arange(_NUM_PARTS) + 0.5) / _NUM_PARTS
    return np.maximum(0.0, 1 - (1 - capacity) / (1 - at))


def _simulated(policy: str, capacity: float, *, shuffled: bool) -> Shares:
    """Return the profile of a policy that has no closed form, of 20,000 files' eighth epoch."""
    files = np.arange(100 * _NUM_PARTS)
    cache, order = PlannedCache(policy, round(capacity * len(files)), files**0), default_rng(0)
    for _ in range(8):
        found = cache.epoch((order.permutation(files) if shuffled else files).tolist())
    return found.hits.reshape(_NUM_PARTS, -1).mean(axis=1)  # type: ignore[no-any-return]


def rate_at(slowest: Shares, au: float) -> float:
    """Return the demand, bytes per second, x AU at which AU is `au` (0-1).

    `slowest`: the least seconds for a byte, along an epoch. With one share of hits all along it is
    the rate of the slower of origin and cache.
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
    """Return the AU (0-1) at a demand in bytes per second; `slowest` as in `rate_at`."""
    return 1 / float(np.maximum(1.0, slowest * demand).mean())
