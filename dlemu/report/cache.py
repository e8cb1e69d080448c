"""The cache of a run, from the run's document: its table, what it saves, its wear, its plots."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from dlemu.report.blocks import Block, Lines, Table
from dlemu.report.plot import Axis, Look, Plot, axis_of_numbers, dotted
from dlemu.units import counted, format_bytes, format_rate, format_seconds

_MOST_ROWS = 10
"""Epochs of the table; of more, the first ones and the last are shown."""
_HITS = 0.01
"""Share of hits from which on an epoch is a warm one."""
_APART = 0.1
"""Hit shares of a mounted cache's epochs that differ by more are cold and warm ones."""
_YEAR = 365 * 86_400
_RATES: tuple[tuple[str, str, Look], ...] = (
    ("origin_bytes_per_epoch", "read from the origin", "first"),
    ("cache_read_bytes_per_epoch", "read from the cache", "second"),
    ("cache_write_bytes_per_epoch", "written to the cache", "limit"),
)
_WATCHED = (
    ("hits (%)", "hit_share_per_epoch", 1e-2, ".1f"),
    ("training", "read_bytes_per_epoch", 1e6, ",.1f"),
    ("origin", "origin_bytes_per_epoch", 1e6, ",.1f"),
    ("cache read", "cache_read_bytes_per_epoch", 1e6, ",.1f"),
    ("written", "cache_write_bytes_per_epoch", 1e6, ",.1f"),
    ("fill", "fill_ratio_per_epoch", 1, ".2f"),
    ("daemon CPU (s)", "daemon_cpu_seconds_per_epoch", 1, ".2f"),
)
"""Of each column of a mounted cache its head, the field, the unit that is shown, and its form."""


def present_cache(document: Mapping[str, Any]) -> list[Block]:
    """Return the blocks of a run's cache; none where there was none."""
    cached = document.get("measured", {}).get("cache")
    if cached is None:
        return []
    epochs = document["per_epoch"]
    if "fill_ratio_per_epoch" in cached:
        return [_watched_table(cached, epochs), *_watched_lines(cached, epochs),
                *_plots(cached, epochs, "")]  # fmt: skip
    slow = _label(cached["emulated_origin"])
    return [_table(cached, epochs), Lines(list(_lines(cached, epochs))),
            *_plots(cached, epochs, slow)]  # fmt: skip


def _label(emulated: str) -> str:
    """Return " (origin emulated at 2 GB/s)" for a line that depends on it, else ""."""
    return f" (origin emulated {emulated})" if emulated else ""


