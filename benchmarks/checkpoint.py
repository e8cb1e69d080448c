"""What writing and reading checkpoints costs beside fio, and the real writer beside ours.

    python -m benchmarks.checkpoint [rounds=5] [folder=build/checkpoint] [parts=fio,dcp]

fio: the Writer and the Reader and fio (psync, 1 MiB) move the same files in turn, A B, B A …, four
threads and one process. A ratio is of one round, so that a busy host weighs on both. CPU time is
that of the process and its threads; the thread that makes the bytes is counted apart, as fio makes
none. A row without making the bytes shows what that takes of the rate. Python's and fio's starts
are left out. Wanted: CPU of writing at most 1.3 times fio's, making the bytes at most 0.35 CPU-s a
GB, rate at least 0.95; CPU of reading at most 1.2 times.

dcp: `dlemu checkpoint` and torch.distributed.checkpoint write the same bytes to a drive of the
benchmark's own (a loop device, as root) whose writes the kernel holds to 20 MB/s. Wanted: within
5 %.
"""

import contextlib
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import (
    Asked,
    cpu_of_self,
    describe_machine,
    in_turn,
    markdown,
    ratios,
    run_fio,
    spread,
    tell,
)
from dlemu.checkpoint.files import Reader, Writer, WriteTimes
from dlemu.datagen.assemble import Content
from dlemu.storage.extents import extent_reader
from dlemu.storage.pagecache import drop
from tests.lab import warm
from tests.lab.drives import own_drive

FILES, FILE_BYTES, PIECE = 4, 128 << 20, 1 << 20
HELD = 20_000_000
"""Bytes per second of the drive that dcp is compared on."""


@dataclass(frozen=True)
class Cost:
    """What moving the files took."""

    seconds: float
    cpu: float
    generation: float = 0.0

    @property
    def rate(self) -> float:
        """GB/s."""
        return FILES * FILE_BYTES / 1e9 / self.seconds

    @property
    def cpu_per_gb(self) -> float:
        """CPU seconds for a GB, without making the bytes."""
        return (self.cpu - self.generation) / (FILES * FILE_BYTES / 1e9)


def paths(folder: Path) -> list[Path]:
    return [folder / f"file.{number}" for number in range(FILES)]


class Unmade(Content):
    """Leaves the buffers as they are."""

    def fill(self, out: NDArray[np.uint8], sample: int, offset: int = 0) -> None:
        pass


def write_ours(
    folder: Path, direct: bool, sample: Iterator[int], make: type[Content] = Content
) -> Cost:
    content = make(1)
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(Writer(content, piece_bytes=PIECE, direct=direct))
            for _ in range(FILES)
        ]
        pool = stack.enter_context(ThreadPoolExecutor(FILES))
        jobs = [
            (writer, path, next(sample))
            for writer, path in zip(writers, paths(folder), strict=True)
        ]
        begin, cpu = time.perf_counter(), cpu_of_self()

        def write(job: tuple[Writer, Path, int]) -> WriteTimes:
            writer, path, number = job
            return writer.write(path, FILE_BYTES, sample=number)

        times = list(pool.map(write, jobs))
        seconds, cpu = time.perf_counter() - begin, cpu_of_self() - cpu
    return Cost(seconds, cpu, sum(each.generation for each in times))


def read_ours(folder: Path, direct: bool, sample: Iterator[int]) -> Cost:
    with contextlib.ExitStack() as stack:
        readers = [
            stack.enter_context(Reader(extent_reader(direct=direct, piece_bytes=PIECE)))
            for _ in range(FILES)
        ]
        pool = stack.enter_context(ThreadPoolExecutor(FILES))
        begin, cpu = time.perf_counter(), cpu_of_self()
        list(
            pool.map(
                lambda pair: pair[0].read(pair[1], FILE_BYTES),
                zip(readers, paths(folder), strict=True),
            )
        )
        return Cost(time.perf_counter() - begin, cpu_of_self() - cpu)


def fio(way: str) -> Callable[[Path, bool, Iterator[int]], Cost]:
    """Return what lets fio write or read the files."""

    def move(folder: Path, direct: bool, sample: Iterator[int]) -> Cost:
        jobs = run_fio(
            *("--name=file", "--ioengine=psync", "--thread"),
            *(f"--rw={way}", f"--bs={PIECE}", f"--size={FILE_BYTES}", f"--numjobs={FILES}"),
            *(f"--directory={folder}", "--filename_format=file.$jobnum", "--fallocate=none"),
            *(f"--direct={int(direct)}", "--invalidate=0", f"--end_fsync={int(way == 'write')}"),
            way=way,
        )
        return Cost(max(job.job_seconds for job in jobs), sum(job.cpu_seconds for job in jobs))

    return move


