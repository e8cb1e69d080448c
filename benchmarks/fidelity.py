"""Is the emulated AU that of a real job? python -m benchmarks.fidelity FOLDER [key=value …]

    cells=NET/RATE/LOOP/ARM+ARM,…  repeats=3 limit_s=100000 json=fidelity.json
    python -m benchmarks.fidelity table JSON... [plot=FILE.png]     the table of stored runs, a plot
    python -m benchmarks.fidelity steps JSON...         the table of what `dlemu steptime` stored
    python -m benchmarks.fidelity nearest JSON...       the same beside the published step
    python -m benchmarks.fidelity decoding              resnet50_jpeg12 simulated

Nets: unet3d (npz files of 16 MB), resnet50 (npy), resnet50_jpeg4, _jpeg8 and _jpeg12 (so many
workers decode JPEG files), cosmoflow (hdf5) and cosmoflow_graph (its step as one CUDA graph). LOOP:
pipelined, or rule. The arms of a cell:

R   the real job (`fidelity_real`): np.load, h5py or PIL in a plain Dataset, a DataLoader, the
    network on the GPU. pipelined: pinned memory, copies on a stream of their own, at most one step
    ahead. rule: it copies, computes, waits for the step's end, and asks for the next batch.
E   dlemu replays the loop with its pytorch loader, in a process of its own: `computation_time` with
    mean and stdev of the step that R's network has shown just before with its data on the GPU,
    `launch_time` as long as the host took to queue one, and `preprocess_time` as `dlemu steptime`
    finds it for what R's Dataset does with a file's bytes.
M   E with the computation and launch time that `dlemu.Meter` has found in R's loop, in a run whose
    reads were not held.
B   R whose Dataset reads a file by one call, before PIL or h5py takes it apart.
N   R inside `dlemu.Meter`, whose AU is stored beside that of R's own clock.

As root, a cgroup holds reads to RATE times the demand (bytes of a batch / c); 0: they are not held.
Each run's files are not in memory. The arms take turns, in every second repeat in the opposite
order. Of unet3d, which asks for little of the drive, R and E run at the same time, each from files
of its own and held by a cgroup of its own.

Whole AU = n c / (time from the start of the loader to the end of the last of n steps). The rule's
AU = (n - 1) c / (T - T1), from the end of the first step. Both arms use the same c: of R by CUDA
events, of the others by the host's clock. Epochs have 10 times the batches that are in flight, and
those that storage holds back last 14 s (ResNet-50's without decoding 30 s, CosmoFlow's 4 and 10).
On a host without a GPU, small inputs are trained on the CPU, to try the program.
"""

import contextlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import yaml

import dlemu
from benchmarks.fidelity_real import FILES, Net, Real, plain_loader, write_pictures
from benchmarks.fidelity_simulated import simulated_decoding
from benchmarks.fidelity_table import Cell, Run, draw, load, nearest, step_times, tables
from benchmarks.harness import Asked, describe_machine
from dlemu.clock import WallClock, after_launch
from dlemu.datagen.survey import find_dataset
from dlemu.dataset.plan import make_plan
from dlemu.loaders import open_loader
from dlemu.run.replay import draw_computation_times, new_steps, replay_epoch
from dlemu.tools.steptime.steps import time_preprocessing
from tests.lab.cgroups import throttled_reads

_DECODE_SECONDS = 2.0
_NUM_ALONE = 6
_METERED_STEPS = 2400
_LOAD_SECONDS = 0.5
"""How long the workers' work on a sample is timed: that of decoding, and other work."""
_REAL = "RBN"
"""Arms with a real job."""
_KEYS = ("cells", "repeats", "limit_s", "json", "plot")


@cache
def trained(name: str, batch: int, graph: bool) -> Real:
    """Return a network on the device; jobs that differ in their files share it."""
    found = [net for net in Net.all() if (net.name, net.batch, net.graph) == (name, batch, graph)]
    return Real(found[0])


