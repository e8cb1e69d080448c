"""Requests are counted, and their quantiles are right to some per cent."""

from typing import Any

import numpy as np
import pytest

from dlemu.judge.evidence import objects_fields
from dlemu.report.in_run import host_lines
from dlemu.storage.counted import GetCounts


def shown(fields: dict[str, Any]) -> str:
    (line,) = host_lines({"status": "complete", "measured": {"objects": fields}})
    return line


def counted(seconds: list[float]) -> GetCounts:
    counts = GetCounts()
    for each in seconds:
        counts.add(each, 100)
    return counts


def test_quantiles_are_those_of_all_latencies() -> None:
    drawn = np.random.default_rng(1).lognormal(-4, 1.0, 20_000)
    counts = counted(drawn[:5000].tolist()) + counted(drawn[5000:].tolist())
    assert counts.gets == 20_000
    assert counts.received_bytes == 2_000_000
    assert counts.seconds == pytest.approx(drawn.sum())
    for share in (0.01, 0.5, 0.99, 1.0):
        assert counts.quantile(share) == pytest.approx(np.quantile(drawn, share), rel=0.05)


def test_the_smallest_and_the_longest_latency_have_a_place() -> None:
    assert counted([0.0]).quantile(0.5) == pytest.approx(1e-6, rel=0.05)
    assert counted([1e9]).quantile(0.5) == pytest.approx(2**32 * 1e-6, rel=0.05)
    assert GetCounts().quantile(0.5) is None


def test_the_line_says_what_it_was() -> None:
    counts = counted([0.010] * 99 + [0.500])
    counts.needed_bytes, counts.retries, counts.slow_downs = 8000, 3, 2
    fields = objects_fields(counts, 0.0)
    assert fields["gets"] == 100
    assert fields["cpu_seconds_per_GB"] is not None
    line = shown(fields | {"cpu_seconds_per_GB": 0.5})
    assert line.startswith("objects: 100 GETs, p50 9.96 ms, p99 9.96 ms")
    assert "3 sent again (2 after 503)" in line
    assert line.endswith("for 7.8 KiB needed (1.250); 0.50 CPU-s/GB")
    assert "sent again" in shown(objects_fields(GetCounts(), None))
