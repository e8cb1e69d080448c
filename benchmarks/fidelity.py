"""Is the emulated AU that of a real job? python -m benchmarks.fidelity FOLDER [key=value …]

    nets=unet3d,resnet50,cosmoflow loaders=pytorch,threads rates=0.3,0.6,0.9,1.2,2 arms=R,E,G
    repeats=3 longer=1 limit_s=100000 json=fidelity.json
    python -m benchmarks.fidelity table JSON... [plot=FILE.png]     the table of stored runs, a plot

Arms, one after the other in each cell, from the same files in the same order by the same loader:

R   the real network trains on the GPU: batches in pinned memory, copied on a stream of their own,
    the host at most one step ahead.
E   dlemu sleeps: `train.loop=pipelined`, with mean and stdev of the step that R's network has just
    shown with its data on the GPU. G: the same with `train.compute=gpu`, in the first repeat only.
B   on request: E, but with mean and stdev of R's steps in the loop, as `Meter.workload_yaml` gives.

An epoch has `longer` times so many steps.

As root, a cgroup holds reads to `rates` times the demand (batch bytes / c). Elsewhere the drive's
own rate is measured, and each rate gets files of another size.

AU = (n - 1) c / (T - T1) for all arms. T1 and T are the ends of the first and the last step: of R
by CUDA events, of E, G and B by the host's clock. Neither Meter nor the replay's records take part.
On a host without a GPU, small inputs are trained on the CPU, to try the program.
"""

import contextlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import dlemu
from benchmarks.machine import describe_machine, markdown
from dlemu.clock import WallClock
from dlemu.datagen.survey import find_dataset
from dlemu.dataset.plan import make_plan
from dlemu.gpu.compute import gpu_compute
from dlemu.loaders import open_loader
from dlemu.run.replay import draw_computation_times, new_steps, replay_epoch
from dlemu.units import ceil_div
from tests.lab.cgroups import throttled_reads

WARM_UP = 15
ALONE_SECONDS = 0.6
"""Steps that time a network alone last this long."""
GOALS = {0.3: 1.0, 0.6: 1.0, 0.9: 1.0, 1.2: 2.0, 2.0: 3.0}
"""Points of AU by which E may differ from R, by rate / demand."""


@dataclass(frozen=True)
class Net:
    """A network, its batch, and the files that it reads."""

    name: str
    batch: int
    steps: int
    sample_bytes: int
    samples_per_file: int = 1
    side: int | None = None

    @property
    def workload(self) -> str:
        return f"{self.name}_h100"


ON_GPU = [
    # Volumes of 146.6 MB would ask for more than the drive gives; the crop that is trained on is
    # the benchmark's.
    Net("unet3d", 2, 25, 20_000_000),
    Net("resnet50", 200, 32, 114_660, 1251),
    Net("cosmoflow", 1, 200, 2_828_486),
]
ON_CPU = [
    Net("unet3d", 1, 6, 2_000_000, side=64),
    Net("resnet50", 4, 8, 114_660, 16, side=32),
    Net("cosmoflow", 1, 8, 2_828_486, side=32),
]


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

    @property
    def au(self) -> float:
        return 100 * (self.num_steps - 1) * self.c / self.seconds

    @property
    def rate(self) -> float:
        """Samples per second."""
        return (self.num_steps - 1) * self.batch / self.seconds


