"""How sure a figure is, and whether two of them differ by more than their noise.

The noise of a mean is its standard error over runs. Two means are compared as Welch's t-test does,
with 95 % intervals. Epochs of one run, or parts of its steps, vary less than runs do: what they
tell is no interval of a difference between runs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlemu.results.metrics import t95
from dlemu.results.records import Steps
from dlemu.results.sums import step_seconds
from dlemu.units import ceil_div

_PARTS = 10
"""Of the steps of one run. Longer parts are nearly independent of each other."""
_FEWEST = 3
"""Values below which a spread says nothing."""


@dataclass(frozen=True)
class Figure:
    """A mean, and its standard error; None: nothing tells how far it varies."""

    value: float
    error: float | None = None
    freedom: float = math.inf
    """Degrees of freedom of the error."""
    of_one_run: bool = False
    """Whether the error is that of parts of one run."""


@dataclass(frozen=True)
class Difference:
    """What one figure is above another."""

    value: float
    against: float
    """The other figure."""
    noise: float | None
    """Half of the 95 % interval of `value`; None: unknown."""
    within_one_run: float | None = None
    """What it would be if runs varied as little as the parts of one run; None: see `noise`."""

    @property
    def share(self) -> float | None:
        """The difference as a share of the other: 0.05 is 5 % more; None: the other is 0."""
        return self.value / self.against if self.against else None

    @property
    def within_noise(self) -> bool | None:
        """Whether no difference is as likely; None: unknown."""
        return None if self.noise is None else abs(self.value) <= self.noise


def figure_of(
    values: Sequence[float], *, mean: float | None = None, of_one_run: bool = False
) -> Figure:
    """Return the mean of values with its error, or another `mean` of the same values."""
    value = float(np.mean(values)) if mean is None else mean
    if len(values) < 2:
        return Figure(value, of_one_run=of_one_run)
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Figure(value, error, len(values) - 1, of_one_run)


def figure_of_interval(value: float, low: float, high: float) -> Figure:
    """Return a figure by its 95 % interval."""
    return Figure(value, (high - low) / 2 / t95(math.inf))


def difference(new: Figure, old: Figure) -> Difference:
    """Return what `new` is above `old`, and the noise of both together."""
    value = new.value - old.value
    if new.error is None or old.error is None:
        return Difference(value, old.value, None)
    squares = [(each.error or 0.0) ** 2 for each in (new, old)]
    freedoms = (new.freedom, old.freedom)
    below = sum(s**2 / freedom for s, freedom in zip(squares, freedoms, strict=True))
    freedom = sum(squares) ** 2 / below if below else math.inf
    noise = t95(freedom) * math.sqrt(sum(squares))
    if new.of_one_run or old.of_one_run:
        return Difference(value, old.value, None, noise)
    return Difference(value, old.value, noise)


def parts_of_steps(steps: Steps) -> dict[str, list[float]]:
    """Return AU (percent), samples/s and bytes/s of parts of a run's steps, first steps left out.

    Each epoch must be whole, as `measure` checks. There are about ten parts, each of two steps or
    more; none where the run is too short for three.
    """
    epochs = np.unique(steps["epoch"])
    found: dict[str, list[float]] = {
        name: [] for name in ("au_percentage", "samples_per_second", "read_bytes_per_second")
    }
    for epoch in epochs:
        own = steps[steps["epoch"] == epoch]
        own = own[np.lexsort((own["step"], own["accelerator"]))]
        own = own.reshape(len(np.unique(own["accelerator"])), -1)[:, 1:]
        num = min(ceil_div(_PARTS, len(epochs)), own.shape[1] // 2)
        for part in np.array_split(own, max(1, num), axis=1):
            total = step_seconds(part).sum(axis=1)
            credited = part["computation_time"].sum(axis=1)
            found["au_percentage"].append(float((100 * credited / total).mean()))
            rate = (part["num_samples"].sum(axis=1) / total).sum()
            found["samples_per_second"].append(float(rate))
            found["read_bytes_per_second"].append(float(part["num_bytes"].sum() / total.max()))
    return found if enough(found["au_percentage"]) else {}


def enough(values: Sequence[object]) -> bool:
    """Return whether a spread of these values says something."""
    return len(values) >= _FEWEST
