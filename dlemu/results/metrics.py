"""Steps of all accelerators to accelerator utilisation and samples/s; definitions and sources.

Source: MLPerf Storage rules and DLIO's statistics code, v1.0 and v2.0; v3.0 has v2.0's formulas.
docs/metrics.md has them in full, and what is wrong in them. In both, an epoch's AU is the mean over
accelerators and its samples/s the sum; the job's value is the mean over epochs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dlemu.errors import RunError, WorkloadError
from dlemu.results.records import Steps
from dlemu.workload.model import Workload

Edition = Literal["v1.0", "v2.0", "v3.0"]
_Values = NDArray[np.float64]
_UNCOUNTED_STEPS = 2
"""Steps whose samples edition v2.0 leaves out of samples/s (DLIO 2.0, compute_metrics_train)."""


def passes(au_percentage: float, threshold: float) -> bool:
    """Return whether an AU meets a threshold, both in percent.

    Every command uses this rule: both are rounded to two decimals, as in published results.
    """
    return round(au_percentage, 2) >= round(threshold, 2)


@dataclass(frozen=True, kw_only=True)
class EpochMetrics:
    """One epoch over all accelerators. Percentages are 0 to 100."""

    epoch: int
    num_steps: int
    au_percentage: float
    """By the edition's rule."""
    samples_per_second: float
    """By the edition's rule."""
    whole_epoch_au_percentage: float
    """Nominal compute over the whole epoch, the first step included."""
    true_samples_per_second: float
    """Samples over the whole epoch's time."""
    first_step_seconds: float
    """Mean over accelerators; it is outside the rule's window."""
    seconds: float
    """Longest time of an accelerator."""
    num_samples: int
    read_bytes: int
    """Really read by the loaders."""
    wait_seconds: float
    """Mean wait for a batch, first steps left out."""
    wait_share: float
    """Share of the window, 0 to 1, in which accelerators waited for batches."""
    overhead_share: float
    """Share of the window in which a real loop worked on its batch while its device was idle."""
    barrier_share: float
    """Share of the window in which they waited for other accelerators."""
    oversleep_share: float
    """Share of the window that compute took beyond what was asked."""
    accelerator_au: _Values
    """(accelerators,) AU of each by the edition's rule."""
    accelerator_wait: _Values
    """(accelerators,) mean wait of each, first step left out, seconds."""

    @property
    def read_bytes_per_second(self) -> float:
        """Bytes really read over the epoch's time."""
        return self.read_bytes / self.seconds


@dataclass(frozen=True)
class Metrics:
    """A run."""

    edition: Edition
    num_accelerators: int
    epochs: tuple[EpochMetrics, ...]
    left_out: int
    """Steps of each epoch outside the edition's window."""

    @property
    def au_percentage(self) -> float:
        """The job's AU: mean over epochs."""
        return float(np.mean([epoch.au_percentage for epoch in self.epochs]))

    @property
    def samples_per_second(self) -> float:
        """The job's samples/s: mean over epochs."""
        return float(np.mean([epoch.samples_per_second for epoch in self.epochs]))

    @property
    def whole_epoch_au_percentage(self) -> float:
        """Mean over epochs of the AU with the first step left in."""
        return float(np.mean([epoch.whole_epoch_au_percentage for epoch in self.epochs]))

    @property
    def read_bytes(self) -> int:
        """Bytes really read by the loaders, all epochs."""
        return sum(epoch.read_bytes for epoch in self.epochs)

    @property
    def read_bytes_per_second(self) -> float:
        """Bytes really read over the time of all epochs."""
        return self.read_bytes / sum(epoch.seconds for epoch in self.epochs)


def measure(
    steps: Steps | Sequence[Steps],
    *,
    edition: Edition = "v1.0",
    exclude_start_steps: int = 1,
    exclude_end_steps: int = 0,
) -> Metrics:
    """Return the metrics of a run from the records of all its accelerators.

    The `exclude_` numbers count in edition v2.0 only; v1.0 always leaves out the first step.

    Raises:
        RunError: a step of an accelerator is missing or there twice.
        WorkloadError: an epoch has too few steps for the window.
    """
    if not isinstance(steps, np.ndarray):
        steps = np.concatenate([np.asarray(part).ravel() for part in steps])
    if len(steps) == 0:
        raise WorkloadError(
            "no step was run, so there is nothing to measure; raise train.epochs or "
            "dataset.num_files_train"
        )
    # Several times as fast as np.sort(order=…), which compares records field by field.
    steps = steps.ravel()
    steps = steps[np.lexsort((steps["step"], steps["accelerator"], steps["epoch"]))]
    num_accelerators = int(steps["accelerator"].max()) + 1
    if edition == "v1.0":
        exclude_start_steps, exclude_end_steps = 1, 0
    left_out = exclude_start_steps + exclude_end_steps
    epochs = []
    for epoch in np.unique(steps["epoch"]):
        of_epoch = _by_accelerator(steps[steps["epoch"] == epoch], num_accelerators)
        num_steps = of_epoch.shape[1]
        window = slice(exclude_start_steps, num_steps - exclude_end_steps)
        # Edition v2.0 leaves out the samples of two steps, whatever its window is.
        if num_steps <= (left_out if edition == "v1.0" else max(left_out, _UNCOUNTED_STEPS)):
            raise WorkloadError(
                f"epoch {epoch} has {num_steps} steps, too few for edition {edition}, which leaves "
                f"out {left_out}; raise dataset.num_files_train"
            )
        epochs.append(_measure_epoch(of_epoch, window, edition))
    return Metrics(edition, num_accelerators, tuple(epochs), left_out)


