"""Limits are found in small copies of /proc and the cgroup trees, and in cgroups made here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlemu.host.processes import (
    cgroup_folders,
    host_memory_bytes,
    throttled_seconds,
    usable_cpus,
)
from tests.lab.cgroups import cpu_quota, memory_limit

GIB = 1 << 30


class Host:
    """A host's cgroups as files: what the kernel would show of them."""

    def __init__(self, folder: Path, mountinfo: str, groups: dict[str, str]) -> None:
        self.folder = folder
        self.proc = folder / "proc"
        self.write("proc/self/mountinfo", mountinfo.replace("TOP", str(folder)))
        for pid, text in groups.items():
            self.write(f"proc/{pid}/cgroup", text)

    def write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)


@pytest.fixture
def second(tmp_path: Path) -> Host:
    """Edition 2, as seen from the host."""
    mountinfo = "30 1 0:26 / TOP/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
    groups = {"self": "0::/job/step\n", "7": "0::/job/step\n", "8": "0::/x\n"}
    return Host(tmp_path / "second", mountinfo, groups)


@pytest.fixture
def first(tmp_path: Path) -> Host:
    """Edition 1, as seen from a container without a cgroup namespace."""
    mountinfo = (
        "31 1 0:27 /docker/f00 TOP/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "32 1 0:28 /docker/f00 TOP/memory rw - cgroup cgroup rw,memory\n"
        "33 1 0:29 / TOP/blkio rw - cgroup cgroup rw,blkio\n"
        "34 1 0:30 / TOP/unified rw - cgroup2 cgroup2 rw\n"
    )
    groups = "4:blkio:/a:b\n3:memory:/docker/f00\n2:cpu,cpuacct:/docker/f00/job\n0::/system\n"
    return Host(tmp_path / "first", mountinfo, {"self": groups})


def test_a_group_is_followed_by_those_above_it(first: Host, second: Host) -> None:
    cgroup = second.folder / "cgroup"
    assert cgroup_folders("cpu", proc=second.proc) == [cgroup / "job/step", cgroup / "job", cgroup]
    assert cgroup_folders("cpu", pids=[7, 8, 9], proc=second.proc) == [
        *(cgroup / "job/step", cgroup / "job", cgroup),
        cgroup / "x",
    ]
    cpu = first.folder / "cpu"
    assert cgroup_folders("cpuacct", proc=first.proc) == [cpu / "job", cpu]
    assert cgroup_folders("memory", proc=first.proc) == [first.folder / "memory"]
    assert cgroup_folders("blkio", proc=first.proc)[0] == first.folder / "blkio" / "a:b"
    assert cgroup_folders("io", proc=first.proc)[0] == first.folder / "unified" / "system"


def test_a_group_outside_of_what_is_seen_shows_the_top(tmp_path: Path) -> None:
    mountinfo = "30 1 0:26 / TOP/cgroup rw - cgroup2 cgroup2 rw\n"
    host = Host(tmp_path, mountinfo, {"self": "0::/../other\n"})

    assert cgroup_folders("cpu", proc=host.proc) == [tmp_path / "cgroup"]


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


def test_ranks_in_cgroups_of_their_own_have_all_their_quotas_together(second: Host) -> None:
    for group in ("job/step", "x"):
        second.write(f"cgroup/{group}/cpu.max", "10000 100000\n")
    assert usable_cpus([7], proc=second.proc) == 0.1
    assert usable_cpus([7, 8], proc=second.proc) == 0.2
    second.write("cgroup/cpu.max", "15000 100000\n")
    assert usable_cpus([7, 8], proc=second.proc) == 0.15, "no more than what is above both"


def test_ranks_bound_to_a_cpu_each_have_them_all_together(
    second: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = {7: {0}, 8: {1}}

    def affinity(pid: int) -> set[int]:
        if pid not in bound:
            raise ProcessLookupError("it has ended")
        return bound[pid]

    monkeypatch.setattr(os, "sched_getaffinity", affinity)
    assert usable_cpus([7], proc=second.proc) == 1
    assert usable_cpus([7, 8, 9], proc=second.proc) == 2


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


def test_a_host_without_cgroups_has_no_limits(tmp_path: Path) -> None:
    assert cgroup_folders("cpu", proc=tmp_path) == []
    assert usable_cpus(proc=tmp_path) == len(os.sched_getaffinity(0))
    assert throttled_seconds([]) is None


@pytest.mark.root
def test_the_limits_of_real_groups_are_seen() -> None:
    memory = 3 << 30
    program = (
        "from dlemu.host.processes import *; input(); print(usable_cpus(), flush=True); input();"
        "print(host_memory_bytes()[0])"
    )
    with cpu_quota(0.5) as cpu, memory_limit(memory) as ram:
        child = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdin is not None and child.stdout is not None
        cpu.enter(child.pid)
        assert usable_cpus([child.pid]) == 0.5
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "0.5\n"
        ram.enter(child.pid)  # of edition 2, a process is in one cgroup alone
        assert child.communicate("\n")[0] == f"{memory}\n"
