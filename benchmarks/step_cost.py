"""What a step itself takes; the dense tests and benchmarks/emulate.py measure it."""

import time
from collections.abc import Iterator
from functools import cache

import numpy as np

from dlemu.clock import WallClock
from dlemu.loaders import Batch
from dlemu.run.replay import new_steps, replay_epoch

_clock = cache(WallClock.calibrate)
"""Calibrated once: that takes longer than the steps."""


def step_cost(num_accelerators: int, num_steps: int = 2000) -> float:
    """Return the seconds that a step takes where nothing is read, computed or waited for."""
    samples = np.arange(1)

    def batches() -> Iterator[list[Batch]]:
        for step in range(num_steps):
            yield [Batch(0, step, number, samples, 1, 0.0, 0.0, 0.0, 0.0) for number in numbers]

    numbers = range(num_accelerators)
    clock = _clock()
    begin = time.perf_counter()
    replay_epoch(
        batches(),
        new_steps(0, np.zeros((num_steps, num_accelerators))),
        barrier=lambda: None,
        clock=clock,
    )
    return (time.perf_counter() - begin) / num_steps
