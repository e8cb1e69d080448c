"""Which limit is named when nothing changes between runs: python -m benchmarks.limits [RUNS].

A small ResNet-50 (TFRecord streams, 8 workers, through the page cache) behind a disk that a cgroup
holds to a share of the demand. Prints a Markdown table, a line a run. Root only; a run takes 10 s.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench import dataset, folder_on_disk, start
from tests.cgroups import throttled_reads

_BATCH, _RECORD, _STEPS = 20, 114_660, 120
_FILES = 24
_COMPUTE_SECONDS = 0.06
_SHARES = 0.5, 0.8
"""Of the demand, that the disk gives."""


def main(words: Sequence[str]) -> None:
    """Run each share of the demand several times."""
    runs = int(words[0]) if words else 10
    print("| disk gives, of the demand | loader | run | AU (%) | limit | evidence |")
    print("|--:|---|--:|--:|---|---|")
    with folder_on_disk() as folder:
        workload = _small_resnet50(folder)
        rate = _BATCH * _RECORD / _COMPUTE_SECONDS
        for loader in ("pytorch", "threads"):
            for share in _SHARES:
                for number in range(1, runs + 1):
                    told = _run(workload, folder, round(share * rate), loader)
                    print(f"| {share:g} | {loader} | {number} | {told} |", flush=True)


def _small_resnet50(folder: Path) -> Path:
    """Write a dataset like ResNet-50's, of 275 MB; return its workload's file."""
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


def _run(workload: Path, folder: Path, bytes_per_second: int, loader: str) -> str:
    with (
        throttled_reads(folder, bytes_per_second) as group,
        start(workload, f"reader.data_loader={loader}", group=group) as run,
    ):
        status = run.end()
        assert status in (0, 2), run.told()
        limit = run.summary["limit"]
        au = run.summary["metric"]["train_au_mean_percentage"]
        return f"{au:.1f} | {limit['name']} | {limit['evidence']}"


if __name__ == "__main__":
    main(sys.argv[1:])
