"""Several targets at the same time: their sum, ranks that share them, devices, and GPUs."""

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Self
from unittest.mock import Mock

import psutil
import pytest

from dlemu.cli.main import run
from dlemu.errors import RunError
from dlemu.host.place import Attachment
from dlemu.judge.own_rates import OwnRates
from dlemu.ranks.world import World
from dlemu.report.words import telling
from dlemu.storage.counted import PathBytes
from dlemu.storage.gpu import cuda, cufile
from dlemu.storage.gpu.cufile import Availability, CufileError
from dlemu.terminal import silent
from dlemu.tools.paths import blocks, cells, sweep
from dlemu.tools.paths.blocks import CellJob, CellResult, Latencies, Pids
from dlemu.tools.paths.sweep import run_paths
from tests.lab.bench import Run, launched
from tests.lab.many_hosts import ManyHosts
from tests.lab.mpirun import mpirun
from tests.lab.waiting import until
from tests.storage.gpu.test_cufile import NONE, fake, stats
from tests.tools.paths.conftest import MIB, plan


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, ...]:
    for name in ("d0", "d1"):
        (tmp_path / name).mkdir()
    return tmp_path / "d0", tmp_path / "d1"


def fakes(events: list[str], rates: Sequence[int]) -> Callable[..., list[CellResult]]:
    """Return a `perform` of so many blocks in a second, for the first work, the second, ..."""

    def perform(works: Sequence[CellJob], ready: Callable[[Pids], None]) -> list[CellResult]:
        events.append("open")
        ready([[] for _ in works])
        events.append("read")
        found = []
        for work, num in zip(works, rates[: len(works)], strict=True):
            moved = PathBytes(host=num * work.spec.io_size)
            found.append(CellResult(Latencies(), 1.0, 0.5, 0.25, moved))
            found[-1].latencies.add([500_000] * num)
        return found

    return perform


def test_the_sum_is_that_of_all_blocks_and_of_the_rates(
    folders: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "perform", fakes([], (1000, 3000)))
    events: list[str] = []
    datasheet = {"name": "d", "read_bandwidth": "1GB"}

    found = run_paths(plan(*folders, together="both", drive=datasheet), telling(events.append))

    one, two, first, second, total = found
    names = tuple(map(str, folders))
    assert [(cell.target, cell.together) for cell in (one, two)] == [(n, ()) for n in names]
    assert [cell.target for cell in (first, second, total)] == [*names, "sum"]
    assert {cell.together for cell in (first, second, total)} == {names}
    assert (total.iops, total.num_ios) == (first.iops + second.iops, 4000) == (4000.0, 4000)
    assert total.gib_per_second == pytest.approx(4000 * 65536 / 2**30)
    assert total.cpu_user_percentage == pytest.approx(2 * one.cpu_user_percentage)
    assert total.latency_mean == pytest.approx(0.0005)
    assert (one.ceiling, one.ceiling_bytes_per_second) == ("datasheet", 1e9)
    assert "4 cells, 0 of them measured before; 3 x 100 ms = 300 ms" in events
    run_paths(plan(*folders, together="both", drive=datasheet), telling(events.append))
    assert events[-1] == "4 cells, 4 of them measured before", "nor the sum"


