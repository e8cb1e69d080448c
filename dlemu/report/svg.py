"""Plots on a page. Lines and dots are SVG that is stretched; texts are HTML, of one size anywhere.

So a plot can be read on a wide and on a narrow screen, and needs no script.
"""

import html

from dlemu.report.plot import Axis, Plot, Series
from dlemu.terminal import shown

_SIDE = 1000
"""Width and height of an SVG, in its own units."""


def escaped(text: str) -> str:
    """Return a text without markup, and without control characters, which HTML forbids."""
    return html.escape(shown(text))


def render_plot(plot: Plot) -> str:
    """Return a plot as HTML, with its title, its legend and its axes."""
    x, y = plot.x, plot.y
    lines = "".join(_across(plot, value) for value, _ in y.ticks)
    bands = (
        f'<g class="{each.look}">{"".join(_band(x, ends) for ends in each.ranges)}</g>'
        for each in plot.bands
    )
    drawn = [f'<g class="grid">{lines}</g>', *bands, *(_series(plot, s) for s in plot.series)]
    ticks = [
        *(f'<span class="y" style="bottom:{_percent(y, at)}">{escaped(text)}</span>'
          for at, text in y.ticks),
        *(f'<span class="x" style="left:{_percent(x, at)}">{escaped(text)}</span>'
          for at, text in x.ticks),
    ]  # fmt: skip
    return (
        f"<figure><figcaption>{escaped(plot.title)}</figcaption>{_legend(plot)}"
        f'<p class="unit">{escaped(y.name)}</p>'
        f'<div class="area" role="img" aria-label="{escaped(plot.title)}">'
        f'<svg viewBox="0 0 {_SIDE} {_SIDE}" preserveAspectRatio="none">{"".join(drawn)}</svg>'
        f'{"".join(ticks)}</div><p class="unit x">{escaped(x.name)}</p></figure>'
    )


def _legend(plot: Plot) -> str:
    entries = [
        *(_entry(each.name, each.look, _key(each)) for each in plot.series),
        *(_entry(each.name, each.look, '<rect class="band" width="26" height="10"/>')
          for each in plot.bands),
    ]  # fmt: skip
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _spot(plot: Plot, x: float, y: float) -> str:
    across, up = plot.x.share(x), plot.y.share(y)
    return f"{round(_SIDE * across, 1)} {round(_SIDE * (1 - up), 1)}"


def _across(plot: Plot, y: float) -> str:
    return f'<path d="M{_spot(plot, plot.x.low, y)}H{_SIDE}"/>'


def _band(x: Axis, ends: tuple[float, float]) -> str:
    left, right = (round(_SIDE * x.share(end), 1) for end in ends)
    width = round(right - left, 1)
    return f'<rect class="band" x="{left}" width="{width}" height="{_SIDE}"/>'


def _series(plot: Plot, series: Series) -> str:
    spots = [[_spot(plot, *point) for point in piece] for piece in series.pieces]
    parts = []
    if series.joined:
        lines = " ".join("M" + "L".join(piece) for piece in spots if piece)
        parts.append(f'<path class="line" d="{lines}"/>')
    if series.marked:  # a line without length is a dot that is not stretched
        dots = " ".join(f"M{spot}h0" for piece in spots for spot in piece)
        parts.append(f'<path class="dots" d="{dots}"/>')
    return f'<g class="{series.look}">{"".join(parts)}</g>'


def _percent(axis: Axis, value: float) -> str:
    return f"{round(100 * axis.share(value), 2)}%"


def _entry(name: str, look: str, key: str) -> str:
    return f'<li><svg class="{look}" viewBox="0 0 26 10">{key}</svg>{escaped(name)}</li>'


def _key(series: Series) -> str:
    line = '<path class="line" d="M0 5H26"/>' if series.joined else ""
    return line + ('<path class="dots" d="M13 5h0"/>' if series.marked else "")
