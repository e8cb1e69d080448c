"""What `fidelity` has measured: runs, stored and read back, as tables and a plot."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, product
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.harness import Lines, lined
from dlemu.config.model import load_workload
from dlemu.host.faults import PAGE_BYTES

_HELD = 0.9
"""Up to this rate / demand E may differ by 1 point of whole AU from R; elsewhere by 2."""
_LAUNCH_BOUND = 0.9
"""Of c: from here on a step is called launch-bound, as `dlemu steptime` does."""
_SHORTER = 0.7
"""A run of fewer than this share of a cell's most steps is left out: its start weighs more."""
_IDLE = 0.02
"""A real job's device that computes for all but this share of the time has no limit, as dlemu's."""
_ALL_LET_THROUGH = 0.97
"""From this share of the rate that its reads are held to on, a real job is limited by the storage:
it has all that is let through."""
_WORKERS = ("loader", "host cpu")
"""dlemu's names for a limit of the workers."""
_OTHERS = ("M", "T", "B", "D", "L")
"""Arms beside R and E."""

_IN_LOOP = "step in the loop / alone"
_ON_GPU = ("G", "W")
"""Arms that compute on the GPU that decodes."""
_FAULTS = "R's faults a batch / its pages"
_COMPUTATION = "train.computation_time"


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

    @property
    def words(self) -> dict[str, str]:
        """Its columns."""
        gpu = "none" if self.device == "no GPU" else self.device.split()[1]
        own = {"GPU": gpu, "job": self.net, "loop": self.loop}
        return {**own, "rate / demand": f"{self.rate:g}" if self.rate else "not held"}


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
    asked: float = 0.0
    """R: until its first worker began with its first sample."""
    made: float = 0.0
    """R: until that worker had collated its first batch."""
    busy: float = 0.0
    """R: mean seconds of a step in this very loop, from its first kernel to its last."""
    first_step: float = 0.0
    """R: of the first, in which CUDA locks memory for batches, and launches wait; 0: not noted."""
    cpu_seconds: float = 0.0
    """Of all processes of the host, during the run."""
    reads: int = 0
    """Requests that the drive served, and their bytes; 0, too: others ran at the same time."""
    read_bytes: int = 0
    metered: Mapping[str, Any] = field(default_factory=dict)
    """M and T: computation and launch time that the Meter has found."""
    workers_cpu: float = 0.0
    """R: CPU seconds of its workers."""
    workers: int = 0
    """R: how many they were."""
    limit: str = ""
    """Of an emulation: the one that it named."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Of an emulation: the limit as its summary has it."""
    held: float = 0.0
    """Bytes per second that its reads were held to; 0: they were not."""
    waited: float = 0.0
    """Seconds that training waited for batches, but for the first."""
    came: Sequence[float] = ()
    """Seconds from the start of the loader until training took each of the first batches."""
    page_lock: float = 0.0
    """D: seconds in which CUDA locks 1 GB, as it was given; 0: none."""
    spent: Mapping[str, float] = field(default_factory=dict)
    """R: what its workers have done (`fidelity_real.SPENT`); an emulation: seconds of its."""
    meter_au: float = 0.0
    """N: what `dlemu.Meter` says of this very loop."""

    @property
    def own_limit(self) -> str:
        """R: its limit, by its own evidence: whether its device waits, and what its reads get."""
        computes = self.busy * (self.num_steps - 1) / self.seconds
        if computes > 1 - _IDLE:
            return "none"
        held = self.cell.rate
        return "storage" if held and self.au >= 100 * _ALL_LET_THROUGH * held else "workers"

    @property
    def whole_au(self) -> float:
        return 100 * self.num_steps * self.c / self.whole

    @property
    def au(self) -> float:
        """By the rule."""
        return 100 * (self.num_steps - 1) * self.c / self.seconds


Arms = Mapping[str, Mapping[int, Run]]
"""The runs of a cell by arm, then by repeat."""


def by_cell(runs: Iterable[Run]) -> Mapping[Cell, Arms]:
    """Return the runs of each cell, without those that are much shorter than its longest."""
    found: dict[Cell, dict[str, dict[int, Run]]] = {}
    for run in sorted(runs, key=lambda run: run.cell.order):
        found.setdefault(run.cell, {}).setdefault(run.arm, {})[run.repeat] = run
    for arms in found.values():
        most = max(run.num_steps for own in arms.values() for run in own.values())
        for arm, own in arms.items():
            arms[arm] = {n: run for n, run in own.items() if run.num_steps >= _SHORTER * most}
    return found


