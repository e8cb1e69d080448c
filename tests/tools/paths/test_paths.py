"""Cells of `dlemu paths`: what is measured, by io_uring too, what is kept, what is left behind."""

import ctypes
import errno
import json
import math
import multiprocessing
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.cli.main import run as run_command
from dlemu.errors import RunError, WorkloadError
from dlemu.host.wear import WearFields
from dlemu.judge.folders import hold
from dlemu.judge.records import JsonLines
from dlemu.report.stored import read_result
from dlemu.report.words import telling
from dlemu.storage.files import aligned_buffer
from dlemu.storage.owned import held
from dlemu.terminal import silent
from dlemu.tools.paths import cells as cells_module
from dlemu.tools.paths import sweep, uring
from dlemu.tools.paths.blocks import (
    PATTERNS,
    CellJob,
    CellSpec,
    DataPath,
    Latencies,
    Pattern,
    Pids,
    perform,
)
from dlemu.tools.paths.cells import HostCounters, read_joules, write_random_file
from dlemu.tools.paths.sweep import Sweep, cells_of, run_paths
from dlemu.tools.paths.uring import Ring
from tests.tools.paths.conftest import MIB, plan


def work(folder: Path, **changes: object) -> CellJob:
    """Two workers for a moment on files of 1 MiB, through the page cache."""
    files = tuple(str(folder / f"f{index}") for index in range(2))
    for seed, file in enumerate(files):
        write_random_file(file, seed, MIB)
    plain = CellSpec(
        target="", path="host_buffered", pattern="seq_read", io_size=65536, workers=2, seconds=0.2
    )
    spec = replace(plain, **changes)  # type: ignore[arg-type]
    return CellJob(spec=spec, files=files, file_bytes=MIB)


# --- one measurement ------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=200), st.floats(0, 100))
def test_percentiles_are_right_to_a_hundred_and_twenty_eighth(
    values: list[int], percent: float
) -> None:
    latencies = Latencies()
    latencies.add(values)
    expected = np.percentile(values, percent, method="inverted_cdf") / 1e9
    assert latencies.percentile(percent) == pytest.approx(expected, rel=1 / 128, abs=1e-9)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_counts_what_it_did(tmp_path: Path, pattern: Pattern) -> None:
    [done] = perform([work(tmp_path, pattern=pattern, io_size=4096)])
    assert done.path_bytes.host == done.latencies.num * 4096 > 0
    # The latencies of both workers fill their time, but for what lies between two rounds.
    assert done.latencies.total / 1e9 <= 2 * done.seconds


@pytest.mark.parametrize("path", ["host_direct", "host_io_uring"])
def test_the_blocks_in_flight_are_all_blocks_of_the_file(tmp_path: Path, path: DataPath) -> None:
    """With as many blocks in flight as a file has, each of them is written."""
    try:
        cells_module.least_block(path, tmp_path)
    except RunError as error:
        pytest.skip(str(error))
    job = work(tmp_path, path=path, pattern="random_write", io_size=65536, queue_depth=16)
    job = replace(job, files=job.files[:1])
    before = pages(Path(job.files[0]).read_bytes())

    [done] = perform([job])

    after = pages(Path(job.files[0]).read_bytes())
    assert all(old != new for old, new in zip(before, after, strict=True))
    assert len({*after}) == len(after), "no page is written twice with the same content"
    assert done.latencies.num >= 16


def pages(content: bytes) -> list[bytes]:
    return [content[i : i + 4096] for i in range(0, len(content), 4096)]


def test_no_two_pages_of_a_file_are_equal(tmp_path: Path) -> None:
    write_random_file(str(tmp_path / "file"), 3, 17 * MIB)
    assert len({*pages((tmp_path / "file").read_bytes())}) == 17 * 256


