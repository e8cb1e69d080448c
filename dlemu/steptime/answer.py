"""What was measured: a table, the fit over batch sizes, a workload file, every step's time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlemu.steptime.measure import Timed
from dlemu.steptime.preprocessing import Preprocessing
from dlemu.units import format_rate, format_seconds
from dlemu.workload.derived import derived_yaml, normal, origin_of
from dlemu.workload.model import Workload

_HEAD = (
    *("batch", "mean ms", "median", "p05", "p95", "stdev", "samples/s", "TFLOP/s"),
    *("storage at AU 100 %", ""),
)
_PARTS = 20
_SKEWED = 0.01
"""From this distance between mean and median on, as a share of the mean, a normal distribution does
not describe the steps: the file gets the mean of each twentieth of them."""


@dataclass(frozen=True)
class Fit:
    """t = a + b · batch, by least squares over the means."""

    a: float
    """Seconds of a step that no sample adds to."""
    b: float
    """Seconds that each sample adds."""
    residual: float
    """Largest distance of a mean from the line, as a share of the mean."""

    def __str__(self) -> str:
        """Return the line and how far the means are from it."""
        return (
            f"t = {1e3 * self.a:.3g} ms + {1e3 * self.b:.4g} ms x batch "
            f"(no mean is further from it than {100 * self.residual:.1f} %)"
        )


def fit_line(batches: Sequence[int], means: Sequence[float]) -> Fit | None:
    """Return the fit of seconds over batch sizes; None for fewer than two of them."""
    if len(set(batches)) < 2:
        return None
    sizes, times = np.array(batches, float), np.array(means)
    b, a = np.polyfit(sizes, times, 1)
    residual = np.max(np.abs(a + b * sizes - times) / times)
    return Fit(float(a), float(b), float(residual))


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
    def fit(self) -> Fit | None:
        """The line through the means that launching does not limit; None: too few of them."""
        free = [each for each in self.timed if not each.launch_bound]
        return fit_line([each.batch for each in free], [each.mean for each in free])

    @property
    def row(self) -> Timed:
        """The steps that the workload file takes: of the workload's batch size, or the nearest."""
        wanted = self.workload.reader.batch_size
        return min(self.timed, key=lambda each: abs(each.batch - wanted))

    def lines(self) -> list[str]:
        """Return the text that `dlemu steptime` shows."""
        rows = [_HEAD, *(self._cells(each) for each in self.timed)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
        table = [
            "   ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return [*table, "", *self._remarks()]

    def _cells(self, timed: Timed) -> tuple[str, ...]:
        low, high = np.percentile(timed.seconds, (5, 95))
        rate = timed.batch / timed.mean
        tera = f"{timed.flops / timed.mean / 1e12:.3g}" if timed.flops else "-"
        times = (timed.mean, timed.median, low, high, timed.seconds.std())
        return (
            str(timed.batch),
            *(f"{1e3 * value:.4g}" for value in times),
            f"{rate:,.4g}" if rate < 1000 else f"{rate:,.0f}",
            tera,
            format_rate(rate * self.workload.dataset.mean_bytes),
            "launch-bound" if timed.launch_bound else "",
        )

    def _remarks(self) -> list[str]:
        lines = [str(self.fit)] if self.fit else []
        for each in self.timed:
            if each.launch_bound:
                lines.append(
                    f"batch {each.batch}: the host needs {format_seconds(each.launch)} to launch a "
                    "step, the GPU waits for it, and in a loop it takes longer: emulate the time "
                    "that dlemu.Meter finds there; steptime.graph=true has no such limit"
                )
        if self.skipped:
            sizes = ", ".join(map(str, self.skipped))
            lines.append(f"out of memory, skipped: batch {sizes}")
        own, base = self.row, origin_of(self.workload) or self.workload
        given = base.train.computation_time.mean
        if given:
            lines.append(
                f"{base.name} says {format_seconds(given)} for batch {base.reader.batch_size}; "
                f"measured at batch {own.batch}: {format_seconds(own.mean)}"
            )
        if self.preprocessing is not None:
            accelerators = self.workload.accelerators_per_rank
            lines += self.preprocessing.lines(accelerators * own.batch / own.mean)
        return lines

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
            *self._remarks(),
        ]
        return derived_yaml(self.workload, self.name, keys, comment)

    def evidence(self) -> dict[str, Any]:
        """Return all that was measured, every step's time included, for a JSON file."""
        fit = self.fit
        return {
            "workload": self.workload.name,
            "model": self.model,
            "environment": dict(self.environment),
            "fit": None if fit is None else vars(fit),
            "skipped_batches": list(self.skipped),
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
        "last_tenth_over_first": timed.drift,
        "launch_seconds": timed.launch,
        "launch_bound": timed.launch_bound,
        "flop_per_step": timed.flops,
        "gpu_memory_bytes": timed.memory,
        "gpu": timed.samples.summary(),
        "step_seconds": [float(f"{value:.7g}") for value in seconds],
    }
