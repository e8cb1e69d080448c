"""What a run is doing, asked from another thread, and what the asking costs a step: nothing."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from dlemu.errors import DatasetError
from dlemu.loaders import Batch
from dlemu.results.metrics import measure
from dlemu.results.records import Steps, read_steps
from dlemu.run.job import run_job
from dlemu.run.live import Live, RunProgress
from dlemu.run.replay import new_steps, replay_epoch
from dlemu.terminal import silent
from dlemu.workload.model import Workload
from dlemu.world.world import Alone
from tests.lab.commands import small_job
from tests.lab.virtual import VirtualClock


class NoMonitor:
    """Has seen nothing of any drive."""

    def counted(self) -> None:
        return None


@pytest.fixture
def job(tmp_path: Path) -> Workload:
    return small_job(
        tmp_path,
        dataset__num_files_train=30,
        dataset__record_length_bytes_stdev=0,
        reader__batch_size=1,
        train__computation_time=0.05,
    )


def part_of(steps: Steps, epoch: int, num_steps: int) -> Steps:
    """Return the records of the first steps of an epoch."""
    part: Steps = steps[(steps["epoch"] == epoch) & (steps["step"] < num_steps)]
    return part


def test_the_figures_are_those_of_the_records(job: Workload) -> None:
    live, seen = Live(), list[RunProgress]()
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(0.02):
            seen.append(live.now())

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        outcome = run_job(job, world=Alone(), say=silent, live=live)
    finally:
        ended.set()
        thread.join()
    assert outcome is not None
    inside = [each for each in seen if each.epoch]
    assert {each.epoch for each in inside} == {1, 2}
    assert {(each.epochs, each.steps, each.num_ranks) for each in inside} == {(2, 30, 1)}
    places = [(each.epoch, each.step) for each in inside]
    assert places == sorted(places) and len(set(places)) > 3
    steps = read_steps(outcome.folder)
    for now in inside:
        before = [part_of(steps, epoch, 30) for epoch in range(now.epoch - 1)]
        parts = [*before, part_of(steps, now.epoch - 1, now.step)]
        counted = [(part, len(part) - 1) for part in parts if len(part) > 1]
        if not counted:
            assert now.au_percentage is None
            continue
        each = [measure(part.ravel()).epochs[0].au_percentage for part, _ in counted]
        assert now.au_percentage == pytest.approx(np.average(each, weights=[n for _, n in counted]))
        assert now.samples_per_second is None or now.samples_per_second > 0
    shares = [each.share for each in inside]
    assert all(share is not None and 0 <= share <= 1 for share in shares)
    assert live.now().doing == "starting", "the next run begins"


def test_the_au_is_the_mean_over_epochs_at_the_end_of_each(job: Workload) -> None:
    live, clock = Live(), VirtualClock(time=1.0)
    ended = []
    for epoch, late in enumerate((1.0, 3.0)):
        records = new_steps(epoch, np.ones((4, 2)))

        def batches(late: float = late) -> Iterator[list[Batch]]:
            for step in range(4):
                clock.time += late
                yield [Batch(0, step, n, np.arange(1), 1, clock.time, 0, 0, 0) for n in (0, 1)]

        with live.epoch(epoch, records, job, NoMonitor(), 3):  # type: ignore[arg-type]
            ended.append(
                replay_epoch(batches(), records, barrier=lambda: None, clock=clock).ravel()
            )
            now = live.now()
        assert now.au_percentage == pytest.approx(measure(np.concatenate(ended)).au_percentage)
        assert (now.step, now.num_ranks) == (4, 3)
    # A rank may have no accelerators: it shows nothing.
    with live.epoch(2, new_steps(2, np.ones((4, 0))), job, NoMonitor(), 3):  # type: ignore[arg-type]
        pass
    assert now.au_percentage == pytest.approx(37.5), "of 50 and 25"


def test_a_rank_without_accelerators_has_epochs_as_well(job: Workload) -> None:
    live, records = Live(), new_steps(0, np.empty((4, 0)))
    with live.epoch(0, records, job, NoMonitor(), 3):  # type: ignore[arg-type]
        assert replay_epoch([[]] * 4, records, barrier=lambda: None, clock=VirtualClock()).size == 0


def test_it_says_what_is_done_outside_epochs(job: Workload) -> None:
    live = Live()
    phase = ["while probing the drive"]
    with live.run(lambda: (phase[0], 3.0)):
        assert live.now() == RunProgress(doing="probing the drive", seconds=3.0)
        phase[0] = "in the cold start"
        assert live.now().doing == "cold start"
        phase[0] = ""
        with live.doing("writing"):
            assert live.now().doing == "writing"
        assert live.now().doing == "starting"
    live.job = "run 3 of about 8"
    assert live.now().job == "run 3 of about 8"


def test_a_run_that_fails_is_no_longer_followed(job: Workload) -> None:
    live = Live()
    next((job.data_folder / "train").iterdir()).unlink()
    with pytest.raises(DatasetError):
        run_job(job, world=Alone(), say=silent, live=live)
    assert live.now().epoch == 0 and live.now().doing == "starting"


def test_the_step_path_is_untouched(job: Workload) -> None:
    """Each call of Python and C in the loop is counted, with and without somebody who asks."""

    def calls(live: Live | None) -> int:
        num, clock = 0, VirtualClock(time=1.0)
        records = new_steps(0, np.ones((50, 2)))
        batch = [Batch(0, 0, n, np.arange(1), 1, 1.0, 0, 0, 0) for n in (0, 1)]
        batches = [batch] * 50

        def count(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal num
            num += 1

        followed = live.epoch(0, records, job, NoMonitor(), 1) if live else nullcontext()  # type: ignore[arg-type]
        with followed:
            sys.setprofile(count)
            try:
                replay_epoch(batches, records, barrier=int, clock=clock)  # type: ignore[arg-type]
            finally:
                sys.setprofile(None)
        return num

    alone = calls(None)
    live, ended = Live(), threading.Event()

    def ask() -> None:
        while not ended.is_set():
            live.now()
            time.sleep(0)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        assert calls(live) == alone
    finally:
        ended.set()
        thread.join()
