"""Which resource bound a run: a table of evidence, each row one clear case."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.host.intervals import IntervalSummary
from dlemu.host.network import NetworkUse
from dlemu.results.bottleneck import Evidence, HostEvidence, find_limit, limit_in_memory
from dlemu.results.checkpoints import CheckpointCost
from dlemu.results.evidence import HostReport, combine
from dlemu.results.losses import find_losses
from dlemu.results.metrics import measure
from dlemu.results.records import STEP, Steps
from dlemu.results.summary import Summary
from dlemu.results.sums import Rule
from dlemu.storage.path_bytes import PathBytes
from dlemu.storage.probe import Probe
from dlemu.workload.model import load_workload
from dlemu.workload.sections import ReaderSection
from tests.lab.shown import verdict_of
from tests.lab.summed import sums_of

WORKLOAD = load_workload("unet3d_h100")
GB = 1e9
NUM_STEPS = 11
READER: dict[str, Any] = {"read_threads": 4, "data_loader": "pytorch"}


def steps_of(*waits: Any, **fields: Any) -> Steps:
    """Return the steps of accelerators that wait so long for each batch and compute for 1 s.

    Values are one for all, one for each accelerator, or one for each of its steps. Unless told
    else, workers are in reads for 4 s a batch, and accelerators meet as soon as the last is there.
    """
    rows = np.zeros((len(waits), NUM_STEPS), STEP)
    rows["accelerator"] = np.arange(len(waits))[:, None]
    rows["step"] = np.arange(NUM_STEPS)
    rows["num_samples"] = 7
    asked = {"compute": 1.0, "computation_time": 1.0, "read": 4.0} | fields
    for name, value in ({"wait": waits} | asked).items():
        column = np.asarray(value, float)
        rows[name] = column[:, None] if column.ndim == 1 else column
    ready = rows["wait"] + rows["compute"]
    if "barrier" not in fields:
        rows["barrier"] = ready.max(axis=0) - ready
    return rows.ravel()


def host(**changes: Any) -> HostEvidence:
    """Return a host with CPUs to spare, whose drive is busy and gives no more."""
    seen: dict[str, Any] = {
        "host": "a",
        "seconds": 100.0,
        "device": "nvme0n1",
        "device_busy_share": 0.99,
        "read_bytes_per_second": 6 * GB,
        "probe": probe(6.1),
        "cpu_share": 0.3,
        "host_cpu_share": 0.35,
        "host_steal_share": 0.0,
        "runqueue_seconds": 2.0,
        "throttled_seconds": 0.0,
        "usable_cpus": 16.0,
        "num_workers": 8,
    }
    return HostEvidence(**(seen | changes))


def link(share: float | None, **changes: Any) -> dict[str, Any]:
    """Return a host without a drive that received so much of its link's rate."""
    use: dict[str, Any] = {
        "nic": "eth0",
        "gbps": None if share is None else 50.0,
        "received_share": share,
        "sent_share": share and 0.01,
        "received_bytes_per_second": 6.2 * GB,
        "sent_bytes_per_second": 0.1 * GB,
        "resent_share": 0.0,
        "unordered_share": 0.0,
    }
    network = NetworkUse(**(use | changes))
    return {"device": None, "device_busy_share": None, "network": network}


def probe(many: float, few: float = 6.0) -> Probe:
    """Return what 8 and 64 readers got, in GB/s."""
    return Probe(8, few * GB, 64, many * GB)


def evidence(**changes: Any) -> Evidence:
    """Return the evidence of a run that storage bound; by default a third of the time is lost."""
    steps = changes.pop("steps", None)
    steps = steps_of(0.5, 0.5) if steps is None else steps
    num_accelerators = int(steps["accelerator"].max()) + 1
    names = changes.pop("names", [f"rank {rank} on host a" for rank in range(num_accelerators)])
    preprocess = changes.pop("preprocess", 0.0)
    losses = find_losses(sums_of(steps, names, Rule(preprocess_seconds=preprocess)))
    seen: dict[str, Any] = {
        "losses": losses,
        "hosts": [host()],
        "read_seconds": 720.0,
        "worker_seconds": 800.0,
        "page_cache_share": 0.004,
        "reader": ReaderSection(**READER),
        "direct": False,
        "num_accelerators": num_accelerators,
    }
    return Evidence(**(seen | changes))


