"""The training loop that a job's journal shows: each kind of loop, by times that are known."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dlemu.watch.events import Iteration, Process, Saved
from dlemu.watch.loops import Loop, find_loops, steps_of

WAIT, BODY = 1.0, 4.0


def iteration(
    loader: int = 1,
    number: int = 0,
    begun: float = 0.0,
    steps: Sequence[tuple[float, float]] = ((WAIT, BODY),) * 5,
    *,
    whole: bool = True,
    gone: float | None = None,
) -> Iteration:
    """Return a pass whose loop waited and computed so long in each step."""
    made, now = Iteration(loader, number, begun), begun
    for wait, body in steps:
        made.asked.append(now)
        made.taken.append(now + wait)
        made.samples.append(8)
        made.with_grad.append(True)
        now += wait + body
    made.exhausted = now if whole else None
    made.gone = gone
    return made


def process(
    *iterations: Iteration, rank: int | None = None, optimizer_steps: Sequence[float] = ()
) -> Process:
    """Return a process with these passes; loaders are told apart by their number."""
    made = Process(info={"rank": rank, "time": rank or 0})
    for each in iterations:
        made.loaders[each.loader] = {"place": f"train.py:{each.loader}", "dataset": "D"}
        made.iterations[each.loader, each.number] = each
    made.optimizer_steps = list(optimizer_steps)
    return made


def loop_of(*iterations: Iteration, **given: Any) -> Loop:
    (loop,) = find_loops([process(*iterations, **given)])
    return loop


def test_a_plain_loop_has_its_waits_and_bodies() -> None:
    loop = loop_of(iteration(), iteration(number=1, begun=30.0))
    assert [epoch.wait.tolist() for epoch in loop.epochs] == [[WAIT] * 5] * 2
    assert [epoch.body.tolist() for epoch in loop.epochs] == [[BODY] * 5] * 2
    assert [epoch.is_whole for epoch in loop.epochs] == [True, True]
    assert [role.role for role in loop.roles] == ["training"]
    steps = steps_of([loop], 100.0)
    assert steps["epoch"].tolist() == [0] * 5 + [1] * 5
    assert steps["num_bytes"].tolist() == [800] * 10
    assert steps["start"][:2].tolist() == [0.0, WAIT + BODY]
    assert steps["compute"].tolist() == [BODY] * 10 and not steps["barrier"].any()


@pytest.mark.parametrize(
    ("gone", "last"),
    [
        pytest.param(23.0, 2.0, id="the iterator is dropped in the last step"),
        pytest.param(500.0, BODY, id="the iterator is kept: no longer than the others"),
    ],
)
def test_an_epoch_that_ends_early_has_its_last_step(gone: float, last: float) -> None:
    loop = loop_of(iteration(whole=False, gone=gone))
    assert loop.epochs[0].body.tolist() == [BODY] * 4 + [last]
    assert not loop.epochs[0].is_whole


def test_a_batch_that_the_loop_takes_and_leaves_is_no_step() -> None:
    steps = [(WAIT, BODY)] * 4 + [(WAIT, 0.0)]
    loop = loop_of(iteration(steps=steps, whole=False, gone=21.0))
    assert loop.epochs[0].body.tolist() == [BODY] * 4
    assert len(loop.epochs[0].samples) == 4


def test_evaluation_and_checkpoints_are_no_part_of_a_step() -> None:
    """Between the third and the fourth batch: 10 s of evaluation, 2 s of a checkpoint."""
    steps = [(WAIT, BODY)] * 2 + [(WAIT, BODY + 12.0)] + [(WAIT, BODY)] * 2
    evaluation = iteration(2, begun=15.0, steps=[(1.0, 4.0)] * 2)
    job = process(iteration(steps=steps), evaluation, optimizer_steps=[2.0, 8.0, 12.0, 31.0, 36.0])
    job.saves.append(Saved(25.0, 27.0, 10, "m.pt"))
    (loop,) = find_loops([job])
    assert loop.epochs[0].body.tolist() == [BODY] * 5
    roles = {role.key.place: (role.role, role.num_batches) for role in loop.roles}
    assert roles == {"train.py:1": ("training", 5), "train.py:2": ("evaluation", 2)}
    assert loop.epochs[0].left_out == [(15.0, 25.0), (25.0, 27.0)]
    assert loop.batches_a_step == 1.0


def test_the_loader_with_the_optimizers_steps_is_the_training() -> None:
    """Although the evaluation takes more batches."""
    evaluation = iteration(2, begun=30.0, steps=[(0.1, 0.1)] * 50)
    loop = loop_of(iteration(), evaluation, optimizer_steps=[4.0, 14.0])
    assert loop.described["place"] == "train.py:1"
    assert loop.batches_a_step == 2.5, "gradients of several batches are accumulated"


def test_two_loaders_in_turn_are_one_loop() -> None:
    """Each step takes a batch of both: it waits 1 s for one and 1.5 s for the other."""
    first, second = Iteration(1, 0, 0.0), Iteration(2, 0, 0.0)
    now = 0.0
    for _ in range(4):
        for each, wait in ((first, 1.0), (second, 1.5)):
            each.asked.append(now)
            now += wait
            each.taken.append(now)
            each.samples.append(8)
            each.with_grad.append(True)
        now += BODY
    first.exhausted = now
    loop = loop_of(first, second, optimizer_steps=[t + 1 for t in second.taken])
    assert loop.described["place"] == "train.py:2"
    assert loop.epochs[0].wait.tolist() == [2.5] * 4
    assert loop.epochs[0].body.tolist() == [BODY] * 4
    assert {role.role for role in loop.roles} == {"training", "with training"}


def test_alike_loaders_in_use_at_the_same_time_are_told_apart() -> None:
    one, other = iteration(1), iteration(1, 1, begun=1.0)
    loop = loop_of(one, other, optimizer_steps=[2.0])
    assert sorted(role.key.lane for role in loop.roles) == [0, 1]


def test_a_loop_that_takes_a_batch_ahead_has_its_own_bodies() -> None:
    """As accelerate's loader: two batches at once, then each body after the next batch."""
    loop = loop_of(iteration(steps=[(WAIT, 0.0), (WAIT, 3.0), (WAIT, 5.0), (WAIT, 7.0)]))
    assert loop.ahead == 1
    assert loop.epochs[0].body.tolist() == [3.0, 5.0, 7.0, 5.0], "the last is not seen: the median"


