"""Documents as text: tables, runs, checkpoints, wear, noise, and cells of `dlemu paths`."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from dlemu.checkpoint.plan import predict_checkpoint
from dlemu.cli.paths import cells_csv
from dlemu.config.model import load_model, load_workload
from dlemu.findings import note
from dlemu.host.wear import DriveWrites, WearFields, combine_hosts, has_writes
from dlemu.judge.metrics import measure
from dlemu.judge.records import STEP
from dlemu.judge.steady import Piece, steadiness
from dlemu.report.blocks import Table
from dlemu.report.checkpoint import present_predicted_checkpoint
from dlemu.report.compare import difference, figure, figure_of
from dlemu.report.in_run import belongs_to, host_lines, wear_line
from dlemu.report.paths import path_name, plots_of, present_paths
from dlemu.report.text import render_text
from dlemu.report.tools import _changed_rates
from dlemu.terminal import set_mode
from dlemu.tools.paths.cells import Cell
from tests.host.test_wear import GB, drive
from tests.lab.shown import text_of
from tests.lab.stored import MADE

TABLE = Table(
    heads=("run", "verdict", "from memory (%)", "samples/s", "epochs under the threshold"),
    rows=[
        ("warmup.1", "NO VERDICT", "0.0", "1,018,000,000.81", "epoch 1 (71.43%), epoch 2 (70.92%)"),
        ("run.1", "FAIL", "12.5", "23.56", ""),
    ],
    texts=("verdict", "epochs under the threshold"),
    spare=("epochs under the threshold", "from memory (%)"),
)


@pytest.mark.parametrize(
    ("width", "gone"), [(100, []), (80, []), (55, TABLE.spare[:1]), (42, TABLE.spare)]
)
def test_a_table_breaks_no_word_and_leaves_out_what_may_be_spared(
    width: int, gone: Sequence[str]
) -> None:
    text = render_text([TABLE], width=width)
    assert max(map(len, text.splitlines())) <= width
    words = text.split()
    assert {"warmup.1", "VERDICT", "1,018,000,000.81", "FAIL", "samples/s"} <= set(words)
    note = f"left out, for lack of columns: {', '.join(gone)};" if gone else "(70.92%)"
    assert note in " ".join(words)


def test_two_series_are_compared_as_welch_does() -> None:
    old, new = figure_of([10.0, 11.0, 12.0, 13.0, 14.0]), figure_of([11.0, 12.0, 13.0, 14.0, 15.0])
    # Both have sd² = 2.5, so 8 degrees of freedom: t = 2.306, and sqrt(2.5 / 5 + 2.5 / 5) = 1.
    assert difference(new, old) == {
        "value": 1.0,
        "against": 12.0,
        "noise": pytest.approx(2.306),
        "within_one_run": None,
        "share": pytest.approx(1 / 12),
        "within_noise": True,
    }
    assert difference(figure(15.0, 0.1, 4), old)["within_noise"] is False
    # The noisier of two has the fewer degrees of freedom.
    found = difference(figure(1.0, 1.0, 2), figure(0.0, 0.0, 100))
    assert found["noise"] == pytest.approx(4.303) and found["share"] is None


def test_parts_of_one_run_tell_no_interval_of_a_difference() -> None:
    one = {**figure_of([1.0, 2.0, 3.0]), "of_one_run": True}
    found = difference(one, figure_of([1.0, 2.0, 3.0]))
    assert (found["noise"], found["within_noise"]) == (None, None)
    assert found["within_one_run"] == pytest.approx(2.776 * math.sqrt(2 / 3))


@pytest.mark.parametrize(
    ("seconds", "mtbf", "line"),
    [
        (12.5, 10_000, "one every 8:20 is best; checkpoints and lost work then cost 5% of"),
        (4.999, 10, "one every 10 s is best; checkpoints and lost work then cost 100% of"),
        (0.036, 0.01, "the job never ends: a checkpoint alone takes 36 ms"),
    ],
)
def test_what_failures_cost(seconds: float, mtbf: float, line: str) -> None:
    keys = {"drive": "d7_ps1010", "checkpoint.mtbf": mtbf}
    document = predict_checkpoint(load_model("llama3_8b", keys))
    document["save"]["seconds"] = seconds
    assert line in render_text(present_predicted_checkpoint(document))


def test_reads_are_told_where_ranges_or_records_are_read() -> None:
    rows = np.zeros((1, 2, 3), STEP)
    rows["accelerator"], rows["step"] = np.arange(2)[:, None], np.arange(3)
    rows["compute"] = rows["computation_time"] = 1.0
    rows["num_samples"], rows["num_reads"] = 7, 2000
    metrics = measure(rows)
    line = ["reads/s", "4,000", "4,000", "4,000"]
    for name, told in (("dlrm_b200", True), ("gnn_rgat_h100", True), ("unet3d_h100", False)):
        lines = text_of(load_workload(name), metrics).splitlines()
        assert (line in map(str.split, lines)) is told, name
    rows["num_reads"] = 0  # nobody counted
    assert "reads/s" not in text_of(load_workload("dlrm_b200"), measure(rows))


def lines_of(hosts: list[dict[str, Any]], *, in_memory: bool = False) -> list[str]:
    """Return what a run's report says of its hosts."""
    place = {"in_memory": in_memory}
    document = {"status": "complete", "system": [place], "measured": {"hosts": hosts}}
    return list(host_lines(document))


