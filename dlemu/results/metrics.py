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
from dlemu.results.blocks import CheckpointCost, blocks_of, checkpoint_cost, counted, left_out
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
    """Nominal compute over all steps, the first included, without stalls for checkpoints."""
    true_samples_per_second: float
    """Samples over the whole epoch's time."""
    first_step_seconds: float
    """Mean over accelerators; it is outside the rule's window."""
    num_blocks: int
    """Parts that checkpoints cut the epoch into; 1 without."""
    num_counted: int
    """Steps inside the rule's window."""
    seconds: float
    """Longest time of an accelerator, with its stalls."""
    num_samples: int
    read_bytes: int
    """Really read by the loaders."""
    num_reads: int
    """Calls that read them; 0 where they are not counted."""
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

    @property
    def reads_per_second(self) -> float:
        """Read calls over the epoch's time."""
        return self.num_reads / self.seconds


@dataclass(frozen=True)
class Metrics:
    """A run."""

    edition: Edition
    num_accelerators: int
    epochs: tuple[EpochMetrics, ...]
    left_out: int
    """Steps of each epoch outside the edition's window, without checkpoints."""
    checkpoints: CheckpointCost | None = None
    """What they cost; None without any."""

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

    @property
    def num_reads(self) -> int:
        """Calls that read them; 0 where they are not counted."""
        return sum(epoch.num_reads for epoch in self.epochs)

    @property
    def reads_per_second(self) -> float:
        """Read calls over the time of all epochs."""
        return self.num_reads / sum(epoch.seconds for epoch in self.epochs)

    @property
    def delivered_au_percentage(self) -> float:
        """AU of the whole time: with the first steps, and with the stalls for checkpoints."""
        if self.checkpoints is None:
            return self.whole_epoch_au_percentage
        return self.checkpoints.au_with_stalls_percentage


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
    records = [
        _by_accelerator(steps[steps["epoch"] == epoch], num_accelerators)
        for epoch in np.unique(steps["epoch"])
    ]
    epochs = [
        _measure_epoch(each, counted(each, exclude_start_steps, exclude_end_steps), edition)
        for each in records
    ]
    num_out = exclude_start_steps + exclude_end_steps
    return Metrics(edition, num_accelerators, tuple(epochs), num_out, checkpoint_cost(records))


def measure_run(workload: Workload, steps: Steps | Sequence[Steps]) -> Metrics:
    """Return a run's metrics by the edition that its workload asks for; raises as `measure`."""
    start, end = left_out(workload.metric)
    return measure(
        steps,
        edition=workload.metric.edition,
        exclude_start_steps=start,
        exclude_end_steps=end,
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


def _by_rule(
    steps: Steps, window: NDArray[np.bool_], edition: Edition
) -> tuple[_Values, _Values] | None:
    """Return (accelerators,) AU and samples/s of a block; None if it is too short for the rule.

    `steps` are (accelerators, steps) records, `window` the (steps,) of them that count.
    """
    # Edition v2.0 leaves out the samples of two steps, whatever its window is.
    if not window.any() or (edition != "v1.0" and len(window) <= _UNCOUNTED_STEPS):
        return None
    seconds = step_seconds(steps)
    inside = seconds[:, window].sum(axis=1)
    if edition == "v1.0":
        samples_per_second = steps["num_samples"].sum(axis=1) / seconds.sum(axis=1)
    else:
        # With its defaults the published code counts n - 2 steps over the time of n - 1. We do the
        # same, so that results can be compared; `true_samples_per_second` is correct.
        num_samples = steps["num_samples"][:, _UNCOUNTED_STEPS:].sum(axis=1)
        samples_per_second = num_samples / inside
    return 100 * credited_seconds(steps, edition)[:, window].sum(
        axis=1
    ) / inside, samples_per_second


def _measure_epoch(steps: Steps, window: NDArray[np.bool_], edition: Edition) -> EpochMetrics:
    """Return the metrics of (accelerators, steps) records; `window` has the steps that count."""
    blocks = blocks_of(steps)
    found = [_by_rule(steps[:, block], window[block], edition) for block in blocks]
    long_enough = [
        (block.stop - block.start, *each)
        for block, each in zip(blocks, found, strict=True)
        if each is not None
    ]
    num_steps, epoch = steps.shape[1], int(steps["epoch"][0, 0])
    if not long_enough:
        raise _too_short(epoch, num_steps, len(blocks), int((~window).sum()), edition)
    # As the published code does: a block weighs as much as its steps, the first included.
    weights = np.array([num for num, _, _ in long_enough], np.float64)
    weights /= weights.sum()
    au, samples_per_second = (
        weights @ np.stack(column) for column in list(zip(*long_enough, strict=True))[1:]
    )
    # (accelerators, steps)
    seconds = step_seconds(steps)
    whole, inside = seconds.sum(axis=1), seconds[:, window].sum(axis=1)
    stall = float(steps["stall"].max(axis=0).sum())
    num_samples = steps["num_samples"].sum(axis=1)
    over = (steps["compute"] - steps["computation_time"])[:, window]
    window_total = inside.sum()
    return EpochMetrics(
        epoch=epoch,
        num_steps=num_steps,
        num_blocks=len(blocks),
        num_counted=int(window.sum()),
        au_percentage=float(au.mean()),
        samples_per_second=float(samples_per_second.sum()),
        whole_epoch_au_percentage=float(
            (100 * steps["computation_time"].sum(axis=1) / whole).mean()
        ),
        true_samples_per_second=float((num_samples / (whole + stall)).sum()),
        first_step_seconds=float(seconds[:, 0].mean()),
        seconds=float(whole.max()) + stall,
        num_samples=int(num_samples.sum()),
        read_bytes=int(steps["num_bytes"].sum()),
        num_reads=int(steps["num_reads"].sum()),
        wait_seconds=float(steps["wait"][:, window].mean()),
        wait_share=float(steps["wait"][:, window].sum() / window_total),
        overhead_share=float(steps["overhead"][:, window].sum() / window_total),
        barrier_share=float(steps["barrier"][:, window].sum() / window_total),
        oversleep_share=float(over.sum() / window_total),
        accelerator_au=au,
        accelerator_wait=steps["wait"][:, window].mean(axis=1),
    )


def _too_short(
    epoch: int, num_steps: int, num_blocks: int, num_out: int, edition: Edition
) -> WorkloadError:
    has, remedy = f"{num_steps} steps", "dataset.num_files_train"
    if num_blocks > 1:
        has = f"{num_steps} steps in {num_blocks} blocks between checkpoints"
        remedy = "checkpoint.steps_between_checkpoints"
    return WorkloadError(
        f"epoch {epoch} has {has}, too few for edition {edition}, which leaves out {num_out}; "
        f"raise {remedy}"
    )
