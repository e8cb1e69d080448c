"""Compare `dlemu paths` with fio: the same blocks, workers and seconds, in turn, on the same files.

    python -m benchmarks.paths_vs_fio FOLDER [seconds=1] [rounds=10]
    python -m benchmarks.paths_vs_fio FOLDER,FOLDER [seconds=1] [rounds=10]     # at the same time

fio runs with psync, which is what our workers do: one blocking call at a time. Rounds go A B, B A …
with a pause before each measurement, because rented drives save up credit while idle. The ratio is
the median of the rounds' ratios. Wanted: within 5 % at 64 KiB and more, 15 % at 4 KiB. Where the
middle half of fio's own rounds lies further apart than that, the drive is too noisy to tell, and
the row says so. On tmpfs, where no drive hides it, the table shows the price of Python alone.
"""

import statistics
import sys
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from benchmarks.harness import (
    Asked,
    describe_machine,
    in_turn,
    markdown,
    middle_half,
    ratios,
    run_fio,
    tell,
)
from dlemu.tools.paths.blocks import DataPath, Pattern, Work, perform
from dlemu.tools.paths.cells import write_random_file

FILE_BYTES = 256 << 20
PAUSE = 0.5
CELLS: tuple[tuple[DataPath, Pattern, int, int], ...] = (
    ("host_direct", "random_read", 4 << 10, 1),
    ("host_direct", "random_read", 4 << 10, 4),
    ("host_direct", "seq_read", 64 << 10, 1),
    ("host_direct", "seq_read", 64 << 10, 4),
    ("host_direct", "random_read", 128 << 10, 4),
    ("host_direct", "seq_read", 1 << 20, 4),
    ("host_direct", "seq_read", 4 << 20, 4),
    ("host_direct", "seq_write", 1 << 20, 4),
    ("host_buffered", "random_read", 4 << 10, 4),
    ("host_buffered", "seq_read", 64 << 10, 1),
    ("host_buffered", "seq_read", 1 << 20, 1),
)
TOGETHER: tuple[tuple[DataPath, Pattern, int, int], ...] = (
    ("host_direct", "random_read", 4 << 10, 4),
    ("host_direct", "random_read", 1 << 20, 4),
)
"""Of each of several folders, all at the same time: fio has a job for each."""
FIO_NAMES = {"seq_read": "read", "random_read": "randread", "seq_write": "write"}


def ours(works: Sequence[Work]) -> float:
    """Return GiB/s, of all folders together."""
    done = perform(works)
    return sum(each.latencies.num * works[0].io_size / each.seconds / 2**30 for each in done)


def fio(works: Sequence[Work]) -> float:
    """Return GiB/s of fio on the same files."""
    work = works[0]
    words = [f"--rw={FIO_NAMES[work.pattern]}", f"--bs={work.io_size}"]
    words += [f"--size={work.file_bytes}", f"--numjobs={len(work.files)}", "--group_reporting"]
    words += ["--ioengine=psync", f"--direct={int('direct' in work.path)}", "--invalidate=1"]
    words += ["--fallocate=none", "--time_based", f"--runtime={work.seconds}"]
    for number, each in enumerate(works):
        folder = Path(each.files[0]).parent
        words += [f"--name=paths{number}", f"--directory={folder}", "--new_group"]
        words.append("--filename_format=dlemu_paths.$jobnum")
    jobs = run_fio(*words, way="write" if work.writes else "read")
    return sum(job.num_bytes / job.seconds / 2**30 for job in jobs)


def row_of(works: Sequence[Work], rounds: int) -> list[str]:
    """Return the row of a cell."""
    work = works[0]
    found = in_turn({"ours": partial(ours, works), "fio": partial(fio, works)}, rounds, pause=PAUSE)
    ratio = statistics.median(ratios(found["ours"], found["fio"], float))
    noise = middle_half(found["fio"])
    limit = 0.15 if work.io_size < 64 << 10 else 0.05
    word = "" if abs(ratio - 1) <= limit else " (noise)" if noise > limit else " (OFF)"
    return [
        *(work.path, work.pattern, str(work.io_size >> 10), str(len(work.files))),
        *(f"{statistics.median(each):.3f}" for each in found.values()),
        f"{ratio:.3f}{word}",
        f"{100 * noise:.0f} %",
    ]


def main(arguments: list[str]) -> None:
    """Measure each cell and print the table."""
    asked = Asked(arguments[1:], "seconds", "rounds")
    folders = arguments[0].split(",")
    files = [[f"{folder}/dlemu_paths.{index}" for index in range(4)] for folder in folders]
    rows = []
    try:
        for seed, file in enumerate(chain.from_iterable(files)):
            write_random_file(file, seed, FILE_BYTES)
        for path, pattern, io_size, workers in CELLS if len(folders) == 1 else TOGETHER:
            works = [
                Work(
                    target="",
                    path=path,
                    pattern=pattern,
                    io_size=io_size,
                    workers=workers,
                    files=tuple(own[:workers]),
                    file_bytes=FILE_BYTES,
                    seconds=asked.value("seconds", 1.0),
                )
                for own in files
            ]
            rows.append(tell(row_of(works, asked.value("rounds", 10))))
    finally:
        for file in chain.from_iterable(files):
            Path(file).unlink(missing_ok=True)
    print(f"{describe_machine()}\n")
    head = ["path", "pattern", "KiB", "workers", "ours GiB/s", "fio GiB/s", "ratio"]
    print(markdown([*head, "fio: middle half"], rows))


if __name__ == "__main__":
    main(sys.argv[1:])
