"""What `fidelity` has measured: its runs, stored and read back, as a table and a plot."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.harness import markdown
from dlemu.config.model import load_workload

_HELD = 0.9
"""Up to this rate / demand E may differ by 1 point of whole AU from R; elsewhere by 2."""
_LAUNCH_BOUND = 0.9
"""Of c: from here on a step is called launch-bound, as `dlemu steptime` does."""
_OTHERS = ("M", "T", "B")
"""Arms beside R and E."""
_COLOURS = [f"C{number}" for number in range(10)]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One place of the table."""

    device: str
    """As PyTorch names it."""
    net: str
    loop: str
    rate: float

    @property
    def order(self) -> tuple[str, str, str, float]:
        """Where it is in the table; reads that are not held come last."""
        return self.device, self.net, self.loop, self.rate or 99


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of one arm."""

    cell: Cell
    arm: str
    repeat: int
    c: float
    """Mean seconds of a step with its data on the GPU, timed alone just before."""
    stdev: float
    launch: float
    """Seconds that the host needs to queue a step while the device is idle."""
    whole: float
    """Seconds from the start of the loader to the end of the last step."""
    seconds: float
    """T - T1: from the end of the first step."""
    wall: float
    num_steps: int
    batch: int
    first: float = 0.0
    """Seconds from the start of the loader to the first batch; 0: not noted."""
    opened: float = 0.0
    """R: until its workers had been started."""
    busy: float = 0.0
    """R: mean seconds of a step in this very loop, from its first kernel to its last."""
    cpu_seconds: float = 0.0
    """Of all processes of the host, during the run."""
    reads: int = 0
    """Requests that the drive served, and their bytes; 0, too: others ran at the same time."""
    read_bytes: int = 0
    metered: Mapping[str, Any] = field(default_factory=dict)
    """M and T: computation and launch time that the Meter has found."""
    meter_au: float = 0.0
    """N: what `dlemu.Meter` says of this very loop."""

    @property
    def whole_au(self) -> float:
        return 100 * self.num_steps * self.c / self.whole

    @property
    def au(self) -> float:
        """By the rule."""
        return 100 * (self.num_steps - 1) * self.c / self.seconds


HEADER = [
    *("GPU", "job", "loop", "rate / demand", "steps", "R, whole AU %", "E, whole AU %"),
    *("E - R, points", "R, rule's AU %", "E - R by the rule", "other arms - R"),
    *("launch / c", "step in the loop / alone", "repeats"),
]


_SHORTER = 0.7
"""A run of fewer than this share of a cell's most steps is left out: its start weighs more."""


def tables(runs: Sequence[Run]) -> str:
    """Return the table of all cells: means, and least and greatest difference of a repeat.

    Where a cell was run with epochs of two lengths, the longer ones count.
    """
    most = {cell: max(run.num_steps for run in runs if run.cell == cell) for cell in _cells(runs)}
    runs = [run for run in runs if run.num_steps >= _SHORTER * most[run.cell]]
    rows, met, judged = [], 0, 0
    for cell in _cells(runs):
        arms = {
            arm: {run.repeat: run for run in runs if (run.cell, run.arm) == (cell, arm)}
            for arm in ("R", "E", *_OTHERS)
        }
        real, emulated = arms["R"], arms["E"]
        both = sorted(real.keys() & emulated.keys())
        if not both:
            continue
        goal = 1.0 if 0 < cell.rate <= _HELD else 2.0
        of_step = statistics.fmean(
            run.launch / run.c
            for run in runs
            if (run.cell.device, run.cell.net, run.arm) == (cell.device, cell.net, "R")
        )
        if of_step < _LAUNCH_BOUND and goal == 1.0:
            judged += 1
            met += abs(_off(emulated, real, "whole_au")[0]) <= goal
        rows.append(
            [
                *(
                    cell.device.split()[1],
                    cell.net,
                    cell.loop,
                    f"{cell.rate:g}" if cell.rate else "not held",
                ),
                str(next(iter(real.values())).num_steps),
                _mean(real, both, "whole_au"),
                _mean(emulated, both, "whole_au"),
                _judged(emulated, real, "whole_au", goal),
                _mean(real, both, "au"),
                _judged(emulated, real, "au", goal),
                "; ".join(
                    f"{arm} {_judged(arms[arm], real, 'whole_au', goal)}"
                    for arm in _OTHERS
                    if arms[arm].keys() & real.keys()
                ),
                f"{of_step:.2f}",
                f"{statistics.fmean(run.busy / run.c for run in real.values()):.3f}",
                str(len(both)),
            ]
        )
    count = (
        f"{met} of {judged} cells at 0.3 to {_HELD:g} of the demand that are not launch-bound meet "
        "the goal."
    )
    return "\n\n".join([markdown(HEADER, rows), count, *_parts(runs), *_meters(runs)])


