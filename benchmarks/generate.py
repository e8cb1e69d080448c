"""What generating costs, and how fast it is: python -m benchmarks.generate [--quick].

dlemu on 2 ranks and fio (1 MiB O_DIRECT writes, 2 jobs of 4 in flight) write the same number of
bytes in turn, round after round; DLIO too, on 2 ranks, if `make peers` has set it up. A ratio is of
one round, so that a busy host weighs on all. Of dlemu the start of Python and MPI is left out, as
fio's own figures leave out its own; of DLIO it is the difference of two datasets.

    python -m benchmarks.generate [rounds=5] [folder=build/generate] [datasets=unet3d,...]
"""

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.machine import Rate, describe_machine, markdown, spread
from dlemu.datagen import generate
from dlemu.workload.model import Workload, load_workload
from dlemu.world.mpi import make_world
from tests.lab.mpirun import mpirun
from tests.lab.peer import is_there, run_dlio

NUM_RANKS = 2
CPU_GOAL, SPEED_GOAL, DLIO_GOAL = 0.6, 0.9, 10.0

DATASETS: dict[str, tuple[str, dict[str, object]]] = {
    "unet3d-npz": ("unet3d_h100", {"dataset.num_files_train": 16}),
    "resnet50-tfrecord": ("resnet50_h100", {"dataset.num_files_train": 16}),
    "cosmoflow-tfrecord": ("cosmoflow_h100", {"dataset.num_files_train": 800}),
    "cosmoflow-hdf5": (
        "cosmoflow_h100",
        {"dataset.num_files_train": 800, "dataset.format": "hdf5"},
    ),
}
"""Workload and keys: 2.3 GB each."""
DLIO_FILES = {
    "unet3d-npz": 16,
    "resnet50-tfrecord": 16,
    "cosmoflow-tfrecord": 200,
    "cosmoflow-hdf5": 16,
}
"""As many as take much longer than Python's start, which varies. For each hdf5 file DLIO makes 2 GB
of random numbers, whatever the file's size (its `generation_buffer_size`)."""


def job(name: str, data: Path) -> Workload:
    """Return the workload whose dataset is generated."""
    base, keys = DATASETS[name]
    return load_workload(base, keys | {"dataset.data_folder": str(data)})


def write_as_rank(name: str, data: Path) -> None:
    """Generate, as one rank of several, and print what all took on rank 0."""
    with make_world() as world:
        world.barrier()
        begin, cpu = time.perf_counter(), time.process_time()
        manifest = generate(job(name, data), world=world)
        costs = world.gather(time.process_time() - cpu)
        if costs is not None:
            print(json.dumps(Rate(manifest.num_bytes, time.perf_counter() - begin, sum(costs))))


