"""What a run is doing, asked from another thread; figures so far are those of the records."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from dlemu.config.model import Workload, load_workload
from dlemu.config.sections import MetricSection
from dlemu.dataset.layout import Dataset
from dlemu.host.intervals import HostObserver
from dlemu.judge.metrics import measure
from dlemu.judge.records import Steps, read_steps
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import Alone
from dlemu.run.job import run_job
from dlemu.run.live import Live, RunMonitor, RunProgress, StepsSoFar
from dlemu.run.replay import new_steps
from tests.lab.commands import small_job
from tests.lab.shared import rows
from tests.lab.stored import observation
from tests.lab.virtual import VirtualClock

NO_MONITOR: Any = SimpleNamespace(delivered=lambda read_until: (None, None))
"""Has seen nothing of any drive."""


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
    live, seen, said = Live(), list[RunProgress](), list[str]()

    class Asking(VirtualClock):
        def sleep_until(self, deadline: float) -> None:
            super().sleep_until(deadline + 0.001 * len(seen))  # each step is later than the last
            seen.append(live.now())

    clock = Asking(time.perf_counter())
    outcome = run_job(job, world=Alone(), clock=clock, say=said.append, live=live)
    assert outcome is not None and outcome.metrics is not None
    told = [line for line in said if line.startswith("epoch ")]
    for line, epoch in zip(told, outcome.metrics.epochs, strict=True):
        assert f"AU {epoch.au_percentage:.2f}% on rank 0" in line
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


def test_what_storage_delivered_is_that_of_the_last_seconds_and_its_share_of_the_epoch(
    tmp_path: Path,
) -> None:
    """The drive gave 10 MB in 10 s, then 50 MB; the host's two ranks took 120 MB, half each."""
    job = load_workload("unet3d_h100", {"dataset.data_folder": str(tmp_path)})
    keys: Any = {"loader": None, "num_accelerators": 1, "watchdog": Watchdog(60.0, Alone())}
    monitor = RunMonitor(Dataset.of(job), tmp_path, Alone(), **keys)
    assert monitor.delivered(lambda until: 1) == (None, None), "nobody looks"
    reads = [*range(11), *range(15, 61, 5)]
    seen = [observation(100.0 + second, each, 0) for second, each in enumerate(reads)]
    monitor._observer = cast(HostObserver, SimpleNamespace(observations=seen))
    monitor._seen.file_system, monitor._seen.num_workers = "xfs", 8
    assert monitor.delivered(lambda until: round(until * 500_000)) == (5e6, 0.5)
    assert monitor.delivered(lambda until: 20_000_000) == (5e6, 0.0), "no less than nothing"
    seen[1:] = [observation(100.4, 1, 0)]
    assert monitor.delivered(lambda until: 1) == (None, None), "too soon to tell"


def test_a_rank_without_accelerators_shows_nothing(job: Workload) -> None:
    live = Live()
    with live.epoch(new_steps(2, np.ones((4, 0))), job, NO_MONITOR, 3):
        assert live.now().doing == "starting"


def test_it_says_what_is_done_outside_epochs(job: Workload) -> None:
    live = Live()
    phase = ["probing the drive"]
    with live.run(lambda: (phase[0], 3.0)):
        assert live.now() == RunProgress(doing="probing the drive", seconds=3.0)
        phase[0] = ""
        with live.doing("writing"):
            assert live.now().doing == "writing"
        assert live.now().doing == "starting"


NUM_STEPS = 12


def records() -> Steps:
    """Return an epoch of 3 accelerators whose steps take 1.5 s, each with more to compute."""
    compute = np.linspace(0.5, 0.9, NUM_STEPS)
    num_bytes = np.arange(3 * NUM_STEPS).reshape(3, NUM_STEPS)
    times = {"compute": compute, "computation_time": 0.99 * compute, "wait": 1.5 - compute}
    start = 100 + 1.5 * np.arange(NUM_STEPS)
    return rows(3, NUM_STEPS, num_samples=4, num_bytes=num_bytes, start=start, **times).T.copy()


def test_steps_that_the_edition_leaves_out_at_the_end_do_not_count() -> None:
    steps = records()
    so_far = StepsSoFar(steps, MetricSection(edition="v2.0", exclude_end_steps=3))
    so_far.look()
    expected = measure(steps.ravel(), edition="v2.0", exclude_end_steps=3)
    assert so_far.counted == NUM_STEPS - 4
    assert so_far.au_percentage == pytest.approx(expected.au_percentage, rel=1e-12)


def test_bytes_are_those_of_the_steps_that_had_ended() -> None:
    steps = records()
    so_far = StepsSoFar(steps, MetricSection())
    so_far.look()
    ends = [*steps["start"][1:, 0], 1e9]
    for ended, moment in enumerate(ends, 1):
        expected = int(steps["num_bytes"][:ended].sum())
        assert so_far.bytes_until(moment + 1e-6) == expected
    assert so_far.bytes_until(100.5) == 0


def test_the_rate_is_that_of_the_last_seconds_and_falls_in_a_stall() -> None:
    steps = records()
    steps["num_samples"][:6] = 1000  # long ago
    so_far = StepsSoFar(steps, MetricSection())
    assert so_far.samples_per_second(0.0) is None and so_far.step_seconds is None
    so_far.look()
    end = float(steps["start"][-1, 0] + 1.5)
    assert so_far.samples_per_second(end) == pytest.approx(3 * 4 / 1.5)
    stalled = so_far.samples_per_second(end + 100)
    assert stalled is not None and stalled < 1
    assert so_far.step_seconds == pytest.approx(1.5)
