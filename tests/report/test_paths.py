"""Cells of `dlemu paths` as tables and lines. The golden files hold a whole text."""

from typing import Any

import pytest

from dlemu.report.paths import path_name, plots_of, present_paths
from dlemu.report.text import render_text


def cell(path: str, io_size: int = 4096, gib: float = 0.1, **changes: Any) -> dict[str, Any]:
    """Return the fields of a cell that a report shows."""
    return {
        "target": "/mnt/d1",
        "path": path,
        "pattern": "seq_read",
        "io_size": io_size,
        "workers": 24,
        "queue_depth": 1,
        "queues": None,
        "gib_per_second": gib,
        "iops": gib * 2**30 / io_size,
        "latency_p99": 0.0025,
        "cpu_user_percentage": 0.14,
        "cpu_system_percentage": 0.5,
        "cpu_seconds_per_gb": 0.05,
        "cpu_seconds_per_million_ios": None,
        "mode": "host",
        **changes,
    }


def shown(*cells: dict[str, Any]) -> str:
    return render_text(present_paths({"measured": "2026-01-02", "cells": cells}))


def test_depths_have_a_row_each_with_the_cpu_time_of_a_million() -> None:
    deep = cell("host_io_uring", gib=1.0, queue_depth=32, cpu_seconds_per_million_ios=6.5)
    text = shown(cell("host_direct", cpu_seconds_per_million_ios=20.0), deep)
    rows = [line.split() for line in text.splitlines()]
    assert ["1", "O_DIRECT,", "processes", "26,214", "107", "MB/s", "20.00", "2.5", "ms"] in rows
    assert ["32", "io_uring", "262,144", "1.07", "GB/s", "6.50", "2.5", "ms"] in rows
    assert "/mnt/d1: dlemu's own code takes 1 µs at depth 32 (1.02 x) of each block" in text
    assert "(10 x)" in shown({**deep, "iops": 24e6})  # nothing but our code was measured


def test_targets_and_queues_stand_one_below_the_other() -> None:
    snap = [cell("host_direct", 65536, target="/mnt/snap", queues=each) for each in (31, 1)]
    lines = shown(*snap, cell("host_direct", 65536, target="/mnt/local")).splitlines()
    names = [line.split("64.0 KiB   ")[1][:29].strip() for line in lines if "64.0 KiB   " in line]
    few, many = "/mnt/snap O_DIRECT, 1 queue", "/mnt/snap O_DIRECT, 31 queues"
    assert names == [few, many, "/mnt/local O_DIRECT"]


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("p2pdma", "GDS (p2pdma)"),
        ("nvidia-fs", "GDS (nvidia-fs)"),
        ("compat", "cuFile (compat)"),
        ("compat+p2pdma", "cuFile (compat+p2pdma)"),
    ],
)
def test_compatibility_mode_is_never_called_gds(mode: str, name: str) -> None:
    assert path_name("cufile", mode) == name


def test_a_line_has_a_gap_where_a_size_was_not_measured() -> None:
    sizes = [64 << 10, 1 << 20, 4 << 20]
    cut = [cell("host_direct", size, 2.0) for size in (sizes[0], sizes[2])]
    whole = [cell("cufile", size, 4.0, mode="p2pdma") for size in sizes]
    rate, cpu = plots_of([*whole, *cut])
    assert (rate.y.name, cpu.y.name) == ("throughput (GB/s)", "CPU seconds per GB")
    assert rate.x.names == ["64.0 KiB", "1.0 MiB", "4.0 MiB"]
    first, second = rate.series
    assert (first.name, first.look) != (second.name, second.look)
    assert [[x for x, _ in piece] for piece in first.pieces] == [[0, 1, 2]]
    assert [[x for x, _ in piece] for piece in second.pieces] == [[0], [2]]
    assert first.pieces[0][0][1] == pytest.approx(4.0 * 2**30 / 1e9)
