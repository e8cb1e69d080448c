"""What a cache did in a run: the fields `cache` of `measured`, and whether it saved time.

dlemu's own read-through cache counts on each host (`loaders.cache.host`); behind one that is
mounted the places are watched.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Protocol

from dlemu.config.model import Workload
from dlemu.findings import Finding
from dlemu.host.devices import total
from dlemu.host.intervals import PlaceCounts
from dlemu.judge.metrics import Metrics
from dlemu.judge.summary import CacheMeasured

_NOISE = 0.01
"""Smaller shares of an epoch's time, and smaller hit shares, are noise."""
_CEILING = 98.0
"""At this AU in percent and above, storage is no limit."""
_LEAST_SHARE = 0.01
"""An origin that gave less of the bytes gives no ratio: it may have read folders only."""


class CachedEpoch(Protocol):
    """What the readers of one host did in an epoch, in bytes."""

    @property
    def asked(self) -> int: ...
    @property
    def hit(self) -> int: ...
    @property
    def planned_hit(self) -> int: ...
    @property
    def origin(self) -> int: ...
    @property
    def cache_read(self) -> int: ...
    @property
    def cache_written(self) -> int: ...
    @property
    def settle_seconds(self) -> float: ...


class CopiedFiles(Protocol):
    """What one host copied to the cache before the epochs."""

    @property
    def num_files(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def read_share(self) -> float: ...


class CachedHost(Protocol):
    """The cache of one host; a capacity of 0: there is none, only an emulated origin."""

    @property
    def host(self) -> str: ...
    @property
    def capacity_bytes(self) -> int: ...
    @property
    def dataset_bytes(self) -> int: ...
    @property
    def preload(self) -> CopiedFiles | None: ...
    @property
    def epochs(self) -> Sequence[CachedEpoch]: ...
    @property
    def one_drive(self) -> bool: ...


def watched_fields(
    read: Sequence[int], hosts: Sequence[Sequence[PlaceCounts]], seconds: Sequence[float]
) -> CacheMeasured:
    """Return the fields of summary.json.

    Args:
        read: bytes that training read in each epoch.
        hosts: of each host, the growth of the counters in each epoch.
        seconds: of each epoch.
    """
    places = [total(epoch) for epoch in zip(*hosts, strict=True)]
    origin = [each.origin_read_bytes for each in places]
    written = [each.cache_written_bytes for each in places]
    return CacheMeasured(
        hit_share_per_epoch=[_hits(*pair) for pair in zip(origin, read, strict=True)],
        read_bytes_per_epoch=list(read),
        origin_bytes_per_epoch=origin,
        cache_read_bytes_per_epoch=[each.cache_read_bytes for each in places],
        cache_write_bytes_per_epoch=written,
        fill_ratio_per_epoch=[_fill(*each) for each in zip(origin, written, read, strict=True)],
        daemon_cpu_seconds_per_epoch=[each.daemon_cpu_seconds for each in places],
        seconds_per_epoch=list(seconds),
    )


def stored_behind(cached: CacheMeasured, epoch: int) -> int | None:
    """Return the bytes of an epoch that drives delivered: origin's and cache's; None if unknown."""
    parts = (cached["origin_bytes_per_epoch"][epoch], cached["cache_read_bytes_per_epoch"][epoch])
    known = [part for part in parts if part is not None]
    return min(sum(known), cached["read_bytes_per_epoch"][epoch]) if len(known) == 2 else None


def _hits(origin: int | None, read: int) -> float | None:
    """Return the share of the bytes read that the origin did not give."""
    return None if origin is None or not read else max(0.0, 1 - origin / read)


def _fill(origin: int | None, written: int | None, read: int) -> float | None:
    """Return the bytes written to the cache for each byte of the origin."""
    if origin is None or written is None or origin < _LEAST_SHARE * max(read, 1):
        return None
    return written / origin


def cache_fields(
    workload: Workload, emulated: Finding | None, hosts: Sequence[CachedHost], metrics: Metrics
) -> CacheMeasured:
    """Return the fields of all hosts, from what `loaders.cache.host` counted on each."""
    endurance = workload.drive.endurance if workload.drive is not None else None
    of_hosts = list(zip(*(host.epochs for host in hosts), strict=True))
    epochs = [total(each) for each in of_hosts]
    found = CacheMeasured(
        policy=workload.cache.policy,
        fill=workload.cache.fill,
        emulated_origin=emulated.fields if emulated else "",
        capacity_bytes=sum(min(host.capacity_bytes, host.dataset_bytes) for host in hosts),
        dataset_bytes=hosts[0].dataset_bytes,
        hit_share_per_epoch=[_share(each.hit, each) for each in epochs],
        planned_hit_share_per_epoch=[_share(each.planned_hit, each) for each in epochs],
        hit_bytes_per_epoch=[each.hit for each in epochs],
        planned_hit_bytes_per_epoch=[each.planned_hit for each in epochs],
        origin_bytes_per_epoch=[each.origin for each in epochs],
        cache_read_bytes_per_epoch=[each.cache_read for each in epochs],
        cache_write_bytes_per_epoch=[each.cache_written for each in epochs],
        seconds_per_epoch=[epoch.seconds for epoch in metrics.epochs],
        settle_seconds_per_epoch=[max(e.settle_seconds for e in each) for each in of_hosts],
        preload=preload_fields([host.preload for host in hosts]),
        pays_from_epoch=None,
        can_save=False,
        one_drive=not emulated and any(host.one_drive for host in hosts),
        endurance_bytes=endurance * workload.drives if endurance else None,
        hosts=[_of_host(host) for host in hosts if host.capacity_bytes],
    )
    found["pays_from_epoch"] = pays_from(found, metrics)
    found["can_save"] = can_save(found, metrics)
    return found


def _of_host(host: CachedHost) -> Mapping[str, Any]:
    return {
        "host": host.host,
        "capacity_bytes": host.capacity_bytes,
        "hit_share_per_epoch": [_share(epoch.hit, epoch) for epoch in host.epochs],
        "hit_bytes_per_epoch": [epoch.hit for epoch in host.epochs],
        "planned_hit_bytes_per_epoch": [epoch.planned_hit for epoch in host.epochs],
    }


def _share(part: int, epoch: CachedEpoch) -> float | None:
    return part / epoch.asked if epoch.asked else None


def preload_fields(hosts: Sequence[CopiedFiles | None]) -> Mapping[str, Any] | None:
    """Return what all hosts copied: together, in the time of the slowest."""
    copied = [host for host in hosts if host is not None]
    if len(copied) < len(hosts) or not copied:
        return None
    return {
        "num_files": sum(host.num_files for host in copied),
        "num_bytes": sum(host.num_bytes for host in copied),
        "seconds": max(host.seconds for host in copied),
        "read_share": fmean(host.read_share for host in copied),
    }


def pays_from(cached: CacheMeasured, metrics: Metrics) -> int | None:
    """Return the epoch by whose end the cache has saved time, None if it never will.

    Without the cache, each epoch is taken to last as long as the coldest one, or as long as the
    origin would need for all bytes at the best rate that it gave. Later epochs are taken to be as
    the last one. First steps are left out: in that of the first epoch the loader starts.
    """
    if not can_save(cached, metrics):
        return None
    seconds, preload = _counted_seconds(metrics), cached["preload"]
    alone = _seconds_without(cached, seconds)
    assert alone is not None
    spent = preload["seconds"] if preload else 0.0
    number = 0
    for number, (took, settled) in enumerate(
        zip(seconds, cached["settle_seconds_per_epoch"], strict=True), 1
    ):
        spent += took + settled - alone
        if spent < -_NOISE * alone:
            return number
    gain = alone - seconds[-1]
    if gain <= _NOISE * alone:
        return None
    return number + int(max(0.0, spent) / gain) + 1


def can_save(cached: CacheMeasured, metrics: Metrics) -> bool:
    """Return whether a cache can save time: not where it shares the origin's drive, nor where an
    epoch without hits has all the utilisation that there is, nor where the origin gave nothing."""
    if _seconds_without(cached, _counted_seconds(metrics)) is None:
        return False
    coldest = _coldest(cached)
    cold = (cached["hit_share_per_epoch"][coldest] or 0.0) < _NOISE
    full = cold and metrics.epochs[coldest].au_percentage >= _CEILING
    return bool(cached["capacity_bytes"]) and not (cached["one_drive"] or full)


def _coldest(cached: CacheMeasured) -> int:
    """Return the first epoch of those with the fewest hits, from 0."""
    shares = [share or 0.0 for share in cached["hit_share_per_epoch"]]
    return shares.index(min(shares))


def _counted_seconds(metrics: Metrics) -> list[float]:
    """Return each epoch's seconds without its first step."""
    return [epoch.seconds - epoch.first_step_seconds for epoch in metrics.epochs]


def _seconds_without(cached: CacheMeasured, seconds: Sequence[float]) -> float | None:
    """Return the seconds of an epoch that reads all bytes from the origin; None: not known."""
    origin, coldest = cached["origin_bytes_per_epoch"], _coldest(cached)
    rates = [(num or 0) / took for num, took in zip(origin, seconds, strict=True)]
    if preload := cached["preload"]:
        rates.append(preload["num_bytes"] / max(preload["seconds"], 1e-9))
    share = cached["hit_share_per_epoch"][coldest]
    if not max(rates):
        return None
    whole = cached["hit_bytes_per_epoch"][coldest] / share if share else 0.0
    return max(seconds[coldest], whole / max(rates))