def measure_run(workload: Workload, steps: Steps | Sequence[Steps]) -> Metrics:
    """Return a run's metrics by the edition that its workload asks for; raises as `measure`."""
    metric = workload.metric
    return measure(
        steps,
        edition=metric.edition,
        exclude_start_steps=metric.exclude_start_steps,
        exclude_end_steps=metric.exclude_end_steps,
    )


def step_seconds(steps: Steps) -> _Values:
    """Return the time of each step; they add up to the epoch's."""
    seconds: _Values = steps["wait"] + steps["overhead"] + steps["compute"] + steps["barrier"]
    return seconds


def credited_seconds(steps: Steps, edition: Edition) -> _Values:
    """Return the part of each step that counts as utilised."""
    seconds: _Values = steps["computation_time" if edition == "v1.0" else "compute"]
    return seconds


def epochs_of_all(steps: Steps, num_accelerators: int) -> Steps:
    """Return the records of the epochs that all accelerators have ended.

    A rank writes whole epochs only. Where a run did not end, some ranks may have ended more.
    """
    pairs = np.unique(np.stack([steps["epoch"], steps["accelerator"]]), axis=1)
    epochs, num_present = np.unique(pairs[0], return_counts=True)
    return steps[np.isin(steps["epoch"], epochs[num_present == num_accelerators])]


def _by_accelerator(steps: Steps, num_accelerators: int) -> Steps:
    """Return an epoch's sorted records as (accelerators, steps); refuse what is not whole."""
    num_steps = int(steps["step"].max()) + 1
    whole = len(steps) == num_accelerators * num_steps
    if whole:
        steps = steps.reshape(num_accelerators, num_steps)
        whole = bool(
            (steps["step"] == np.arange(num_steps)).all()
            and (steps["accelerator"] == np.arange(num_accelerators)[:, None]).all()
        )
    if not whole:
        raise RunError(
            f"epoch {steps['epoch'].flat[0]}: not every accelerator has the steps 0 to "
            f"{num_steps - 1}, each once; the run did not end, or a steps.<rank>.npy is missing"
        )
    return steps


def _measure_epoch(steps: Steps, window: slice, edition: Edition) -> EpochMetrics:
    """Return the metrics of (accelerators, steps) records."""
    num_steps = steps.shape[1]
    # (accelerators, steps)
    seconds = step_seconds(steps)
    whole, inside = seconds.sum(axis=1), seconds[:, window].sum(axis=1)
    num_samples = steps["num_samples"].sum(axis=1)
    if edition == "v1.0":
        samples_per_second = num_samples / whole
    else:
        # With its defaults the published code counts n - 2 steps over the time of n - 1. We do the
        # same, so that results can be compared; `true_samples_per_second` is correct.
        counted = steps["num_samples"][:, _UNCOUNTED_STEPS:].sum(axis=1)
        samples_per_second = counted / inside
    au = 100 * credited_seconds(steps, edition)[:, window].sum(axis=1) / inside
    over = (steps["compute"] - steps["computation_time"])[:, window]
    window_total = inside.sum()
    return EpochMetrics(
        epoch=int(steps["epoch"][0, 0]),
        num_steps=num_steps,
        au_percentage=float(au.mean()),
        samples_per_second=float(samples_per_second.sum()),
        whole_epoch_au_percentage=float(
            (100 * steps["computation_time"].sum(axis=1) / whole).mean()
        ),
        true_samples_per_second=float((num_samples / whole).sum()),
        first_step_seconds=float(seconds[:, 0].mean()),
        seconds=float(whole.max()),
        num_samples=int(num_samples.sum()),
        read_bytes=int(steps["num_bytes"].sum()),
        wait_seconds=float(steps["wait"][:, window].mean()),
        wait_share=float(steps["wait"][:, window].sum() / window_total),
        overhead_share=float(steps["overhead"][:, window].sum() / window_total),
        barrier_share=float(steps["barrier"][:, window].sum() / window_total),
        oversleep_share=float(over.sum() / window_total),
        accelerator_au=au,
        accelerator_wait=steps["wait"][:, window].mean(axis=1),
    )