def tables(runs: Sequence[Run]) -> str:
    """Return the table of all cells: means, and least and greatest difference of a repeat.

    Where a cell was run with epochs of two lengths, the longer ones count.
    """
    cells = by_cell(runs)
    rows, judged = [], []
    for cell, arms in cells.items():
        real, emulated = arms.get("R", {}), arms.get("E", {})
        both = sorted(real.keys() & emulated.keys())
        if not both:
            continue
        goal = 1.0 if 0 < cell.rate <= _HELD else 2.0
        of_net = [each for at, each in cells.items() if (at.device, at.net) == cell.order[:2]]
        of_step = fmean(r.launch / r.c for each in of_net for r in each.get("R", {}).values())
        if of_step < _LAUNCH_BOUND and goal == 1.0:
            judged.append(abs(fmean(_off(emulated, real, "whole_au"))) <= goal)
        others = [
            f"{arm} {_judged(arms[arm], real, 'whole_au', goal)}"
            for arm in _OTHERS
            if arms.get(arm, {}).keys() & real.keys()
        ]
        rows.append(
            {
                **cell.words,
                "steps": str(next(iter(real.values())).num_steps),
                "R, whole AU %": f"{fmean(real[n].whole_au for n in both):.1f}",
                "E, whole AU %": f"{fmean(emulated[n].whole_au for n in both):.1f}",
                "E - R, points": _judged(emulated, real, "whole_au", goal),
                "R, rule's AU %": f"{fmean(real[n].au for n in both):.1f}",
                "E - R by the rule": _judged(emulated, real, "au", goal),
                "other arms - R": "; ".join(others),
                "launch / c": f"{of_step:.2f}",
                _IN_LOOP: f"{fmean(run.busy / run.c for run in real.values()):.3f}",
                "repeats": str(len(both)),
            }
        )
    count = (
        f"{sum(judged)} of {len(judged)} cells at 0.3 to {_HELD:g} of the demand that are not "
        "launch-bound meet the goal."
    )
    if not judged:
        count = ""
    parts = [lined(rows), count, lined(_repeats(cells)), lined(_workers(cells)), _kinds(cells)]
    parts += [lined(each(cells)) for each in (_batches_made, _parts, _meters)]
    return "\n\n".join(part for part in parts if part)


def _repeats(cells: Mapping[Cell, Arms]) -> Lines:
    """Yield each repeat of the cells whose step the Meter timed: whole AU, and the steps."""
    for cell, arms in cells.items():
        if not any(run.metered for run in arms.get("M", {}).values()):
            continue

        def each(arm: str, value: Callable[[Run], float], arms: Arms = arms) -> str:
            return ", ".join(f"{value(run):.1f}" for _, run in sorted(arms.get(arm, {}).items()))

        yield {
            **cell.words,
            **{arm: each(arm, lambda run: run.whole_au) for arm in "RMTE"},
            "R's step in the loop, ms": each("R", lambda run: 1e3 * run.busy),
            "the Meter's, ms": each("M", lambda run: 1e3 * run.metered[_COMPUTATION]["mean"]),
        }


def _workers(cells: Mapping[Cell, Arms]) -> Lines:
    """Yield the lines of jobs beside emulations whose workers cost what a DataLoader's cost."""
    computes = [arm for arm in _ON_GPU if any(arms.get(arm) for arms in cells.values())]
    for cell, arms in cells.items():
        real, emulated = arms.get("R", {}), arms.get("D", {})
        lean, counts = arms.get("L", {}), _counting(arms)
        if not real.keys() & counts.keys():
            continue
        busy = fmean(run.workers_cpu / max(1, run.workers) / run.wall for run in real.values())
        yield {
            **cell.words,
            "steps": str(next(iter(real.values())).num_steps),
            "R, whole AU %": f"{fmean(run.whole_au for run in real.values()):.1f}",
            "D - R, points": _judged(emulated, real, "whole_au", 2.0) if emulated else "",
            "D - R by the rule": _judged(emulated, real, "au", 2.0) if emulated else "",
            **{
                f"{arm} - R, whole; by the rule": _both(arms.get(arm, {}), real) for arm in computes
            },
            "lean - R": _judged(lean, real, "whole_au", 2.0) if lean.keys() & real.keys() else "",
            "R's workers busy": "" if "dali" in cell.net else f"{100 * busy:.0f}%",
            "limit of R": ", ".join(dict.fromkeys(run.own_limit for run in real.values())),
            "limit of D": _limits(counts),
            "limit of lean": _limits(lean),
            "repeats": str(len(real.keys() & counts.keys())),
        }


