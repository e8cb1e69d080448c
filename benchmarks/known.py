"""Runs whose answer is known beforehand: AU, limit, and the share that comes from memory.

The rate of a disk is set by a cgroup, its latency by a file system of the tests' own, the CPUs by a
quota. `python -m benchmarks.truth` compares them with what dlemu says.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from dlemu.storage.pagecache import drop
from tests.lab.bench import ROOT, Run, dataset, folder_in_memory, folder_on_disk, start
from tests.lab.cgroups import cpu_quota, throttled_reads
from tests.lab.simulated import Read, true_au
from tests.lab.slow_files import slow_files


@dataclass(frozen=True)
class Found:
    """What a run said, beside the truth; None where there is nothing to know."""

    au: float
    true_au: float | None
    limit: str
    true_limit: str | None
    evidence: str
    cached: list[float] = field(default_factory=list)
    """Share of each epoch's bytes from memory."""
    true_cached: list[float] | None = None
    resident: float | None = None
    """Share of the files' pages in memory before the run."""


def found(run: Run, true_limit: str | None, true_au: float | None = None) -> Found:
    """Return what an ended run said."""
    run.completes()
    summary = run.summary
    return Found(
        au=summary["metric"]["train_au_mean_percentage"],
        true_au=true_au,
        limit=summary["limit"]["name"],
        true_limit=true_limit,
        evidence=summary["limit"]["evidence"],
        cached=summary["measured"]["page_cache_share_per_epoch"],
        resident=summary["measured"]["resident_share_before"],
    )


def job(
    folder: Path, loader: str, seconds: float, files: tuple[int, int], workers: int, **keys: Any
) -> Path:
    """Generate a dataset; return the workload's file, of steps that compute `seconds`.

    `files` are how many, and the bytes of each.
    """
    return dataset(
        folder,
        dataset__num_files_train=files[0],
        dataset__record_length_bytes=files[1],
        reader__read_threads=workers,
        reader__data_loader=loader,
        train__computation_time=seconds,
        **keys,
    )


def throttled_disk(
    share: float, *, loader: str, num_steps: int, num_accelerators: int = 1, num_ranks: int = 1
) -> Found:
    """Run where the disk gives a share of what the accelerators ask for.

    AU is that share. Each accelerator has one worker, and a batch is one read: when the first step
    ends, no bytes of a later one have come, so there is nothing to correct for. The throttle gives
    the bytes of 0.1 s at once (block/blk-throttle.c): batches that come further apart come evenly.
    """
    interval = 0.11
    seconds = interval * share * num_accelerators
    with folder_on_disk() as folder:
        workload = job(
            folder,
            loader,
            seconds,
            (num_steps * num_accelerators, 1_000_000),
            1,
            reader__odirect=True,
        )
        _load_libraries()
        with (
            throttled_reads(folder, round(_direct_bytes(folder) / interval)) as group,
            start(
                workload,
                f"accelerators_per_rank={num_accelerators // num_ranks}",
                group=group,
                num_ranks=num_ranks,
            ) as run,
        ):
            return found(run, "storage" if share < 1 else "none", 100 * min(1.0, share))


def slow_rank(share: float, *, loader: str) -> Found:
    """Run two ranks, of which only rank 1 has a throttled disk."""
    seconds, num_steps = 0.11 * share, 50
    with folder_on_disk() as folder:
        workload = job(folder, loader, seconds, (2 * num_steps, 1_000_000), 1, reader__odirect=True)
        rate = share * _direct_bytes(folder) / seconds
        _load_libraries()
        with throttled_reads(folder, round(rate)) as group:
            enter = f'[ $OMPI_COMM_WORLD_RANK = 0 ] || echo $$ > {group.folder}/cgroup.procs; "$@"'
            with start(workload, num_ranks=2, before=("sh", "-c", enter, "sh")) as run:
                return found(run, "barrier", 100 * share)