class Real:
    """One network on the device."""

    def __init__(self, net: Net) -> None:
        import torch

        from dlemu.steptime.networks import Training, network

        self.torch, self.net = torch, net
        self.cuda = torch.cuda.is_available()
        self.device = "cuda" if self.cuda else "cpu"
        layout = "contiguous" if net.name == "unet3d" else "channels_last"  # the faster ones
        self.training = Training(network(net.name, net.side), self.device, layout=layout)
        self.target = self.training.net.target(net.batch, self.device)
        self.alone = self.training.data(net.batch)
        for _ in range(WARM_UP if self.cuda else 1):
            self.step(self.alone)
        self.time_alone()

    def step(self, data: Any) -> None:
        self.training.step(data, self.target)

    def mark(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        cuda: Any = self.torch.cuda
        event = cuda.Event(enable_timing=True, blocking=True)
        event.record()
        return event

    def between(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end) / 1000 if self.cuda else end - begin)

    def finish(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize()

    def time_alone(self) -> tuple[float, float]:
        """Return mean and stdev of a step's seconds, at most one step queued ahead."""
        begin, marks = time.perf_counter(), [self.mark()]
        while len(marks) < 4 or time.perf_counter() - begin < ALONE_SECONDS:
            self.step(self.alone)
            marks.append(self.mark())
            if self.cuda and len(marks) > 2:
                marks[-2].synchronize()
        self.finish()
        # The first step waits for its launch; in a loop, the launch is hidden.
        times = [self.between(a, b) for a, b in itertools.pairwise(marks[1:])]
        return statistics.fmean(times), statistics.stdev(times)

    def train(self, batches: Iterator[Any]) -> dict[str, Any]:
        """Train on an epoch; return T - T1, the number of steps, and a step's seconds in it."""
        loop = self._pipelined if self.cuda else self._synchronous
        begins, ends = loop(batches)
        self.finish()
        spans = [self.between(a, b) for a, b in zip(begins[1:], ends[1:], strict=True)]
        return {
            "seconds": self.between(ends[0], ends[-1]),
            "num_steps": len(ends),
            "busy": statistics.fmean(spans),
            "busy_stdev": statistics.stdev(spans),
        }

    def _pipelined(self, batches: Iterator[Any]) -> tuple[list[Any], list[Any]]:
        torch = self.torch
        copies, compute = torch.cuda.Stream(), torch.cuda.current_stream()
        data: list[Any] = [None, None]
        begins: list[Any] = []
        ends: list[Any] = []
        for number, batch in enumerate(batches):
            slot, rows = number % 2, torch.from_numpy(batch.data)
            if data[slot] is None:
                data[slot] = torch.empty(rows.shape, dtype=torch.uint8, device="cuda")
            with torch.cuda.stream(copies):  # step number - 2, which used this slot, has ended
                data[slot].copy_(rows, non_blocking=True)
                copied = torch.cuda.Event()
                copied.record()
            compute.wait_event(copied)
            begins.append(self.mark())
            self.step(data[slot])
            ends.append(self.mark())
            if number:
                ends[-2].synchronize()  # the step before has ended: the next batch is asked for
        return begins, ends

    def _synchronous(self, batches: Iterator[Any]) -> tuple[list[Any], list[Any]]:
        begins, ends = [], []
        for batch in batches:
            begins.append(self.mark())
            self.step(self.torch.from_numpy(batch.data))
            ends.append(self.mark())
        return begins, ends


def workload_of(net: Net, folder: Path, loader: str, sample_bytes: int) -> dlemu.Workload:
    files = ceil_div(net.steps * net.batch, net.samples_per_file)
    keys = {
        "dataset.data_folder": str(folder / f"{net.name}.{sample_bytes}"),
        "dataset.num_files_train": files,
        "dataset.num_samples_per_file": net.samples_per_file,
        "dataset.record_length_bytes": sample_bytes,
        "dataset.record_length_bytes_stdev": 0,
        "reader.data_loader": loader,
        "reader.batch_size": net.batch,
        "reader.read_threads": 4,
        "reader.odirect": True,
        "reader.hand_over": "batch",
        "train.epochs": 1,
        "train.total_training_steps": net.steps,
    }
    return dlemu.load_workload(net.workload, keys)


def run_real(real: Real, workload: dlemu.Workload, c: tuple[float, float]) -> dict[str, Any]:
    with dlemu.make_loader(workload, pin=real.cuda) as loader:
        return {"c": c[0], "stdev": c[1], **real.train(iter(loader))}


def run_emulated(
    real: Real, workload: dlemu.Workload, slept: tuple[float, float], *, on_gpu: bool = False
) -> dict[str, Any]:
    job = workload.with_keys(
        {
            "train.computation_time": {"mean": slept[0], "stdev": slept[1], "type": "normal"},
            # The loop on the CPU computes on the thread that asks: that is the rule's loop.
            "train.loop": "pipelined" if real.cuda else "rule",
        }
    )
    dataset = find_dataset(job, dlemu.Alone())
    clock = WallClock.calibrate()
    wait_until = gpu_compute([0], clock) if on_gpu else clock.sleep_until
    ends = []

    def compute(deadline: float) -> None:
        wait_until(deadline)
        ends.append(time.perf_counter())

    plan = make_plan(job, dataset.layout, num_accelerators=1, epoch=0)
    times = draw_computation_times(
        job.train.computation_time,
        num_steps=plan.num_steps,
        accelerators=range(1),
        epoch=0,
        seed=job.train.seed,
    )
    with closing(open_loader(dataset, accelerators=range(1), keep=1)) as loader:
        replay_epoch(
            loader.epoch(0, plan),
            new_steps(0, times),
            barrier=lambda: None,
            clock=clock,
            compute=compute,
        )
    return {"seconds": ends[-1] - ends[0], "num_steps": len(ends)}


@dataclass(frozen=True)
class Storage:
    """How reads are held to a rate: by a cgroup, or by files that the drive's own rate fits."""

    folder: Path
    by_cgroup: bool

    @contextlib.contextmanager
    def held(self, workload: dlemu.Workload, bytes_per_second: float) -> Iterator[None]:
        if not self.by_cgroup:
            yield
            return
        with throttled_reads(workload.data_folder, int(bytes_per_second)) as group:
            group.enter()
            yield

    def workload(self, net: Net, loader: str, rate: float, c: float) -> dlemu.Workload:
        """Return the workload of a cell, its files written."""
        size = net.sample_bytes
        if not self.by_cgroup:
            size = max(4096, int(self._own_rate(net, loader) * c / (rate * net.batch)))
        workload = workload_of(net, self.folder, loader, size)
        dlemu.generate(workload, world=dlemu.Alone())
        return workload

    def _own_rate(self, net: Net, loader: str) -> float:
        workload = workload_of(net, self.folder, loader, net.sample_bytes)
        dlemu.generate(workload, world=dlemu.Alone())
        with dlemu.make_loader(workload) as batches:
            begin = time.perf_counter()
            read = sum(batch.num_bytes for batch in batches)
            return read / (time.perf_counter() - begin)


def can_throttle(folder: Path) -> bool:
    try:
        with throttled_reads(folder, 10**9):
            return True
    except pytest.skip.Exception as reason:
        print(f"no cgroup holds the reads ({reason}): files of the drive's own rate instead")
        return False


def measure(
    storage: Storage, reals: Mapping[str, Real], cell: Cell, arms: Sequence[str], repeat: int
) -> list[Run]:
    """Run the arms of a cell, one after the other."""
    real = reals[cell.net]
    net = real.net
    c = real.time_alone()
    workload = storage.workload(net, cell.loader, cell.rate, c[0])
    demand = net.batch * workload.dataset.mean_bytes / c[0]
    runs: list[Run] = []
    for arm in arms:
        with storage.held(workload, cell.rate * demand):
            if arm == "R":
                found = run_real(real, workload, c)
            elif arm == "B":
                slept = next((run.busy, run.busy_stdev) for run in runs if run.arm == "R")
                found = run_emulated(real, workload, slept)
            else:
                found = run_emulated(real, workload, c, on_gpu=arm == "G")
        known = {"c": c[0], "stdev": c[1], "batch": net.batch}
        runs.append(Run(cell=cell, arm=arm, repeat=repeat, **{**known, **found}))
    return runs


HEADER = [
    *("network", "loader", "rate / demand", "R, samples/s", "E, samples/s", "R, AU %", "E, AU %"),
    *("E - R, points", "goal", "G - R", "B - R", "step in the loop / alone", "runs of R and E"),
]


def table(runs: Sequence[Run]) -> str:
    """Return the table of all cells: means, and least and greatest difference of a repeat."""
    rows = []
    for cell in dict.fromkeys(run.cell for run in runs):
        arms = {
            arm: {run.repeat: run for run in runs if (run.cell, run.arm) == (cell, arm)}
            for arm in "REGB"
        }
        both = sorted(arms["R"].keys() & arms["E"].keys())
        if not both:
            continue
        off = [arms["E"][each].au - arms["R"][each].au for each in both]
        goal = GOALS.get(cell.rate, 3.0)
        mean = statistics.fmean(off)
        rows.append(
            [
                *(cell.net, cell.loader, f"{cell.rate:g}"),
                *(f"{_mean(arms[arm], both, 'rate'):,.4g}" for arm in "RE"),
                *(f"{_mean(arms[arm], both, 'au'):.1f}" for arm in "RE"),
                f"{mean:+.2f} ({min(off):+.2f} … {max(off):+.2f})",
                f"{goal:g}, " + ("met" if abs(mean) <= goal else "**missed**"),
                *(_difference(arms[arm], arms["R"]) for arm in "GB"),
                f"{statistics.fmean(r.busy / r.c for r in arms['R'].values()):.3f}",
                str(len(both)),
            ]
        )
    return markdown(HEADER, rows)


def _difference(runs: Mapping[int, Run], real: Mapping[int, Run]) -> str:
    """Return the mean difference from R of the same repeat."""
    off = [run.au - real[repeat].au for repeat, run in runs.items() if repeat in real]
    return f"{statistics.fmean(off):+.2f}" if off else "-"


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
    for net, colour in zip(ON_GPU, ("tab:blue", "tab:orange", "tab:green"), strict=True):
        for loader, shape in (("pytorch", "o"), ("threads", "^")):
            pairs = [
                (real[run.cell, run.repeat].au, run.au)
                for run in runs
                if run.arm == "E"
                and (run.cell.net, run.cell.loader) == (net.name, loader)
                and (run.cell, run.repeat) in real
            ]
            if pairs:
                x, y = zip(*pairs, strict=True)
                axes.scatter(x, y, s=28, marker=shape, color=colour, alpha=0.6, linewidth=0)
                axes.scatter([], [], marker=shape, color=colour, label=f"{net.name}, {loader}")
    axes.set(xlim=(0, 105), ylim=(0, 105), aspect="equal")
    axes.set_xlabel("AU of the real job, %")
    axes.set_ylabel("AU of the emulation, %")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", frameon=False)
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


def main(words: list[str]) -> None:
    keys = {
        "nets": "unet3d,resnet50,cosmoflow",
        "loaders": "pytorch,threads",
        "rates": "0.3,0.6,0.9,1.2,2",
        "arms": "R,E,G",
        "repeats": "3",
        "longer": "1",
        "limit_s": "100000",
        "json": "fidelity.json",
        "plot": "",
    }
    keys |= dict(word.split("=", 1) for word in words if "=" in word)
    places = [word for word in words if "=" not in word]
    if places[0] == "table":
        runs = load(places[1:])
        if keys["plot"]:
            draw(runs, Path(keys["plot"]))
        print(table(runs))
        return
    experiment(Path(places[0]), keys)


def experiment(folder: Path, keys: Mapping[str, str]) -> None:
    """Run all cells, a repeat of all before the next, until the time is over."""
    import torch

    begin = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    cuda = torch.cuda.is_available()
    machine = f"{describe_machine()}; torch {torch.__version__}, "
    machine += torch.cuda.get_device_name() if cuda else "no GPU: trained on the CPU"
    nets = [
        replace(net, steps=int(keys["longer"]) * net.steps)
        for net in (ON_GPU if cuda else ON_CPU)
        if net.name in keys["nets"].split(",")
    ]
    storage = Storage(folder, can_throttle(folder))
    print(machine, flush=True)
    reals = {net.name: Real(net) for net in nets}
    runs: list[Run] = []
    for repeat in range(int(keys["repeats"])):
        arms = [arm for arm in keys["arms"].split(",") if arm != "G" or (cuda and not repeat)]
        for net in nets:
            for loader in keys["loaders"].split(","):
                for rate in map(float, keys["rates"].split(",")):
                    if time.perf_counter() - begin > float(keys["limit_s"]):
                        break
                    cell = Cell(net=net.name, loader=loader, rate=rate)
                    found = measure(storage, reals, cell, arms, repeat)
                    runs += found
                    told = ", ".join(f"{run.arm} {run.au:.2f}" for run in found)
                    print(
                        f"{time.perf_counter() - begin:.0f} s: {net.name}, {loader}, {rate:g}: "
                        f"{told}; c {1e3 * found[0].c:.2f} ms (stdev {1e3 * found[0].stdev:.2f}), "
                        f"in the loop {1e3 * found[0].busy:.2f} ms",
                        flush=True,
                    )
                    stored = {"machine": machine, "held": storage.by_cgroup}
                    stored["runs"] = [asdict(run) for run in runs]
                    Path(keys["json"]).write_text(json.dumps(stored))
    print(f"\n{table(runs)}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(sys.argv[1:])
