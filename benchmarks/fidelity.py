"""Is the emulated AU that of a real job? python -m benchmarks.fidelity FOLDER [key=value …]

    cells=NET/RATE/LOOP/ARM+ARM,…  repeats=3 limit_s=100000 json=fidelity.json
    python -m benchmarks.fidelity table JSON... [plot=FILE.png]     the table of stored runs, a plot
    python -m benchmarks.fidelity steps JSON...         the table of what `dlemu steptime` stored

Nets: unet3d (npz files of 16 MB), resnet50 (npy), resnet50_jpeg4 and _jpeg12 (so many workers
decode JPEG files), cosmoflow (hdf5) and cosmoflow_graph (its step as one CUDA graph). LOOP:
pipelined, or rule. The arms of a cell run one after the other, in every second repeat in the
opposite order, from the same files, which are not in memory:

R   the real job (`fidelity_real`): np.load, h5py or PIL in a plain Dataset, a DataLoader, the
    network on the GPU. pipelined: pinned memory, copies on a stream of their own, at most one step
    ahead. rule: it copies, computes, waits for the step's end, and asks for the next batch.
E   dlemu replays the loop with its pytorch loader: `computation_time` with mean and stdev of the
    step that R's network has shown just before with its data on the GPU, `launch_time` as long as
    the host took to queue one, and, for pictures, `preprocess_time` as `dlemu steptime` has it.
L   E without `launch_time`. T: E with the threads loader. S: E with `reader.preprocess=sleep`.

As root, a cgroup holds reads to RATE times the demand (bytes of a batch / c); 0: they are not held.

Whole AU = n c / (time from the start of the loader to the end of the last of n steps). The rule's
AU = (n - 1) c / (T - T1), from the end of the first step. Both arms use the same c: of R by CUDA
events, of the others by the host's clock. Epochs have 10 times the batches that are in flight.
On a host without a GPU, small inputs are trained on the CPU, to try the program.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import dlemu
from benchmarks.fidelity_real import FOLDER, PIXELS, Net, Real, plain_loader, write_pictures
from benchmarks.fidelity_table import Cell, Run, draw, load, step_times, tables
from benchmarks.harness import describe_machine
from dlemu.clock import WallClock, after_launch
from dlemu.datagen.survey import find_dataset
from dlemu.dataset.plan import make_plan
from dlemu.loaders import open_loader
from dlemu.run.replay import draw_computation_times, new_steps, replay_epoch
from dlemu.steptime.preprocessing import time_preprocessing
from tests.lab.cgroups import throttled_reads

_DECODE_SECONDS = 3.0


@dataclass(frozen=True)
class Job:
    """A network on the device, and its files."""

    net: Net
    folder: Path

    @cached_property
    def real(self) -> Real:
        return Real(self.net)

    @cached_property
    def workload(self) -> dlemu.Workload:
        """The job's files, written if they are not there, and how dlemu reads them."""
        net = self.net
        folder = self.folder / f"{net.form}.{net.sample_bytes}"
        # Jobs that differ in their workers share the pictures.
        num_files = (
            net.num_samples
            if not net.decodes
            else max(
                each.num_samples for each in Net.all() if each.sample_bytes == net.sample_bytes
            )
        )
        keys: dict[str, object] = {
            "dataset.data_folder": str(folder),
            "dataset.format": net.form,
            "dataset.num_files_train": num_files,
            "dataset.num_samples_per_file": 1,
            "dataset.record_length_bytes": net.sample_bytes,
            "dataset.record_length_bytes_stdev": 0,
            "dataset.record_length_bytes_resize": PIXELS if net.name == "resnet50" else 2**21,
            "reader.data_loader": "pytorch",
            "reader.batch_size": net.batch,
            "reader.read_threads": net.workers,
            "reader.prefetch_size": net.prefetch,
            "reader.file_shuffle": "seed",
            "train.epochs": 1,
            "train.total_training_steps": net.num_steps,
        }
        workload = dlemu.load_workload(net.workload, keys)
        if not net.decodes:
            dlemu.generate(workload, world=dlemu.Alone())
        elif not (folder / "train").is_dir():
            write_pictures(folder / "train", num_files, net.sample_bytes)
        os.sync()
        return workload

    @cached_property
    def file_bytes(self) -> float:
        """Mean bytes of a file."""
        return fmean(path.stat().st_size for path in files_of(self.workload))

    @cached_property
    def decode(self) -> Mapping[str, object]:
        """`reader.preprocess_time` as `dlemu steptime` writes it; nothing where none decodes."""
        if not self.net.decodes:
            return {}
        os.environ[FOLDER] = str(self.workload.data_folder)
        function = "benchmarks.fidelity_real:decoding"
        found = time_preprocessing(function, self.net.workers, _DECODE_SECONDS)
        print("; ".join(found.lines(0)), flush=True)
        return {"reader.preprocess_time": found.key()}


