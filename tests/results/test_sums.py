"""Sums of ranks that are joined are the sums of all records."""

import pickle
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.errors import RunError
from dlemu.results.losses import find_losses
from dlemu.results.metrics import measure_sums
from dlemu.results.records import STEP, Steps
from dlemu.results.sums import Edition, Rule, Sums, both_ends, ends_of, sum_all, sum_up

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
    if isinstance(value, (list, tuple)):
        return [each for one in value for each in told(one)]
    fields = getattr(value, "__dataclass_fields__", None)
    return told([getattr(value, name) for name in fields]) if fields else [value]


def in_pairs(sums: list[Sums]) -> Sums:
    """Join neighbours, as a tree of ranks does."""
    while len(sums) > 1:
        pairs = [sums[at : at + 2] for at in range(0, len(sums), 2)]
        sums = [pair[0].joined(pair[-1]) if len(pair) == 2 else pair[0] for pair in pairs]
    return sums[0]


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
        [sum_up(part, rule, ends, f"rank {rank}") for rank, part in enumerate(parts)]
    )

    whole = measure_sums(sum_all([("all", steps)], rule))
    assert told(measure_sums(together)) == pytest.approx(told(whole))
    losses = find_losses(together)
    ready = (steps["wait"] + steps["compute"]).reshape(2, num_ranks, each, NUM_STEPS).max(axis=2)
    window = together.epochs[0].window
    seconds = (steps["wait"] + steps["compute"] + steps["barrier"]).mean(axis=1)[:, window].sum()
    for rank, found in enumerate(losses.ranks):
        others = np.delete(ready, rank, axis=1).max(axis=1) if num_ranks > 1 else ready[:, 0]
        sooner = np.maximum(ready[:, rank] - others, 0)[:, window].sum()
        assert found.name == f"rank {rank}"
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
        ("an accelerator is missing", lambda part: part[:0]),
        ("an accelerator is there twice", lambda part: np.append(part, part)),
    ],
)
def test_what_is_not_whole_is_refused(what: str, bad: Callable[[Steps], Steps]) -> None:
    one, two = records(np.random.default_rng(1), 2, 1).reshape(2, -1)
    for parts in ((bad(one), two), (one[:0], bad(one), two)):
        sums = sum_all([("a", part) for part in parts], Rule())
        with pytest.raises(RunError, match="epoch 0: not every accelerator has the steps 0 to 11"):
            measure_sums(sums)
    assert sum_all([("a", bad(one)), ("b", two)], Rule()).of_all(2).epochs == ()


def test_rank_0_holds_a_row_a_step_and_a_row_an_accelerator() -> None:
    """So a job's sums grow with its accelerators and with its steps, not with their product."""

    def num_bytes(sums: Sums) -> int:
        return sum(len(pickle.dumps(each, 5)) for each in sums.epochs)

    steps = records(np.random.default_rng(1), 64, 1)[0]
    one, all_ = (sum_all([("a", steps[:num])], Rule()) for num in (1, 64))
    grown = num_bytes(all_) - num_bytes(one)
    assert grown < 63 * 128 < steps.nbytes / 8