def dlemu(name: str, data: Path) -> Rate:
    """Have dlemu generate a dataset."""
    words = [sys.executable, "-m", "benchmarks.generate", "--rank", name, str(data)]
    done = subprocess.run(mpirun(NUM_RANKS, *words), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return Rate(*json.loads(done.stdout))


def fio(num_bytes: float, data: Path) -> Rate:
    """Have fio write as much, and sync it."""
    data.mkdir(parents=True)
    words = ["fio", "--output-format=json", "--name=write", "--rw=write", "--bs=1M", "--direct=1"]
    words += ["--ioengine=libaio", "--iodepth=4", f"--numjobs={NUM_RANKS}", "--end_fsync=1"]
    words += [f"--size={int(num_bytes / NUM_RANKS)}", f"--directory={data}", "--group_reporting"]
    # Written into space that is not allocated before, as every generator does.
    words += ["--fallocate=none", "--refill_buffers=0"]
    out = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    one = out["jobs"][0]
    cpu = (one["usr_cpu"] + one["sys_cpu"]) / 100 * one["job_runtime"] / 1e3
    return Rate(one["write"]["io_bytes"], one["write"]["runtime"] / 1e3, cpu)


def dlio(name: str, data: Path) -> Rate:
    """Have DLIO generate some of the files; a run with two files is taken off."""
    counts = (NUM_RANKS, DLIO_FILES[name])
    small, large = (_dlio(name, data / str(files), files) for files in counts)
    return Rate(*(late - early for early, late in zip(small, large, strict=True)))


def _dlio(name: str, data: Path, num_files: int) -> Rate:
    base, keys = DATASETS[name]
    keys = keys | {"workload": base, "dataset.num_files_train": num_files}
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    run_dlio(keys | {"dataset.data_folder": str(data)}, ranks=NUM_RANKS, generate=True)
    seconds = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    num_bytes = sum(path.stat().st_size for path in (data / "train").iterdir())
    return Rate(num_bytes, seconds, cpu)


def empty(data: Path) -> None:
    """Give back a dataset's space, but no file: ext4 searches long for an inode where many were
    freed a minute ago, and that would be taken for the next writer's cost.
    """
    for path in data.rglob("*"):
        if path.is_file():
            os.truncate(path, 0)


def rows_of(name: str, folder: Path, rounds: int) -> list[list[str]]:
    """Return the rows of a dataset: each writer in turn, round after round."""
    writers: dict[str, Callable[[Path], Rate]] = {"dlemu": lambda data: dlemu(name, data)}
    num_bytes = dlemu(name, folder / f"{name}-first").num_bytes
    empty(folder / f"{name}-first")
    writers["fio"] = lambda data: fio(num_bytes, data)
    if is_there():
        writers["DLIO"] = lambda data: dlio(name, data)
    rates: dict[str, list[Rate]] = {writer: [] for writer in writers}
    for index in range(rounds):
        for writer, write in writers.items():
            data = folder / f"{name}-{writer}-{index}"
            rates[writer].append(write(data))
            empty(data)
            os.sync()
    rows = []
    for writer, own in rates.items():
        speeds = [a.speed / b.speed for a, b in zip(own, rates["fio"], strict=True)]
        costs = [a.cost / b.cost for a, b in zip(own, rates["dlemu"], strict=True)]
        goal = ""
        if writer == "dlemu":
            cost, speed = statistics.median([r.cost for r in own]), statistics.median(speeds)
            goal = f"CPU ≤ {CPU_GOAL}: {'yes' if cost <= CPU_GOAL else 'NO'}, "
            goal += f"speed ≥ {SPEED_GOAL}: {'yes' if speed >= SPEED_GOAL else 'NO'}"
        elif writer == "DLIO":
            goal = f"≥ {DLIO_GOAL:g}×: {'yes' if statistics.median(costs) >= DLIO_GOAL else 'NO'}"
        rows.append(
            [
                name,
                writer,
                spread([rate.cost for rate in own]),
                spread(costs),
                spread([rate.speed for rate in own]),
                spread(speeds),
                goal,
            ]
        )
    return rows


def main(arguments: list[str]) -> None:
    options = {"rounds": "5", "folder": "build/generate", "datasets": ",".join(DATASETS)}
    if "--quick" in arguments:
        arguments.remove("--quick")
        options["rounds"] = "2"
    options |= dict(argument.split("=", 1) for argument in arguments)
    folder = Path(options["folder"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"{describe_machine()}\n\n{options['rounds']} rounds: median (min–max)\n")
    rows = []
    try:
        for name in options["datasets"].split(","):
            new = rows_of(name, folder, int(options["rounds"]))
            print("\n".join("  ".join(row) for row in new), file=sys.stderr, flush=True)
            rows += new
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    header = ["dataset", "writer", "CPU-s/GB", "CPU / dlemu's", "GB/s", "speed / fio's", "goal"]
    print(markdown(header, rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        write_as_rank(sys.argv[2], Path(sys.argv[3]))
    else:
        main(sys.argv[1:])
