"""Pictures of a sizing, as PNG and SVG; needs matplotlib (extra `plot`)."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no screen is needed, nor wanted

import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

from dlemu.sizing import Sizing

_AU, _RATE, _CHOSEN = "#1f5fa8", "#c46a12", "#3a7d44"


def plot_sizing(sizing: Sizing, path: Path, *, title: str) -> None:
    """Write `path`.png and .svg: AU and GB/s of every run over N, the threshold, the answer."""
    figure, axis = plt.subplots(figsize=(8, 4.8), layout="constrained")
    numbers = [point.num_accelerators for point in sizing.points]
    au = [point.au_percentage for point in sizing.points]
    rates = [point.read_bytes_per_second / 1e9 for point in sizing.points]
    axis.scatter(numbers, au, color=_AU, s=36, alpha=0.75, zorder=3, label="AU of a run")
    means = sorted({n: _mean(numbers, au, n) for n in numbers}.items())
    axis.plot(*zip(*means, strict=True), color=_AU, linewidth=1, alpha=0.6)
    axis.axhline(
        sizing.threshold, color="0.35", linestyle="--", label=f"threshold {sizing.threshold:g}%"
    )
    mark = "at least " if sizing.at_least else ""
    if sizing.num_accelerators:
        axis.axvline(
            sizing.num_accelerators,
            color=_CHOSEN,
            linewidth=1.5,
            label=f"{mark}{sizing.num_accelerators} accelerators (N* "
            f"{sizing.real_accelerators:.2f})",
        )
    axis.set_xlabel("emulated accelerators N")
    axis.set_ylabel("accelerator utilisation (%)", color=_AU)
    axis.set_ylim(min(*au, sizing.threshold) - 5, 101)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(alpha=0.25)
    other = axis.twinx()
    other.scatter(numbers, rates, color=_RATE, marker="s", s=20, alpha=0.7, label="GB/s of a run")
    means = sorted({n: _mean(numbers, rates, n) for n in numbers}.items())
    other.plot(*zip(*means, strict=True), color=_RATE, linewidth=1, alpha=0.5)
    other.set_ylabel("read (GB/s)", color=_RATE)
    other.set_ylim(0, 1.15 * max(rates))
    handles, labels = axis.get_legend_handles_labels()
    more, texts = other.get_legend_handles_labels()
    axis.set_title(title)
    axis.legend(handles + more, labels + texts, loc="lower left", fontsize="small")
    _save(figure, path)


def plot_table(cells: Sequence[tuple[str, str, int]], path: Path) -> None:
    """Write `path`.png and .svg: accelerators of each (workload, target), bars in groups."""
    workloads = list(dict.fromkeys(workload for workload, _, _ in cells))
    targets = list(dict.fromkeys(target for _, target, _ in cells))
    figure, axis = plt.subplots(figsize=(8, 4.8), layout="constrained")
    width = 0.8 / len(targets)
    for place, target in enumerate(targets):
        found = {workload: number for workload, name, number in cells if name == target}
        left = [w + (place - (len(targets) - 1) / 2) * width for w in range(len(workloads))]
        heights = [found.get(workload, 0) for workload in workloads]
        bars = axis.bar(left, heights, width * 0.92, label=target)
        axis.bar_label(bars, fontsize="small")
    axis.set_xticks(range(len(workloads)), workloads)
    axis.set_ylabel("most emulated accelerators that pass")
    axis.legend(title="target", fontsize="small")
    axis.grid(axis="y", alpha=0.25)
    _save(figure, path)


def _mean(numbers: Sequence[int], values: Sequence[float], number: int) -> float:
    chosen = [value for n, value in zip(numbers, values, strict=True) if n == number]
    return sum(chosen) / len(chosen)


def _save(figure: "matplotlib.figure.Figure", path: Path) -> None:
    for kind in ("png", "svg"):
        figure.savefig(path.with_name(f"{path.name}.{kind}"), dpi=150)
    plt.close(figure)
