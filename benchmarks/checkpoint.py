"""What writing and reading checkpoints costs beside fio, and the real writer beside ours.

    python -m benchmarks.checkpoint [rounds=5] [folder=build/checkpoint] [parts=fio,dcp,dlio]

fio: the Writer and the Reader and fio (psync, 1 MiB) move the same files in turn, A B, B A …, four
threads and one process. A ratio is of one round, so that a busy host weighs on both. CPU time is
that of the process and its threads; the thread that makes the bytes is counted apart, as fio makes
none. A row without making the bytes shows what that takes of the rate. Python's and fio's starts
are left out. Wanted: CPU of writing at most 1.3 times fio's, making the bytes at most 0.35 CPU-s a
GB, rate at least 0.95; CPU of reading at most 1.2 times.

dcp: `dlemu checkpoint` and torch.distributed.checkpoint write the same bytes to a drive of the
benchmark's own (a loop device, as root) whose writes the kernel holds to 20 MB/s. Wanted: within
5 %.

dlio: DLIO 2.0.0 of `make peers` and the Writer write UNet3D's checkpoint in turn, into the folder.
DLIO writes by torch.save and does not sync; so both are timed until they have written, and until
the drive has it. DLIO's bytes are zeros, made once; ours are new and unique in each checkpoint.
"""

import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import describe_machine, markdown, spread
from dlemu.checkpoint.reader import Reader
from dlemu.checkpoint.times import WriteTimes
from dlemu.checkpoint.writer import Writer
from dlemu.datagen.content import Content
from dlemu.storage.pagecache import drop
from tests.lab import warm
from tests.lab.drives import own_drive
from tests.lab.peer import dlio_checkpoints, is_there

FILES, FILE_BYTES, PIECE = 4, 128 << 20, 1 << 20
HELD = 20_000_000
"""Bytes per second of the drive that dcp is compared on."""
UNET3D = 499_153_191
"""Bytes of UNet3D's checkpoint in MLPerf Storage."""


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


