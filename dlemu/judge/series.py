"""What each host of a run did over time, in intervals of about a second; and series.csv of it.

It is made from the records that a run leaves anyway: host.<rank>.jsonl and steps.<rank>.npy.
"""

import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlemu.errors import DAMAGE, RunError, in_short
from dlemu.host.intervals import (
    Observation,
    apart,
    of_epoch,
    read_observations,
    start_of,
    summarize_interval,
)
from dlemu.host.network import NetworkCounters
from dlemu.judge.records import SUMMARY, Steps, damaged, host_file, map_rank, named, read_summary
from dlemu.judge.steady import APART, Piece, Steadiness, mean_of, steadiness
from dlemu.judge.sums import au_of, counted_spans, epoch_spans
from dlemu.storage.files import create, replacing

SERIES = "series.csv"
_FORMS = {
    "seconds": ".3f",
    "host": "",
    "epoch": "",
    "drive_read_MB_per_s": ".3f",
    "drive_reads_per_s": ".1f",
    "drive_util_percent": ".2f",
    "drive_queue": ".2f",
    "network_read_MB_per_s": ".3f",
    "read_calls_MB_per_s": ".3f",
    "page_cache_bytes": "d",
    "host_cpu_percent": ".2f",
    "process_cpu_percent": ".2f",
    "au_percent": ".2f",
    "network_received_MB_per_s": ".3f",
    "network_sent_MB_per_s": ".3f",
}
COLUMNS = tuple(_FORMS)
"""New columns come last. docs/usage.md says what each one is."""

_LEAST_SECONDS = 0.5
"""Between the observations of a second lie those at the borders of epochs, too close for rates."""
_GIVEN = ("drive_read_MB_per_s", "network_read_MB_per_s", "network_received_MB_per_s")
"""Counters of what storage gave, the best first: what read calls got may come from memory."""
_OWN = "read_calls_MB_per_s"
"""With O_DIRECT all of it came from storage, and what other programs read there does not count."""
_ALL_READ = 0.98
_FIRST = start_of(of_epoch(0))
"""Label of the observation at which all hosts begin."""
_WRAP = 1 << 32
"""The kernel's times of drives wrap around at so many milliseconds."""


class Interval(NamedTuple):
    """What a host did between two observations; times are seconds on the first host's clock."""

    begin: float
    end: float
    rates: Mapping[str, float | None]
    """By column of series.csv, None where the kernel does not count; and of each drive and network
    interface, as "drive_read_MB_per_s sda". AU is that of the host's first rank, first steps
    included."""


@dataclass(frozen=True)
class HostSeries:
    """The intervals and epochs of one host, in order of time."""

    rank: int
    """Its first."""
    host: str
    epochs: Sequence[tuple[float, float]]
    """Start and end of each, on the clock of the first host; empty if its steps are missing."""
    intervals: Sequence[Interval]
    counted: Sequence[tuple[float, float]] = ()
    """From the end of each epoch's first step to the end of its last one."""


def series_of(
    folder: Path, *, least: float = _LEAST_SECONDS, most: int | None = None
) -> Iterator[HostSeries]:
    """Yield the series of each host of a run: intervals of `least` seconds or more, `most` of them.

    Raises:
        RunError: a file is damaged.
    """
    files = (file.name.split(".")[1] for file in folder.glob("host.*.jsonl"))
    ranks = sorted(int(number) for number in files if number.isdecimal())
    first: _Clock | None = None
    for rank, name in zip(ranks, _names(folder, ranks), strict=True):
        steps, path = map_rank(folder, rank), host_file(folder, rank)
        try:
            clock, seen = _read(path)
            first = first or (clock if seen else None)
            offset = 0.0 if first is None else clock.behind(first)
            fewer = (seen[-1].time - seen[0].time) / most if most and seen else 0.0
            kept = apart(seen, max(least, fewer))
            spans = {} if steps is None or not steps.size else epoch_spans(steps)
            au = _au_percentages(np.array([each.time for each in kept]), steps)
            parts = [
                Interval(a.time + offset, b.time + offset, _rates(a, b) | {"au_percent": share})
                for (a, b), share in zip(pairwise(kept), au, strict=True)
            ]
            epochs = [(begin + offset, end + offset) for begin, end in spans.values()]
            counted = [] if steps is None or not steps.size else counted_spans(steps)
            later = [(begin + offset, end + offset) for begin, end in counted]
            yield HostSeries(rank, name, epochs, parts, later)
        except DAMAGE as error:
            raise damaged(path, in_short(error)) from None


