"""Documents as text: tables, runs and their hosts, checkpoints, wear, and noise."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dlemu.checkpoint.plan import predict_checkpoint
from dlemu.config.model import load_model, load_workload
from dlemu.host.wear import WearFields, Written, combine_hosts, has_writes
from dlemu.judge.metrics import measure
from dlemu.judge.records import STEP
from dlemu.report.blocks import Table
from dlemu.report.checkpoint import present_predicted_checkpoint
from dlemu.report.compare import difference, figure, figure_of
from dlemu.report.in_run import belongs_to, host_lines, wear_line
from dlemu.report.text import render_text
from dlemu.terminal import set_mode
from tests.host.test_wear import GB, drive
from tests.lab.shown import text_of

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


def test_what_has_no_spread_has_no_noise() -> None:
    for new in ([1.0], [1.0, 2.0]):
        found = difference(figure_of(new), figure_of([1.0]))
        assert (found["noise"], found["within_noise"]) == (None, None)
    assert difference(figure(2.0, 0.0), figure(2.0, 0.0))["within_noise"] is True


def test_parts_of_one_run_tell_no_interval_of_a_difference() -> None:
    one = {**figure_of([1.0, 2.0, 3.0]), "of_one_run": True}
    found = difference(one, figure_of([1.0, 2.0, 3.0]))
    assert (found["noise"], found["within_noise"]) == (None, None)
    assert found["within_one_run"] == pytest.approx(2.776 * math.sqrt(2 / 3))


def costs_of(seconds: float, mtbf: float | None) -> str:
    """Return the text of a prediction whose checkpoint takes so many seconds."""
    keys = {"drive": "d7_ps1010", "checkpoint.mtbf": mtbf}
    document = predict_checkpoint(load_model("llama3_8b", keys))
    document["save"]["seconds"] = seconds
    return render_text(present_predicted_checkpoint(document))


@pytest.mark.parametrize(
    ("seconds", "mtbf", "line"),
    [
        (12.5, 10_000, "one every 8:20 is best; checkpoints and lost work then cost 5% of"),
        (4.999, 10, "one every 10 s is best; checkpoints and lost work then cost 100% of"),
        (0.036, 0.01, "the job never ends: a checkpoint alone takes 36 ms"),
    ],
)
def test_what_failures_cost(seconds: float, mtbf: float, line: str) -> None:
    assert line in costs_of(seconds, mtbf)


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
    hosts = [
        {
            "host": name,
            "device": device,
            "read_bytes_per_second": read,
            "network": {
                "nic": "eth0",
                "gbps": None if share is None else 10.0,
                "received_share": share and share * part,
                "sent_share": share and 0.01,
                "received_bytes_per_second": 1.2e9 * part,
                "sent_bytes_per_second": 3e6,
            },
        }
        for name, part in (("a", 0.5), ("b", 1.0))
    ]
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
    return combine_hosts([Written(*written)], endurance=endurance)


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
            "writes a day, 10 years for a new drive; no WAF: sda is no NVMe drive",
        ),
        (
            of([drive("sda", GB, None, None)], 86_400.0, 0),
            "wear: 953.7 MiB written to sda, none of it into files of this command",
        ),
        (
            of([], 1.0, 0, "no drive is seen under the folder (nfs4)"),
            "wear: not known; no drive is seen under the folder (nfs4)",
        ),
    ],
)
def test_wear_is_one_line(wear: WearFields, line: str) -> None:
    assert wear_line(wear) == line


def test_little_is_not_worth_a_line() -> None:
    assert has_writes(known())
    assert not has_writes(
        known(block_bytes_written=10**8 - 1, host_bytes_written=None, file_bytes_written=0)
    )
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
