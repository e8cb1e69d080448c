"""What is observed and summed up is what was really done, by reads and processes of known size."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dlemu.host.devices import DeviceCounters
from dlemu.host.intervals import (
    HostObserver,
    IntervalSummary,
    Observation,
    read_observations,
    summarize_interval,
)
from dlemu.host.network import NetworkCounters, NicCounters
from dlemu.host.processes import HostCpu, ProcessCounters
from tests.lab.cgroups import cpu_quota
from tests.lab.drives import mounted
from tests.lab.waiting import until

# It prints a line when it is ready, waits for one, works, prints another, and waits for its end.
BURN = """
import sys, time
input("\\n")
end = time.process_time() + 0.15
while time.process_time() < end: pass
print(flush=True)
input()
"""
BURNED = 0.1
"""Seconds of a core that are sure to be seen: the kernel counts in ticks."""


@pytest.mark.root
def test_a_process_that_burns_a_core_shows_while_it_lives_and_after() -> None:
    command = [sys.executable, "-c", BURN]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert child.stdin is not None and child.stdout is not None
    assert child.stdout.readline() == b"\n"
    with (
        cpu_quota(0.05) as group,  # less than a busy host gives it
        HostObserver([Path(".")], lambda: [os.getpid()], period=0.1) as observer,
    ):
        group.enter(child.pid)
        observer.mark("start")
        child.stdin.write(b"\n")
        assert child.stdout.readline() == b"\n"
        observer.mark("done")
        child.communicate(b"\n")
        observer.mark("ended")
    done, ended = (summarize_interval(observer.between("start", end)) for end in ("done", "ended"))
    assert done.process_cpu_seconds is not None and ended.process_cpu_seconds is not None
    assert BURNED <= done.process_cpu_seconds <= ended.process_cpu_seconds
    assert done.host_cpu_share is not None
    cores = done.host_cpu_share * (os.cpu_count() or 1) * done.seconds
    assert cores >= BURNED
    assert done.runqueue_seconds is not None
    assert done.throttled_seconds is not None and done.throttled_seconds > BURNED


def test_observations_are_kept_as_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "host.0.jsonl"
    with HostObserver([tmp_path], lambda: [os.getpid()], path, period=0.02) as observer:
        start = observer.mark("epoch 0 start")
        until(lambda: path.read_text().count("\n") > 3, "what is written as it goes")
        observer.mark("epoch 0 end")
        observer.mark("epoch 1 start")

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    begun = lines[0]["unix_time"] - lines[0]["time"]
    assert begun == pytest.approx(time.time() - time.perf_counter(), abs=10)
    epoch = observer.between("epoch 0 start", "epoch 0 end")
    assert epoch[0] == start and epoch[-1].label == "epoch 0 end" and len(epoch) > 2
    with path.open("a") as file:
        file.write('{"time": 12.')  # a rank was killed as it wrote
    assert read_observations(path) == observer.observations


@pytest.mark.parametrize("asked", [True, False])
def test_memory_is_measured_where_it_is_asked_for(tmp_path: Path, asked: bool) -> None:
    roots = [os.getpid()]
    with HostObserver([tmp_path], lambda: roots, period=0.02, memory=asked) as observer:
        until(lambda: len(observer.observations) > 1, "what is observed between labels")

    assert any(each.pss_bytes is not None for each in observer.observations) == asked


def test_a_file_that_is_there_already_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "host.0.jsonl"
    path.write_text("precious")

    with pytest.raises(FileExistsError), HostObserver([tmp_path], lambda: [], path):
        pass
    assert path.read_text() == "precious"


@pytest.mark.root
def test_a_full_disk_is_told_by_the_next_call(tmp_path: Path) -> None:
    full = pytest.raises(OSError, match="No space left")
    with mounted(tmp_path / "small", "size=4k") as folder:
        with full, HostObserver([folder], list, folder / "0", proc=tmp_path) as observer:
            for epoch in range(100):
                observer.mark(f"epoch {epoch} start")
        (folder / "0").unlink()
        quick = HostObserver([folder], list, folder / "1", period=0.001, proc=tmp_path)
        with full, quick:
            until(lambda: quick.failure, "a full disk")
        with full:
            quick.mark("epoch 0 start")


def test_the_time_of_all_cpus_is_that_of_each_kind(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    kinds = [number * ticks for number in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)]
    (tmp_path / "stat").write_text(f"cpu  {' '.join(map(str, kinds))}\ncpu0 1 2 3 4 5 6 7 8\n")
    (tmp_path / "meminfo").write_text("MemFree: 1 kB\nCached: 7 kB\n")
    observer = HostObserver([tmp_path], list, proc=tmp_path)
    expected = HostCpu(busy=1 + 2 + 4 + 32 + 64, idle=8, iowait=16, steal=128)
    seen = observer.mark("all kinds")
    assert (seen.host, seen.page_cache_bytes) == (expected, 7168)
    (tmp_path / "stat").write_text("cpu  1 2 3\n")
    assert observer.mark("too few").host is None


def drive(reads: int, read_bytes: int, busy_ms: int, queue_ms: int) -> DeviceCounters:
    return DeviceCounters(reads, read_bytes, busy_ms, queue_ms, in_flight=1, written_bytes=0)


FIRST = Observation(
    time=100.0,
    label="epoch 0 start",
    devices={
        "nvme0n1": drive(10, 1000, busy_ms=500, queue_ms=2**32 - 1000),
        "nvme1n1": drive(0, 0, busy_ms=2**32 - 100, queue_ms=0),
    },
    network_read_bytes=None,
    host=HostCpu(busy=50.0, idle=900.0, iowait=7.0, steal=1.0),
    usable_cpus=4.0,
    processes=ProcessCounters(3, 10.0, 5000, 4000, 1.5),
    throttled_seconds=1.0,
    pss_bytes=None,
    page_cache_bytes=None,
    network=NetworkCounters({"eth0": NicCounters(100, 50)}, 10, 20, 0, 1),
)
LAST = replace(
    FIRST,
    time=110.0,
    label="epoch 0 end",
    devices={
        "nvme0n1": drive(30, 21000, busy_ms=8000, queue_ms=39000),
        "nvme1n1": drive(5, 10000, busy_ms=900, queue_ms=5000),
        "plugged in since": drive(9, 9, 9, 9),
    },
    host=HostCpu(busy=70.0, idle=915.0, iowait=6.99, steal=6.0),
    processes=ProcessCounters(4, 24.0, 45000, 36000, 2.0),
    throttled_seconds=1.25,
    network=NetworkCounters({"eth0": NicCounters(1100, 80)}, 30, 50, 2, 5),
)
NOTHING = ProcessCounters(0, None, None, None, None)


def test_a_summary_is_the_difference_of_its_ends() -> None:
    between = replace(FIRST, label=None, pss_bytes=777)
    later = replace(between, pss_bytes=555)
    assert summarize_interval([FIRST, between, later, LAST]) == IntervalSummary(
        seconds=10.0,
        devices={"nvme0n1": 0.75, "nvme1n1": 0.1},
        device_read_bytes=30000,
        network_read_bytes=None,
        process_read_bytes=32000,
        process_rchar=40000,
        host_cpu_share=0.5,
        host_steal_share=0.125,
        usable_cpus=4.0,
        process_cpu_seconds=14.0,
        runqueue_seconds=0.5,
        throttled_seconds=0.25,
        max_pss_bytes=777,
        device_reads={"nvme0n1": 20000, "nvme1n1": 10000},
        network=NetworkCounters({"eth0": NicCounters(1000, 30)}, 20, 30, 2, 4),
    )


def test_what_follows_from_a_summary() -> None:
    summary = summarize_interval([FIRST, LAST])
    assert summary.process_cpu_share == pytest.approx(14 / 40)
    assert summary.max_pss_bytes is None, "never measured"
    short = summarize_interval([FIRST, replace(LAST, time=FIRST.time + 1.0)])
    assert short.devices == {"nvme0n1": 1.0, "nvme1n1": 1.0}, "no drive is busy for longer"


def test_storage_is_asked_in_the_order_of_how_well_it_knows() -> None:
    def storage(first: Observation, last: Observation) -> int | None:
        return summarize_interval([first, last]).storage_read_bytes

    assert storage(FIRST, LAST) == 30000
    first, last = replace(FIRST, devices={}), replace(LAST, devices={})
    assert storage(first, last) == 32000
    last = replace(last, network_read_bytes=500)
    assert storage(first, last) == 32000
    assert storage(replace(first, network_read_bytes=0), last) == 500
    assert storage(replace(first, network_read_bytes=500), last) == 0, "0 bytes is an answer"
    assert storage(replace(first, processes=NOTHING), replace(last, processes=NOTHING)) is None


def test_what_was_never_told_stays_none() -> None:
    nothing = replace(
        FIRST, devices={}, host=None, processes=NOTHING, throttled_seconds=None, network=None
    )
    summary = summarize_interval([nothing, replace(nothing, time=101.0)])
    assert summary == IntervalSummary(1.0, {}, *(None,) * 6, 4.0, *(None,) * 3, max_pss_bytes=None)
    assert summary.process_cpu_share is None
