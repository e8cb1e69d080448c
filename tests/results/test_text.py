"""What a run's report says only where it matters; tests/golden/run.txt has it whole."""

from typing import Any

import numpy as np

from dlemu.report.in_run import host_lines
from dlemu.results.metrics import measure
from dlemu.results.records import STEP
from dlemu.workload.model import load_workload
from tests.lab.shown import text_of


# Epoch 1: 5 s, of which the first step takes 2: AU 2/3. Epoch 2: 4.1 s and 1.5 s: AU 2/2.6.
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
    document = {"status": "complete", "place": place, "measured": {"hosts": hosts}}
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
