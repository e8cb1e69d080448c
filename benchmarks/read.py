"""What reading costs the host, and how fast it is: python -m benchmarks.read.

dlemu and fio read the same files in turn, round after round: from the page cache, from disk with
O_DIRECT, and from tmpfs. dlemu reads through PyTorch's DataLoader (dropping the bytes, and handing
over batches), through threads, and in tf.data's order. DLIO, if `make peers` has set it up, reads
its own dataset. A ratio is of one round, so that a busy host weighs on both.

    python -m benchmarks.read [rounds=5] [folder=build/read] [datasets=unet3d,...] [ways=cache,...]
"""

import os
import sys
import time
from contextlib import closing
from dataclasses import replace
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
from dlemu.dataset.layout import Dataset, layout_of
from dlemu.dataset.plan import EpochPlan, PlanOptions, plan_epoch, plan_interleaved, plan_streams
from dlemu.loaders import open_loader
from dlemu.ranks.world import Alone
from tests.lab.peer import is_there, run_dlio

EPOCHS = 3
"""Epochs of a measurement; one before it starts the workers and is left out."""

DATASETS: dict[str, tuple[str, dict[str, object]]] = {
    "unet3d": ("unet3d_h100", {"dataset.num_files_train": 14}),
    "resnet50": ("resnet50_h100", {"dataset.num_files_train": 20}),
    "cosmoflow": ("cosmoflow_h100", {"dataset.num_files_train": 1000}),
    "hdf5": ("cosmoflow_h100", {"dataset.num_files_train": 1000, "dataset.format": "hdf5"}),
}
"""Workload and keys: 2 to 2.8 GB each, so that the first and last steps weigh little."""
CPU_GOALS = {
    "cache": {"unet3d": 1.4, "resnet50": 1.6, "cosmoflow": 2.0, "hdf5": 2.0},
    "direct": {"unet3d": 1.5, "resnet50": 3.0, "cosmoflow": 3.0, "hdf5": 3.0},
}


def job(name: str, data: Path, loader: str, direct: bool) -> Workload:
    """Return the workload that reads a dataset."""
    base, keys = DATASETS[name]
    return load_workload(
        base,
        keys
        | {
            "dataset.data_folder": str(data / name),
            "reader.data_loader": loader.partition(" ")[0],
            "reader.hand_over": "batch" if loader.endswith("batch") else "none",
            "reader.odirect": direct,
        },
    )


def make_plan(workload: Workload, epoch: int) -> EpochPlan:
    """Return the plan of one accelerator."""
    layout, reader = layout_of(workload), workload.reader
    interleaved = reader.data_loader == "tensorflow"
    options = PlanOptions(batch_size=reader.batch_size, num_accelerators=1, epoch=epoch, seed=1)
    if interleaved or workload.streamed:
        options = replace(
            options,
            num_streams=max(1, reader.read_threads),
            samples_per_file=layout.samples_per_file,
            shuffle_samples=False,
            shuffle_size=1,
        )
        return (plan_interleaved if interleaved else plan_streams)(layout.num_samples, options)
    return plan_epoch(layout.num_samples, options)


def read_here(name: str, data: str, loader: str, direct: bool) -> Rate:
    """Read EPOCHS epochs in this process and its workers; their start is left out."""
    workload = job(name, Path(data), loader, direct)
    keep = int(workload.reader.hands_over)
    with closing(open_loader(Dataset.of(workload), accelerators=range(1), keep=keep)) as opened:

        def read(epoch: int) -> float:
            steps = opened.epoch(epoch, make_plan(workload, epoch))
            return sum(batch.num_bytes for batches in steps for batch in batches)

        read(0)
        pids = opened.pids()
        rates = [timed(partial(read, 1 + epoch), lambda: cpu_of(pids)) for epoch in range(EPOCHS)]
    return Rate(*map(sum, zip(*rates, strict=True)))


def cpu_of(pids: list[int]) -> float:
    """Return the CPU seconds of this process and others, to the nanosecond.

    What a process's own counters say is rounded to ticks of 10 ms, a few per cent of a run.
    """
    nanoseconds = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return time.process_time() + nanoseconds / 1e9


def read_apart(name: str, data: Path, loader: str, direct: bool) -> Rate:
    """Read in a process of its own, as a run would."""
    return Rate(*apart(read_here, name, str(data), loader, direct))


