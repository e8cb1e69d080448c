"""Is the emulated AU that of a real job? python -m benchmarks.fidelity FOLDER [key=value …]

    nets=unet3d,resnet50,cosmoflow loaders=pytorch,threads rates=0.3,0.6,0.9,1.2,2 arms=R,E,B
    repeats=3 first=0 limit_s=100000 json=fidelity.json
    cells=NET/LOADER/RATE/ARM+ARM[/REPEATS],…   these, instead of all of nets x loaders x rates
    python -m benchmarks.fidelity table JSON... [plot=FILE.png]     the table of stored runs, a plot

Other nets: unet3d_full (whole volumes, batch 7), resnet50_400, resnet50_jpeg (the workers decode a
picture for each sample), resnet50_graph and cosmoflow_graph (the step as one CUDA graph). Loader
dali: into the GPU. Where subfolders of the files are mounts (unet3d_full: train/0 to train/3), each
is held to its share of the rate.
The arms of a cell run one after the other, in every second repeat in the opposite order, from the
same files in the same order by the same loader:

R   the real network trains on the GPU: batches in pinned memory, copied on a stream of their own,
    the host at most one step ahead.
E   dlemu sleeps: `train.loop=pipelined`, with mean and stdev of the step that R's network has just
    shown with its data on the GPU. G: the same with `train.compute=gpu`.
A   E, where pictures are decoded: E's reader.preprocess_time is measured in as many processes at
    once as there are workers (`dlemu.steptime.preprocessing`), A's in one process, and D's in the
    workers of R.
B   E with the computation_time that `dlemu.Meter` has found in R's loop just before, its reads not
    held: what `meter.workload_yaml` writes.

As root, a cgroup holds reads to `rates` times the demand (batch bytes / c); 0: they are not held.
Elsewhere the drive's own rate is measured, and each rate gets files of another size.

AU = (n - 1) c / (T - T1) for all arms. T1 and T are the ends of the first and the last step that
count, a fifth of the epoch after its begin: of R by CUDA events, of the others by the host's clock.
Neither Meter nor the replay's records take part.
On a host without a GPU, small inputs are trained on the CPU, to try the program.
"""

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import dlemu
from benchmarks.fidelity_real import (
    ON_CPU,
    ON_GPU,
    PIXELS,
    Net,
    Pictures,
    Real,
    batches_stay_on_gpu,
    decode_seconds,
    uncounted,
)
from benchmarks.fidelity_table import Cell, Run, draw, load, table
from benchmarks.machine import describe_machine
from benchmarks.preparing import Preparing
from dlemu.clock import WallClock
from dlemu.datagen.survey import find_dataset
from dlemu.dataset.plan import make_plan
from dlemu.gpu.compute import gpu_compute
from dlemu.loaders import open_loader
from dlemu.run.replay import draw_computation_times, new_steps, replay_epoch
from dlemu.units import ceil_div
from tests.lab.cgroups import throttled_reads

Seconds = tuple[float, float]
"""Mean and stdev."""


def workload_of(
    net: Net, folder: Path, loader: str, rate: float, sample_bytes: int
) -> dlemu.Workload:
    """Return the workload of a cell."""
    keys: dict[str, object] = {
        "dataset.data_folder": str(folder / f"{net.name}.{sample_bytes}"),
        "dataset.num_files_train": ceil_div(net.samples, net.samples_per_file),
        "dataset.num_samples_per_file": net.samples_per_file,
        "dataset.record_length_bytes": sample_bytes,
        "dataset.record_length_bytes_stdev": 0,
        "reader.data_loader": loader,
        "reader.batch_size": net.batch,
        "reader.read_threads": net.workers,
        "reader.odirect": True,
        "reader.hand_over": "none" if loader == "dali" else "batch",
        "train.epochs": 1,
        "train.total_training_steps": net.steps_at(rate),
        "dataset.num_subfolders_train": net.subfolders,
    }
    if loader == "dali":
        keys["dali.device"] = "gpu"
    if net.decode:
        keys["dataset.record_length_bytes_resize"] = PIXELS
    return dlemu.load_workload(net.workload, keys)


