"""The part of a run's page about a cache: its lines, and what it did over the epochs."""

from collections.abc import Iterable
from typing import Any

from dlemu.reports.drawing import Axis, Look, Plot, axis_of_numbers, dotted
from dlemu.reports.markup import render_lines
from dlemu.results.cache import label, worth_lines
from dlemu.results.metrics import Metrics
from dlemu.results.summary import Summary

_RATES: tuple[tuple[str, str, Look], ...] = (
    ("origin_bytes_per_epoch", "read from the origin", "first"),
    ("cache_read_bytes_per_epoch", "read from the cache", "second"),
    ("cache_write_bytes_per_epoch", "written to the cache", "limit"),
)


def render_cache(summary: Summary, metrics: Metrics) -> Iterable[str]:
    """Yield the lines and the plots of a cache; nothing where there was none."""
    cached: Any = summary.get("measured", {}).get("cache")
    if cached is None:
        return
    slow = ""
    if "emulated_origin" in cached:
        slow = label(cached["emulated_origin"])
        yield render_lines(worth_lines(cached, metrics))
    numbers = [epoch.epoch + 1 for epoch in metrics.epochs]
    x = axis_of_numbers("epoch", numbers[0], numbers[-1])
    au = [epoch.whole_epoch_au_percentage for epoch in metrics.epochs]
    hits = [None if share is None else 100 * share for share in cached["hit_share_per_epoch"]]
    yield Plot(
        title=f"hits and utilisation over the epochs{slow}",
        x=x,
        y=Axis(name="%", low=0.0, high=100.0),
        series=[dotted("utilisation, with the first step", "first", numbers, au),
                dotted("bytes that the cache served", "second", numbers, hits)],
    ).render()  # fmt: skip
    seconds = cached["seconds_per_epoch"]
    rates = {
        name: [
            None if num is None else num / took / 1e6
            for num, took in zip(cached[key], seconds, strict=True)
        ]
        for key, name, _ in _RATES
    }
    most = max((rate or 0.0 for each in rates.values() for rate in each), default=0.0)
    yield Plot(
        title=f"origin and cache over the epochs{slow}",
        x=x,
        y=Axis(name="MB/s, over the epoch's time", low=0.0, high=max(most, 1.0)),
        series=[dotted(name, look, numbers, rates[name]) for _, name, look in _RATES],
    ).render()
