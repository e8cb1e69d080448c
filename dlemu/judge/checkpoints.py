"""The checkpoints of a run: what they cost the steps, their fields in summary.json.

DLIO measures each block of steps between two checkpoints as it would measure an epoch without any.
The time of a checkpoint lies between two blocks, so its rule leaves it out.
"""

from collections.abc import Mapping, Sequence
from typing import TypedDict, cast

import numpy as np

from dlemu.judge.sums import EpochSums, au_of, au_of_each


class CheckpointMetric(TypedDict, total=False):
    """What DLIO has under `metric`, by its names, in runs that wrote checkpoints."""

    save_checkpoint_duration_mean_seconds: float
    save_checkpoint_duration_stdev_seconds: float
    save_checkpoint_io_mean_GB_per_second: float
    """In GiB/s, as the others are in GiB."""
    save_checkpoint_io_stdev_GB_per_second: float
    checkpoint_size_GB: float


class CheckpointCost(TypedDict, total=False):
    """What the checkpoints of a run cost its accelerators; percentages are 0 to 100."""

    number: int
    """Checkpoints that began in the epochs counted."""
    total_stall_seconds: float
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


class CheckpointFields(CheckpointCost, total=False):
    """`checkpoints` in summary.json, of a run with `workflow.checkpoint`. Seconds of a checkpoint
    are those of its slowest rank, in the order in which they were taken. A run that did not end has
    the fields of CheckpointCost alone."""

    folder: str
    asynchronous: bool
    every: str
    """When they were due, in words."""
    num_bytes: int
    """Of one checkpoint, all ranks."""
    written_bytes: int
    """Of all."""
    duration_seconds: Sequence[float]
    """From the first byte to the last one on the drive (or in its cache, without fsync)."""
    stall_seconds: Sequence[float]
    """All accelerators waited for it, barrier included."""
    waited_seconds: Sequence[float]
    """The part of the stall in which the one before it was still being written."""
    remaining_seconds: float
    """After the last step, until the last one was written."""
    parts_seconds: Mapping[str, float]
    """Sum over all ranks and checkpoints of open, write, waited (for bytes to write), fsync and
    close; and `generation`, CPU seconds in which the bytes were made."""
    devices: Sequence[str]
    """Drives under the folder, of all hosts."""
    device_read_bytes: int | None
    """Of these drives in the epochs, by any process; None where no drive is seen."""
    device_written_bytes: int | None


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
        au_of_each(asked.sum(), seconds.sum() + stall.sum())
        for asked, seconds, stall in zip(all_asked, all_seconds, stalls, strict=True)
    ]
    seconds = np.concatenate([each[1:] for each in all_seconds])
    asked = np.concatenate([each[1:] for each in all_asked])
    during = np.concatenate([epoch.steps["writing"][1:] for epoch in epochs])
    lost = seconds - asked
    # Expected loss of these steps at the loss rate of the other steps.
    usual = lost[~during].sum() / max(asked[~during].sum(), 1e-9) * asked[during].sum()
    more = lost[during].sum() - usual if during.any() and not during.all() else 0.0
    return CheckpointCost(
        number=number,
        total_stall_seconds=float(sum(stall.sum() for stall in stalls)),
        au_with_stalls_percentage=float(np.mean(with_stalls)),
        steps_while_writing=int(during.sum()),
        au_while_writing_percentage=au_of(asked[during], seconds[during]),
        au_otherwise_percentage=au_of(asked[~during], seconds[~during]),
        lost_share=float(min(1.0, max(0.0, more / max(lost.sum(), 1e-9)))),
    )


def dlio_names(fields: CheckpointFields | None) -> CheckpointMetric:
    """Return the fields of `metric`; none where there were no checkpoints."""
    if not fields or not fields["duration_seconds"]:
        return CheckpointMetric()
    size, seconds = fields["num_bytes"] / 2**30, fields["duration_seconds"]
    metric = {**dlio_clock("save_checkpoint", seconds, size), "checkpoint_size_GB": size}
    return cast(CheckpointMetric, metric)


def dlio_clock(name: str, seconds: Sequence[float], size: float) -> dict[str, float]:
    """Return the durations and rates of checkpoints of `size` GiB by DLIO's names."""
    durations = np.maximum(seconds, 1e-9)
    return {
        f"{name}_duration_mean_seconds": float(np.mean(durations)),
        f"{name}_duration_stdev_seconds": float(np.std(durations)),
        f"{name}_io_mean_GB_per_second": float(np.mean(size / durations)),
        f"{name}_io_stdev_GB_per_second": float(np.std(size / durations)),
    }
