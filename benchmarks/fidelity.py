"""Is the emulated AU that of a real job? python -m benchmarks.fidelity FOLDER [key=value …]

    cells=NET/RATE/LOOP/ARM+ARM[/STEPS],…  repeats=3 json=found.json until=SECONDS
        limit=SECONDS of a cell, beyond which the next one is run; claims=FOLDER in which several
        of these programs, on a GPU each, take the cells in turn; at_once=CORES, half of which R has
        and half of which D has, at the same time, where neither keeps more of them busy
    python -m benchmarks.fidelity table JSON... [plot=FILE.png]     the table of stored runs, a plot
    python -m benchmarks.fidelity steps JSON...         the table of what `dlemu steptime` stored
    python -m benchmarks.fidelity nearest JSON...       the same beside the published step

Nets: unet3d (npz files of 16 MB), resnet50 (npy), resnet50_jpeg2, _jpeg4, _jpeg8 and _jpeg12 (so
many workers decode JPEG files), resnet50_npy2_b400 and others of batch 400, resnet50_dali_npy4,
_dali_jpeg4 and others (DALI with so many threads), cosmoflow (hdf5) and cosmoflow_graph (its step
as one CUDA graph). LOOP: pipelined, or rule. STEPS: of an epoch, else as long as docs/fidelity.md
says. No cell begins later than `until`. The arms of a cell, which that page explains, as it does
their AU:

R   the real job (`fidelity_real`), plain PyTorch
E   `dlemu run` of the loop with the pytorch loader, without CUDA, with the times of R's step alone
M   E with the times that `dlemu.Meter` has found in R's loop, in a run whose reads were not held,
    once in each repeat
T   M with the threads loader
B   R whose Dataset reads a file by one call, before PIL or h5py takes it apart
N   R inside `dlemu.Meter`, whose AU is stored beside that of R's own clock
D   E with reader.cost=dataloader, and no cost given by hand: what R's loops before took to start a
    worker and for their first step, and what its workers last did with memory, are as the Meter
    finds them; of a net that DALI reads for, `dlemu run` with reader.data_loader=dali
G   D with train.compute=gpu: matrix products keep the GPU busy that decodes
W   G with R's network in place of the products, on random data (train.network)
L   D with lean workers

As root, a cgroup holds reads to RATE times the demand (bytes of a batch / c); 0: they are not held.
The arms take turns, in every second repeat in the opposite order; of unet3d R and E run at the same
time, each from files of its own and held by a cgroup of its own. Of cosmoflow, which is
launch-bound, c is timed once. On a host without a GPU, small inputs are trained on the CPU, to try
the program. On any host jobs whose names end in _asleep (resnet50_npy1_asleep, _jpeg2_asleep and
others) have a device that sleeps for a step of an H200: what their workers and the storage do is
real.
"""

import atexit
import math
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import yaml
from _pytest.outcomes import Skipped

import dlemu
from benchmarks.fidelity_ddp import Ranks, ranks_of
from benchmarks.fidelity_real import (
    FILES,
    NUM_CAME,
    Asleep,
    DaliBatches,
    Net,
    Real,
    Spent,
    files_of,
    nets,
    plain_loader,
    write_pictures,
)
from benchmarks.fidelity_table import (
    Cell,
    Run,
    draw,
    load,
    nearest,
    step_times,
    tables,
)
from benchmarks.harness import Asked, Store, gpu_program, lined, stored_runs
from dlemu.host.faults import Faults, WorkerMemory, memory_of
from dlemu.judge.records import dump_workload, read_steps
from dlemu.storage.gpu.cuda import page_lock_time
from dlemu.storage.pagecache import drop
from dlemu.tools.steptime.steps import time_preprocessing
from tests.lab import bench, warm
from tests.lab.cgroups import throttled

