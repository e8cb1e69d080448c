"""Plots of what a run's hosts read, and how busy their CPUs were, over the time of the run."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from dlemu.errors import DAMAGE, RunError, in_short
from dlemu.host.intervals import (
    IntervalSummary,
    Observation,
    apart,
    read_observations,
    summarize_interval,
)
from dlemu.report.plot import Axis, Bands, Plot, Series
from dlemu.units import rate_unit

_LEAST_SECONDS = 0.2
"""Over a shorter time a rate is mostly the resolution of the counters."""


def plots_over_time(folder: Path, *, in_bucket: bool) -> list[Plot]:
    """Return the plots of what the hosts of a run did over time.

    Raises:
        RunError: a host's file is damaged.
    """
    plots: list[Plot] = []
    for path in sorted(folder.glob("host.*.jsonl")):
        try:
            plots += _host_plots(path.name.split(".")[1], read_observations(path), in_bucket)
        except DAMAGE as error:
            raise RunError(f"{path} is damaged: {in_short(error)}") from None
    return plots


def _host_plots(rank: str, observations: Sequence[Observation], in_bucket: bool) -> Iterator[Plot]:
    """Yield what the host of a rank read and how busy its CPUs were, over the time of a run."""
    points = _for_a_plot(observations)
    if len(points) < 2:
        return
    start = points[0].time
    times = [point.time - start for point in points]
    parts = [summarize_interval(pair) for pair in pairwise(points)]
    x = Axis(name="seconds since the first epoch began", low=0.0, high=times[-1])
    bands = [Bands("epochs: only these count", "first", _epochs(observations))]
    where = "" if rank == "0" else f", host of rank {rank}"
    source, rates = _best_counter(parts, in_bucket)
    if source:
        unit, size = rate_unit(max(rate or 0.0 for rate in rates))
        scaled = [None if rate is None else rate / size for rate in rates]
        yield Plot(
            title=f"bytes read over time{where}",
            x=x,
            y=Axis(name=unit, low=0.0, high=1.1 * max(rate or 0.0 for rate in scaled) or 1.0),
            series=[Series(source, "first", _stairs(times, scaled))],
            bands=bands,
        )
    cpu = [p.host_cpu_share and 100 * p.host_cpu_share for p in parts]
    own = [p.process_cpu_share and 100 * p.process_cpu_share for p in parts]
    yield Plot(
        title=f"CPUs over time{where}",
        x=x,
        y=Axis(name="busy (%)", low=0.0, high=100.0),
        series=[
            Series("whole host, of all its CPUs", "first", _stairs(times, cpu)),
            Series("ranks and workers, of the CPUs they may use", "second", _stairs(times, own)),
        ],
        bands=bands,
    )


def _epochs(observations: Sequence[Observation]) -> list[tuple[float, float]]:
    """Return from when to when the epochs lasted, in seconds since the first observation."""
    start = observations[0].time
    times = {o.label: o.time - start for o in observations if o.label is not None}
    ends = {label: label.replace("start", "end") for label in times if label.endswith("start")}
    return [(times[start], times[end]) for start, end in ends.items() if end in times]


def _best_counter(
    parts: Sequence[IntervalSummary], in_bucket: bool
) -> tuple[str, list[float | None]]:
    """Return what the best counter counts, and its bytes/s."""
    counters = [
        ("from the drives", [part.device_read_bytes for part in parts]),
        ("from the network mount", [part.network_read_bytes for part in parts]),
        ("by read calls, from storage or memory", [part.process_rchar for part in parts]),
    ]
    if in_bucket:  # sockets are not read by read calls
        received = [None if p.network is None else p.network.received_bytes for p in parts]
        counters = [("over the host's network interfaces, without lo", received)]
    for name, counts in counters:
        if any(count is not None for count in counts):
            return name, [
                None if count is None else count / part.seconds
                for count, part in zip(counts, parts, strict=True)
            ]
    return "", []


def _stairs(
    times: Sequence[float], values: Sequence[float | None]
) -> list[list[tuple[float, float]]]:
    """Return values that hold from one time to the next, without a line where one is unknown."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for (begun, ended), value in zip(pairwise(times), values, strict=True):
        if value is None:
            pieces.append([])
        else:
            pieces[-1] += [(begun, value), (ended, value)]
    return [piece for piece in pieces if piece]


def _for_a_plot(observations: Sequence[Observation]) -> list[Observation]:
    """Return about 400 observations at most, far enough from each other for rates."""
    if not observations:
        return []
    least = max(_LEAST_SECONDS, (observations[-1].time - observations[0].time) / 400)
    return apart(observations, least)