def _table(cached: Mapping[str, Any], epochs: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table over epochs; rates over the seconds of each."""
    numbers: list[int | None] = list(range(len(epochs)))
    if len(epochs) > _MOST_ROWS:
        numbers = [*numbers[: _MOST_ROWS - 1], None, len(epochs) - 1]
    heads = ("epoch", "AU (%)", "samples/s", "hits (%)", "planned (%)", "origin", "read", "written")
    return Table(
        heads=heads,
        rows=[["…"] * len(heads) if n is None else _row(cached, epochs[n], n) for n in numbers],
        title=f"cache, MB/s{_label(cached['emulated_origin'])}",
    )


def _row(cached: Mapping[str, Any], epoch: Mapping[str, Any], number: int) -> list[str]:
    seconds = cached["seconds_per_epoch"][number]
    settled = seconds + cached["settle_seconds_per_epoch"][number]
    shares = (cached[f"{name}_per_epoch"][number] for name in ("hit_share", "planned_hit_share"))
    rates = (
        cached["origin_bytes_per_epoch"][number] / seconds,
        cached["cache_read_bytes_per_epoch"][number] / seconds,
        cached["cache_write_bytes_per_epoch"][number] / settled,
    )
    return [
        *_first_cells(epoch),
        *("-" if share is None else f"{100 * share:.1f}" for share in shares),
        *(f"{rate / 1e6:.1f}" for rate in rates),
    ]


def _first_cells(epoch: Mapping[str, Any]) -> list[str]:
    values = (epoch[name] for name in ("au_percentage", "samples_per_second"))
    figures = ("" if value is None else f"{value:.2f}" for value in values)
    return [str(epoch["epoch"]), *figures]


def _lines(cached: Mapping[str, Any], epochs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what was copied before the epochs, cold and warm AU, and the wear."""
    slow = _label(cached["emulated_origin"])
    if preload := cached["preload"]:
        yield _preload(preload, cached["emulated_origin"])
    if cached["capacity_bytes"]:
        yield f"{_worth(cached, [epoch['au_percentage'] for epoch in epochs])}{slow}"
    if max(cached["cache_write_bytes_per_epoch"]):
        yield f"{_wear(cached)}{slow}"


def _preload(preload: Mapping[str, Any], emulated: str) -> str:
    """Return the row of the copying before the epochs."""
    num_bytes, seconds = preload["num_bytes"], preload["seconds"]
    if not num_bytes:
        return "preload: nothing to copy, the cache holds what it can"
    share = preload["read_share"]
    by = "origin's reads" if share >= 0.5 else "cache's writes"
    return (
        f"preload: {counted(preload['num_files'], 'file')}, {format_bytes(num_bytes)} in "
        f"{format_seconds(seconds)}: origin and cache writes {format_rate(num_bytes / seconds)}"
        f"{_label(emulated)}; {100 * max(share, 1 - share):.0f}% of the time went into the {by}"
    )


def _worth(cached: Mapping[str, Any], au: Sequence[float]) -> str:
    """Return the AU of cold and of warm epochs, and from when on the cache saves time."""
    shares = [share or 0.0 for share in cached["hit_share_per_epoch"]]
    if max(shares) < _HITS:
        if len(au) == 1:
            return f"cold AU {au[0]:.0f}%; more epochs (train.epochs) show warm ones"
        cold = f"cold AU {au[0]:.0f}%, " if shares[0] < _HITS else ""
        return f"{cold}hits are too rare for the cache to save time"
    parts = []
    if cold_first := shares[0] < _HITS and len(au) > 1:
        parts.append(f"cold AU {au[0]:.0f}%")
    parts.append(f"warm AU {fmean(au[1:] if cold_first else au):.0f}%")
    if (first := cached["pays_from_epoch"]) is not None:
        later = "" if first <= len(au) else " (assuming later epochs equal the last)"
        parts.append(f"the cache saves time from epoch {first} on{later}")
    elif cached["can_save"]:
        parts.append("the cache saves no time")
    return ", ".join(parts)


def _wear(cached: Mapping[str, Any]) -> str:
    """Return what each epoch writes to the cache's drive, and how long that lasts."""
    written = cached["cache_write_bytes_per_epoch"]
    first, last = (format_bytes(written[epoch]) for epoch in (0, -1))
    text = f"cache's wear: {first} written to the cache in the first epoch, {last} in the last"
    if not written[-1]:
        return text
    seconds = cached["seconds_per_epoch"][-1] + cached["settle_seconds_per_epoch"][-1]
    rate, churn = written[-1] / seconds, written[-1] / cached["capacity_bytes"]
    text += f", {churn:.2f} of its capacity; {format_rate(rate)} if such epochs follow one another"
    if cached["endurance_bytes"]:
        years = cached["endurance_bytes"] / rate / _YEAR
        return f"{text}, for {years:.3g} years of its drives' life (drive.endurance)"
    return f"{text}; drive.endurance=14PB says for how many years"


def _watched_table(cached: Mapping[str, Any], epochs: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table over epochs of a mounted cache."""
    rows = []
    for number, epoch in enumerate(epochs):
        values = ((cached[name][number], unit, form) for _, name, unit, form in _WATCHED)
        cells = (
            "-" if value is None else format(value / unit, form) for value, unit, form in values
        )
        rows.append([*_first_cells(epoch), *cells])
    return Table(
        heads=("epoch", "AU (%)", "samples/s", *(head for head, *_ in _WATCHED)),
        rows=rows,
        title="mounted cache, watched; bytes in MB",
        spare=("daemon CPU (s)", "fill", "samples/s"),
    )


def _watched_lines(
    cached: Mapping[str, Any], epochs: Sequence[Mapping[str, Any]]
) -> Iterator[Lines]:
    """Yield the AU of cold and of warm epochs, where they differ."""
    shares = [share for share in cached["hit_share_per_epoch"] if share is not None]
    au = [epoch["au_percentage"] for epoch in epochs]
    if len(shares) == len(au) and any(b - a > _APART for a, b in pairwise(shares)):
        yield Lines([f"cold AU {au[0]:.0f}%, warm AU {fmean(au[1:]):.0f}%"])


def _plots(
    cached: Mapping[str, Any], epochs: Sequence[Mapping[str, Any]], slow: str
) -> Iterator[Plot]:
    numbers = [epoch["epoch"] for epoch in epochs]
    x = axis_of_numbers("epoch", numbers[0], numbers[-1])
    au = [epoch["whole_epoch_au_percentage"] for epoch in epochs]
    hits = [None if share is None else 100 * share for share in cached["hit_share_per_epoch"]]
    yield Plot(
        title=f"hits and utilisation over the epochs{slow}",
        x=x,
        y=Axis(name="%", low=0.0, high=100.0),
        series=[
            dotted("AU with the first step", "first", numbers, au),
            dotted("bytes from the cache", "second", numbers, hits),
        ],
    )
    seconds = cached["seconds_per_epoch"]
    rates = {
        key: [
            None if num is None else num / took / 1e6
            for num, took in zip(cached[key], seconds, strict=True)
        ]
        for key, _, _ in _RATES
    }
    most = max((rate or 0.0 for each in rates.values() for rate in each), default=0.0)
    yield Plot(
        title=f"origin and cache over the epochs{slow}",
        x=x,
        y=Axis(name="MB/s, over the epoch's time", low=0.0, high=max(most, 1.0)),
        series=[dotted(name, look, numbers, rates[key]) for key, name, look in _RATES],
    )