def _counting(arms: Arms) -> Mapping[int, Run]:
    """Return the emulations of a cell that count: D, or of those on the GPU that decodes W or G."""
    return arms.get("D") or arms.get("W") or arms.get("G", {})


def _both(runs: Mapping[int, Run], real: Mapping[int, Run]) -> str:
    """Return the difference of whole AU and that by the rule; "" without runs."""
    if not runs.keys() & real.keys():
        return ""
    return "; ".join(_judged(runs, real, name, 2.0) for name in ("whole_au", "au"))


def _kinds(cells: Mapping[Cell, Arms]) -> str:
    """Return the lines of how many cells of jobs beside such emulations agree, per kind.

    A cell's difference is the median of its repeats, and its limit is R's where that of more than
    half of them is. Where there is no D, W or G counts.
    """
    found: dict[str, list[tuple[float, float, list[bool]]]] = {}
    for cell, arms in cells.items():
        real, emulated = arms.get("R", {}), _counting(arms)
        both = real.keys() & emulated.keys()
        if both and ("dali" in cell.net or all(real[n].spent for n in both)):
            kind = "JPEG" if "jpeg" in cell.net else "npy"
            kind = f"DALI, {kind}" if "dali" in cell.net else kind
            kind = f"two GPUs, {kind}" if "ddp" in cell.net else kind
            off = [median(_off(emulated, real, name)) for name in ("whole_au", "au")]
            same = [_same_limit(real[n].own_limit, emulated[n].limit) for n in both]
            found.setdefault(kind, []).append((off[0], off[1], same))
    words = []
    if len(found) > 1:
        found["all"] = [one for of_kind in found.values() for one in of_kind]
    for kind, of_kind in found.items():
        whole, rule = [one[0] for one in of_kind], [one[1] for one in of_kind]
        right = [sum(one[2]) > len(one[2]) / 2 for one in of_kind]
        pairs = [each for one in of_kind for each in one[2]]
        words.append(
            f"{kind}: of {len(of_kind)} cells {_near(whole, 1)} are within 1 point of whole AU and "
            f"{_near(whole, 2)} within 2 (by the rule {_near(rule, 1)} and {_near(rule, 2)}); "
            f"the limit is R's in {sum(right)}, and in {sum(pairs)} of {len(pairs)} repeats; the "
            f"mean difference is {fmean(whole):+.1f} points ({fmean(rule):+.1f} by the rule)."
        )
    made = [
        _making(arms["D"][n]) / _making(real)
        for arms in cells.values()
        for n, real in arms.get("R", {}).items()
        if real.spent.get("batches") and arms.get("D", {}).get(n)
    ]
    if made:
        words.append(
            f"A batch took D's workers {100 * min(made):.0f} to {100 * max(made):.0f} % of R's "
            f"time, {100 * fmean(made):.0f} % on average."
        )
    return "\n".join([*words, *_spread(cells)])


def _spread(cells: Mapping[Cell, Arms]) -> list[str]:
    """Return the line of how much repeats differ: by so much a cell's difference is chance."""
    ranges, squares = [], []
    for arms in cells.values():
        real, emulated = arms.get("R", {}), _counting(arms)
        off = _off(emulated, real, "whole_au")
        if len(off) < 2:
            continue
        own = [real[number].whole_au for number in real.keys() & emulated.keys()]
        ranges.append(max(own) - min(own))
        squares += [(each - fmean(off)) ** 2 * len(off) / (len(off) - 1) for each in off]
    if not ranges:
        return []
    return [
        f"Between the repeats of a cell R's whole AU differs by {min(ranges):.1f} to "
        f"{max(ranges):.1f} points, {median(ranges):.1f} in the median; a pair's difference from "
        f"the mean of its cell is {math.sqrt(fmean(squares)):.1f} points (root mean square)."
    ]


def _making(run: Run) -> float:
    """Return seconds of a worker for a batch."""
    spent = run.spent
    if "batches" in spent:
        return (spent["load"] + spent["collate"]) / spent["batches"]
    return (spent["read"] + spent["decode"] + spent["hand_over"]) / run.num_steps


def _near(off: Sequence[float], goal: float) -> int:
    return sum(abs(each) <= goal for each in off)


def _same_limit(real: str, emulated: str) -> bool:
    return real == emulated or (real == "workers" and emulated in _WORKERS)