def _cells(runs: Sequence[Run]) -> list[Cell]:
    return sorted({run.cell for run in runs}, key=lambda cell: cell.order)


def _parts(runs: Sequence[Run]) -> list[str]:
    """Return the table of what the arms' first steps consist of, and of their reads."""
    heads = ["GPU", "job", "loop", "rate / demand", "arm", "workers started after ms"]
    heads += ["first batch", "end of the first step", "KB a read", "cores", "runs"]
    rows = []
    for cell in _cells(runs):
        for arm in "REB":
            own = [run for run in runs if (run.cell, run.arm) == (cell, arm) and run.first]
            if not own:
                continue
            firsts = [1e3 * (run.whole - run.seconds) for run in own]
            cores = [run.cpu_seconds / run.wall for run in own]
            reads, read = sum(run.reads for run in own), sum(run.read_bytes for run in own)
            rows.append(
                [
                    *(cell.device.split()[1], cell.net, cell.loop),
                    *(f"{cell.rate:g}" if cell.rate else "not held", arm),
                    f"{1e3 * statistics.fmean(run.opened for run in own):.0f}"
                    if arm in "RB"
                    else "",
                    f"{1e3 * statistics.fmean(run.first for run in own):.0f}",
                    f"{statistics.fmean(firsts):.0f}",
                    f"{read / reads / 1e3:.0f}" if reads else "",
                    " … ".join(f"{each:.1f}" for each in sorted({min(cores), max(cores)}))
                    if arm in "RB" and reads
                    else "",
                    str(len(own)),
                ]
            )
    return [markdown(heads, rows)] if rows else []


def _meters(runs: Sequence[Run]) -> list[str]:
    """Return the table of `dlemu.Meter` beside R's own clock, if it was in a loop."""
    rows = []
    for cell in _cells([run for run in runs if run.arm == "N"]):
        found = [run for run in runs if (run.cell, run.arm) == (cell, "N")]
        # The Meter counts a step as long as it took in the loop, not as long as alone.
        own = [run.au * run.busy / run.c for run in found]
        off = [run.meter_au - au for run, au in zip(found, own, strict=True)]
        meter = statistics.fmean(run.meter_au for run in found)
        rows.append(
            [
                *(cell.device.split()[1], cell.net, cell.loop, f"{cell.rate:g}"),
                *(
                    f"{statistics.fmean(own):.1f}",
                    f"{meter:.1f}",
                    f"{min(off):+.2f} … {max(off):+.2f}",
                ),
                f"{statistics.fmean(run.busy / run.c for run in found):.3f}",
            ]
        )
    heads = ["GPU", "job", "loop", "rate / demand", "own clock, AU %", "Meter, AU %", "off"]
    return [markdown([*heads, "step in the loop / alone"], rows)] if rows else []


def _off(runs: Mapping[int, Run], real: Mapping[int, Run], name: str) -> tuple[float, float, float]:
    """Return mean, least and greatest difference from R of the same repeat."""
    off = [
        getattr(run, name) - getattr(real[repeat], name)
        for repeat, run in runs.items()
        if repeat in real
    ]
    return statistics.fmean(off), min(off), max(off)


