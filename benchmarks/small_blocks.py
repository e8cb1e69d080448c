"""Compare `dlemu paths` through io_uring with fio's io_uring: same file, block size and depth.

    python -m benchmarks.small_blocks FOLDER [seconds=1] [rounds=10] [realtime=false]

Rounds go A B, B A … and the ratio is the median of the rounds' ratios. Wanted: at least 0.95 of
fio's IOPS. CPU is user and system time of the process, in seconds for a million I/Os. On a host
that others use as well, root may give both sides `realtime=true` (SCHED_FIFO): then the scheduler
does not decide the ratio.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.machine import describe_machine, markdown
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
    command = [
        *("fio", "--name=small", "--ioengine=io_uring", "--direct=1", "--rw=randread"),
        *(f"--filename={work.files[0]}", f"--bs={work.io_size}", f"--iodepth={work.depth}"),
        *("--time_based", f"--runtime={work.seconds}", "--output-format=json"),
    ]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    job = json.loads(out[out.index("{") :])["jobs"][0]
    number, seconds = job["read"]["total_ios"], job["read"]["runtime"] / 1e3
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds
    return _Side(number / seconds, cpu / number * 1e6)


def compare(work: Work, rounds: int) -> list[str]:
    """Return a row of the table."""
    found: dict[str, list[_Side]] = {"ours": [], "fio": []}
    for number in range(rounds):
        sides = [("ours", ours), ("fio", fio)]
        for name, measure in sides if number % 2 == 0 else sides[::-1]:
            time.sleep(_PAUSE)
            found[name].append(measure(work))
    ratios = [a.iops / b.iops for a, b in zip(found["ours"], found["fio"], strict=True)]
    low, middle, high = statistics.quantiles([side.iops for side in found["fio"]], n=4)
    medians = [
        f"{statistics.median(side[field] for side in found[name]):{form}}"
        for field, form in ((0, ".0f"), (1, ".2f"))
        for name in ("ours", "fio")
    ]
    size, depth = f"{work.io_size / 1024:g}", str(work.depth)
    noise = f"{100 * (high - low) / middle:.0f} %"
    return [size, depth, *medians, f"{statistics.median(ratios):.3f}", noise]


def main(arguments: list[str]) -> None:
    """Measure and print the table."""
    folder = Path(arguments[0])
    given = dict(argument.split("=", 1) for argument in arguments[1:])
    if given.get("realtime") == "true":
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
                    seconds=float(given.get("seconds", 1)),
                    depth=depth,
                )
                rows.append(compare(work, int(given.get("rounds", 10))))
    finally:
        Path(file).unlink(missing_ok=True)
    head = ["KiB", "depth", "IOPS", "fio IOPS", "CPU-s/M I/O", "fio's", "ratio", "fio: middle half"]
    print(markdown(head, rows))


if __name__ == "__main__":
    main(sys.argv[1:])
