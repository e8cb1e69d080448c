"""series.csv: what each host did over time, one row per host and interval of about a second.

It is made from the records that a run leaves anyway: host.<rank>.jsonl and steps.<rank>.npy.
"""

import csv
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlemu.errors import DAMAGE, RunError, in_short
from dlemu.host.intervals import Observation, apart, read_observations, summarize_interval
from dlemu.host.network import NetworkCounters
from dlemu.results.records import SUMMARY, Steps, host_file, map_rank, named, read_summary
from dlemu.results.sums import epoch_spans
from dlemu.storage.atomic import create, replacing

SERIES = "series.csv"
COLUMNS = (
    "seconds",
    "host",
    "epoch",
    "drive_read_MB_per_s",
    "drive_reads_per_s",
    "drive_util_percent",
    "drive_queue",
    "network_read_MB_per_s",
    "read_calls_MB_per_s",
    "page_cache_bytes",
    "host_cpu_percent",
    "process_cpu_percent",
    "au_percent",
    "network_received_MB_per_s",
    "network_sent_MB_per_s",
)
"""New columns come last. docs/usage.md says what each one is."""

_LEAST_SECONDS = 0.5
"""Between the observations of a second lie those at the borders of epochs, too close for rates."""
_FIRST = "epoch 0 start"
"""Label of the observation at which all hosts begin."""
_WRAP = 1 << 32
"""The kernel's times of drives wrap around at so many milliseconds."""


def write_series(folder: Path, path: Path) -> None:
    """Write the series of a run's folder.

    Raises:
        RunError: the folder has no host.<rank>.jsonl, a file is damaged, or `path` cannot be
            written.
    """
    files = (file.name.split(".")[1] for file in folder.glob("host.*.jsonl"))
    ranks = sorted(int(number) for number in files if number.isdecimal())
    if not ranks:
        raise RunError(f"{folder} holds no host.<rank>.jsonl; is it a run's folder?")
    names = _names(folder, ranks)
    first: _Clock | None = None
    with (
        named(path),
        replacing(path) as partial,
        open(partial, "w", encoding="utf-8", newline="", opener=create) as file,
    ):
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for rank, name in zip(ranks, names, strict=True):
            steps = map_rank(folder, rank)
            try:
                clock, observations = _read(host_file(folder, rank))
                if first is None and observations:
                    first, began = clock, observations[0].time
                offset = 0.0 if first is None else clock.behind(first) - began
                rows = list(_rows(name, observations, steps, offset))
            except DAMAGE as error:
                raise RunError(f"{host_file(folder, rank)} is damaged: {in_short(error)}") from None
            writer.writerows(rows)
        file.flush()
        os.fsync(file.fileno())


def _names(folder: Path, ranks: Sequence[int]) -> list[str]:
    """Return the name of the host of each of these ranks."""
    try:
        names = [str(host["host"]) for host in read_summary(folder).get("system", ())]
    except DAMAGE as error:
        raise RunError(f"{folder / SUMMARY} is damaged: {in_short(error)}") from None
    return names if len(names) == len(ranks) else [f"of rank {rank}" for rank in ranks]


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
    return _Clock(head["unix_time"] - head["time"], started), apart(seen, _LEAST_SECONDS)


def _rows(
    host: str, observations: Sequence[Observation], steps: Steps | None, offset: float
) -> Iterator[dict[str, Any]]:
    """Yield a row for each interval; `offset` makes a time the seconds since the run's start."""
    times = np.array([each.time for each in observations])
    au = _au_percentages(times, steps)
    epochs = _epochs(times, steps)
    for number, (first, last) in enumerate(pairwise(observations)):
        part = summarize_interval((first, last))
        seconds = part.seconds
        yield {
            "seconds": f"{round(first.time + offset, 3) + 0.0:.3f}",
            "host": host,
            "epoch": epochs[number],
            "drive_read_MB_per_s": _rate(part.device_read_bytes, seconds),
            **_drives(first, last, seconds),
            "drive_util_percent": _percent(max(part.devices.values(), default=None)),
            "network_read_MB_per_s": _rate(part.network_read_bytes, seconds),
            "read_calls_MB_per_s": _rate(part.process_rchar, seconds),
            "page_cache_bytes": "" if last.page_cache_bytes is None else last.page_cache_bytes,
            "host_cpu_percent": _percent(part.host_cpu_share),
            "process_cpu_percent": _percent(part.process_cpu_share),
            "au_percent": au[number],
            **_network(part.network, seconds),
        }


def _network(network: NetworkCounters | None, seconds: float) -> dict[str, str]:
    if network is None:
        return {}
    return {
        "network_received_MB_per_s": _rate(network.received_bytes, seconds),
        "network_sent_MB_per_s": _rate(network.sent_bytes, seconds),
    }


def _drives(first: Observation, last: Observation, seconds: float) -> dict[str, str]:
    """Return requests per second and mean requests in flight, over all drives."""
    pairs = [
        (first.devices[name], now) for name, now in last.devices.items() if name in first.devices
    ]
    if not pairs:
        return {}
    reads = sum(now.reads - begun.reads for begun, now in pairs)
    queued = sum((now.queue_ms - begun.queue_ms) % _WRAP for begun, now in pairs)
    return {
        "drive_reads_per_s": f"{reads / seconds:.1f}",
        "drive_queue": f"{queued / 1000 / seconds:.2f}",
    }


def _au_percentages(times: NDArray[np.float64], steps: Steps | None) -> list[str]:
    """Return the AU between each two times, "" where no step ran.

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
    return [f"{100 * part / whole:.2f}" if whole > 1e-9 else "" for part, whole in shares]


def _grown(
    times: NDArray[np.float64],
    begin: NDArray[np.float64],
    end: NDArray[np.float64],
    amount: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return at each time what has grown: evenly by `amount` from each begin to its end."""
    after = np.cumsum(amount)
    points = np.maximum.accumulate(np.stack([begin, end], axis=1).ravel())
    return np.interp(times, points, np.stack([after - amount, after], axis=1).ravel())


def _epochs(times: NDArray[np.float64], steps: Steps | None) -> list[str]:
    """Return for each interval the epoch, from 1 on, that its middle lies in; "" between two."""
    if steps is None or not steps.size:
        return [""] * (len(times) - 1)
    spans = epoch_spans(steps).items()
    return [
        next((str(epoch + 1) for epoch, (low, high) in spans if low <= middle <= high), "")
        for middle in (times[1:] + times[:-1]) / 2
    ]


def _rate(num_bytes: int | None, seconds: float) -> str:
    return "" if num_bytes is None else f"{num_bytes / seconds / 1e6:.3f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"