def _judged(runs: Mapping[int, Run], real: Mapping[int, Run], name: str, goal: float) -> str:
    """Return the difference and its range, bold if it misses."""
    mean, least, most = _off(runs, real, name)
    told = f"{mean:+.2f}" if abs(mean) <= goal else f"**{mean:+.2f}**"
    return told if len(runs) < 2 else f"{told} ({least:+.2f} … {most:+.2f})"


def _mean(runs: Mapping[int, Run], repeats: Sequence[int], name: str) -> str:
    return f"{statistics.fmean(getattr(runs[repeat], name) for repeat in repeats):.1f}"


def draw(runs: Sequence[Run], path: Path) -> None:
    """Draw real against emulated AU, a mark for each pair of runs, with the line of identity."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.2, 6))
    axes.plot([0, 105], [0, 105], color="0.6", linewidth=1, label="the same AU")
    real = {(r.cell, r.repeat): r for r in runs if r.arm == "R"}
    colours = dict(zip(dict.fromkeys(run.cell.net for run in runs), cycle(_COLOURS)))
    for net, colour in colours.items():
        pairs = [
            (real[run.cell, run.repeat].whole_au, run.whole_au)
            for run in runs
            if (run.arm, run.cell.net) == ("E", net) and (run.cell, run.repeat) in real
        ]
        x, y = zip(*pairs, strict=True)
        axes.scatter(x, y, s=24, color=colour, alpha=0.6, label=net)
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


def step_times(paths: Sequence[str]) -> str:
    """Return the table of what `dlemu steptime` stored, a line for each batch size."""
    header = ["network", "precision", "batch", "mean ms", "median", "p05", "p95", "samples/s"]
    rows = []
    for stored in map(_stored, paths):
        for each in stored["batches"]:
            times = ("mean", "median", "p05", "p95")
            rows.append(
                [
                    *(_network(stored), _how(stored)),
                    str(each["batch"]),
                    *(f"{1e3 * each[f'{name}_seconds']:.4g}" for name in times),
                    f"{each['batch'] / each['mean_seconds']:,.4g}",
                    f"{1e3 * each['launch_seconds']:.3g}" + _BOUND * each["launch_bound"],
                    f"{each['gpu']['sm_mhz']['median']}" if each["gpu"] else "-",
                ]
            )
    return markdown([*header, "launch, ms", "SM MHz"], rows)


def nearest(paths: Sequence[str]) -> str:
    """Return measured steps beside the published one of their batch size, the nearest first."""
    found = []
    for stored in map(_stored, paths):
        row = load_workload(stored["workload"], {})
        published = row.train.computation_time.mean
        found += [
            (row.name, abs(math.log(each["mean_seconds"] / published)), published, each, stored)
            for each in stored["batches"]
            if each["batch"] == row.reader.batch_size
        ]
    rows = [
        [
            *(name, str(each["batch"]), f"{1e3 * published:.4g}", _how(stored)),
            f"{1e3 * each['mean_seconds']:.4g}" + _BOUND * each["launch_bound"],
            f"{each['mean_seconds'] / published:.2f}",
        ]
        for name, _, published, each, stored in sorted(found, key=lambda one: one[:2])
    ]
    heads = ["row", "batch", "published ms", "setting", "measured ms", "measured / published"]
    return markdown(heads, rows)


def _stored(path: str) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(Path(path).read_text())
    return stored


def _network(stored: Mapping[str, Any]) -> str:
    return str(stored["workload"]).partition("_")[0]


def _how(stored: Mapping[str, Any]) -> str:
    environment, function = stored["environment"], stored["model"].partition(":")[2]
    if function:
        return f"{function.replace('_', ', ')}, contiguous"
    words = [environment["dtype"].partition(" by ")[0], environment["layout"]]
    words += ["CUDA graph"] * (environment.get("graph") == "true")
    return ", ".join([*words, *["compiled"] * (environment["compile"] == "true")])


_BOUND = ", launch-bound"
