"""Plots of a page. Lines and dots are SVG that is stretched; texts are HTML, of one size anywhere.

So a plot can be read on a wide and on a narrow screen, and needs no script.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from dlemu.reports.markup import escaped
from dlemu.units import round_up

Look = Literal["first", "second", "limit", "mark"]
"""How something is drawn: "first" is a line with round dots, "second" is dashed with square dots,
"limit" is dotted, for thresholds, "mark" is a band."""
_SIDE = 1000
"""Width and height of an SVG, in its own units."""
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


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis; `name` has the unit."""

    name: str
    low: float
    high: float
    whole: bool = False
    """Whether only whole numbers have a meaning on it."""

    @property
    def ticks(self) -> list[float]:
        """The numbers that it shows."""
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
    return Axis(name=name, low=least - 0.5, high=most + 0.5, whole=True)


def level(name: str, look: Look, x: Axis, *values: float) -> Series:
    """Return lines at these values, over all of an axis."""
    return Series(name, look, [[(x.low, value), (x.high, value)] for value in values])


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Series over one pair of axes."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    bands: Sequence[Bands] = field(default=())

    def render(self) -> str:
        """Return the plot as HTML."""
        drawn = [
            f'<g class="grid">{"".join(self._line(y) for y in self.y.ticks)}</g>',
            *(f'<g class="{b.look}">{"".join(map(self._band, b.ranges))}</g>' for b in self.bands),
            *map(self._series, self.series),
        ]
        ticks = [
            *(f'<span class="y" style="bottom:{self._percent(self.y, v)}">{v:,g}</span>'
              for v in self.y.ticks),
            *(f'<span class="x" style="left:{self._percent(self.x, v)}">{v:,g}</span>'
              for v in self.x.ticks),
        ]  # fmt: skip
        return (
            f"<figure><figcaption>{escaped(self.title)}</figcaption>{self._legend()}"
            f'<p class="unit">{escaped(self.y.name)}</p>'
            f'<div class="area" role="img" aria-label="{escaped(self.title)}">'
            f'<svg viewBox="0 0 {_SIDE} {_SIDE}" preserveAspectRatio="none">{"".join(drawn)}</svg>'
            f'{"".join(ticks)}</div><p class="unit x">{escaped(self.x.name)}</p></figure>'
        )

    def _legend(self) -> str:
        entries = [
            *(_entry(each.name, each.look, _key(each)) for each in self.series),
            *(_entry(b.name, b.look, '<rect class="band" width="26" height="10"/>')
              for b in self.bands),
        ]  # fmt: skip
        return f'<ul class="legend">{"".join(entries)}</ul>'

    def _spot(self, x: float, y: float) -> str:
        across, up = self.x.share(x), self.y.share(y)
        return f"{round(_SIDE * across, 1)} {round(_SIDE * (1 - up), 1)}"

    def _line(self, y: float) -> str:
        return f'<path d="M{self._spot(self.x.low, y)}H{_SIDE}"/>'

    def _band(self, ends: tuple[float, float]) -> str:
        left, right = (round(_SIDE * self.x.share(end), 1) for end in ends)
        width = round(right - left, 1)
        return f'<rect class="band" x="{left}" width="{width}" height="{_SIDE}"/>'

    def _series(self, series: Series) -> str:
        spots = [[self._spot(*point) for point in piece] for piece in series.pieces]
        parts = []
        if series.joined:
            lines = " ".join("M" + "L".join(piece) for piece in spots if piece)
            parts.append(f'<path class="line" d="{lines}"/>')
        if series.marked:  # a line without length is a dot that is not stretched
            dots = " ".join(f"M{spot}h0" for piece in spots for spot in piece)
            parts.append(f'<path class="dots" d="{dots}"/>')
        return f'<g class="{series.look}">{"".join(parts)}</g>'

    @staticmethod
    def _percent(axis: Axis, value: float) -> str:
        return f"{round(100 * axis.share(value), 2)}%"


def _entry(name: str, look: Look, key: str) -> str:
    return f'<li><svg class="{look}" viewBox="0 0 26 10">{key}</svg>{escaped(name)}</li>'


def _key(series: Series) -> str:
    line = '<path class="line" d="M0 5H26"/>' if series.joined else ""
    return line + ('<path class="dots" d="M13 5h0"/>' if series.marked else "")


def _round_steps(low: float, high: float) -> list[float]:
    """Return about five round numbers between two."""
    span = max(high - low, 1e-9)
    power = 10.0 ** math.floor(math.log10(span))
    step = next(s for s in (0.1, 0.2, 0.25, 0.5, 1, 2) if span / (s * power) <= 6) * power
    first = math.ceil(low / step)
    return [round((first + i) * step, 9) for i in range(int((high - first * step) // step) + 1)]
