"""Checkpoints cut epochs into blocks, and cost their steps time."""

from typing import Any

import numpy as np
import pytest

from dlemu.errors import WorkloadError
from dlemu.results.checkpoints import checkpoint_cost
from dlemu.results.metrics import measure
from dlemu.results.records import Steps
from dlemu.run.replay import new_steps
from tests.lab.summed import sums_of


def steps_with(stalls: dict[int, float], waits: list[float], accelerators: int = 1) -> Steps:
    """Return (steps, accelerators) records of 1 s of compute, with stalls after some steps."""
    steps = new_steps(0, np.ones((len(waits), accelerators)))
    steps["accelerator"] = np.arange(accelerators)
    steps["num_samples"], steps["compute"] = 2, 1.0
    steps["wait"] = np.array(waits)[:, None]
    for step, seconds in stalls.items():
        steps["stall"][step] = seconds
    seconds = steps["wait"] + steps["compute"] + steps["stall"]
    steps["start"] = 100 + seconds.cumsum(axis=0) - seconds
    return steps


def test_each_block_loses_its_first_step_and_no_stall_counts() -> None:
    """Blocks of 4 and 2 steps: AU is 3/6 and 1/1; by steps, as DLIO weighs them."""
    steps = steps_with({3: 50.0}, [9, 1, 1, 1, 7, 0])
    (sums,) = sums_of(steps, ["rank 0"]).epochs
    assert sums.blocks == (slice(0, 4), slice(4, 6))
    assert sums.window.tolist() == [False, True, True, True, False, True]

    metrics = measure(steps)

    assert metrics.au_percentage == pytest.approx((4 * 50 + 2 * 100) / 6)
    assert metrics.samples_per_second == pytest.approx((4 * 8 / 16 + 2 * 4 / 9) / 6)
    (epoch,) = metrics.epochs
    assert (epoch.num_blocks, epoch.num_counted, epoch.seconds) == (2, 4, 75)
    assert epoch.whole_epoch_au_percentage == pytest.approx(100 * 6 / 25)
    assert metrics.delivered_au_percentage == pytest.approx(100 * 6 / 75)
    assert metrics.checkpoints is not None
    assert (metrics.checkpoints["number"], metrics.checkpoints["total_stall_seconds"]) == (1, 50)


def test_a_checkpoint_after_the_last_step_cuts_nothing() -> None:
    steps = steps_with({2: 4.0}, [9, 1, 1])
    metrics, plain = measure(steps), measure(steps_with({}, [9, 1, 1]))
    assert metrics.au_percentage == plain.au_percentage
    assert metrics.epochs[0].num_blocks == 1
    assert metrics.epochs[0].seconds == plain.epochs[0].seconds + 4


def test_a_block_too_short_for_the_rule_does_not_count() -> None:
    """DLIO gives a last block of one step an AU of 0."""
    metrics = measure(steps_with({3: 1.0}, [9, 1, 1, 1, 7]))
    assert metrics.au_percentage == pytest.approx(50)
    with pytest.raises(WorkloadError, match=r"in 3 blocks .* raise checkpoint\.steps_between"):
        measure(steps_with({0: 1.0, 1: 1.0}, [9, 1, 1]))


@pytest.mark.parametrize(
    ("keys", "au"),
    [
        ({}, (4 * 100 * 3 / 6 + 3 * 100 * 2 / 2) / 7),
        ({"exclude_start_steps": 2}, (4 * 100 * 2 / 4 + 3 * 100) / 7),
        ({"exclude_end_steps": 1}, (4 * 100 * 3 / 6 + 3 * 100) / 7),
    ],
)
def test_edition_2_leaves_out_the_start_of_blocks_and_the_end_of_epochs(
    keys: dict[str, Any], au: float
) -> None:
    steps = steps_with({3: 5.0}, [9, 1, 1, 1, 7, 0, 0])
    assert measure(steps, edition="v2.0", **keys).au_percentage == pytest.approx(au)


def test_steps_during_writes_are_told_from_the_others() -> None:
    steps = steps_with({3: 0.5}, [9, 0, 0, 0, 1, 1, 0, 0])
    steps["writing"][4:6] = True
    cost = checkpoint_cost(sums_of(steps, ["rank 0", "rank 1"]).epochs)
    assert cost is not None
    assert cost["steps_while_writing"] == 2
    assert cost["au_while_writing_percentage"] == pytest.approx(50)
    assert cost["au_otherwise_percentage"] == pytest.approx(100)
    assert cost["lost_share"] == pytest.approx(1)
    assert cost["au_with_stalls_percentage"] == pytest.approx(100 * 8 / 19.5)


def test_what_the_others_lose_as_well_is_not_the_checkpoint_s_fault() -> None:
    steps = steps_with({3: 0.5}, [9, 1, 1, 1, 1, 1, 1, 1])
    steps["writing"][4:6] = True
    cost = checkpoint_cost(sums_of(steps, ["rank 0", "rank 1"]).epochs)
    assert cost is not None and cost["lost_share"] == pytest.approx(0)


def test_a_rank_that_writes_marks_the_step_for_all() -> None:
    steps = steps_with({1: 0.5}, [0, 0, 3, 0], accelerators=2)
    steps["writing"][2, 1] = True
    cost = checkpoint_cost(sums_of(steps, ["rank 0", "rank 1"]).epochs)
    assert cost is not None and cost["au_while_writing_percentage"] == pytest.approx(25)
