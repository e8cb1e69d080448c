"""What was lost, and for what: by hand, by the rule's AU, and on a simulated storage."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.results.losses import Losses, find_losses, name_losses
from dlemu.results.metrics import measure
from dlemu.results.records import Steps
from dlemu.results.sums import Rule
from tests.lab.shared import Shared, rows
from tests.lab.summed import sums_of


def losses_of(steps: Steps, names: list[str], preprocess_seconds: float = 0.0) -> Losses:
    return find_losses(sums_of(steps, names, Rule(preprocess_seconds=preprocess_seconds)))


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
    losses = losses_of(steps, ["a", "b"])
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
    assert (one.name, two.name) == ("a", "b")
    assert (one.saved, two.saved) == pytest.approx((2 / seconds, 1.5 / seconds))
    assert (one.wait_seconds, two.late_seconds) == pytest.approx((1, 0.5))
    assert two.making_seconds == pytest.approx((1 + 9 + 9) / 3)
    # First steps count here: workers had to have CPUs in them, too.
    assert losses.making_seconds == pytest.approx(9 + 9 + 3 + 19)
    assert name_losses(parts) == (
        "18.8% waiting for reads, 18.8% compute overran its target, 6.2% waiting for decoding, "
        "6.2% waiting for the hand-over, 6.2% batches waiting in a queue, 6.2% barrier"
    )


def test_without_the_latest_rank_a_step_would_end_with_the_next() -> None:
    """Of three ranks, one of them with two accelerators; the first step is left out."""
    steps = rows(
        4,
        3,
        compute=[[1, 1, 1], [1, 2, 1], [1, 5, 1], [9, 3, 1.5]],
        computation_time=1.0,
    )
    losses = losses_of(steps, ["a", "a", "b", "c"])
    saved = {rank.name: rank.saved for rank in losses.ranks}
    assert saved == pytest.approx({"a": 0.0, "b": (5 - 3) / 6.5, "c": (1.5 - 1) / 6.5})


def test_what_was_done_before_the_wait_stands_for_the_wait() -> None:
    steps = rows(1, 2, wait=0.5, compute=1.0, computation_time=1.0, read=1.0, decode=1.0)
    parts = losses_of(steps, ["a"], preprocess_seconds=1.0).parts
    assert (parts.read, parts.decode) == pytest.approx((0.125 / 1.5, 0.125 / 1.5))
    assert parts.preprocess == pytest.approx(0.25 / 1.5), "a second for each of two samples"
    assert parts.elsewhere == pytest.approx(0)


def test_the_rest_of_a_wait_is_not_the_reads() -> None:
    steps = rows(1, 3, wait=0.5, compute=1.0, computation_time=1.0, read=0.01)
    parts = losses_of(steps, ["a"]).parts
    assert parts.read == pytest.approx(0.01 / 1.5)
    assert parts.elsewhere == pytest.approx(0.49 / 1.5)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(2, 9), st.integers(1, 3))
def test_what_is_lost_is_what_the_rules_au_lacks(
    seed: int, num_accelerators: int, num_steps: int, num_epochs: int
) -> None:
    draw = np.random.default_rng(seed)
    shape = num_accelerators, num_steps
    epochs = []
    for epoch in range(num_epochs):
        asked = draw.random(shape) + 0.1
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
    names = [f"rank {number}" for number in range(num_accelerators)]
    losses = losses_of(everything, names)
    counted = everything[everything["step"] > 0]
    seconds = counted["wait"] + counted["compute"] + counted["barrier"]
    au = counted["computation_time"].sum() / seconds.sum()
    assert losses.parts.total == pytest.approx(1 - au)
    if num_epochs == 1:
        assert 100 * au == pytest.approx(measure(everything).au_percentage)
    assert sum(rank.saved for rank in losses.ranks) <= losses.parts.total + 1e-9


@pytest.mark.parametrize("is_pipelined", [True, False])
@pytest.mark.parametrize("favour", [1.0, 9.0])
@pytest.mark.parametrize("num_workers", [1, 4, 8])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_on_a_shared_storage_the_wait_is_for_reads(
    share: float, num_workers: int, favour: float, is_pipelined: bool
) -> None:
    shared = Shared(num_workers, num_workers + 1, share, 1.0, is_pipelined, favour)
    steps = shared.steps(100)
    parts = losses_of(steps, ["rank 0"]).parts
    in_reads = float(steps["read"].sum()) / (num_workers * shared.now)
    # Where streams are not served evenly, most workers wait for those that are behind.
    assert in_reads < 0.75 if favour > 1 and num_workers > 1 else in_reads > 0.8
    assert parts.total > 0.1
    assert parts.read == pytest.approx(parts.total, abs=1e-6)
