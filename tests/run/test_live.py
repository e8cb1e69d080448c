"""What a run is doing, asked from another thread, and what the asking costs a step: nothing."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dlemu.config.model import Workload
from dlemu.judge.metrics import measure
from dlemu.judge.records import read_steps
from dlemu.loaders import Batch
from dlemu.ranks.world import Alone
from dlemu.run.job import run_job
from dlemu.run.live import Live, RunProgress
from dlemu.run.replay import new_steps, replay_epoch
from dlemu.terminal import silent
from tests.lab.commands import small_job
from tests.lab.virtual import VirtualClock


class NoMonitor:
    """Has seen nothing of any drive."""

    def delivered(self, read_until: object) -> tuple[None, None]:
        return None, None


@pytest.fixture
def job(tmp_path: Path) -> Workload:
    return small_job(
        tmp_path,
        dataset__num_files_train=30,
        dataset__record_length_bytes_stdev=0,
        reader__batch_size=1,
        train__computation_time=0.05,
    )


def test_the_figures_are_those_of_the_records(job: Workload) -> None:
    live, seen = Live(), list[RunProgress]()

    class Asking(VirtualClock):
        def sleep_until(self, deadline: float) -> None:
            super().sleep_until(deadline)
            seen.append(live.now())

    clock = Asking(time.perf_counter())
    outcome = run_job(job, world=Alone(), clock=clock, say=silent, live=live)
    assert outcome is not None
    places = [(epoch, step) for epoch in (1, 2) for step in range(30)]
    assert [(now.epoch, now.step) for now in seen] == places
    assert {(now.epochs, now.steps, now.num_ranks) for now in seen} == {(2, 30, 1)}
    assert [now.share for now in seen] == pytest.approx([part / 60 for part in range(60)])
    first, second = np.split(read_steps(outcome.folder), 2)
    for now in seen[2:30]:
        assert now.au_percentage == pytest.approx(measure(first[: now.step]).au_percentage)
    assert seen[-1].au_percentage == pytest.approx(
        np.average([measure(each).au_percentage for each in (first, second[:29])], weights=[29, 28])
    )
    assert live.now().doing == "starting", "the next run begins"


@pytest.mark.parametrize("edition", ["v1.0", "v2.0"])
def test_an_epochs_line_has_the_au_of_its_edition(job: Workload, edition: str) -> None:
    class Oversleeping(VirtualClock):
        def sleep_until(self, deadline: float) -> None:
            super().sleep_until(deadline + 0.05)

    said: list[str] = []
    job = job.with_keys({"metric.edition": edition})
    clock = Oversleeping(time.perf_counter())
    outcome = run_job(job, world=Alone(), clock=clock, say=said.append)
    assert outcome is not None and outcome.metrics is not None
    wanted = [f"AU {epoch.au_percentage:.2f}% on rank 0" for epoch in outcome.metrics.epochs]
    assert [line for line in said if line.startswith("epoch ")] != []
    for line, au in zip((each for each in said if each.startswith("epoch ")), wanted, strict=True):
        assert au in line


def test_the_au_is_the_mean_over_epochs_at_the_end_of_each(job: Workload) -> None:
    live, clock = Live(), VirtualClock(time=1.0)
    ended = []
    for epoch, late in enumerate((1.0, 3.0)):
        records = new_steps(epoch, np.ones((4, 2)))

        def batches(late: float = late) -> Iterator[list[Batch]]:
            for step in range(4):
                clock.time += late
                yield [Batch(0, step, n, np.arange(1), 1, clock.time, 0, 0, 0) for n in (0, 1)]

        with live.epoch(records, job, NoMonitor(), 3):  # type: ignore[arg-type]
            ended.append(
                replay_epoch(batches(), records, barrier=lambda: None, clock=clock).ravel()
            )
            now = live.now()
        assert now.au_percentage == pytest.approx(measure(np.concatenate(ended)).au_percentage)
        assert (now.step, now.num_ranks) == (4, 3)
    # A rank may have no accelerators: it shows nothing.
    with live.epoch(new_steps(2, np.ones((4, 0))), job, NoMonitor(), 3):  # type: ignore[arg-type]
        assert live.now().doing == "starting"
    assert now.au_percentage == pytest.approx(37.5), "of 50 and 25"


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