def test_small_blocks_get_processes_large_ones_and_the_gpu_threads(tmp_path: Path) -> None:
    """CUDA contexts take turns on a GPU: processes would wait for each other."""
    job = replace(work(tmp_path), files=("file",) * 64)

    def num_processes(path: DataPath, io_size: int) -> int:
        return replace(job, spec=replace(job.spec, path=path, io_size=io_size)).num_processes

    assert job.num_processes == num_processes("host_io_uring", MIB) == 64
    assert num_processes("host_direct", 131072) == num_processes("cufile", 4096) == 1


def test_a_worker_that_fails_says_what_and_where(tmp_path: Path) -> None:
    job = work(tmp_path, seconds=600)  # it ends when a worker fails
    os.truncate(job.files[1], MIB // 2)

    with pytest.raises(RunError, match=r"^host_buffered, seq_read, 65536 bytes: .*short transfer"):
        perform([job])


def test_a_worker_that_is_killed_is_noticed(tmp_path: Path) -> None:
    job = work(tmp_path, io_size=4096, seconds=600)

    def kill_one(pids: Pids) -> None:
        assert [len(each) for each in pids] == [2]
        one, _ = multiprocessing.active_children()
        one.kill()

    with pytest.raises(RunError, match="ended without a word"):
        perform([job], kill_one)


# --- a plan ---------------------------------------------------------------------------------------


def sweep_of(tmp_path: Path, **changes: object) -> Sweep:
    """Return four cells of one target."""
    (tmp_path / "target").mkdir(exist_ok=True)
    several = {"io_sizes": (4096, 131072), "workers": (1, 2)}
    return plan(tmp_path / "target", **several | changes)


def test_what_was_written_to_the_drives_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = sweep_of(tmp_path, patterns=("seq_write",), workers=(1,), io_sizes=(4096,))
    monkeypatch.setattr("dlemu.tools.paths.sweep.has_writes", lambda wear: False)
    run_paths(writes, telling(silent))
    assert not (tmp_path / "output/wear.jsonl").exists(), "too little to tell"
    monkeypatch.setattr("dlemu.tools.paths.sweep.has_writes", lambda wear: True)
    found: list[WearFields] = []
    writes = writes.model_copy(update={"io_sizes": (131072,)})
    (cell,) = run_paths(writes, telling(silent), on_wear=found.append)
    [line] = (tmp_path / "output/wear.jsonl").read_text().splitlines()
    told = json.loads(line)
    assert told["file_bytes_written"] == MIB + cell.num_ios * cell.io_size
    assert told["end"] and "missing" in told and {**told, **found[0]} == told


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    events: list[str] = []
    first = run_paths(sweep_of(tmp_path, seconds=0.2), telling(events.append))
    for cell in first:
        assert cell.gib_per_second == pytest.approx(cell.iops * cell.io_size / 2**30)
        assert 0 < cell.latency_p50 <= cell.latency_p99 <= cell.latency_p999
    assert events[1] == f"writing 2 files of 1.0 MiB into {tmp_path}/target"
    assert events[2].endswith("; 0:01 left") and "left" not in events[-1]
    store = tmp_path / "output/cells.jsonl"
    lines = store.read_text().splitlines(keepends=True)
    store.write_text("".join(lines[:3]) + lines[3][:40])  # killed while writing the fourth
    events.clear()

    again = run_paths(sweep_of(tmp_path, seconds=0.2), telling(events.append))

    assert again[:3] == first[:3]
    assert again[3] != first[3], "the fourth was measured anew"
    assert events[0].startswith("4 cells, 3 of them measured before; 1 x")
    assert cells_of(JsonLines(store)) == again
    run_paths(sweep_of(tmp_path, seconds=0.05), telling(events.append))
    assert any(event.startswith("4 cells, 0 of them measured before") for event in events)

    cells = JsonLines(store).values
    for cell in cells:  # another drive is at this place now, or an hour has gone by
        (identity,) = cell["identities"].values()
        cell["end"] = "2026-01-01T00:00:00+00:00"
        identity["drive"] += " of another" if cell["io_size"] == cells[0]["io_size"] else ""
    store.write_text("".join(f"{json.dumps(cell)}\n" for cell in cells))
    events.clear()
    run_paths(sweep_of(tmp_path, seconds=0.2), telling(events.append))
    assert re.match(
        r"4 cells in .* not taken, of something else: drive .*, was .* of another", events[0]
    )
    assert re.match(r"the oldest cell in .* that is taken is [\d:]+ old", events[1])
    assert events[2].startswith("4 cells, 2 of them measured before; 2 x")


def test_what_cannot_be_kept_is_said_before_a_cell_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells_module, "perform", lambda *_: pytest.fail("it was measured"))
    summary = tmp_path / "output/summary.json"
    summary.mkdir(parents=True)
    with pytest.raises(RunError, match=r"summary.json is a folder, not a file"):
        run_paths(sweep_of(tmp_path), telling(silent))
    with hold(tmp_path / "output", ""), pytest.raises(WorkloadError, match=r"output .* is in use"):
        run_paths(sweep_of(tmp_path), telling(silent))
    summary.rmdir()
    summary.write_text('{"kind": "run"}')
    with pytest.raises(WorkloadError, match=r"/output holds a run already; name another"):
        run_paths(sweep_of(tmp_path), telling(silent))
    assert summary.read_text() == '{"kind": "run"}', "the result of another command stays"


