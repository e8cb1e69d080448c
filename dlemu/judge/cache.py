"""What a read-through cache did in a run: the fields of the summary."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dlemu.config.model import Workload
from dlemu.host.devices import total
from dlemu.judge.metrics import Metrics
from dlemu.judge.summary import CacheMeasured

_WORTH_SAYING = 0.01
_CEILING = 98.0
"""AU in percent from which on a storage is no limit."""


def cache_fields(
    workload: Workload, emulated: str, hosts: Sequence[Any], metrics: Metrics
) -> CacheMeasured:
    """Return the fields of all hosts, from what `tier.host` counted on each."""

    endurance = workload.drive.endurance if workload.drive is not None else None
    of_hosts = list(zip(*(host.epochs for host in hosts), strict=True))
    epochs = [total(each) for each in of_hosts]
    found = CacheMeasured(
        policy=workload.cache.policy,
        fill=workload.cache.fill,
        emulated_origin=emulated,
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
        preload=_preload([host.preload for host in hosts]),
        pays_from_epoch=None,
        can_save=False,
        one_drive=not emulated and any(host.one_drive for host in hosts),
        endurance_bytes=endurance * workload.drives if endurance else None,
        hosts=[_of_host(host) for host in hosts if host.capacity_bytes],
    )
    found["pays_from_epoch"] = pays_from(found, metrics)
    found["can_save"] = can_save(found, metrics)
    return found


def _of_host(host: Any) -> Mapping[str, Any]:
    return {
        "host": host.host,
        "capacity_bytes": host.capacity_bytes,
        "hit_share_per_epoch": [_share(epoch.hit, epoch) for epoch in host.epochs],
        "hit_bytes_per_epoch": [epoch.hit for epoch in host.epochs],
        "planned_hit_bytes_per_epoch": [epoch.planned_hit for epoch in host.epochs],
    }


def _share(part: int, epoch: Any) -> float | None:
    return part / epoch.asked if epoch.asked else None


def _preload(hosts: Sequence[Any]) -> Mapping[str, Any] | None:
    """Return what all hosts copied: together, in the time of the slowest."""
    whole = total(hosts)
    if whole is None:
        return None
    slowest = max(host.seconds for host in hosts)
    return {**asdict(whole), "seconds": slowest, "read_share": whole.read_share / len(hosts)}


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
        if spent < -_WORTH_SAYING * alone:
            return number
    gain = alone - seconds[-1]
    if gain <= _WORTH_SAYING * alone:
        return None
    return number + int(max(0.0, spent) / gain) + 1


def can_save(cached: CacheMeasured, metrics: Metrics) -> bool:
    """Return whether a cache can save time: not where it shares the origin's drive, nor where an
    epoch without hits has all the utilisation that there is, nor where the origin gave nothing."""
    if _seconds_without(cached, _counted_seconds(metrics)) is None:
        return False
    coldest = _coldest(cached)
    cold = (cached["hit_share_per_epoch"][coldest] or 0.0) < _WORTH_SAYING
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
