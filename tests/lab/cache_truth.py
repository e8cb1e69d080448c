"""Runs through a cache between two drives of known rates: the AU of each epoch, beside the truth.

Two loop devices are held to a rate by a cgroup; `python -m benchmarks.cache_truth` prints cases.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlemu.dataset.layout import Dataset
from dlemu.dataset.plan import make_plan
from dlemu.results.records import read_config
from dlemu.tier.hits import PlannedCache
from dlemu.tier.host import file_sizes
from dlemu.units import round_up
from dlemu.workload.model import Workload
from tests.lab import warm
from tests.lab.cgroups import throttled_reads

ORIGIN, CACHE = 50_000_000, 500_000_000
"""Bytes per second."""
FILES, SAMPLE = 320, 1_000_000
_QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@dataclass(frozen=True)
class Case:
    """A run whose AU is known."""

    name: str
    demand: float
    """Bytes per second of both accelerators together."""
    keys: Mapping[str, object]
    num_files: int = FILES


def words_of(case: Case, folders: Mapping[str, Path]) -> list[str]:
    """Return the words of `dlemu run` for a case."""
    keys: dict[str, object] = {
        "dataset.data_folder": folders["origin"] / "data",
        "cache.folder": folders["cache"] / "tier",
        "output.folder": _out(case, folders),
        "dataset.num_files_train": case.num_files,
        "dataset.record_length_bytes": SAMPLE,
        "dataset.record_length_bytes_stdev": 0,
        "reader.data_loader": "threads",
        "reader.batch_size": 1,
        "reader.read_threads": 2,
        "reader.odirect": True,
        "train.computation_time": 2 * SAMPLE / case.demand,
        "train.epochs": 3,
        "num_accelerators": 2,
        **case.keys,
    }
    return ["workload=unet3d_h100", *(f"{key}={value}" for key, value in keys.items())]


def of_mean(case: Case, hits: float) -> float:
    """Return the AU in percent of an epoch with this share of hits all along."""
    supply = min(ORIGIN / (1 - hits) if hits < 1 else CACHE, CACHE / hits if hits else ORIGIN)
    return 100 * min(1.0, supply / case.demand)


def of_steps(case: Case, hits: NDArray[np.bool_], ahead: int) -> float:
    """Return the AU in percent of an epoch, step by step; `hits` is (reads,), in their order.

    Origin and cache serve at their rates, one read after the other, `ahead` steps ahead at most.
    """
    computes = 2 * SAMPLE / case.demand
    rates = np.where(hits, CACHE, ORIGIN).reshape(-1, 2)
    begins = [0.0]
    free = {ORIGIN: 0.0, CACHE: 0.0}
    for step, reads in enumerate(rates.tolist()):
        ready = begins[-1]
        for rate in reads:
            free[rate] = max(free[rate], begins[max(0, step - ahead)]) + SAMPLE / rate
            ready = max(ready, free[rate])
        begins.append(ready + computes)
    return 100 * computes * len(rates) / begins[-1]


@dataclass(frozen=True)
class Row:
    """An epoch: the hit share, AU found, and both truths, in percent."""

    hits: float
    found: float
    of_mean: float
    of_steps: float


def run(case: Case, folders: Mapping[str, Path]) -> list[Row]:
    """Run a case; return its epochs."""
    words = words_of(case, folders)
    warm.run([*warm.COMMAND, "datagen", *_of_dataset(words)], **_QUIET).check_returncode()
    with throttled_reads(folders["origin"], ORIGIN, (folders["cache"], CACHE)) as group:
        process = warm.Popen([*warm.COMMAND, "run", *words], enter=group.enter, **_QUIET)
        assert process.wait() in (0, 2)
    summary = json.loads((_out(case, folders) / "summary.json").read_text())
    measured: dict[str, Any] = summary["measured"]
    cached, found = measured["cache"], measured["whole_epoch_au_percentage"]
    assert cached["hit_bytes_per_epoch"] == cached["planned_hit_bytes_per_epoch"]
    workload = read_config(_out(case, folders), {})
    planned = planned_hits(workload)
    return [
        Row(
            100 * share,
            found[epoch],
            of_mean(case, share),
            of_steps(case, planned[epoch], workload.reader.batches_ahead),
        )
        for epoch, share in enumerate(cached["hit_share_per_epoch"])
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
