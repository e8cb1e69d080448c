"""Plots of what a run's hosts read, and how busy their CPUs were, over the time of the run."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from dlemu.report.plot import Axis, Bands, Plot, Series, axis_from_zero
from dlemu.results.series import HostSeries, Interval, series_of
from dlemu.units import rate_unit

_LEAST_SECONDS = 0.2
"""Over a shorter time a rate is mostly the resolution of the counters."""
_MOST_POINTS = 400


def plots_over_time(folder: Path, *, in_bucket: bool) -> Iterator[Plot]:
    """Yield the plots of what the hosts of a run did over time.

    Raises:
        RunError: a file of a host is damaged.
    """
    for host in series_of(folder, least=_LEAST_SECONDS, most=_MOST_POINTS):
        if host.intervals:
            yield from _host_plots(host, in_bucket)


def _host_plots(host: HostSeries, in_bucket: bool) -> Iterator[Plot]:
    """Yield what a host read and how busy its CPUs were."""
    parts, start = host.intervals, host.intervals[0].begin
    x = Axis("seconds since the first epoch began", 0.0, parts[-1].end - start)
    epochs = [(max(0.0, begin - start), min(end - start, x.high)) for begin, end in host.epochs]
    bands = [Bands("epochs: only these count", "first", epochs)]
    where = "" if host.rank == 0 else f", host of rank {host.rank}"
    source, rates = best_counter(parts, in_bucket=in_bucket)
    if source:
        unit, size = rate_unit(max(rate or 0.0 for rate in rates))
        scaled = [None if rate is None else rate / size for rate in rates]
        read = [Series(source, "first", stairs(parts, scaled))]
        yield Plot(f"bytes read over time{where}", x, axis_from_zero(unit, read), read, bands)
    cpu = [part.seen.host_cpu_share and 100 * part.seen.host_cpu_share for part in parts]
    own = [part.seen.process_cpu_share and 100 * part.seen.process_cpu_share for part in parts]
    busy = [
        Series("whole host, of all its CPUs", "first", stairs(parts, cpu)),
        Series("ranks and workers, of the CPUs they may use", "second", stairs(parts, own)),
    ]
    yield Plot(f"CPUs over time{where}", x, Axis("busy (%)", 0.0, 100.0), busy, bands)


def best_counter(parts: Sequence[Interval], *, in_bucket: bool) -> tuple[str, list[float | None]]:
    """Return what the best counter of reads counts, and its bytes/s; "" if there is none."""
    seen = [part.seen for part in parts]
    counters = [
        ("from the drives", [part.device_read_bytes for part in seen]),
        ("from the network mount", [part.network_read_bytes for part in seen]),
        ("by read calls, from storage or memory", [part.process_rchar for part in seen]),
    ]
    if in_bucket:  # sockets are not read by read calls
        received = [None if part.network is None else part.network.received_bytes for part in seen]
        counters = [("over the host's network interfaces, without lo", received)]
    for name, counts in counters:
        if any(count is not None for count in counts):
            return name, [
                None if count is None else count / part.seconds
                for count, part in zip(counts, seen, strict=True)
            ]
    return "", []


def stairs(
    parts: Sequence[Interval], values: Sequence[float | None]
) -> list[list[tuple[float, float]]]:
    """Return values that hold over their intervals, without a line where one is unknown."""
    start = parts[0].begin
    pieces: list[list[tuple[float, float]]] = [[]]
    for part, value in zip(parts, values, strict=True):
        if value is None:
            pieces.append([])
        else:
            pieces[-1] += [(part.begin - start, value), (part.end - start, value)]
    return [piece for piece in pieces if piece]
