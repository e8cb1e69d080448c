"""Which resource limited a run, by the kinds and figures of the evidence and of the advice."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.config.model import load_workload
from dlemu.findings import Finding
from dlemu.judge import bottleneck
from dlemu.judge.bottleneck import Limit, _explained_by_cpus, find_run_limit
from dlemu.judge.evidence import HostReport
from dlemu.judge.metrics import measure
from dlemu.judge.records import Steps
from dlemu.judge.steady import Level, Steadiness
from dlemu.judge.summary import Summary
from dlemu.storage.counted import GetCounts
from tests.lab.limits import CASES, READER, evidence, host, probe, steps_of
from tests.lab.shown import verdict_of

WORKLOAD = load_workload("unet3d_h100")

EXPECTED: dict[str, tuple[str, str, str]] = {
    "steps during writes lost most": (
        "checkpoints",
        "lost steps_while_writing cpus explains",
        "other_checkpoint_drives",
    ),
    "drive busy, no more to more readers": (
        "storage",
        "storage_gave lost device_busy cpus explains",
        "more_drives fewer_accelerators",
    ),
    "no probe, no device seen": (
        "storage",
        "storage_gave lost cpus explains",
        "more_drives fewer_accelerators",
    ),
    "little lost": ("none", "ceiling", ""),
    "one host of two is stopped": (
        "host cpu",
        "lost host_cpus device_busy explains",
        "more_cores key key not_the_storage",
    ),
    "others have the CPUs, but compute times differ as asked": (
        "barrier",
        "compute_unequal explains",
        "as_asked",
    ),
    "others have the CPUs, and the kernel does not tell who waits for one": (
        "host cpu",
        "other_programs lost host_cpus device_busy explains",
        "end_other_programs key key not_the_storage",
    ),
    "other guests have the CPUs": (
        "host cpu",
        "other_programs lost host_cpus device_busy explains",
        "end_other_programs key key not_the_storage",
    ),
    "other guests take what workers use": (
        "host cpu",
        "lost host_cpus device_busy explains",
        "own_cpus key key not_the_storage",
    ),
    "more readers get more, but far less than what is asked for": (
        "storage",
        "storage_gave lost device_busy cpus explains",
        "more_drives fewer_accelerators",
    ),
    "as many readers get more after the run, and more readers no more than that": (
        "storage",
        "storage_gave lost device_busy cpus explains",
        "more_drives fewer_accelerators",
    ),
    "a throttle was lifted when the run had ended": (
        "storage",
        "storage_gave lost held_back device_busy cpus explains",
        "look_at_neighbours",
    ),
    "a busy host, and a drive that gives no more": (
        "storage",
        "storage_gave lost device_busy cpus explains",
        "more_drives fewer_accelerators",
    ),
    "a busy host, and a drive that would give more": (
        "host cpu",
        "lost host_cpus device_busy explains",
        "more_cores key key not_the_storage",
    ),
    "a fast drive that is seldom asked stalls": (
        "storage",
        "storage_gave lost device_busy cpus explains",
        "more_drives fewer_accelerators",
    ),
    "together they would get more": (
        "loader",
        "waited_for_reads storage_gives_more cpus explains",
        "raise_read_threads_or_depth",
    ),
    "half in reads": ("loader", "late_batches cpus explains", "raise_read_threads"),
    "workers decode for long, and the storage gives all it has": (
        "storage",
        "storage_gave lost device_busy cpus explains",
        "more_drives fewer_accelerators",
    ),
    "workers decode for long, and the storage has more": (
        "loader",
        "late_batches cpus explains",
        "raise_read_threads",
    ),
    "workers decode for long, and the storage has time left": (
        "loader",
        "late_batches cpus explains",
        "raise_read_threads",
    ),
    "workers decode for long, and the storage has become slower": (
        "loader",
        "late_batches cpus explains",
        "raise_read_threads",
    ),
    "workers decode for long, and a slow first step has read ahead": (
        "storage",
        "storage_gave lost device_busy cpus explains",
        "more_drives fewer_accelerators",
    ),
    "workers decode for long, and little was read in a slow first step": (
        "storage",
        "storage_gave lost device_busy cpus explains",
        "more_drives fewer_accelerators",
    ),
    "workers decode for long, and nobody knows what the storage has": (
        "loader",
        "late_batches cpus explains",
        "raise_read_threads",
    ),
    "workers decode on full CPUs, and the storage gives all it has": (
        "storage",
        "storage_gave lost device_busy cpus explains",
        "more_drives fewer_accelerators",
    ),
    "CPUs unknown": ("unclear", "lost_by_cause cpus_unknown", ""),
    "the link is full while it is read from": (
        "network",
        "link_full waited_for_reads cpus explains",
        "faster_links more_hosts fewer_accelerators_a_host not_the_storage",
    ),
    "the link is nearly full": (
        "storage",
        "storage_gave lost cpus explains",
        "more_drives fewer_accelerators",
    ),
    "the link is full of what others read": (
        "storage",
        "storage_gave lost cpus explains",
        "more_drives fewer_accelerators",
    ),
    "one link of three is full, and no rank is slower": (
        "storage",
        "storage_gave lost cpus explains",
        "more_drives fewer_accelerators",
    ),
    "most bytes from memory": ("unclear", "lost_by_cause mostly_from_memory", ""),
    "most bytes in holes": ("unclear", "lost_by_cause mostly_uncounted", ""),
    "one rank waits for slow reads, the others for it": (
        "barrier",
        "slow_rank explains",
        "look_at_rank",
    ),
    "one rank is always served last": (
        "storage",
        "storage_gave lost device_busy cpus explains",
        "more_drives fewer_accelerators",
    ),
    "many ranks on few cores: each step another one is late": (
        "host cpu",
        "lost host_cpus device_busy explains",
        "more_cores fewer_accelerators_a_host not_the_storage",
    ),
    "many ranks, and CPUs that are free: those who wake up wait a moment for one": (
        "own barrier",
        "compute_overran cpus explains",
        "use_fewer_accelerators_a_host leave_cores",
    ),
    "CPUs are free, and readers that wake up wait for one": (
        "unclear",
        "lost_by_cause readers_queued",
        "",
    ),
    "all are at the barrier, and stay there": (
        "own barrier",
        "compute_overran cpus explains",
        "use_fewer_accelerators_a_host leave_cores",
    ),
    "the job's all-reduce takes longer than dlemu's barrier": (
        "all-reduce",
        "allreduce_took explains",
        "the_jobs_own",
    ),
    "the job's all-reduce takes less than reads": (
        "storage",
        "storage_gave lost device_busy cpus allreduce_took explains_rest",
        "more_drives fewer_accelerators",
    ),
    "one of two ranks is late, now this one and now that": (
        "oversleep",
        "compute_overran cpus explains",
        "use_fewer_accelerators_a_host leave_cores",
    ),
    "woken late by a quota": (
        "host cpu",
        "lost host_cpus device_busy explains",
        "more_cores fewer_accelerators_a_host not_the_storage",
    ),
    "the page cache helped": (
        "storage",
        "storage_gave lost device_busy cpus page_cache_served explains",
        "more_drives fewer_accelerators",
    ),
    "more bytes than the format needs": (
        "storage",
        "storage_gave lost device_busy cpus read_amplified explains",
        "more_drives fewer_accelerators",
    ),
    "hardly more bytes than the format needs": (
        "storage",
        "storage_gave lost device_busy cpus explains",
        "more_drives fewer_accelerators",
    ),
    "other guests took few CPUs": (
        "storage",
        "storage_gave lost device_busy cpus steal explains",
        "more_drives fewer_accelerators",
    ),
    "segments were lost": (
        "storage",
        "storage_gave lost segments_resent cpus explains",
        "more_drives fewer_accelerators",
    ),
    "segments came out of order": (
        "network",
        "link_full segments_unordered waited_for_reads cpus explains",
        "faster_links more_hosts fewer_accelerators_a_host not_the_storage",
    ),
    "the links of two hosts are full": (
        "network",
        "link_full waited_for_reads cpus explains",
        "faster_links not_the_storage",
    ),
    "all CPUs full, and nobody tells by whom": (
        "host cpu",
        "lost host_cpus device_busy explains",
        "more_cores key key not_the_storage",
    ),
    "one accelerator": ("storage", "storage_gave lost device_busy cpus explains", "more_drives"),
    "a slow rank, and another nearly as slow, which excuses neither": (
        "barrier",
        "slow_rank explains",
        "look_at_rank",
    ),
    "a slow rank of two accelerators": ("barrier", "slow_rank explains", "look_at_rank"),
    "CPUs full, direct already": (
        "host cpu",
        "lost host_cpus device_busy explains",
        "more_cores key not_the_storage",
    ),
    "CPUs full, but the storage gives nobody more": (
        "storage",
        "storage_gave lost device_busy cpus explains",
        "more_drives fewer_accelerators",
    ),
    "CPUs full, threads already": (
        "host cpu",
        "lost host_cpus device_busy explains",
        "more_cores key not_the_storage",
    ),
    "few reads, the library decodes": (
        "loader",
        "late_batches cpus explains",
        "raise_read_threads set_key",
    ),
    "few reads": ("loader", "late_batches cpus explains", "raise_read_threads set_key"),
    "few reads, in threads": ("loader", "late_batches cpus explains", "raise_read_threads"),
}
"""Of each case the limit, and the kinds of its evidence and of its advice. Their words are in
tests/golden/limits.txt."""


def kinds(findings: Sequence[Finding]) -> list[str]:
    return [each.kind for each in findings]


def figures_of(case: str, kind: str) -> dict[str, object]:
    """Return the figures of the one finding of this kind in a case's evidence or advice."""
    limit = find_run_limit(evidence(**CASES[case]))
    (found,) = (each for each in (*limit.evidence, *limit.advice) if each.kind == kind)
    return dict(found.figures)