_DECODE_SECONDS = 2.0
_NUM_ALONE = 6
_METERED_STEPS = 2400
_LOAD_SECONDS = 0.5
"""How long the workers' work on a sample is timed: that of decoding, and other work."""
_FIRST_STEPS = 3
"""For each worker: of a loop that tells what D is given, where no other R ran before D."""
_LOOP_CORES = 2
"""Of R beside its workers: one queues steps, and one pins batches."""
_REAL = "RBN"
"""Arms with a real job."""
_SETTINGS = {
    "dlemu.dataset.rule.cpus_a_process": 1e6,
    "dlemu.cli.progress.plain_seconds": 600.0,
    "dlemu.run.workers.folder": "/dev/null/kept",
    "dlemu.run.workers.SECONDS": 0.02,
}
"""Of `dlemu run`: one process, and nothing kept. What the limit is found by is as users have it."""


@cache
def trained(name: str, batch: int, graph: bool, asleep: float) -> Real:
    """Return a network on the device; jobs that differ in their files share it."""
    asked = name, batch, graph, asleep
    found = [each for each in nets() if (each.name, each.batch, each.graph, each.asleep) == asked]
    return Asleep(found[0]) if asleep else Real(found[0])


@dataclass(frozen=True)
class Job:
    """A network on the device, and its files."""

    net: Net
    folder: Path
    cells: Sequence[Cell]
    steps: Mapping[Cell, int]
    """Of cells whose epochs have as many as was asked for."""
    like: Sequence["Job"]
    """All jobs, among them those that share their files."""
    cores: int
    """That a job and its emulation may take together, for both to run at the same time."""

    starts: list[float] = field(default_factory=list)
    """Seconds in which R has started a worker, of each of its loops so far."""
    memory: list[WorkerMemory] = field(default_factory=list)
    """What R's workers did with the memory of samples, of each of its loops that told it."""
    steps_in_loop: list[float] = field(default_factory=list)
    """Seconds of a step in R's loops so far: longer than alone where the GPU decodes as well."""
    first_steps: list[float] = field(default_factory=list)
    """Seconds of the first step of each, whose launches wait while CUDA locks memory for batches.

    Not where DALI reads, which locks memory once.
    """

    @property
    def at_once(self) -> bool:
        """Whether R and E or D run at the same time: neither takes many cores."""
        busy = self.net.busy_cores + _LOOP_CORES
        alone = self.net.by_dali or self.net.ranks > 1
        return self.net.name == "unet3d" or (not alone and busy <= self.cores / 2)

    @property
    def files(self) -> str:
        """Name of the folder with its files."""
        shared = {"jpeg": "pictures", "npy": "arrays"}.get(self.net.form)
        return self.net.label if shared is None or self.net.seconds else shared

    @property
    def real(self) -> Real:
        return trained(self.net.name, self.net.batch, self.net.graph, self.net.asleep)

    @cached_property
    def num_files(self) -> int:
        return max(job.own_files for job in self.like if job.files == self.files)

    @cached_property
    def own_files(self) -> int:
        if self.net.ranks > 1:
            c, batch = 1.0, self.net.ranks * self.net.batch
            return batch * max(self.num_steps(cell, c) for cell in self.cells)
        c = self.real.time_alone()[0] if self.net.seconds else 1.0
        # c varies: a tenth more than now is needed.
        spare = 1.1 if self.net.seconds else 1.0
        return int(spare * self.net.batch * max(self.num_steps(cell, c) for cell in self.cells))

    def num_steps(self, cell: Cell, c: float) -> int:
        """Return the steps of a cell's epoch, where a step takes c seconds."""
        return self.steps.get(cell) or self.net.num_steps(cell.rate, c)

    def workload(self, arm: str, more: Mapping[str, object] | None = None) -> dlemu.Workload:
        """Return how dlemu reads the arm's files."""
        net = self.net
        place = f"{self.files}.{'R' if arm in _REAL or not self.at_once else 'E'}"
        keys = {
            "dataset.data_folder": str(self.folder / place),
            "dataset.format": net.form,
            "dataset.num_files_train": self.num_files,
            "dataset.num_samples_per_file": 1,
            "dataset.record_length_bytes": net.sample_bytes,
            "dataset.record_length_bytes_stdev": 0,
            "dataset.record_length_bytes_resize": net.pixels,
            "reader.batch_size": net.batch,
            "reader.read_threads": net.workers,
            "reader.prefetch_size": net.batches_ahead,
            "reader.file_shuffle": "seed",
            "train.epochs": 1,
        }
        if not net.by_dali:  # whose batches stay where DALI has put them
            keys |= {"reader.hand_over": "batch"}
        if net.ranks > 1:
            keys |= {"num_accelerators": net.ranks, "train.processes": net.ranks}
            keys |= {"train.step_spread": "shared"}
        if net.by_dali and "reader.data_loader" in (more or {}):
            keys |= {"dali.device": "gpu" if self.real.cuda else "cpu"}
        return dlemu.load_workload(f"{net.name}_h100", {**keys, **(more or {})})

    @cached_property
    def file_bytes(self) -> float:
        """Mean bytes of a file."""
        return fmean(path.stat().st_size for path in files_of(self.workload("R").data_folder))

    @cached_property
    def loading(self) -> Mapping[str, object]:
        """`reader.preprocess_time` as `dlemu steptime` writes it."""
        net = self.net
        os.environ[FILES] = f"{net.form}:{net.pixels}:{self.workload('R').data_folder}"
        seconds = _DECODE_SECONDS if net.decodes else _LOAD_SECONDS
        function = "benchmarks.fidelity_real:decoding"
        found = time_preprocessing(function, net.workers, seconds)
        print(f"{net.label}, loading a sample: {found.key()}", flush=True)
        return {"reader.preprocess_time": found.key()}

    def train(self, arm: str, loop: str, steps: int, repeat: int) -> dict[str, Any]:
        """Run R, B or N; return its times, and what `Meter` says."""
        real, net, workload, one = self.real, self.net, self.workload("R"), arm == "B"
        folder, synchronous = workload.data_folder, loop == "rule"
        if net.by_dali:
            batches = DaliBatches(net, folder, steps, seed=repeat, cuda=real.cuda)
            found = real.train(batches, synchronous=synchronous)
            self.steps_in_loop.append(found["busy"])
            return found
        spent = Spent(net.workers)
        loader = plain_loader(
            net, folder, steps, seed=repeat, pin=real.cuda, in_one_read=one, spent=spent
        )
        if arm != "N":
            found = real.train(loader, synchronous=synchronous)
            asked, made = (each - real.began for each in spent.first())
            found |= {"spent": spent.total(), "asked": asked, "made": made}
            self.note_start(found)
            return found
        meter = dlemu.Meter(workload, batch_size=net.batch, sample_bytes=self.file_bytes)
        found = real.train(loader, synchronous=loop == "rule", meter=meter)
        metrics = meter.metrics()
        assert metrics is not None
        train = yaml.safe_load(meter.workload_yaml())["train"]
        names = ("computation_time", "launch_time")
        keys = {f"train.{name}": train[name] for name in names if name in train}
        return {**found, "meter_au": metrics.epochs[0].au_percentage, "metered": keys}

    def note_start(self, found: Mapping[str, Any]) -> None:
        """Note R's start of a worker, its steps, and what it did with memory, as the Meter does."""
        self.starts.append(found["opened"] / self.net.workers)
        self.steps_in_loop.append(found["busy"])
        self.first_steps.append(found["first_step"])
        spent = found["spent"]
        if number := spent["faulted"]:
            size, faults = spent["faulted_bytes"] / number, spent["faults"]
            seen = Faults(faults, (number, number), size, size / self.net.batch)
            if (state := memory_of([seen])) is not None:
                self.memory.append(state)

    @property
    def as_metered(self) -> Mapping[str, object]:
        """What R's loops before tell of its workers and its first step, as the Meter finds it.

        Times of a loop's start are known after the first one. Without page-locked memory the first
        step takes as long as others.
        """
        keys: dict[str, object] = {
            "reader.page_lock_time": self.page_lock_time,
            "reader.worker_memory": self.worker_memory,
        }
        if self.starts:
            keys["reader.worker_start_time"] = median(self.starts)
            keys["train.first_step_time"] = median(self.first_steps)
        return keys

    @property
    def worker_memory(self) -> WorkerMemory:
        """What R's workers did with memory in its latest loop that told it, for emulations."""
        return self.memory[-1] if self.memory else "returned"

    @cached_property
    def page_lock_time(self) -> float:
        """`reader.page_lock_time`, as the Meter finds it."""
        import torch

        return page_lock_time() if torch.cuda.is_available() and not self.net.asleep else 0.0

    @cached_property
    def alone(self) -> tuple[float, float, float]:
        """Mean and stdev of a launch-bound step alone, and its launch: the same in all runs."""
        times = [(*self.real.time_alone(), self.real.launch_seconds()) for _ in range(_NUM_ALONE)]
        c, stdev, launch = map(fmean, zip(*times, strict=True))
        return c, stdev, launch

    @cached_property
    def metered(self) -> Mapping[str, object]:
        """Computation and launch time of R's pipelined loop, by `dlemu.Meter`."""
        drop(files_of(self.workload("R").data_folder))
        steps = min(_METERED_STEPS, self.num_files // self.net.batch)
        keys: dict[str, object] = self.train("N", "pipelined", steps, 0)["metered"]
        print(f"{self.net.label}, in the loop: {keys}", flush=True)
        return keys


def write(workload: dlemu.Workload) -> None:
    """Write the files of a workload, unless they are there."""
    dataset, folder = workload.dataset, workload.data_folder / "train"
    told, number = (
        workload.data_folder.with_name(f"{workload.data_folder.name}.written"),
        str(dataset.num_files_train),
    )
    if told.exists() and told.read_text() == number:
        return
    if dataset.format != "jpeg":
        dlemu.generate(workload, world=dlemu.Alone())
    else:
        write_pictures(folder, int(dataset.num_files_train), int(dataset.record_length_bytes))
    told.write_text(number)


def replayed(run: bench.Run) -> dict[str, Any]:
    """Return the times of `dlemu run`, when it has ended."""
    run.completes()
    steps, limit = read_steps(run.folder), run.summary["limit"]
    shutil.rmtree(run.folder)
    number = len(np.unique(steps["accelerator"]))
    makes = {name: float(steps[name].sum()) / number for name in ("read", "decode", "hand_over")}
    steps = steps[steps["accelerator"] == 0]  # all of a data-parallel job take as long
    begin, ends = steps["start"][0], steps["start"] + steps["wait"] + steps["compute"]
    whole, seconds = float(ends[-1] - begin), float(ends[-1] - ends[0])
    known = {"whole": whole, "wall": whole, "seconds": seconds, "num_steps": len(steps)}
    waited = float(steps["wait"][1:].sum())
    known |= {"first": float(steps["wait"][0]), "waited": waited}
    came = steps["start"] + steps["wait"] - begin
    known |= {"came": came[:NUM_CAME].round(4).tolist()}
    return {**known, "limit": limit["name"], "evidence": limit, "spent": makes}


def counted(folder: Path) -> tuple[float, int, int]:
    """Return busy seconds of our CPUs, and the reads from the folder's drive and their bytes."""
    own, ticks = {f"cpu{number}" for number in os.sched_getaffinity(0)}, 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *spent = line.split()
        if name in own:
            user, nice, system, _, _, *irq = map(int, spent[:7])
            ticks += user + nice + system + sum(irq)
    number = os.stat(folder).st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")
    reads, _, sectors = map(int, device.read_text().split()[:3] if device.exists() else (0, 0, 0))
    return ticks / os.sysconf("SC_CLK_TCK"), reads, 512 * sectors


def measure(job: Job, cell: Cell, arms: Sequence[str], repeat: int) -> list[Run]:
    """Run the arms of a cell."""
    net = job.net
    if net.ranks > 1:
        return measure_ranks(job, cell, arms, repeat)
    real = job.real
    by_hand = {*arms} - {*"RDGWL"}
    if net.decodes and by_hand:  # a host's cores change their speed within minutes
        vars(job).pop("loading", None)
        assert job.loading
    if net.label == "cosmoflow":  # launch-bound
        c, stdev, launch = job.alone
    else:
        c, stdev, launch = real.timed(synchronous=cell.loop == "rule")
    rate = cell.rate * net.batch * job.file_bytes / c
    steps = min(job.num_steps(cell, c), job.num_files // net.batch)
    metered = job.metered if set("MT") & set(arms) else {}
    keys = {
        "train.total_training_steps": steps,
        "train.computation_time": {"mean": c, "stdev": stdev, "type": "normal"},
        "train.loop": cell.loop,
        "train.launch_time": min(launch, c),
        "train.seed": 123 + repeat,
        "reader.preprocess": "cpu",
    }
    loading = job.loading if by_hand else {}
    turns = [[arm] for arm in arms]
    beside = [arm for arm in arms if arm in ("E" if net.name == "unet3d" else "D")]
    if job.at_once and "R" in arms and beside:
        turns = [[*beside, "R"], *([arm] for arm in arms if arm not in ("R", *beside))]
    every_core = sorted(os.sched_getaffinity(0))
    # The arms get pairs of cores in turn: a host's halves are not alike, and two neighbours may be
    # threads of one core. In every second repeat the arms change places.
    wide = 2 if len(every_core) >= 4 else 1
    halves = [
        [core for place, core in enumerate(every_core) if place // wide % 2 == one]
        for one in ((1, 0) if repeat % 2 else (0, 1))
    ]
    runs: list[Run] = []
    others_first = repeat % 2 and (job.steps_in_loop or not {*"DGW"} & {*arms})
    if any(len(turn) > 1 and "D" in turn for turn in turns) and not job.starts:
        job.train("R", cell.loop, _FIRST_STEPS * net.workers, repeat)
    for turn in turns[:: -1 if others_first else 1]:
        before, children = counted(job.folder), resource.getrusage(resource.RUSAGE_CHILDREN)
        with ExitStack() as stack:
            replays: dict[str, bench.Run] = {}
            found: dict[str, dict[str, Any]] = {}
            for arm in turn:
                own = {} if arm in "DGWL" else {**loading, **(metered if arm in "MT" else {})}
                own = {**own, "reader.cost": "dataloader" if arm in "DGW" else "lean"}
                own |= job.as_metered if arm in "DGW" else {}
                loader = "threads" if arm == "T" else "pytorch"
                if net.by_dali:
                    loader, own = "dali", {}
                if arm in "GW":
                    own |= {"train.compute": "gpu"}
                    own |= {"train.network": net.name} if arm == "W" else {}
                if arm in "GW" and job.steps_in_loop:  # as the Meter finds it in R's loop
                    in_loop = {"mean": median(job.steps_in_loop), "stdev": stdev, "type": "normal"}
                    own |= {"train.computation_time": in_loop}
                workload = job.workload(arm, {**keys, "reader.data_loader": loader, **own})
                drop(files_of(workload.data_folder))
                held = throttled((workload.data_folder, int(rate))) if rate else nullcontext()
                group = stack.enter_context(held)
                both = len(turn) > 1 and net.name != "unet3d"
                cores = halves[arm in _REAL] if both else every_core
                if arm not in _REAL:
                    file = job.folder / f"{arm}.yaml"
                    file.write_text(dump_workload(workload))
                    replays[arm] = stack.enter_context(bench.start(file, group=group, cpus=cores))
                    continue
                if group is not None:
                    group.enter()
                os.sched_setaffinity(0, cores)  # of this thread and those that it starts
                stack.callback(os.sched_setaffinity, 0, every_core)
                found[arm] = job.train(arm, cell.loop, steps, repeat)
            found |= {arm: replayed(run) for arm, run in replays.items()}
        if turn == ["R"]:  # whose workers have ended
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu_of_workers = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
            found["R"] |= {"workers_cpu": cpu_of_workers, "workers": net.workers}
        elif "R" in turn and "spent" in found["R"]:  # beside an emulation, which is a child, too
            spent = found["R"]["spent"]
            cpu_of_workers = spent["load_cpu"] + spent["collate_cpu"]
            found["R"] |= {"workers_cpu": cpu_of_workers, "workers": net.workers}
        cpu, reads, num_bytes = np.subtract(counted(job.folder), before).tolist()
        drive = {"cpu_seconds": cpu, "reads": int(reads), "read_bytes": int(num_bytes)}
        for arm, times in found.items():
            known = {"cell": cell, "arm": arm, "repeat": repeat, "batch": net.batch}
            known |= {"c": c, "stdev": stdev, "launch": launch, "held": rate}
            known |= {"metered": metered} if arm in "MT" else {}
            known |= {"page_lock": job.page_lock_time} if arm in "DGW" else {}
            runs.append(Run(**{**known, **(drive if len(turn) == 1 else {}), **times}))
    return runs


_kept = ExitStack()
"""Closes the ranks that are there."""
atexit.register(_kept.close)


@cache
def ranks(number: int) -> Ranks:
    """Return ranks that live as long as this program, or until a cell fails."""
    return _kept.enter_context(ranks_of(number))


def measure_ranks(job: Job, cell: Cell, arms: Sequence[str], repeat: int) -> list[Run]:
    """Run the arms R and D of a data-parallel job: means of its ranks."""
    try:
        return _measure_ranks(job, cell, arms, repeat, ranks(job.net.ranks))
    except BaseException:
        ranks.cache_clear()
        _kept.close()
        raise


def _measure_ranks(
    job: Job, cell: Cell, arms: Sequence[str], repeat: int, together: Ranks
) -> list[Run]:
    net, steps, folder = job.net, job.steps[cell], job.workload("R").data_folder
    times = together.ask(what="alone", label=net.label)
    c, stdev, launch = (fmean(each[name] for each in times) for name in ("c", "stdev", "launch"))
    rate = cell.rate * net.ranks * net.batch * job.file_bytes / c
    runs: list[Run] = []
    for arm in arms:
        drop(files_of(folder))
        held = throttled((folder, int(rate))) if rate else nullcontext()
        with held as group:
            if arm == "R":
                if group is not None:
                    together.enter(group)
                each = together.ask(
                    what="train",
                    label=net.label,
                    folder=str(folder),
                    steps=steps,
                    repeat=repeat,
                    loop=cell.loop,
                )
                means = {
                    key: fmean(one[key] for one in each)
                    for key, value in each[0].items()
                    if isinstance(value, (int, float))
                }
                spent = {key: sum(one["spent"][key] for one in each) for key in each[0]["spent"]}
                cpu = spent["load_cpu"] + spent["collate_cpu"]
                found: dict[str, Any] = {**means, "spent": spent, "num_steps": steps}
                found |= {"workers_cpu": cpu, "workers": net.ranks * net.workers}
                job.note_start(found)
            else:
                keys = {
                    "train.total_training_steps": steps,
                    "train.computation_time": {"mean": c, "stdev": stdev, "type": "normal"},
                    "train.loop": cell.loop,
                    "train.launch_time": min(launch, c),
                    "train.seed": 123 + repeat,
                    "reader.data_loader": "pytorch",
                    "reader.cost": "dataloader" if arm == "D" else "lean",
                    **(job.as_metered if arm == "D" else {}),
                }
                file = job.folder / f"{arm}.yaml"
                file.write_text(dump_workload(job.workload(arm, keys)))
                with bench.start(file, group=group) as run:
                    found = replayed(run)
        known: dict[str, Any] = {"cell": cell, "arm": arm, "repeat": repeat, "batch": net.batch}
        known |= {"c": c, "stdev": stdev, "launch": launch, "held": rate}
        known |= {"page_lock": job.page_lock_time} if arm == "D" else {}
        runs.append(Run(**{**known, **found}))
    return runs


def _too_long(*_: object) -> None:
    raise TimeoutError("the cell took longer than `limit`")


def claimed(folder: str, name: str) -> bool:
    """Return whether we are the first to take a cell, of several programs with this folder."""
    if folder:
        try:
            (Path(folder) / name.replace(" ", "_").replace("/", "_")).touch(exist_ok=False)
        except FileExistsError:
            return False
    return True


def experiment(folder: Path, asked: Asked, store: Store) -> str:
    """Run all cells, a repeat of all before the next."""
    import torch

    begin = time.perf_counter()
    warm.settings = _SETTINGS
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    cells: list[tuple[Cell, list[str]]] = []
    steps: dict[Cell, int] = {}
    for word in asked.names("cells", []):
        label, rate, loop, given, *own = word.split("/")
        cell = Cell(device=device, net=label, loop=loop, rate=float(rate))
        cells.append((cell, given.split("+")))
        if own:
            steps[cell] = int(own[0])

    def say(text: str) -> None:
        print(f"{time.perf_counter() - begin:.0f} s: {text}", flush=True)

    known, labels = {net.label: net for net in nets()}, dict.fromkeys(cell.net for cell, _ in cells)
    jobs: dict[str, Job] = {}
    every: list[Job] = []
    for label in labels:
        own_cells = [cell for cell, _ in cells if cell.net == label]
        jobs[label] = Job(known[label], folder, own_cells, steps, every, asked.value("at_once", 0))
        every.append(jobs[label])
    wanted = [job.workload(arm) for job in jobs.values() for arm in ("RE" if job.at_once else "R")]
    say("the networks are ready")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(wanted), mp_context=context) as pool:
        list(pool.map(write, {each.data_folder: each for each in wanted}.values()))
    os.sync()
    say("the files are ready")
    by_hand = {cell.net for cell, given in cells if {*given} - {*"RDGWL"}}
    assert all(jobs[label].loading for label in by_hand if not known[label].decodes)
    runs: list[Run] = []
    done: Counter[Cell] = Counter()  # a cell may be named several times
    signal.signal(signal.SIGALRM, _too_long)
    for repeat in range(asked.value("repeats", 3)):
        for job in jobs.values():  # what takes the host's cores changes within minutes
            vars(job).pop("metered", None)
        for cell, arms in cells:
            if time.perf_counter() - begin > asked.value("until", math.inf):
                say("no time is left")
                return tables(runs)
            if not claimed(asked.value("claims", ""), f"{repeat}_{'_'.join(cell.words.values())}"):
                continue
            number = repeat if asked.value("claims", "") else done[cell]
            signal.alarm(asked.value("limit", 0))
            try:
                found = measure(jobs[cell.net], cell, arms, number)
            except (Exception, Skipped):  # others may run: without DALI, say
                if not asked.value("limit", 0):
                    raise
                say(f"{' '.join(cell.words.values())} failed:\n{traceback.format_exc()}")
                continue
            finally:
                signal.alarm(0)
            done[cell] += 1
            runs += found
            aus = ", ".join(f"{run.arm} {run.whole_au:.2f} ({run.au:.2f})" for run in found)
            times = (found[0].c, found[0].launch, max(run.busy for run in found))
            c, launch, busy = (f"{1e3 * each:.2f} ms" for each in times)
            say(f"{' '.join(cell.words.values())}: {aus}; c {c}, launch {launch}, in loop {busy}")
            store([asdict(run) for run in runs])
    return tables(runs)


def table(paths: Sequence[str], asked: Asked) -> str:
    runs = load(stored_runs(paths))
    if plot := asked.value("plot", ""):
        draw(runs, Path(plot))
    return tables(runs)


KEYS = ("cells", "repeats", "plot", "until", "claims", "limit", "at_once")
PRINTS = {
    "table": table,
    "steps": lambda paths, asked: lined(step_times(paths)),
    "nearest": lambda paths, asked: lined(nearest(paths)),
}

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] not in PRINTS:
        warm.prepare()  # E's processes are forked off one without CUDA, which survives no fork
    gpu_program(sys.argv[1:], __doc__, PRINTS, experiment, *KEYS)