def network_of(
    device: str | None, share: float | None, in_memory: bool = False, read: float = 1e9
) -> list[str]:
    """Return the report's lines on the network of two hosts, the second one's at this share."""
    hosts = []
    for name, part in (("a", 0.5), ("b", 1.0)):
        link = {"nic": "eth0", "gbps": share and 10.0, "sent_share": share and 0.01}
        link |= {"received_share": share and share * part, "sent_bytes_per_second": 3e6}
        link |= {"received_bytes_per_second": 1.2e9 * part}
        own = {"host": name, "device": device, "read_bytes_per_second": read, "network": link}
        hosts.append(own)
    return lines_of(hosts, in_memory=in_memory)


def test_the_network_is_told_where_it_matters() -> None:
    rates = "network: host b received 1.2 GB/s and sent 3 MB/s"
    assert network_of("sda", 0.96) == [f"{rates}; eth0: 96% of 10 Gb/s"]
    assert network_of("sda", 0.4) == network_of("sda", None) == []
    assert network_of(None, 0.4) == [f"{rates}; eth0: 40% of 10 Gb/s"]
    unknown = f"{rates}; the rate of eth0 is unknown; set client.nic_gbps=..."
    assert network_of(None, None) == [unknown]
    assert network_of(None, 0.4, in_memory=True) == []
    # The server is on this host: its bytes go over lo. Others read 1.2 GB/s meanwhile.
    assert network_of(None, 0.4, read=13e9) == network_of(None, None, read=13e9) == []
    assert network_of(None, 0.6, read=13e9) != [], "a link that is half full tells of it"


def test_several_hosts_tell_how_long_their_start_took() -> None:
    def told(*seconds: float | None) -> list[str]:
        hosts = [{"host": f"h{n}", "start_seconds": each} for n, each in enumerate(seconds)]
        return lines_of(hosts)

    until = "from launch to the first step"
    assert told(3.21, 2.0) == [f"start: host h1 2.0 s, host h0 3.2 s {until}"]
    assert told(3.21) == told(3.21, None) == []
    assert told(3, 2, 9, 4, 5) == [f"start: 2.0 to 9.0 s {until}, the longest on host h2"]


def of(*written: Any, endurance: int | None = None) -> WearFields:
    return combine_hosts([DriveWrites(*written)], endurance=endurance)


def known(**changes: object) -> WearFields:
    wear = of([drive("nvme0n1", 4 * GB, 5 * GB, 3)], 3600.0, 4 * GB)
    wear.update(changes)  # type: ignore[typeddict-item]
    return wear