@contextlib.contextmanager
def as_trained(real: Real, workload: dlemu.Workload, pictures: Preparing | None) -> Iterator[Any]:
    """Open the loader of a real job: it decodes, pins, and leaves on the GPU what is there."""
    on_gpu = workload.reader.data_loader == "dali"
    with contextlib.ExitStack() as stack:
        if pictures is not None:
            stack.enter_context(pictures.by_workers())
        if on_gpu:
            stack.enter_context(batches_stay_on_gpu(real.device))
        yield stack.enter_context(dlemu.make_loader(workload, pin=real.cuda and not on_gpu))


def run_real(real: Real, workload: dlemu.Workload, pictures: Preparing | None) -> dict[str, Any]:
    with as_trained(real, workload, pictures) as loader:
        return real.train(iter(loader))


def metered(real: Real, workload: dlemu.Workload, pictures: Preparing | None) -> Seconds:
    """Return the computation_time that Meter finds in the real loop."""
    meter = dlemu.Meter(workload)
    with as_trained(real, workload, pictures) as loader:
        real.train(meter.epoch(loader, 0, device="cuda" if real.cuda else None))
    with TemporaryDirectory() as folder:
        path = Path(folder, "measured.yaml")
        path.write_text(meter.workload_yaml())
        found = dlemu.load_workload(str(path)).train.computation_time
    return found.mean, found.stdev


def run_emulated(
    real: Real,
    workload: dlemu.Workload,
    slept: Seconds,
    *,
    on_gpu: bool = False,
    decode: Seconds | None = None,
    accelerators: range = range(1),
) -> dict[str, Any]:
    keys: dict[str, object] = {
        "train.computation_time": {"mean": slept[0], "stdev": slept[1], "type": "normal"},
        # The loop on the CPU computes on the thread that asks: that is the rule's loop.
        "train.loop": "pipelined" if real.cuda else "rule",
    }
    if decode:
        keys["reader.preprocess_time"] = {"mean": decode[0], "stdev": decode[1], "type": "normal"}
    job = workload.with_keys(keys)
    dataset = find_dataset(job, dlemu.Alone())
    clock = WallClock.calibrate()
    wait_until = gpu_compute([0], clock) if on_gpu else clock.sleep_until
    ends = []

    def compute(deadline: float) -> None:
        wait_until(deadline)
        ends.append(time.perf_counter())

    plan = make_plan(job, dataset.layout, num_accelerators=len(accelerators), epoch=0)
    times = draw_computation_times(
        job.train.computation_time,
        num_steps=plan.num_steps,
        accelerators=accelerators,
        epoch=0,
        seed=job.train.seed,
    )
    keep = int(job.reader.hands_over)
    with closing(open_loader(dataset, accelerators=accelerators, keep=keep)) as loader:
        replay_epoch(
            loader.epoch(0, plan),
            new_steps(0, times),
            barrier=lambda: None,
            clock=clock,
            compute=compute,
        )
    first = uncounted(len(ends)) - 1
    return {
        "seconds": ends[-1] - ends[first],
        "num_steps": len(ends) - first,
        "slept": slept[0],
        "decode": decode[0] if decode else 0.0,
    }


@dataclass(frozen=True)
class Storage:
    """How reads are held to a rate: by a cgroup, or by files that the drive's own rate fits."""

    folder: Path
    by_cgroup: bool

    @contextlib.contextmanager
    def held(self, workload: dlemu.Workload, bytes_per_second: float) -> Iterator[None]:
        if not self.by_cgroup or not bytes_per_second:
            yield
            return
        places = drives(workload.data_folder)
        rate = int(bytes_per_second / len(places))
        with throttled_reads(places[0], rate, *((place, rate) for place in places[1:])) as group:
            group.enter()
            yield

    def workload(self, net: Net, loader: str, rate: float, c: float) -> dlemu.Workload:
        """Return the workload of a cell, its files written."""
        size = net.sample_bytes
        if not self.by_cgroup and rate:
            size = max(4096, int(self._own_rate(net, loader) * c / (rate * net.batch)))
        workload = workload_of(net, self.folder, loader, rate, size)
        dlemu.generate(workload, world=dlemu.Alone())
        return workload

    def _own_rate(self, net: Net, loader: str) -> float:
        workload = workload_of(net, self.folder, loader, 0, net.sample_bytes)
        dlemu.generate(workload, world=dlemu.Alone())
        with dlemu.make_loader(workload) as batches:
            begin = time.perf_counter()
            read = sum(batch.num_bytes for batch in batches)
            return read / (time.perf_counter() - begin)


def drives(folder: Path) -> list[Path]:
    """Return the subfolders that are drives of their own, or else the folder."""
    return [each for each in sorted(folder.glob("train/*")) if each.is_mount()] or [folder]


