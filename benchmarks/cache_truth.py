"""What a cache says of drives whose rates are known: python -m benchmarks.cache_truth.

Two loop devices are held to a rate by a cgroup: the origin to 50 MB/s, the cache to 500 MB/s. Each
row is an epoch. Its AU is told in three ways:

- by the mean share of hits, as min(1, supply / demand) where readers overlap: supply is the lesser
  of origin / (1 - hits) and cache / hits;
- step by step, of drives that give their rates evenly. Under lru most hits come early in an epoch,
  where accelerators cannot take more than they ask for;
- step by step, of drives as the kernel holds them: it lets the bytes of 0.1 s pass at once. Those
  are read early, as with a longer read ahead. This is the truth that the last column is held to.

The AU found is that of the whole epoch: the rule's leaves out the first step, in which readers run
ahead. Root only; about five minutes. A word chooses cases: `lru`.

`python -m benchmarks.cache_truth cost` compares the CPU time of a warm epoch through the cache with
that of the same epoch without it, in pairs A B A B; that of worker processes is counted. Less than
five minutes, on an idle host.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.cache_cases import Case, run
from dlemu import Alone, generate, load_workload
from dlemu.dataset.layout import Dataset
from dlemu.dataset.plan import make_plan
from dlemu.loaders import Loader, open_loader
from dlemu.tier.host import HostTier
from tests.lab.drives import own_drive

_IMAGE_BYTES = 1300 << 20
_FILES, _SAMPLE, _PAIRS = 320, 1_000_000, 60
"""Of the comparison of CPU time."""
_CPU_CLOCK = 2
"""A process's CPU clock is ~pid << 3 with these bits (linux/posix-timers.h, CPUCLOCK_SCHED)."""


CASES = (
    Case("cold, then warm", 100e6, {"cache.capacity": 1.0}),
    Case("a third is kept", 100e6, {"cache.capacity": 0.33, "cache.policy": "keep"}),
    Case("lru of 0.8", 100e6, {"cache.capacity": 0.8, "cache.policy": "lru"}),
    Case("cold at a lower demand", 60e6, {"cache.capacity": 1.0, "cache.fill": "sync"}),
    Case(
        "warm, the cache is the limit",
        160e6,
        {"cache.capacity": 1.0, "cache.warm": True},
        cache=100_000_000,
    ),
)


def print_truth(names: Sequence[str]) -> None:
    """Run the cases and print a row of each epoch."""
    print("| case | epoch | hits (%) | AU of the mean | evenly | in slices | found (%) | off |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    with (
        own_drive(_IMAGE_BYTES) as origin,
        own_drive(_IMAGE_BYTES) as cache,
        tempfile.TemporaryDirectory() as out,
    ):
        folders = {"origin": origin, "cache": cache, "out": Path(out)}
        for case in CASES:
            if not all(name in case.name for name in names):
                continue
            for epoch, row in enumerate(run(case, folders), 1):
                numbers = (row.hits, row.of_mean, row.even, row.true, row.found)
                cells = " | ".join(f"{number:.1f}" for number in numbers)
                off = f"{row.found - row.true:+.1f}"
                print(f"| {case.name} | {epoch} | {cells} | {off} |", flush=True)


def _cpu_of(loader: Loader) -> float:
    """Return the CPU seconds of this process and of a loader's workers so far."""
    clocks = [(~pid << 3) | _CPU_CLOCK for pid in loader.pids()]
    return time.process_time() + sum(time.clock_gettime(clock) for clock in clocks)


def cpu_seconds(loader: str, read_threads: int) -> tuple[list[float], list[float]]:
    """Return the CPU seconds of epochs without the cache and of warm ones through it, in pairs."""
    with own_drive(_IMAGE_BYTES) as drive, own_drive(_IMAGE_BYTES) as cache:
        keys: dict[str, object] = {
            "dataset.data_folder": str(drive / "data"),
            "cache.folder": str(cache / "tier"),
            "cache.warm": True,
            "dataset.num_files_train": _FILES,
            "dataset.record_length_bytes": _SAMPLE,
            "dataset.record_length_bytes_stdev": 0,
            "reader.data_loader": loader,
            "reader.batch_size": 1,
            "reader.read_threads": read_threads,
            "reader.odirect": True,
        }
        workload = load_workload("unet3d_h100", keys)
        generate(workload, world=Alone())
        dataset, own = Dataset.of(workload), range(2)
        tier = HostTier(Dataset.of(workload.with_keys({"num_accelerators": 2})), Alone(), own)
        tier.copy(lambda path: None)
        tier.copied(1.0, lambda path: None)  # as in a run: no page of the copies stays in memory
        plain = open_loader(dataset, accelerators=own, keep=0)
        through = open_loader(tier.dataset, accelerators=own, keep=0)
        seconds: tuple[list[float], list[float]] = [], []
        for epoch in range(2 * _PAIRS):
            plan = make_plan(workload, dataset.layout, num_accelerators=2, epoch=epoch // 2)
            loader_of, planned = (through, tier.begin(plan)) if epoch % 2 else (plain, plan)
            begin = _cpu_of(loader_of)
            for _ in loader_of.epoch(epoch, planned):
                pass
            seconds[epoch % 2].append(_cpu_of(loader_of) - begin)
        plain.close()
        through.close()
        tier.close()
    return seconds


def print_cost() -> None:
    """Print what a warm epoch through the cache costs."""
    print("| loader | workers | CPU of an epoch (ms) | through the warm cache (ms) | ratio |")
    print("|---|--:|--:|--:|--:|")
    for loader, read_threads in (("threads", 2), ("pytorch", 0), ("pytorch", 2)):
        plain, through = cpu_seconds(loader, read_threads)
        ratio = median(b / a for a, b in zip(plain, through, strict=True))
        cells = f"{1e3 * median(plain):.1f} | {1e3 * median(through):.1f} | {ratio:.3f}"
        print(f"| {loader} | {read_threads} | {cells} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["cost"]:
        print_cost()
    else:
        print_truth(sys.argv[1:])
