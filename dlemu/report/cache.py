"""The cache of a run, from the run's document: its table, what it saves, its wear, its plots."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any

from dlemu.report.blocks import Block, Column, Document, Lines, Table, table_of
from dlemu.report.plot import Axis, Plot, axis_from_zero, axis_of_numbers, dotted
from dlemu.units import counted, format_bytes, format_rate, format_seconds

_MOST_ROWS = 10
"""Epochs of the table; of more, the first ones and the last are shown."""
_HITS = 0.01
"""Share of hits from which on an epoch is a warm one."""
_APART = 0.1
"""Hit shares of a mounted cache's epochs that differ by more are cold and warm ones."""
_YEAR = 365 * 86_400


def present_cache(document: Document) -> list[Block]:
    """Return the blocks of a run's cache; none where there was none."""
    cached = document.get("measured", {}).get("cache")
    if cached is None:
        return []
    of_epochs = [(name, each) for name, each in cached.items() if name.endswith("_per_epoch")]
    epochs = [
        epoch | {name.removesuffix("_per_epoch"): each[number] for name, each in of_epochs}
        for number, epoch in enumerate(document["per_epoch"])
    ]
    is_watched = "fill_ratio_per_epoch" in cached
    emulated = "" if is_watched else cached["emulated_origin"]
    slow = f" (origin emulated {emulated})" if emulated else ""
    table = _watched_table(epochs) if is_watched else _table(epochs, slow)
    lines = list(_watched_lines(epochs) if is_watched else _lines(cached, epochs, slow))
    return [table, *([Lines(lines)] if lines else []), *_plots(epochs, slow)]


_EPOCH = (
    Column("epoch", "epoch", str),
    Column("AU (%)", "au_percentage", ".2f"),
    Column("samples/s", "samples_per_second", ".2f", spare=3),
)


def _table(epochs: Sequence[Document], slow: str) -> Table:
    """Return the table over epochs; rates over the seconds of each."""
    table = table_of(
        epochs if len(epochs) <= _MOST_ROWS else [*epochs[: _MOST_ROWS - 1], epochs[-1]],
        *_EPOCH,
        Column("hits (%)", "hit_share", _percent),
        Column("planned (%)", "planned_hit_share", _percent),
        Column("origin", lambda e: e["origin_bytes"] / e["seconds"] / 1e6, ".1f"),
        Column("read", lambda e: e["cache_read_bytes"] / e["seconds"] / 1e6, ".1f"),
        Column("written", lambda e: e["cache_write_bytes"] / _settled(e) / 1e6, ".1f"),
        title=f"cache, MB/s{slow}",
    )
    if len(epochs) > _MOST_ROWS:
        *first, last = table.rows
        table = replace(table, rows=[*first, ["…"] * len(table.heads), last])
    return table


