"""What dlemu says of a drive that changes its rate: python -m benchmarks.changing [ROW …]

The drive is a loop device of its own, held by a cgroup whose rate changes while a command runs; the
seconds count from its first reads of the dataset. One accelerator of ResNet-50, at a quarter of its
speed, needs 46 MB/s. Printed is what a user reads of each: the headline, the limit, and what was
said about the rate. Needs root, 7.3 GB of memory and 20 minutes; rows are chosen by their numbers.
"""

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dlemu.storage.pagecache import drop
from tests.lab.cgroups import Throttle, disk_of, throttled
from tests.lab.drives import own_drive

_MB = 1_000_000
_FILES = 46
"""Of 143 MB: more than any command reads within its minutes."""
_NUM_FILES = f"dataset.num_files_train={_FILES}"
_STEP = "train.computation_time=0.896"
"""Four times MLPerf's step of 0.224 s."""


class Row(NamedTuple):
    """A drive that changes, and a command that meets it."""

    rates: Sequence[tuple[float, float]]
    """(second, MB/s from then on)."""
    every: float | None
    """Seconds after which the rates begin anew; None: never."""
    words: Sequence[str]


_RUN = ("run", "workload=resnet50_h100")
_SIZE = ("size", "workload=resnet50_h100", "size.quick=true")
ROWS = {
    "1": Row([(0, 100), (33, 37.5)], None, [*_RUN, "num_accelerators=2"]),
    "2": Row([(0, 100), (70, 37.5)], None, [*_RUN, "num_accelerators=1"]),
    "3": Row([(0, 100), (45, 37.5)], None, ["try", "FOLDER", "workloads=[resnet50_h100]"]),
    "4": Row([(0, 100), (75, 37.5)], None, _SIZE),
    "5": Row([(0, 100), (10, 37.5)], 20, _SIZE),
    "6": Row([(0, 100), (12, 37.5)], None, ["calibrate", "workload=resnet50_h100"]),
    "7": Row([(0, 110), (4, 60)], 8, [*_RUN, "num_accelerators=2"]),
    "8": Row([(0, 40), (30, 120)], None, [*_RUN, "num_accelerators=2"]),
    "calm run": Row([(0, 100)], None, [*_RUN, "num_accelerators=2"]),
    "calm size": Row([(0, 100)], None, _SIZE),
}


def main(names: Sequence[str]) -> None:
    """Print what is said of each row."""
    with own_drive(7_300 * _MB) as point:
        data = point / "data"
        _say("datagen", "workload=resnet50_h100", _NUM_FILES, f"dataset.data_folder={data}")
        for name in names or ROWS:
            row = ROWS[name]
            print(f"\n## {name}: MB/s {row.rates}, every {row.every}: {' '.join(row.words)}\n")
            drop([*data.rglob("*.tfrecord")])
            with tempfile.TemporaryDirectory() as results, throttled() as group:
                folder = f"dataset.data_folder={data}"
                if row.words[0] == "try":
                    folder = f"output.folder={results}"
                words = [str(point) if word == "FOLDER" else word for word in row.words]
                words.append(_STEP)
                if row.words[0] in ("run", "size"):
                    words.append(f"output.folder={results}/run")
                if row.words[0] == "calibrate":
                    words.append(f"predict.calibration={results}/found.json")
                if row.words[0] != "try":
                    words += [_NUM_FILES, "train.epochs=1"]
                with _changing(group, point, row):
                    _say(*words, folder, enter=group.enter)


@contextlib.contextmanager
def _changing(group: Throttle, point: Path, row: Row) -> Iterator[None]:
    """Change the rate of the drive under a folder, from its first reads on."""
    ended = threading.Event()
    read = Path(f"/sys/dev/block/{disk_of(point)}/stat")

    def change() -> None:
        begun = _sectors(read)
        while _sectors(read) - begun < 20_000 and not ended.wait(0.05):  # 10 MB: the data, no index
            pass
        begin = time.monotonic()
        now = row.rates[0][1]
        while not ended.wait(0.05):
            second = time.monotonic() - begin
            second = second % row.every if row.every else second
            rate = [rate for since, rate in row.rates if since <= second][-1]
            if rate != now:
                now = rate
                group.hold(point, round(rate * _MB))

    group.hold(point, round(row.rates[0][1] * _MB))
    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _sectors(stat: Path) -> int:
    """Return how many sectors of 512 bytes were read from a drive."""
    return int(stat.read_text().split()[2])


def _say(*words: str, enter: Callable[[], None] | None = None) -> None:
    """Run dlemu and show what it prints; a FAIL is no error here."""
    command = [sys.executable, "-m", "dlemu", *words]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=enter)
    print(done.stdout, *done.stderr.splitlines()[-2:], sep="\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
