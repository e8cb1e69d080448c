"""Which limit is named when nothing changes between runs: python -m benchmarks.limits [RUNS].

A small ResNet-50 (TFRecord streams, 8 workers, through the page cache) behind a disk that a cgroup
holds to a share of the demand, and files read with O_DIRECT from the disk as it is. Prints a
Markdown table, and each run on stderr. Root only; 10 runs of each row take about 10 minutes.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from tests.lab.bench import dataset, folder_on_disk, start
from tests.lab.cgroups import throttled_reads

_BATCH, _RECORD, _STEPS = 20, 114_660, 72
_FILES = 24
_COMPUTE_SECONDS = 0.06
_SHARES = 0.5, 0.8
"""Of the demand, that the disk gives."""
_WHOLE_FILE, _WHOLE_FILES = 16_000_000, 28
_MORE = 1.05
"""Times what the disk as it is was found to give, that is asked of it."""


def main(words: Sequence[str]) -> None:
    """Run each row several times."""
    num_runs = int(words[0]) if words else 10
    print("| disk | loader | runs | AU (%) | limit |")
    print("|---|---|--:|--:|---|")
    with folder_on_disk() as folder:
        workload = _small_resnet50(folder / "resnet50")
        demand = _BATCH * _RECORD / _COMPUTE_SECONDS
        for share in _SHARES:
            for loader in ("pytorch", "threads"):
                rate = round(share * demand)
                _row(
                    f"held to {share:g} of the demand",
                    loader,
                    num_runs,
                    partial(_run, workload, loader, rate),
                )
        whole = _whole_files(folder / "whole")
        for loader in ("pytorch", "threads"):
            seconds = _seconds_at_its_rate(whole, loader)
            compute = f"train.computation_time={seconds:.5f}"
            _row(
                "as it is, at what it gives",
                loader,
                num_runs,
                partial(_run, whole, loader, None, compute),
            )


def _row(name: str, loader: str, num_runs: int, run: Callable[[], dict[str, Any]]) -> None:
    au: list[float] = []
    limits: list[str] = []
    for number in range(1, num_runs + 1):
        summary = run()
        limit = summary["limit"]
        au.append(summary["metric"]["train_au_mean_percentage"])
        limits.append(limit["name"])
        told = f"{limit['name']}. {limit['evidence']}"
        print(f"{name}, {loader}, run {number}: AU {au[-1]:.1f}, {told}", file=sys.stderr)
    named = ", ".join(f"{limit} {times}" for limit, times in Counter(limits).most_common())
    print(f"| {name} | {loader} | {num_runs} | {min(au):.1f}–{max(au):.1f} | {named} |", flush=True)


def _small_resnet50(folder: Path) -> Path:
    """Write a dataset like ResNet-50's, of 165 MB; return its workload's file."""
    return dataset(
        folder,
        dataset__format="tfrecord",
        dataset__num_files_train=_FILES,
        dataset__num_samples_per_file=_BATCH * _STEPS // _FILES,
        dataset__record_length_bytes=_RECORD,
        dataset__record_length_bytes_resize=150_528,
        reader__batch_size=_BATCH,
        reader__read_threads=8,
        reader__file_shuffle="off",
        train__computation_time=_COMPUTE_SECONDS,
    )


def _whole_files(folder: Path) -> Path:
    """Write files of one sample each, 450 MB together; return their workload's file."""
    return dataset(
        folder,
        dataset__num_files_train=_WHOLE_FILES,
        dataset__record_length_bytes=_WHOLE_FILE,
        dataset__record_length_bytes_stdev=_WHOLE_FILE / 3,
        reader__read_threads=4,
        reader__odirect=True,
        train__epochs=4,
    )


def _seconds_at_its_rate(workload: Path, loader: str) -> float:
    """Return the compute time of a step at which a little more is asked than the disk gives."""
    summary = _run(workload, loader, None, "train.computation_time=0.001")
    (host,) = summary["measured"]["hosts"]
    return _WHOLE_FILE / (_MORE * float(host["read_bytes_per_second"]))


def _run(workload: Path, loader: str, rate: int | None, *overrides: str) -> dict[str, Any]:
    folder = workload.parent
    with (
        nullcontext() if rate is None else throttled_reads(folder, rate) as group,
        start(workload, f"reader.data_loader={loader}", *overrides, group=group) as run,
    ):
        run.completes()
        return run.summary


if __name__ == "__main__":
    main(sys.argv[1:])