def test_what_is_killed_or_interrupted_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies there while cells are measured is what a kill leaves."""

    def interrupted(*_: object) -> None:
        with pytest.raises(RunError, match=r"no result \(incomplete\): the command did not end"):
            read_result(tmp_path / "output")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cells_module, "perform", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_paths(sweep_of(tmp_path), telling(silent))
    with pytest.raises(RunError, match=r"no result \(incomplete\): interrupted"):
        read_result(tmp_path / "output")
    cells = run_paths(sweep_of(tmp_path), telling(silent))
    assert len(read_result(tmp_path / "output").document["cells"]) == len(cells) == 4


def test_a_cell_is_shown_before_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk may have become full meanwhile."""
    events: list[str] = []
    full = RunError("the disk is full")
    monkeypatch.setattr(JsonLines, "append", Mock(side_effect=full))
    with pytest.raises(RunError, match="the disk is full"):
        run_paths(sweep_of(tmp_path), telling(events.append))
    assert re.search(r" [kMG]B/s, p99 ", events[-1])
    assert not (tmp_path / "output").exists() and not any((tmp_path / "target").iterdir())


def test_what_a_path_does_not_take_is_left_out_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlemu.tools.paths.cells.smallest_direct", lambda _: 4096)
    monkeypatch.setattr(uring, "problem", lambda: "io_uring cannot be used (by the test)")
    monkeypatch.setattr(cells_module, "perform", lambda works, _: pytest.fail(f"{works} measured"))
    monkeypatch.setattr(sweep, "find_connection", lambda _: None)
    events: list[str] = []
    small = sweep_of(tmp_path, io_sizes=(512,), paths=None, queue_depths=(1, 4))

    with pytest.raises(RunError, match=r"paths=host_io_uring .*\(by the test\)"):
        run_paths(small.model_copy(update={"paths": ("host_io_uring",)}), telling(silent))
    with pytest.raises(RunError, match="too little"):
        run_paths(sweep_of(tmp_path, file_size=10**18), telling(silent))
    assert [path.name for path in tmp_path.rglob("*")] == ["target"]
    assert run_paths(small, telling(events.append)) == []

    target = tmp_path / "target"
    assert events[:2] == [
        f"left out on {target}: host_io_uring: io_uring cannot be used (by the test)",
        f"left out on {target}: host_direct with blocks of 512 B: 4096 B is the least there "
        "(the logical block of the device)",
    ]


def test_a_drive_that_fills_up_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "fsync", Mock(side_effect=full))
    with pytest.raises(RunError, match=r"/file cannot be written \(No space left on.*; free"):
        write_random_file(str(tmp_path / "file"), 0, MIB)