def test_the_optimizers_steps_tell_that_a_batch_is_taken_ahead() -> None:
    """Copying the first batch takes a while, and the first step 90 s: times tell nothing."""
    steps = [(WAIT, 2.0), (WAIT, 90.0), (WAIT, 5.0), (WAIT, 7.0)]
    made = iteration(steps=steps)
    ends = [taken + 0.5 for taken in made.taken[1:]] + [110.0]
    loop = loop_of(made, optimizer_steps=ends)
    assert loop.ahead == 1
    assert loop.epochs[0].body.tolist() == [90.0, 5.0, 7.0, 7.0], "the last is not seen: the median"
    plain = loop_of(made, optimizer_steps=[taken + 0.5 for taken in made.taken])
    assert plain.ahead == 0 and plain.epochs[0].body.tolist() == [2.0, 90.0, 5.0, 7.0]
    skipped = loop_of(made, optimizer_steps=ends[:-1])
    assert skipped.ahead == 0, "a scaler of gradients leaves out a first step"


def test_batches_taken_together_share_their_compute() -> None:
    """As transformers accumulates gradients: two batches, then both are computed."""
    loop = loop_of(iteration(steps=[(WAIT, 0.0), (WAIT, 8.0)] * 3))
    assert loop.ahead == 0
    assert loop.epochs[0].body.tolist() == [4.0] * 6


