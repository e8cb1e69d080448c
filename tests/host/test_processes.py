"""What processes may use and have used: copies of /proc and cgroups, and real processes."""

import os
import shutil
import time
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from dlemu.host.processes import (
    ProcessCounters,
    ProcessTree,
    cgroup_folders,
    free_memory,
    host_memory_bytes,
    process_age,
    throttled_seconds,
    usable_cpus,
)
from tests.host.copies import Host

TICKS = os.sysconf("SC_CLK_TCK")


def test_a_process_knows_its_age(tmp_path: Path) -> None:
    begun = psutil.Process().create_time()
    least, age, most = time.time() - begun, process_age(), time.time() - begun
    assert age is not None
    assert least - 2 <= age <= most + 2, "psutil knows the host's start in whole seconds"
    assert process_age(proc=tmp_path) is None


def process(
    proc: Path, pid: int, parent: int, *, ticks: int, inherited: int = 0, wait_ns: int = 0
) -> None:
    """Make a process of a copy of /proc, or change one."""
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    before = f"{pid} (a) b) S {parent} 5 5 0 -1 4194304 137 0 1 0"
    after = "20 0 1 0 87513 2998272 402"
    (folder / "stat").write_text(f"{before} {ticks} 0 {inherited} 0 {after}\n")
    (folder / "io").write_text(f"rchar: {ticks}\nwchar: 1\nread_bytes: {inherited}\n")
    (folder / "schedstat").write_text(f"77 {wait_ns} 7\n")
    (folder / "smaps_rollup").write_text(
        "0-1 ---p 00000000 00:00 0    [rollup]\nRss:   9 kB\nPss:    8 kB\nSwapPss:  4 kB\n"
    )


def cpu_ticks(tree: ProcessTree) -> int:
    seconds = tree.counters().cpu_seconds
    assert seconds is not None
    return round(seconds * TICKS)


def test_descendants_count_and_strangers_do_not(tmp_path: Path) -> None:
    (tmp_path / "meminfo").touch()
    for pid, parent in ((10, 1), (11, 10), (12, 11), (20, 1), (21, 20)):
        process(tmp_path, pid, parent, ticks=pid, inherited=100, wait_ns=10**9)
    tree = ProcessTree(tmp_path)
    tree.refresh([10])
    counters = tree.counters()
    assert sorted(tree.pids) == [10, 11, 12]
    assert counters.num == 3
    assert counters.cpu_seconds == (10 + 11 + 12 + 300) / TICKS
    assert (counters.rchar, counters.read_bytes) == (33, 300)
    assert counters.runqueue_seconds == 3
    assert tree.pss_bytes() == 3 * 8192


def test_a_rank_that_ended_leaves_what_it_used(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, ticks=100)
    process(tmp_path, 11, 10, ticks=40)
    process(tmp_path, 12, 11, ticks=7)
    tree = ProcessTree(tmp_path)
    tree.refresh([10])
    assert cpu_ticks(tree) == 147

    shutil.rmtree(tmp_path / "10")
    shutil.rmtree(tmp_path / "11")  # waited for by none
    process(tmp_path, 12, 1, ticks=9)

    assert cpu_ticks(tree) == 149, "and its worker is still followed"
    shutil.rmtree(tmp_path / "12")
    assert cpu_ticks(tree) == 149
    assert tree.counters().num == 0
    assert tree.pss_bytes() is None


def test_a_pid_given_anew_is_somebody_else(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, ticks=100)
    tree = ProcessTree(tmp_path)
    tree.refresh([10])
    tree.counters()

    process(tmp_path, 10, 1, ticks=1)
    stat = tmp_path / "10" / "stat"
    stat.write_text(stat.read_text().replace(" 87513 ", " 99999 "))
    process(tmp_path, 11, 10, ticks=7)
    tree.refresh([])

    assert cpu_ticks(tree) == 100, "and its children are not ours either"
    assert tree.pids == []