def starved_of_cpu(*, loader: str) -> Found:
    """Run on files in memory, parsed by np.load, with a fifth of a core."""
    with folder_in_memory() as folder:
        workload = job(folder, loader, 0.002, (100, 2_000_000), 2, reader__decode="library")
        with cpu_quota(0.2) as group, start(workload) as run:
            run.wait_for("demand:")  # by then the libraries are loaded
            group.enter(run.process.pid)
            return found(run, "host cpu")


def one_cpu(*, loader: str) -> Found:
    """Run on the disk with several workers on one core, which np.load takes up."""
    with folder_on_disk() as folder:
        workload = job(
            folder, loader, 0.002, (60, 4_000_000), 4, reader__decode="library", train__epochs=2
        )
        with start(workload, before=("taskset", "-c", "0")) as run:
            return found(run, "host cpu")


def others_work(*, loader: str) -> Found:
    """Run on files in memory, parsed by np.load, while others' work fills all CPUs.

    The workers want half a core each: more than their share beside so many others.
    """
    with folder_in_memory() as folder:
        workload = job(folder, loader, 0.004, (100, 4_000_000), 2, reader__decode="library")
        _load_libraries()
        with contextlib.ExitStack() as others:
            for _ in range(3 * len(os.sched_getaffinity(0))):
                other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                others.callback(other.wait)
                others.callback(other.kill)
            with start(workload) as run:
                return found(run, "host cpu")


_SEVERAL: dict[str, Any] = {
    "dataset__format": "npy",  # whose payload ends with the file: what is read is the whole
    "dataset__num_files_train": 240,
    "dataset__record_length_bytes": 50_000,
    "dataset__record_length_bytes_stdev": 20_000,
    "reader__batch_size": 4,
    "reader__read_threads": 3,
    "reader__prefetch_size": 6,
    "reader__odirect": True,
    "reader__file_shuffle": "off",
    "reader__piece_bytes": 16_384,
}
"""60 batches of 4 records, each of one to six reads, by 3 workers that may each be 2 ahead."""


