"""Checkpoints inside a run: in virtual time, with real files, and as users call it.

What counts as progress of a write: bytes that move, and what the drive takes in a long fsync.
"""

import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dlemu.checkpoint import crew
from dlemu.checkpoint.crew import Movement
from dlemu.checkpoint.files import Writer, WriteTimes
from dlemu.checkpoint.in_run import (
    OwnRank,
    combine_checkpoints,
    due_after,
    examine_in_run,
    mark_writing,
    num_due,
    open_checkpoints,
    planned_in_run,
)
from dlemu.checkpoint.plan import ShardPlan
from dlemu.clock import Clock
from dlemu.config.checkpoint_sections import CheckpointSection
from dlemu.config.model import Workload, check_workload
from dlemu.errors import WorkloadError
from dlemu.judge.dlio_names import dlio_names
from dlemu.judge.metrics import checkpoint_cost
from dlemu.judge.records import read_steps
from dlemu.judge.sums import RankName
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import Alone
from dlemu.report.in_run import checkpoint_lines
from dlemu.report.words import sentence, telling
from dlemu.run.replay import new_steps
from tests.lab import bench
from tests.lab.shared import sums_of
from tests.lab.virtual import VirtualClock
from tests.lab.waiting import LONG, until


def job(folder: Path | None, **keys: Any) -> Workload:
    tree: dict[str, Any] = {
        "dataset": {"format": "npz", "num_files_train": 1},
        "workflow": {"checkpoint": True},
        "model": {"name": "flat", "model_size_bytes": 1_000_001},
        "checkpoint": {"checkpoint_folder": None if folder is None else str(folder)} | keys,
    }
    return check_workload(tree)


def place(clock: Clock | None = None, own: range = range(1)) -> OwnRank:
    return OwnRank(Alone(), clock or VirtualClock(), Watchdog(1e9, Alone()), own, len(own))


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob("*/*"))


@pytest.mark.parametrize(
    ("keys", "due"),
    [
        ({}, [[10], [10], [10], [10], [10]]),
        ({"checkpoint_after_epoch": 5, "epochs_between_checkpoints": 2}, [[], [], [], [], [10]]),
        ({"steps_between_checkpoints": 5}, [[5, 10]] * 5),
        ({"steps_between_checkpoints": -1, "checkpoint_after_epoch": 4}, [[], [], [], [10], [10]]),
    ],
)
def test_they_are_due_when_dlio_s_are(keys: dict[str, int], due: list[list[int]]) -> None:
    section = CheckpointSection.model_validate(keys)
    assert [due_after(section, epoch=epoch, num_steps=10) for epoch in range(5)] == due


def test_a_synchronous_one_is_whole_when_the_steps_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "checkpoints"
    with open_checkpoints(job(folder), place(), [10, 10], lambda _: None) as checkpoints:
        checkpoints.take(0, 10)
        assert names_in(folder) == ["global_epoch1_step10/model_states-0.pt"]
        first = (folder / "global_epoch1_step10/model_states-0.pt").read_bytes()
        checkpoints.take(1, 10)
        report = checkpoints.finish()
    second = (folder / "global_epoch2_step10/model_states-0.pt").read_bytes()
    assert len(first) == len(second) == 1_000_001
    pages = {data[at : at + 4096] for data in (first, second) for at in range(0, 999_000, 4096)}
    assert len(pages) == 2 * 244, "no two pages are alike"
    fields = combine_checkpoints(job(folder), 1, [report])
    assert (fields["num_bytes"], fields["written_bytes"]) == (1_000_001, 2_000_002)
    assert len(fields["stall_seconds"]) == len(fields["duration_seconds"]) == 2
    assert dlio_names(fields)["checkpoint_size_GB"] == 1_000_001 / 2**30
    steps = new_steps(0, np.ones((4, 1)))
    steps["compute"], steps["stall"][1, 0] = 1.0, 2.0
    cost = checkpoint_cost(sums_of(steps, [RankName(0)]).epochs) or {}
    on_drive = {"devices": ["sda"], "device_read_bytes": 3e6, "device_written_bytes": 1e6}
    assert list(checkpoint_lines({**fields, **cost, **on_drive}))[1:] == [
        "AU including all stalls 66.67%: accelerators waited 2 s for 1 checkpoint",
        "checkpoint drive sda: 3 MB read and 1 MB written in the epochs, by any process, 25% "
        "of them writes",
    ]


