"""What a mounted cache did in a run, by the counters of the places behind it."""

from collections.abc import Sequence

from dlemu.host.watched import PlaceCounts, add_up
from dlemu.results.summary import CacheWatched

_LEAST_SHARE = 0.01
"""An origin that gave less of the bytes gives no ratio: it may have read folders only."""


def watched_fields(
    read: Sequence[int], hosts: Sequence[Sequence[PlaceCounts]], seconds: Sequence[float]
) -> CacheWatched:
    """Return the fields of summary.json.

    Args:
        read: bytes that training read in each epoch.
        hosts: of each host, the growth of the counters in each epoch.
        seconds: of each epoch.
    """
    places = [add_up(epoch) for epoch in zip(*hosts, strict=True)]
    origin = [each.origin_read_bytes for each in places]
    written = [each.cache_written_bytes for each in places]
    return CacheWatched(
        hit_share_per_epoch=[_hits(*pair) for pair in zip(origin, read, strict=True)],
        read_bytes_per_epoch=list(read),
        origin_bytes_per_epoch=origin,
        cache_read_bytes_per_epoch=[each.cache_read_bytes for each in places],
        cache_write_bytes_per_epoch=written,
        fill_ratio_per_epoch=[_fill(*each) for each in zip(origin, written, read, strict=True)],
        daemon_cpu_seconds_per_epoch=[each.daemon_cpu_seconds for each in places],
        seconds_per_epoch=list(seconds),
    )


def stored_bytes(cached: CacheWatched, epoch: int) -> int | None:
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
