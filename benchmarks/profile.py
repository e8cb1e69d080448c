"""Where the time of reading goes: python -m benchmarks.profile [datasets=unet3d,...] [lines=8].

A dataset lies in tmpfs and is read by this thread alone, as a worker reads it. A timer of CPU time
interrupts it 1,000 times a second, and the line it is at is noted: calls of the kernel and of C
count for the line that makes them.
"""

import linecache
import resource
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from benchmarks.machine import describe_machine, markdown
from benchmarks.read import DATASETS, job, make_plan
from dlemu.datagen import generate
from dlemu.dataset.layout import Dataset
from dlemu.loaders import open_loader
from dlemu.world.world import Alone

_SECONDS = 0.001
_FEWEST_SAMPLES = 2000

Lines = Counter[tuple[str, int]]


@contextmanager
def sampled() -> Iterator[Lines]:
    """Count the lines at which this thread is found."""
    lines: Lines = Counter()

    def note(_: int, frame: FrameType | None) -> None:
        if frame is not None:
            lines[frame.f_code.co_filename, frame.f_lineno or 0] += 1

    before = signal.signal(signal.SIGPROF, note)
    signal.setitimer(signal.ITIMER_PROF, _SECONDS, _SECONDS)
    try:
        yield lines
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def profile(name: str, data: Path, num_lines: int) -> str:
    """Return the table of a dataset: its lines by the share of CPU time."""
    workload = job(name, data, "threads", direct=False)
    generate(workload, world=Alone())
    workload = workload.with_keys({"reader.read_threads": 0})
    loader = open_loader(Dataset.of(workload), accelerators=range(1), keep=0)
    epoch = 0
    for _ in loader.epoch(epoch, make_plan(workload, epoch)):
        pass
    before = resource.getrusage(resource.RUSAGE_SELF)
    with sampled() as lines:
        while lines.total() < _FEWEST_SAMPLES:
            epoch += 1
            for _ in loader.epoch(epoch, make_plan(workload, epoch)):
                pass
    after = resource.getrusage(resource.RUSAGE_SELF)
    loader.close()
    user, kernel = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    rows = [["all", f"{100 * kernel / (user + kernel):.0f} % of it in the kernel", "100"]]
    rest = 100.0
    for (file, number), count in lines.most_common(num_lines):
        share = 100 * count / lines.total()
        rest -= share
        where = "/".join(Path(file).parts[-2:])
        code = linecache.getline(file, number).strip().replace("|", "\\|")
        rows.append([f"{where}:{number}", f"`{code}`", f"{share:.1f}"])
    rows.append(["other lines", "", f"{rest:.1f}"])
    return markdown([f"{name}: place", "line", "CPU (%)"], rows)


def main(arguments: list[str]) -> None:
    """Print a table for each dataset."""
    given = dict(argument.split("=", 1) for argument in arguments)
    names = given["datasets"].split(",") if "datasets" in given else list(DATASETS)
    print(describe_machine())
    for name in names:
        data = Path(tempfile.mkdtemp(prefix="dlemu-profile.", dir="/dev/shm"))
        try:
            table = profile(name, data, int(given.get("lines", 8)))
        finally:
            shutil.rmtree(data)
        print(f"\n{table}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
