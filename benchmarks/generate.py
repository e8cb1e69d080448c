"""What generating costs, and how fast it is: python -m benchmarks.generate.

dlemu on 2 ranks and fio (1 MiB O_DIRECT writes, 2 jobs of 4 in flight) write the same number of
bytes in turn, round after round; DLIO too, on 2 ranks, if `make peers` has set it up. A ratio is of
one round, so that a busy host weighs on all. Of dlemu the start of Python and MPI is left out, as
fio's own figures leave out its own; of DLIO it is the difference of two datasets.

    python -m benchmarks.generate [rounds=5] [folder=build/generate] [datasets=unet3d,...]
"""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.harness import (
    Asked,
    Rate,
    cpu_of_children,
    describe_machine,
    goal,
    in_turn,
    markdown,
    output_of,
    ratios,
    run_fio,
    scratch,
    spread,
    tell,
)
from dlemu.config.model import Workload, load_workload
from dlemu.datagen import generate
from dlemu.ranks.mpi import make_world
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
    return Rate(*json.loads(output_of(mpirun(NUM_RANKS, *words))))


def fio(num_bytes: float, data: Path) -> Rate:
    """Have fio write as much, and sync it."""
    data.mkdir(parents=True)
    words = ["--name=write", "--rw=write", "--bs=1M", "--direct=1"]
    words += ["--ioengine=libaio", "--iodepth=4", f"--numjobs={NUM_RANKS}", "--end_fsync=1"]
    words += [f"--size={int(num_bytes / NUM_RANKS)}", f"--directory={data}", "--group_reporting"]
    # Written into space that is not allocated before, as every generator does.
    words += ["--fallocate=none", "--refill_buffers=0"]
    [one] = run_fio(*words, way="write")
    return one.rate


def dlio(name: str, data: Path) -> Rate:
    """Have DLIO generate some of the files; a run with two files is taken off."""
    counts = (NUM_RANKS, DLIO_FILES[name])
    small, large = (_dlio(name, data / str(files), files) for files in counts)
    return Rate(*(late - early for early, late in zip(small, large, strict=True)))


def _dlio(name: str, data: Path, num_files: int) -> Rate:
    base, keys = DATASETS[name]
    keys = keys | {"workload": base, "dataset.num_files_train": num_files}
    cpu, begin = cpu_of_children(), time.perf_counter()
    run_dlio(keys | {"dataset.data_folder": str(data)}, ranks=NUM_RANKS, generate=True)
    seconds, cpu = time.perf_counter() - begin, cpu_of_children() - cpu
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
    num_bytes = dlemu(name, folder / f"{name}-first").num_bytes
    empty(folder / f"{name}-first")
    writers: dict[str, Callable[[Path], Rate]] = {"dlemu": partial(dlemu, name)}
    writers["fio"] = partial(fio, num_bytes)
    if is_there():
        writers["DLIO"] = partial(dlio, name)
    count = iter(range(rounds * len(writers)))

    def written(write: Callable[[Path], Rate]) -> Rate:
        data = folder / f"{name}-{next(count)}"
        rate = write(data)
        empty(data)
        os.sync()
        return rate

    rates = in_turn({each: partial(written, write) for each, write in writers.items()}, rounds)
    rows = []
    for writer, own in rates.items():
        speeds = ratios(own, rates["fio"], lambda rate: rate.speed)
        costs = ratios(own, rates["dlemu"], lambda rate: rate.cost)
        goals = ""
        if writer == "dlemu":
            goals = f"CPU {goal([rate.cost for rate in own], most=CPU_GOAL)}, "
            goals += f"speed {goal(speeds, least=SPEED_GOAL)}"
        elif writer == "DLIO":
            goals = goal(costs, least=DLIO_GOAL)
        rows.append(
            [
                name,
                writer,
                spread([rate.cost for rate in own]),
                spread(costs),
                spread([rate.speed for rate in own]),
                spread(speeds),
                goals,
            ]
        )
    return rows


def main(arguments: list[str]) -> None:
    asked = Asked(arguments, "rounds", "folder", "datasets")
    rounds, rows = asked.value("rounds", 5), []
    print(f"{describe_machine()}\n\n{rounds} rounds: median (min–max)\n")
    with scratch(Path(asked.value("folder", "build/generate"))) as folder:
        for name in asked.names("datasets", DATASETS):
            rows += [tell(row) for row in rows_of(name, folder, rounds)]
    header = ["dataset", "writer", "CPU-s/GB", "CPU / dlemu's", "GB/s", "speed / fio's", "goal"]
    print(markdown(header, rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        write_as_rank(sys.argv[2], Path(sys.argv[3]))
    else:
        main(sys.argv[1:])
