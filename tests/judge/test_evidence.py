"""What hosts and caches counted, put together by hand, and what follows from it."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from dlemu.config.model import Workload, load_workload
from dlemu.host.intervals import IntervalSummary
from dlemu.host.network import NetworkCounters, NicCounters
from dlemu.host.wear import DriveWrites
from dlemu.judge.bottleneck import find_run_limit
from dlemu.judge.evidence import (
    Evidence,
    HostReport,
    combine,
    stored_bytes,
)
from dlemu.judge.outcome import uncounted_too_much
from dlemu.judge.records import STEP
from dlemu.judge.summary import Summary
from dlemu.judge.sums import RankName, Rule
from dlemu.report.words import note_lines
from dlemu.storage.counted import PathBytes
from dlemu.storage.probe import Probe
from tests.host.test_wear import drive
from tests.lab.shared import sums_of

WORKLOAD = load_workload("unet3d_h100")
READ = 1000
"""Bytes that an epoch's steps have read, over all hosts."""
KINDS_THAT_COUNT_SOME = ["lustre", "ceph", "beegfs", "fuse.sshfs", "virtiofs", "cifs", "overlay"]


def epoch_of(seconds: float = 100.0, **seen: Any) -> IntervalSummary:
    """Return what a host counted in an epoch; what is not given is not known."""
    unknown: dict[str, Any] = dict.fromkeys(field.name for field in fields(IntervalSummary))
    least = {"seconds": seconds, "devices": {}, "usable_cpus": 4.0}
    if "device_read_bytes" in seen:
        least["device_reads"] = {"sda": seen["device_read_bytes"]}
    return IntervalSummary(**(unknown | least | seen))


def report(*epochs: IntervalSummary, **changes: Any) -> HostReport:
    known: dict[str, Any] = {"resident_before": 0.0, "direct": False, "file_system": "ext4"}
    known |= {"host": "a", "probe": None, "num_workers": 4}
    return HostReport(epochs=list(epochs), **(known | changes))


def gather(
    *hosts: HostReport, wait: Any = 0.0, workload: Workload = WORKLOAD, **more: Any
) -> Evidence:
    """Return what hosts with an accelerator each saw of epochs with 3 steps."""
    steps = np.zeros((len(hosts[0].epochs), len(hosts), 3), STEP)
    steps["epoch"] = np.arange(steps.shape[0])[:, None, None]
    steps["accelerator"] = np.arange(steps.shape[1])[:, None]
    steps["step"] = np.arange(3)
    steps["num_bytes"][:, :, 0] = READ // len(hosts)
    steps["compute"], steps["num_samples"] = 1.0, 7
    steps["read"], steps["decode"], steps["hand_over"] = 0.5, 0.25, 0.125
    steps["wait"], steps["computation_time"] = wait, 1.0
    names = [RankName(number) for number in range(len(hosts))]
    return combine(
        workload, list(hosts), sums_of(steps, names, Rule.of(workload)), PathBytes(), **more
    )


def test_the_share_from_memory_is_what_the_least_witness_leaves() -> None:
    """Others read from the drive as well; a cold epoch's read-ahead does not hide a cached one."""
    counts = ((900, 700), (3040, 3040), (10, 10))
    found = gather(
        report(
            *(
                epoch_of(devices={"sda": 0.5}, device_read_bytes=drive, process_read_bytes=own)
                for drive, own in counts
            )
        )
    )
    assert found.measured["page_cache_share_per_epoch"] == [pytest.approx(0.3), 0.0, 0.99]
    assert found.measured["page_cache_share"] == pytest.approx((300 + 990) / 3000)
    assert found.measured["storage_read_bytes"] == 3750
    assert found.measured["device_read_bytes"] == 3950


def test_the_read_amplification_is_bytes_of_the_storage_for_bytes_of_samples() -> None:
    sample = WORKLOAD.dataset.mean_bytes
    seen = epoch_of(devices={"sda": 0.5}, device_read_bytes=15_400, process_read_bytes=15_400)
    found = gather(report(seen))
    assert found.measured["read_amplification"] == pytest.approx(15_400 / (3 * 7 * sample))
    unseen = gather(report(epoch_of()))
    assert unseen.measured["read_amplification"] == pytest.approx(READ / (3 * 7 * sample))


