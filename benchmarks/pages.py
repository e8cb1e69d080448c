"""What O_DIRECT gets into 4 KiB pages, as fio's buffers are, and into huge pages, as dlemu's are.

    python -m benchmarks.pages [rounds=5] [folder=build/pages] [readers=4]

The same threads read the same files in pieces of 1 MiB, in turn, round after round.
"""

import mmap
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path

from benchmarks.harness import (
    Asked,
    Rate,
    cpu_of_self,
    describe_machine,
    in_turn,
    markdown,
    ratios,
    scratch,
    spread,
)
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

    before, begin = cpu_of_self(), time.perf_counter()
    threads = [threading.Thread(target=read, args=[number]) for number in range(len(buffers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, cpu = time.perf_counter() - begin, cpu_of_self() - before
    return Rate(sum(path.stat().st_size for path in paths), seconds, cpu)


def main(arguments: list[str]) -> None:
    """Measure and print the table."""
    asked = Asked(arguments, "rounds", "folder", "readers")
    with scratch(Path(asked.value("folder", "build/pages"))) as folder:
        workload = job("unet3d", folder, "threads", True)
        generate(workload, world=Alone())
        paths = sorted((workload.data_folder / "train").iterdir())
        sides = {
            name: partial(read_all, paths, [make(_PIECE) for _ in range(asked.value("readers", 4))])
            for name, make in (("4 KiB", small_pages), ("huge", aligned_buffer))
        }
        rates = in_turn(sides, asked.value("rounds", 5))
    small = rates["4 KiB"]
    rows = [
        [
            name,
            spread([rate.cost for rate in own], ".3f"),
            spread(ratios(own, small, lambda rate: rate.cost)),
            spread([rate.speed for rate in own]),
            spread(ratios(own, small, lambda rate: rate.speed)),
        ]
        for name, own in rates.items()
    ]
    print(f"{describe_machine()}; {len(small)} rounds, median (min–max)\n")
    print(markdown(["pages", "CPU-s/GB", "× 4 KiB", "GB/s", "× 4 KiB"], rows))


if __name__ == "__main__":
    main(sys.argv[1:])