def _batches_made(cells: Mapping[Cell, Arms]) -> Lines:
    """Yield what making a batch took R's workers and D's, in milliseconds: means of all runs."""
    every = (run for arms in cells.values() for run in arms.get("R", {}).values())
    counts = any(run.spent.get("faulted") for run in every)
    for cell, arms in cells.items():
        real = [run for run in arms.get("R", {}).values() if run.spent.get("batches")]
        emulated = [run for run in arms.get("D", {}).values() if run.spent]
        if not real or not emulated or not cell.net.startswith("resnet50") or "dali" in cell.net:
            continue

        def of(runs: Sequence[Run], value: Callable[[Run], float]) -> str:
            return f"{1e3 * fmean(value(run) for run in runs):.0f}"

        yield {
            **cell.words,
            "R waits": of(real, lambda run: (run.spent["load"] - _ran(run)) / run.spent["batches"]),
            "D waits": of(emulated, lambda run: run.spent["read"] / run.num_steps),
            "R computes": of(real, lambda run: _ran(run) / run.spent["batches"]),
            "D computes": of(emulated, lambda run: run.spent["decode"] / run.num_steps),
            "R collates": of(real, lambda run: run.spent["collate"] / run.spent["batches"]),
            "D collates": of(emulated, lambda run: run.spent["hand_over"] / run.num_steps),
            "R's first batch": of(real, lambda run: run.first),
            "made": of(real, lambda run: run.made) if all(run.made for run in real) else "",
            "D's first batch": of(emulated, lambda run: run.first),
            **({_FAULTS: _faults(real)} if counts else {}),
        }


def _faults(runs: Sequence[Run]) -> str:
    """Return the least and the most faults of R's workers for each page of a batch."""
    counted = [run.spent for run in runs if run.spent.get("faulted_bytes")]
    each = sorted(PAGE_BYTES * spent["faults"] / spent["faulted_bytes"] for spent in counted)
    return " … ".join(dict.fromkeys(f"{number:.2f}" for number in (each[:1] + each[-1:])))


def _ran(run: Run) -> float:
    """Return seconds of R's workers in loading but for their waits without lack of a CPU."""
    return run.spent["load_cpu"] + run.spent["queued"]


def _limits(runs: Mapping[int, Run]) -> str:
    return ", ".join(dict.fromkeys(run.limit for _, run in sorted(runs.items())))


def _parts(cells: Mapping[Cell, Arms]) -> Lines:
    """Yield the lines of what the arms' first steps consist of, and of their reads."""
    for (cell, arms), arm in product(cells.items(), "REBD"):
        own = [run for run in arms.get(arm, {}).values() if run.first]
        if not own:
            continue
        real, reads = arm in "RB", sum(run.reads for run in own)
        size = sum(run.read_bytes for run in own) / max(1, reads) / 1e3
        cores = sorted(run.cpu_seconds / run.wall for run in own)
        ends = dict.fromkeys(f"{each:.1f}" for each in (cores[0], cores[-1]))
        opened = f"{1e3 * fmean(run.opened for run in own):.0f}"
        yield {
            **cell.words,
            "arm": arm,
            "workers started after ms": opened if real else "",
            "first batch": f"{1e3 * fmean(run.first for run in own):.0f}",
            "end of the first step": f"{1e3 * fmean(run.whole - run.seconds for run in own):.0f}",
            "KB a read": f"{size:.0f}" if reads else "",
            "cores": " … ".join(ends) if real and reads else "",
            "runs": str(len(own)),
        }


def _meters(cells: Mapping[Cell, Arms]) -> Lines:
    """Yield the lines of `dlemu.Meter` beside R's own clock, where it was in a loop."""
    for cell, arms in cells.items():
        if found := list(arms.get("N", {}).values()):
            # The Meter counts a step as long as it took in the loop, not as long as alone.
            own = [run.au * run.busy / run.c for run in found]
            off = [run.meter_au - au for run, au in zip(found, own, strict=True)]
            yield {
                **cell.words,
                "own clock, AU %": f"{fmean(own):.1f}",
                "Meter, AU %": f"{fmean(run.meter_au for run in found):.1f}",
                "off": f"{min(off):+.2f} … {max(off):+.2f}",
                _IN_LOOP: f"{fmean(run.busy / run.c for run in found):.3f}",
            }


def _off(runs: Mapping[int, Run], real: Mapping[int, Run], name: str) -> list[float]:
    """Return the differences from R of the same repeat."""
    return [getattr(runs[n], name) - getattr(real[n], name) for n in runs.keys() & real.keys()]


