"""A plot as data: series over a pair of axes. `html` draws it on a page, `png` as a picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from dlemu.units import round_up

Look = Literal["first", "second", "third", "fourth", "limit", "mark"]
"""How something is drawn: "first" to "fourth" differ in colour, line and dot, "limit" is dotted,
for thresholds, "mark" is what is chosen."""
_MOST_NUMBERS = 8
"""On the axis of whole numbers, so that they do not touch where 300 pixels are all."""


@dataclass(frozen=True)
class Series:
    """What was measured, or a threshold."""

    name: str
    look: Look
    pieces: Sequence[Sequence[tuple[float, float]]]
    """Points that were measured one after the other; nothing is drawn between two pieces."""
    marked: bool = False
    """Whether each point has a dot."""
    joined: bool = True
    """Whether a line joins the points of a piece."""


def dotted(
    name: str,
    look: Look,
    numbers: Sequence[float],
    values: Sequence[float | None],
    *,
    joined: bool = True,
) -> Series:
    """Return a series with a dot for each value that is known."""
    points = [(x, y) for x, y in zip(numbers, values, strict=True) if y is not None]
    return Series(name, look, [points], marked=True, joined=joined)


@dataclass(frozen=True)
class Bands:
    """Ranges of x that are shaded."""

    name: str
    look: Look
    ranges: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """One axis; `name` has the unit."""

    name: str
    low: float
    high: float
    whole: bool = False
    """Whether only whole numbers have a meaning on it."""
    names: Sequence[str] = ()
    """What lies at 0, 1, 2, ... where it has no numbers, as sizes and workloads."""

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Where it shows something, and what."""
        if self.names:
            return [(float(place), name) for place, name in enumerate(self.names)]
        return [(value, f"{value:,g}") for value in self._numbers()]

    def _numbers(self) -> list[float]:
        if not self.whole:
            return _round_steps(self.low, self.high)
        first, last = math.ceil(self.low), math.floor(self.high)
        steps = (size * 10**power for power in range(19) for size in (1, 2, 5))
        step = next(step for step in steps if (last - first) // step < _MOST_NUMBERS)
        return [float(number) for number in range(round_up(first, step), last + 1, step)]

    def share(self, value: float) -> float:
        """Return where a value lies, 0 to 1."""
        return (value - self.low) / ((self.high - self.low) or 1)


def axis_of_numbers(name: str, least: int, most: int) -> Axis:
    """Return an axis of whole numbers, with room for dots at both ends."""
    return Axis(name, least - 0.5, most + 0.5, whole=True)


def axis_of_au(*values: float) -> Axis:
    """Return an axis of AU in percent, from a bit below the least value."""
    return Axis("accelerator utilisation (%)", low=max(0.0, min(values) - 5), high=100.0)


def axis_from_zero(name: str, series: Sequence[Series], *, whole: bool = False) -> Axis:
    """Return an axis from 0 to a bit above the largest value."""
    most = max((y for each in series for piece in each.pieces for _, y in piece), default=0.0)
    return Axis(name, 0.0, 1.1 * most or 1.0, whole=whole)


def axis_of_names(name: str, names: Sequence[str]) -> Axis:
    """Return an axis of names, one beside the other."""
    return Axis(name, -0.5, len(names) - 0.5, names=names)


def level(name: str, look: Look, x: Axis, *values: float) -> Series:
    """Return lines at these values, over all of an axis."""
    return Series(name, look, [[(x.low, value), (x.high, value)] for value in values])


@dataclass(frozen=True)
class Plot:
    """Series over one pair of axes."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    bands: Sequence[Bands] = field(default=())


def _round_steps(low: float, high: float) -> list[float]:
    """Return about five round numbers between two."""
    span = max(high - low, 1e-9)
    power = 10.0 ** math.floor(math.log10(span))
    step = next(s for s in (0.1, 0.2, 0.25, 0.5, 1, 2) if span / (s * power) <= 6) * power
    first = math.ceil(low / step)
    return [round((first + i) * step, 9) for i in range(int((high - first * step) // step) + 1)]