def test_an_asynchronous_one_costs_what_copying_to_memory_takes(tmp_path: Path) -> None:
    keys = {"asynchronous": True, "staging_bandwidth": 1_000_000}
    workload = job(tmp_path, **keys)
    with open_checkpoints(workload, place(), [4], lambda _: None) as checkpoints:
        assert checkpoints.take(0, 2) == pytest.approx(1.000001)
        assert checkpoints.take(0, 4) == pytest.approx(1.000001)
        assert names_in(tmp_path)[0] == "global_epoch1_step2/model_states-0.pt", "waited for"
        checkpoints.finish()
    assert len(names_in(tmp_path)) == 2


def test_older_ones_go_and_those_of_an_earlier_run_as_well(tmp_path: Path) -> None:
    workload = job(tmp_path, keep=1)
    told: list[str] = []
    for steps in ([2, 4, 6], [5]):
        with open_checkpoints(workload, place(), [6], telling(told.append)) as checkpoints:
            for step in steps:
                checkpoints.take(0, step)
            checkpoints.finish()
        assert names_in(tmp_path) == [f"global_epoch1_step{steps[-1]}/model_states-0.pt"]
        (tmp_path / "global_epoch1_step3").mkdir(exist_ok=True)
        (tmp_path / "global_epoch1_step3/model_states-0.pt.partial").touch()  # as a kill leaves
        told.append("next")
    assert told == ["next", "removed: 2 checkpoints of an earlier command", "next"]


def test_none_due_needs_no_folder(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(WorkloadError, match=r"thesis\.tex"):
        examine_in_run(job(tmp_path), 1, 4)
    workload = job(tmp_path, checkpoint_after_epoch=2)
    examine_in_run(workload.with_keys({"train.epochs": 1}), 1, 4)
    assert num_due(workload, [4]) == 0
    fields = combine_checkpoints(workload, 1, [])
    assert list(checkpoint_lines(fields)) == [
        "checkpoints: none was due, one after epoch 2 and every 1 epoch"
    ]
    assert sentence(planned_in_run(workload, 1, 4)).startswith("0 checkpoints of 976.6 KiB")


def test_steps_are_marked_that_lie_mostly_in_a_write() -> None:
    steps = new_steps(0, np.ones((5, 2)))
    steps["start"] = np.arange(10.0, 15.0)[:, None]
    steps["compute"] = 1.0
    mark_writing(steps, [(11.6, 13.4), (14.4, float("inf"))])
    assert steps["writing"][:, 0].tolist() == [False, False, True, False, True]
    assert (steps["writing"][:, 0] == steps["writing"][:, 1]).all()


@pytest.mark.parametrize("writes", [True, False])
def test_steps_after_the_writing_are_marked_on_no_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: bool
) -> None:
    """The write begins at 0 and ends at 2; the files of another rank hold up none of this one."""
    clock, held, write = VirtualClock(), threading.Event(), Writer.work

    def write_later(*arguments: Any) -> WriteTimes:
        assert held.wait(LONG)
        return write(*arguments)

    monkeypatch.setattr(Writer, "work", write_later)
    if not writes:
        monkeypatch.setattr(ShardPlan, "written_by", lambda *_: ())
    steps = [new_steps(0, np.ones((2, 1))) for _ in range(2)]
    for epoch, begin in zip(steps, (0.0, 2.0), strict=True):
        epoch["start"][:, 0], epoch["compute"] = (begin, begin + 1), 1.0
    workload = job(tmp_path, asynchronous=True, staging_bandwidth="1PB")
    with open_checkpoints(workload, place(clock), [2, 2], lambda _: None) as checkpoints:
        with checkpoints.epoch(steps[0]):
            checkpoints.take(0, 2)
            assert bool(checkpoints.in_writing) == writes
        clock.time = 2.0
        held.set()
        while checkpoints.in_writing:
            time.sleep(0.01)
        with checkpoints.epoch(steps[1]):
            clock.time = 4.0
        checkpoints.finish()
    assert [epoch["writing"].all() for epoch in steps] == [writes, False]


