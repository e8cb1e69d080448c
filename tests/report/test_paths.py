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
        "gpu": None,
        "together": (),
        "ceiling": None,
        "ceiling_bytes_per_second": None,
        "host_user_percentage": 0.2,
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
    low, high = ["26,214", "107", "MB/s"], ["262,144", "1.07", "GB/s"]
    rest = ["0.14%", "2.5", "ms"]
    assert ["4.0", "KiB", "1", "O_DIRECT,", "processes", *low, *rest, "20.00", "-"] in rows
    assert ["4.0", "KiB", "32", "io_uring", *high, *rest, "6.50", "1", "µs,", "1.02", "x"] in rows
    *_, plot = plots_of([cell("host_direct"), deep])
    assert (plot.x.names, plot.y.name) == (["1", "32"], "thousand IOPS")
    assert "own code: what dlemu itself takes of each block in io_uring; a program" in text
    assert ", 10 x" in shown({**deep, "iops": 24e6})  # nothing but our code was measured


def test_targets_and_queues_stand_one_below_the_other() -> None:
    snap = [cell("host_direct", 65536, target="/mnt/snap", queues=each) for each in (1, 31)]
    lines = shown(*snap, cell("host_direct", 65536, target="/mnt/local")).splitlines()
    names = [line.split("64.0 KiB   ")[1][:29].strip() for line in lines if "64.0 KiB   " in line]
    few, many = "/mnt/snap O_DIRECT, 1 queue", "/mnt/snap O_DIRECT, 31 queues"
    assert names == [few, many, "/mnt/local O_DIRECT"]


def test_what_is_lost_together_and_the_share_of_a_ceiling_are_columns() -> None:
    both = ("/mnt/d0", "/mnt/d1")
    most: dict[str, Any] = {"ceiling": "PCIe link", "ceiling_bytes_per_second": 8.0 * 2**30}
    alone = [cell("host_direct", target=each, gib=4.0) for each in both]
    at_once = [cell("host_direct", target=each, gib=3.0, together=both) for each in both]
    total = cell("host_direct", target="sum", gib=6.0, together=both, **most)
    lines = shown(*alone, *at_once, total).splitlines()
    first, _, second, _, last = [" ".join(line.split()) for line in lines if "4.0 KiB  " in line]
    assert first == "4.0 KiB /mnt/d0 O_DIRECT 1,048,576 4.29 GB/s 0.14% 2.5 ms - -"
    assert second == "4.0 KiB /mnt/d0 O_DIRECT, together 786,432 3.22 GB/s 0.14% 2.5 ms 75% -"
    assert last == ("4.0 KiB sum O_DIRECT 1,572,864 6.44 GB/s 0.14% 2.5 ms 75% 75% of PCIe link")


def test_a_busy_host_is_said_to_be() -> None:
    quiet, busy = cell("host_direct"), cell("host_direct", host_user_percentage=40.14)
    assert "other programs" not in shown(quiet)
    assert "other programs took up to 40 % of this host's CPU time" in shown(quiet, busy)
    one = cell("host_direct", together=("a", "b"), host_user_percentage=40.14)
    total = cell("host_direct", target="sum", cpu_user_percentage=39.0, host_user_percentage=40.14)
    assert "other programs" not in shown(one, total), "the other target's readers are ours"


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
    rate, late = plots_of([*whole, *cut])
    assert (rate.y.name, late.y.name) == ("throughput (GB/s)", "p99 latency (ms)")
    assert rate.x.names == ["64.0 KiB", "1.0 MiB", "4.0 MiB"]
    first, second = rate.series
    assert (first.name, first.look) != (second.name, second.look)
    assert [[x for x, _ in piece] for piece in first.pieces] == [[0, 1, 2]]
    assert [[x for x, _ in piece] for piece in second.pieces] == [[0], [2]]
    assert first.pieces[0][0][1] == pytest.approx(4.0 * 2**30 / 1e9)
