"""What requests to a bucket came to in a run: fields of summary.json."""

from collections.abc import Sequence
from typing import TypedDict

from dlemu.host.intervals import IntervalSummary
from dlemu.objects.counts import GetCounts
from dlemu.units import counted, format_seconds


class ObjectsMeasured(TypedDict):
    """Requests for bytes (GET) of all ranks, over all epochs."""

    gets: int
    """Requests that were answered. A server has seen `retries` more."""
    p50_seconds: float | None
    """Latency that half of them did not exceed, from the request to its last byte."""
    p99_seconds: float | None
    retries: int
    """Requests that were sent again."""
    slow_downs: int
    """Answers 503 and 429."""
    received_bytes: int
    needed_bytes: int
    """Asked for by training, headers of files included."""
    cpu_seconds_per_GB: float | None
    """CPU time of ranks and workers for each 10^9 bytes that were received."""


def objects_fields(gets: GetCounts, epochs: Sequence[IntervalSummary]) -> ObjectsMeasured:
    """Return the fields; `epochs` are those of all hosts."""
    cpu = [epoch.process_cpu_seconds for epoch in epochs]
    known = [seconds for seconds in cpu if seconds is not None]
    per_byte = sum(known) / gets.received_bytes if gets.received_bytes else None
    return ObjectsMeasured(
        gets=gets.gets,
        p50_seconds=gets.quantile(0.5),
        p99_seconds=gets.quantile(0.99),
        retries=gets.retries,
        slow_downs=gets.slow_downs,
        received_bytes=gets.received_bytes,
        needed_bytes=gets.needed_bytes,
        cpu_seconds_per_GB=(
            1e9 * per_byte if per_byte is not None and len(known) == len(cpu) else None
        ),
    )


def latencies(gets: int, half: float | None, most: float | None) -> str:
    """Return "1,234 GETs, p50 12 ms, p99 80 ms"."""
    if half is None or most is None:
        return counted(gets, "GET")
    return f"{counted(gets, 'GET')}, p50 {format_seconds(half)}, p99 {format_seconds(most)}"
