"""Compare our cuFile reader with plain O_DIRECT reads, to host memory and copied on to the GPU.

    python -m benchmarks.gds FOLDER [--register-drive] [seconds] [rounds]

Prints one Markdown table: GB/s and CPU-s/GB at 1, 2, 4 and 8 threads, and which path cuFile took,
by its own counters. All reads bypass the page cache. Wanted of cuFile: at least 0.95 of O_DIRECT's
throughput and at most 0.12 CPU-s/GB.

--register-drive writes the udev entry that cuFile needs and that containers lack (as root).
"""

import os
import platform
import statistics
import sys
from pathlib import Path

from dlemu.gpu import availability as gds
from dlemu.gpu import cuda
from dlemu.paths.blocks import DataPath, Work, perform
from dlemu.paths.random_files import write_random_file
from dlemu.storage.path_bytes import PathBytes

FILE_BYTES = 512 << 20
IO_BYTES = 4 << 20
THREADS = (1, 2, 4, 8)
PATHS: tuple[DataPath, ...] = ("host_direct", "host_direct_gpu_copy", "cufile")


def register_drive(folder: Path) -> None:
    """Tell cuFile, by way of udev's database, that an ext4 file system is on the folder's drive."""
    number = os.stat(folder).st_dev
    entry = Path(f"/run/udev/data/b{os.major(number)}:{os.minor(number)}")
    if not entry.exists():
        entry.parent.mkdir(parents=True, exist_ok=True)
        entry.write_text(
            "I:1000000\nE:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=ext4\nE:ID_FS_VERSION=1.0\nV:1\n"
        )


def main(folder: Path, seconds: float = 5.0, rounds: float = 3) -> int:
    found = gds.availability(folder)
    if not found.usable:
        print(f"cuFile cannot read {folder}: {found.why}")
        return 1
    library = gds.find_library()
    assert library is not None, "cuFile is usable"
    with cuda.Gpu() as gpu:
        name = gpu.name
    major, minor = cuda.driver_version()
    print(
        f"{name}, CUDA {major}.{minor}, cuFile {gds.library_version(library) / 1000:.2f}, kernel "
        f"{platform.release()}, {os.cpu_count()} CPUs; expected: {found.mode}. Blocks of "
        f"{IO_BYTES >> 20} MiB, a file of {FILE_BYTES >> 20} MiB each thread, {seconds:g} s, "
        f"median of {rounds:g}.\n"
    )
    print("| threads | path | taken | GB/s | of O_DIRECT | CPU-s/GB |")
    print("|---|---|---|---|---|---|", flush=True)
    files = tuple(str(folder / f"dlemu_paths.{index}") for index in range(max(THREADS)))
    try:
        for seed, file in enumerate(files):
            write_random_file(file, seed, FILE_BYTES)
        for threads in THREADS:
            rates: dict[DataPath, list[float]] = {path: [] for path in PATHS}
            costs: dict[DataPath, list[float]] = {path: [] for path in PATHS}
            taken = {path: PathBytes() for path in PATHS}
            for _ in range(int(rounds)):
                for path in PATHS:
                    work = Work(
                        path=path,
                        pattern="seq_read",
                        io_size=IO_BYTES,
                        files=files[:threads],
                        file_bytes=FILE_BYTES,
                        seconds=seconds,
                    )
                    done, elapsed = perform(work, lambda: None)
                    gigabytes = done.latencies.num * IO_BYTES / 1e9
                    rates[path].append(gigabytes / elapsed)
                    costs[path].append((done.user_seconds + done.system_seconds) / gigabytes)
                    taken[path] += done.path_bytes
            direct = statistics.median(rates["host_direct"])
            for path in PATHS:
                rate = statistics.median(rates[path])
                print(
                    f"| {threads} | {path} | {taken[path].mode} | {rate:.2f} "
                    f"| {rate / direct:.3f} | {statistics.median(costs[path]):.3f} |",
                    flush=True,
                )
    finally:
        for file in files:
            Path(file).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--register-drive"]
    target = Path(words[0])
    target.mkdir(parents=True, exist_ok=True)
    if "--register-drive" in sys.argv:
        register_drive(target)
    sys.exit(main(target, *map(float, words[1:3])))
