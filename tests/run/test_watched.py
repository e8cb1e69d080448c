"""A cache that is mounted, watched: rclone between two drives of different speed."""

import json
from pathlib import Path

import pytest

from dlemu.config.model import Workload, load_workload
from dlemu.datagen import generate
from dlemu.ranks.world import Alone
from dlemu.run.job import run_job
from tests.lab.cgroups import throttled_reads
from tests.lab.drives import own_drive
from tests.lab.mounted_cache import rclone_cache
from tests.lab.shown import text_of

MB = 10**6
SLOW, FAST = 50 * MB, 500 * MB


def workload(folder: Path, **keys: object) -> Workload:
    return load_workload(
        "unet3d_h100",
        {
            "dataset.data_folder": str(folder),
            "dataset.num_files_train": 12,
            "dataset.record_length_bytes": 2 * MB,
            "dataset.record_length_bytes_stdev": 0,
            "reader.data_loader": "threads",
            "reader.read_threads": 2,
            "reader.batch_size": 1,
            "train.computation_time": 0.001,
            **keys,
        },
    )


def test_a_fuse_cache_between_two_drives(tmp_path: Path) -> None:
    point = tmp_path / "mounted"
    point.mkdir()
    with own_drive(64 * MB) as origin, own_drive(64 * MB) as cache:
        generate(workload(origin / "data"), world=Alone())
        with (
            throttled_reads(origin, SLOW, (cache, FAST)) as group,
            rclone_cache(origin, cache, point, enter=group.enter),
        ):
            job = workload(
                point / "data",
                **{
                    "train.epochs": 3,
                    "cache.origin": str(origin),
                    "cache.devices": [str(cache)],
                    "output.folder": str(tmp_path / "run"),
                },
            )
            said: list[str] = []
            outcome = run_job(job, world=Alone(), say=said.append)

    assert outcome is not None
    assert any("12 files of cache.origin dropped from the page cache" in line for line in said)
    seen = json.loads((tmp_path / "run" / "summary.json").read_text())
    cached, read = seen["measured"]["cache"], 12 * 2 * MB
    assert cached["read_bytes_per_epoch"][0] >= read
    # rclone tells the kernel to forget what it has read, and reads some of it again: 1.5 times is
    # usual (its own counters in /proc say the same).
    assert read <= cached["origin_bytes_per_epoch"][0] <= 3 * read
    assert cached["hit_share_per_epoch"][0] < 0.01
    assert cached["hit_share_per_epoch"][1:] == pytest.approx([1, 1], abs=0.01)
    assert read <= cached["cache_write_bytes_per_epoch"][0] <= 1.1 * read
    fill = cached["cache_write_bytes_per_epoch"][0] / cached["origin_bytes_per_epoch"][0]
    assert cached["fill_ratio_per_epoch"] == [fill, None, None]
    assert cached["daemon_cpu_seconds_per_epoch"][0] > 0
    assert cached["seconds_per_epoch"][0] > 0.9 * read / SLOW, "the origin's rate holds the first"
    assert seen["measured"]["page_cache_share_per_epoch"][0] < 0.01
    assert not [note for note in seen["notes"] if "no drive was seen" in note]
    text = text_of(job, outcome.metrics, outcome.summary)
    assert "mounted cache, watched; bytes in MB" in text
    assert "warm AU" in text
