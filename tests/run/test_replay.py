"""The step loop in virtual time: every second goes where it was spent."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dlemu.config.model import load_workload
from dlemu.config.types import Distribution
from dlemu.judge.records import STEP, Steps
from dlemu.loaders import Batch
from dlemu.meter import spread_of
from dlemu.run.replay import (
    check_blocks,
    draw_computation_times,
    find_ceiling,
    new_steps,
    replay_blocks,
    replay_epoch,
    with_allreduce,
)
from tests.lab.virtual import VirtualClock


def batch_of(*, ready: float, accelerator: int = 0, step: int = 0, num_bytes: int = 0) -> Batch:
    return Batch(0, step, accelerator, np.arange(1), num_bytes, ready, 0.25, 0.5, 0.125)


def nothing() -> None:
    """Meet nobody."""


def test_each_accelerator_of_a_rank_starts_when_its_own_batch_is_there() -> None:
    """Batches are there at 1, 2 and 4 s; each is computed for 3 s; all meet at 7 s."""
    clock = VirtualClock()

    def batches() -> Iterator[list[Batch]]:
        clock.time = 4
        yield [batch_of(ready=when, accelerator=5 + n) for n, when in enumerate((1, 2, 4))]
        clock.time = 7.5  # the loader had all three long before
        yield [batch_of(ready=6, accelerator=5 + n, num_bytes=300) for n in range(3)]

    times = np.full((2, 3), 3.0)
    steps = replay_epoch(batches(), new_steps(4, times), barrier=nothing, clock=clock)
    fields = ["epoch", "step", "num_samples", "num_bytes", "read", "decode", "hand_over"]
    assert steps[1, 2][fields].item() == (4, 1, 1, 300, 0.25, 0.5, 0.125)
    assert steps["accelerator"].tolist() == [[5, 6, 7]] * 2
    assert steps["wait"].tolist() == [[1, 2, 4], [0, 0, 0]]
    assert steps["compute"].tolist() == [[3, 3, 3]] * 2
    assert steps["barrier"].tolist() == [[3, 2, 0], [0, 0, 0]]
    assert steps["start"].tolist() == [[0] * 3, [7] * 3]
    assert clock.time == 10


@pytest.mark.parametrize(
    ("late", "opens", "ends"),
    [
        pytest.param(0.0, 0.0, 5.0, id="alone"),
        pytest.param(1.0, 0.25, 6.0, id="the last rank comes a second later"),
        pytest.param(1.0, 2.5, 6.5, id="the barrier takes longer than the all-reduce"),
    ],
)
def test_a_step_ends_no_sooner_than_the_all_reduce_after_the_last_rank(
    late: float, opens: float, ends: float
) -> None:
    """Compute ends after 3 s, the last rank comes `late`, the barrier takes `opens` from there on,
    and an all-reduce 2 s."""
    clock = VirtualClock()

    def barrier() -> None:
        clock.time += late + opens

    batches = [[batch_of(ready=0)]] * 2
    meet = with_allreduce(2.0, barrier, lambda: clock.time - opens if late else 0.0, clock)
    steps = replay_epoch(batches, new_steps(0, np.full((2, 1), 3.0)), barrier=meet, clock=clock)
    assert steps["barrier"].ravel().tolist() == [ends - 3, ends - 3]
    assert clock.time == 2 * ends
    assert with_allreduce(0.0, barrier, lambda: 0.0, clock) is barrier


parts = st.floats(0, 100)


@given(st.data(), st.integers(1, 4), st.integers(1, 8))
def test_the_steps_of_every_accelerator_add_up_to_the_whole_time(
    data: st.DataObject, accelerators: int, num_steps: int
) -> None:
    clock = VirtualClock(time=data.draw(parts))
    begin = clock.time

    def batches() -> Iterator[list[Batch]]:
        for step in range(num_steps):
            clock.time += data.draw(parts)
            earlier = [clock.time - data.draw(parts) for _ in range(accelerators)]
            yield [
                batch_of(ready=ready, accelerator=number, step=step)
                for number, ready in enumerate(earlier)
            ]

    def barrier() -> None:
        clock.time += data.draw(parts)

    times = np.array([[data.draw(parts) for _ in range(accelerators)] for _ in range(num_steps)])
    steps = replay_epoch(batches(), new_steps(0, times), barrier=barrier, clock=clock)
    whole = (steps["wait"] + steps["compute"] + steps["barrier"]).sum(axis=0)
    assert whole == pytest.approx(np.full(accelerators, clock.time - begin))
    assert min(steps[name].min() for name in ("wait", "compute", "barrier")) >= -1e-9
    assert (steps["compute"] >= times - 1e-9).all(), "nobody computes faster than asked"


@pytest.mark.parametrize("kind", ["normal", "uniform", "gamma", "exponential"])
def test_times_are_drawn_apart_on_every_accelerator(kind: str) -> None:
    asked = Distribution.model_validate({"type": kind, "mean": 0.3, "stdev": 0.1})

    def draw(epoch: int = 0, seed: int = 1, accelerators: range = range(8)) -> np.ndarray:
        return draw_computation_times(
            asked, num_steps=50, accelerators=accelerators, epoch=epoch, seed=seed
        )

    times = draw()
    assert times.shape == (50, 8)
    assert len(np.unique(times)) > 390, "no two accelerators draw the same"
    assert (times >= 0).all()
    assert (draw() == times).all(), "the same seed draws the same"
    assert (draw(accelerators=range(4, 8)) == times[:, 4:]).all(), "whatever rank draws it"
    assert not np.isin(draw(epoch=1), times[times > 0]).any()
    assert not np.isin(draw(seed=2), times[times > 0]).any()
    assert new_steps(0, draw(accelerators=range(0))).shape == (50, 0), "a rank may have none"


def test_ranks_of_a_data_parallel_job_share_their_step() -> None:
    asked = Distribution.model_validate({"type": "normal", "mean": 0.1018, "stdev": 0.0058})
    draws = partial(draw_computation_times, asked, num_steps=50, epoch=1, seed=1)
    own = draws(accelerators=range(8))
    shared = draws(accelerators=range(8), shared=1.0)
    assert (shared == shared[:, :1]).all(), "nobody waits for another's step"
    assert (draws(accelerators=range(5, 6), shared=1.0) == shared[:, 5:6]).all(), "on any rank"
    assert (shared[:, 0] == own[:, 0]).all()
    assert len(np.unique(shared)) == 50, "steps differ all the same"


@pytest.mark.parametrize("share", [0.25, 0.81])
def test_ranks_may_share_a_part_of_what_their_steps_vary(share: float) -> None:
    """Each accelerator's times have the deviation that is asked; the part is their correlation."""
    asked = Distribution.model_validate({"type": "normal", "mean": 1.0, "stdev": 0.1})
    draws = partial(draw_computation_times, asked, num_steps=4000, epoch=1, seed=1, shared=share)
    times = draws(accelerators=range(8))
    assert times.std(axis=0) == pytest.approx(np.full(8, 0.1), rel=0.05)
    assert times.mean() == pytest.approx(1.0, rel=0.01)
    alike = np.asarray(np.corrcoef(times.T))[np.triu_indices(8, 1)]
    assert alike.mean() == pytest.approx(share, abs=0.03)
    assert (draws(accelerators=range(5, 6)) == times[:, 5:6]).all(), "whatever rank draws it"
    assert spread_of([_ran(column) for column in times.T]) == pytest.approx(share, abs=0.03)