@pytest.mark.parametrize("output", ["results", "target"])
def test_two_sweeps_of_one_folder_do_not_meet(tmp_path: Path, output: str) -> None:
    """The second one would remove and rewrite the files that the first one reads."""
    one = sweep_of(tmp_path, workers=(1,), io_sizes=(4096,))
    target = one.target[0]
    mine = one.model_copy(update={"output": tmp_path / output})
    with held(target), pytest.raises(WorkloadError, match="is in use by another dlemu; wait"):
        run_paths(mine, lambda _: pytest.fail("it has begun"))
    assert not list(target.glob("dlemu_paths.*"))
    assert run_paths(mine, telling(silent))


# --- the command line -----------------------------------------------------------------------------


def test_the_command_writes_its_reports_and_ends_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["seconds=0.02", "workers=1", "io_sizes=128KiB", "paths=host_buffered"]
    words += ["file_size=1MiB", f"output={tmp_path}/out"]
    assert run_command(["paths", str(tmp_path), *words]) == 0

    assert "page cache" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"cells.jsonl", "paths.csv", "summary.json"}
    assert (tmp_path / "out/paths.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "out/paths.svg").read_text()


# --- on a GPU -------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_all_paths_on_a_gpu_and_the_mode_is_told(tmp_path: Path) -> None:
    if not Path("/dev/nvidia0").exists():
        pytest.skip("no GPU on this host")
    target = Path(__file__).parents[3] / "build" / "paths"
    target.mkdir(parents=True, exist_ok=True)
    events: list[str] = []

    sizes = {"seconds": 1.0, "file_size": 64 * MIB, "patterns": ("seq_read", "random_write")}
    cells = run_paths(
        sweep_of(tmp_path, target=(target,), paths=None, **sizes), telling(events.append)
    )

    print("\n".join(events))
    assert {c.path for c in cells} >= {"host_buffered", "host_direct", "host_direct_gpu_copy"}
    for cell in cells:
        by_path = cell.p2pdma_bytes + cell.nvidia_fs_bytes + cell.compat_bytes + cell.host_bytes
        assert by_path == cell.num_ios * cell.io_size
        assert (cell.mode == "host") == (cell.path != "cufile")


BLOCK = 4096
needs_ring = pytest.mark.skipif(uring.problem() is not None, reason=str(uring.problem()))


@pytest.fixture
def content(tmp_path: Path) -> Iterator[tuple[int, bytes]]:
    """An open file of 32 blocks, and its bytes."""
    data = np.random.default_rng(1).bytes(32 * BLOCK)
    (tmp_path / "file").write_bytes(data)
    file = os.open(tmp_path / "file", os.O_RDWR)
    yield file, data
    os.close(file)


def ring_and_memory(file: int, depth: int, *, writes: bool = False) -> tuple[Ring, memoryview]:
    memory = aligned_buffer(depth * BLOCK)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    return Ring(file, depth=depth, size=BLOCK, address=address, writes=writes), memory


@needs_ring
@pytest.mark.parametrize("depth", [1, 4, 13])
def test_each_place_holds_the_block_that_was_asked_for(
    depth: int, content: tuple[int, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, data = content
    ring, memory = ring_and_memory(file, depth)
    asked: list[int] = []
    # A clock that goes on with each block: the ring of 16 wraps around, however busy the host is.
    clock = Mock(perf_counter_ns=lambda: len(asked))
    monkeypatch.setattr("dlemu.tools.paths.uring.time", clock)
    blocks = cycle(range(32))

    def next_offset() -> int:
        asked.append(next(blocks) * BLOCK)
        return asked[-1]

    latencies: list[int] = []
    ring.run(next_offset, 64, latencies.extend)
    ring.close()

    read = len(asked) - depth  # each place knows its next offset
    assert len(latencies) == read >= depth, "all that was asked for is waited for and counted"
    held = [bytes(memory[place * BLOCK :][:BLOCK]) for place in range(depth)]
    known = {data[offset : offset + BLOCK] for offset in asked}
    assert set(held) <= known
    assert len(asked) > 2**4, "the ring has wrapped around"


@needs_ring
def test_a_place_writes_where_it_was_told(content: tuple[int, bytes]) -> None:
    file, data = content
    ring, memory = ring_and_memory(file, 2, writes=True)
    memory[:] = b"x" * len(memory)
    ring.run(iter([0, 5 * BLOCK]).__next__, 0, len)
    ring.close()

    now = os.pread(file, 32 * BLOCK, 0)
    changed = [i for i in range(32) if now[i * BLOCK :][:BLOCK] != data[i * BLOCK :][:BLOCK]]
    assert changed == [0, 5] and now[:BLOCK] == b"x" * BLOCK


@needs_ring
def test_a_short_or_failed_transfer_is_an_error(content: tuple[int, bytes]) -> None:
    file, _ = content
    ring, _memory = ring_and_memory(file, 1)
    with pytest.raises(RunError, match="short transfer of 100 bytes"):
        ring.run(lambda: 32 * BLOCK - 100, 0, len)
    ring.close()
    ring, _memory = ring_and_memory(1 << 20, 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        ring.run(lambda: 0, 0, len)
    ring.close()


@pytest.mark.parametrize(
    ("number", "setting", "told"),
    [
        (errno.EPERM, "2\n", r"kernel.io_uring_disabled is 2; root may set it to 0$"),
        (errno.EPERM, "0\n", "seccomp forbids it"),
        (errno.ENOSYS, "0\n", "the kernel has none"),
        (errno.ENOMEM, "0\n", r"ulimit -l.*smaller queue_depths"),
    ],
)
def test_a_host_without_io_uring_is_told_why_in_a_line(
    number: int, setting: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disabled = tmp_path / "kernel.io_uring_disabled"
    disabled.write_text(setting)

    def refuse(*_: object) -> int:
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(uring, "_call", refuse)
    monkeypatch.setattr(uring, "_DISABLED", disabled)
    problem = uring.problem()
    assert problem is not None and "\n" not in problem
    with pytest.raises(RunError, match=told):
        raise RunError(problem)


# --- joules between two readings of the counters --------------------------------------------------


def test_packages_are_read_and_their_parts_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    counted = {"intel-rapl:0": 5_000_000, "intel-rapl:1": 7_500_000, "intel-rapl:0:0": 1, "dtpm": 1}
    for name, microjoules in counted.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{microjoules}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("8000000\n")
    (tmp_path / "intel-rapl:2").mkdir()

    assert read_joules(tmp_path) == {"intel-rapl:0": (5.0, 8.0), "intel-rapl:1": (7.5, 8.0)}


def test_an_overrun_is_not_negative_energy() -> None:
    cpus = {"user": 1.0, "nice": 0.0, "system": 1.0, "irq": 0.0, "softirq": 0.0}
    before = {"intel-rapl:0": (90.0, 100.0), "intel-rapl:1": (10.0, 100.0), "gpu0": (3.0, math.inf)}
    after = {"intel-rapl:0": (5.0, 100.0), "intel-rapl:1": (40.0, 100.0), "gpu0": (3.5, math.inf)}
    start, end = HostCounters(8.0, cpus, before), HostCounters(10.0, cpus, after)

    used = end.since(start)

    assert (used.cpu_watts, used.gpu_watts) == pytest.approx(((15 + 30) / 2, 0.25))
    assert end.since(HostCounters(8.0, cpus, {})).cpu_watts is None


def test_each_gpu_that_counts_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two, the first is too old."""
    nvml = Mock(NVMLError=RuntimeError)
    nvml.nvmlDeviceGetCount.return_value = 2
    nvml.nvmlDeviceGetTotalEnergyConsumption.side_effect = [RuntimeError("Not Supported"), 5500]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert read_joules(tmp_path) == {"gpu1": (5.5, math.inf)}
    nvml.nvmlInit.side_effect = RuntimeError("Driver Not Loaded")
    assert read_joules(tmp_path) == {}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_joules(tmp_path) == {}, "without the library"
