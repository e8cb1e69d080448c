"""Records of steps, and of a job whose storage gives so many batches per second."""

import numpy as np

from dlemu.judge.records import STEP, Steps


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
