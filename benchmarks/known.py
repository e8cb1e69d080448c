"""Runs whose answer is known: AU, limit, the share that comes from memory, what checkpoints cost.

The rate of a disk is set by a cgroup or a FUSE server, its latency by a file system of the tests'
own, the CPUs by a quota. `python -m benchmarks.truth` runs them, and says where dlemu is wrong.
"""

import contextlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.harness import Measured, all_of, at_most, named, near
from dlemu.report.words import evidence_of
from dlemu.storage.pagecache import drop
from tests.lab.bench import ROOT, Run, dataset, folder_in_memory, folder_on_disk, start
from tests.lab.cgroups import cpu_quota, throttled
from tests.lab.simulated import Read, true_au
from tests.lab.slow_files import INIT, IO, OPEN, READ, Server, attach, serving, slow_files

_DISK, _SLOW, _CACHED = 1.0, 2.0, 3.0
"""Points of AU, of a disk's rate and where a batch also costs a worker some time; and points of the
share that comes from memory."""


def answer(run: Run, limit: str, au: float | None = None, points: float = _SLOW) -> Measured:
    """Compare what an ended run says with the truth, as far as that is known."""
    run.completes()
    said = run.summary["limit"]
    if said["name"] != limit:
        print(evidence_of(said), file=sys.stderr)
    parts = [named("limit", said["name"], limit)]
    if au is not None:
        parts.append(near("AU", run.summary["metric"]["train_au_mean_percentage"], au, points))
    return all_of(*parts)


def job(
    folder: Path, loader: str, seconds: float, files: tuple[int, int], workers: int, **keys: Any
) -> Path:
    """Generate a dataset; return the workload's file, of steps that compute `seconds`.

    `files` are how many, and the bytes of each.
    """
    _load_libraries()
    return dataset(
        folder,
        dataset__num_files_train=files[0],
        dataset__record_length_bytes=files[1],
        reader__read_threads=workers,
        reader__data_loader=loader,
        train__computation_time=seconds,
        **keys,
    )


@cache
def _load_libraries() -> None:
    """Have the page cache hold Python's libraries, which may lie on the same disk."""
    libraries = "import dlemu.run.job, dlemu.loaders.pytorch, mpi4py.MPI"
    subprocess.run([sys.executable, "-c", libraries], cwd=ROOT, check=True)


def _files(folder: Path) -> list[Path]:
    return sorted((folder / "data" / "train").iterdir())


