"""CPU of reading small extents, beside fio on the same ranges: columns of parquet, random records.

    python -m benchmarks.columns FOLDER [rounds]

The ranges are those of `dlrm_b200` (40 of 200 columns, joined up to reader.coalesce_gap), and rows
of 4 KiB in random order as `gnn_rgat_h100` reads them. fio replays the same ranges (psync,
read_iolog) from the page cache. Rounds go A B A B; the ratio is the median of the rounds' ratios of
CPU time, user and system. Wanted: at most 2.
"""

import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path

from dlemu.datagen import generate
from dlemu.dataset.layout import Dataset, layout_of
from dlemu.dataset.plan import make_plan
from dlemu.formats import Parquet, format_of
from dlemu.loaders.source import Source
from dlemu.loaders.worker import SampleReader
from dlemu.workload.model import Workload, load_workload
from dlemu.world.world import Alone

PASSES = 20
"""Times that each side reads the ranges in a round."""


def shapes(folder: Path) -> dict[str, Workload]:
    """Return the workloads by what they read: 290 MB and 256 MB of files."""
    tables = {"dataset.num_files_train": 2, "dataset.num_samples_per_file": 196_608}
    rows = {"dataset.num_files_train": 1, "dataset.num_samples_per_file": 65_536}
    rows |= {"reader.batch_size": 8192}
    keys = {"reader.data_loader": "threads", "reader.read_threads": 1}
    return {
        name: load_workload(origin, {"dataset.data_folder": str(folder / origin), **keys, **more})
        for name, origin, more in (
            ("columns of dlrm_b200", "dlrm_b200", tables),
            ("random rows of 4 KiB", "gnn_rgat_h100", rows),
        )
    }


def ranges_of(workload: Workload) -> list[tuple[str, int, int]]:
    """Return (path, offset, length) of what an epoch reads, in order."""
    layout = layout_of(workload)
    plan = make_plan(workload, layout, num_accelerators=1, epoch=0)
    parquet = format_of(layout)
    folder = workload.data_folder
    if isinstance(parquet, Parquet):
        reads = parquet.ranges(layout.samples_per_file).joined(workload.reader.coalesce_gap)
        files = [str(folder / layout.path(file)) for file in range(layout.num_files)]
        return [
            (path, *extent)
            for path in files
            for group in reads
            for extent in zip(*group, strict=True)
        ]
    size = int(layout.mean_bytes)
    path = str(folder / layout.path(0))
    return [
        (path, int(s) * size, size) for step in range(plan.num_steps) for s in plan.batch(step, 0)
    ]


def ours(workload: Workload) -> float:
    """Return CPU seconds of `PASSES` epochs, bytes dropped."""
    dataset = Dataset.of(workload)
    source = Source(dataset, direct=False)
    reader = SampleReader(
        source, accelerator=0, worker=0, slots=None, note=lambda activity, sample: None
    )
    plan = make_plan(workload, dataset.layout, num_accelerators=1, epoch=0)
    tasks = list(source.tasks(0, plan, 0))
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(PASSES):
        reader.start_epoch(0)
        for task in tasks:
            reader.make(task, lambda: True)
    after = resource.getrusage(resource.RUSAGE_SELF)
    reader.close()
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def fio(log: Path) -> float:
    """Return CPU seconds of fio's replay."""
    command = ["fio", "--name=ranges", "--ioengine=psync", "--thread", "--output-format=json"]
    command += [f"--read_iolog={log}", "--invalidate=0", "--replay_no_stall=1", "--gtod_reduce=1"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    job = json.loads(out[out.index("{") :])["jobs"][0]
    assert job["read"]["total_ios"], "fio has read"
    return float((job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3)


def write_log(path: Path, ranges: list[tuple[str, int, int]]) -> None:
    files = dict.fromkeys(name for name, _, _ in ranges)
    lines = ["fio version 2 iolog", *(f"{name} add" for name in files)]
    lines += [f"{name} open" for name in files]
    lines += [f"{name} read {offset} {length}" for name, offset, length in ranges * PASSES]
    path.write_text("\n".join([*lines, *(f"{name} close" for name in files)]) + "\n")


def main(folder: Path, rounds: int = 5) -> None:
    print("| what is read | reads | mean KiB | ours / fio, CPU | ratios of the rounds |")
    print("|---|---|---|---|---|")
    for name, workload in shapes(folder).items():
        generate(workload, world=Alone())
        ranges = ranges_of(workload)
        log = folder / "ranges.iolog"
        write_log(log, ranges)
        ours(workload), fio(log)  # into the page cache
        ratios = [ours(workload) / fio(log) for _ in range(rounds)]
        mean = statistics.mean(length for _, _, length in ranges) / 1024
        told = " ".join(f"{ratio:.2f}" for ratio in ratios)
        print(
            f"| {name} | {len(ranges):,} | {mean:.1f} | {statistics.median(ratios):.2f} | {told} |",
            flush=True,
        )
        log.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