@pytest.mark.parametrize(
    ("wear", "line"),
    [
        (
            known(file_system_amplification=147.62, years_left=12.345),
            "wear: 3.7 GiB written to nvme0n1 (147.62 x the files' bytes; the writes of other "
            "programs count), 4.7 GiB to flash, WAF 1.25; 3% of the life used; at this pace 0.096 "
            "drive writes a day, 12.3 years left",
        ),
        (
            of([drive("sda", None, None, None)], 86_400.0, GB, endurance=365 * 10**10),
            "wear: 953.7 MiB written to sda (1.00 x the files' bytes); at this pace 0.001 drive "
            "writes a day, 10 years for a new drive; no WAF: sda is no NVMe drive "
            "(smartctl -A /dev/sda may tell more)",
        ),
        (
            of([drive("sda", GB, None, None)], 86_400.0, 0),
            "wear: 953.7 MiB written to sda, none of it into files of this command",
        ),
        (
            of([], 1.0, 0, note("no_drive_under_folder", file_system="nfs4")),
            "wear: not known; no drive is seen under the folder (nfs4)",
        ),
    ],
)
def test_wear_is_one_line(wear: WearFields, line: str) -> None:
    assert wear_line(wear) == line


def test_little_is_not_worth_a_line() -> None:
    assert has_writes(known())
    little = {"host_bytes_written": None, "file_bytes_written": 0}
    assert not has_writes(known(block_bytes_written=10**8 - 1, **little))
    assert has_writes(of([], 1.0, 10**8))
    assert not has_writes(of([], 1.0))


def test_a_report_shows_the_wear_of_what_wrote_files() -> None:
    read_only = of([drive("sda", GB, None, None)], 13.0, 0)
    assert belongs_to(known()) and not belongs_to(read_only)
    assert not belongs_to(
        known(block_bytes_written=10**7, host_bytes_written=None, file_bytes_written=1)
    )
    set_mode(verbose=True)
    try:
        assert belongs_to(read_only)
    finally:
        set_mode()


# --- cells of dlemu paths -------------------------------------------------------------------------


def cell(path: str, io_size: int = 4096, gib: float = 0.1, **changes: Any) -> dict[str, Any]:
    """Return the fields of a cell."""
    own = {"path": path, "io_size": io_size, "gib_per_second": gib, "host_bytes": 0}
    own |= {"iops": gib * 2**30 / io_size, "workers": 24}
    return asdict(Cell(**(MADE["paths"] | own | changes)))


def shown(*cells: dict[str, Any]) -> str:
    return render_text(present_paths({"measured": "2026-01-02", "cells": cells}))


def test_a_drive_that_slowed_down_in_a_cell_is_told() -> None:
    fell = steadiness([Piece(1.0, 4e8)] * 30 + [Piece(1.0, 1e8)] * 15)
    assert fell is not None and fell.trend == "fell"
    text = shown(cell("host_direct", steady=fell.fields), cell("host_buffered"))
    lines = [line for line in text.splitlines() if "not steady" in line]
    assert lines == [
        "O_DIRECT, sequential reads of 4.0 KiB, 24 workers: not steady: 400 MB/s for the first "
        "30 s, then 100 MB/s"
    ]
    assert "not steady" not in shown(cell("host_direct", steady=None))
    rows = cells_csv([cell("host_direct", steady=fell.fields), cell("host_buffered")]).splitlines()
    assert [row.rpartition(",")[2] for row in rows] == ["steady", "fell", ""]
    found = {"cells": [{"way": "mmap", "readers": 1, "steady": fell.fields}]}
    assert _changed_rates(found["cells"])[0].startswith("mmap, 1 reader: not steady: 400 MB/s")


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


def test_compatibility_mode_is_never_called_gds() -> None:
    for mode in ("p2pdma", "nvidia-fs"):
        assert path_name("cufile", mode) == f"GDS ({mode})"
    for mode in ("compat", "compat+p2pdma"):
        assert path_name("cufile", mode) == f"cuFile ({mode})"


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
