"""Durations, rates and limits follow from what the accelerators did."""

from dataclasses import replace
from typing import Any

import pytest

from dlemu.checkpoint.files import ReadTimes, WriteTimes
from dlemu.checkpoint.outcome import (
    Conditions,
    Entry,
    RankReport,
    dlio_metric,
    entry_of,
    from_memory,
    limit_of,
    pieces_of_ranks,
    verdict_of,
)
from dlemu.findings import note
from dlemu.judge.steady import steadiness
from dlemu.report.words import evidence_of
from tests.lab.stored import counted_interval

GIB = 2**30
COUNTED = counted_interval(10, 0, devices={"nvme0n1": 0.8}, usable_cpus=8.0)
ON_DRIVE = Conditions(file_system="ext4", bypasses=False, fsync=True, cached_share=0.0)


def writing(seconds: float, num_bytes: int = GIB, waited: float = 0.0) -> WriteTimes:
    return WriteTimes(
        num_bytes=num_bytes, write=0.6 * seconds - waited, fsync=0.4 * seconds, waited=waited
    )


def saved(
    *seconds: float, waited: float = 0.0, sizes: tuple[int, ...] = (), hosts: str = "ab"
) -> Entry:
    """Return a checkpoint of accelerators with these durations; half of them on the second host."""
    half = len(seconds) // 2 or 1
    sizes = sizes or (GIB,) * len(seconds)
    worked = [
        (number, each, writing(each, size, waited))
        for number, (each, size) in enumerate(zip(seconds, sizes, strict=True))
    ]
    reports = [RankReport(0, hosts[0], worked[:half], COUNTED, 0)]
    if worked[half:]:
        reports.append(RankReport(1, hosts[1], worked[half:], COUNTED, 0))
    return entry_of(3, reports, max(seconds) + 0.5)


def loaded(seconds: float, stored: int | None = GIB) -> Entry:
    times = ReadTimes(num_bytes=GIB, read=seconds)
    return entry_of(1, [RankReport(0, "a", [(0, seconds, times)], COUNTED, stored)], seconds)


def changed(entry: Entry, **counted: Any) -> Entry:
    hosts = {host: {**fields, **counted} for host, fields in entry["counted"].items()}
    return {**entry, "counted": hosts}


def starved(entry: Entry, seconds: float) -> Entry:
    """Return a checkpoint on busy CPUs, for which threads stood ready for so long."""
    ready = seconds - COUNTED.process_cpu_seconds  # type: ignore[operator]
    return changed(entry, host_cpu_share=1.0, runqueue_seconds=ready)


def test_dlio_s_names_hold_gib_and_rank_0_stands_beside() -> None:
    saves = [saved(1.0, 4.0), saved(1.0, 2.0)]
    metric = dlio_metric(saves, [loaded(0.5)], rank_sync=False)
    assert metric["save_checkpoint_duration_mean_seconds"] == 3.0
    assert metric["save_checkpoint_duration_stdev_seconds"] == 1.0
    # The mean of rates, as DLIO has it: 2 GiB in 4 s and in 2 s.
    assert metric["save_checkpoint_io_mean_GB_per_second"] == 0.75
    assert metric["save_checkpoint_io_stdev_GB_per_second"] == 0.25
    assert metric["save_checkpoint_rank0_duration_mean_seconds"] == 1.0
    assert metric["load_checkpoint_io_mean_GB_per_second"] == 2.0
    assert metric["checkpoint_size_GB"] == 1.0
    synced = dlio_metric(saves, [], rank_sync=True)
    assert synced["save_checkpoint_rank0_duration_mean_seconds"] == 3.5
    assert "load_checkpoint_duration_mean_seconds" not in synced


