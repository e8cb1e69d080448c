"""Sums of ranks that are joined are the sums of all records."""

from collections.abc import Callable
from dataclasses import asdict
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.config.model import load_workload
from dlemu.errors import RunError, WorkloadError
from dlemu.judge.metrics import Losses, checkpoint_cost, find_losses, measure, measure_sums
from dlemu.judge.records import STEP, Steps
from dlemu.judge.sums import Edition, RankName, Rule, Sums, both_ends, ends_of, sum_all, sum_up
from dlemu.report.words.limits import name_losses
from dlemu.run.replay import new_steps
from tests.lab.shared import rows, sums_of

NUM_STEPS = 12


def records(draw: np.random.Generator, num_accelerators: int, num_epochs: int) -> Steps:
    """Return (epochs, accelerators, steps) records, with a checkpoint in the middle."""
    steps = np.zeros((num_epochs, num_accelerators, NUM_STEPS), STEP)
    steps["epoch"] = np.arange(num_epochs)[:, None, None]
    steps["accelerator"] = np.arange(num_accelerators)[:, None]
    steps["step"] = np.arange(NUM_STEPS)
    for name in ("wait", "overhead", "compute", "barrier", "computation_time"):
        steps[name] = draw.random(steps.shape)
    for name in ("read", "decode", "hand_over"):
        steps[name] = draw.random(steps.shape) / 4
    steps["stall"][:, draw.integers(num_accelerators), NUM_STEPS // 2] = draw.random()
    steps["writing"] = draw.random(steps.shape) < 0.1
    steps["num_samples"] = draw.integers(1, 9, steps.shape)
    steps["num_bytes"] = draw.integers(1, 1 << 40, steps.shape)
    return steps


def told(value: Any) -> Any:
    """Return a result as plain lists of its numbers and texts."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [each for one in value for each in told(one)]
    fields = getattr(value, "__dataclass_fields__", None)
    return told([getattr(value, name) for name in fields]) if fields else [value]


def in_pairs(sums: list[Sums]) -> Sums:
    """Join neighbours, as a tree of ranks does."""
    half = len(sums) // 2
    return in_pairs(sums[:half]).joined(in_pairs(sums[half:])) if half else sums[0]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 7),
    st.integers(1, 3),
    st.sampled_from(["v1.0", "v2.0"]),
)
def test_ranks_together_have_the_metrics_of_all_records(
    seed: int, num_ranks: int, each: int, edition: Edition
) -> None:
    steps = records(np.random.default_rng(seed), num_ranks * each, 2)
    rule = Rule(edition=edition, preprocess_seconds=0.01)
    parts = [steps[:, rank * each : (rank + 1) * each] for rank in range(num_ranks)]
    ends = reduce(both_ends, map(ends_of, parts))

    together = in_pairs(
        [sum_up(part, rule, ends, RankName(rank)) for rank, part in enumerate(parts)]
    )

    whole = measure_sums(sum_all([(RankName(), steps)], rule))
    assert told(measure_sums(together)) == pytest.approx(told(whole))
    losses = find_losses(together)
    ready = (steps["wait"] + steps["compute"]).reshape(2, num_ranks, each, NUM_STEPS).max(axis=2)
    window = together.epochs[0].window
    seconds = (steps["wait"] + steps["compute"] + steps["barrier"]).mean(axis=1)[:, window].sum()
    for rank, found in enumerate(losses.ranks):
        others = np.delete(ready, rank, axis=1).max(axis=1) if num_ranks > 1 else ready[:, 0]
        sooner = np.maximum(ready[:, rank] - others, 0)[:, window].sum()
        assert found.name == RankName(rank)
        assert found.saved == pytest.approx(sooner / seconds)
    latest = (steps["wait"] + steps["compute"]).argmax(axis=1)[:, None]
    waited = np.take_along_axis(steps["wait"], latest, axis=1)[:, 0][:, window].sum()
    assert losses.parts.waited == pytest.approx(waited / seconds)


@pytest.mark.parametrize(
    ("what", "bad"),
    [
        ("a rank has fewer steps", lambda part: part[part["step"] < 5]),
        ("a step is missing", lambda part: part[part["step"] != 5]),
        ("a step is there twice", lambda part: np.append(part, part[:1])),
        ("its steps end later", lambda part: part[part["step"] != 0]),
        ("an accelerator is missing", lambda part: part[:0]),
        ("an accelerator is there twice", lambda part: np.append(part, part)),
    ],
)
def test_what_is_not_whole_is_refused(what: str, bad: Callable[[Steps], Steps]) -> None:
    one, two = records(np.random.default_rng(1), 2, 1).reshape(2, -1)
    for parts in ((bad(one), two), (one[:0], bad(one), two)):
        sums = sum_all([(RankName(), part) for part in parts], Rule())
        with pytest.raises(RunError, match="epoch 0: not every accelerator has the steps 0 to 11"):
            measure_sums(sums)
    assert sum_all([(RankName(0), bad(one)), (RankName(1), two)], Rule()).of_all(2).epochs == ()


def losses_of(steps: Steps, names: list[RankName], **rule: float) -> Losses:
    return find_losses(sums_of(steps, names, Rule(**rule)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keys", "decode", "parts"),
    [({"train.compute": "gpu", "dali.device": "gpu"}, 3.0, (2.0, 0.0)),
     ({"train.compute": "gpu", "dali.device": "gpu"}, 0.0, (0.0, 1.0)),
     ({"train.compute": "gpu", "dali.device": "cpu"}, 3.0, (1.0, 1.0)),
     ({"dali.device": "gpu"}, 3.0, (1.0, 1.0))],
)  # fmt: skip
def test_steps_of_a_gpu_that_decodes_meanwhile_wait_for_that(
    keys: dict[str, str], decode: float, parts: tuple[float, float]
) -> None:
    """Each of two steps that count waits 1 s for its batch, and computes for 1 s longer."""
    workload = load_workload("resnet50_h100", {"reader.data_loader": "dali", **keys})
    made = {"wait": [[0, 1, 1]], "compute": [[1, 2, 2]], "decode": [[0, decode, decode]]}
    steps = rows(
        1, 3, computation_time=1.0, barrier=[[0, 0, 0]], read=[[0, 3 - decode, 3 - decode]], **made
    )
    found = find_losses(sums_of(steps, [RankName(0)], Rule.of(workload))).parts
    assert (found.decode, found.oversleep) == pytest.approx(tuple(2 * each / 6 for each in parts))
    assert found.total == pytest.approx(4 / 6)


def test_each_steps_latest_accelerator_tells_why_it_was_long() -> None:
    steps = rows(
        2,
        4,
        # The first step is left out. Then: 0 waits, 1 oversleeps, and both stay at the barrier.
        wait=[[9, 3, 0, 0], [9, 1, 0, 0]],
        compute=[[1, 1, 1, 1], [1, 1, 2.5, 1]],
        computation_time=1.0,
        barrier=[[0, 0, 0, 0.5], [0, 0, 0, 0.5]],
        # Of 0's batch: half of the time in reads, a sixth each in decoding and the hand-over, and
        # a sixth in nothing that is known. Workers of 1 count for nothing: it was not waited for.
        read=[[9, 1.5, 0, 0], [9, 1, 0, 0]],
        decode=[[0, 0.5, 0, 0], [0, 9, 0, 0]],
        hand_over=[[0, 0.5, 0, 0], [0, 9, 0, 0]],
    )
    losses = losses_of(steps, [RankName(0, "a"), RankName(1, "b")])
    seconds = 4 + 2.5 + 1.5
    parts = losses.parts
    assert (parts.read, parts.decode, parts.hand_over) == pytest.approx(
        (1.5 / seconds, 0.5 / seconds, 0.5 / seconds)
    )
    assert parts.elsewhere == pytest.approx(0.5 / seconds)
    assert (parts.oversleep, parts.meeting) == pytest.approx((1.5 / seconds, 0.5 / seconds))
    assert (parts.preprocess, parts.uneven) == (0, 0)
    assert parts.total == pytest.approx(5 / seconds)
    one, two = losses.ranks
    assert (one.name.host, two.name.host) == ("a", "b")
    assert (one.saved, two.saved) == pytest.approx((2 / seconds, 1.5 / seconds))
    assert (one.wait_seconds, two.late_seconds) == pytest.approx((1, 0.5))
    assert two.making_seconds == pytest.approx((1 + 9 + 9) / 3)
    # First steps count here: workers had to have CPUs in them, too.
    assert losses.making_seconds == pytest.approx(9 + 9 + 3 + 19)
    assert name_losses(asdict(parts)) == (
        "18.8% waiting for reads, 18.8% compute overran its target, 6.2% waiting for decoding, "
        "6.2% waiting for the hand-over, 6.2% batches waiting in a queue, 6.2% barrier"
    )


@pytest.mark.parametrize(("seconds", "meeting"), [(0.0, 0.5), (0.3, 0.2), (0.5, 0.0), (2.0, 0.0)])
def test_the_jobs_all_reduce_is_no_part_of_dlemus_own_barrier(
    seconds: float, meeting: float
) -> None:
    """The last of two accelerators comes to the barrier half a second before it opens."""
    steps = rows(2, 2, wait=[[9, 0], [9, 1]], compute=1.0, computation_time=1.0, barrier=0.5)
    parts = losses_of(steps, [RankName(0), RankName(1)], allreduce_seconds=seconds).parts
    assert (parts.allreduce, parts.meeting) == pytest.approx(((0.5 - meeting) / 2.5, meeting / 2.5))
    assert parts.waited == pytest.approx(1 / 2.5) and parts.total == pytest.approx(1.5 / 2.5)


def test_what_was_done_before_the_wait_stands_for_the_wait() -> None:
    steps = rows(1, 2, wait=0.5, compute=1.0, computation_time=1.0, read=1.0, decode=1.0)
    parts = losses_of(steps, [RankName()], preprocess_seconds=1.0).parts
    assert (parts.read, parts.decode) == pytest.approx((0.125 / 1.5, 0.125 / 1.5))
    assert parts.preprocess == pytest.approx(0.25 / 1.5), "a second for each of two samples"
    assert parts.elsewhere == pytest.approx(0)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(2, 9), st.integers(1, 3))
def test_what_is_lost_is_what_the_rules_au_lacks(
    seed: int, num_accelerators: int, num_steps: int, num_epochs: int
) -> None:
    draw = np.random.default_rng(seed)
    shape = num_accelerators, num_steps
    epochs, least = [], 0.0
    for epoch in range(num_epochs):
        asked = draw.random(shape) + 0.1
        least += asked[:, 1:].min(axis=0).sum()
        steps = rows(
            *shape,
            epoch=epoch,
            wait=draw.random(shape),
            compute=asked + draw.random(shape),
            computation_time=asked,
            barrier=np.full(shape, draw.random()),
            read=draw.random(shape),
            decode=draw.random(shape),
        )
        epochs.append(steps.ravel())
    everything = np.concatenate(epochs)
    draw.shuffle(everything)
    names = [RankName(number) for number in range(num_accelerators)]
    losses = losses_of(everything, names)
    counted = everything[everything["step"] > 0]
    seconds = counted["wait"] + counted["compute"] + counted["barrier"]
    au = counted["computation_time"].sum() / seconds.sum()
    assert losses.parts.total == pytest.approx(1 - au)
    if num_epochs == 1:
        assert 100 * au == pytest.approx(measure(everything).au_percentage)
    # Those that are left have to compute all the same, at least as long as the shortest step asks.
    least /= seconds.sum() / num_accelerators
    assert sum(rank.saved for rank in losses.ranks) <= 1 - least + 1e-9


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
    (sums,) = sums_of(steps, [RankName(0)]).epochs
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


@pytest.mark.parametrize(
    ("stall", "waits", "writing", "cost"),
    [
        (3, [9, 0, 0, 0, 1, 1, 0, 0], (slice(4, 6), 0), (2, 50, 100, 1, 100 * 8 / 19.5)),
        # What the others lose as well is not the checkpoint's fault.
        (3, [9, 1, 1, 1, 1, 1, 1, 1], (slice(4, 6), 0), (2, 50, 50, 0, 100 * 8 / 24.5)),
        # A rank that writes marks the step for all.
        (1, [0, 0, 3, 0], (2, 1), (1, 25, 100, 1, 100 * 4 / 7.5)),
    ],
)
def test_steps_during_writes_are_told_from_the_others(
    stall: int, waits: list[float], writing: Any, cost: tuple[float, ...]
) -> None:
    steps = steps_with({stall: 0.5}, waits, accelerators=2)
    steps["writing"][writing] = True
    found: Any = checkpoint_cost(sums_of(steps, [RankName(0), RankName(1)]).epochs)
    shares = [found[f"au_{name}_percentage"] for name in ("while_writing", "otherwise")]
    shares += [found["lost_share"], found["au_with_stalls_percentage"]]
    assert (found["steps_while_writing"], *shares) == pytest.approx(cost)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_what_was_lost_adds_up_to_what_no_accelerator_was_asked_for(seed: int, ranks: int) -> None:
    """However early or late the ranks leave a barrier."""
    parts = records(np.random.default_rng(seed), 2 * ranks, 2)
    by_rank = [(RankName(rank), parts[:, 2 * rank : 2 * rank + 2].ravel()) for rank in range(ranks)]
    sums = sum_all(by_rank, Rule())
    inside = parts[:, :, 1:]
    at = inside["step"] != NUM_STEPS // 2 + 1  # a checkpoint ends a block, whose first is left out
    seconds = sum(inside[name][at].sum() for name in ("wait", "compute", "barrier"))
    lost = find_losses(sums).parts
    assert lost.total == pytest.approx(1 - inside["computation_time"][at].sum() / seconds)