def test_each_case_has_its_limit_evidence_and_advice() -> None:
    assert EXPECTED.keys() == CASES.keys()
    for case, (name, told, advised) in EXPECTED.items():
        limit = find_run_limit(evidence(**CASES[case]))
        assert limit.name == name, case
        assert kinds(limit.evidence) == told.split(), case
        assert kinds(limit.advice) == advised.split(), case


@pytest.mark.parametrize(
    ("case", "kind", "figures"),
    [
        (
            "drive busy, no more to more readers",
            "device_busy",
            {"device": "nvme0n1", "share": 0.99},
        ),
        ("steps during writes lost most", "explains", {"share": 0.6}),
        ("few reads", "raise_read_threads", {"read_threads": 4}),
        ("other guests took few CPUs", "steal", {"share": 0.05}),
        ("segments were lost", "segments_resent", {"share": 0.031}),
        (
            "more bytes than the format needs",
            "read_amplified",
            {"amplification": 1.38, "needed": 1.25},
        ),
        ("one accelerator", "cpus", {"share": 0.3}),
        # 5.5 of 6.1 GB/s, or 5 % more: of the third that was lost all but 5.3 % of the time.
        (
            "workers decode for long, and the storage gives all it has",
            "explains",
            {"share": 1 - 3 * (1 - 1.05 * 5.5 / 6.1)},
        ),
    ],
)
def test_evidence_and_advice_have_their_figures(
    case: str, kind: str, figures: dict[str, object]
) -> None:
    assert figures_of(case, kind) == pytest.approx(figures)