def steady_rate(folder: Path, *, received: bool, direct: bool = False) -> Steadiness | None:
    """Return how steadily storage gave to all hosts of a run; None: nobody counts, or too short.

    `received`: by the network alone, not from drives of these hosts. `direct`: with O_DIRECT.

    Raises:
        RunError: a file is damaged.
    """
    hosts = [host for host in series_of(folder) if host.intervals]
    columns = _GIVEN[2 * received :] if received or not direct else (_OWN, *_GIVEN)
    column = next((name for name in columns if _has(hosts, name)), None)
    if column is None or not hosts[0].counted:
        return None
    pieces: list[Piece] = []
    for begin, end in hosts[0].counted:
        times = np.linspace(begin, end, max(2, round(end - begin) + 1))
        rates = 1e6 * np.sum([_means(host, column, times) for host in hosts], axis=0)
        au = np.mean([_means(host, "au_percent", times) for host in hosts], axis=0)
        found = list(map(Piece, np.diff(times).tolist(), rates.tolist(), au.tolist()))
        pieces += found[: _num_until_read(found)]
    # With the first steps, in which workers read ahead, as the AU has them that levels divide.
    spans = np.array(hosts[0].epochs)
    moved = [_means(host, column, spans.ravel())[::2] for host in hosts]
    mean = 1e6 * np.average(np.sum(moved, axis=0), weights=np.diff(spans)[:, 0])
    return steadiness(pieces, mean=float(mean))


def _num_until_read(pieces: Sequence[Piece]) -> int:
    """Return the pieces of an epoch until all is read: then accelerators take what is there.

    Some of them come to their end first. Less is read then, though accelerators wait less: no
    storage that gave less would do that.
    """
    moved = np.cumsum([piece.seconds * piece.bytes_per_second for piece in pieces])
    num = int(np.searchsorted(moved, _ALL_READ * moved[-1])) + 1
    while num > 1 and pieces[num - 1].au_percentage is not None:
        before, last = mean_of(pieces[: num - 1]), pieces[num - 1]
        slow = last.bytes_per_second < (1 - APART) * before.bytes_per_second
        if not slow or (last.au_percentage or 0.0) <= (before.au_percentage or 0.0):
            break
        num -= 1
    return num


def _has(hosts: Sequence[HostSeries], column: str) -> bool:
    """Return whether a counter of all hosts grew."""
    return bool(hosts) and all(any(part.rates[column] for part in h.intervals) for h in hosts)


