"""Both training loops beside plain ones: python -m benchmarks.loops [simulated|measured|tf.data]

simulated   AU of both loops in simulated time, where each worker waits for its own reads and where
            all share a rate; capacity is equal to demand.
measured    dlemu's loops beside a plain loop around torch's DataLoader, on a FUSE folder whose
            reads take a set time (root). In turn, medians.
tf.data     how far TensorFlow itself reads ahead (`make peers`, strace), beside `batches_ahead`.
"""

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np

from dlemu.workload.model import load_workload
from tests.lab.bench import ROOT, dataset, folder_on_disk, start
from tests.lab.simulated import Loop, Read, true_au
from tests.lab.slow_files import slow_files

_LOOPS: tuple[Loop, ...] = get_args(Loop)
_ROUNDS = 5
_STEPS = 120
_WORKERS = 4
_READ_SECONDS = 0.02
_PIECE = 131_072  # a FUSE request of one read
_PIECES = 16
_COMPUTE = _PIECES * _READ_SECONDS / _WORKERS

PLAIN = """
import mmap, os, sys, time
from torch.utils.data import DataLoader, Dataset
from dlemu.clock import WallClock

paths = sorted(os.path.join(sys.argv[1], name) for name in os.listdir(sys.argv[1]))
loop, workers, factor, compute, piece = sys.argv[2], *map(float, sys.argv[3:])

class Files(Dataset):
    def __len__(self):
        return len(paths)

    def __getitem__(self, index):
        file = os.open(paths[index], os.O_RDONLY | os.O_DIRECT)
        memory, at = mmap.mmap(-1, int(piece)), 0
        while got := os.preadv(file, [memory], at):
            at += got
        os.close(file)
        return at

clock = WallClock.calibrate()
batches = iter(DataLoader(Files(), 1, num_workers=int(workers), prefetch_factor=int(factor)))
start = clock.now()
next(batches)
if loop == "rule":  # compute, then ask
    clock.sleep_until(clock.now() + compute)
    first = clock.now()
    for _ in batches:
        clock.sleep_until(clock.now() + compute)
else:  # launch, ask while the device computes, wait for the device
    ends = clock.now() + compute
    first = ends
    for _ in batches:
        clock.sleep_until(ends)
        ends = max(ends, clock.now()) + compute
    clock.sleep_until(ends)
print(100 * (len(paths) - 1) * compute / (clock.now() - first))
"""


def simulated() -> None:
    """Print AU over the variation of the batches' sizes."""
    print("AU (%), 4 workers, capacity = demand, 8000 steps; rule / pipelined")
    print(f"{'batches vary by':<18}{'own reads, 1 ahead':>22}{'own, 2 ahead':>22}{'shared, 1':>22}")
    for variation in (0.0, 0.1, 0.18, 0.47):
        generator = np.random.default_rng(1)
        sizes = np.maximum(0.01, generator.normal(1.0, variation, 8000))
        cells = []
        for factor, shared in ((1, False), (2, False), (1, True)):
            reads = [Read(num_bytes=each) if shared else Read(each) for each in sizes.tolist()]
            found = [
                true_au(
                    [[read] for read in reads],
                    workers=_WORKERS,
                    prefetch_factor=factor,
                    computation_time=1 / _WORKERS,
                    loop=loop,
                    bytes_per_second=_WORKERS,
                )
                for loop in _LOOPS
            ]
            cells.append(f"{found[0]:.1f} / {found[1]:.1f}")
        print(f"{f'{100 * variation:.0f} %':<18}" + "".join(f"{cell:>22}" for cell in cells))


def measured() -> None:
    """Print the median AU of dlemu's loops and of plain ones, run in turn."""
    with folder_on_disk() as folder:
        mean = _PIECES * _PIECE - _PIECE // 2
        workload = dataset(
            folder,
            dataset__num_files_train=_STEPS,
            dataset__record_length_bytes=mean,
            dataset__record_length_bytes_stdev=0.18 * mean,
            reader__read_threads=_WORKERS,
            reader__prefetch_size=_WORKERS,
            reader__piece_bytes=_PIECE,
            reader__odirect=True,
            reader__file_shuffle="off",
            train__computation_time=_COMPUTE,
        )
        found: dict[str, list[float]] = {}
        with slow_files(folder / "data", seconds=_READ_SECONDS) as point:
            for _ in range(_ROUNDS):
                for loop in _LOOPS:
                    plain = _plain(point / "train", loop)
                    found.setdefault(f"{loop}, plain DataLoader", []).append(plain)
                    for loader in ("pytorch", "threads"):
                        au = _ours(workload, point, loop, loader)
                        found.setdefault(f"{loop}, dlemu {loader}", []).append(au)
    print(f"AU (%) on reads of {1e3 * _READ_SECONDS:g} ms each, {_WORKERS} workers, one batch each")
    print("ahead, batches vary by 18 %, capacity = demand")
    for name, values in found.items():
        middle, low, high = statistics.median(values), min(values), max(values)
        print(f"{name:<28}{middle:>8.2f}   ({low:.2f} to {high:.2f})")


