"""Which resource bound a run: a table of evidence, each row one clear case."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.metrics import Metrics, measure
from dlemu.records import STEP
from dlemu.report import verdict_line
from dlemu.verdict import Evidence, HostEvidence, find_limit
from dlemu.workload import load_workload

WORKLOAD = load_workload("unet3d_h100")
GB = 1e9


def metrics_of(*waits: float, barrier: tuple[float, ...] = (), compute: float = 1.0) -> Metrics:
    """Return metrics in which accelerator i waits waits[i] a step of 1 s."""
    rows = np.zeros((len(waits), 11), STEP)
    rows["accelerator"] = np.arange(len(waits))[:, None]
    rows["step"] = np.arange(11)
    rows["wait"] = np.array(waits)[:, None]
    rows["barrier"] = np.array(barrier or (0.0,) * len(waits))[:, None]
    rows["compute"], rows["computation_time"] = compute, 1.0
    rows["num_samples"] = 7
    return measure(rows)


def host(**changes: Any) -> HostEvidence:
    """Return a host with CPUs to spare, whose drive is busy and gives no more."""
    seen: dict[str, Any] = {
        "host": "a",
        "seconds": 100.0,
        "device": "nvme0n1",
        "device_busy_share": 0.99,
        "read_bytes_per_second": 6 * GB,
        "probe_bytes_per_second": 6.1 * GB,
        "num_probe_readers": 64,
        "cpu_share": 0.3,
        "host_cpu_share": 0.35,
        "runqueue_seconds": 2.0,
        "throttled_seconds": 0.0,
        "usable_cpus": 16.0,
        "num_workers": 8,
    }
    return HostEvidence(**(seen | changes))


def evidence(**changes: Any) -> Evidence:
    """Return the evidence of a run that storage bound."""
    metrics = changes.get("metrics", metrics_of(0.5, 0.5))
    seen: dict[str, Any] = {
        "metrics": metrics,
        "hosts": [host()],
        "rank_names": [f"rank {rank} on host a" for rank in range(metrics.num_accelerators)],
        "making_seconds": [1.0] * metrics.num_accelerators,
        "late_seconds": [0.0] * metrics.num_accelerators,
        "read_seconds": 720.0,
        "decode_seconds": 10.0,
        "hand_over_seconds": 20.0,
        "worker_seconds": 800.0,
        "page_cache_share": 0.004,
        "data_loader": "pytorch",
        "read_threads": 4,
    }
    return Evidence(**(seen | changes))


ONE_WAITS = metrics_of(0.5, 0.01, 0.01, barrier=(0, 0.49, 0.49))
NOT_IN_READS = {"read_seconds": 80.0, "decode_seconds": 500.0}

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "drive busy, no more to more readers": ({}, "storage"),
    "no probe, no device seen": (
        {"hosts": [host(probe_bytes_per_second=None, device=None, device_busy_share=None)]},
        "storage",
    ),
    "little lost": ({"metrics": metrics_of(0.005, 0.01)}, "none"),
    "nothing lost": ({"metrics": metrics_of(0, 0)}, "none"),
    "CPUs full": ({"hosts": [host(cpu_share=0.97)]}, "host cpu"),
    "CPUs full though the drive is busy too": (
        {"hosts": [host(cpu_share=0.97, device_busy_share=1.0)]},
        "host cpu",
    ),
    "workers ready without a CPU": ({"hosts": [host(runqueue_seconds=200.0)]}, "host cpu"),
    "stopped by the quota": ({"hosts": [host(throttled_seconds=30.0)]}, "host cpu"),
    "one host of two is stopped": (
        {"hosts": [host(cpu_share=0.5), host(host="b", cpu_share=0.2, throttled_seconds=30.0)]},
        "host cpu",
    ),
    "more readers get more": ({"hosts": [host(probe_bytes_per_second=9 * GB)]}, "loader"),
    "hosts share what storage gives": (
        {"hosts": [host(probe_bytes_per_second=7.5 * GB), host(probe_bytes_per_second=5 * GB)]},
        "storage",
    ),
    "together they would get more": (
        {"hosts": [host(probe_bytes_per_second=9 * GB), host(probe_bytes_per_second=6 * GB)]},
        "loader",
    ),
    "workers decode": (NOT_IN_READS, "loader"),
    "workers sleep": (NOT_IN_READS | {"decode_seconds": 0.0}, "loader"),
    "half in reads": ({"read_seconds": 400.0}, "unclear"),
    "CPUs unknown": ({"hosts": [host(cpu_share=None, runqueue_seconds=None)]}, "unclear"),
    "most bytes from memory": ({"page_cache_share": 0.97}, "unclear"),
    "one rank waits for slow reads, the others for it": (
        {"metrics": ONE_WAITS, "making_seconds": [1.0, 0.02, 0.02]},
        "barrier",
    ),
    "one rank is always served last": (
        {"metrics": ONE_WAITS, "making_seconds": [1.0, 0.9, 1.1]},
        "storage",
    ),
    "one rank computes for longer, the others wait for it": (
        {
            "metrics": metrics_of(0.01, 0.01, 0.01, barrier=(0, 0.4, 0.4)),
            "late_seconds": [0.4, 0.0, 0.0],
        },
        "barrier",
    ),
    "woken late by a quota": (
        {
            "metrics": metrics_of(0.01, 0.01, compute=1.2),
            "hosts": [host(throttled_seconds=30.0)],
        },
        "host cpu",
    ),
    "all ranks wait, some longer": (
        {"metrics": metrics_of(0.5, 0.3, 0.4, barrier=(0, 0.2, 0.1))},
        "storage",
    ),
    "woken late": ({"metrics": metrics_of(0.01, 0.01, compute=1.2)}, "oversleep"),
    "woken late, but waited for longer": (
        {"metrics": metrics_of(0.5, 0.5, compute=1.2)},
        "storage",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_limit_is_what_the_evidence_says(case: str) -> None:
    changes, name = CASES[case]
    limit = find_limit(evidence(**changes))
    assert limit.name == name, limit.evidence
    assert limit.evidence and "\n" not in limit.evidence


def test_storage_is_named_with_its_evidence() -> None:
    limit = find_limit(evidence())
    assert limit.evidence == (
        "nvme0n1 gave 6 GB/s and was busy 99% of the time, and no more to 64 readers; workers "
        "waited in reads 90% of the time; CPUs 30%"
    )
    assert limit.advice == "use more or faster drives, or fewer accelerators"


def test_storage_of_several_hosts_is_named_with_what_it_gave_to_all() -> None:
    shared = {"device": None, "device_busy_share": None}
    limit = find_limit(evidence(hosts=[host(**shared), host(host="b", **shared)]))
    assert limit.evidence == (
        "the storage gave 12 GB/s to 2 hosts, and no more to 128 readers; workers waited in reads "
        "90% of the time; CPUs 30%"
    )


def test_a_cache_that_helped_is_named_too() -> None:
    assert find_limit(evidence(page_cache_share=0.2)).evidence.endswith(
        "CPUs 30%; page cache served 20.0%"
    )


def test_full_cpus_are_named_and_storage_is_spared() -> None:
    limit = find_limit(
        evidence(hosts=[host(cpu_share=0.97, runqueue_seconds=240.0, device_busy_share=0.36)])
    )
    assert limit.evidence == (
        "accelerators waited 33% of the time; on host a ranks and workers used 97% of 16 CPUs, "
        "stood ready without a CPU for 30% of their time; nvme0n1 was busy 36% of the time"
    )
    assert limit.advice.endswith("nothing is said about the storage")


def test_a_quota_is_named() -> None:
    limit = find_limit(evidence(hosts=[host(throttled_seconds=30.0, runqueue_seconds=None)]))
    assert "and were stopped by the CPU quota for 0.30 s each second" in limit.evidence


def test_a_slow_rank_is_named() -> None:
    metrics = metrics_of(0.01, 0.5, 0.01, barrier=(0.49, 0, 0.49))
    limit = find_limit(evidence(metrics=metrics, making_seconds=[0.1, 2.0, 0.1]))
    assert limit.evidence == (
        "rank 1 on host a waited 500 ms a step for its batches, the others 10 ms, and then 22% of "
        "the time for it"
    )


def test_the_accelerators_of_one_rank_are_one_suspect() -> None:
    metrics = metrics_of(0.5, 0.5, 0.01, 0.01, barrier=(0, 0, 0.49, 0.49))
    made = {"making_seconds": [2.0, 2.0, 0.1, 0.1]}
    ranks = ["rank 0"] * 2 + ["rank 1"] * 2
    limit = find_limit(evidence(metrics=metrics, rank_names=ranks, **made))
    assert limit.name == "barrier" and limit.evidence.startswith("rank 0 waited 500 ms")
    alone = find_limit(evidence(metrics=metrics, rank_names=["rank 0"] * 4, **made))
    assert alone.name == "storage", "there is nobody to compare it with"


def test_where_the_workers_time_went_instead() -> None:
    assert "63% of their" not in find_limit(evidence(**NOT_IN_READS)).evidence
    assert find_limit(evidence(**NOT_IN_READS)).evidence.endswith("62% went into decoding")
    asleep = find_limit(evidence(read_seconds=80.0))
    assert asleep.evidence.endswith(
        "86% went into waiting for work or sleeping (reader.preprocess_time)"
    )


shares = st.none() | st.floats(0, 1)


@settings(max_examples=1000, deadline=None)
@given(
    waits=st.lists(st.floats(0, 2), min_size=1, max_size=4),
    compute=st.floats(1, 1.5),
    reading=st.floats(0, 1),
    cached=shares,
    hosts=st.lists(
        st.builds(
            host,
            cpu_share=shares,
            device_busy_share=shares,
            runqueue_seconds=st.none() | st.floats(0, 800),
            throttled_seconds=st.none() | st.floats(0, 100),
            probe_bytes_per_second=st.none() | st.floats(1e6, 20 * GB),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_storage_is_blamed_only_where_nothing_else_can_be(
    waits: list[float],
    compute: float,
    reading: float,
    cached: float | None,
    hosts: list[HostEvidence],
) -> None:
    seen = evidence(
        metrics=metrics_of(*waits, compute=compute),
        hosts=hosts,
        read_seconds=800 * reading,
        page_cache_share=cached,
    )
    limit = find_limit(seen)
    summary = {"limit": {"name": limit.name}, "measured": {}}
    line = verdict_line(WORKLOAD, seen.metrics, summary)
    assert ("this storage feeds" in line) == (limit.name == "storage")
    if limit.name != "storage":
        assert "drives" not in limit.advice
        return
    assert reading > 0.6
    assert cached is None or cached <= 0.5
    for each in hosts:
        assert each.cpu_share is None or each.cpu_share <= 0.85
        assert each.runqueue_seconds is None or each.runqueue_seconds <= 0.15 * 800
        assert each.throttled_seconds is None or each.throttled_seconds <= 10
        assert (each.cpu_share, each.runqueue_seconds) != (None, None)
    probes = [each.probe_bytes_per_second for each in hosts if each.probe_bytes_per_second]
    given_to_all = sum(each.read_bytes_per_second for each in hosts)
    assert len(probes) < len(hosts) or sum(probes) <= 1.15 * given_to_all * (1 + 1e-9)
