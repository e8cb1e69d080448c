"""Compare `dlemu paths` with fio: the same blocks, workers and seconds, in turn, on one folder.

    python -m benchmarks.paths_vs_fio FOLDER [seconds=1] [rounds=10]

fio runs with psync, which is what our workers do: one blocking call at a time. Rounds go A B, B A …
with a pause before each measurement, because rented drives save up credit while idle. The ratio is
the median of the rounds' ratios. Wanted: within 5 % at 64 KiB and more, 15 % at 4 KiB. Where the
middle half of fio's own rounds lies further apart than that, the drive is too noisy to tell, and
the row says so. On tmpfs, where no drive hides it, the table shows the price of Python alone.
"""

import statistics
import sys
from functools import partial
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
from dlemu.tools.paths.target import write_random_file

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
FIO_NAMES = {"seq_read": "read", "random_read": "randread", "seq_write": "write"}


def ours(work: Work) -> float:
    """Return GiB/s."""
    [(done, elapsed)] = perform([work])
    return done.latencies.num * work.io_size / elapsed / 2**30


def fio(work: Work) -> float:
    """Return GiB/s of fio on the same files."""
    [job] = run_fio(
        *("--name=paths", "--ioengine=psync", "--group_reporting"),
        *(f"--rw={FIO_NAMES[work.pattern]}", f"--bs={work.io_size}", f"--size={work.file_bytes}"),
        *(f"--numjobs={len(work.files)}", f"--directory={Path(work.files[0]).parent}"),
        *("--filename_format=dlemu_paths.$jobnum", "--invalidate=1", "--fallocate=none"),
        *("--time_based", f"--runtime={work.seconds}", f"--direct={int('direct' in work.path)}"),
        way="write" if work.writes else "read",
    )
    return job.num_bytes / job.seconds / 2**30


def row_of(work: Work, rounds: int) -> list[str]:
    """Return the row of a cell."""
    found = in_turn({"ours": partial(ours, work), "fio": partial(fio, work)}, rounds, pause=PAUSE)
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
    folder = Path(arguments[0])
    asked = Asked(arguments[1:], "seconds", "rounds")
    files = tuple(str(folder / f"dlemu_paths.{index}") for index in range(4))
    rows = []
    try:
        for seed, file in enumerate(files):
            write_random_file(file, seed, FILE_BYTES)
        for path, pattern, io_size, workers in CELLS:
            work = Work(
                path=path,
                pattern=pattern,
                io_size=io_size,
                files=files[:workers],
                file_bytes=FILE_BYTES,
                seconds=asked.value("seconds", 1.0),
            )
            rows.append(tell(row_of(work, asked.value("rounds", 10))))
    finally:
        for file in files:
            Path(file).unlink(missing_ok=True)
    print(f"{describe_machine()}\n")
    head = ["path", "pattern", "KiB", "workers", "ours GiB/s", "fio GiB/s", "ratio"]
    print(markdown([*head, "fio: middle half"], rows))


if __name__ == "__main__":
    main(sys.argv[1:])