def _judged(runs: Mapping[int, Run], real: Mapping[int, Run], name: str, goal: float) -> str:
    """Return the difference and its range, bold if it misses."""
    off = _off(runs, real, name)
    said = f"{fmean(off):+.2f}" if abs(fmean(off)) <= goal else f"**{fmean(off):+.2f}**"
    return said if len(runs) < 2 else f"{said} ({min(off):+.2f} … {max(off):+.2f})"


def draw(runs: Sequence[Run], path: Path) -> None:
    """Draw real against emulated AU, a mark for each pair of runs, with the line of identity."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.2, 6))
    axes.plot([0, 105], [0, 105], color="0.6", linewidth=1, label="the same AU")
    colours = cycle([*(f"C{number}" for number in range(10)), "black"])
    for net in dict.fromkeys(run.cell.net for run in runs):
        real = {(r.cell, r.repeat): r.whole_au for r in runs if (r.arm, r.cell.net) == ("R", net)}
        for by, label in (("E", net), ("M", f"{net}, with the Meter's step")):
            own = [run for run in runs if run.arm == by and (run.cell, run.repeat) in real]
            if own:
                x = [real[run.cell, run.repeat] for run in own]
                y = [run.whole_au for run in own]
                axes.scatter(x, y, s=24, color=next(colours), alpha=0.6, label=label)
    axes.set(xlim=(0, 105), ylim=(0, 105), aspect="equal")
    axes.set(xlabel="AU of the real job, %", ylabel="AU of the emulation, %")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", frameon=False, fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def load(files: Iterable[Sequence[Mapping[str, Any]]]) -> list[Run]:
    """Return the runs of several files; those of the second follow as further repeats."""
    runs: list[Run] = []
    for stored in files:
        first = 1 + max((run.repeat for run in runs), default=-1)
        for fields in stored:
            run = Run(**{**fields, "cell": Cell(**fields["cell"])})
            runs.append(replace(run, repeat=first + run.repeat))
    return runs


def _batches(paths: Iterable[str]) -> Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield what `dlemu steptime` stored, and each of its batch sizes; skip what others stored."""
    for path in paths:
        stored: dict[str, Any] = json.loads(Path(path).read_text())
        yield from ((stored, each) for each in stored.get("batches", ()))


def step_times(paths: Iterable[str]) -> Lines:
    """Yield the lines of what `dlemu steptime` stored, one for each batch size."""
    for stored, each in _batches(paths):
        yield {
            "network": stored["workload"].partition("_")[0],
            "precision": _how(stored),
            "batch": str(each["batch"]),
            "mean ms": f"{1e3 * each['mean_seconds']:.4g}",
            **{key: f"{1e3 * each[f'{key}_seconds']:.4g}" for key in ("median", "p05", "p95")},
            "samples/s": f"{each['batch'] / each['mean_seconds']:,.4g}",
            "launch, ms": f"{1e3 * each['launch_seconds']:.3g}" + _bound(each),
            "SM MHz": f"{each['gpu']['sm_mhz']['median']}" if each["gpu"] else "-",
        }


def nearest(paths: Iterable[str]) -> Lines:
    """Yield measured steps beside the published one of their batch size, the nearest first."""
    found = []
    for stored, each in _batches(paths):
        row = load_workload(stored["workload"], {})
        published = row.train.computation_time.mean
        if each["batch"] == row.reader.batch_size:
            off = abs(math.log(each["mean_seconds"] / published))
            found.append((row.name, off, published, each, _how(stored)))
    for name, _, published, each, how in sorted(found, key=lambda one: one[:2]):
        yield {
            "row": name,
            "batch": str(each["batch"]),
            "published ms": f"{1e3 * published:.4g}",
            "setting": how,
            "measured ms": f"{1e3 * each['mean_seconds']:.4g}" + _bound(each),
            "measured / published": f"{each['mean_seconds'] / published:.2f}",
        }


def _how(stored: Mapping[str, Any]) -> str:
    environment, function = stored["environment"], stored["model"].partition(":")[2]
    if function:
        return f"{function.replace('_', ', ')}, contiguous"
    words = [environment["dtype"].partition(" by ")[0], environment["layout"]]
    words += ["CUDA graph"] * (environment.get("graph") == "true")
    return ", ".join([*words, *["compiled"] * (environment["compile"] == "true")])


def _bound(each: Mapping[str, Any]) -> str:
    return ", launch-bound" if each["launch_bound"] else ""
