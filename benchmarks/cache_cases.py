"""Runs through a cache between two drives of known rates: the AU of each epoch, beside the truth.

Two loop devices are held to a rate by a cgroup, which lets the bytes of 0.1 s pass at once. The
truth is told step by step, of drives that do so. `python -m benchmarks.truth cache` runs two cases.
"""

import heapq
import itertools
import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlemu.config.model import Workload
from dlemu.dataset.layout import Dataset
from dlemu.dataset.plan import make_plan
from dlemu.judge.records import read_config
from dlemu.loaders.cache.hits import PlannedCache
from dlemu.loaders.cache.host import file_sizes
from dlemu.loaders.steps import Window
from dlemu.units import round_up
from tests.lab import warm
from tests.lab.cgroups import throttled_reads

_PIECE = 1 << 20
"""reader.piece_bytes"""
_SLICE = 0.1
"""Seconds for which the kernel lets reads pass at once."""
_QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@dataclass(frozen=True)
class Case:
    """A run whose AU is known."""

    name: str
    demand: float
    """Bytes per second of both accelerators together."""
    keys: Mapping[str, object]
    num_files: int = 120
    sample: int = 10_000_000
    origin: int = 50_000_000
    """Bytes per second that the drive gives; the next one likewise."""
    cache: int = 500_000_000


def words_of(case: Case, folders: Mapping[str, Path]) -> list[str]:
    """Return the words of `dlemu run` for a case."""
    keys: dict[str, object] = {
        "dataset.data_folder": folders["origin"] / "data",
        "cache.folder": folders["cache"] / "tier",
        "output.folder": _out(case, folders),
        "dataset.num_files_train": case.num_files,
        "dataset.record_length_bytes": case.sample,
        "dataset.record_length_bytes_stdev": 0,
        "reader.data_loader": "threads",
        "reader.batch_size": 1,
        "reader.read_threads": 2,
        "reader.odirect": True,
        "train.computation_time": 2 * case.sample / case.demand,
        "train.epochs": 3,
        "num_accelerators": 2,
        **case.keys,
    }
    return ["workload=unet3d_h100", *(f"{key}={value}" for key, value in keys.items())]


@dataclass
class _Drive:
    """A drive that the kernel holds to a rate, in slices (block/blk-throttle.c of Linux 6.18).

    The bytes of a whole slice may be read at its begin, and one slice that was left idle is kept.
    """

    rate: float
    _start: float = 0.0
    _end: float = -1.0
    _read: float = 0.0
    """Bytes since `_start`."""
    _free: float = 0.0

    def ends(self, now: float, num_bytes: float) -> float:
        """Return when a read ends that comes now; reads come in the order of their times."""
        each = _SLICE
        if now >= self._free and now > self._end:
            self._start, self._read = now, 0.0
        now = max(now, self._free)
        while True:
            passed = now - self._start
            rounded = each * max(1, math.ceil(passed / each - 1e-9))
            missing = self._read + num_bytes - self.rate * rounded
            if missing <= 1e-3:
                break
            now += missing / self.rate + rounded - passed
        self._read += num_bytes
        self._free, self._end = now, now + each
        if (num := int(passed / each + 1e-9) - 1) > 0:
            self._read = max(0.0, self._read - num * each * self.rate)
            self._start += num * each
        return now


def true_au(case: Case, hits: NDArray[np.bool_], *, file_bytes: int, ahead: int) -> float:
    """Return the AU in percent of an epoch, told by events; `hits` is (reads,), in their order.

    Each accelerator has two workers, which take its steps in turn, and read one piece of a file
    after the other. They read `ahead` steps ahead at most.
    """
    table, computes = hits.reshape(-1, 2), 2 * case.sample / case.demand
    drives = [_Drive(rate) for rate in (case.origin, case.cache)]
    pieces = [_PIECE] * (file_bytes // _PIECE) + [file_bytes % _PIECE]
    windows = [Window(ahead=ahead, takes_early=0) for _ in range(2)]
    workers = [[0, 1] for _ in windows]
    left: dict[tuple[int, int], list[int]] = {}
    made: set[tuple[int, int]] = set()
    events: list[tuple[float, int, int, int]] = []
    numbers = itertools.count()  # what ends at the same time goes on in the order of its begin
    now, step, computing = 0.0, 0, False

    def go_on(column: int, worker: int) -> None:
        drive = drives[int(table[workers[column][worker], column])]
        end = drive.ends(now, left[column, worker].pop())
        heapq.heappush(events, (end, next(numbers), column, worker))

    for window in windows:
        window.begin(0)
    while step < len(table):
        for column, window in enumerate(windows):
            for worker, task in enumerate(workers[column]):
                if (column, worker) not in left and task < min(len(table), window.limit):
                    left[column, worker] = pieces[::-1]
                    go_on(column, worker)
        if not computing and {(step, 0), (step, 1)} <= made:
            computing = True
            heapq.heappush(events, (now + computes, next(numbers), -1, 0))
        now, _, column, worker = heapq.heappop(events)
        if column < 0:
            step, computing = step + 1, False
            for window in windows:
                window.begin(step)
        elif left[column, worker]:
            go_on(column, worker)
        else:
            del left[column, worker]
            task = workers[column][worker]
            made.add((task, column))
            windows[column].made(task)
            workers[column][worker] += 2
    return 100 * len(table) * computes / now


class Row(NamedTuple):
    """AU of an epoch in percent: found, and as it must be."""

    found: float
    true: float


def run(case: Case, folders: Mapping[str, Path]) -> list[Row]:
    """Run a case; return its epochs."""
    words = words_of(case, folders)
    warm.run([*warm.COMMAND, "datagen", *_of_dataset(words)], **_QUIET).check_returncode()
    with throttled_reads(folders["origin"], case.origin, (folders["cache"], case.cache)) as group:
        process = warm.Popen([*warm.COMMAND, "run", *words], enter=group.enter, **_QUIET)
        assert process.wait() in (0, 2)
    summary = json.loads((_out(case, folders) / "summary.json").read_text())
    measured: dict[str, Any] = summary["measured"]
    cached = measured["cache"]
    found = [epoch["whole_epoch_au_percentage"] for epoch in summary["per_epoch"]]
    assert cached["hit_bytes_per_epoch"] == cached["planned_hit_bytes_per_epoch"]
    workload = read_config(_out(case, folders), {})
    file_bytes = int(round_up(file_sizes(Dataset.of(workload)))[0])
    ahead = workload.reader.batches_ahead
    return [
        Row(au, true_au(case, hits, file_bytes=file_bytes, ahead=ahead))
        for au, hits in zip(found, planned_hits(workload), strict=True)
    ]


def planned_hits(workload: Workload) -> list[NDArray[np.bool_]]:
    """Return which reads of each epoch hit, by the plan alone."""
    dataset, cache = Dataset.of(workload), workload.cache
    sizes = round_up(file_sizes(dataset))
    plan = PlannedCache(cache.policy, int(cache.capacity * int(sizes.sum())), sizes)
    if cache.warm:
        plan.fill_up()
    orders = (
        make_plan(workload, dataset.layout, num_accelerators=2, epoch=epoch).samples
        for epoch in range(workload.train.epochs)
    )
    return [plan.epoch(order.ravel().tolist()).hits for order in orders]


def _out(case: Case, folders: Mapping[str, Path]) -> Path:
    return folders["out"] / case.name.replace(" ", "-").replace(",", "")


def _of_dataset(words: Sequence[str]) -> list[str]:
    return [word for word in words if word.startswith(("workload", "dataset"))]