def test_storage_gave_no_more_in_the_steps_than_it_gives_to_anybody() -> None:
    case = "workers decode for long, and little was read in a slow first step"
    assert CASES[case]["given_in_steps"] == 6.5e9
    assert figures_of(case, "storage_gave")["bytes_per_second"] == 6.2e9


def test_ranks_that_queue_for_a_cpu_wait_half_as_long_as_the_last() -> None:
    many = evidence(**CASES["many ranks on few cores: each step another one is late"])
    # 9 s of 8 accelerators in 100 s; the last of them makes all wait.
    limit, lost = find_run_limit(many), many.losses.parts.total
    assert limit.explains == pytest.approx(2 * 9 / 8 / 100 / lost)


def test_what_hosts_and_links_did_is_told_in_figures() -> None:
    cpus = figures_of("other guests take what workers use", "host_cpus")
    assert (cpus["host"], cpus["usable_cpus"]) == ("a", 16.0)
    assert cpus["lacked_seconds_per_second"] == pytest.approx(0.5)
    assert (cpus["steal_share"], cpus["throttled_seconds_per_second"]) == (0.06, None)
    link = figures_of("the links of two hosts are full", "link_full")
    assert (link["nic"], link["share"], link["num_other_hosts"]) == ("eth0", 0.96, 1)
    assert link["received_bytes_per_second"] == pytest.approx(0.96 * 50e9 / 8)
    gave = figures_of("together they would get more", "storage_gives_more")
    assert (gave["source"], gave["num_hosts"], gave["device"]) == ("storage", 2, None)
    assert gave["probe"] == {"num_few": 16, "few": 12e9, "num_many": 128, "many": 18e9}
    slow = figures_of("a slow rank of two accelerators", "slow_rank")
    assert (slow["rank"], slow["overran"], slow["seconds_a_step"]) == (0, False, 0.5)


