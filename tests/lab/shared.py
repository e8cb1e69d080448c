"""Records of steps, and of a job whose storage gives a rate that its readers share."""

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

    At most `window` batches are read ahead; those that are read share `rate` batches per second.
    """
    left: dict[int, float] = {}
    begun, ready = list[float](), dict[int, float]()
    now = 0.0

    def go_on(taken: int, until: float) -> None:
        """Go on to the end of the next read, or until then."""
        nonlocal now
        for batch in range(len(begun), min(taken + window, num_steps)):
            left[batch] = 1.0
            begun.append(now)
        unit = rate / max(len(left), 1)
        seconds = min([until - now, *(each / unit for each in left.values())])
        now = until if seconds == until - now else now + seconds
        for batch in list(left):
            left[batch] -= seconds * unit
            if left[batch] < 1e-9:
                del left[batch]
                ready[batch] = now

    steps = rows(1, num_steps, computation_time=1.0, compute=1.0)
    for step in range(num_steps):
        start = now
        while step not in ready:
            go_on(step, until=np.inf)
        steps["wait"][0, step] = now - start
        steps["read"][0, step] = ready[step] - begun[step]
        end = now + 1.0
        while now < end:
            go_on(step + 1, until=end)
    return steps