def truth(
    folder: Path, seconds: float, *, latency: float = 0.0, bytes_per_second: float = float("inf")
) -> float:
    """Return the AU of `_SEVERAL` by the files' own sizes.

    A read takes `latency` seconds; all together get `bytes_per_second`.
    """
    piece, batch = _SEVERAL["reader__piece_bytes"], _SEVERAL["reader__batch_size"]
    sizes = [path.stat().st_size for path in sorted((folder / "data" / "train").iterdir())]
    reads = [
        [Read(latency, min(piece, -(-(size - at) // 4096) * 4096)) for at in range(0, size, piece)]
        for size in sizes
    ]
    batches = [
        [read for record in reads[start : start + batch] for read in record]
        for start in range(0, len(reads), batch)
    ]
    return true_au(
        batches,
        workers=_SEVERAL["reader__read_threads"],
        prefetch_factor=_SEVERAL["reader__prefetch_size"] // _SEVERAL["reader__read_threads"],
        computation_time=seconds,
        bytes_per_second=bytes_per_second,
    )


def slow_answers(latency: float, *, loader: str) -> Found:
    """Run on files that take so long a read: records of other sizes, several workers, read ahead.

    Both times are long beside what a host takes to wake a process.
    """
    seconds = 0.4
    with folder_on_disk() as folder:
        keys = {"reader__data_loader": loader, "train__computation_time": seconds}
        workload = dataset(folder, **_SEVERAL, **keys)
        au = truth(folder, seconds, latency=latency)
        with (
            slow_files(folder / "data", seconds=latency) as point,
            start(workload, f"dataset.data_folder={point}") as run,
        ):
            return found(run, "loader" if au < 99 else "none", au)


def throttled_disk_of_several(share: float, *, loader: str) -> Found:
    """Run where all share a throttled disk: records of other sizes, several workers, read ahead."""
    seconds = 0.12
    with folder_on_disk() as folder:
        keys = {"reader__data_loader": loader, "train__computation_time": seconds}
        workload = dataset(folder, **_SEVERAL, **keys)
        sizes = [path.stat().st_size for path in (folder / "data" / "train").iterdir()]
        num_bytes = sum(-(-size // 4096) * 4096 for size in sizes)
        num_steps = _SEVERAL["dataset__num_files_train"] // _SEVERAL["reader__batch_size"]
        rate = round(share * num_bytes / (num_steps * seconds))
        _load_libraries()
        with throttled_reads(folder, rate) as group, start(workload, group=group) as run:
            return found(run, "storage", truth(folder, seconds, bytes_per_second=rate))


def slow_preprocessing(*, loader: str) -> Found:
    """Run with one worker that takes longer for a batch than the accelerator."""
    with folder_on_disk() as folder:
        workload = job(
            folder,
            loader,
            0.04,
            (50, 100_000),
            1,
            reader__odirect=True,
            reader__preprocess_time=0.1,
            reader__preprocess="sleep",
        )
        with start(workload) as run:
            return found(run, "loader", 40.0)


def warm_cache(share: float, *, loader: str) -> Found:
    """Run two epochs through the page cache, of which a share of the files was read before."""
    num_files = 100
    with folder_on_disk() as folder:
        workload = job(
            folder,
            loader,
            0.02,
            (num_files, 1_000_000),
            2,
            train__epochs=2,
            output__drop_caches=False,
        )
        paths = sorted((folder / "data" / "train").iterdir())
        drop(paths)
        for path in paths[: round(share * num_files)]:
            path.read_bytes()
        _load_libraries()
        with start(workload) as run:
            return replace(found(run, true_limit=None), true_cached=[share, 1.0])


@cache
def _load_libraries() -> None:
    """Have the page cache hold Python's libraries, which may lie on the same disk."""
    libraries = "import dlemu.run.job, dlemu.loaders.pytorch, mpi4py.MPI"
    subprocess.run([sys.executable, "-c", libraries], cwd=ROOT, check=True)


def _direct_bytes(folder: Path) -> int:
    """Return what the disk gives for a file, in blocks."""
    size = next((folder / "data" / "train").iterdir()).stat().st_size
    return -(-size // 4096) * 4096


def _both(case: Callable[..., Found], **keys: Any) -> dict[str, Callable[[], Found]]:
    return {loader: partial(case, loader=loader, **keys) for loader in ("threads", "pytorch")}


_CASES: dict[str, dict[str, Callable[[], Found]]] = {
    "disk at 0.3 of the demand": _both(throttled_disk, share=0.3, num_steps=50),
    "disk at 0.6 of the demand": _both(throttled_disk, share=0.6, num_steps=50),
    "disk at 0.9 of the demand": _both(throttled_disk, share=0.9, num_steps=50),
    "disk at 1.5 times the demand": _both(throttled_disk, share=1.5, num_steps=25),
    "disk at 0.6 of the demand of 4 accelerators on 2 ranks": _both(
        throttled_disk, share=0.6, num_steps=25, num_accelerators=4, num_ranks=2
    ),
    "rank 1 of 2 with a disk at 0.5 of its demand": _both(slow_rank, share=0.5),
    "files in memory, a fifth of a core": _both(starved_of_cpu),
    "4 workers on one core": _both(one_cpu),
    "others' work on all cores": _both(others_work),
    "reads take 100 ms, 3 workers, batches of 4 records of 1 to 6 reads": _both(
        slow_answers, latency=0.1
    ),
    "reads take 30 ms, 3 workers": _both(slow_answers, latency=0.03),
    "disk at 0.7 of the demand, 3 workers, batches of 4 records of many sizes": _both(
        throttled_disk_of_several, share=0.7
    ),
    "preprocessing takes 100 ms, 1 worker": _both(slow_preprocessing),
    "40% of the files in the page cache": _both(warm_cache, share=0.4),
}
CASES = {(name, loader): run for name, by in _CASES.items() for loader, run in by.items()}
"""What runs each case, by its name and the loader's."""