def can_throttle(folder: Path) -> bool:
    try:
        with throttled_reads(folder, 10**9):
            return True
    except pytest.skip.Exception as reason:
        print(f"no cgroup holds the reads ({reason}): files of the drive's own rate instead")
        return False


def measure(
    storage: Storage, jobs: Mapping[str, "Job"], cell: Cell, arms: Sequence[str], repeat: int
) -> list[Run]:
    """Run the arms of a cell, one after the other."""
    real, pictures = jobs[cell.net].real, jobs[cell.net].pictures
    net = real.net
    decode = decode_seconds(net.workers) if pictures else {}
    c = real.time_alone()
    workload = storage.workload(net, cell.loader, cell.rate, c[0])
    demand = net.batch * workload.dataset.mean_bytes / c[0]
    emulated = partial(run_emulated, real, workload)
    runs: list[Run] = []
    for arm in arms[:: -1 if repeat % 2 else 1]:
        if arm == "B":
            free = storage.workload(net, cell.loader, 0, c[0])
            in_loop = metered(real, free, pictures)
        with storage.held(workload, cell.rate * demand):
            if arm == "R":
                found = run_real(real, workload, pictures)
            else:
                found = emulated(
                    in_loop if arm == "B" else c,
                    on_gpu=arm == "G",
                    decode=pictures.seconds()
                    if pictures and arm == "D"
                    else decode.get("alone" if arm == "A" else "together"),
                )
        runs.append(
            Run(cell=cell, arm=arm, repeat=repeat, c=c[0], stdev=c[1], batch=net.batch, **found)
        )
    return runs


@dataclass(frozen=True)
class Job:
    """A network on the device, and what its workers decode."""

    real: Real
    pictures: Preparing | None

    @staticmethod
    def of(net: Net) -> "Job":
        pictures = Preparing(Pictures(net.sample_bytes).decode) if net.decode else None
        return Job(Real(net), pictures)


def main(words: list[str]) -> None:
    keys = {
        "nets": "unet3d,resnet50,cosmoflow",
        "loaders": "pytorch,threads",
        "rates": "0.3,0.6,0.9,1.2,2",
        "arms": "R,E,B",
        "cells": "",
        "repeats": "3",
        "first": "0",
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
    asked = {cell.net for cell, *_ in cells(keys)}
    jobs = {net.label: Job.of(net) for net in (ON_GPU if cuda else ON_CPU) if net.label in asked}
    storage = Storage(folder, can_throttle(folder))
    print(machine, flush=True)
    runs: list[Run] = []
    first = int(keys["first"])
    for repeat in range(first, first + int(keys["repeats"])):
        for cell, arms, most in cells(keys):
            if repeat - first >= most:
                continue
            if time.perf_counter() - begin > float(keys["limit_s"]):
                break
            found = measure(storage, jobs, cell, arms, repeat)
            runs += found
            told = ", ".join(f"{run.arm} {run.au:.2f}" for run in found)
            busy = max(run.busy for run in found)
            print(
                f"{time.perf_counter() - begin:.0f} s: {cell.net}, {cell.loader}, {cell.rate:g}: "
                f"{told}; c {1e3 * found[0].c:.2f} ms (stdev {1e3 * found[0].stdev:.2f}), "
                f"in the loop {1e3 * busy:.2f} ms",
                flush=True,
            )
            stored = {"machine": machine, "held": storage.by_cgroup}
            stored["runs"] = [asdict(run) for run in runs]
            Path(keys["json"]).write_text(json.dumps(stored))
    print(f"\n{table(runs)}")


def cells(keys: Mapping[str, str]) -> Iterator[tuple[Cell, list[str], int]]:
    """Yield the cells that were asked for, each with its arms and the most repeats."""
    for word in filter(None, keys["cells"].split(",")):
        net, loader, share, arms, *most = word.split("/")
        repeats = int(most[0]) if most else int(keys["repeats"])
        yield Cell(net=net, loader=loader, rate=float(share)), arms.split("+"), repeats
    if keys["cells"]:
        return
    for net in keys["nets"].split(","):
        for loader in keys["loaders"].split(","):
            for rate in map(float, keys["rates"].split(",")):
                cell = Cell(net=net, loader=loader, rate=rate)
                yield cell, keys["arms"].split(","), int(keys["repeats"])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(sys.argv[1:])