@dataclass(frozen=True)
class Job:
    """A network on the device, and its files."""

    net: Net
    folder: Path
    cells: Sequence[Cell]

    @property
    def at_once(self) -> bool:
        """Whether R and E run at the same time: neither takes many cores or much of the drive."""
        return self.net.name == "unet3d"

    @property
    def real(self) -> Real:
        return trained(self.net.name, self.net.batch, self.net.graph)

    @cached_property
    def num_files(self) -> int:
        if self.net.decodes:  # these jobs share their files
            return max(each.batch * each.num_steps(0, 1) for each in Net.all() if each.decodes)
        c = self.real.time_alone()[0]
        # c varies: a tenth more than now is needed.
        return int(1.1 * self.net.batch * max(self.net.num_steps(e.rate, c) for e in self.cells))

    def keys(self, arm: str) -> dict[str, object]:
        """Return how dlemu reads the arm's files."""
        net = self.net
        label = "pictures" if net.decodes else net.label
        place = f"{label}.{'R' if arm in _REAL or not self.at_once else 'E'}"
        return {
            "dataset.data_folder": str(self.folder / place),
            "dataset.format": net.form,
            "dataset.num_files_train": self.num_files,
            "dataset.num_samples_per_file": 1,
            "dataset.record_length_bytes": net.sample_bytes,
            "dataset.record_length_bytes_stdev": 0,
            "dataset.record_length_bytes_resize": net.pixels,
            "reader.batch_size": net.batch,
            "reader.read_threads": net.workers,
            "reader.prefetch_size": net.workers * net.prefetch,
            "reader.file_shuffle": "seed",
            "reader.hand_over": "batch",
            "train.epochs": 1,
        }

    def workload(self, arm: str) -> dlemu.Workload:
        return dlemu.load_workload(self.net.workload, self.keys(arm))

    def files(self) -> list[tuple[str, dict[str, object]]]:
        """Return the workloads whose files are to be written, by name and keys."""
        return [(self.net.workload, self.keys(arm)) for arm in ("RE" if self.at_once else "R")]

    @cached_property
    def file_bytes(self) -> float:
        """Mean bytes of a file."""
        return fmean(path.stat().st_size for path in files_of(self.workload("R")))

    @cached_property
    def loading(self) -> Mapping[str, object]:
        """`reader.preprocess_time` as `dlemu steptime` writes it."""
        net = self.net
        os.environ[FILES] = f"{net.form}:{net.pixels}:{self.workload('R').data_folder}"
        function = "benchmarks.fidelity_real:decoding"
        seconds = _DECODE_SECONDS if net.decodes else _LOAD_SECONDS
        found = time_preprocessing(function, net.workers, seconds)
        print(f"{net.label}, loading a sample: {found.key()}", flush=True)
        return {"reader.preprocess_time": found.key()}

    def train(self, arm: str, loop: str, steps: int, repeat: int) -> dict[str, Any]:
        """Run R, B or N; return its times, and what `Meter` says."""
        real, workload = self.real, self.workload("R")
        loader = plain_loader(
            self.net,
            workload.data_folder,
            steps,
            seed=repeat,
            pin=real.cuda,
            in_one_read=arm == "B",
        )
        synchronous = loop == "rule"
        if arm != "N":
            return real.train(loader, synchronous=synchronous)
        sample_bytes = self.file_bytes
        meter = dlemu.Meter(workload, batch_size=self.net.batch, sample_bytes=sample_bytes)
        found = real.train(loader, synchronous=synchronous, meter=meter)
        metrics = meter.metrics()
        assert metrics is not None
        train = yaml.safe_load(meter.workload_yaml())["train"]
        names = ("computation_time", "launch_time")
        keys = {f"train.{name}": train[name] for name in names if name in train}
        return {**found, "meter_au": metrics.epochs[0].au_percentage, "keys": keys}

    @cached_property
    def alone(self) -> tuple[float, float, float]:
        """Mean and stdev of a launch-bound step alone, and its launch: the same in all runs."""
        times = [(*self.real.time_alone(), self.real.launch_seconds()) for _ in range(_NUM_ALONE)]
        c, stdev, launch = map(fmean, zip(*times, strict=True))
        return c, stdev, launch

    @cached_property
    def metered(self) -> Mapping[str, object]:
        """Computation and launch time of R's pipelined loop, by `dlemu.Meter`."""
        forget(self.workload("R"))
        steps = min(_METERED_STEPS, self.num_files // self.net.batch)
        keys: dict[str, object] = self.train("N", "pipelined", steps, 0)["keys"]
        print(f"{self.net.label}, in the loop: {keys}", flush=True)
        return keys


def write(name: str, keys: Mapping[str, object]) -> None:
    """Write the files of a workload."""
    workload = dlemu.load_workload(name, keys)
    dataset, folder = workload.dataset, workload.data_folder / "train"
    if dataset.format != "jpeg":
        dlemu.generate(workload, world=dlemu.Alone())
    else:
        write_pictures(folder, int(dataset.num_files_train), int(dataset.record_length_bytes))


def files_of(workload: dlemu.Workload) -> list[Path]:
    return [path for path in workload.data_folder.glob("train/**/*") if path.is_file()]


def forget(workload: dlemu.Workload) -> None:
    """Take the files out of the page cache."""
    for path in files_of(workload):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def run_emulated(job: dlemu.Workload, bytes_per_second: float, line: Any) -> dict[str, Any]:
    """Replay an epoch, as `dlemu run` does, once the other side of the line says so."""
    dataset = find_dataset(job, dlemu.Alone())
    clock = WallClock.calibrate()
    launch = after_launch(job.train.launch_time, clock.sleep_until, clock.now)
    begins: list[float] = []
    ends: list[float] = []

    def compute(deadline: float) -> None:
        begins.append(time.perf_counter())
        launch(deadline)
        ends.append(time.perf_counter())

    plan = make_plan(job, dataset.layout, num_accelerators=1, epoch=0)
    times = draw_computation_times(
        job.train.computation_time,
        num_steps=plan.num_steps,
        accelerators=range(1),
        epoch=0,
        seed=job.train.seed,
    )
    keep = int(job.reader.hands_over)
    with (
        held(job, bytes_per_second),
        closing(open_loader(dataset, accelerators=range(1), keep=keep)) as loader,
    ):
        line.send("ready")
        line.recv()
        begin = time.perf_counter()
        replay_epoch(
            loader.epoch(0, plan),
            new_steps(0, times),
            barrier=lambda: None,
            clock=clock,
            compute=compute,
        )
        wall = time.perf_counter() - begin
    return {
        "whole": ends[-1] - begin,
        "seconds": ends[-1] - ends[0],
        "wall": wall,
        "num_steps": len(ends),
        "first": begins[0] - begin,
    }


def emulate(line: Any) -> None:
    """Replay what comes through a line; run in a process of its own, which has no GPU."""
    while True:
        name, keys, bytes_per_second = line.recv()
        line.send(run_emulated(dlemu.load_workload(name, keys), bytes_per_second, line))


@contextlib.contextmanager
def held(workload: dlemu.Workload, bytes_per_second: float) -> Iterator[None]:
    if not bytes_per_second:
        yield
        return
    try:
        with throttled_reads(workload.data_folder, int(bytes_per_second)) as group:
            group.enter()
            yield
    except pytest.skip.Exception as reason:
        raise SystemExit(f"no cgroup holds the reads: {reason}") from None


def counted(folder: Path) -> tuple[float, int, int]:
    """Return the host's busy CPU seconds, and its reads from the folder's drive and their bytes."""
    user, nice, system, _, _, *irq = Path("/proc/stat").read_text().split()[1:8]
    ticks = sum(map(int, (user, nice, system, *irq)))
    number = os.stat(folder).st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")
    reads, _, sectors = map(int, device.read_text().split()[:3] if device.exists() else (0, 0, 0))
    return ticks / os.sysconf("SC_CLK_TCK"), reads, 512 * sectors


def measure(job: Job, cell: Cell, arms: Sequence[str], repeat: int, line: Any) -> list[Run]:
    """Run the arms of a cell; `line` leads to `emulate`."""
    real, net = job.real, job.net
    if net.decodes:  # a host's cores change their speed within minutes
        vars(job).pop("loading", None)
        assert job.loading
    if net.launch_bound:
        c, stdev, launch = job.alone
    else:
        c, stdev = real.time_alone(synchronous=cell.loop == "rule")
        launch = real.launch_seconds()
    rate = cell.rate * net.batch * job.file_bytes / c
    steps = min(net.num_steps(cell.rate, c), job.num_files // net.batch)
    known: dict[str, Any] = {"c": c, "stdev": stdev, "launch": launch, "batch": net.batch}
    runs: list[Run] = []
    if set("MT") & set(arms):
        assert job.metered  # before any arm: it reads the files

    def ask(arm: str) -> None:
        found = {
            **job.keys(arm),
            "train.total_training_steps": steps,
            "train.computation_time": {"mean": c, "stdev": stdev, "type": "normal"},
            "train.loop": cell.loop,
            "train.launch_time": min(launch, c),
            "train.seed": 123 + repeat,
            "reader.data_loader": "threads" if arm == "T" else "pytorch",
            "reader.preprocess": "cpu",
            **job.loading,
            **(job.metered if arm in "MT" else {}),
        }
        line.send((net.workload, found, rate))
        line.recv()

    def done(arm: str, found: dict[str, Any]) -> None:
        found.pop("keys", None)
        own = {"metered": job.metered} if arm in "MT" else {}
        runs.append(Run(cell=cell, arm=arm, repeat=repeat, **known, **own, **found))

    def train(arm: str) -> None:
        with held(job.workload("R"), rate):
            done(arm, job.train(arm, cell.loop, steps, repeat))

    for arm in arms[:: -1 if repeat % 2 else 1]:
        together = job.at_once and {"R", "E"} <= set(arms)
        if together and arm == "E":
            continue
        forget(job.workload(arm))
        if together and arm == "R":
            forget(job.workload("E"))
            ask("E")
            line.send("go")
            train("R")
            done("E", line.recv())
            continue
        before = counted(job.folder)
        if arm in _REAL:
            train(arm)
        else:
            ask(arm)
            line.send("go")
            done(arm, line.recv())
        cpu, reads, num_bytes = np.subtract(counted(job.folder), before).tolist()
        runs[-1] = replace(runs[-1], cpu_seconds=cpu, reads=int(reads), read_bytes=int(num_bytes))
    return runs


def main(words: list[str]) -> None:
    what, rest = words[0], words[1:]
    paths = [word for word in rest if "=" not in word]
    asked = Asked([word for word in rest if "=" in word], *_KEYS)
    match what:
        case "steps":
            print(step_times(paths))
        case "nearest":
            print(nearest(paths))
        case "decoding":
            print(simulated_decoding())
        case "table":
            runs = load(paths)
            if plot := asked.value("plot", ""):
                draw(runs, Path(plot))
            print(tables(runs))
        case folder:
            experiment(Path(folder), asked)


def experiment(folder: Path, asked: Asked) -> None:
    """Run all cells, a repeat of all before the next, until the time is over."""
    import torch

    begin = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    machine = f"{describe_machine()}; torch {torch.__version__}, {device}"
    print(machine, flush=True)
    cells: list[tuple[Cell, list[str]]] = []
    for word in asked.names("cells", []):
        label, rate, loop, given = word.split("/")
        cell = Cell(device=device, net=label, loop=loop, rate=float(rate))
        cells.append((cell, given.split("+")))
    # CUDA does not survive a fork; and the emulation has a process of its own.
    context = multiprocessing.get_context("spawn")
    line, other = context.Pipe()
    process = context.Process(target=emulate, args=(other,))
    process.start()
    try:
        jobs = {
            net: Job(Net.named(net), folder, [cell for cell, _ in cells if cell.net == net])
            for net in dict.fromkeys(cell.net for cell, _ in cells)
        }
        wanted = {
            str(keys["dataset.data_folder"]): (name, keys)
            for job in jobs.values()
            for name, keys in job.files()
        }
        print(f"{time.perf_counter() - begin:.0f} s: the networks are ready", flush=True)
        with ProcessPoolExecutor(len(wanted), mp_context=context) as pool:
            list(pool.map(write, *zip(*wanted.values(), strict=True)))
        os.sync()
        print(f"{time.perf_counter() - begin:.0f} s: the files are ready", flush=True)
        assert all(job.loading for job in jobs.values() if not job.net.decodes)
        runs: list[Run] = []
        for repeat in range(asked.value("repeats", 3)):
            for job in jobs.values():  # what takes the host's cores changes within minutes
                vars(job).pop("metered", None)
            for cell, arms in cells:
                if time.perf_counter() - begin > asked.value("limit_s", 100_000.0):
                    break
                found = measure(jobs[cell.net], cell, arms, repeat, line)
                runs += found
                aus = ", ".join(f"{run.arm} {run.whole_au:.2f} ({run.au:.2f})" for run in found)
                now = time.perf_counter() - begin
                print(
                    f"{now:.0f} s: {cell.net} {cell.rate} {cell.loop}: {aus}; "
                    f"c {1e3 * found[0].c:.2f} ms, launch {1e3 * found[0].launch:.2f} ms, "
                    f"in the loop {1e3 * max(run.busy for run in found):.2f} ms",
                    flush=True,
                )
                stored = {"machine": machine, "runs": [asdict(run) for run in runs]}
                Path(asked.value("json", "fidelity.json")).write_text(json.dumps(stored))
    finally:
        process.kill()
    print(f"\n{tables(runs)}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(sys.argv[1:])
