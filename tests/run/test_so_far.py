"""The figures of steps so far are those of the records, whenever somebody looks."""

import numpy as np
import pytest

from dlemu.config.sections import MetricSection
from dlemu.judge.metrics import measure
from dlemu.judge.records import STEP, Steps
from dlemu.run.live import StepsSoFar

NUM_STEPS, NUM_ACCELERATORS = 12, 3


def records(seed: int = 0) -> Steps:
    """Return a whole epoch of steps that follow each other, each of its own length."""
    random = np.random.default_rng(seed)
    steps = np.zeros((NUM_STEPS, NUM_ACCELERATORS), STEP)
    steps["step"] = np.arange(NUM_STEPS)[:, None]
    steps["accelerator"] = np.arange(NUM_ACCELERATORS)
    steps["num_samples"] = 4
    steps["num_bytes"] = random.integers(1, 1000, steps.shape)
    length = random.uniform(1.0, 2.0, (NUM_STEPS, 1))
    steps["compute"] = length * random.uniform(0.5, 0.9, steps.shape)
    steps["computation_time"] = 0.99 * steps["compute"]
    steps["wait"] = 0.5 * (length - steps["compute"])
    steps["barrier"] = length - steps["compute"] - steps["wait"]
    steps["start"] = 100 + np.concatenate([[[0.0]], np.cumsum(length[:-1], axis=0)])
    return steps


@pytest.mark.parametrize("looks", [range(1, NUM_STEPS + 1), (1, 2, 7, NUM_STEPS), (NUM_STEPS,)])
@pytest.mark.parametrize("edition", ["v1.0", "v2.0"])
def test_the_au_so_far_is_that_of_the_records(edition: str, looks: range) -> None:
    whole, steps = records(), records()
    steps["start"] = 0  # none has ended
    metric = MetricSection(edition=edition, exclude_start_steps=2)  # type: ignore[arg-type]
    so_far = StepsSoFar(steps, metric)
    first = 1 if edition == "v1.0" else 2
    for done in looks:
        steps["start"][:done] = whole["start"][:done]
        so_far.look()
        so_far.look()  # nothing is counted twice
        assert so_far.done == done
        assert so_far.counted == max(0, done - first)
        if done > first:
            expected = measure(
                whole[:done].ravel(),
                edition=edition,  # type: ignore[arg-type]
                exclude_start_steps=2,
            )
            assert so_far.au_percentage == pytest.approx(expected.au_percentage, rel=1e-12)
        else:
            assert so_far.au_percentage is None


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
    start = steps["start"][:, 0]
    end = float(start[-1] + 1.0)
    rate = so_far.samples_per_second(end)
    assert rate is not None and 12 / 2 < rate < 12, "3 accelerators, 4 samples in 1 to 2 s"
    stalled = so_far.samples_per_second(end + 100)
    assert stalled is not None and stalled < 1
    assert so_far.step_seconds == pytest.approx(
        (start[-1] - start[1] + sum(steps[-1, 0][[f]].item()[0] for f in PARTS)) / (NUM_STEPS - 1)
    )


PARTS = ("wait", "overhead", "compute", "barrier")