def _means(host: HostSeries, column: str, times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of a column between each two times."""
    parts = host.intervals
    amounts = [(part.rates[column] or 0.0) * (part.end - part.begin) for part in parts]
    so_far = np.concatenate([[0.0], np.cumsum(amounts)])
    at = np.array([parts[0].begin, *(part.end for part in parts)])
    grown: NDArray[np.float64] = np.diff(np.interp(times, at, so_far)) / np.diff(times)
    return grown


def write_series(folder: Path, path: Path) -> None:
    """Write the series of a run's folder.

    Raises:
        RunError: the folder has no host.<rank>.jsonl, a file is damaged, or `path` cannot be
            written.
    """
    hosts = list(series_of(folder))
    if not hosts:
        raise RunError(f"{folder} holds no host.<rank>.jsonl; is it a run's folder?")
    began = next((host.intervals[0].begin for host in hosts if host.intervals), 0.0)
    with (
        named(path),
        replacing(path) as partial,
        open(partial, "w", encoding="utf-8", newline="", opener=create) as file,
    ):
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for host in hosts:
            writer.writerows(_rows(host, began))
        file.flush()
        os.fsync(file.fileno())


def _names(folder: Path, ranks: Sequence[int]) -> list[str]:
    """Return the name of the host of each of these ranks; that of its file if it is not known."""
    try:
        names = [str(host["host"]) for host in read_summary(folder).get("system", ())]
    except DAMAGE as error:
        raise damaged(folder / SUMMARY, in_short(error)) from None
    return names if len(names) == len(ranks) else [f"host.{rank}" for rank in ranks]


@dataclass(frozen=True)
class _Clock:
    """A host's clock of time.perf_counter."""

    to_unix: float
    """What makes its time a Unix time, if the host's time of day is right."""
    started: float | None
    """Its time when the first epoch started; None in a run that did not come so far."""

    def behind(self, other: "_Clock") -> float:
        """Return the seconds that make a time of this clock one of another host's.

        All hosts leave the barrier before the first epoch at once: their time of day may be wrong.
        """
        if self.started is not None and other.started is not None:
            return other.started - self.started
        return self.to_unix - other.to_unix


def _read(path: Path) -> tuple[_Clock, list[Observation]]:
    """Return a host's clock, and its observations."""
    with path.open("rb") as file:
        head = json.loads(file.readline())
    seen = read_observations(path)
    started = next((each.time for each in seen if each.label == _FIRST), None)
    return _Clock(head["unix_time"] - head["time"], started), seen


def _rates(first: Observation, last: Observation) -> dict[str, float | None]:
    """Return what an interval has under `Interval.rates`, without AU."""
    seen = summarize_interval((first, last))
    network = seen.network or NetworkCounters({})
    counts = {
        "drive_read": seen.device_read_bytes,
        "network_read": seen.network_read_bytes,
        "read_calls": seen.process_rchar,
        "network_received": network.received_bytes if seen.network else None,
        "network_sent": network.sent_bytes if seen.network else None,
    }
    rates = {
        f"{name}_MB_per_s": None if count is None else count / (1e6 * seen.seconds)
        for name, count in counts.items()
    }
    for name, count in seen.device_reads.items():
        rates[f"drive_read_MB_per_s {name}"] = count / (1e6 * seen.seconds)
    for name, nic in network.nics.items():
        rates[f"network_received_MB_per_s {name}"] = nic.received_bytes / (1e6 * seen.seconds)
        rates[f"network_sent_MB_per_s {name}"] = nic.sent_bytes / (1e6 * seen.seconds)
    rates |= dict.fromkeys(("drive_reads_per_s", "drive_queue"))
    if seen.devices:
        pairs = [(first.devices[name], last.devices[name]) for name in seen.devices]
        reads = sum(now.reads - begun.reads for begun, now in pairs)
        queued = sum((now.queue_ms - begun.queue_ms) % _WRAP for begun, now in pairs)
        rates["drive_reads_per_s"] = reads / seen.seconds
        rates["drive_queue"] = queued / 1000 / seen.seconds
    shares = {
        "drive_util": max(seen.devices.values(), default=None),
        "host_cpu": seen.host_cpu_share,
        "process_cpu": seen.process_cpu_share,
    }
    rates |= {f"{name}_percent": share and 100 * share for name, share in shares.items()}
    return rates | {"page_cache_bytes": last.page_cache_bytes}


def _rows(host: HostSeries, began: float) -> Iterator[dict[str, Any]]:
    """Yield the rows of series.csv; `began` is the time of its first one.

    An interval belongs to the epoch in which its middle lies.
    """
    for begin, end, rates in host.intervals:
        middle = (begin + end) / 2
        within = (n for n, (low, high) in enumerate(host.epochs, 1) if low <= middle <= high)
        row = {"seconds": round(begin - began, 3) + 0.0, "host": host.host, **rates}
        row["epoch"] = next(within, None)
        yield {
            name: "" if row[name] is None else format(row[name], form)
            for name, form in _FORMS.items()
        }


def _au_percentages(times: NDArray[np.float64], steps: Steps | None) -> list[float | None]:
    """Return the AU between each two times, None where no step ran.

    The emulated compute counts over the time that its compute took, first steps included.
    """
    credited = np.zeros(len(times))
    elapsed = np.zeros(len(times))
    if steps is not None and steps.size:
        flat = steps.ravel()
        for accelerator in np.unique(flat["accelerator"]):
            own = flat[flat["accelerator"] == accelerator]
            own = own[np.argsort(own["start"])]
            begin = own["start"] + own["wait"] + own["overhead"]
            done = begin + own["compute"]
            credited += _grown(times, begin, done, own["computation_time"])
            end = done + own["barrier"]
            elapsed += _grown(times, own["start"], end, end - own["start"])
    shares = zip(np.diff(credited), np.diff(elapsed), strict=True)
    return [au_of(part, whole) for part, whole in shares]


def _grown(
    times: NDArray[np.float64],
    begin: NDArray[np.float64],
    end: NDArray[np.float64],
    amount: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return at each time what has grown: evenly by `amount` from each start to its end."""
    after = np.cumsum(amount)
    points = np.maximum.accumulate(np.stack([begin, end], axis=1).ravel())
    return np.interp(times, points, np.stack([after - amount, after], axis=1).ravel())
