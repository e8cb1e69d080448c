"""Records of steps and their sums, and of a job whose storage gives so many batches per second."""

from collections.abc import Sequence

import numpy as np

from dlemu.judge.records import STEP, Steps
from dlemu.judge.sums import RankName, Rule, Sums, sum_all


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


def sums_of(steps: Steps, names: Sequence[RankName], rule: Rule | None = None) -> Sums:
    """Return the sums of records, any shape; `names` has the rank of each accelerator."""
    flat = steps.ravel()
    parts = (
        (name, flat[np.isin(flat["accelerator"], np.flatnonzero([n == name for n in names]))])
        for name in dict.fromkeys(names)
    )
    return sum_all(parts, rule or Rule())


def shared_steps(rate: float, window: int, num_steps: int) -> Steps:
    """Return the steps of an accelerator that computes for 1 s a batch, one batch in advance.

    `window` readers have a batch each, and together get `rate` batches per second.
    """
    steps = rows(1, num_steps, computation_time=1.0, compute=1.0)
    asked, end = [0.0] * window, 0.0
    for step in range(num_steps):
        taken = max(end, asked[step] + window / rate)
        steps["wait"][0, step], steps["read"][0, step] = taken - end, window / rate
        asked.append(taken)
        end = taken + 1.0
    return steps
