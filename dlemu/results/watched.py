"""What a mounted cache did in a run, by the counters of the places behind it."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from dlemu.host.watched import PlaceCounts, add_up
from dlemu.results.metrics import Metrics
from dlemu.results.summary import CacheWatched

_LEAST_SHARE = 0.01
"""An origin that gave less of the bytes gives no ratio: it may have read folders only."""
_APART = 0.1
"""Hit shares of epochs that differ by more are cold and warm ones."""

_COLUMNS = (
    ("hits (%)", "hit_share_per_epoch", 1e-2, ".1f"),
    ("training", "read_bytes_per_epoch", 1e6, ",.1f"),
    ("origin", "origin_bytes_per_epoch", 1e6, ",.1f"),
    ("cache read", "cache_read_bytes_per_epoch", 1e6, ",.1f"),
    ("written", "cache_write_bytes_per_epoch", 1e6, ",.1f"),
    ("fill", "fill_ratio_per_epoch", 1, ".2f"),
    ("daemon CPU (s)", "daemon_cpu_seconds_per_epoch", 1, ".2f"),
)
"""Of each column its head, the field, the unit in which it is shown, and its form."""


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


def watched_table(cached: CacheWatched, metrics: Metrics) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows of the table over epochs; bytes in MB."""
    values: Mapping[str, Any] = cached
    rows = []
    for index, epoch in enumerate(metrics.epochs):
        row = [str(epoch.epoch + 1), f"{epoch.au_percentage:.2f}"]
        row.append(f"{epoch.samples_per_second:.2f}")
        for _, name, unit, form in _COLUMNS:
            value = values[name][index]
            row.append("-" if value is None else format(value / unit, form))
        rows.append(row)
    return ["epoch", "AU (%)", "samples/s", *(head for head, *_ in _COLUMNS)], rows


def watched_lines(cached: CacheWatched, metrics: Metrics) -> list[str]:
    """Return the table over epochs, and a line on cold and warm ones."""
    heads, rows = watched_table(cached, metrics)
    widths = [max(10, len(head)) + 2 for head in heads]
    lines = ["mounted cache, watched; bytes in MB"]
    lines += ["".join(map(str.rjust, row, widths)) for row in (heads, *rows)]
    shares = [share for share in cached["hit_share_per_epoch"] if share is not None]
    au = [epoch.au_percentage for epoch in metrics.epochs]
    if len(shares) == len(au) and any(b - a > _APART for a, b in pairwise(shares)):
        warm = au[1:]
        lines.append(f"cold AU {au[0]:.0f}%, warm AU {sum(warm) / len(warm):.0f}%")
    return lines


def _hits(origin: int | None, read: int) -> float | None:
    """Return the share of the bytes read that the origin did not give."""
    return None if origin is None or not read else max(0.0, 1 - origin / read)


def _fill(origin: int | None, written: int | None, read: int) -> float | None:
    """Return the bytes written to the cache for each byte of the origin."""
    if origin is None or written is None or origin < _LEAST_SHARE * max(read, 1):
        return None
    return written / origin