@pytest.mark.parametrize("stored", [None, 400, 1200], ids=["not seen", "memory helped", "ahead"])
def test_what_the_storage_gave_in_the_steps_that_count(stored: int | None) -> None:
    """Two of three steps of 1 s count, and two hosts together read 1000 bytes an epoch."""
    seen = {} if stored is None else {"process_read_bytes": stored // 2}
    found = gather(*(report(epoch_of(**seen), epoch_of(**seen)) for _ in range(2)))
    assert found.given_in_steps == pytest.approx((stored or READ) / 3)


@pytest.mark.parametrize(
    ("rate", "left"),
    [(1e9, 0.0), (150.0, 1 / 2), (100.0, 2 / 3), (1.0, 2 / 3)],
    ids=["all that counts", "a part", "its own batch", "less than that"],
)
def test_what_first_steps_may_have_read_ahead_is_left_out(rate: float, left: float) -> None:
    """Each of 3 steps of one host reads 1000 / 3 bytes; the first lasts for 10 / 3 s."""
    probe = Probe(8, rate / 2, 64, rate)
    found = gather(
        report(epoch_of(process_read_bytes=READ), probe=probe), wait=np.array([7 / 3, 0.0, 0.0])
    )
    assert found.given_in_steps == pytest.approx(2 * READ / 3 / 2)
    assert found.given_but_ahead == pytest.approx(READ * left / 2, abs=1)
    assert gather(report(epoch_of(process_read_bytes=READ))).given_but_ahead is None


def test_nothing_is_read_ahead_where_first_steps_count() -> None:
    probe, waits = Probe(8, 100.0, 64, 1e9), np.array([7 / 3, 0.0, 0.0])
    steps = {"metric.edition": "v2.0", "metric.exclude_start_steps": 0}
    counts_all = load_workload("unet3d_h100", steps)
    found = gather(
        report(epoch_of(process_read_bytes=READ), probe=probe), wait=waits, workload=counts_all
    )
    assert found.given_but_ahead == found.given_in_steps == pytest.approx(READ / (3 + 7 / 3))


def test_bytes_from_memory_are_added_up_over_hosts() -> None:
    found = gather(
        report(epoch_of(process_read_bytes=500), resident_before=0.0),
        report(epoch_of(process_read_bytes=300), resident_before=0.5),
    )
    assert found.measured["page_cache_share"] == pytest.approx(0.2)
    assert found.measured["resident_share_before"] == 0.25
    unknown = gather(report(epoch_of(process_read_bytes=500)), report(epoch_of()))
    assert unknown.measured["page_cache_share"] is None


@pytest.mark.parametrize(
    ("resident", "direct", "noted"),
    [(0.0, False, True), (0.5, False, True), (0.25, False, False), (0.0, True, False)],
)
def test_counters_that_contradict_what_was_in_memory_are_noted(
    resident: float, direct: bool, noted: bool
) -> None:
    """30 % came from memory; O_DIRECT passes by what is there."""
    seen = epoch_of(devices={"sda": 0.5}, device_read_bytes=700, process_read_bytes=700)
    found = gather(report(seen, resident_before=resident, direct=direct))
    text = (
        "note: the drives' counters say that 30% of the first epoch came from memory, but "
        f"{100 * resident:.0f}% of the pages were in memory before: something else reads these "
        "drives, or memory was short"
    )
    assert note_lines({"notes": found.notes}) == ([text] if noted else [])


@pytest.mark.parametrize(
    ("file_system", "before", "after", "cached", "share"),
    [
        ("ext4", 0.0, 0.0, False, 0.0),
        ("nfs4", 0.0, None, False, 0.0),
        ("ext4", 0.0, 0.3, False, 0.3),  # as with data=journal
        ("xfs", 0.4, 0.4, False, 0.3),
        ("zfs", 0.0, 0.0, False, 0.3),  # which has a cache of its own
        ("ext4", 0.0, 0.0, True, 0.3),
    ],
)
def test_no_share_from_memory_that_no_cache_explains(
    file_system: str, before: float, after: float | None, cached: bool, share: float
) -> None:
    """With O_DIRECT, 30 % of an epoch's bytes were not counted by any drive."""
    seen = epoch_of(devices={"sda": 0.5}, device_read_bytes=700, process_read_bytes=700)
    known = {"file_system": file_system, "resident_before": before, "resident_after": after}
    own = WORKLOAD.with_keys({"cache.folder": "/mnt/c", "cache.capacity": 1}) if cached else None
    found = gather(report(seen, seen, direct=True, **known), wait=1.0, workload=own or WORKLOAD)
    assert found.measured["page_cache_share"] == pytest.approx(share)
    assert found.measured["storage_read_bytes"] == 1400
    assert found.measured.get("uncounted_share", 0.0) == pytest.approx(0.3 - share)
    reason = uncounted_too_much(Summary(measured=found.measured))
    assert (reason is not None) is (share == 0)
    assert reason is None or reason.figures["counted_share"] == pytest.approx(0.7)


def test_a_hosts_counters_are_those_of_all_epochs_by_their_time() -> None:
    eth0 = NetworkCounters({"eth0": NicCounters(5 * 10**9, 0)}, 30, 20, 1, 3)
    seen: dict[str, Any] = {"process_cpu_seconds": 60.0, "runqueue_seconds": 3.0}
    seen |= {"throttled_seconds": 1.5, "network": eth0, "process_read_bytes": 600}
    one = epoch_of(300.0, devices={"sda": 0.9, "sdb": 0.1}, host_cpu_share=0.2, **seen)
    two = epoch_of(100.0, devices={"sda": 0.1, "sdb": 0.8}, host_cpu_share=0.6, **seen)
    (host,) = gather(report(one, two, links={"eth0": 10**9})).hosts
    assert host.whole.seconds == 400 and host.num_workers == 4
    assert host.device == "sda"
    assert host.device_busy_share == pytest.approx((300 * 0.9 + 100 * 0.1) / 400)
    assert host.read_bytes_per_second == pytest.approx(1200 / 400)
    assert host.whole.process_cpu_share == pytest.approx(120 / (4 * 400))
    assert host.whole.host_cpu_share == pytest.approx((300 * 0.2 + 100 * 0.6) / 400)
    assert (host.whole.runqueue_seconds, host.whole.throttled_seconds) == (6.0, 3.0)
    assert host.network is not None
    assert host.network.received_bytes_per_second == 10**10 / 400
    assert host.network.received_share == pytest.approx(0.2)
    (unknown,) = gather(report(one, epoch_of())).hosts
    assert unknown.network is None and unknown.whole.process_cpu_share is None


def test_where_storage_is_not_seen_a_hosts_rate_is_its_part_of_what_loaders_took() -> None:
    hosts = gather(report(epoch_of()), report(epoch_of(), host="b")).hosts
    assert [host.read_bytes_per_second for host in hosts] == [READ / 2 / 100] * 2


def test_what_hosts_of_one_machine_share_counts_once() -> None:
    """Containers may share a drive, and the network interfaces; both see what both have read."""

    def of(name: str, machine: str, network: str, read: int, received: int) -> HostReport:
        counted = NetworkCounters({"eth0": NicCounters(received, 2)}, 30, 20, 1, 3)
        worn = drive("sda", None, None, None)
        worn["host"], worn["block_bytes_written"] = name, read
        return report(
            epoch_of(devices={"sda": 0.5}, device_read_bytes=read, network=counted),
            host=name, machine=machine, network_name=network, links={"eth0": 10**9},
            wear=DriveWrites([worn], 1.0),
        )  # fmt: skip

    apart = gather(of("a", "x", "x/1", 700, 50), of("b", "y", "y/1", 700, 50)).measured
    assert apart["device_read_bytes"] == 1400 and apart["wear"]["block_bytes_written"] == 1400
    received = {"received_bytes": 100, "received_segments": 60, "unordered_segments": 6}
    sent = {"sent_bytes": 4, "sent_segments": 40, "resent_segments": 2}
    assert apart["network"] == received | sent
    shared = gather(of("a", "x", "x/1", 700, 50), of("b", "x", "x/1", 690, 50)).measured
    assert shared["device_read_bytes"] == 700 and shared["wear"]["block_bytes_written"] == 700
    assert shared["network"] is not None and shared["network"]["received_bytes"] == 50
    own_links = gather(of("a", "x", "x/1", 700, 50), of("b", "x", "x/2", 690, 50)).measured
    assert own_links["network"] is not None and own_links["network"]["received_bytes"] == 100
    unknown = gather(of("a", "", "", 700, 50), of("b", "", "", 700, 50)).measured
    assert unknown["device_read_bytes"] == 1400


def test_workers_time_is_that_of_all_hosts() -> None:
    found = gather(report(epoch_of(), num_workers=4), report(epoch_of(), num_workers=8))
    assert found.measured["worker_seconds"] == 12 * 100.0
    assert found.measured["read_seconds"] == 6 * 0.5


def test_what_hosts_counted_reaches_the_verdict() -> None:
    """Other guests took the CPUs that workers waited for."""
    seen: dict[str, Any] = {"process_cpu_seconds": 40.0, "runqueue_seconds": 1.0}
    seen |= {"host_cpu_share": 0.3, "host_steal_share": 0.6}
    found = gather(report(epoch_of(**seen), probe=Probe(2, 1e9, 16, 9e9), num_workers=2), wait=0.5)
    (host,) = found.hosts
    assert host.whole.lacked_seconds == pytest.approx(1 + 40 * 0.6 / 0.3)
    assert found.measured["hosts"][0]["probe"]["many"] == 9e9
    limit = find_run_limit(found)
    assert limit.name == "host cpu"
    (cpus,) = (each.figures for each in limit.evidence if each.kind == "host_cpus")
    assert (cpus["total_cpu_share"], cpus["steal_share"]) == pytest.approx((0.3, 0.6))
    quiet = report(epoch_of(**seen | {"host_steal_share": 0.0}), num_workers=2)
    assert find_run_limit(gather(quiet, wait=0.5)).name == "storage"


# --- the bytes that storage delivered -------------------------------------------------------------


DRIVE = {"devices": {"sda": 0.5}, "device_read_bytes": 800}


@pytest.mark.parametrize(
    ("counts", "kind", "stored"),
    [
        ({**DRIVE, "process_read_bytes": 700}, "ext4", 700),
        ({**DRIVE, "process_read_bytes": 0}, "ext4", 0),
        (DRIVE, "ext4", 800),
        ({"network_read_bytes": 600, "process_read_bytes": 500}, "nfs4", 500),
        ({"network_read_bytes": 600, "process_read_bytes": 0}, "nfs4", 600),
        ({"process_read_bytes": 500}, "tmpfs", 0),
        ({"process_read_bytes": 500}, "xfs", 500),
        ({}, "xfs", None),
        ({"process_read_bytes": 500}, "lustre", None),
        ({"process_read_bytes": 1000}, "zfs", None),
    ],
)
def test_the_best_witness_tells(counts: dict[str, Any], kind: str, stored: int | None) -> None:
    assert stored_bytes(epoch_of(**counts), kind) == stored


@pytest.mark.parametrize("kind", KINDS_THAT_COUNT_SOME)
@pytest.mark.parametrize(("counted", "vouched"), [(0, None), (940, None), (960, 960), (None, None)])
def test_a_count_that_may_not_be_all_tells_only_if_it_is_nearly_all(
    kind: str, counted: int | None, vouched: int | None
) -> None:
    assert stored_bytes(epoch_of(process_read_bytes=counted), kind, READ) == vouched


@pytest.mark.parametrize(
    ("kind", "counted", "share", "note"),
    [
        ("tmpfs", [0, 0], 1.0, "the data folder lies in memory (tmpfs): no storage was read"),
        ("lustre", [980, 1000], 0.01, "which sees no cache but the page cache"),
        ("lustre", [980, 300], None, "how many bytes came from memory is not known; 25% of the"),
        ("fuse", [0, 0], None, "(fuse), and the processes' own count (read_bytes) does not tell"),
        ("gpfs", [1000, 1000], None, "does not tell"),
        ("xfs", [1000, 400], 0.3, "which sees no cache but the page cache"),
    ],
)
def test_a_share_is_known_or_it_is_said_why_not(
    kind: str, counted: list[int], share: float | None, note: str
) -> None:
    epochs = (epoch_of(process_read_bytes=num) for num in counted)
    found = gather(report(*epochs, file_system=kind, resident_before=0.25))
    assert found.measured["page_cache_share"] == (None if share is None else pytest.approx(share))
    assert note in "; ".join(note_lines({"notes": found.notes}))