def files_of(workload: dlemu.Workload) -> list[Path]:
    return [path for path in workload.data_folder.glob("train/**/*") if path.is_file()]


def forget(workload: dlemu.Workload) -> None:
    """Take the files out of the page cache."""
    for path in files_of(workload):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def run_emulated(job: dlemu.Workload) -> dict[str, Any]:
    """Replay an epoch, as `dlemu run` does."""
    dataset = find_dataset(job, dlemu.Alone())
    clock = WallClock.calibrate()
    launch = after_launch(job.train.launch_time, clock.sleep_until)
    ends: list[float] = []

    def compute(deadline: float) -> None:
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
    with closing(open_loader(dataset, accelerators=range(1), keep=keep)) as loader:
        begin = time.perf_counter()
        replay_epoch(
            loader.epoch(0, plan),
            new_steps(0, times),
            barrier=lambda: None,
            clock=clock,
            compute=compute,
        )
    return {
        "whole": ends[-1] - begin,
        "seconds": ends[-1] - ends[0],
        "wall": time.perf_counter() - begin,
        "num_steps": len(ends),
    }


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


def measure(job: Job, cell: Cell, arms: Sequence[str], repeat: int) -> list[Run]:
    """Run the arms of a cell, one after the other."""
    real, net, workload = job.real, job.net, job.workload
    decode = job.decode
    c, stdev = real.time_alone()
    launch = real.launch_seconds()
    rate = cell.rate * net.batch * job.file_bytes / c
    runs: list[Run] = []
    for arm in arms[:: -1 if repeat % 2 else 1]:
        keys: dict[str, object] = {
            "train.computation_time": {"mean": c, "stdev": stdev, "type": "normal"},
            "train.loop": cell.loop,
            "train.launch_time": 0.0 if arm == "L" else min(launch, c),
            "train.seed": 123 + repeat,
            "reader.data_loader": "threads" if arm == "T" else "pytorch",
            "reader.hand_over": "batch",
            "reader.preprocess": "sleep" if arm == "S" else "cpu",
            **decode,
        }
        emulated = workload.with_keys(keys)
        forget(workload)
        with held(workload, rate):
            if arm == "R":
                loader = plain_loader(net, workload.data_folder, seed=repeat, pin=real.cuda)
                found = real.train(loader, synchronous=cell.loop == "rule")
            else:
                found = run_emulated(emulated)
        known: dict[str, Any] = {"c": c, "stdev": stdev, "launch": launch, "batch": net.batch}
        runs.append(Run(cell=cell, arm=arm, repeat=repeat, **known, **found))
    return runs


def main(words: list[str]) -> None:
    keys = {"cells": "", "repeats": "3", "limit_s": "100000", "json": "fidelity.json", "plot": ""}
    keys |= dict(word.split("=", 1) for word in words if "=" in word)
    places = [word for word in words if "=" not in word]
    if places[0] == "steps":
        print(step_times(places[1:]))
        return
    if places[0] == "table":
        runs = load(places[1:])
        if keys["plot"]:
            draw(runs, Path(keys["plot"]))
        print(tables(runs))
        return
    experiment(Path(places[0]), keys)


def experiment(folder: Path, keys: Mapping[str, str]) -> None:
    """Run all cells, a repeat of all before the next, until the time is over."""
    import torch

    begin = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    machine = f"{describe_machine()}; torch {torch.__version__}, {device}"
    print(machine, flush=True)
    cells = [word.split("/") for word in keys["cells"].split(",")]
    jobs = {net: Job(Net.named(net), folder) for net, *_ in cells}
    runs: list[Run] = []
    for repeat in range(int(keys["repeats"])):
        for net, rate, loop, arms in cells:
            if time.perf_counter() - begin > float(keys["limit_s"]):
                break
            cell = Cell(net=net, loop=loop, rate=float(rate))
            found = measure(jobs[net], cell, arms.split("+"), repeat)
            runs += found
            told = ", ".join(f"{run.arm} {run.whole_au:.2f} ({run.au:.2f})" for run in found)
            print(
                f"{time.perf_counter() - begin:.0f} s: {net} {rate} {loop}: {told}; "
                f"c {1e3 * found[0].c:.2f} ms, launch {1e3 * found[0].launch:.2f} ms, "
                f"in the loop {1e3 * max(run.busy for run in found):.2f} ms",
                flush=True,
            )
            stored = {"machine": machine, "runs": [asdict(run) for run in runs]}
            Path(keys["json"]).write_text(json.dumps(stored))
    print(f"\n{tables(runs)}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(sys.argv[1:])
