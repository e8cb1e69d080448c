"""Plots as pictures, PNG and SVG; needs matplotlib (extra `plot`).

Figures are made without pyplot, so a caller's backend and figures stay as they are.
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dlemu.report.blocks import Look, Plot, Series

_LOOKS: dict[Look, tuple[str, str, str]] = {
    "first": ("#1f5fa8", "o", "-"),
    "second": ("#b4540a", "s", "--"),
    "third": ("#2e7d4f", "^", "-."),
    "fourth": ("#7b3fa0", "D", "--"),
    "limit": ("0.35", "", ":"),
    "mark": ("#2e7d4f", "", "-"),
}
"""Colour, dot and line: they differ in grey, too."""


def save_pictures(plots: Sequence[Plot], path: Path, *, title: str) -> None:
    """Write `path`.png and .svg: the plots, one below the other."""
    figure = Figure(figsize=(8, 0.8 + 3.6 * len(plots)), layout="constrained")
    places = figure.subplots(len(plots), squeeze=False)
    for axes, plot in zip(places[:, 0], plots, strict=True):
        _draw(axes, plot)
    figure.suptitle(title, fontsize="medium")
    for kind in ("png", "svg"):
        figure.savefig(path.with_name(f"{path.name}.{kind}"), dpi=150)


def _draw(axes: Axes, plot: Plot) -> None:
    for bands in plot.bands:
        colour = _LOOKS[bands.look][0]
        for number, (low, high) in enumerate(bands.ranges):
            label = bands.name if number == 0 else None
            axes.axvspan(low, high, color=colour, alpha=0.16, label=label)
    for series in plot.series:
        _draw_series(axes, series)
    axes.set(xlim=(plot.x.low, plot.x.high), ylim=(plot.y.low, plot.y.high))
    axes.set_xticks(*zip(*plot.x.ticks, strict=True))
    axes.set_yticks(*zip(*plot.y.ticks, strict=True))
    axes.grid(alpha=0.25)
    axes.set_xlabel(plot.x.name)
    axes.set_ylabel(plot.y.name)
    axes.set_title(plot.title, fontsize="medium")
    axes.legend(loc="best", fontsize="small")


def _draw_series(axes: Axes, series: Series) -> None:
    colour, dot, line = _LOOKS[series.look]
    for number, piece in enumerate(each for each in series.pieces if each):
        axes.plot(
            *zip(*piece, strict=True),
            color=colour,
            marker=dot if series.marked else "",
            linestyle=line if series.joined else "None",
            label=series.name if number == 0 else None,
        )