def _ran(seconds: NDArray[np.float64]) -> Steps:
    """Return the steps of a rank's loop that took so long each."""
    steps = np.zeros(len(seconds), STEP)
    steps["step"], steps["compute"], steps["overhead"] = range(len(seconds)), seconds - 0.1, 0.1
    return steps


def test_whose_a_steps_time_is_follows_from_what_ranks_measured() -> None:
    generator = np.random.default_rng(5)
    common, own = generator.normal(1, 0.1, 400), generator.normal(1, 0.1, (3, 400))
    assert spread_of([_ran(common)] * 3) == "shared"
    assert spread_of([_ran(each) for each in own]) == "own"
    assert spread_of([_ran(common)]) == spread_of([]) == "own", "there is one rank"
    assert spread_of([_ran(each[:15]) for each in own]) == "shared", "too few steps to tell"
    slower = [_ran(common + number) for number in range(3)]
    assert spread_of(slower) == "shared", "a rank that is slower varies no more"
    shorter = [_ran(common), _ran(common[:300])]
    assert spread_of(shorter) == "shared"


def test_only_the_last_to_finish_can_be_late() -> None:
    """It has the smallest wait and the longest compute; the device ends 0.5 s too late."""
    clock = VirtualClock()
    deadlines: list[float] = []

    def compute(deadline: float) -> None:
        deadlines.append(deadline)
        clock.time = deadline + 0.5

    times = np.array([[9.0, 1.0]])
    batches = [[batch_of(ready=1, accelerator=0), batch_of(ready=2, accelerator=1)]]
    steps = replay_epoch(
        batches, new_steps(0, times), barrier=nothing, clock=clock, compute=compute
    )
    assert deadlines == [10]
    assert steps["compute"].tolist() == [[9.5, 1]]
    assert steps["barrier"].tolist() == [[0, 10.5 - 3]]
    assert steps["computation_time"].tolist() == [[9, 1]], "what was asked is kept"