def used() -> float:
    """Return the CPU seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


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
        begin, cpu = time.perf_counter(), used()

        def write(job: tuple[Writer, Path, int]) -> WriteTimes:
            writer, path, number = job
            return writer.write(path, FILE_BYTES, sample=number)

        times = list(pool.map(write, jobs))
        seconds, cpu = time.perf_counter() - begin, used() - cpu
    return Cost(seconds, cpu, sum(each.generation for each in times))


def read_ours(folder: Path, direct: bool, sample: Iterator[int]) -> Cost:
    with contextlib.ExitStack() as stack:
        readers = [
            stack.enter_context(Reader(piece_bytes=PIECE, direct=direct)) for _ in range(FILES)
        ]
        pool = stack.enter_context(ThreadPoolExecutor(FILES))
        begin, cpu = time.perf_counter(), used()
        list(
            pool.map(
                lambda pair: pair[0].read(pair[1], FILE_BYTES),
                zip(readers, paths(folder), strict=True),
            )
        )
        return Cost(time.perf_counter() - begin, used() - cpu)


def fio(way: str) -> Callable[[Path, bool, Iterator[int]], Cost]:
    """Return what lets fio write or read the files."""

    def move(folder: Path, direct: bool, sample: Iterator[int]) -> Cost:
        command = [
            *("fio", "--name=file", "--ioengine=psync", "--output-format=json", "--thread"),
            *(f"--rw={way}", f"--bs={PIECE}", f"--size={FILE_BYTES}", f"--numjobs={FILES}"),
            *(f"--directory={folder}", "--filename_format=file.$jobnum", "--fallocate=none"),
            *(f"--direct={int(direct)}", "--invalidate=0", f"--end_fsync={int(way == 'write')}"),
        ]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        jobs = json.loads(out[out.index("{") :])["jobs"]
        seconds = max(job["job_runtime"] for job in jobs) / 1e3
        cpu = sum(
            (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3 for job in jobs
        )
        return Cost(seconds, cpu)

    return move


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
            costs: tuple[list[Cost], list[Cost]] = ([], [])
            for number in range(rounds):
                sides = list(zip(costs, (ours, fio(way)), strict=True))
                for found, move in sides if number % 2 == 0 else sides[::-1]:
                    if way == "write":
                        for path in paths(folder):
                            path.unlink(missing_ok=True)
                    else:
                        drop(paths(folder))
                    found.append(move(folder, direct, samples))
            own, their = costs
            pairs = list(zip(own, their, strict=True))
            made = [each.generation / (FILES * FILE_BYTES / 1e9) for each in own]
            rows.append(
                (
                    f"{what}, {'O_DIRECT' if direct else 'page cache'}",
                    f"{statistics.median(each.rate for each in their):.2f}",
                    spread([a.rate / b.rate for a, b in pairs]),
                    f"{statistics.median(each.cpu_per_gb for each in their):.3f}",
                    spread([a.cpu_per_gb / b.cpu_per_gb for a, b in pairs]),
                    spread(made) if way == "write" else "",
                )
            )
            print(rows[-1], file=sys.stderr, flush=True)
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
        seconds: dict[str, list[float]] = {"dlemu": [], "dcp": []}
        for number in range(rounds):
            for writer in ("dlemu", "dcp") if number % 2 == 0 else ("dcp", "dlemu"):
                results = drive.parent / f"{writer}.{number}"
                words = [
                    *("checkpoint", "model=llama3_8b", "checkpoint.scale=0.002", "progress=off"),
                    *("checkpoint.num_checkpoints_write=2", "checkpoint.num_checkpoints_read=0"),
                    *(f"checkpoint.writer={writer}", "checkpoint.time_between_checkpoints=0"),
                    *(f"checkpoint.checkpoint_folder={drive / 'ck'}", f"output.folder={results}"),
                ]
                done = warm.run([*warm.COMMAND, *words], cwd=drive.parent)
                assert done.returncode == 0, done.stderr
                told = json.loads((results / "summary.json").read_text())
                seconds[writer].append(told["metric"]["save_checkpoint_duration_mean_seconds"])
        size = told["checkpoint"]["num_bytes"]
    ratios = [a / b for a, b in zip(seconds["dlemu"], seconds["dcp"], strict=True)]
    ideal = size / HELD
    rows = [
        (writer, spread(each), spread([one / ideal for one in each]))
        for writer, each in seconds.items()
    ]
    print(markdown(("writer", "seconds", "to bytes / held rate"), rows))
    print(f"\nours / dcp: {spread(ratios, '.3f')} (wanted: 0.95 to 1.05)")


def beside_dlio(folder: Path, rounds: int, num_bytes: int = UNET3D) -> None:
    """Print seconds and CPU of DLIO's checkpointing and ours, and their ratios."""
    folder.mkdir(parents=True, exist_ok=True)
    content, samples = Content(1), iter(range(2 * rounds))
    own: dict[str, list[tuple[float, float]]] = {"written": [], "on the drive": []}
    their: dict[str, list[tuple[float, float]]] = {"written": [], "on the drive": []}
    made: list[float] = []

    def write_own(until: str) -> None:
        with Writer(content, piece_bytes=PIECE, fsync=until == "on the drive") as writer:
            cpu = used()
            times = writer.write(folder / "own.pt", num_bytes, sample=next(samples))
            made.append(times.generation / (num_bytes / 1e9))
            own[until].append((times.seconds, used() - cpu - times.generation))
        os.sync()
        (folder / "own.pt").unlink()

    with dlio_checkpoints(folder, num_bytes) as write_theirs:

        def write_dlio(until: str) -> None:
            told = write_theirs()
            their[until].append(told[until])
            Path(told["path"]).unlink()

        for number in range(rounds):
            for until in own:
                sides = (write_own, write_dlio)
                for write in sides if number % 2 == 0 else sides[::-1]:
                    os.sync()
                    write(until)
    rows = []
    for until in own:
        pairs = list(zip(own[until], their[until], strict=True))
        gb = num_bytes / 1e9
        rows.append(
            (
                f"until {until}",
                spread([theirs[0] for _, theirs in pairs]),
                spread([ours[0] / theirs[0] for ours, theirs in pairs]),
                spread([theirs[1] / gb for _, theirs in pairs], ".3f"),
                spread([ours[1] / theirs[1] for ours, theirs in pairs]),
            )
        )
    head = ("", "DLIO, s", "time, ours / DLIO", "DLIO, CPU-s/GB", "CPU, ours / DLIO")
    print(markdown(head, rows))
    print(f"\nmaking our bytes, beside that: {spread(made)} CPU-s/GB")
    shutil.rmtree(folder)


def main(rounds: int = 5, folder: str = "build/checkpoint", parts: str = "fio,dcp") -> None:
    print(describe_machine(), flush=True)
    if "dlio" in parts and not is_there():
        sys.exit("DLIO is not here; make peers sets it up")
    if "fio" in parts:
        beside_fio(Path(folder), rounds)
    if "dcp" in parts:
        beside_dcp(rounds)
    if "dlio" in parts:
        beside_dlio(Path(folder), rounds)


if __name__ == "__main__":
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    rounds = int(given.pop("rounds", "5"))
    main(rounds, **given)