def test_what_the_kernel_does_not_tell_is_none(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, ticks=100)
    for name in ("io", "schedstat", "smaps_rollup"):
        (tmp_path / "10" / name).unlink()
    tree = ProcessTree(tmp_path)
    tree.refresh([10, 11])
    assert tree.counters() == ProcessCounters(1, 100 / TICKS, None, None, None)
    assert tree.pss_bytes() is None


GIB = 1 << 30


@pytest.fixture
def second(tmp_path: Path) -> Host:
    """Edition 2, as seen from the host."""
    host = Host(tmp_path / "second")
    mounted = f"{host.folder}/cgroup rw - cgroup2 cgroup2 rw,nsdelegate"
    host.write("proc/self/mountinfo", f"30 1 0:26 / {mounted}\n")
    for pid, group in (("self", "job/step"), ("7", "job/step"), ("8", "x")):
        host.write(f"proc/{pid}/cgroup", f"0::/{group}\n")
    return host


@pytest.fixture
def first(tmp_path: Path) -> Host:
    """Edition 1, as seen from a container without a cgroup namespace."""
    host = Host(tmp_path / "first")
    mounts = (
        "31 1 0:27 /docker/f00 TOP/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "32 1 0:28 /docker/f00 TOP/memory rw - cgroup cgroup rw,memory\n"
        "33 1 0:29 / TOP/blkio rw - cgroup cgroup rw,blkio\n"
        "34 1 0:30 / TOP/unified rw - cgroup2 cgroup2 rw\n"
    )
    host.write("proc/self/mountinfo", mounts.replace("TOP", str(host.folder)))
    groups = "4:blkio:/a:b\n3:memory:/docker/f00\n2:cpu,cpuacct:/docker/f00/job\n0::/system\n"
    host.write("proc/self/cgroup", groups)
    return host


def test_a_group_is_followed_by_those_above_it(first: Host, second: Host) -> None:
    cgroup, cpu = second.folder / "cgroup", first.folder / "cpu"
    step = [cgroup / "job/step", cgroup / "job", cgroup]
    assert cgroup_folders("cpu", pids=[7, 8, 9], proc=second.proc) == [*step, cgroup / "x"]
    assert cgroup_folders("cpuacct", proc=first.proc) == [cpu / "job", cpu]
    assert cgroup_folders("blkio", proc=first.proc)[0] == first.folder / "blkio" / "a:b"
    assert cgroup_folders("io", proc=first.proc)[0] == first.folder / "unified" / "system"
    second.write("proc/self/cgroup", "0::/../other\n")  # outside of what is seen
    assert cgroup_folders("cpu", proc=second.proc) == [cgroup]


