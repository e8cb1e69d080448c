"""Plots of sizings, as PNG and SVG; needs matplotlib (extra `plot`).

Figures are made without pyplot, so a caller's backend and figures stay as they are.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dlemu.sizing.answers import AT_LEAST, Sized
from dlemu.sizing.search import Point
from dlemu.units import counted

_AU, _RATE, _CHOSEN = "#1f5fa8", "#c46a12", "#3a7d44"


def plot_sizing(sized: Sized, path: Path) -> None:
    """Write `path`.png and .svg: AU and read rate of every run over N, threshold and answer."""
    figure = Figure(figsize=(7.5, 6), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    _draw_au(upper, sized)
    _draw_rate(lower, sized)
    if sized.num_accelerators:
        for axis in (upper, lower):
            axis.axvline(sized.num_accelerators, color=_CHOSEN, alpha=0.35, linewidth=8, zorder=0)
        label = f"answer: {'at least ' if sized.at_least else ''}{sized.num_accelerators}"
        upper.plot([], [], color=_CHOSEN, alpha=0.35, linewidth=8, label=label)
    else:
        upper.plot([], [], linestyle="None", label="answer: 0, one alone fails")
    least, most = _tried(sized)
    lower.set_xlabel("emulated accelerators N")
    lower.set_xlim(least - 1, most + 1)
    lower.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axis in (upper, lower):
        axis.legend(loc="best", fontsize="small")
    quick = " (quick: a small dataset)" if sized.workload.size.quick else ""
    figure.suptitle(f"{sized.workload.name} on {sized.target.name}{quick}")
    _save(figure, path)


def _draw_au(axis: Axes, sized: Sized) -> None:
    """Draw AU of each run, the threshold, and the AU that N* predicts between the runs."""
    _draw_runs(axis, sized.points, lambda point: point.au_percentage, _AU)
    reached = [point.au_percentage for point in sized.points]
    if sized.real_accelerators is not None:
        numbers = np.linspace(*_tried(sized), 200)
        axis.plot(
            numbers,
            np.minimum(max(reached), sized.threshold * sized.real_accelerators / numbers),
            color=_AU,
            linestyle=":",
            label="model, not measured: the same bytes for any N, "
            f"N* = {sized.real_accelerators:.2f}",
        )
    axis.axhline(
        sized.threshold, color="0.35", linestyle="--", label=f"threshold {sized.threshold:g}%"
    )
    axis.set_ylabel("accelerator utilisation (%)")
    axis.set_ylim(max(0.0, min(sized.threshold, *reached) - 5), 102)


def _draw_rate(axis: Axes, sized: Sized) -> None:
    """Draw the read rate of each run, and what N accelerators demand at the threshold."""
    fastest = max(point.read_bytes_per_second for point in sized.points)
    unit, size = ("GB/s", 1e9) if fastest >= 1e9 else ("MB/s", 1e6)
    _draw_runs(axis, sized.points, lambda point: point.read_bytes_per_second / size, _RATE)
    numbers = np.array(_tried(sized))  # only where something was measured
    asked = numbers * sized.workload.demand * sized.threshold / 100 / size
    axis.plot(numbers, asked, "_--", color="0.35", label="demand of N at the threshold (computed)")
    axis.set_ylabel(f"read ({unit})")
    axis.set_ylim(0, max(1.25 * fastest / size, 1.1 * asked[0]))


def _draw_runs(
    axis: Axes, points: Sequence[Point], value: Callable[[Point], float], color: str
) -> None:
    """Draw each run as a dot, and for each number the mean and the range of its runs."""
    runs: dict[int, list[float]] = {}
    for point in points:
        runs.setdefault(point.num_accelerators, []).append(value(point))
    means = [fmean(values) for values in runs.values()]
    below = [mean - min(values) for mean, values in zip(means, runs.values(), strict=True)]
    above = [max(values) - mean for mean, values in zip(means, runs.values(), strict=True)]
    # No line from number to number: nothing was measured between them.
    axis.errorbar(
        list(runs), means, [below, above], fmt="_", color=color, linewidth=1, capsize=4, alpha=0.7
    )
    numbers = [point.num_accelerators for point in points]
    axis.scatter(numbers, list(map(value, points)), color=color, s=28, alpha=0.7, label="a run")
    axis.grid(alpha=0.25)


def _tried(sized: Sized) -> tuple[int, int]:
    """Return the fewest and the most accelerators that were measured."""
    numbers = [point.num_accelerators for point in sized.points]
    return min(numbers), max(numbers)


def plot_table(sized: Sequence[Sized], path: Path) -> None:
    """Write `path`.png and .svg: a group of bars for each workload, a bar for each target."""
    workloads = list(dict.fromkeys(each.workload.name for each in sized))
    targets = list(dict.fromkeys(each.target.name for each in sized))
    inches = 2 + 1.2 * len(workloads) * max(2, len(targets))
    figure = Figure(figsize=(inches, 4.5), layout="constrained")
    axis = figure.subplots()
    width = 0.8 / len(targets)
    for place, target in enumerate(targets):
        own = [each for each in sized if each.target.name == target]
        left = (place - (len(targets) - 1) / 2) * width
        bars = axis.bar(
            [workloads.index(each.workload.name) + left for each in own],
            [each.num_accelerators for each in own],
            0.9 * width,
            label=f"{target} ({counted(own[0].target.num_drives, 'drive')})",
        )
        marks = [f"{'≥ ' if each.at_least else ''}{each.num_accelerators}" for each in own]
        axis.bar_label(bars, marks, padding=2)
    axis.set_xticks(range(len(workloads)), workloads)
    axis.set_ylabel("most emulated accelerators that pass")
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.margins(y=0.12)
    axis.grid(axis="y", alpha=0.25)
    axis.set_axisbelow(True)
    axis.legend(fontsize="small")
    if any(each.at_least for each in sized):
        figure.supxlabel(AT_LEAST, fontsize="small")
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    for kind in ("png", "svg"):
        figure.savefig(path.with_name(f"{path.name}.{kind}"), dpi=150)
