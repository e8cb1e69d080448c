"""Ranks that dlemu starts itself: a world like others, which ends as one."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from dlemu.config.model import load_workload
from dlemu.dataset import rule
from dlemu.dataset.rule import num_processes
from dlemu.errors import DatasetError, DlemuError, LostRankError, RunError, WorkloadError
from dlemu.judge.records import map_steps
from dlemu.ranks.local import processes
from dlemu.ranks.world import Alone, World
from dlemu.run.job import run_job
from tests.lab.commands import QUICK, generate, small_job
from tests.lab.many_hosts import ManyHosts
from tests.lab.ranks import values_of
from tests.lab.waiting import LONG, until
from tests.ranks.test_world import check_values

HERE = __name__


def play(world: World, case: str) -> None:
    """Be one of three ranks; the last one does what the case says."""
    pids = world.gather(os.getpid())
    assert pids is None
    if case == "values":
        world.all_gather(values_of(world))
    world.barrier()
    if world.rank == 2 and case == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if world.rank == 2 and case == "fail":
        raise DatasetError("img_1.npz: is gone")
    if world.rank == 2 and case == "bug":
        raise ZeroDivisionError("1/0")
    if world.rank == 2 and case == "stuck":
        while True:
            time.sleep(1.0)
    world.barrier()


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_they_are_a_world() -> None:
    with processes(3, f"{HERE}:play", "values") as world:
        pids = world.gather(os.getpid()) or []
        found = world.all_gather(values_of(world))
        world.barrier()
        world.barrier()
    places = [[0, 1, rank, 3] for rank in range(3)]
    check_values(found, [world.host] * 3, places)
    assert len(set(pids)) == 3 and gone(pids[1:])


@pytest.mark.parametrize(
    ("case", "kind", "error"),
    [
        ("kill", LostRankError, "ended without a word (killed? out of memory?)"),
        ("fail", RunError, "img_1.npz: is gone"),
        ("bug", RunError, "ZeroDivisionError('1/0')"),
    ],
)
def test_what_stops_one_is_raised_on_the_first_and_ends_all(
    case: str, kind: type[RunError], error: str
) -> None:
    pids: list[int] = []
    with (
        pytest.raises(kind, match=f"^rank 2 on host .* ?{re.escape(error)}$") as raised,
        processes(3, f"{HERE}:play", case) as world,
    ):
        pids += world.gather(os.getpid()) or []
        world.barrier()
        world.barrier()
    assert raised.type is kind
    assert gone(pids[1:])


def test_what_stops_the_first_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hears nothing is killed."""
    monkeypatch.setattr("dlemu.ranks.local._END_SECONDS", 0.5)
    pids: list[int] = []
    with pytest.raises(WorkloadError, match="bad"), processes(3, f"{HERE}:play", "stuck") as world:
        pids += world.gather(os.getpid()) or []
        world.barrier()
        raise WorkloadError("bad")
    until(lambda: gone(pids[1:]), "the end of all ranks")


def test_none_outlives_a_first_one_that_is_killed() -> None:
    code = (
        "import os\n"
        "from dlemu.ranks.local import processes\n"
        f"with processes(3, '{HERE}:play', 'stuck') as world:\n"
        "    print(*world.gather(os.getpid()), flush=True)\n"
        "    world.barrier()\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    pids = [int(pid) for pid in done.stdout.split()]
    assert (len(pids), done.returncode) == (3, -signal.SIGKILL), done
    until(lambda: gone(pids), "the end of all ranks")


def in_group(group: int) -> list[psutil.Process]:
    """Return the processes of a group that have not ended."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            lives = process.status() != psutil.STATUS_ZOMBIE
            if lives and os.getpgid(process.pid) == group:
                found.append(process)
    return found


def records_of(folder: Path) -> Any:
    """Return what was read for each epoch, step and accelerator, and what was asked of compute."""
    steps = np.concatenate([part.ravel() for _, part in map_steps(folder)])
    steps = np.sort(steps, order=("epoch", "step", "accelerator"))
    return steps[["epoch", "step", "accelerator", "num_samples", "num_bytes", "computation_time"]]


@pytest.mark.parametrize("loader", ["threads", "tensorflow"])
def test_processes_read_what_one_reads(tmp_path: Path, loader: str) -> None:
    """The same files for the same accelerators, and the same drawn times."""
    found = []
    for num in (1, 3):
        job = small_job(
            tmp_path,
            num_accelerators=4,
            train__processes=num,
            train__computation_time={"mean": 0.005, "stdev": 0.001},
            reader__data_loader=loader,
            reader__batch_size=2,
            output__folder=str(tmp_path / f"run{num}"),
        )
        outcome = run_job(job, say=lambda text: None)
        assert outcome is not None
        assert outcome.summary["num_ranks"] == num
        assert outcome.metrics.num_accelerators == 4
        found.append(records_of(outcome.folder))
    assert np.array_equal(*found)


def test_an_error_of_another_process_is_one_of_the_run(tmp_path: Path) -> None:
    job = small_job(tmp_path, num_accelerators=2, train__processes=2, train__epochs=1)
    for path in (tmp_path / "data" / "train").iterdir():
        path.write_bytes(b"")
    with pytest.raises(DlemuError, match=r"^(rank 1 on host .*: )?.*img_"):
        run_job(job, say=lambda text: None)


@pytest.mark.quick
def test_as_many_processes_as_the_accelerators_rate_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "usable_cpus", lambda: 32.0)
    monkeypatch.setattr(rule, "cpus_a_process", 2)

    def of(name: str, number: int, **keys: object) -> int:
        given = {key.replace("__", "."): value for key, value in keys.items()}
        job = load_workload(name, {"num_accelerators": number, **given})
        return num_processes(job, Alone())

    assert [of("cosmoflow_h100", number) for number in (1, 2, 4, 8, 16, 32)] == [1, 1, 1, 2, 4, 8]
    assert [of("resnet50_h100", number) for number in (1, 32)] == [1, 1], "a file has 1251 samples"
    assert of("unet3d_h100", 32) == 1
    fast = {"train__computation_time": 0.0}
    assert of("unet3d_h100", 8, **fast) == 8, "as fast as it can, but each has an accelerator"
    assert of("unet3d_h100", 64, **fast) == 16, "and two CPUs"
    assert of("cosmoflow_h100", 32, train__processes=3) == 3
    assert of("cosmoflow_h100", 2, train__processes=3) == 2, "a search begins with few"
    assert of("cosmoflow_h100", 32, train__compute="gpu") == 1
    assert of("cosmoflow_h100", 32, reader__data_loader="dali") == 1
    monkeypatch.setattr(rule, "usable_cpus", lambda: 1.0)
    assert of("cosmoflow_h100", 32) == 1

    def of_ranks(world: World) -> int:
        return num_processes(load_workload("cosmoflow_h100", {"num_accelerators": 64}), world)

    assert ManyHosts(1, 2).run(of_ranks) == [1, 1], "they are the processes"


def test_the_command_line_is_interrupted_as_one(tmp_path: Path) -> None:
    words = [*QUICK, generate(tmp_path), "num_accelerators=2", "train.processes=2"]
    words += ["train.epochs=100000", f"output.folder={tmp_path / 'out'}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "dlemu", "run", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until((tmp_path / "out" / "steps.1.npy").exists, "the first records", by=process)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=LONG)
    lines = [line for line in said.splitlines() if not line.startswith("run: ")]
    assert (process.returncode, lines) == (130, ["dlemu: interrupted"])
    until(lambda: not in_group(process.pid), "the end of all processes")
