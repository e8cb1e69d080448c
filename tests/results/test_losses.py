"""What was lost, and for what: by hand, by the rule's AU, and on a simulated storage."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.results.losses import Losses, find_losses, name_losses
from dlemu.results.metrics import measure
from dlemu.results.records import STEP, Steps
from dlemu.results.sums import Rule
from tests.lab.summed import sums_of


def losses_of(steps: Steps, names: list[str], preprocess_seconds: float = 0.0) -> Losses:
    return find_losses(sums_of(steps, names, Rule(preprocess_seconds=preprocess_seconds)))


def rows(num_accelerators: int, num_steps: int, **fields: object) -> Steps:
    """Return steps whose fields are numbers, or arrays (accelerators, steps)."""
    steps = np.zeros((num_accelerators, num_steps), STEP)
    steps["accelerator"] = np.arange(num_accelerators)[:, None]
    steps["step"] = np.arange(num_steps)
    steps["num_samples"] = 2
    for name, value in fields.items():
        steps[name] = value
    ready = steps["wait"] + steps["compute"]
    steps["barrier"] += ready.max(axis=0) - ready
    return steps


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


@dataclass
class Shared:
    """Streams that share a storage's rate, and an accelerator that takes batches in order.

    Each of `num_workers` makes every so many-th batch, at most `window` ahead; a read is one unit.
    The odd workers get `favour` times as much as the even ones.
    """

    num_workers: int
    window: int
    rate: float
    compute: float
    is_pipelined: bool
    favour: float = 1.0
    now: float = 0.0
    left: dict[int, float] = field(default_factory=dict)
    begun: dict[int, float] = field(default_factory=dict)
    ready: dict[int, float] = field(default_factory=dict)

    def steps(self, num_steps: int) -> Steps:
        """Return the records of so many steps."""
        steps = rows(1, num_steps, computation_time=self.compute, compute=self.compute)
        for step in range(num_steps):
            start = self.now
            while step not in self.ready:
                self._run(step, num_steps, until=np.inf)
            steps["wait"][0, step] = self.now - start
            steps["read"][0, step] = self.ready[step] - self.begun[step]
            end = self.now + self.compute
            while self.now < end:
                self._run(step + self.is_pipelined, num_steps, until=end)
        return steps

    def _run(self, taken: int, num_steps: int, until: float) -> None:
        """Go on to the end of the next read, or until then."""
        for worker in range(self.num_workers):
            made = [batch for batch in self.begun if batch % self.num_workers == worker]
            batch = max(made, default=worker - self.num_workers) + self.num_workers
            is_free = not any(batch % self.num_workers == worker for batch in self.left)
            if is_free and batch < min(taken + self.window, num_steps):
                self.left[batch] = 1.0
                self.begun[batch] = self.now
        if not self.left:
            self.now = until
            return
        weights = {batch: self.favour if batch % 2 else 1.0 for batch in self.left}
        unit = self.rate / sum(weights.values())
        first = min(left / weights[batch] / unit for batch, left in self.left.items())
        seconds = min(until - self.now, first)
        self.now = until if seconds == until - self.now else self.now + seconds
        for batch in list(self.left):
            self.left[batch] -= seconds * unit * weights[batch]
            if self.left[batch] < 1e-9:
                del self.left[batch]
                self.ready[batch] = self.now


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