def _watched_table(epochs: Sequence[Document]) -> Table:
    """Return the table over epochs of a mounted cache."""

    def megabytes(num_bytes: int) -> str:
        return f"{num_bytes / 1e6:,.1f}"

    return table_of(
        epochs,
        *_EPOCH,
        Column("hits (%)", "hit_share", _percent),
        Column("training", "read_bytes", megabytes),
        Column("origin", "origin_bytes", megabytes),
        Column("cache read", "cache_read_bytes", megabytes),
        Column("written", "cache_write_bytes", megabytes),
        Column("fill", "fill_ratio", ".2f", spare=2),
        Column("daemon CPU (s)", "daemon_cpu_seconds", ".2f", spare=1),
        title="mounted cache, watched; bytes in MB",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _settled(epoch: Document) -> float:
    """Return the seconds of an epoch until all was written."""
    return float(epoch["seconds"] + epoch["settle_seconds"])


def _lines(cached: Mapping[str, Any], epochs: Sequence[Document], slow: str) -> Iterator[str]:
    """Yield what was copied before the epochs, cold and warm AU, and the wear."""
    if preload := cached["preload"]:
        yield _preload(preload, slow)
    if cached["capacity_bytes"]:
        yield f"{_worth(cached, epochs)}{slow}"
    if max(epoch["cache_write_bytes"] for epoch in epochs):
        yield f"{_wear(cached, epochs)}{slow}"


def _preload(preload: Mapping[str, Any], slow: str) -> str:
    """Return the line about the copying before the epochs."""
    num_bytes, seconds = preload["num_bytes"], preload["seconds"]
    if not num_bytes:
        return "preload: nothing to copy, the cache holds what it can"
    share = preload["read_share"]
    by = "origin's reads" if share >= 0.5 else "cache's writes"
    return (
        f"preload: {counted(preload['num_files'], 'file')}, {format_bytes(num_bytes)} in "
        f"{format_seconds(seconds)}: origin and cache writes {format_rate(num_bytes / seconds)}"
        f"{slow}; {100 * max(share, 1 - share):.0f}% of the time went into the {by}"
    )


def _worth(cached: Mapping[str, Any], epochs: Sequence[Document]) -> str:
    """Return the AU of cold and of warm epochs, and from when on the cache saves time."""
    au = [epoch["au_percentage"] for epoch in epochs]
    shares = [epoch["hit_share"] or 0.0 for epoch in epochs]
    cold = f"cold AU {au[0]:.0f}%"
    if max(shares) < _HITS:
        if len(au) == 1:
            return f"{cold}; more epochs (train.epochs) show warm ones"
        return f"{cold}, hits are too rare for the cache to save time"
    is_cold = shares[0] < _HITS and len(au) > 1
    parts = [cold] if is_cold else []
    parts.append(f"warm AU {fmean(au[1:] if is_cold else au):.0f}%")
    if (first := cached["pays_from_epoch"]) is not None:
        later = "" if first <= len(au) else " (assuming later epochs equal the last)"
        parts.append(f"the cache saves time from epoch {first} on{later}")
    elif cached["can_save"]:
        parts.append("the cache saves no time")
    return ", ".join(parts)


def _wear(cached: Mapping[str, Any], epochs: Sequence[Document]) -> str:
    """Return what each epoch writes to the cache's drive, and how long that lasts."""
    first, last = (epochs[number]["cache_write_bytes"] for number in (0, -1))
    text = (
        f"cache's wear: {format_bytes(first)} written to the cache in the first epoch, "
        f"{format_bytes(last)} in the last"
    )
    if not last:
        return text
    rate, churn = last / _settled(epochs[-1]), last / cached["capacity_bytes"]
    text += f", {churn:.2f} of its capacity; {format_rate(rate)} if such epochs follow one another"
    if cached["endurance_bytes"]:
        years = cached["endurance_bytes"] / rate / _YEAR
        return f"{text}, for {years:.3g} years of its drives' life (drive.endurance)"
    return f"{text}; drive.endurance=14PB says for how many years"


def _watched_lines(epochs: Sequence[Document]) -> Iterator[str]:
    """Yield the AU of cold and of warm epochs, where they differ."""
    shares = [epoch["hit_share"] for epoch in epochs]
    au = [epoch["au_percentage"] for epoch in epochs]
    if None not in shares and any(b - a > _APART for a, b in pairwise(shares)):
        yield f"cold AU {au[0]:.0f}%, warm AU {fmean(au[1:]):.0f}%"


def _plots(epochs: Sequence[Document], slow: str) -> Iterator[Plot]:
    numbers = [epoch["epoch"] for epoch in epochs]
    x = axis_of_numbers("epoch", numbers[0], numbers[-1])
    au = [epoch["whole_epoch_au_percentage"] for epoch in epochs]
    hits = [epoch["hit_share"] and 100 * epoch["hit_share"] for epoch in epochs]
    shares = [
        dotted("AU with the first step", "first", numbers, au),
        dotted("bytes from the cache", "second", numbers, hits),
    ]
    title = f"hits and AU over the epochs{slow}"
    yield Plot(title, x, Axis("%", 0.0, 100.0), shares)

    def rates(name: str) -> list[float | None]:
        return [epoch[name] and epoch[name] / epoch["seconds"] / 1e6 for epoch in epochs]

    series = [
        dotted("read from the origin", "first", numbers, rates("origin_bytes")),
        dotted("read from the cache", "second", numbers, rates("cache_read_bytes")),
        dotted("written to the cache", "limit", numbers, rates("cache_write_bytes")),
    ]
    y = axis_from_zero("MB/s, over the epoch's time", series)
    yield Plot(f"origin and cache over the epochs{slow}", x, y, series)