def _rate(folder: Path, seconds: float) -> int:
    """Return the bytes per second of a disk that gives all files, whole blocks, in so long."""
    return round(sum(-(-path.stat().st_size // 4096) * 4096 for path in _files(folder)) / seconds)


def throttled_disk(
    share: float, *, loader: str, num_steps: int = 50, num_accelerators: int = 1, num_ranks: int = 1
) -> Measured:
    """Run where the disk gives a share of what the accelerators ask for.

    AU is that share. Each accelerator has one worker, and a batch is one read: when the first step
    ends, no bytes of a later one have come, so there is nothing to correct for. The throttle gives
    the bytes of 0.1 s at once (block/blk-throttle.c): batches that come further apart come evenly.
    """
    interval, num_files = 0.11, num_steps * num_accelerators
    seconds = interval * share * num_accelerators
    each = f"accelerators_per_rank={num_accelerators // num_ranks}"
    with folder_on_disk() as folder:
        workload = job(folder, loader, seconds, (num_files, 1_000_000), 1, reader__odirect=True)
        with (
            throttled((folder, _rate(folder, num_files * interval))) as group,
            start(workload, each, group=group, num_ranks=num_ranks) as run,
        ):
            return answer(run, "storage" if share < 1 else "none", 100 * min(1.0, share), _DISK)


def slow_rank(share: float, *, loader: str) -> Measured:
    """Run two ranks, of which only rank 1 has a throttled disk."""
    interval, num_files = 0.11, 100
    with folder_on_disk() as folder:
        files = num_files, 1_000_000
        workload = job(folder, loader, interval * share, files, 1, reader__odirect=True)
        with throttled((folder, _rate(folder, num_files * interval))) as group:
            enter = f'[ $OMPI_COMM_WORLD_RANK = 0 ] || echo $$ > {group.folder}/cgroup.procs; "$@"'
            with start(workload, num_ranks=2, before=("sh", "-c", enter, "sh")) as run:
                return answer(run, "barrier", 100 * share, _DISK)


def starved_of_cpu(*, loader: str) -> Measured:
    """Run on files in memory, parsed by np.load, with a fifth of a core."""
    with folder_in_memory() as folder:
        workload = job(folder, loader, 0.002, (100, 2_000_000), 2, reader__decode="library")
        with cpu_quota(0.2) as group, start(workload) as run:
            run.wait_for("demand:")  # by then the libraries are loaded
            group.enter(run.process.pid)
            return answer(run, "host cpu")


def one_cpu(*, loader: str) -> Measured:
    """Run on the disk with several workers on one core, which np.load takes up."""
    keys = {"reader__decode": "library", "train__epochs": 2}
    with folder_on_disk() as folder:
        workload = job(folder, loader, 0.002, (60, 4_000_000), 4, **keys)
        with start(workload, before=("taskset", "-c", "0")) as run:
            return answer(run, "host cpu")


def others_work(*, loader: str) -> Measured:
    """Run on files in memory, parsed by np.load, while others' work fills all CPUs.

    The workers want half a core each: more than their share beside so many others.
    """
    with folder_in_memory() as folder, contextlib.ExitStack() as others:
        workload = job(folder, loader, 0.004, (100, 4_000_000), 2, reader__decode="library")
        for _ in range(3 * len(os.sched_getaffinity(0))):
            other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            others.callback(other.wait)
            others.callback(other.kill)
        with start(workload) as run:
            return answer(run, "host cpu")


_STEPS, _BATCH, _PIECE = 60, 4, 16_384
_SEVERAL: dict[str, Any] = {
    "files": (_STEPS * _BATCH, 50_000),
    "workers": 3,
    "dataset__format": "npy",  # whose payload ends with the file: what is read is the whole
    "dataset__record_length_bytes_stdev": 20_000,
    "reader__batch_size": _BATCH,
    "reader__prefetch_size": 6,
    "reader__odirect": True,
    "reader__file_shuffle": "off",
    "reader__piece_bytes": _PIECE,
}
"""Batches of 4 records, each of one to six reads, by 3 workers that may each be 2 ahead."""


def _truth(folder: Path, seconds: float, latency: float = 0.0, rate: float = float("inf")) -> float:
    """Return the AU of `_SEVERAL` by the files' own sizes.

    A read takes `latency` seconds; all together get `rate` bytes per second.
    """
    reads = [
        [
            Read(latency, min(_PIECE, -(-(size - at) // 4096) * 4096))
            for at in range(0, size, _PIECE)
        ]
        for size in (path.stat().st_size for path in _files(folder))
    ]
    return true_au(
        [[*chain.from_iterable(reads[at : at + _BATCH])] for at in range(0, len(reads), _BATCH)],
        workers=3,
        prefetch_factor=2,
        computation_time=seconds,
        bytes_per_second=rate,
    )


def slow_answers(latency: float, *, loader: str) -> Measured:
    """Run on files that take so long a read: records of other sizes, several workers, read ahead.

    Both times are long beside what a host takes to wake a process.
    """
    seconds = 0.4
    with folder_on_disk() as folder:
        workload = job(folder, loader, seconds, **_SEVERAL)
        au = _truth(folder, seconds, latency)
        with (
            slow_files(folder / "data", seconds=latency) as point,
            start(workload, f"dataset.data_folder={point}") as run,
        ):
            return answer(run, "loader" if au < 99 else "none", au)


def throttled_disk_of_several(share: float, *, loader: str) -> Measured:
    """Run where all share a throttled disk: records of other sizes, several workers, read ahead."""
    seconds = 0.12
    with folder_on_disk() as folder:
        workload = job(folder, loader, seconds, **_SEVERAL)
        rate = _rate(folder, _STEPS * seconds / share)
        with throttled((folder, rate)) as group, start(workload, group=group) as run:
            return answer(run, "storage", _truth(folder, seconds, rate=rate), _DISK)


def slow_preprocessing(*, loader: str) -> Measured:
    """Run with one worker that takes longer for a batch than the accelerator."""
    keys = {"reader__preprocess_time": 0.1, "reader__preprocess": "sleep", "reader__odirect": True}
    with (
        folder_on_disk() as folder,
        start(job(folder, loader, 0.04, (50, 100_000), 1, **keys)) as run,
    ):
        return answer(run, "loader", 40.0)


def warm_cache(share: float, *, loader: str) -> Measured:
    """Run two epochs through the page cache, of which a share of the files was read before."""
    num_files, keys = 100, {"train__epochs": 2, "output__drop_caches": False}
    with folder_on_disk() as folder:
        workload = job(folder, loader, 0.02, (num_files, 1_000_000), 2, **keys)
        drop(_files(folder))
        for path in _files(folder)[: round(share * num_files)]:
            path.read_bytes()
        with start(workload) as run:
            run.completes()
    said = run.summary["measured"]
    shares = *said["page_cache_share_per_epoch"], said["resident_share_before"]
    off = max(100 * abs(a - b) for a, b in zip(shares, (share, 1.0, share), strict=True))
    return at_most("points of the share from memory off", off, _CACHED)


_MIB = 1 << 20
_CHECKPOINT = ("workflow.checkpoint=true", "checkpoint.odirect=true", "model.name=flat")
_WRITE, _FSYNC = 16, 20
_FOPEN_DIRECT_IO = 1
_LATE = 0.05
"""Seconds by which requests may come late."""
_LARGEST = 1 << 20
"""Bytes of a request, at most."""


@contextlib.contextmanager
def serial_drive(num_bytes: int, read: int, write: int) -> Iterator[Path]:
    """Mount an ext4 file system on a drive that serves one request after the other.

    It reads and writes each at a rate, bytes/s, so reads and writes take its time from each other.
    The rates hold from the mount on: to make the file system takes no time. A FUSE server, that of
    `slow_files`, shows the image file in a folder again; a loop device lies over that.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="dlemu-serial-") as folder:
        source, shown, point = (Path(folder, name) for name in ("source", "shown", "mounted"))
        for path in (source, shown, point):
            path.mkdir()
        with (source / "image").open("wb") as file:
            file.truncate(num_bytes)
        quiet = ("-q", "-O", "^has_journal", "-m", "0", "-E", "lazy_itable_init=0")
        subprocess.run(["mkfs.ext4", *quiet, source / "image"], check=True)
        words = [__name__, serve.__name__, json.dumps([*map(str, (source, shown)), read, write])]
        with serving("benchmarks.harness", words, shown):
            subprocess.run(["mount", "-o", "loop,noatime", shown / "image", point], check=True)
            try:
                yield point
            finally:
                subprocess.run(["umount", point], check=True)


def serve(source: str, point: str, read: float, write: float) -> None:
    """Show the image in a folder at such a drive's rates, until killed."""
    with contextlib.suppress(OSError):  # a drive does not wait for a CPU
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    if (device := attach(Path(point))) is None:
        return
    server, image = Server(device, Path(source)), os.open(Path(source, "image"), os.O_RDWR)
    server.request_bytes = _LARGEST + (1 << 16)
    rates, free_at = {READ: read, _WRITE: write}, 0.0
    while True:
        what, unique, node, body, _, came = server.next_request()
        if what in rates:
            _, offset, size = IO.unpack_from(body)  # the head of a write begins alike
            # What comes a little after the request before counts as waiting: the host was busy.
            free_at = size / rates[what] + (came if came - free_at > _LATE else free_at)
            time.sleep(max(0.0, free_at - time.perf_counter()))
            if what == READ:
                found = os.pread(image, size, offset)
            else:
                found = struct.pack("<II", os.pwrite(image, body[-size:], offset), 0)
        elif what == INIT:  # as in slow_files, but with large writes
            found = struct.pack(
                "<4IHHIIHHII24x", 7, 31, 0, 1 | 1 << 22, 64, 64, _LARGEST, 1, 256, 0, 0, 0
            )
        elif what in (OPEN, _FSYNC):
            found = struct.pack("<QII", 0, _FOPEN_DIRECT_IO, 0) if what == OPEN else b""
        elif unique:
            try:
                found = server.reply(what, node, body)
            except OSError as error:
                server.answer(unique, b"", error.errno or 5)
                continue
        if unique:
            server.answer(unique, found)


def _checkpoints(
    loader: str, rates: tuple[int, int], seconds: float, files: tuple[int, int], *words: str
) -> dict[str, Any]:
    """Run on a drive of rates for reading and writing; return what is said of checkpoints."""
    with serial_drive(200 * _MIB, *rates) as drive:
        workload = job(drive, loader, seconds, files, 1, reader__odirect=True)
        folder = f"checkpoint.checkpoint_folder={drive}/checkpoints"
        with start(workload, *_CHECKPOINT, folder, *words) as run:
            run.completes()
            found: dict[str, Any] = run.summary["checkpoints"]
    return found


def synchronous_checkpoint(*, loader: str) -> Measured:
    """Write a checkpoint to a drive that reads and writes at set rates: a stall of bytes / rate."""
    num_bytes, rates = 40 * _MIB, (40_000_000, 10_000_000)
    words = "checkpoint.steps_between_checkpoints=4", "train.total_training_steps=6"
    size = f"model.model_size_bytes={num_bytes}"
    found = _checkpoints(loader, rates, 0.01, (8, 100_000), size, *words)
    truth = num_bytes / rates[1]
    return near("stall of a checkpoint", found["stall_seconds"][0], truth, 0.01 * truth)


def asynchronous_checkpoint(*, loader: str) -> Measured:
    """Write a checkpoint while a drive that serves one request after the other is read from.

    The drive gives 0.8 of the demand, so nothing is read ahead. One worker reads and one thread
    writes, each one request at a time. So they take turns: a step takes the time of a batch and of
    a piece. The checkpoint is begun between two epochs, and outlasts the second one.
    """
    rate, num_steps, batch = 20_000_000, 50, 1_003_520  # of 1 MB in a npz file, whole blocks
    seconds = 0.8 * batch / rate
    found = _checkpoints(
        loader,
        (rate, rate),
        seconds,
        (num_steps, 1_000_000),
        f"model.model_size_bytes={num_steps * 5 // 4 * _MIB}",
        "checkpoint.epochs_between_checkpoints=2",
        "train.epochs=2",
        "checkpoint.asynchronous=true",
    )
    written, otherwise = (100 * seconds * rate / taken for taken in (batch + _MIB, batch))
    return all_of(
        near("AU while a checkpoint is written", found["au_while_writing_percentage"], written, 1),
        near("AU in the other steps", found["au_otherwise_percentage"], otherwise, 1),
    )


_CASES: dict[str, tuple[Callable[..., Measured], dict[str, float]]] = {
    "disk at 0.3 of the demand": (throttled_disk, {"share": 0.3}),
    "disk at 0.6 of the demand": (throttled_disk, {"share": 0.6}),
    "disk at 0.9 of the demand": (throttled_disk, {"share": 0.9}),
    "disk at 1.5 times the demand": (throttled_disk, {"share": 1.5, "num_steps": 25}),
    "disk at 0.6 of the demand of 4 accelerators on 2 ranks": (
        throttled_disk,
        {"share": 0.6, "num_steps": 25, "num_accelerators": 4, "num_ranks": 2},
    ),
    "rank 1 of 2 with a disk at 0.5 of its demand": (slow_rank, {"share": 0.5}),
    "files in memory, a fifth of a core": (starved_of_cpu, {}),
    "4 workers on one core": (one_cpu, {}),
    "others' work on all cores": (others_work, {}),
    "reads take 100 ms, 3 workers, batches of 4 records of 1 to 6 reads": (
        slow_answers,
        {"latency": 0.1},
    ),
    "reads take 30 ms, 3 workers": (slow_answers, {"latency": 0.03}),
    "disk at 0.7 of the demand, 3 workers, batches of 4 records of many sizes": (
        throttled_disk_of_several,
        {"share": 0.7},
    ),
    "preprocessing takes 100 ms, 1 worker": (slow_preprocessing, {}),
    "40% of the files in the page cache": (warm_cache, {"share": 0.4}),
    "a checkpoint, synchronous": (synchronous_checkpoint, {}),
    "a checkpoint, asynchronous": (asynchronous_checkpoint, {}),
}
CASES = {
    f"{name}, {loader}": partial(case, loader=loader, **keys)
    for name, (case, keys) in _CASES.items()
    for loader in ("threads", "pytorch")
}
"""What runs each case, by its name and the loader's."""