def test_memory_is_that_of_the_tightest_group(
    first: Host, second: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlemu.host.processes.memory_bytes", lambda: 256 * GIB)
    whole = 256 * GIB, "MemTotal of /proc/meminfo"
    assert host_memory_bytes(proc=second.proc) == whole
    second.write("cgroup/job/step/memory.max", "max\n")
    second.write("cgroup/job/memory.max", f"{64 * GIB}\n")
    source = f"memory.max of cgroup {second.folder}/cgroup/job"
    assert host_memory_bytes(proc=second.proc) == (64 * GIB, source)

    first.write("memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert host_memory_bytes(proc=first.proc) == whole
    first.write("memory/memory.limit_in_bytes", f"{8 * GIB}\n")
    source = f"memory.limit_in_bytes of cgroup {first.folder}/memory"
    assert host_memory_bytes(proc=first.proc) == (8 * GIB, source)


def test_what_a_group_may_still_take_is_its_limit_without_what_stays(
    first: Host, second: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: its limit, though most of that was taken."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Mock(available=200 * GIB))
    whole = 200 * GIB, "MemAvailable of /proc/meminfo"
    assert free_memory(proc=second.proc) == whole
    second.write("cgroup/job/memory.max", f"{64 * GIB}\n")
    source = f"memory.max of cgroup {second.folder}/cgroup/job"
    assert free_memory(proc=second.proc) == (64 * GIB, source), "nothing says what is taken"
    second.write("cgroup/job/memory.current", f"{60 * GIB}\n")
    assert free_memory(proc=second.proc) == (4 * GIB, source)
    files = {"inactive_file": 20, "active_file": 9, "slab_reclaimable": 1, "file": 40, "anon": 30}
    stat = "".join(f"{name} {size * GIB}\n" for name, size in files.items())
    second.write("cgroup/job/memory.stat", stat)
    assert free_memory(proc=second.proc) == (34 * GIB, source)
    second.write("cgroup/job/memory.current", f"{99 * GIB}\n")
    assert free_memory(proc=second.proc) == (0, source), "the limit was lowered"

    first.write("memory/memory.limit_in_bytes", f"{8 * GIB}\n")
    first.write("memory/memory.usage_in_bytes", f"{7 * GIB}\n")
    first.write("memory/memory.stat", f"inactive_file 0\ntotal_inactive_file {3 * GIB}\n")
    source = f"memory.limit_in_bytes of cgroup {first.folder}/memory"
    assert free_memory(proc=first.proc) == (4 * GIB, source)


def test_cpus_are_bounded_by_affinity_and_by_every_quota(first: Host, second: Host) -> None:
    affinity = len(os.sched_getaffinity(0))
    assert usable_cpus(proc=second.proc) == affinity

    second.write("cgroup/job/step/cpu.max", "max 100000\n")
    second.write("cgroup/job/cpu.max", "25000 100000\n")
    assert usable_cpus(proc=second.proc) == 0.25
    second.write("cgroup/job/cpu.max", f"{affinity}00001 100000\n")
    assert usable_cpus(proc=second.proc) == affinity

    first.write("cpu/job/cpu.cfs_quota_us", "-1\n")
    first.write("cpu/job/cpu.cfs_period_us", "100000\n")
    assert usable_cpus(proc=first.proc) == affinity
    first.write("cpu/job/cpu.cfs_quota_us", "5000\n")
    assert usable_cpus(proc=first.proc) == 0.05


def test_ranks_in_cgroups_of_their_own_have_all_their_quotas_together(
    second: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in ("job/step", "x"):
        second.write(f"cgroup/{group}/cpu.max", "10000 100000\n")
    assert usable_cpus([7], proc=second.proc) == 0.1
    assert usable_cpus([7, 8], proc=second.proc) == 0.2
    second.write("cgroup/cpu.max", "15000 100000\n")
    assert usable_cpus([7, 8], proc=second.proc) == 0.15, "no more than what is above both"
    for group in ("job/step/", "x/", ""):
        second.write(f"cgroup/{group}cpu.max", "max 100000\n")
    bound = {7: {0}, 8: {1}}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: bound[pid])
    assert usable_cpus([7, 8], proc=second.proc) == 2, "each is bound to a CPU"


def test_throttling_adds_up_over_groups(first: Host, second: Host) -> None:
    usage = "usage_usec 9\nnr_periods 7\n"
    second.write("cgroup/job/cpu.stat", usage + "nr_throttled 3\nthrottled_usec 1500000\n")
    second.write("cgroup/cpu.stat", usage)  # the top one has no quota
    folders = cgroup_folders("cpu", proc=second.proc)
    assert throttled_seconds(folders) == 1.5
    second.write("cgroup/job/step/cpu.stat", usage + "nr_throttled 4\nthrottled_usec 500000\n")
    assert throttled_seconds(folders) == 2.0

    first.write("cpu/job/cpu.stat", "nr_periods 7\nnr_throttled 2\nthrottled_time 250000000\n")
    assert throttled_seconds(cgroup_folders("cpu", proc=first.proc)) == 0.25
    assert throttled_seconds([first.folder / "memory"]) is None
