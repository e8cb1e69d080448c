"""What 10 million files and 1,024 accelerators cost.

    python -m benchmarks.scale [most=10000000] [parts=plan,manifest,...] [json=FILE]

Each part of dlemu that grows with a dataset is run on its own, in a process of its own, for ten
times as many files each time. No sample is read: this is names, numbers and records.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.harness import Asked, apart, tell
from dlemu.config.model import Workload, load_workload
from dlemu.datagen.manifest import MANIFEST, read_manifest, to_entries
from dlemu.datagen.target import WORK, forget
from dlemu.datagen.write import _finish, dataset_folders
from dlemu.dataset.layout import layout_of
from dlemu.dataset.plan import EpochPlan, make_plan
from dlemu.judge.metrics import find_losses, measure_sums
from dlemu.judge.records import STEP
from dlemu.judge.sums import RankName, Rule, Sums, sum_up
from dlemu.storage.folder import Folder

NUM_ACCELERATORS = 1024
NUM_RANKS = 128
OWN = range(NUM_ACCELERATORS // NUM_RANKS)
"""Accelerators of the first rank."""
FEWEST = 100_000
_PIECE = 1 << 16


class Cost(NamedTuple):
    """What a part took."""

    cpu_seconds: float
    peak_bytes: int
    """Beyond what the process had before."""


def cosmoflow(num_files: int) -> Workload:
    """Return a workload of so many files of one sample, each its own batch: the most steps."""
    return load_workload("cosmoflow_h100", {"dataset.num_files_train": num_files})


def size_files(num_files: int, folder: Path) -> None:
    """Draw the sizes of all samples, as datagen and verify do."""
    layout_of(cosmoflow(num_files)).all_sizes()


def plan(num_files: int, folder: Path, **more: object) -> EpochPlan:
    """Plan an epoch, as a rank does."""
    workload = cosmoflow(num_files).with_keys({"reader.data_loader": "pytorch", **more})
    layout = layout_of(workload)
    return make_plan(workload, layout, num_accelerators=NUM_ACCELERATORS, epoch=1, own=OWN)


def plan_streams(num_files: int, folder: Path) -> EpochPlan:
    """The same of files that are read from end to end, ten samples each, with a shuffle buffer."""
    streams = {"dataset.num_samples_per_file": 10, "reader.shuffle_size": 1000}
    return plan(num_files // 10, folder, **streams)


def write_manifest(num_files: int, folder: Path) -> None:
    """Make the manifest of a journal's entries, as datagen does in the end, and read it back."""
    (folder / WORK).mkdir()
    with (folder / WORK / "rank0.journal").open("wb") as journal:
        for first in range(0, num_files, _PIECE):
            files = np.arange(first, min(first + _PIECE, num_files))
            journal.write(to_entries(files, files.astype(np.uint32)))
    layout = layout_of(cosmoflow(num_files))
    target = Folder(folder)
    target.make(dataset_folders(layout))
    _finish(target, layout, "")
    forget(target)
    manifest = read_manifest(folder)
    assert manifest is not None
    manifest.check(layout, folder)
    (folder / MANIFEST).unlink()


def measure_records(num_files: int, folder: Path) -> None:
    """Join the sums of all ranks' records, as ranks do, and compute metrics and losses of them.

    Steps took one second each.
    """
    steps = np.zeros((num_files // NUM_ACCELERATORS, len(OWN)), STEP)
    steps["step"] = np.arange(len(steps))[:, None]
    steps["num_samples"] = 1
    steps["compute"] = steps["computation_time"] = 1.0
    rule = Rule()
    sums = Sums(rule, ())
    for rank in range(NUM_RANKS):
        steps["accelerator"] = rank * len(OWN) + np.arange(len(OWN))
        sums = sums.joined(sum_up(steps.ravel(), rule, {}, RankName(rank)))
    measure_sums(sums)
    find_losses(sums)


class Part(NamedTuple):
    """What grows with a dataset."""

    title: str
    most_bytes: int
    """For each file, that it may take at its peak; benchmarks/truth.py checks it."""
    run: Callable[[int, Path], object]


PARTS = {
    "sizes": Part("all files' sizes", 48, size_files),
    "plan": Part("an epoch's plan", 24, plan),
    "streams": Part("the same, of streams through shuffle buffers", 64, plan_streams),
    "manifest": Part("manifest, made of the journal, written and opened", 32, write_manifest),
    "metrics": Part("an epoch's records summed up, joined, measured", 300, measure_records),
}


def costs_here(part: str, sizes: Sequence[int], folder: str) -> list[Cost]:
    """Run a part in this process, with so many files each time."""
    run, found = PARTS[part].run, []
    run(FEWEST // 10, Path(folder))  # what is imported and kept once
    for num_files in sizes:
        before = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        begin = time.process_time()
        run(num_files, Path(folder))
        found.append(Cost(time.process_time() - begin, max(0, _memory("VmHWM") - before)))
    return found


def costs(part: str, sizes: Sequence[int]) -> list[Cost]:
    """Run a part in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="dlemu-scale.") as folder:
        return [Cost(*each) for each in apart(costs_here, part, sizes, folder)]


def _memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def main(arguments: list[str]) -> None:
    """Print the table."""
    asked = Asked(arguments, "most", "parts")
    powers = range(len(str(asked.value("most", 10_000_000) // FEWEST)))
    sizes = [FEWEST * 10**power for power in powers]
    rows = []
    for part in asked.names("parts", PARTS):
        line = {"part": PARTS[part].title}
        found = costs(part, sizes)
        for size, each in zip(sizes, found, strict=True):
            line[f"1e{len(str(size)) - 1} files: CPU-s"] = f"{each.cpu_seconds:.2f}"
            line[f"1e{len(str(size)) - 1} files: peak MB"] = f"{each.peak_bytes / 1e6:.0f}"
        line["bytes a file"] = f"{found[-1].peak_bytes / sizes[-1]:.0f}"
        rows.append(tell(line))
    asked.show(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
