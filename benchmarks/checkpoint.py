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
import itertools
import json
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import (
    Asked,
    Rate,
    cpu_of_self,
    describe_machine,
    in_turn,
    markdown,
    ratios,
    run_fio,
    scratch,
    spread,
    tell,
    timed,
)
from dlemu.checkpoint.files import Reader, Writer
from dlemu.datagen.assemble import Content
from dlemu.storage.extents import extent_reader
from dlemu.storage.pagecache import drop
from tests.lab import warm
from tests.lab.drives import own_drive

FILES, FILE_BYTES, PIECE = 4, 128 << 20, 1 << 20
HELD = 20_000_000
"""Bytes per second of the drive that dcp is compared on."""


class Moved(NamedTuple):
    """What moving the files took, and the CPU seconds of making their bytes."""

    rate: Rate
    made: float = 0.0

    @property
    def cost(self) -> float:
        """CPU seconds for a GB, without making the bytes."""
        return (self.rate.cpu_seconds - self.made) / self.rate.num_bytes * 1e9


Move = Callable[[Path, bool, Iterator[int]], Moved]


def paths(folder: Path) -> list[Path]:
    return [folder / f"file.{number}" for number in range(FILES)]


class Unmade(Content):
    """Leaves the buffers as they are."""

    def fill(self, out: NDArray[np.uint8], sample: int, offset: int = 0) -> None:
        pass


def in_threads(works: Sequence[Callable[[], float]]) -> Moved:
    """Do the works at once, a thread each; what they return together is the time of making."""
    made: list[float] = []
    with ThreadPoolExecutor(FILES) as pool:

        def all_files() -> float:
            made.extend(pool.map(lambda work: work(), works))
            return FILES * FILE_BYTES

        return Moved(timed(all_files, cpu_of_self), sum(made))


def write_ours(
    folder: Path, direct: bool, samples: Iterator[int], make: type[Content] = Content
) -> Moved:
    content = make(1)

    def write(writer: Writer, path: Path, sample: int) -> float:
        return writer.write(path, FILE_BYTES, sample=sample).generation

    with contextlib.ExitStack() as stack:
        writers = (Writer(content, piece_bytes=PIECE, direct=direct) for _ in range(FILES))
        each = zip(map(stack.enter_context, writers), paths(folder), samples, strict=False)
        return in_threads([partial(write, *job) for job in each])


def read_ours(folder: Path, direct: bool, samples: Iterator[int]) -> Moved:
    def read(reader: Reader, path: Path) -> float:
        reader.read(path, FILE_BYTES)
        return 0.0

    with contextlib.ExitStack() as stack:
        extents = (extent_reader(direct=direct, piece_bytes=PIECE) for _ in range(FILES))
        readers = [stack.enter_context(Reader(each)) for each in extents]
        return in_threads(
            [partial(read, *pair) for pair in zip(readers, paths(folder), strict=True)]
        )


def fio(way: str) -> Move:
    """Return what lets fio write or read the files."""

    def move(folder: Path, direct: bool, samples: Iterator[int]) -> Moved:
        jobs = run_fio(
            *("--name=file", "--ioengine=psync", "--thread"),
            *(f"--rw={way}", f"--bs={PIECE}", f"--size={FILE_BYTES}", f"--numjobs={FILES}"),
            *(f"--directory={folder}", "--filename_format=file.$jobnum", "--fallocate=none"),
            *(f"--direct={int(direct)}", "--invalidate=0", f"--end_fsync={int(way == 'write')}"),
            way=way,
        )
        seconds = max(job.job_seconds for job in jobs)
        return Moved(Rate(FILES * FILE_BYTES, seconds, sum(job.cpu_seconds for job in jobs)))

    return move


def moved(folder: Path, direct: bool, anew: bool, samples: Iterator[int], move: Move) -> Moved:
    """Move the files: from no files if `anew`, else from files that no cache holds."""
    if anew:
        for path in paths(folder):
            path.unlink(missing_ok=True)
    else:
        drop(paths(folder))
    return move(folder, direct, samples)


def beside_fio(folder: Path, rounds: int) -> None:
    """Print the table beside fio."""
    samples, rows = itertools.count(), []
    whats: dict[str, tuple[str, Move]] = {
        "write": ("write", write_ours),
        "write, bytes not made": ("write", partial(write_ours, make=Unmade)),
        "read": ("read", read_ours),
    }
    with scratch(folder) as files:
        for (what, (way, ours)), direct in itertools.product(whats.items(), (False, True)):
            do = partial(moved, files, direct, way == "write", samples)
            found = in_turn({"ours": partial(do, ours), "fio": partial(do, fio(way))}, rounds)
            own, their = found["ours"], found["fio"]
            made = [each.made / each.rate.num_bytes * 1e9 for each in own]
            row = [
                f"{what}, {'O_DIRECT' if direct else 'page cache'}",
                f"{statistics.median(each.rate.speed for each in their):.2f}",
                spread(ratios(own, their, lambda each: each.rate.speed)),
                f"{statistics.median(each.cost for each in their):.3f}",
                spread(ratios(own, their, lambda each: each.cost)),
                spread(made) if way == "write" else "",
            ]
            rows.append(tell(row))
    head = ("", "fio GB/s", "rate, ratio", "fio CPU-s/GB", "CPU, ratio", "making bytes, CPU-s/GB")
    print(markdown(head, rows))


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
