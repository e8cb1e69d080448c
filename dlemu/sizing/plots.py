"""Plots of sizings, as PNG and SVG; needs matplotlib (extra `plot`).

Figures are made without pyplot, so a caller's backend and figures stay as they are.
"""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dlemu.results.facts import date_of, drive_name, runs_of
from dlemu.results.metrics import passes
from dlemu.results.summary import time_of_day
from dlemu.sizing.answers import AT_LEAST, Sized
from dlemu.storage.atomic import write_atomically
from dlemu.units import counted, rate_unit

_AU, _RATE, _CHOSEN, _GREY = "#1f5fa8", "#c46a12", "#3a7d44", "0.35"
_HATCHES = ("", "//", "..", "xx", "--")
"""Of the bars of one target, which are told apart in grey."""


def plot_sizing(sized: Sized, path: Path) -> None:
    """Write `path`.png and .svg: AU and read rate of every run over N, threshold and answer."""
    figure = Figure(figsize=(7.5, 6.5), layout="constrained")
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
    lower.set_xlabel("emulated accelerators (N)")
    lower.set_xlim(least - 1, most + 1)
    lower.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axis in (upper, lower):
        axis.grid(alpha=0.25)
        axis.legend(loc="best", fontsize="small")
    quick = "\nquick: a dataset smaller than the rule asks for" * sized.workload.size.quick
    drive, date = _drive_and_date(sized)
    figure.suptitle(f"{sized.workload.name} on {drive}, {date}{quick}")
    _save(figure, path)


def _drive_and_date(sized: Sized) -> tuple[str, str]:
    """Return what the storage is called, and the day of the last run; today without any."""
    runs = runs_of(sized.folder, f"{sized.target.name}.{sized.workload.name}")
    last = runs[-1] if runs else {}
    return drive_name(last, sized.target.name), date_of(last) or time_of_day()[:10]


def _draw_au(axis: Axes, sized: Sized) -> None:
    """Draw AU of each run, the threshold, and the AU that N* predicts between the runs."""
    passed = [passes(point.au_percentage, sized.threshold) for point in sized.points]
    for name, marker, which in (("passed", "o", True), ("failed", "s", False)):
        runs = [p for p, met in zip(sized.points, passed, strict=True) if met is which]
        if runs:
            # Filled or hollow: both are told apart in grey.
            axis.scatter(
                [point.num_accelerators for point in runs],
                [point.au_percentage for point in runs],
                marker=marker,
                facecolor=_AU if which else "white",
                edgecolor=_AU,
                s=30,
                label=f"a run that {name}",
                zorder=3,
            )
    reached = [point.au_percentage for point in sized.points]
    if sized.real_accelerators is not None:
        _draw_crossing(axis, sized, most=max(reached))
    axis.axhline(sized.threshold, color=_GREY, linewidth=1, label=f"threshold {sized.threshold:g}%")
    axis.set_ylabel("accelerator utilisation (%)")
    axis.set_ylim(max(0.0, min(sized.threshold, *reached) - 5), 102)


def _draw_crossing(axis: Axes, sized: Sized, *, most: float) -> None:
    """Draw where AU meets the threshold, and the AU that follows from it for each N."""
    real = sized.real_accelerators
    assert real is not None
    numbers = np.linspace(*_tried(sized), 200)
    axis.plot(
        numbers,
        np.minimum(most, sized.threshold * real / numbers),
        color=_AU,
        linestyle="--",
        linewidth=1,
        label="predicted from the runs: the same bytes/s for any N",
    )
    if sized.interval is not None:
        low, high = sized.interval
        label = f"N* = {real:.2f}: meets the threshold; 95% interval {low:.2f} to {high:.2f}"
        axis.axvspan(low, high, color=_AU, alpha=0.15, label=label)


def _draw_rate(axis: Axes, sized: Sized) -> None:
    """Draw the read rate of each run, and what N accelerators need to reach the threshold."""
    rates = [point.read_bytes_per_second for point in sized.points]
    fastest = max(rates)
    unit, size = rate_unit(fastest)
    tried = [point.num_accelerators for point in sized.points]
    axis.scatter(tried, [rate / size for rate in rates], color=_RATE, s=30, label="a run", zorder=3)
    numbers = np.array(_tried(sized))
    asked = numbers * sized.workload.demand * sized.threshold / 100 / size
    axis.plot(
        numbers,
        asked,
        color=_GREY,
        linestyle="--",
        linewidth=1,
        label="predicted: what N accelerators read at the threshold",
    )
    axis.set_ylabel(f"read ({unit})")
    axis.set_ylim(0, max(1.4 * fastest / size, 1.1 * asked[0]))


def _tried(sized: Sized) -> tuple[int, int]:
    """Return the fewest and the most accelerators that were measured."""
    numbers = [point.num_accelerators for point in sized.points]
    return min(numbers), max(numbers)


def plot_table(sized: Sequence[Sized], path: Path) -> None:
    """Write `path`.png and .svg: a group of bars for each workload, a bar for each target."""
    workloads = list(dict.fromkeys(each.workload.name for each in sized))
    targets = list(dict.fromkeys(each.target.name for each in sized))
    inches = max(5.5, 2 + 1.2 * len(workloads) * max(2, len(targets)))
    figure = Figure(figsize=(inches, 4.5 + 0.2 * len(targets)), layout="constrained")
    axis = figure.subplots()
    width = 0.8 / len(targets)
    for place, target in enumerate(targets):
        own = [each for each in sized if each.target.name == target]
        left = (place - (len(targets) - 1) / 2) * width
        drive, _ = _drive_and_date(own[0])
        bars = axis.bar(
            [workloads.index(each.workload.name) + left for each in own],
            [each.num_accelerators for each in own],
            0.9 * width,
            edgecolor="white",
            hatch=_HATCHES[place % len(_HATCHES)],
            label=f"{drive}, {counted(own[0].target.num_drives, 'drive')}",
        )
        marks = [f"{'≥ ' if each.at_least else ''}{each.num_accelerators}" for each in own]
        axis.bar_label(bars, marks, padding=2)
    axis.set_xticks(range(len(workloads)), workloads)
    axis.set_ylabel("most emulated accelerators that pass")
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.margins(y=0.12)
    axis.grid(axis="y", alpha=0.25)
    axis.set_axisbelow(True)
    figure.legend(fontsize="small", loc="outside lower center")
    date = max(_drive_and_date(each)[1] for each in sized)
    notes = [f"accelerators that a storage feeds, {date}"]
    notes += [AT_LEAST] * any(each.at_least for each in sized)
    quick = any(each.workload.size.quick for each in sized)
    notes += ["quick: datasets smaller than the rule asks for"] * quick
    figure.suptitle("\n".join(notes), fontsize="medium")
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    for kind in ("png", "svg"):
        picture = io.BytesIO()
        figure.savefig(picture, format=kind, dpi=150)
        write_atomically(path.with_name(f"{path.name}.{kind}"), picture.getvalue())