@pytest.mark.parametrize("case", CASES)
def test_a_limit_explains_half_of_the_loss_and_advises_what_is_not_so_already(case: str) -> None:
    limit = find_run_limit(evidence(**CASES[case]))
    assert (limit.explains is None) == (limit.name in ("none", "unclear"))
    assert 0.5 <= (limit.explains or 0.5) <= 1
    advised = [each.figures for each in limit.advice if each.kind in ("key", "set_key")]
    for key, value in CASES[case].get("reader", READER).items():
        own = {"key": f"reader.{key}", "value": str(value).lower()}
        assert own not in advised, "it is set already"


def test_a_drive_that_is_hardly_busy_has_a_cap_above_it() -> None:
    """Storage is the limit, more readers get no more, and the drive was busy for 23 %."""

    def told(share: float) -> list[str]:
        limit = find_run_limit(evidence(hosts=[host(device_busy_share=share)]))
        assert limit.name == "storage"
        return kinds(limit.evidence)

    assert "cap_above_drive" in told(0.23)
    assert "cap_above_drive" not in told(0.9)


@pytest.mark.parametrize(
    ("keys", "advised"),
    [
        ({"reader.batch_size": 1}, "raise_gets_in_flight"),  # 140 MB: 18 requests of 8 MiB
        ({"reader.batch_size": 1, "reader.range_bytes": "40MB"}, "raise_read_threads"),
        ({"reader.batch_size": 3, "reader.range_bytes": "40MB"}, "raise_gets_in_flight"),
        ({"reader.batch_size": 8, "dataset.record_length_bytes": 5e6}, "raise_read_threads"),
        ({"reader.batch_size": 9, "dataset.record_length_bytes": 5e6}, "raise_gets_in_flight"),
    ],
)
def test_more_requests_are_advised_only_where_a_batch_has_more(
    keys: dict[str, Any], advised: str
) -> None:
    """A worker has 8 requests in flight, and none for the next batch."""
    counts = GetCounts()
    counts.add(0.1, 100)
    limit = find_run_limit(evidence(workload=load_workload("unet3d_h100", keys), gets=counts))
    assert limit.name == "storage"
    assert kinds(limit.advice)[:2] == [advised, "more_servers"]


