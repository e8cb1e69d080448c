"""Compare `dlemu paths` through io_uring with fio's io_uring: same file, block size and depth.

    python -m benchmarks.small_blocks FOLDER [seconds=1] [rounds=10] [realtime=false]

Rounds go A B, B A … and the ratio is the median of the rounds' ratios. Wanted: at least 0.95 of
fio's IOPS. CPU is user and system time of the process, in seconds for a million I/Os. On a host
that others use as well, root may give both sides `realtime=true` (SCHED_FIFO): then the scheduler
does not decide the ratio.
"""

import os
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

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
from dlemu.paths.blocks import Work, perform
from dlemu.paths.random_files import write_random_file
from dlemu.paths.sweep import smallest_direct

_FILE_BYTES = 512 << 20
_PAUSE = 0.3


class _Side(NamedTuple):
    iops: float
    cpu: float
    """CPU seconds for a million I/Os."""


def ours(work: Work) -> _Side:
    """Measure with dlemu."""
    done, elapsed = perform(work, lambda: None)
    number = done.latencies.num
    return _Side(number / elapsed, (done.user_seconds + done.system_seconds) / number * 1e6)


def fio(work: Work) -> _Side:
    """Measure with fio."""
    [job] = run_fio(
        *("--name=small", "--ioengine=io_uring", "--direct=1", "--rw=randread"),
        *(f"--filename={work.files[0]}", f"--bs={work.io_size}", f"--iodepth={work.depth}"),
        *("--time_based", f"--runtime={work.seconds}"),
    )
    return _Side(job.num_ios / job.seconds, job.cpu_seconds / job.num_ios * 1e6)


def compare(work: Work, rounds: int) -> list[str]:
    """Return a row of the table."""
    sides = {"ours": partial(ours, work), "fio": partial(fio, work)}
    found = in_turn(sides, rounds, pause=_PAUSE)
    ratio = statistics.median(ratios(found["ours"], found["fio"], lambda side: side.iops))
    medians = [
        f"{statistics.median(side[field] for side in found[name]):{form}}"
        for field, form in ((0, ".0f"), (1, ".2f"))
        for name in sides
    ]
    size, depth = f"{work.io_size / 1024:g}", str(work.depth)
    noise = middle_half([side.iops for side in found["fio"]])
    return [size, depth, *medians, f"{ratio:.3f}", f"{100 * noise:.0f} %"]


def main(arguments: list[str]) -> None:
    """Measure and print the table."""
    folder = Path(arguments[0])
    asked = Asked(arguments[1:], "seconds", "rounds", "realtime")
    if asked.value("realtime", "false") == "true":
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    print(describe_machine(), flush=True)
    file, rows = str(folder / "dlemu_paths.0"), []
    try:
        write_random_file(file, 0, _FILE_BYTES)
        for io_size in (size for size in (512, 4096) if size >= smallest_direct(folder)):
            for depth in (1, 4, 32, 128):
                work = Work(
                    path="host_io_uring",
                    pattern="random_read",
                    io_size=io_size,
                    files=(file,),
                    file_bytes=_FILE_BYTES,
                    seconds=asked.value("seconds", 1.0),
                    depth=depth,
                )
                rows.append(tell(compare(work, asked.value("rounds", 10))))
    finally:
        Path(file).unlink(missing_ok=True)
    head = ["KiB", "depth", "IOPS", "fio IOPS", "CPU-s/M I/O", "fio's", "ratio", "fio: middle half"]
    print(markdown(head, rows))


if __name__ == "__main__":
    main(sys.argv[1:])
