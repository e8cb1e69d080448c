"""Compare `dlemu paths` with fio: the same blocks, workers and seconds, in turn, on one folder.

    python -m benchmarks.paths_vs_fio FOLDER [seconds] [rounds]

fio runs with psync, which is what our workers do: one blocking call at a time. Rounds go A B, B A …
with a pause before each measurement, because rented drives save up credit while idle. The ratio is
the median of the rounds' ratios. Wanted: within 5 % at 64 KiB and more, 15 % at 4 KiB. Where the
middle half of fio's own rounds lies further apart than that, the drive is too noisy to tell, and
the row says so. On tmpfs, where no drive hides it, the table shows the price of Python alone.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from dlemu.paths.blocks import DataPath, Pattern, Work, perform
from dlemu.paths.random_files import write_random_file

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
    done, elapsed = perform(work, lambda: None)
    return done.latencies.num * work.io_size / elapsed / 2**30


def fio(work: Work) -> float:
    """Return GiB/s of fio on the same files."""
    command = [
        *("fio", "--name=paths", "--ioengine=psync", "--output-format=json", "--group_reporting"),
        *(f"--rw={FIO_NAMES[work.pattern]}", f"--bs={work.io_size}", f"--size={work.file_bytes}"),
        *(f"--numjobs={len(work.files)}", f"--directory={Path(work.files[0]).parent}"),
        *("--filename_format=dlemu_paths.$jobnum", "--invalidate=1", "--fallocate=none"),
        *("--time_based", f"--runtime={work.seconds}", f"--direct={int('direct' in work.path)}"),
    ]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    job = json.loads(out[out.index("{") :])["jobs"][0]
    side = job["write" if work.writes else "read"]
    return float(side["io_bytes"] / (side["runtime"] / 1e3) / 2**30)


def main(folder: Path, seconds: float = 1.0, rounds: float = 10) -> None:
    files = tuple(str(folder / f"dlemu_paths.{index}") for index in range(4))
    try:
        for seed, file in enumerate(files):
            write_random_file(file, seed, FILE_BYTES)
        print(
            "| path | pattern | KiB | workers | ours GiB/s | fio GiB/s | ratio | fio: middle half |"
        )
        print("|---|---|---|---|---|---|---|---|", flush=True)
        for path, pattern, io_size, workers in CELLS:
            work = Work(
                path=path,
                pattern=pattern,
                io_size=io_size,
                files=files[:workers],
                file_bytes=FILE_BYTES,
                seconds=seconds,
            )
            a: list[float] = []
            b: list[float] = []
            for number in range(int(rounds)):
                sides = [(a, ours), (b, fio)]
                for results, measure in sides if number % 2 == 0 else sides[::-1]:
                    time.sleep(PAUSE)
                    results.append(measure(work))
            ratio = statistics.median(our / their for our, their in zip(a, b, strict=True))
            low, _, high = statistics.quantiles(b, n=4)
            spread = (high - low) / statistics.median(b)
            limit = 0.15 if io_size < 64 << 10 else 0.05
            word = "" if abs(ratio - 1) <= limit else " (noise)" if spread > limit else " (OFF)"
            print(
                f"| {path} | {pattern} | {io_size >> 10} | {workers} "
                f"| {statistics.median(a):.3f} | {statistics.median(b):.3f} "
                f"| {ratio:.3f}{word} | {100 * spread:.0f} % |",
                flush=True,
            )
    finally:
        for file in files:
            Path(file).unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(float(text) for text in sys.argv[2:4]))
