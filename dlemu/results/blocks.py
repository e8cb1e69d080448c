"""What checkpoints cost the steps.

DLIO measures each block of steps between two checkpoints as it would measure an epoch without any.
The time of a checkpoint lies between two blocks, so its rule leaves it out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlemu.results.sums import EpochSums


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


def checkpoint_cost(epochs: Sequence[EpochSums]) -> CheckpointCost | None:
    """Return what checkpoints cost; None if the run wrote none."""
    stalls = [epoch.steps["stall"] for epoch in epochs]
    number = sum(int((stall > 0).sum()) for stall in stalls)
    if not number:
        return None
    # (steps,) means over accelerators.
    all_seconds = [epoch.steps["seconds"] / len(epoch.accelerators) for epoch in epochs]
    all_asked = [epoch.steps["asked"] / len(epoch.accelerators) for epoch in epochs]
    with_stalls = [
        100 * asked.sum() / (seconds.sum() + stall.sum())
        for asked, seconds, stall in zip(all_asked, all_seconds, stalls, strict=True)
    ]
    seconds = np.concatenate([each[1:] for each in all_seconds])
    asked = np.concatenate([each[1:] for each in all_asked])
    during = np.concatenate([epoch.steps["writing"][1:] for epoch in epochs])
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


def _percentage(part: NDArray[np.float64], whole: NDArray[np.float64]) -> float | None:
    return float(100 * part.sum() / whole.sum()) if whole.sum() > 0 else None
