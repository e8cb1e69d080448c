"""The step loop: take a batch, compute, meet the others."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, repeat

import numpy as np
from numpy.typing import NDArray

from dlemu.checkpoint.in_run import due_after
from dlemu.clock import Clock
from dlemu.config.model import Workload
from dlemu.config.types import Distribution
from dlemu.judge.metrics import measure_run
from dlemu.judge.records import STEP, Steps
from dlemu.loaders import Batch

SHORT_STEP_SECONDS = 0.02
"""Steps below are so short that dlemu's own cost in each is worth measuring."""
ceiling_seconds = 0.5
"""Of the steps without reads that measure it; tests do without."""


def replay_epoch(
    batches: Iterable[Sequence[Batch]],
    steps: Steps,
    *,
    barrier: Callable[[], None],
    clock: Clock,
    compute: Callable[[float], None] | None = None,
) -> Steps:
    """Take one epoch's batches as a training job would; return the records of the steps it made.

    `batches` yields, for each step, one batch for every accelerator of this rank; `steps` are the
    (steps, accelerators) records of `new_steps`, filled one step after the other. Another thread
    may read them meanwhile: `start` is written last, so a step whose `start` is set is whole.

    A step begins when the one before ends, so the steps add up to the whole time; the first step's
    `wait` includes the loader's start.

    All accelerators of a rank meet at the end of every step, so one thread is enough for any number
    of them: each computes from the moment when its own batch is there, and the thread sleeps until
    the last has finished. `compute`, if given, keeps a real device busy until a deadline instead.
    """
    asked = steps["computation_time"]
    wait_until = compute or clock.sleep_until
    start = clock.now()
    step = -1
    for step, taken in enumerate(batches):
        loaded = np.maximum([batch.ready for batch in taken], start)
        ends = loaded + asked[step]
        if taken:  # a rank without accelerators only meets the others
            last = int(ends.argmax())
            wait_until(float(ends[last]))
            ends[last] = clock.now()
        barrier()
        met = clock.now()
        row = steps[step]
        row["wait"] = loaded - start
        row["compute"] = ends - loaded
        row["barrier"] = met - ends
        row["accelerator"] = [batch.accelerator for batch in taken]
        row["num_samples"] = [len(batch.samples) for batch in taken]
        row["num_bytes"] = [batch.num_bytes for batch in taken]
        row["num_reads"] = [batch.num_reads for batch in taken]
        row["read"] = [batch.read_seconds for batch in taken]
        row["decode"] = [batch.decode_seconds for batch in taken]
        row["hand_over"] = [batch.hand_over_seconds for batch in taken]
        row["start"] = start
        start = met
    return steps[: step + 1]


def with_allreduce(
    seconds: float, barrier: Callable[[], None], opened: Callable[[], float], clock: Clock
) -> Callable[[], None]:
    """Return a barrier that takes as long as a job's all-reduce, after the last rank was there.

    `opened` tells when the barrier opened, on the same clock; 0 where there is no other rank.
    """
    if not seconds:
        return barrier

    def meet() -> None:
        came = clock.now()
        barrier()
        clock.sleep_until(max(came, opened()) + seconds)

    return meet


def find_ceiling(
    accelerators: range,
    seconds: float,
    num_steps: int,
    *,
    barrier: Callable[[], None],
    clock: Clock,
    compute: Callable[[float], None],
) -> float:
    """Return the AU in percent of steps of so many seconds whose batches are always there.

    What is missing to 100 is dlemu's own cost on this host, waking up and the barrier, and the
    job's all-reduce where the barrier takes as long. The first step does not count. All ranks call
    it; 100 on one without accelerators.
    """
    batches = [Batch(0, 0, number, np.arange(0), 0, 0.0) for number in accelerators]
    times = np.full((num_steps, len(batches)), seconds)
    steps = replay_epoch(
        repeat(batches, num_steps),
        new_steps(0, times),
        barrier=barrier,
        clock=clock,
        compute=compute,
    )[1:]
    whole = float((steps["wait"] + steps["compute"] + steps["barrier"]).sum())
    return min(100.0, 100 * seconds * steps.size / whole) if whole else 100.0


def replay_blocks(
    batches: Iterable[Sequence[Batch]],
    steps: Steps,
    due: Sequence[int],
    take: Callable[[int], float],
    replay: Callable[[Iterable[Sequence[Batch]], Steps], Steps],
) -> Steps:
    """Return the records of an epoch that checkpoints cut into blocks.

    `due` has the numbers of steps, in order, after which `take` takes a checkpoint. It gets the
    number and returns how long the accelerators stood still. `replay` makes a block's steps, as
    `replay_epoch` does; without checkpoints it makes them all.
    """
    left = iter(batches)
    done = 0
    for number in due:
        # The last block asks for one batch more: the loader ends an epoch with that.
        block = left if number == len(steps) else islice(left, number - done)
        done += len(replay(block, steps[done:number]))
        if done < number:  # the loader ended early
            return steps[:done]
        steps["stall"][number - 1] = take(number)
    return steps[: done + len(replay(left, steps[done:]))]


def new_steps(epoch: int, computation_times: NDArray[np.float64]) -> Steps:
    """Return records to fill, for (steps, accelerators) computation times in seconds."""
    steps = np.zeros(computation_times.shape, STEP)
    steps["epoch"] = epoch
    steps["step"] = np.arange(len(steps))[:, None]
    steps["computation_time"] = computation_times
    return steps


def draw_computation_times(
    computation_time: Distribution,
    *,
    num_steps: int,
    accelerators: range,
    epoch: int,
    seed: int,
    shared: float = 0.0,
) -> NDArray[np.float64]:
    """Return (steps, accelerators) seconds.

    `shared` is the share (0-1) of their variance that all accelerators of the job have in common,
    whatever rank emulates it; the rest is drawn independently on every one. Mean and variance are
    those of the distribution.
    """
    if computation_time.stdev == 0 and computation_time.type != "exponential":
        return np.full((num_steps, len(accelerators)), computation_time.mean)
    times = np.empty((num_steps, len(accelerators)))

    def drawn(*key: int) -> NDArray[np.float64]:
        generator = np.random.default_rng((seed, epoch, *key))
        return np.array([computation_time.draw(generator) for _ in range(num_steps)])

    for column, accelerator in enumerate(accelerators):
        if shared in (0, 1):
            times[:, column] = drawn(0 if shared else accelerator)
            continue
        mean = computation_time.mean
        common, own = drawn(0) - mean, drawn(1, accelerator) - mean
        both = mean + math.sqrt(shared) * common + math.sqrt(1 - shared) * own
        times[:, column] = np.maximum(both, 0.0)
    return times


def check_blocks(workload: Workload, num_steps: int) -> None:
    """Refuse a run whose checkpoints leave the rule no step of an epoch of `num_steps` to count.

    Raises:
        WorkloadError: they are too close together.
    """
    alike = set()
    for epoch in range(workload.train.epochs):
        due = tuple(due_after(workload.checkpoint, epoch=epoch, num_steps=num_steps))
        if due in alike:
            continue  # thousands of epochs are cut in one or two ways
        alike.add(due)
        records = new_steps(epoch, np.ones((num_steps, 1)))
        records["compute"] = 1.0
        records["stall"][np.array(due, int) - 1] = 1.0
        measure_run(workload, records.ravel())
