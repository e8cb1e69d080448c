"""Blocks of steps: a checkpoint ends one; and what checkpoints cost the steps.

DLIO measures each block as it would measure an epoch without checkpoints. The time of a checkpoint
lies between two blocks, so its rule leaves it out.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dlemu.results.records import Steps
from dlemu.workload.sections import MetricSection


@dataclass(frozen=True, kw_only=True)
class CheckpointCost:
    """What the checkpoints of a run cost its accelerators; percentages are 0 to 100."""

    number: int
    """Checkpoints that began in the epochs counted."""
    stall_seconds: float
    """Time between steps in which all accelerators waited for a checkpoint, in all epochs."""
    au_with_stalls_percentage: float
    """Nominal compute over the whole time, first steps and stalls included; mean over epochs."""
    steps_while_writing: int
    """Steps of which most fell into the writing of a checkpoint; each epoch's first is left out."""
    au_while_writing_percentage: float | None
    """Nominal compute over the time of these steps; None: there are none."""
    au_otherwise_percentage: float | None
    """The same for the other steps."""
    lost_share: float
    """Share (0-1) of what all these steps lost that they would not have lost if steps during
    writes had lost as little as the others."""


def left_out(metric: MetricSection) -> tuple[int, int]:
    """Return how many steps the edition leaves out at each block's start, and each epoch's end."""
    if metric.edition == "v1.0":
        return 1, 0
    return metric.exclude_start_steps, metric.exclude_end_steps


def blocks_of(steps: Steps) -> list[slice]:
    """Return the blocks of an epoch's (accelerators, steps) records, one without checkpoints."""
    num_steps = steps.shape[1]
    ends = np.flatnonzero((steps["stall"] > 0).any(axis=0)) + 1
    bounds = [0, *ends.tolist(), num_steps]
    return [slice(begin, end) for begin, end in pairwise(bounds) if begin < end]


def counted(steps: Steps, start: int, end: int) -> NDArray[np.bool_]:
    """Return which steps count, of an epoch's (accelerators, steps) records.

    `start` steps do not at the start of each block, `end` steps at the end of the epoch.
    """
    counts = np.ones(steps.shape[1], np.bool_)
    for block in blocks_of(steps):
        counts[block.start : min(block.start + start, block.stop)] = False
    counts[max(0, len(counts) - end) :] = False
    return counts


def checkpoint_cost(epochs: list[Steps]) -> CheckpointCost | None:
    """Return what checkpoints cost, from each epoch's (accelerators, steps) records.

    None if the run wrote none.
    """
    stalls = [epoch["stall"].max(axis=0) for epoch in epochs]
    writing: list[NDArray[np.bool_]] = [epoch["writing"].max(axis=0) for epoch in epochs]
    number = sum(int((stall > 0).sum()) for stall in stalls)
    if not number:
        return None
    with_stalls = [
        100 * epoch["computation_time"].mean(axis=0).sum() / (_seconds(epoch).sum() + stall.sum())
        for epoch, stall in zip(epochs, stalls, strict=True)
    ]
    seconds = np.concatenate([_seconds(epoch)[1:] for epoch in epochs])
    asked = np.concatenate([epoch["computation_time"].mean(axis=0)[1:] for epoch in epochs])
    during = np.concatenate([each[1:] for each in writing])
    lost = seconds - asked
    # What steps during writes would lose if they lost as much for their compute as the others do.
    usual = lost[~during].sum() / max(asked[~during].sum(), 1e-9) * asked[during].sum()
    more = lost[during].sum() - usual if during.any() and not during.all() else 0.0
    return CheckpointCost(
        number=number,
        stall_seconds=float(sum(stall.sum() for stall in stalls)),
        au_with_stalls_percentage=float(np.mean(with_stalls)),
        steps_while_writing=int(during.sum()),
        au_while_writing_percentage=_percentage(asked[during], seconds[during]),
        au_otherwise_percentage=_percentage(asked[~during], seconds[~during]),
        lost_share=float(min(1.0, max(0.0, more / max(lost.sum(), 1e-9)))),
    )


def _seconds(steps: Steps) -> NDArray[np.float64]:
    """Return (steps,) mean times over accelerators of (accelerators, steps) records."""
    parts = steps["wait"] + steps["overhead"] + steps["compute"] + steps["barrier"]
    mean: NDArray[np.float64] = parts.mean(axis=0)
    return mean


def _percentage(part: NDArray[np.float64], whole: NDArray[np.float64]) -> float | None:
    return float(100 * part.sum() / whole.sum()) if whole.sum() > 0 else None
