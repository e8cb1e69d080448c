"""Fields of checkpoints by DLIO's names, from dlemu's own."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from dlemu.judge.summary import CheckpointFields, CheckpointMetric


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
