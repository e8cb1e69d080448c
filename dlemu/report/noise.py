"""How sure a figure is, and whether two of them differ by more than their noise.

The noise of a mean is its standard error over runs. Two means are compared as Welch's t-test does,
with 95 % intervals. Parts of the steps of one run vary less than runs do: their spread gives no
interval of a difference between runs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlemu.results.metrics import t95


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
        """True if the difference is within the noise; None if the noise is unknown."""
        return None if self.noise is None else abs(self.value) <= self.noise


def figure_of(values: Sequence[float]) -> Figure:
    """Return the mean of values with its error."""
    value = float(np.mean(values))
    if len(values) < 2:
        return Figure(value)
    return Figure(value, float(np.std(values, ddof=1)) / math.sqrt(len(values)), len(values) - 1)


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
