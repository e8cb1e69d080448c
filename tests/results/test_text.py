"""What people read, compared whole."""

import numpy as np

from dlemu.results.metrics import Metrics, measure
from dlemu.results.records import STEP
from dlemu.results.summary import Summary
from dlemu.workload.model import load_workload
from tests.lab.shown import text_of, verdict_of

WORKLOAD = load_workload("unet3d_h100", {"train.computation_time": 1.0})


def metrics_of(*waits: tuple[float, ...], accelerators: int = 16) -> Metrics:
    """Return the metrics of a run in which each epoch's accelerators wait alike."""
    rows = np.zeros((len(waits), accelerators, len(waits[0])), STEP)
    rows["epoch"] = np.arange(len(waits))[:, None, None]
    rows["accelerator"] = np.arange(accelerators)[:, None]
    rows["step"] = np.arange(len(waits[0]))
    rows["wait"] = np.array(waits)[:, None, :]
    rows["compute"] = rows["computation_time"] = 1.0
    rows["num_samples"] = 7
    rows["num_bytes"] = 7 * 140 * 2**20
    return measure(rows)


# Epoch 1: 5 s, of which the first step takes 2: AU 2/3. Epoch 2: 4.1 s and 1.5 s: AU 2/2.6.
SLOW = metrics_of((1, 1, 0), (0.5, 0.5, 0.1))
UNLIKE = "unlike unet3d_h100: demand 1.03 GB/s, not 3.18 GB/s (computation_time)"


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
    summary = Summary(status="complete", measured={"hosts": hosts}, place={"in_memory": in_memory})
    text = text_of(WORKLOAD, SLOW, summary)
    return [line for line in text.splitlines() if line.startswith("network: ")]


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
        summary = Summary(status="complete", measured={"hosts": hosts})
        lines = text_of(WORKLOAD, SLOW, summary).splitlines()
        return [line for line in lines if line.startswith("start: ")]

    until = "from launch to the first step"
    assert told(3.21, 2.0) == [f"start: host h1 2.0 s, host h0 3.2 s {until}"]
    assert told(3.21) == told(3.21, None) == []
    assert told(3, 2, 9, 4, 5) == [f"start: 2.0 to 9.0 s {until}, the longest on host h2"]


def test_bytes_from_memory_are_said_beside_the_verdict() -> None:
    summary = Summary(status="complete", measured={"page_cache_share": 0.12})
    assert verdict_of(WORKLOAD, SLOW, summary).endswith(
        f"; BUT 12% of the bytes came from memory, not from storage; {UNLIKE}"
    )
    own = WORKLOAD.with_keys({"metric.max_cached_share": 0.5})
    summary = Summary(status="complete", measured={"page_cache_share": 0.42})
    assert verdict_of(own, SLOW, summary).endswith(
        "; BUT 42% of the bytes came from memory, not from storage, max_cached_share=0.5 as set; "
        f"{UNLIKE}"
    )