CASES: list[tuple[str, str, list[Entry], Conditions]] = [
    ("storage", "save", [saved(5.0, 5.2)], ON_DRIVE),
    ("generation", "save", [saved(5.0, 5.0, waited=2.6)], ON_DRIVE),
    ("storage", "save", [saved(5.0, 5.0, waited=2.4)], ON_DRIVE),
    ("one rank", "save", [saved(4.0, 4.0, 4.0, 5.0)], ON_DRIVE),
    ("storage", "save", [saved(4.0, 4.0, 4.0, 5.0, hosts="aa")], ON_DRIVE),
    ("host cpu", "save", [changed(saved(5.0, 5.0), host_cpu_share=0.91)], ON_DRIVE),
    ("host cpu", "save", [starved(saved(4.0, 4.0, 4.0, 5.0), 2.5)], ON_DRIVE),
    ("one rank", "save", [starved(saved(4.0, 4.0, 4.0, 5.0), 2.4)], ON_DRIVE),
    ("storage", "save", [changed(saved(5.0, 5.0), host_cpu_share=0.89)], ON_DRIVE),
    ("page cache", "save", [saved(5.0)], Conditions("ext4", False, False, None)),
    ("storage", "save", [saved(5.0)], Conditions("ext4", True, False, None)),
    ("page cache", "save", [saved(5.0, waited=1.0)], Conditions("tmpfs", False, True, None)),
    ("page cache", "load", [loaded(1.0)], Conditions("ext4", False, True, 0.02)),
    ("storage", "load", [loaded(1.0)], Conditions("ext4", False, True, 0.01)),
    ("unclear", "load", [loaded(1.0, stored=None)], Conditions("fuse", False, True, None)),
    ("storage", "load", [loaded(1.0, stored=None)], Conditions("fuse", True, True, None)),
    ("storage", "load", [loaded(1.0, stored=None)], ON_DRIVE),
    ("storage", "load", [loaded(1.0, stored=0)], Conditions("ext4", True, True, 0.5)),
]


@pytest.mark.parametrize(("name", "kind", "entries", "conditions"), CASES)
def test_the_limit(name: str, kind: Any, entries: list[Entry], conditions: Conditions) -> None:
    assert limit_of(kind, entries, conditions)["name"] == name


def test_waiting_for_bytes_is_said_beside_a_drive_that_took_most_of_the_time() -> None:
    limit = limit_of("save", [saved(5.0, 5.0, waited=0.445)], ON_DRIVE)
    assert limit["name"] == "storage"
    assert "writers waited 8.9% of the time for bytes" in evidence_of(limit)
    assert limit["advice"] == [note("make_bytes_sooner").fields]
    little = limit_of("save", [saved(5.0, 5.0, waited=0.049)], ON_DRIVE)
    assert "waited" not in evidence_of(little) and not little["advice"]


def test_cpus_that_are_busy_with_something_else_are_a_remark_beside_the_storage() -> None:
    """The threads that wrote stood in calls: a neighbour's job on the CPUs explains nothing."""
    limit = limit_of("save", [starved(saved(5.0, 5.0), 0.4)], ON_DRIVE)
    assert (limit["name"], limit["advice"]) == ("storage", [])
    assert "busy 100% of the time, most of it not by dlemu's own threads" in evidence_of(limit)
    assert "most of it" not in evidence_of(limit_of("save", [saved(5.0, 5.0)], ON_DRIVE))


def moving(*parts: tuple[int, float], begin: float = 0.0) -> list[tuple[float, float]]:
    """Return seconds and bytes so far: so many seconds at a rate, one after the other."""
    moved = [(begin, 7e9)]
    for seconds, rate in parts:
        moved += [(moved[-1][0] + n, moved[-1][1] + n * rate) for n in range(1, seconds + 1)]
    return moved


def moved_by(
    rank: int, moved: list[tuple[float, float]], *, seconds: float = 30.0, num_bytes: int = GIB
) -> RankReport:
    """Return what a rank tells of its one accelerator, which worked for so long."""
    worked = [(rank, seconds, writing(seconds, num_bytes))]
    return RankReport(rank, "a", worked, COUNTED, 0, moved)