def _ours(workload: Path, point: Path, loop: Loop, loader: str) -> float:
    words = [f"dataset.data_folder={point}", f"train.loop={loop}", f"reader.data_loader={loader}"]
    with start(workload, *words) as run:
        run.completes()
        return float(run.summary["metric"]["train_au_mean_percentage"])


def _plain(folder: Path, loop: Loop) -> float:
    numbers = [str(number) for number in (_WORKERS, 1, _COMPUTE, _PIECE)]
    command = [sys.executable, "-c", PLAIN, str(folder), loop, *numbers]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return float(done.stdout)


TF_DATA = """
import os, sys, time
import tensorflow as tf

folder = sys.argv[1]
streams, batch, prefetch = map(int, sys.argv[2:])
names = sorted(os.path.join(folder, name) for name in os.listdir(folder))
files = tf.data.Dataset.list_files(names, shuffle=False)
records = tf.data.TFRecordDataset(files, buffer_size=262144, num_parallel_reads=streams)
batches = records.batch(batch, drop_remainder=True).prefetch(prefetch)
for step, _ in enumerate(batches):
    time.sleep(0.3)
    os.path.exists(f"/after-step-{step}")
    if step == 5:
        os._exit(0)
"""


def tf_data() -> None:
    """Print how many samples TensorFlow has opened ahead, one a file, beside what we read ahead."""
    python = ROOT / ".venv-peers" / "bin" / "python"
    if not python.exists() or shutil.which("strace") is None:
        sys.exit("tf.data needs strace and TensorFlow: make peers")
    print(f"{'streams':>8}{'batch':>8}{'prefetch':>10}{'tf.data, ahead':>20}{'batches_ahead':>18}")
    with tempfile.TemporaryDirectory() as scratch:
        write = "import os, sys, tensorflow as tf\nfor n in range(400):\n"
        write += " with tf.io.TFRecordWriter(f'{sys.argv[1]}/{n:03}.tfrecord') as w:\n"
        write += "  w.write(os.urandom(100_000))"
        subprocess.run([python, "-c", write, scratch], check=True, capture_output=True)
        for streams, batch, prefetch in ((4, 1, 2), (4, 4, 2), (8, 8, 2), (4, 16, 2), (4, 4, 4)):
            found = _opened_ahead(python, Path(scratch), streams, batch, prefetch)
            keys: dict[str, object] = {
                "reader.batch_size": batch,
                "reader.read_threads": streams,
                "reader.prefetch_size": prefetch,
            }
            ours = batch * load_workload("cosmoflow_h100", keys).reader.batches_ahead
            span = f"{min(found)} to {max(found)}"
            print(f"{streams:>8}{batch:>8}{prefetch:>10}{span:>20}{ours:>18}")


def _opened_ahead(python: Path, folder: Path, streams: int, batch: int, prefetch: int) -> list[int]:
    """Return the samples that were opened beyond those taken, when each step has computed."""
    command = ["strace", "-f", "-e", "trace=openat,stat,newfstatat,statx,access,faccessat"]
    command += [str(python), "-c", TF_DATA, str(folder)]
    command += [str(number) for number in (streams, batch, prefetch)]
    traced = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    opened: set[str] = set()
    ahead: dict[int, int] = {}
    for line in traced.splitlines():
        if name := re.search(r"openat\(.*/(\d+)\.tfrecord\"", line):
            opened.add(name[1])
        elif mark := re.search(r"after-step-(\d+)", line):
            step = int(mark[1])
            ahead.setdefault(step, len(opened) - (step + 1) * batch)
    return list(ahead.values())


TABLES: dict[str, Callable[[], None]] = {
    "simulated": simulated,
    "measured": measured,
    "tf.data": tf_data,
}

if __name__ == "__main__":
    for number, table in enumerate(sys.argv[1:] or TABLES):
        if table not in TABLES:
            sys.exit(f"no table {table}; known: {', '.join(TABLES)}")
        if number:
            print()
        TABLES[table]()