@pytest.mark.mpi
def test_all_accelerators_write_while_they_read(tmp_path: Path) -> None:
    workload, folder = bench.small(tmp_path), tmp_path / "checkpoints"
    words = ["model.model_size_bytes=3000001", "model.parallelism.zero_stage=3"]
    words += ["workflow.checkpoint=true", "num_accelerators=4", "reader.data_loader=threads"]
    words += ["checkpoint.steps_between_checkpoints=3", f"checkpoint.checkpoint_folder={folder}"]
    words += ["checkpoint.asynchronous=true"]
    with bench.start(workload, *words, num_ranks=2) as run:
        run.completes()
    files = [f"global_epoch1_step{n}/model_states-{a}.pt" for n in (3, 6) for a in range(4)]
    assert names_in(folder) == files
    assert {(folder / name).stat().st_size for name in files} == {3_000_001}
    told = run.summary["checkpoints"]
    assert (told["num_bytes"], told["written_bytes"]) == (12_000_004, 24_000_008)
    assert len(told["stall_seconds"]) == 2
    wear = run.summary["measured"]["wear"]
    assert wear["file_bytes_written"] == 24_000_008
    assert wear["drives"] == [] or wear["file_system_amplification"] >= 1
    steps = read_steps(run.folder)
    assert set(steps["step"][steps["stall"] > 0]) == {2, 5}
    assert "checkpoints: 2, one every 3 steps" in run.told()


def test_an_interrupted_run_leaves_whole_files(tmp_path: Path) -> None:
    workload, folder = bench.small(tmp_path), tmp_path / "checkpoints"
    words = ["workflow.checkpoint=true", f"checkpoint.checkpoint_folder={folder}"]
    words += ["model.model_size_bytes=20MB", "checkpoint.steps_between_checkpoints=5"]
    with bench.start(workload, *words, "checkpoint.asynchronous=true", "train.epochs=200") as run:
        until(lambda: len(names_in(folder)) >= 2, "two checkpoints", by=run.process)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
    assert all(name.endswith(".pt") for name in names_in(folder))
    assert {(folder / name).stat().st_size for name in names_in(folder)} == {20_000_000}


def test_bytes_that_are_written_or_reach_the_drive_are_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = SimpleNamespace(written_bytes=7)
    device = SimpleNamespace(counters=lambda: drive)
    monkeypatch.setattr(crew, "devices_under", lambda folder: [device])
    tools: Any = [SimpleNamespace(bytes_done=0), SimpleNamespace(bytes_done=0)]
    movement = Movement(tools, tmp_path)
    assert movement.seen() and not movement.seen()
    tools[1].bytes_done = 4
    assert movement.seen() and not movement.seen() and movement.bytes_done == 4
    drive.written_bytes = 8
    assert movement.seen() and not movement.seen()


def test_without_a_drive_the_page_cache_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "devices_under", lambda folder: [])
    monkeypatch.setattr(crew, "PROC", tmp_path)

    def counted(free: int, writeback: int) -> None:
        text = f"MemFree: {free} kB\nDirty: 5 kB\nWriteback: {writeback} kB\n"
        (tmp_path / "meminfo").write_text(text)

    counted(1, 2)
    movement = Movement([], tmp_path)
    assert movement.seen() and not movement.seen()
    counted(9, 2)
    assert not movement.seen(), "memory of others"
    counted(9, 1)
    assert movement.seen()
