"""What generating costs, and how fast it is: python -m benchmarks.generate.

dlemu on 2 ranks and fio (1 MiB O_DIRECT writes, 2 jobs of 4 in flight) write the same number of
bytes in turn, round after round; DLIO too, on 2 ranks, if `make peers` has set it up. A ratio is of
one round, so that a busy host weighs on all. Of dlemu the start of Python and MPI is left out, as
fio's own figures leave out its own; of DLIO it is the difference of two datasets.

    python -m benchmarks.generate [rounds=5] [folder=build/generate] [datasets=unet3d,...]
"""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.harness import (
    COST,
    SPEED,
    Asked,
    Rate,
    apart,
    beside,
    cpu_of_children,
    describe_machine,
    goal,
    in_turn,
    markdown,
    ratios,
    run_fio,
    scratch,
    spread,
    tell,
    timed,
)
from dlemu.config.model import Workload, load_workload
from dlemu.datagen import generate
from dlemu.ranks.mpi import make_world
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


def write_as_rank(name: str, data: str) -> Rate | None:
    """Generate, as one rank of several; return on the first what all took."""
    with make_world() as world:
        world.barrier()
        written = partial(generate, job(name, Path(data)), world=world)
        own = timed(lambda: written().num_bytes, time.process_time)
        costs = world.gather(own.cpu_seconds)
    return None if costs is None else own._replace(cpu_seconds=sum(costs))


def dlemu(name: str, data: Path) -> Rate:
    """Have dlemu generate a dataset."""
    return Rate(*apart(write_as_rank, name, str(data), ranks=NUM_RANKS))


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
    base, keys = DATASETS[name]

    def write(num_files: int) -> float:
        folder = data / str(num_files)
        own = {"workload": base, "dataset.num_files_train": num_files}
        own["dataset.data_folder"] = str(folder)
        run_dlio(keys | own, ranks=NUM_RANKS, generate=True)
        return sum(path.stat().st_size for path in (folder / "train").iterdir())

    counts = (NUM_RANKS, DLIO_FILES[name])
    small, large = (timed(partial(write, number), cpu_of_children) for number in counts)
    return large.beyond(small)


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
        goals = ""
        if writer == "dlemu":
            goals = f"CPU {goal([rate.cost for rate in own], most=CPU_GOAL)}, "
            goals += f"speed {goal(ratios(own, rates['fio'], SPEED), least=SPEED_GOAL)}"
        elif writer == "DLIO":
            more = ratios(own, rates["dlemu"], COST)
            goals = f"{spread(more, '.1f')} × dlemu's CPU, {goal(more, least=DLIO_GOAL)}"
        rows.append([name, writer, *beside(own, rates["fio"]), goals])
    return rows


def main(arguments: list[str]) -> None:
    asked = Asked(arguments, "rounds", "folder", "datasets")
    rounds, rows = asked.value("rounds", 5), []
    print(f"{describe_machine()}\n\n{rounds} rounds: median (min–max)\n")
    with scratch(Path(asked.value("folder", "build/generate"))) as folder:
        for name in asked.names("datasets", DATASETS):
            rows += [tell(row) for row in rows_of(name, folder, rounds)]
    header = ["dataset", "writer", "CPU-s/GB", "× fio", "GB/s", "× fio", "goal"]
    print(markdown(header, rows))


if __name__ == "__main__":
    main(sys.argv[1:])