def test_the_gpus_clock_goes_before_the_hosts() -> None:
    """The host asks at once for the next batch; the GPU computes meanwhile."""
    made = iteration(steps=[(2.0, 0.5)] * 5)
    made.on_gpu = {0: (0.3, 2.4), 1: (0.1, 2.4), 2: (0.1, 2.4), 3: (0.1, 2.4), 4: (0.1, -1e-9)}
    epoch = loop_of(made).epochs[0]
    assert epoch.by_gpu
    assert epoch.wait.tolist() == [2.0, 0.1, 0.1, 0.1, 0.1], "workers start before the first"
    assert epoch.body.tolist()[:4] == [2.4] * 4


def test_a_gpu_was_idle_in_waits_that_it_does_not_tell_as_in_those_that_it_tells() -> None:
    """The host waits 1 s for each batch, the GPU was idle for a fifth of it where it tells."""
    made = iteration()
    made.on_gpu = {number: (-1e-9, 5.0) for number in range(5)} | {2: (0.2, 4.8)}
    epoch = loop_of(made).epochs[0]
    assert epoch.wait[1:] == pytest.approx([0.2] * 4) and epoch.body == pytest.approx([4.8] * 5)
    made.on_gpu = {number: (-1e-9, 5.0) for number in range(5)}
    assert loop_of(made).epochs[0].wait.tolist() == [WAIT] * 5, "none tells: as the host's"


def test_a_rank_waits_for_the_one_that_has_no_batch_yet() -> None:
    """Two ranks end each step together: what one waits more for its batch, the other waits too."""
    fast = process(iteration(steps=[(1.0, 6.0)] * 3), rank=0)
    slow = process(iteration(steps=[(3.0, 4.0)] * 4), rank=1)
    steps = steps_of(find_loops([slow, fast]), 1.0)
    assert len(steps) == 6, "steps that not all ranks have are left out"
    own = steps[steps["accelerator"] == 0]
    assert own["barrier"].tolist() == [2.0] * 3 and own["compute"].tolist() == [4.0] * 3
    other = steps[steps["accelerator"] == 1]
    assert not other["barrier"].any() and other["compute"].tolist() == [4.0] * 3


def test_ranks_without_numbers_are_numbered_by_their_start() -> None:
    two = [process(iteration()), process(iteration())]
    assert [loop.rank for loop in find_loops(two)] == [0, 1]
    assert find_loops([Process()]) == [], "a process without a loader trains nothing"


def test_epochs_of_one_batch_have_no_steps() -> None:
    loop = loop_of(iteration(steps=[(WAIT, BODY)]))
    assert steps_of([loop], 1.0).size == 0
    assert isinstance(np.asarray(loop.epochs[0].wait), np.ndarray)


QUEUED = (0.5, 0.75, 0.75, 1.0, 1.0, 1.0)
"""Seconds from each batch to the question for the next one."""


@pytest.mark.parametrize(
    ("idle", "busy", "launch"),
    [
        pytest.param(1.0, 2.5, 0.75, id="the GPU waits for batches and computes long after"),
        pytest.param(0.1, 2.5, 0.0, id="the GPU has other work before"),
        pytest.param(1.0, 1.1, 0.0, id="the loop waits for the GPU in its step"),
        pytest.param(1.0, -1e-9, 0.0, id="not known"),
    ],
)
def test_the_launch_of_a_step_is_seen_where_the_gpu_begins_with_the_host(
    idle: float, busy: float, launch: float
) -> None:
    made = iteration(steps=[(1.0, 0.25), *((1.0, queued) for queued in QUEUED), (1.0, 9.0)])
    made.on_gpu = {number: (idle, busy) for number in range(8)}
    assert loop_of(made).launch == launch
    made.on_gpu = {number: (idle, busy) for number in range(5)}
    assert loop_of(made).launch == 0.0, "too few steps tell nothing"