def test_each_target_is_steady_by_the_bytes_of_its_own_workers(
    folders: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by its drive's counters: the two lie on one drive, and so does a neighbour's job."""
    counted: list[float] = []

    class Looks(OwnRates):
        def __enter__(self) -> Self:
            counted.append(self._count())
            return self

        def __exit__(self, *_: object) -> None:
            assert len(counted) == 2

    def perform(works: Sequence[CellJob], ready: Callable[[Pids], None]) -> list[CellResult]:
        return fakes([], (1000, 3000))(works, lambda pids: ready([[11, 12], [21]]))

    for pid, read, written in ((11, 1, 2), (12, 4, 8), (21, 16, 32)):
        (tmp_path / str(pid)).mkdir()
        text = f"rchar: 900\nread_bytes: {read}\nwrite_bytes: {written}\n"
        (tmp_path / str(pid) / "io").write_text(f"{text}cancelled_write_bytes: 7\n")
    monkeypatch.setattr(cells, "PROC", tmp_path)
    monkeypatch.setattr(cells, "OwnRates", Looks)
    monkeypatch.setattr(cells, "perform", perform)
    run_paths(plan(*folders, together="on"), telling(silent))
    assert counted == [15, 48]
    assert cells.moved_by([]) == cells.moved_by([99]) == 0, "one that has ended"


def test_what_one_target_cannot_do_is_measured_on_the_other_alone(
    folders: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def least_block(path: str, target: Path) -> int:
        if path == "host_direct" and target == folders[1]:
            raise cells.PathUnusableError("no O_DIRECT")
        return 512

    monkeypatch.setattr(cells, "perform", fakes([], (1000, 3000)))
    monkeypatch.setattr(sweep, "least_block", least_block)
    monkeypatch.setattr(sweep, "lists_gpu", lambda: False)
    notes: list[str] = []

    found = run_paths(plan(*folders, together="both", paths=None), telling(notes.append))

    assert f"left out on {folders[1]}: host_direct: no O_DIRECT" in notes
    direct = [(cell.target, cell.together) for cell in found if cell.path == "host_direct"]
    assert direct == [(str(folders[0]), ())]
    assert len([cell for cell in found if cell.together]) == 3


@pytest.mark.parametrize(
    ("ranks", "each", "hosts"), [(2, 1, 2), (2, 2, 1), (4, 2, 2), (3, 2, 2), (3, 3, 1)]
)
def test_ranks_share_the_targets_and_begin_together(
    ranks: int, each: int, hosts: int, folders: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where hosts have unequal numbers of them, and more than targets."""
    events: list[str] = []
    monkeypatch.setattr(cells, "perform", fakes(events, (1000, 3000)))
    monkeypatch.setattr(sweep, "held", lambda *_, **__: nullcontext())
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    now = cells.HostCounters.now

    def counting() -> cells.HostCounters:
        if events[-1] != "read":  # not those at the end
            events.append("count")
        return now()

    monkeypatch.setattr(cells.HostCounters, "now", counting)
    job, notes = plan(*folders), list[str]()

    job_of = ManyHosts(ranks)
    job_of.ranks_per_host = each
    all_found = job_of.run(lambda world: run_paths(job, telling(notes.append), world=world))

    bound = [n for n in notes if "its rank may use 1 of 8 CPUs; mpirun --bind-to none" in n]
    assert len(bound) == 2 * hosts
    assert events == ["open"] * ranks + ["count"] * ranks + ["read"] * ranks
    *parts, total = all_found[0]
    assert all(found == [] for found in all_found[1:])
    assert len(parts) == 2 * hosts and total.target == "sum"
    assert len({cell.target for cell in parts}) == 2 * hosts, "a host's name tells them apart"
    bounds = [(cell.ceiling, cell.ceiling_bytes_per_second) for cell in all_found[0]]
    assert bounds == [("memory", 8e9)] * 2 * hosts + [("memory", 8e9 * hosts)]
    assert total.num_ios == sum(cell.num_ios for cell in parts)
    share = sum(cell.cpu_user_percentage for cell in parts) / hosts
    assert total.cpu_user_percentage == pytest.approx(share), "of the CPUs of all hosts"


def test_what_one_rank_lacks_ends_all_with_its_line(folders: tuple[Path, ...]) -> None:
    jobs = [plan(*folders), plan(Path("/nosuch"))]

    def work(world: World) -> None:
        run_paths(jobs[world.rank], lambda _: pytest.fail("it began"), world=world)

    with pytest.raises(RunError, match="/nosuch is no folder"):
        ManyHosts(2, 1).run(work)
    assert not (folders[0].parent / "output").exists()


def test_a_dry_run_says_cells_and_time_and_writes_nothing(
    folders: tuple[Path, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folders[0].parent)
    words = ["together=both", "workers=1,8", "io_sizes=4KiB,1MiB", "paths=host_buffered"]
    assert run(["paths", "d0,d1", *words, "--dry-run"]) == 0
    *_, cells, last = capsys.readouterr().out.splitlines()
    # How wide the first column is depends on what is known of the host's drives.
    assert (
        " ".join(cells.split()) == "cells: 32 cells, 0 of them measured before; 24 x 45 s = 18:00"
    )
    assert last == "dlemu paths would be accepted; nothing was written"
    assert sorted(path.name for path in folders[0].parent.rglob("*")) == ["d0", "d1"]


def test_real_readers_of_two_ranks_leave_nothing(folders: tuple[Path, ...]) -> None:
    found, others = ManyHosts(1, 2).run(
        lambda world: run_paths(plan(*folders), telling(silent), world=world)
    )
    one, two, total = found
    assert [cell.target for cell in found] == [*map(str, folders), "sum"] and not others
    assert total.num_ios == one.num_ios + two.num_ios > 0
    assert not any(any(target.iterdir()) for target in folders)


@pytest.mark.mpi
def test_a_rank_that_is_killed_while_it_measures_is_named(folders: tuple[Path, ...]) -> None:
    words = ["paths", f"{folders[0]},{folders[1]}", "seconds=86400", "io_sizes=4KiB", "workers=2"]
    words += ["patterns=seq_read", "paths=host_buffered", "file_size=1MiB", "output=out"]
    folder = folders[0].parent
    command = mpirun(2, "--bind-to", "none", sys.executable, "-m", "dlemu", *words)
    with launched(command, folder, folder) as run:
        until(lambda: len(list(reading(run))) == 4, "all readers", by=run.process)
        run.ranks()[1].kill()
        assert run.end() != 0
        lines = [each for each in run.errors if each.startswith("dlemu: ")]
        for line in lines:
            assert "rank 1 on host " in line and "ended without a word" in line
        # A slow host's mpirun may end the other rank before it can say so, and names it itself.
        assert len(lines) == 1 or any("process rank 1 " in each for each in run.errors)
        until(lambda: not run.alive(), "the end of all processes")
    assert not [*folders[0].iterdir()], "what the others wrote is removed"


def reading(run: Run) -> Iterator[psutil.Process]:
    """Yield the processes that have a file of the sweep open."""
    for process in run.alive():
        with suppress(psutil.Error):
            if any("dlemu_paths." in file.path for file in process.open_files()):
                yield process


# --- a block device -------------------------------------------------------------------------------


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    image = tmp_path / "image"
    image.write_bytes(os.urandom(MIB))
    if os.geteuid() != 0:
        pytest.skip("only root may make a loop device")
    made = subprocess.run(["losetup", "-f", "--show", image], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no loop device here: {made.stderr.strip()}")
    yield Path(made.stdout.strip())
    subprocess.run(["losetup", "-d", made.stdout.strip()], check=True)


def test_a_device_is_read_in_parts_and_never_written(
    device: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "lists_gpu", lambda: False)
    before = (tmp_path / "image").read_bytes()
    words: dict[str, Any] = {"output": tmp_path / "output", "paths": None, "file_size": None}
    notes: list[str] = []

    found = run_paths(plan(device, **words, io_sizes=(512, 4096)), telling(notes.append))

    measured = {(cell.path, cell.io_size, cell.file_bytes) for cell in found}
    assert measured == {("host_direct", 512, MIB // 2), ("host_direct", 4096, MIB // 2)}
    assert any("host_buffered: a block device is read with O_DIRECT" in note for note in notes)
    for pattern in ("seq_write", "random_write"):
        with pytest.raises(RunError, match=f"patterns={pattern} would overwrite the block device"):
            run_paths(plan(device, **words, patterns=("seq_read", pattern)), telling(notes.append))
    with pytest.raises(RunError, match=r"has 1.0 MiB, too little for 2 parts of 4.0 MiB"):
        run_paths(plan(device, **words, io_sizes=(4 * MIB,)), telling(notes.append))
    assert (tmp_path / "image").read_bytes() == before


# --- GPUs: cuFile's library is a fake, so that the direct paths' lines run ------------------------


class FakeCuda:
    """Two GPUs whose memory is the host's."""

    def __init__(self) -> None:
        self.memory: dict[int, mmap.mmap] = {}

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *arguments: 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = 2
        return 0

    def cuDeviceGetPCIBusId(self, text: Any, size: int, number: int) -> int:
        text.value = f"0000:{0xA0 + number:02X}:00.0".encode()
        return 0

    def cuMemAlloc_v2(self, address: Any, size: int) -> int:
        made = mmap.mmap(-1, size)
        address._obj.value = ctypes.addressof(ctypes.c_char.from_buffer(made))
        self.memory[address._obj.value] = made
        return 0

    def cuMemcpyHtoD_v2(self, target: int, source: int, size: int) -> int:
        ctypes.memmove(target, source, size)
        return 0

    cuMemcpyDtoH_v2 = cuMemcpyHtoD_v2


class FakeCufile:
    """Moves bytes by PCI P2PDMA, as its counters say."""

    def __init__(self) -> None:
        self.read, self.written = list[int](), list[int]()

    def __getattr__(self, name: str) -> Callable[..., CufileError]:
        return lambda *arguments: CufileError(0, 0)

    def cuFileHandleRegister(self, handle: Any, descriptor: Any) -> CufileError:
        handle._obj.value = descriptor._obj.fd
        return CufileError(0, 0)

    def cuFileRead(self, file: Any, base: int, size: int, offset: int, at: int) -> int:
        into = (ctypes.c_char * size).from_address(base + at)
        self.read.append(size)
        return os.preadv(file.value, [into], offset)

    def cuFileWrite(self, file: Any, base: int, size: int, offset: int, at: int) -> int:
        source = (ctypes.c_char * size).from_address(base + at)
        self.written.append(size)
        return os.pwritev(file.value, [source], offset)

    def cuFileGetStatsL3(self, into: Any) -> CufileError:
        num_bytes = {"read_bytes": sum(self.read), "write_bytes": sum(self.written)}
        paths = (len(self.read), 0, 0), (len(self.written), 0, 0)
        into.raw = stats(1200, gpus=[paths, (NONE, NONE)], **num_bytes)
        return CufileError(0, 0)


def in_process(works: Sequence[CellJob], ready: Callable[[Pids], None]) -> list[CellResult]:
    """Do as `perform`, one work after the other, in this process."""
    ready([[] for _ in works])
    found = []
    for work in works:
        pipe = Mock(**{"recv.return_value": 0.0})
        blocks._run_group(pipe, work, tuple(range(work.num_readers)))
        found.append(pipe.send.call_args.args[0])
        assert isinstance(found[-1], CellResult), found[-1]
    return found


def test_pairs_take_the_direct_path_each_into_its_gpu(
    folders: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, load = FakeCuda(), Mock(side_effect=lambda path: FakeCufile())
    gpu = Mock(side_effect=cuda.GpuContext)
    fake(monkeypatch)
    monkeypatch.setattr(cuda, "_library", lambda: driver)
    monkeypatch.setattr(cufile, "_load", load)
    monkeypatch.setattr(cells, "availability", lambda folder: Availability("p2pdma", ()))
    monkeypatch.setattr(blocks, "_end_with_parent", lambda pipe: None)
    monkeypatch.setattr(blocks, "GpuContext", gpu)
    monkeypatch.setattr(cells, "perform", in_process)
    notes: list[str] = []

    found = run_paths(
        plan(
            pairs=f"[{folders[0]}:gpu1,{folders[1]}:gpu0]",
            output=folders[0].parent / "output",
            paths=("cufile", "host_direct_gpu_copy"),
            patterns=("seq_read", "random_write"),
        ),
        telling(notes.append),
    )

    assert notes[0].startswith(f"{folders[0]}: ") and "GPU 1, 0000:a1:00.0" in notes[0]
    assert [call.args[0] for call in gpu.call_args_list] == [1, 0] * 4 and load.call_count == 4
    for cell in found:
        if cell.target != "sum":
            assert cell.gpu == int(cell.target == str(folders[0]))
        mode, num_bytes = cell.mode, cell.num_ios * 65536
        direct = cell.path == "cufile"
        assert (mode, cell.p2pdma_bytes) == (("p2pdma", num_bytes) if direct else ("host", 0))


@pytest.mark.parametrize("asked", [None, 0])
def test_the_nearest_gpu_is_taken_unless_another_is_asked_for(
    asked: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Attachment({"nvme0n1": 7.9e9}, node=1, gpu=1)
    ours = min(os.sched_getaffinity(0))
    monkeypatch.setattr(cuda, "_library", FakeCuda)
    monkeypatch.setattr(sweep, "find_attachment", lambda *_: found)
    monkeypatch.setattr(sweep, "cpus_of_node", lambda node: [ours, 5000])
    perform = Mock(side_effect=fakes([], (1000,)))
    monkeypatch.setattr(cells, "perform", perform)
    notes: list[str] = []
    job = plan(tmp_path, paths=("host_direct_gpu_copy",), gpu=asked, output=tmp_path / "out")
    (cell,) = run_paths(job, telling(notes.append))
    number = 1 if asked is None else asked
    (work,) = perform.call_args.args[0]
    assert (work.spec.gpu, work.cpus, cell.gpu) == (number, (ours,), number)
    assert "readers on NUMA node 1" in notes[0]
    assert ("GPU 1, the nearest to it, 0000:a1:00.0" in notes[0]) == (asked is None)
    assert (cell.ceiling, cell.ceiling_bytes_per_second) == ("PCIe link", 7.9e9)
    with pytest.raises(RunError, match=r"gpu 2 for target .*: there are 2 GPUs that can be read i"):
        run_paths(job.model_copy(update={"gpu": 2}), telling(notes.append))
