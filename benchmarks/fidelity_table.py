"""What `fidelity` has measured: its runs, stored and read back, as a table and a plot."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.machine import markdown

GOALS = {0.3: 1.0, 0.6: 1.0, 0.9: 1.0, 1.2: 2.0, 2.0: 3.0}
"""Points of AU by which E may differ from R, by rate / demand."""
_OTHERS = ("A", "B", "D", "G")
"""Arms beside R and E."""
_COLOURS = [f"tab:{name}" for name in ("blue", "orange", "green", "red", "purple", "brown", "cyan")]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One place of the table."""

    net: str
    loader: str
    rate: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of one arm."""

    cell: Cell
    arm: str
    repeat: int
    c: float
    """Mean seconds of a step with its data on the GPU, timed alone just before."""
    stdev: float
    seconds: float
    """T - T1."""
    num_steps: int
    batch: int
    busy: float = 0.0
    """R: mean seconds of a step in this very loop, from its first kernel to its last."""
    busy_stdev: float = 0.0
    slept: float = 0.0
    """E and B: mean seconds of the sleep that was asked for."""
    decode: float = 0.0
    """E and A: mean seconds that a worker sleeps for each sample, as if it decoded."""
    idle: Sequence[float] = ()
    """R: the GPU's idle seconds before each step that counts, in epochs of few steps."""

    @property
    def au(self) -> float:
        return 100 * (self.num_steps - 1) * self.c / self.seconds

    @property
    def rate(self) -> float:
        """Samples per second."""
        return (self.num_steps - 1) * self.batch / self.seconds


HEADER = [
    *("job", "loader", "rate / demand", "R, samples/s", "E, samples/s", "R, AU %", "E, AU %"),
    *("E - R, points", "goal", "other arms - R", "step in the loop / alone", "repeats"),
]


def table(runs: Sequence[Run]) -> str:
    """Return the table of all cells: means, and least and greatest difference of a repeat."""
    rows = []
    for cell in sorted({run.cell for run in runs}, key=lambda c: (c.net, c.loader, c.rate or 99)):
        arms = {
            arm: {run.repeat: run for run in runs if (run.cell, run.arm) == (cell, arm)}
            for arm in ("R", "E", *_OTHERS)
        }
        both = sorted(arms["R"].keys() & arms["E"].keys())
        if not both:
            continue
        goal = GOALS.get(cell.rate, 3.0)
        rows.append(
            [
                *(cell.net, cell.loader, f"{cell.rate:g}" if cell.rate else "not held"),
                *(f"{_mean(arms[arm], both, 'rate'):,.4g}" for arm in "RE"),
                *(f"{_mean(arms[arm], both, 'au'):.1f}" for arm in "RE"),
                _judged(arms["E"], arms["R"], goal),
                f"{goal:g}",
                "; ".join(
                    f"{arm} {_judged(arms[arm], arms['R'], goal)}"
                    for arm in _OTHERS
                    if arms[arm].keys() & arms["R"].keys()
                ),
                f"{statistics.fmean(r.busy / r.c for r in arms['R'].values()):.3f}",
                str(len(both)),
            ]
        )
    return markdown(HEADER, rows)


def _judged(runs: Mapping[int, Run], real: Mapping[int, Run], goal: float) -> str:
    """Return the mean difference from R of the same repeat, its range, bold if it misses."""
    off = [run.au - real[repeat].au for repeat, run in runs.items() if repeat in real]
    mean = statistics.fmean(off)
    told = f"{mean:+.2f}" if abs(mean) <= goal else f"**{mean:+.2f}**"
    return told if len(off) < 2 else f"{told} ({min(off):+.2f} … {max(off):+.2f})"


def _mean(runs: Mapping[int, Run], repeats: Sequence[int], name: str) -> float:
    return statistics.fmean(getattr(runs[repeat], name) for repeat in repeats)


def draw(runs: Sequence[Run], path: Path) -> None:
    """Draw real against emulated AU, a mark for each pair of runs, with the line of identity."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.2, 6))
    axes.plot([0, 105], [0, 105], color="0.6", linewidth=1, label="the same AU")
    real = {(r.cell, r.repeat): r for r in runs if r.arm == "R"}
    colours = dict(zip(dict.fromkeys(run.cell.net for run in runs), _COLOURS, strict=False))
    for net, colour in colours.items():
        for arm, marker in (("E", "o"), ("B", "x")):
            pairs = [
                (real[run.cell, run.repeat].au, run.au)
                for run in runs
                if (run.arm, run.cell.net) == (arm, net) and (run.cell, run.repeat) in real
            ]
            if pairs:
                label = net if arm == "E" else f"{net}, step from the loop (B)"
                x, y = zip(*pairs, strict=True)
                axes.scatter(x, y, s=24, marker=marker, color=colour,
                             alpha=0.6, linewidth=float(arm == "B"), label=label)  # fmt: skip
    axes.set(xlim=(0, 105), ylim=(0, 105), aspect="equal")
    axes.set_xlabel("AU of the real job, %")
    axes.set_ylabel("AU of the emulation, %")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", frameon=False, fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def load(paths: Sequence[str]) -> list[Run]:
    """Return the runs of several files; those of the second follow as further repeats."""
    runs: list[Run] = []
    for path in paths:
        first = 1 + max((run.repeat for run in runs), default=-1)
        for fields in json.loads(Path(path).read_text())["runs"]:
            run = Run(**{**fields, "cell": Cell(**fields["cell"])})
            runs.append(replace(run, repeat=first + run.repeat))
    return runs
