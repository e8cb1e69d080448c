"""Pictures of a sizing, as PNG and SVG; needs matplotlib (extra `plot`)."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")  # no screen is needed, nor wanted

import matplotlib.figure
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dlemu.sizing.answers import AT_LEAST, Sized
from dlemu.sizing.search import Point, Sizing

_AU, _RATE, _CHOSEN = "#1f5fa8", "#c46a12", "#3a7d44"


def plot_sizing(sized: Sized, path: Path) -> None:
    """Write `path`.png and .svg: AU above GB/s over N, every run, the threshold, the answer."""
    sizing, points = sized.sizing, sized.sizing.points
    unit, size = ("GB/s", 1e9) if _fastest(points) >= 1e9 else ("MB/s", 1e6)
    figure, (upper, lower) = plt.subplots(
        2, sharex=True, figsize=(7.5, 6), height_ratios=(3, 2), layout="constrained"
    )
    least = min(point.num_accelerators for point in points) - 1
    most = max(point.num_accelerators for point in points) + 1
    _draw_runs(upper, points, lambda point: point.au_percentage, _AU)
    _draw_runs(lower, points, lambda point: point.read_bytes_per_second / size, _RATE)
    if sizing.real_accelerators is not None:
        _draw_model(upper, sizing, sizing.real_accelerators)
    upper.axhline(
        sizing.threshold, color="0.35", linestyle="--", label=f"threshold {sizing.threshold:g}%"
    )
    numbers = np.array([least + 1, most - 1])  # only where something was measured
    asked = numbers * sized.workload.demand * sizing.threshold / 100 / size
    lower.plot(numbers, asked, "_--", color="0.35", label="demand of N at the threshold (computed)")
    if sizing.num_accelerators:
        mark = "at least " if sizing.at_least else ""
        for axis in (upper, lower):
            axis.axvline(sizing.num_accelerators, color=_CHOSEN, alpha=0.35, linewidth=8, zorder=0)
        label = f"answer: {mark}{sizing.num_accelerators}"
        upper.plot([], [], color=_CHOSEN, alpha=0.35, linewidth=8, label=label)
    else:
        upper.plot([], [], linestyle="None", label="answer: 0, one alone fails")
    upper.set_ylabel("accelerator utilisation (%)")
    lowest = min(sizing.threshold, *(point.au_percentage for point in points))
    upper.set_ylim(max(0.0, lowest - 5), 102)
    lower.set_ylabel(f"read ({unit})")
    lower.set_ylim(0, max(1.25 * _fastest(points) / size, 1.1 * asked[0]))
    lower.set_xlabel("emulated accelerators N")
    lower.set_xlim(least, most)
    lower.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axis in (upper, lower):
        axis.legend(loc="best", fontsize="small")
    figure.suptitle(_title(sized))
    _save(figure, path)


def _draw_model(axis: Axes, sizing: Sizing, real: float) -> None:
    """Draw AU by the identity N x AU, over the numbers that were measured."""
    tried = [point.num_accelerators for point in sizing.points]
    ceiling = max(point.au_percentage for point in sizing.points)
    numbers = np.linspace(min(tried), max(tried), 200)
    axis.plot(
        numbers,
        np.minimum(ceiling, sizing.threshold * real / numbers),
        color=_AU,
        linestyle=":",
        label=f"model, not measured: the same bytes for any N, N* = {real:.2f}",
    )


def plot_table(sized: Sequence[Sized], path: Path) -> None:
    """Write `path`.png and .svg: the accelerators of each workload and target, bars in groups."""
    workloads = list(dict.fromkeys(each.workload.name for each in sized))
    targets = list(dict.fromkeys(each.target.name for each in sized))
    figure, axis = plt.subplots(
        figsize=(2 + 1.2 * len(workloads) * max(2, len(targets)), 4.5), layout="constrained"
    )
    width = 0.8 / len(targets)
    for place, target in enumerate(targets):
        of_target = [each for each in sized if each.target.name == target]
        left = [
            workloads.index(each.workload.name) + (place - (len(targets) - 1) / 2) * width
            for each in of_target
        ]
        heights = [each.sizing.num_accelerators for each in of_target]
        drives = of_target[0].target.num_drives
        label = f"{target} ({drives} drive{'' if drives == 1 else 's'})"
        bars = axis.bar(left, heights, 0.9 * width, label=label)
        marks = [
            f"{'≥ ' if e.sizing.at_least else ''}{e.sizing.num_accelerators}" for e in of_target
        ]
        axis.bar_label(bars, marks, padding=2)
    axis.set_xticks(range(len(workloads)), workloads)
    axis.set_ylabel("most emulated accelerators that pass")
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.margins(y=0.12)
    axis.grid(axis="y", alpha=0.25)
    axis.set_axisbelow(True)
    axis.legend(fontsize="small")
    if any(each.sizing.at_least for each in sized):
        figure.supxlabel(AT_LEAST, fontsize="small")
    _save(figure, path)


def _draw_runs(
    axis: Axes, points: Sequence[Point], value: Callable[[Point], float], color: str
) -> None:
    """Draw each run as a dot, and the mean of each number with its spread."""
    runs: dict[int, list[float]] = {}
    for point in points:
        runs.setdefault(point.num_accelerators, []).append(value(point))
    numbers = sorted(runs)
    means = [fmean(runs[number]) for number in numbers]
    spread = [
        [mean - min(runs[n]) for n, mean in zip(numbers, means, strict=True)],
        [max(runs[n]) - mean for n, mean in zip(numbers, means, strict=True)],
    ]
    # No line from number to number: nothing was measured between them.
    axis.errorbar(numbers, means, spread, fmt="_", color=color, linewidth=1, capsize=4, alpha=0.7)
    xs = [point.num_accelerators for point in points]
    axis.scatter(xs, [value(p) for p in points], color=color, s=28, alpha=0.7, label="a run")
    axis.grid(alpha=0.25)


def _fastest(points: Sequence[Point]) -> float:
    return max(point.read_bytes_per_second for point in points)


def _title(sized: Sized) -> str:
    quick = " (quick: a small dataset)" if sized.workload.size.quick else ""
    return f"{sized.workload.name} on {sized.target.name}{quick}"


def _save(figure: matplotlib.figure.Figure, path: Path) -> None:
    for kind in ("png", "svg"):
        figure.savefig(path.with_name(f"{path.name}.{kind}"), dpi=150)
    plt.close(figure)