def test_drives_that_slow_down_are_told_where_they_were_the_limit() -> None:
    """Two ranks, whose clocks differ: what they moved is added from the start on."""
    entry = saved(30.0, 30.0)
    reports = [
        moved_by(0, moving((10, 4e8), (20, 1e8))),
        moved_by(1, moving((30, 0.0)), num_bytes=0),  # it has none of the checkpoint's bytes
        moved_by(2, moving((10, 4e8), (20, 1e8), begin=5e6)),
    ]
    steady = steadiness(pieces_of_ranks(reports))
    assert steady is not None and steady.trend == "fell"
    text = evidence_of(limit_of("save", [entry], ON_DRIVE, steady))
    assert text.endswith("; not steady: 800 MB/s for the first 10 s, then 200 MB/s")
    starving = limit_of("save", [saved(30.0, 30.0, waited=17.0)], ON_DRIVE, steady)
    assert "not steady" not in evidence_of(starving)
    even = moved_by(0, moving((30, 4e8)))
    assert "not steady" not in evidence_of(
        limit_of("save", [entry], ON_DRIVE, steadiness(pieces_of_ranks([even])))
    )
    unseen = moved_by(0, [(0.0, 5.0), (9.0, 5.0)])
    assert pieces_of_ranks([even, unseen]) == pieces_of_ranks([]) == []


def test_the_rate_of_those_that_are_left_is_not_the_drives() -> None:
    """An accelerator with twice the bytes goes on alone, at half the rate of both."""
    both = [moved_by(0, moving((15, 1e8)), seconds=15.0), moved_by(1, moving((30, 1e8)))]
    steady = steadiness(pieces_of_ranks(both))
    assert steady is not None and steady.trend == "steady"
    assert steady.rounds == pytest.approx([2e8] * 5)


def test_o_direct_is_advised_where_it_is_not_there_yet() -> None:
    busy = [changed(saved(5.0, 5.0), host_cpu_share=0.91)]
    ways = [replace(ON_DRIVE, bypasses=bypasses) for bypasses in (False, True)]
    advice = [limit_of("save", busy, way)["advice"] for way in ways]
    assert advice == [[note("more_cpus", or_odirect=each).fields] for each in (True, False)]


def test_one_rank_is_named_with_what_it_had_more() -> None:
    uneven = [saved(2.0, 2.0, 8.0, sizes=(GIB, GIB, 4 * GIB))]
    limit = limit_of("save", uneven, ON_DRIVE)
    assert evidence_of(limit) == (
        "accelerator 2 on host b took 8 s, with 2.00 times the mean bytes, the mean of all 4 s"
    )
    even = limit_of("save", [saved(2.0, 2.0, 8.0)], ON_DRIVE)
    assert even["advice"] == [note("look_at_path").fields] and limit["advice"] == []


def test_what_came_from_memory() -> None:
    assert from_memory([loaded(1.0, stored=GIB // 4), loaded(1.0)]) == pytest.approx(3 / 8)
    assert from_memory([loaded(1.0, stored=2 * GIB)]) == 0.0
    assert from_memory([loaded(1.0, stored=2 * GIB), loaded(1.0, stored=0)]) == 0.5
    assert from_memory([loaded(1.0, stored=None)]) is None


@pytest.mark.parametrize(("bound", "verdict"), [(None, ""), (3.0, "PASS"), (2.999, "FAIL")])
def test_a_bound_on_the_mean_duration(bound: float | None, verdict: str) -> None:
    saves = [saved(2.0), saved(3.9992)]
    assert verdict_of(saves, [loaded(9.0)], bound) == verdict
    assert verdict_of([], saves, bound) == verdict


@pytest.mark.parametrize(("bound", "verdict"), [(None, ""), (3.0, "NO VERDICT"), (2.9, "FAIL")])
def test_writes_that_ended_in_memory_pass_no_bound(bound: float | None, verdict: str) -> None:
    saves = [saved(3.0)]
    buffered = replace(ON_DRIVE, fsync=False)
    for conditions in (buffered, replace(buffered, file_system="tmpfs", fsync=True)):
        limit = limit_of("save", saves, conditions)
        assert verdict_of(saves, [], bound, limit) == verdict
    assert verdict_of(saves, [], 3.0, limit_of("save", saves, ON_DRIVE)) == "PASS"
    assert verdict_of([], [], bound) == ""