ONE_WAITS = 0.5, 0.01, 0.01
TWO_IN_TURN = np.where(np.arange(NUM_STEPS) % 2 == np.arange(2)[:, None], 1.2, 1.0)
IN_TURN = np.where(np.arange(NUM_STEPS) % 8 == np.arange(8)[:, None], 1.04, 1.0)
"""(8, steps) seconds of compute: in each step another accelerator is late."""
FEW_READS = {"read_seconds": 8.0}
STARVED = {"read": 0.01, "decode": 0.1}
OTHERS_WORK = {"cpu_share": 0.1, "host_cpu_share": 0.91}


def written(lost_share: float, during: float | None = 50.0) -> CheckpointCost:
    """Return what checkpoints cost, with this share of the loss in the steps during writes."""
    return CheckpointCost(
        number=2,
        stall_seconds=1.0,
        au_with_stalls_percentage=60.0,
        steps_while_writing=5,
        au_while_writing_percentage=during,
        au_otherwise_percentage=95.0,
        lost_share=lost_share,
    )


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "steps during writes lost most": ({"checkpoints": written(0.6)}, "checkpoints"),
    "steps during writes lost most, by CPUs": (
        {"checkpoints": written(0.6), "hosts": [host(cpu_share=0.97)]},
        "checkpoints",
    ),
    "steps during writes lost a little more": ({"checkpoints": written(0.4)}, "storage"),
    "checkpoints, and no step during a write": ({"checkpoints": written(0.0, None)}, "storage"),
    "drive busy, no more to more readers": ({}, "storage"),
    "no probe, no device seen": (
        {"hosts": [host(probe=None, device=None, device_busy_share=None)]},
        "storage",
    ),
    "little lost": ({"steps": steps_of(0.005, 0.01)}, "none"),
    "nothing lost": ({"steps": steps_of(0, 0)}, "none"),
    "CPUs full": ({"hosts": [host(cpu_share=0.97)]}, "host cpu"),
    "CPUs full though the drive is busy too": (
        {"hosts": [host(cpu_share=0.97, device_busy_share=1.0)]},
        "host cpu",
    ),
    "workers ready without a CPU": ({"hosts": [host(runqueue_seconds=50.0)]}, "host cpu"),
    "workers ready without a CPU for a little of their reads": (
        {"hosts": [host(runqueue_seconds=20.0)]},
        "storage",
    ),
    "stopped by the quota": (
        {"hosts": [host(throttled_seconds=50.0, runqueue_seconds=None)]},
        "host cpu",
    ),
    "one host of two is stopped": (
        {"hosts": [host(), host(host="b", cpu_share=0.2, throttled_seconds=50.0)]},
        "host cpu",
    ),
    "others have the CPUs, and workers are hardly in reads": (
        {
            "steps": steps_of(0.5, 0.5, **STARVED),
            "hosts": [host(**OTHERS_WORK, probe=probe(60))],
        }
        | FEW_READS,
        "host cpu",
    ),
    "others have the CPUs, but compute times differ as asked": (
        {
            "steps": steps_of(0.0, 0.0, compute=TWO_IN_TURN, computation_time=TWO_IN_TURN),
            "hosts": [host(**OTHERS_WORK)],
        },
        "barrier",
    ),
    "others have the CPUs, and the kernel does not tell who waits for one": (
        {"hosts": [host(**OTHERS_WORK, runqueue_seconds=None, throttled_seconds=None)]},
        "host cpu",
    ),
    "others have the CPUs, but workers did not lack them in their reads": (
        {"hosts": [host(**OTHERS_WORK)]},
        "storage",
    ),
    "other guests have the CPUs": (
        {
            "steps": steps_of(0.5, 0.5, **STARVED),
            "hosts": [host(cpu_share=1e-4, host_cpu_share=0.25, host_steal_share=0.65)],
        },
        "host cpu",
    ),
    "other guests take what workers use": (
        # 16 CPUs x 1 % x 100 s are used, and three times as much is stolen: of 80 s of making.
        {
            "hosts": [host(cpu_share=0.01, host_cpu_share=0.02, host_steal_share=0.06)],
        },
        "host cpu",
    ),
    "more readers get more": ({"hosts": [host(probe=probe(9))]}, "loader"),
    "more readers get more, but far less than what is asked for": (
        {"hosts": [host(probe=probe(9))], "steps": steps_of(9.0, 9.0, read=40.0)},
        "storage",
    ),
    "more readers get twice as much, where nothing is computed": (
        {
            "hosts": [host(probe=probe(13))],
            "steps": steps_of(1.0, 1.0, compute=0.0, computation_time=0.0),
        },
        "loader",
    ),
    "more readers get a third more, where nothing is computed": (
        {
            "hosts": [host(probe=probe(8))],
            "steps": steps_of(1.0, 1.0, compute=0.0, computation_time=0.0),
        },
        "storage",
    ),
    "as many readers get more after the run, and more readers no more than that": (
        {"hosts": [host(probe=probe(7.8, few=7.6))]},
        "storage",
    ),
    "as many readers get twice as much": ({"hosts": [host(probe=probe(12, few=12))]}, "loader"),
    "a fast drive that is seldom asked stalls": (
        # Workers are in reads for 5 % of the time, in which they get what the probe gets.
        {
            "hosts": [host(probe=probe(20, few=19), num_workers=8)],
            "steps": steps_of(0.05, 0.05),
            "read_seconds": 40.0,
        },
        "storage",
    ),
    "hosts share what storage gives": (
        {"hosts": [host(probe=probe(7.5)), host(probe=probe(5))]},
        "storage",
    ),
    "together they would get more": (
        {"hosts": [host(probe=probe(9)), host(probe=probe(9))]},
        "loader",
    ),
    "workers decode": ({"steps": steps_of(0.5, 0.5, read=0.4, decode=3.0)}, "loader"),
    "workers sleep": ({"steps": steps_of(0.5, 0.5, read=0.4), "preprocess": 0.5}, "loader"),
    "workers wait for their turn, but not those that are waited for": (
        {"read_seconds": 320.0},
        "storage",
    ),
    "half in reads": ({"steps": steps_of(0.5, 0.5, read=1.0, decode=1.0)}, "loader"),
    "no part is half of the loss": (
        {"steps": steps_of(0.05, 0.05, compute=1.04, read=1.0, decode=1.2)},
        "unclear",
    ),
    "CPUs unknown": (
        {"hosts": [host(cpu_share=None, runqueue_seconds=None, throttled_seconds=None)]},
        "unclear",
    ),
    "CPUs unknown, workers not in reads": (
        {
            "hosts": [host(cpu_share=None, runqueue_seconds=None, throttled_seconds=None)],
            "steps": steps_of(0.5, 0.5, read=0.01),
        },
        "unclear",
    ),
    "the link is full": ({"hosts": [host(**link(0.95))]}, "network"),
    "the link is full, and more readers would get more of it": (
        {"hosts": [host(**link(0.95), probe=probe(9))]},
        "network",
    ),
    "the link is full while it is read from": (
        {"hosts": [host(**link(0.5), num_workers=1)], "read_seconds": 400.0},
        "network",
    ),
    "the link is nearly full": ({"hosts": [host(**link(0.88))]}, "storage"),
    "the link's rate is not known": ({"hosts": [host(**link(None))]}, "storage"),
    "the link is full of what others read": (
        {"hosts": [host(**link(0.95, received_bytes_per_second=2.9 * GB))]},
        "storage",
    ),
    "the link is full, and CPUs as well": (
        {"hosts": [host(**link(0.95), cpu_share=0.97)]},
        "host cpu",
    ),
    "the link is full, but batches were late in decoding": (
        {"hosts": [host(**link(0.95))], "steps": steps_of(0.5, 0.5, read=0.4, decode=3.0)},
        "loader",
    ),
    "one link of three is full, and no rank is slower": (
        {"hosts": [host(**link(share)) for share in (0.95, 0.5, 0.5)]},
        "storage",
    ),
    "most bytes from memory": ({"page_cache_share": 0.97}, "unclear"),
    "one rank waits for slow reads, the others for it": (
        {"steps": steps_of(*ONE_WAITS, read=[1.0, 0.02, 0.02])},
        "barrier",
    ),
    "one rank is always served last": (
        {"steps": steps_of(*ONE_WAITS, read=[1.0, 0.9, 1.1])},
        "storage",
    ),
    "one rank computes for longer, the others wait for it": (
        {"steps": steps_of(0.01, 0.01, 0.01, compute=[1.4, 1.0, 1.0])},
        "barrier",
    ),
    "one rank computes for a little longer, which is nothing of the loss": (
        {"steps": steps_of(0.5, 0.5, 0.5, compute=[1.0003, 1.0, 1.0])},
        "storage",
    ),
    "many ranks on few cores: each step another one is late": (
        {
            "steps": steps_of(*[0.0] * 8, compute=IN_TURN),
            "hosts": [host(runqueue_seconds=9.0, num_workers=8)],
            "reader": ReaderSection(read_threads=1),
        },
        "host cpu",
    ),
    "each step another rank is late, though CPUs are free": (
        {"steps": steps_of(*[0.0] * 8, compute=IN_TURN), "reader": ReaderSection(read_threads=1)},
        "oversleep",
    ),
    "all are at the barrier, and stay there": (
        {"steps": steps_of(0.0, 0.0, barrier=0.1)},
        "barrier",
    ),
    "compute times differ as asked": (
        {"steps": steps_of(*[0.0] * 8, compute=IN_TURN, computation_time=IN_TURN)},
        "barrier",
    ),
    "compute times of two ranks differ as asked": (
        {"steps": steps_of(0.0, 0.0, compute=TWO_IN_TURN, computation_time=TWO_IN_TURN)},
        "barrier",
    ),
    "one of two ranks is late, now this one and now that": (
        {"steps": steps_of(0.0, 0.0, compute=TWO_IN_TURN)},
        "oversleep",
    ),
    "woken late by a quota": (
        {"steps": steps_of(0.01, 0.01, compute=1.2), "hosts": [host(throttled_seconds=30.0)]},
        "host cpu",
    ),
    "all ranks wait, some longer": (
        {"steps": steps_of(0.5, 0.3, 0.4)},
        "storage",
    ),
    "woken late": ({"steps": steps_of(0.01, 0.01, compute=1.2)}, "oversleep"),
    "woken late, but waited for longer": (
        {"steps": steps_of(0.5, 0.5, compute=1.2)},
        "storage",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_limit_is_what_the_evidence_says(case: str) -> None:
    changes, name = CASES[case]
    limit = find_limit(evidence(**changes))
    assert limit.name == name, limit.evidence
    assert limit.evidence and "\n" not in limit.evidence
    if name in ("none", "unclear"):
        assert limit.explains is None
    else:
        assert limit.explains is not None
        assert 0.5 <= limit.explains <= 1
        assert limit.evidence.endswith(f"; this explains {100 * limit.explains:.0f}% of the loss")


def test_storage_is_named_with_its_evidence() -> None:
    limit = find_limit(evidence())
    assert limit.evidence == (
        "nvme0n1 gave 6 GB/s while it was read from, and no more to 64 readers; accelerators "
        "lost 33% of the time; nvme0n1 was busy 99% of the time; CPUs 30%; this explains 100% of "
        "the loss"
    )
    assert limit.advice == "use more or faster drives, or fewer accelerators"


def test_storage_of_several_hosts_is_named_with_what_it_gave_to_all() -> None:
    shared = {"device": None, "device_busy_share": None}
    limit = find_limit(evidence(hosts=[host(**shared), host(host="b", **shared)]))
    assert limit.evidence == (
        "the storage gave 12 GB/s to 2 hosts while it was read from, and no more to 128 readers; "
        "accelerators lost 33% of the time; CPUs 30%; this explains 100% of the loss"
    )


def test_a_full_link_is_named_with_its_evidence() -> None:
    limit = find_limit(evidence(hosts=[host(**link(0.97, unordered_share=0.012))]))
    assert limit.evidence == (
        "eth0 of host a received 6.06 GB/s, 97% of its 50 Gb/s; 1.2% of the TCP segments received "
        "came out of order; 100% of what accelerators lost was waiting for reads; CPUs 30%; this "
        "explains 100% of the loss"
    )
    assert limit.advice.endswith("nothing is said about the storage")
    several = find_limit(evidence(hosts=[host(**link(0.95)), host(host="b", **link(0.96))]))
    assert several.evidence.startswith("eth0 of host b received 6 GB/s, 96% of its 50 Gb/s, and ")


def test_a_full_link_is_told_with_its_own_rate_though_the_host_has_others() -> None:
    """Two links of 50 Gb/s: all together received twice as much."""
    two = link(0.97, received_bytes_per_second=12.1 * GB)
    told = find_limit(evidence(hosts=[host(**two)])).evidence
    assert told.startswith("eth0 of host a received 6.06 GB/s, 97% of its 50 Gb/s; ")


def test_the_drives_of_an_array_are_not_taken_for_one() -> None:
    told = find_limit(evidence(hosts=[host(num_drives=4)])).evidence
    assert told.startswith("the 4 drives gave 6 GB/s while they were read from, and no more to ")
    assert "; nvme0n1 was busy 99% of the time" in told
    apart = find_limit(evidence(hosts=[host(), host(host="b", device="sda")])).evidence
    assert apart.startswith("the storage gave 12 GB/s to 2 hosts while it was read from")


def test_segments_that_were_lost_are_told_beside_a_slow_storage() -> None:
    lossy = host(**link(None, resent_share=0.031))
    found = find_limit(evidence(hosts=[lossy]))
    assert found.name == "storage" and "; 3.1% of those sent were sent again" in found.evidence
    local = host(network=lossy.network)
    assert "sent again" not in find_limit(evidence(hosts=[local])).evidence


def test_a_probe_that_one_host_lacks_is_none() -> None:
    """The other's says little of a storage that they share."""
    seen = evidence(hosts=[host(probe=probe(20)), host(host="b", probe=None)])
    limit = find_limit(seen)
    assert limit.name == "storage"
    assert "to 2 hosts while it was read from; accelerators lost" in limit.evidence


def test_what_more_readers_would_get_is_told() -> None:
    limit = find_limit(evidence(hosts=[host(probe=probe(8))], steps=steps_of(9.0, read=40.0)))
    assert "gave 6 GB/s while it was read from, and 8 GB/s to 64 readers;" in limit.evidence
    assert limit.explains == pytest.approx(1 - (1 / 6 - 1 / 8) / (1 / 6 - 1 / 60))


def test_a_cache_that_helped_is_named_too() -> None:
    assert (
        "CPUs 30%; page cache served 20.0%;" in find_limit(evidence(page_cache_share=0.2)).evidence
    )


def test_full_cpus_are_named_and_storage_is_spared() -> None:
    limit = find_limit(
        evidence(hosts=[host(cpu_share=0.97, runqueue_seconds=240.0, device_busy_share=0.36)])
    )
    assert limit.evidence == (
        "accelerators lost 33% of the time; on host a ranks and workers used 97% of 16 CPUs, "
        "stood ready without a CPU for 2.40 s each second, all together, and all that ran there "
        "took 35% of all; nvme0n1 was busy 36% of the time; this explains 100% of the loss"
    )
    assert limit.advice.endswith("nothing is said about the storage")


@pytest.mark.parametrize(
    ("unknown", "told"),
    [
        (("runqueue_seconds", "throttled_seconds"), "ranks and workers used 97% of 16 CPUs, and "),
        (
            ("cpu_share",),
            "ranks and workers stood ready without a CPU for 0.50 s each second, all ",
        ),
        (("cpu_share", "runqueue_seconds", "throttled_seconds"), "all that ran there took 95% of "),
    ],
)
def test_what_the_kernel_does_not_tell_of_cpus_leaves_a_sentence(
    unknown: tuple[str, ...], told: str
) -> None:
    seen = {"cpu_share": 0.97, "host_cpu_share": 0.95, "runqueue_seconds": 50.0}
    limit = find_limit(evidence(hosts=[host(**(seen | dict.fromkeys(unknown)))]))
    assert limit.name == "host cpu"
    assert limit.evidence.startswith(f"accelerators lost 33% of the time; on host a {told}")


def test_a_quota_and_other_guests_are_named() -> None:
    limit = find_limit(
        evidence(hosts=[host(throttled_seconds=50.0, runqueue_seconds=None, host_steal_share=0.2)])
    )
    assert "while other guests took 20% and the CPU quota stopped them for 0.50 s" in limit.evidence


def test_a_slow_rank_is_named() -> None:
    limit = find_limit(evidence(steps=steps_of(0.01, 0.5, 0.01, read=[0.1, 2.0, 0.1])))
    assert limit.evidence == (
        "rank 1 on host a waited 500 ms a step for its batches, the others 10 ms, and then 32.7% "
        "of the time for it; this explains 98% of the loss"
    )


def test_a_slow_rank_is_compared_with_the_middle_of_the_others() -> None:
    """One of them is nearly as slow, which excuses neither."""
    steps = steps_of(0.5, 0.01, 0.01, 0.04, read=[2.9, 1.0, 1.0, 2.8])
    limit = find_limit(evidence(steps=steps))
    assert limit.name == "barrier", limit.evidence
    assert limit.evidence.startswith("rank 0 on host a waited 500 ms a step for its batches, the ")
    assert " the others 10 ms, " in limit.evidence


def test_the_accelerators_of_one_rank_are_one_suspect() -> None:
    steps = steps_of(0.5, 0.5, 0.01, 0.01, read=[2.0, 2.0, 0.1, 0.1])
    limit = find_limit(evidence(steps=steps, names=["rank 0"] * 2 + ["rank 1"] * 2))
    assert limit.name == "barrier" and limit.evidence.startswith("rank 0 waited 500 ms")
    alone = find_limit(evidence(steps=steps, names=["rank 0"] * 4))
    assert alone.name == "storage", "there is nobody to compare it with"


def test_where_the_time_went_instead_of_reads() -> None:
    decoding = find_limit(evidence(steps=steps_of(0.5, 0.5, read=0.4, decode=3.0)))
    assert decoding.evidence == (
        "accelerators lost 33% of the time; they waited 29% of the time for decoding, 4% for "
        "reads; CPUs 30%; this explains 88% of the loss"
    )
    asleep = find_limit(evidence(steps=steps_of(0.5, 0.5, read=0.4), preprocess=0.5))
    assert "30% of the time for preprocessing (reader.preprocess_time)" in asleep.evidence


def test_what_nothing_explains_is_told_part_by_part() -> None:
    limit = find_limit(evidence(**CASES["no part is half of the loss"][0]))
    assert limit.evidence == (
        "accelerators lost 8.3% of their time, and nothing explains half of it: 3.7% compute "
        "overran its target, 2.5% waiting for decoding, 2.1% waiting for reads; CPUs 30%"
    )


@pytest.mark.parametrize(
    ("reader", "direct", "ways"),
    [
        ({}, False, "reader.data_loader=threads, or reader.odirect=true;"),
        ({"data_loader": "threads"}, False, "use more cores or hosts, or reader.odirect=true;"),
        ({"odirect": True}, True, "use more cores or hosts, or reader.data_loader=threads;"),
        ({"odirect": "auto"}, True, "use more cores or hosts, or reader.data_loader=threads;"),
        ({"odirect": "auto"}, False, "use more cores or hosts, or reader.data_loader=threads;"),
        ({"data_loader": "threads", "odirect": True}, True, "use more cores or hosts;"),
        ({"data_loader": "dali", "odirect": True}, True, "use more cores or hosts;"),
        ({"data_loader": "threads", "decode": "library"}, False, "or reader.decode=raw;"),
    ],
)
def test_what_is_set_already_is_not_advised(
    reader: dict[str, Any], direct: bool, ways: str
) -> None:
    limit = find_limit(
        evidence(
            hosts=[host(cpu_share=0.97)], reader=ReaderSection(**(READER | reader)), direct=direct
        )
    )
    assert ways in limit.advice
    for key, value in reader.items():
        assert f"reader.{key}={str(value).lower()}" not in limit.advice


def test_ranks_that_were_woken_late_are_not_told_how_to_read() -> None:
    limit = find_limit(evidence(**CASES["woken late by a quota"][0]))
    assert limit.advice == (
        "use more cores or hosts, or fewer accelerators a host; nothing is said about the storage"
    )


def test_the_advice_for_a_loader_says_what_is_set_now() -> None:
    limit = find_limit(evidence(hosts=[host(probe=probe(12))]))
    assert limit.advice == "raise reader.read_threads (now 4) or reader.io_depth (now 1)"
    for decode, ways in (("library", ", or set reader.decode=raw"), ("raw", "")):
        reader = ReaderSection(**(READER | {"decode": decode}))
        limit = find_limit(evidence(steps=steps_of(0.5, read=0.1, decode=3.0), reader=reader))
        assert limit.advice == f"raise reader.read_threads (now 4){ways}"
    for loader, ways in (("pytorch", ", or set reader.data_loader=threads"), ("threads", "")):
        reader = ReaderSection(**(READER | {"data_loader": loader}))
        limit = find_limit(evidence(steps=steps_of(0.5, read=0.1), reader=reader))
        assert limit.advice == f"raise reader.read_threads (now 4){ways}"


def test_cpu_time_that_other_guests_took_is_told() -> None:
    """A virtual machine of 16 CPUs whose accelerators are woken 0.2 s late, or whose reads wait."""
    stolen = {"cpu_share": 0.05, "host_cpu_share": 0.06, "host_steal_share": 0.12}
    late = find_limit(evidence(steps=steps_of(0.01, 0.01, compute=1.2), hosts=[host(**stolen)]))
    assert late.name == "host cpu"
    assert "took 6% of all while other guests took 12%" in late.evidence
    assert late.advice.startswith(
        "give this virtual machine CPUs of its own, or fewer accelerators"
    )
    slow = find_limit(evidence(hosts=[host(cpu_share=0.05, host_steal_share=0.05)]))
    assert slow.name == "storage"
    assert "; CPUs 5%; other guests took 5% of the CPUs (steal); this" in slow.evidence
    assert "steal" not in find_limit(evidence()).evidence


def test_other_programs_that_took_the_cpus_are_named_first() -> None:
    others = host(**OTHERS_WORK, runqueue_seconds=None, throttled_seconds=None)
    busy = find_limit(evidence(steps=steps_of(1.0), hosts=[others]))
    assert busy.name == "host cpu"
    assert busy.evidence.startswith("other programs took 81% of the CPUs; accelerators lost 50%")
    assert busy.advice == (
        "end the other programs, reader.data_loader=threads, or reader.odirect=true; nothing is "
        "said about the storage"
    )
    own = find_limit(evidence(hosts=[host(cpu_share=0.9, host_cpu_share=0.95)]))
    assert own.evidence.startswith("accelerators lost")


@pytest.mark.parametrize(
    ("steps", "hosts", "advice"),
    [
        (
            {"compute": 1.2},
            [host(throttled_seconds=30.0)],
            "use more cores; nothing is said about the storage",
        ),
        ({"compute": 1.2}, [host()], "leave cores to the ranks"),
        ({}, [host()], "use more or faster drives"),
        (
            {},
            [host(**link(0.97))],
            "use faster or more links; nothing is said about the storage",
        ),
    ],
)
def test_one_accelerator_is_not_told_to_use_fewer(
    steps: dict[str, float], hosts: list[HostEvidence], advice: str
) -> None:
    wait = 0.01 if steps else 0.5
    assert find_limit(evidence(steps=steps_of(wait, **steps), hosts=hosts)).advice == advice


@pytest.mark.parametrize("changes", [{}, {"hosts": [host(probe=probe(12))]}])
def test_what_the_format_does_not_need_is_said(changes: dict[str, Any]) -> None:
    for amplification, said in ((1.37, False), (1.38, True)):
        limit = find_limit(evidence(amplification=amplification, needed=1.25, **changes))
        told = "; 1.38 bytes were read for each byte of the samples, the format needs 1.25"
        assert (told in limit.evidence) == said
    linked = find_limit(evidence(amplification=15.37, hosts=[host(**link(0.97))]))
    assert "; 15.4 bytes were read for each byte of the samples, the format" in linked.evidence


shares = st.none() | st.floats(0, 1)


@settings(max_examples=400, deadline=None)
@given(
    waits=st.lists(st.floats(0, 2), min_size=1, max_size=4),
    compute=st.floats(1, 1.5),
    read=st.floats(0, 10),
    decode=st.floats(0, 10),
    reading=st.floats(0, 1),
    cached=shares,
    hosts=st.lists(
        st.builds(
            host,
            cpu_share=shares,
            host_cpu_share=shares,
            host_steal_share=shares,
            device_busy_share=shares,
            runqueue_seconds=st.none() | st.floats(0, 800),
            throttled_seconds=st.none() | st.floats(0, 100),
            probe=st.none() | st.builds(probe, st.floats(0.001, 20), st.floats(0.001, 20)),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_storage_is_blamed_only_where_nothing_else_can_be(
    waits: list[float],
    compute: float,
    read: float,
    decode: float,
    reading: float,
    cached: float | None,
    hosts: list[HostEvidence],
) -> None:
    steps = steps_of(*waits, compute=compute, read=read, decode=decode)
    seen = evidence(steps=steps, hosts=hosts, read_seconds=800 * reading, page_cache_share=cached)
    limit = find_limit(seen)
    summary = Summary(limit={"name": limit.name, "evidence": ""})
    line = verdict_of(WORKLOAD, measure(steps), summary)
    assert ("this storage feeds" in line) == (limit.name == "storage")
    assert limit.explains is None or limit.explains >= 0.5
    if limit.name != "storage":
        assert "drives" not in limit.advice
        return
    assert seen.losses.parts.read >= 0.5 * seen.losses.parts.total
    assert cached is None or cached <= 0.5
    for each in hosts:
        assert each.cpu_share is None or each.cpu_share <= 0.85
        assert (each.cpu_share, each.runqueue_seconds) != (None, None)
        making = seen.losses.making_seconds / len(hosts)
        for lacked in (each.runqueue_seconds, each.throttled_seconds):
            assert lacked is None or lacked <= 0.5 * making / seen.losses.parts.waited * (
                seen.losses.parts.total * (1 + 1e-9)
            )
    probes = [each.probe for each in hosts if each.probe is not None]
    if len(probes) == len(hosts):
        given_to_all = sum(each.read_bytes_per_second for each in hosts)
        workers = 8 * len(hosts)
        in_reads = given_to_all / max(1 - (1 - reading) ** workers, 1e-3)
        wanted = given_to_all / (1 - seen.losses.parts.total)
        few, many = sum(probe.few for probe in probes), sum(probe.many for probe in probes)
        own = max(in_reads, min(few, 1.3 * in_reads))
        half = 2 / (1 / own + 1 / wanted) if wanted > own else 0.0
        assert many <= max(1.15 * own, half) * (1 + 1e-9)


def interval_of(**seen: Any) -> IntervalSummary:
    """Return what a host counted in an epoch; what is not given is not known."""
    unknown: dict[str, Any] = dict.fromkeys(field.name for field in fields(IntervalSummary))
    return IntervalSummary(**(unknown | {"devices": {}} | seen))


def host_report(interval: IntervalSummary, **changes: Any) -> HostReport:
    known: dict[str, Any] = {"probe": None, "num_workers": 4, "resident_before": None}
    return HostReport(host="a", epochs=[interval], direct=True, **(known | changes))


def test_what_hosts_counted_reaches_the_verdict() -> None:
    steps = steps_of(0.5, 0.5, read=0.01, decode=0.1)
    interval = interval_of(
        seconds=100.0,
        host_cpu_share=0.3,
        host_steal_share=0.6,
        usable_cpus=4.0,
        process_cpu_seconds=40.0,
        runqueue_seconds=1.0,
    )
    report = host_report(interval, probe=Probe(2, 1e9, 16, 9e9), num_workers=2, resident_before=0.0)
    sums = sums_of(steps, ["rank 0 on host a", "rank 1 on host a"], Rule.of(WORKLOAD))
    gathered = combine(WORKLOAD, [report], sums, PathBytes())
    (seen,) = gathered.evidence.hosts
    assert (seen.host_cpu_share, seen.host_steal_share) == (0.3, 0.6)
    assert seen.lacked_seconds == pytest.approx(1 + 40 * 0.6 / 0.3)
    assert gathered.measured["hosts"][0]["probe"]["many"] == 9e9
    limit = find_limit(gathered.evidence)
    assert limit.name == "host cpu"
    assert "all that ran there took 30% of all while other guests took 60%" in limit.evidence
    quiet = replace(report, epochs=[replace(interval, host_steal_share=0.0)])
    limit = find_limit(combine(WORKLOAD, [quiet], sums, PathBytes()).evidence)
    assert limit.name == "loader"


@pytest.mark.parametrize(
    ("metric", "lost"),
    [
        ({}, 0.5 / 1.5),
        ({"metric.edition": "v2.0", "metric.exclude_start_steps": 2}, 0.5 / 1.5),
        (
            {"metric.edition": "v2.0", "metric.exclude_start_steps": 0},
            (10 * 0.5 + 10.5) / (10 * 1.5 + 11.5),
        ),
    ],
)
def test_the_window_is_the_rules(metric: dict[str, object], lost: float) -> None:
    steps = steps_of(0.5)
    steps["wait"][steps["step"] == 0] = 10.5
    interval = interval_of(seconds=20.0, usable_cpus=4.0)
    report = host_report(interval)
    workload = load_workload("unet3d_h100", metric)
    sums = sums_of(steps, ["rank 0"], Rule.of(workload))
    evidence = combine(workload, [report], sums, PathBytes()).evidence
    assert evidence.losses.parts.total == pytest.approx(lost)


def test_a_barrier_without_a_slow_rank_says_what_it_is() -> None:
    uneven = find_limit(evidence(**CASES["compute times of two ranks differ as asked"][0]))
    assert uneven.evidence.startswith("compute times differ among accelerators as")
    met = find_limit(evidence(**CASES["all are at the barrier, and stay there"][0]))
    assert met.evidence.startswith(
        "each step's latest accelerator ended 0.0% of the time later than asked, the barrier "
        "itself took 9.1%"
    )


@pytest.mark.parametrize(
    ("name", "told"), [("storage", "memory"), ("unclear", "memory"), ("host cpu", "host cpu")]
)
def test_what_memory_serves_is_never_the_storages_limit(name: str, told: str) -> None:
    """Of files in memory the verdict is `unclear`: all bytes came from there."""
    assert limit_in_memory(name) == told