def test_more_readers_would_not_help_where_the_same_waited_for_nothing_at_other_times() -> None:
    """The drive went up and down; the probe came when it was fast."""
    fast, slow = Level(0, 10, 6.5e9, 98.0), Level(10, 10, 4e9, 40.0)

    def limit(*levels: Level) -> Limit:
        steady = Steadiness((6e9,) * 5, levels)
        return find_run_limit(evidence(hosts=[host(probe=probe(20, few=7))], steady=steady))

    assert limit(slow).name == limit(slow, replace(slow, begin=20)).name == "loader"
    varied = limit(fast, slow, fast)
    assert varied.name == "storage"
    assert kinds(varied.advice) == ["look_at_neighbours"]
    assert "held_back" not in kinds(varied.evidence)


def test_what_more_readers_would_get_is_told() -> None:
    limit = find_run_limit(evidence(hosts=[host(probe=probe(8))], steps=steps_of(9.0, read=40.0)))
    assert limit.explains == pytest.approx(1 - (1 / 6 - 1 / 8) / (1 / 6 - 1 / 60))


shares = st.none() | st.floats(0, 1)


@settings(max_examples=100, deadline=None)
@given(
    steps=st.builds(
        lambda waits, **seconds: steps_of(*waits, **seconds),
        st.lists(st.floats(0, 2), min_size=1, max_size=4),
        compute=st.floats(1, 1.5),
        read=st.floats(0, 10),
        decode=st.floats(0, 10),
    ),
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
    steps: Steps, reading: float, cached: float | None, hosts: list[HostReport]
) -> None:
    seen = evidence(steps=steps, hosts=hosts, read_seconds=800 * reading, page_cache_share=cached)
    limit = find_run_limit(seen)
    summary = Summary(limit={"name": limit.name, "evidence": ()})
    line = verdict_of(WORKLOAD, measure(steps), summary)
    assert ("this storage feeds" in line) == (limit.name == "storage")
    assert limit.explains is None or limit.explains >= 0.5
    if limit.name != "storage":
        assert "more_drives" not in kinds(limit.advice)
        return
    assert seen.losses.parts.read >= 0.5 * seen.losses.parts.total
    assert cached is None or cached <= 0.5
    if bottleneck._gave_all(seen):
        return  # a busy host, or a queue for its CPUs, held back no read
    for each in hosts:
        assert each.whole.process_cpu_share is None or each.whole.process_cpu_share <= 0.85
        assert (each.whole.process_cpu_share, each.whole.runqueue_seconds) != (None, None)
        making = seen.losses.making_seconds / len(hosts)
        for lacked in (each.whole.runqueue_seconds, each.whole.throttled_seconds):
            most = 0.5 * making / seen.losses.parts.waited * seen.losses.parts.total
            assert lacked is None or lacked <= most * (1 + 1e-9)


@pytest.mark.parametrize(
    ("lacked", "explained"), [(0.0, 0.0), (10.0, 0.2), (15.0, 0.3), (90.0, 0.6)]
)
def test_ranks_in_a_queue_for_a_cpu_explain_twice_what_they_lacked(
    lacked: float, explained: float
) -> None:
    """Each of two accelerators lost half a second in 100; 0.3 of the time were late steps."""
    parts = SimpleNamespace(
        **{"oversleep": 0.2, "meeting": 0.1, "waited": 0.0, "total": 0.5, "uneven": 0.0},
        **{"read": 0.0, "preprocess": 0.0, "allreduce": 0.0},
    )
    whole = SimpleNamespace(
        process_cpu_share=0.6,
        lacked_seconds=lacked,
        throttled_seconds=0.0,
        stolen_seconds=0.0,
        host_cpu_share=0.6,
        host_steal_share=0.0,
        seconds=100.0,
    )
    host: Any = SimpleNamespace(whole=whole, num_workers=8)
    evidence: Any = SimpleNamespace(
        losses=SimpleNamespace(parts=parts, making_seconds=1.0),
        workload=SimpleNamespace(reader=SimpleNamespace(read_threads=4)),
        hosts=[host],
    )
    assert _explained_by_cpus(evidence, host) == pytest.approx(explained)