def moved(
    folder: Path,
    direct: bool,
    anew: bool,
    samples: Iterator[int],
    move: Callable[[Path, bool, Iterator[int]], Cost],
) -> Cost:
    """Move the files: from no files if `anew`, else from files that no cache holds."""
    if anew:
        for path in paths(folder):
            path.unlink(missing_ok=True)
    else:
        drop(paths(folder))
    return move(folder, direct, samples)


def beside_fio(folder: Path, rounds: int) -> None:
    """Print the table beside fio."""
    folder.mkdir(parents=True, exist_ok=True)
    samples = iter(range(1 << 30))
    rows = []
    for way, what, ours in (
        ("write", "write", write_ours),
        ("write", "write, bytes not made", partial(write_ours, make=Unmade)),
        ("read", "read", read_ours),
    ):
        for direct in (False, True):
            sides = {
                name: partial(moved, folder, direct, way == "write", samples, move)
                for name, move in (("ours", ours), ("fio", fio(way)))
            }
            own, their = in_turn(sides, rounds).values()
            made = [each.generation / (FILES * FILE_BYTES / 1e9) for each in own]
            rows.append(
                [
                    f"{what}, {'O_DIRECT' if direct else 'page cache'}",
                    f"{statistics.median(each.rate for each in their):.2f}",
                    spread(ratios(own, their, lambda cost: cost.rate)),
                    f"{statistics.median(each.cpu_per_gb for each in their):.3f}",
                    spread(ratios(own, their, lambda cost: cost.cpu_per_gb)),
                    spread(made) if way == "write" else "",
                ]
            )
            tell(rows[-1])
    head = ("", "fio GB/s", "rate, ratio", "fio CPU-s/GB", "CPU, ratio", "making bytes, CPU-s/GB")
    print(markdown(head, rows))
    shutil.rmtree(folder)


@contextlib.contextmanager
def held_writes(folder: Path, rate: int) -> Iterator[None]:
    """Hold all writes of the drive under a folder, those of the page cache too.

    In cgroups v1 they count for the root group, which may have a limit of its own there.
    """
    device = os.stat(folder).st_dev
    limit = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")
    number = f"{os.major(device)}:{os.minor(device)}"
    limit.write_text(f"{number} {rate}")
    try:
        yield
    finally:
        limit.write_text(f"{number} 0")


def beside_dcp(rounds: int) -> None:
    """Print the durations of both writers on one held drive, and their ratio."""
    with own_drive(2 << 30) as drive, held_writes(drive, HELD):
        results = drive.parent / "results"

        def written(writer: str) -> tuple[float, int]:
            words = [
                *("checkpoint", "model=llama3_8b", "checkpoint.scale=0.002", "progress=off"),
                *("checkpoint.num_checkpoints_write=2", "checkpoint.num_checkpoints_read=0"),
                *(f"checkpoint.writer={writer}", "checkpoint.time_between_checkpoints=0"),
                *(f"checkpoint.checkpoint_folder={drive / 'ck'}", f"output.folder={results}"),
            ]
            done = warm.run([*warm.COMMAND, *words], cwd=drive.parent)
            assert done.returncode == 0, done.stderr
            told = json.loads((results / "summary.json").read_text())
            shutil.rmtree(results)
            seconds = told["metric"]["save_checkpoint_duration_mean_seconds"]
            return seconds, told["checkpoint"]["num_bytes"]

        found = in_turn({each: partial(written, each) for each in ("dlemu", "dcp")}, rounds)
    size = found["dcp"][0][1]
    seconds = {writer: [each for each, _ in own] for writer, own in found.items()}
    ideal = size / HELD
    rows = [
        (writer, spread(each), spread([one / ideal for one in each]))
        for writer, each in seconds.items()
    ]
    print(markdown(("writer", "seconds", "to bytes / held rate"), rows))
    shares = ratios(seconds["dlemu"], seconds["dcp"], float)
    print(f"\nours / dcp: {spread(shares, '.3f')} (wanted: 0.95 to 1.05)")


def main(arguments: list[str]) -> None:
    asked = Asked(arguments, "rounds", "folder", "parts")
    rounds, folder = asked.value("rounds", 5), asked.value("folder", "build/checkpoint")
    parts = asked.names("parts", ["fio", "dcp"])
    print(describe_machine(), flush=True)
    if "fio" in parts:
        beside_fio(Path(folder), rounds)
    if "dcp" in parts:
        beside_dcp(rounds)


if __name__ == "__main__":
    main(sys.argv[1:])