def fio(name: str, data: Path, direct: bool) -> Rate:
    """Have fio read the same files in 1 MiB pieces, with as many jobs as there are workers."""
    jobs = load_workload(DATASETS[name][0]).reader.read_threads
    words = ["--bs=1M", "--rw=read", "--ioengine=psync", f"--direct={int(direct)}"]
    words += ["--invalidate=0", f"--loops={EPOCHS}"]
    words += ["--file_service_type=sequential", "--group_reporting"]
    for number in range(jobs):
        words += [f"--name=job{number}", f"--opendir={data / 'jobs' / str(number)}"]
    [one] = run_fio(*words)
    return one.rate


def dlio(name: str, data: Path) -> Rate:
    """Have DLIO read its own dataset; the difference of two runs leaves out the start."""
    size = sum(file.stat().st_size for file in (data / "dlio" / name / "train").iterdir())

    def read(epochs: int) -> float:
        _dlio(name, data, epochs=epochs)
        return epochs * size

    few, many = (timed(partial(read, number), cpu_of_children) for number in (1, 1 + EPOCHS))
    return many.beyond(few)


def _dlio(name: str, data: Path, *, epochs: int, generate: bool = False) -> None:
    workload, keys = DATASETS[name]
    keys = keys | {"workload": workload, "dataset.data_folder": str(data / "dlio" / name)}
    keys |= {"train.computation_time": 0.0, "train.epochs": epochs}
    run_dlio(keys, generate=generate)


def rows_of(name: str, data: Path, way: str, rounds: int) -> list[list[str]]:
    """Return the rows of a dataset: each reader in turn, round after round."""
    direct = way == "direct"
    sides = {"fio": partial(fio, name, data, direct)}
    for reader in ("pytorch", "pytorch batch", "threads", "tensorflow"):
        sides[reader] = partial(read_apart, name, data, reader, direct)
    if way == "cache" and (data / "dlio" / name).exists():
        sides["DLIO"] = partial(dlio, name, data)
    rates = in_turn(sides, rounds)
    rows = []
    for reader, own in rates.items():
        goals = ""
        if reader == "pytorch" and way in CPU_GOALS:
            goals = f"CPU {goal(ratios(own, rates['fio'], COST), most=CPU_GOALS[way][name])}"
            speeds = ratios(own, rates["fio"], SPEED)
            goals += f"; speed {goal(speeds, least=0.95)}" if direct else ""
        if reader == "threads" and way == "tmpfs":
            goals = f"speed {goal(ratios(own, rates['fio'], SPEED), least=0.9)}"
        if reader == "DLIO":
            less = ratios(own, rates["pytorch"], COST)
            goals = f"pytorch {spread(less, '.1f')} × less, {goal(less, least=5)}"
        rows.append([name, way, reader, *beside(own, rates["fio"]), goals])
    return rows


def prepare(name: str, data: Path, way: str) -> None:
    """Write a dataset, and DLIO's if it is there; fill the page cache or empty it."""
    workload = job(name, data, "threads", False)
    generate(workload, world=Alone())
    # fio takes no long list of files: each of its jobs gets a folder of links.
    for number, path in enumerate(sorted((data / name / "train").iterdir())):
        folder = data / "jobs" / str(number % workload.reader.read_threads)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / path.name).hardlink_to(path)
    if way == "cache" and name != "hdf5" and is_there():
        _dlio(name, data, epochs=1, generate=True)
    for entry in data.rglob("*"):
        if entry.is_file():
            with entry.open("rb") as file:
                os.fsync(file.fileno())
                if way == "direct":
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                while way == "cache" and file.read(1 << 20):
                    pass


def main(arguments: list[str]) -> None:
    """Run the cases and print the table."""
    asked = Asked(arguments, "rounds", "folder", "datasets", "ways")
    rounds, rows = asked.value("rounds", 5), []
    for way in asked.names("ways", ["cache", "direct", "tmpfs"]):
        above = Path("/dev/shm" if way == "tmpfs" else asked.value("folder", "build/read"))
        for name in asked.names("datasets", DATASETS):
            with scratch(above) as data:
                prepare(name, data, way)
                rows += [tell(row) for row in rows_of(name, data, way, rounds)]
    print(f"{describe_machine()}; {rounds} rounds, median (min–max)\n")
    header = ["dataset", "from", "reader", "CPU-s/GB", "× fio", "GB/s", "× fio", "goal"]
    print(markdown(header, rows))


if __name__ == "__main__":
    main(sys.argv[1:])
