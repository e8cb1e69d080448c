"""What was measured: a document, the fit over batch sizes, a workload file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlemu.steptime.gpu_state import summary
from dlemu.steptime.measure import Timed
from dlemu.steptime.preprocessing import Preprocessing
from dlemu.workload.model import Workload
from dlemu.workload.published import derived_yaml, normal, origin_of

_PARTS = 20
_SKEWED = 0.01
"""From this distance between mean and median on, as a share of the mean, a normal distribution does
not describe the steps: the file gets the mean of each twentieth of them."""


def fit_line(batches: Sequence[int], means: Sequence[float]) -> Mapping[str, float] | None:
    """Return seconds over batch sizes as the line a + b · batch, by least squares over the means.

    `residual` is the largest distance of a mean from it, as a share of the mean. None: there are
    fewer than two batch sizes.
    """
    if len(set(batches)) < 2:
        return None
    sizes, times = np.array(batches, float), np.array(means)
    b, a = np.polyfit(sizes, times, 1)
    residual = np.max(np.abs(a + b * sizes - times) / times)
    return {"a": float(a), "b": float(b), "residual": float(residual)}


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """The answer of `dlemu steptime` for one workload and model."""

    workload: Workload
    model: str
    name: str
    """Of the workload file."""
    environment: Mapping[str, str]
    """GPU, driver, torch, cuDNN, dtype, layout, compile, graph and date, in this order."""
    timed: Sequence[Timed]
    skipped: Sequence[int] = ()
    """Batch sizes for which memory did not suffice."""
    preprocessing: Preprocessing | None = None
    """Of the user's samples, where `steptime.preprocess` names a function."""

    @property
    def row(self) -> Timed:
        """The steps that the workload file takes: of the workload's batch size, or the nearest."""
        wanted = self.workload.reader.batch_size
        return min(self.timed, key=lambda each: abs(each.batch - wanted))

    def yaml(self) -> str:
        """Return the workload file: what was given and the measured times."""
        own = self.row
        keys: dict[str, object] = {
            "reader.batch_size": own.batch,
            "train.computation_time": distribution(own.seconds),
        }
        if own.on_gpu:
            keys["train.launch_time"] = float(f"{min(own.launch, own.mean):.4g}")
        if self.preprocessing is not None:
            keys["reader.preprocess_time"] = self.preprocessing.key()
        comment = [
            f"{self.model}: the time of a training step (forward, loss, backward, optimizer) with "
            "its data on the",
            f"device, measured by dlemu steptime over {len(own.seconds):,} steps of batch "
            f"{own.batch}.",
            *(f"{name}: {value}" for name, value in self.environment.items()),
        ]
        return derived_yaml(self.workload, self.name, keys, comment)

    def document(self) -> dict[str, Any]:
        """Return all that was measured, every step's time included; stored as JSON.

        `batch`: of the workload file. `fit`: through the means that launching does not limit.
        """
        free = [each for each in self.timed if not each.launch_bound]
        base = origin_of(self.workload) or self.workload
        given = base.train.computation_time.mean
        published = {"name": base.name, "seconds": given, "batch": base.reader.batch_size}
        return {
            "workload": self.workload.name,
            "model": self.model,
            "environment": dict(self.environment),
            "sample_bytes": self.workload.dataset.mean_bytes,
            "accelerators": self.workload.accelerators_per_rank,
            "batch": self.row.batch,
            "fit": fit_line([each.batch for each in free], [each.mean for each in free]),
            "skipped_batches": list(self.skipped),
            "published": published if given else None,
            "preprocessing": self.preprocessing and self.preprocessing.evidence(),
            "batches": [_evidence(each) for each in self.timed],
        }


def distribution(seconds: NDArray[np.float64]) -> dict[str, object]:
    """Return the keys of a `Distribution` with the mean of these times."""
    mean = float(seconds.mean())
    if abs(mean - float(np.median(seconds))) < _SKEWED * mean or len(seconds) < _PARTS:
        return normal(seconds)
    parts = np.array_split(np.sort(seconds), _PARTS)
    # Parts differ by a step in length: each counts alike, so they are scaled to the steps' mean.
    scale = mean / float(np.mean([part.mean() for part in parts]))
    times = [float(f"{scale * part.mean():.6g}") for part in parts]
    return {**normal(np.array(times)), "type": "quantiles", "quantiles": times}


def _evidence(timed: Timed) -> dict[str, Any]:
    seconds = timed.seconds
    return {
        "batch": timed.batch,
        "layout": timed.layout,
        "median_seconds": timed.median,
        "mean_seconds": float(seconds.mean()),
        "stdev_seconds": float(seconds.std()),
        "p05_seconds": float(np.percentile(seconds, 5)),
        "p95_seconds": float(np.percentile(seconds, 95)),
        "launch_seconds": timed.launch,
        "launch_bound": timed.launch_bound,
        "flop_per_step": timed.flops,
        "gpu_memory_bytes": timed.memory,
        "gpu": summary(timed.states),
        "step_seconds": [float(f"{value:.7g}") for value in seconds],
    }
