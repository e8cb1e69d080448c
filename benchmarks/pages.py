"""What O_DIRECT gets into 4 KiB pages, as fio's buffers are, and into huge pages, as dlemu's are.

    python -m benchmarks.pages [rounds=5] [folder=build/pages] [readers=4]

The same threads read the same files in pieces of 1 MiB, in turn, round after round.
"""

import mmap
import os
import resource
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.machine import Rate, describe_machine, markdown, spread
from benchmarks.read import job
from dlemu.datagen import generate
from dlemu.storage.buffers import aligned_buffer
from dlemu.world.world import Alone

_PIECE = 1 << 20


def small_pages(num_bytes: int) -> memoryview:
    """Return memory that the kernel is asked to keep in 4 KiB pages."""
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memoryview(memory)


def read_all(paths: list[Path], buffers: list[memoryview]) -> Rate:
    """Read files, one thread to a buffer."""

    def read(number: int) -> None:
        for path in paths[number :: len(buffers)]:
            file, at = os.open(path, os.O_RDONLY | os.O_DIRECT), 0
            while got := os.preadv(file, [buffers[number]], at):
                at += got
            os.close(file)

    before, begin = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    threads = [threading.Thread(target=read, args=[number]) for number in range(len(buffers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Rate(sum(path.stat().st_size for path in paths), seconds, cpu)


def main(arguments: list[str]) -> None:
    """Measure and print the table."""
    given = dict(argument.split("=", 1) for argument in arguments)
    folder = Path(given.get("folder", "build/pages"))
    workload = job("unet3d", folder, "threads", True)
    try:
        generate(workload, world=Alone())
        paths = sorted((workload.data_folder / "train").iterdir())
        memory: dict[str, Callable[[int], memoryview]] = {
            "4 KiB": small_pages,
            "huge": aligned_buffer,
        }
        buffers = {
            name: [make(_PIECE) for _ in range(int(given.get("readers", 4)))]
            for name, make in memory.items()
        }
        rates: dict[str, list[Rate]] = {name: [] for name in memory}
        for _ in range(int(given.get("rounds", 5))):
            for name, own in rates.items():
                own.append(read_all(paths, buffers[name]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows = []
    for name, own in rates.items():
        pairs = list(zip(own, rates["4 KiB"], strict=True))
        rows.append(
            [
                name,
                spread([rate.cost for rate in own], ".3f"),
                spread([rate.cost / small.cost for rate, small in pairs]),
                spread([rate.speed for rate in own]),
                spread([rate.speed / small.speed for rate, small in pairs]),
            ]
        )
    print(f"{describe_machine()}; {len(rates['huge'])} rounds, median (min–max)\n")
    print(markdown(["pages", "CPU-s/GB", "× 4 KiB", "GB/s", "× 4 KiB"], rows))


if __name__ == "__main__":
    main(sys.argv[1:])
