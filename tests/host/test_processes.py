"""Totals of real processes, and of a small /proc whose processes end as the kernel ends them."""

import os
import shutil
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.host.processes import ProcessTree, process_age

TICKS = os.sysconf("SC_CLK_TCK")


def test_a_process_knows_its_age(tmp_path: Path) -> None:
    begun = psutil.Process().create_time()
    least, age, most = time.time() - begun, process_age(), time.time() - begun
    assert age is not None
    assert least - 2 <= age <= most + 2, "psutil knows the host's start in whole seconds"
    assert process_age(proc=tmp_path) is None


class Processes:
    """A /proc of processes, made of files."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc

    def set(
        self, pid: int, parent: int, *, ticks: int, inherited: int = 0, wait_ns: int = 0
    ) -> None:
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        before = f"{pid} (a) b) S {parent} 5 5 0 -1 4194304 137 0 1 0"
        after = "20 0 1 0 87513 2998272 402"
        (folder / "stat").write_text(f"{before} {ticks} 0 {inherited} 0 {after}\n")
        (folder / "io").write_text(f"rchar: {ticks}\nwchar: 1\nread_bytes: {inherited}\n")
        (folder / "schedstat").write_text(f"77 {wait_ns} 7\n")
        (folder / "smaps_rollup").write_text(
            "0-1 ---p 00000000 00:00 0    [rollup]\nRss:   9 kB\nPss:    8 kB\nSwapPss:  4 kB\n"
        )

    def end(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid))


def cpu_ticks(tree: ProcessTree) -> int:
    seconds = tree.counters().cpu_seconds
    assert seconds is not None
    return round(seconds * TICKS)


def test_descendants_count_and_strangers_do_not(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    (tmp_path / "meminfo").touch()
    for pid, parent in ((10, 1), (11, 10), (12, 11), (20, 1), (21, 20)):
        processes.set(pid, parent, ticks=pid, inherited=100, wait_ns=10**9)
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
    processes = Processes(tmp_path)
    processes.set(10, 1, ticks=100)
    processes.set(11, 10, ticks=40)
    processes.set(12, 11, ticks=7)
    tree = ProcessTree(tmp_path)
    tree.refresh([10])
    assert cpu_ticks(tree) == 147

    processes.end(10)
    processes.end(11)  # waited for by none
    processes.set(12, 1, ticks=9)

    assert cpu_ticks(tree) == 149, "and its worker is still followed"
    processes.end(12)
    assert cpu_ticks(tree) == 149
    assert tree.counters().num == 0
    assert tree.pss_bytes() is None


def test_a_pid_given_anew_is_somebody_else(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.set(10, 1, ticks=100)
    tree = ProcessTree(tmp_path)
    tree.refresh([10])
    tree.counters()

    processes.set(10, 1, ticks=1)
    stat = tmp_path / "10" / "stat"
    stat.write_text(stat.read_text().replace(" 87513 ", " 99999 "))

    processes.set(11, 10, ticks=7)

    tree.refresh([])

    assert cpu_ticks(tree) == 100, "and its children are not ours either"
    assert tree.pids == []


@settings(deadline=None, max_examples=40)  # it writes files
@given(data=st.data())
def test_totals_are_right_however_processes_begin_and_end(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As the kernel does it: who ends gives its ticks to its parent, its children go to init."""
    processes = Processes(tmp_path_factory.mktemp("proc"))
    live: dict[int, tuple[int, int, int]] = {10: (1, 5, 0)}  # parent, ticks, inherited
    processes.set(10, 1, ticks=5)
    tree = ProcessTree(processes.proc)
    truth = 5
    for new in range(11, 11 + data.draw(st.integers(1, 8))):
        action = data.draw(st.sampled_from(["begin", "work", "end"]))
        pid = data.draw(st.sampled_from(sorted(live)))
        parent, ticks, inherited = live[pid]
        if action == "begin":
            live[new] = (pid, 1, 0)
            truth += 1
        elif action == "work":
            live[pid] = (parent, ticks + 3, inherited)
            truth += 3
        elif pid != 10 and pid not in {parent for parent, _, _ in live.values()}:
            del live[pid]
            processes.end(pid)
            above, its_ticks, its_inherited = live[parent]
            live[parent] = (above, its_ticks, its_inherited + ticks + inherited)
        for pid, (parent, ticks, inherited) in live.items():
            processes.set(pid, parent, ticks=ticks, inherited=inherited)
        if data.draw(st.booleans()):
            tree.refresh([10])
            assert cpu_ticks(tree) == truth


def test_what_the_kernel_does_not_tell_is_none(tmp_path: Path) -> None:
    Processes(tmp_path).set(10, 1, ticks=100)
    for name in ("io", "schedstat", "smaps_rollup"):
        (tmp_path / "10" / name).unlink()
    tree = ProcessTree(tmp_path)
    tree.refresh([10, 11])

    counters = tree.counters()

    assert counters.cpu_seconds == 100 / TICKS
    assert counters.rchar is None
    assert counters.read_bytes is None
    assert counters.runqueue_seconds is None
    assert tree.pss_bytes() is None