def test_the_ceiling_is_the_au_of_steps_that_read_nothing() -> None:
    clock = VirtualClock()

    def barrier() -> None:
        clock.time += 0.0002

    def late(deadline: float) -> None:
        clock.time = max(clock.time, deadline) + 0.0003

    def of(accelerators: range) -> float:
        return find_ceiling(accelerators, 0.0045, 20, barrier=barrier, clock=clock, compute=late)

    assert of(range(2)) == pytest.approx(100 * 0.0045 / 0.005, rel=0.05)
    assert of(range(1)) == pytest.approx(90.0)
    assert of(range(0)) == 100.0, "it only meets the others"


def test_checkpoints_are_taken_between_steps_and_no_step_has_their_time() -> None:
    clock = VirtualClock()
    taken, asked = list[int](), list[int]()

    def batches() -> Iterator[list[Batch]]:
        for step in range(5):
            asked.append(len(taken))
            yield [batch_of(ready=clock.time, step=step)]

    def take(step: int) -> float:
        taken.append(step)
        clock.time += 10
        return 10.0

    play = partial(replay_epoch, barrier=nothing, clock=clock)
    steps = replay_blocks(batches(), new_steps(0, np.ones((5, 1))), [2, 5], take, play)

    assert taken == [2, 5]
    assert asked == [0, 0, 1, 1, 1], "a batch after a checkpoint is asked for after it"
    assert steps["stall"].ravel().tolist() == [0, 10, 0, 0, 10]
    assert steps["start"].ravel().tolist() == [0, 1, 12, 13, 14]
    assert steps["wait"].sum() == 0
    assert clock.time == 25


def test_a_loader_that_ends_early_leaves_a_shorter_record_and_takes_no_checkpoint() -> None:
    play = partial(replay_epoch, barrier=nothing, clock=VirtualClock())
    whole = new_steps(0, np.ones((5, 1)))
    steps = replay_blocks([[batch_of(ready=0)]], whole, [3], lambda step: 1.0, play)
    assert steps.shape == (1, 1)
    assert not whole["stall"].any()
    assert play([], whole).shape == (0, 1)


def test_of_epochs_that_are_alike_the_first_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint after each even epoch; an epoch takes half a millisecond to measure."""
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "dlemu.run.replay.measure_run",
        lambda workload, steps: seen.append((steps["epoch"][0], steps["stall"].sum())),
    )
    keys: dict[str, object] = {"train.epochs": 10_000, "checkpoint.checkpoint_after_epoch": 2}
    keys["checkpoint.epochs_between_checkpoints"] = 2
    check_blocks(load_workload("unet3d_h100", keys), 24)
    assert seen == [(0, 0), (1, 1)]
