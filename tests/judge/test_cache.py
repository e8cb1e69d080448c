"""What caches counted, put together by hand, and what a cache is worth."""

from typing import Any, cast

import numpy as np
import pytest

from dlemu.config.model import load_workload
from dlemu.host.intervals import PlaceCounts
from dlemu.judge.cache import can_save, pays_from, preload_fields, stored_behind, watched_fields
from dlemu.judge.metrics import measure
from dlemu.judge.outcome import with_metrics
from dlemu.judge.records import STEP
from dlemu.judge.summary import CacheMeasured, Summary
from dlemu.loaders.cache.host import Preload
from dlemu.report.in_run import present_cache
from dlemu.report.text import render_text

WORKLOAD = load_workload("unet3d_h100")
GB = 10**9
PRELOAD = {"num_files": 1, "num_bytes": 10 * GB, "seconds": 2.0, "read_share": 0.5}


def cached(seconds: list[float], hits: list[float], **changes: Any) -> CacheMeasured:
    """Return the fields of a cache that holds all 10 GB; each epoch reads them."""
    fields: dict[str, Any] = {
        "emulated_origin": "",
        "capacity_bytes": 10 * GB,
        "hit_share_per_epoch": hits,
        "hit_bytes_per_epoch": [hit * 10 * GB for hit in hits],
        "origin_bytes_per_epoch": [(1 - hit) * 10 * GB for hit in hits],
        "cache_write_bytes_per_epoch": [(1 - hit) * 10 * GB for hit in hits],
        "seconds_per_epoch": seconds,
        "settle_seconds_per_epoch": [0.0] * len(hits),
        "preload": None,
        "one_drive": False,
        "endurance_bytes": None,
        "planned_hit_share_per_epoch": hits,
        "cache_read_bytes_per_epoch": [hit * 10 * GB for hit in hits],
    }
    return cast(CacheMeasured, fields | changes)


def told(found: CacheMeasured, first_steps: list[float] | None = None) -> list[str]:
    """Return the lines of a cache whose epochs took `seconds_per_epoch` without the first step.

    An epoch has two steps of 1 s of compute.
    """
    seconds = np.array(found["seconds_per_epoch"])
    steps = np.zeros((len(seconds), 2), STEP)
    steps["epoch"], steps["step"] = np.arange(len(seconds))[:, None], np.arange(2)
    steps["compute"] = steps["computation_time"] = 1.0
    steps["wait"][:, 0], steps["wait"][:, 1] = first_steps or 0.0, seconds - 1
    metrics = measure(steps)
    found["pays_from_epoch"] = pays_from(found, metrics)
    found["can_save"] = can_save(found, metrics)
    document = with_metrics(Summary(measured={"cache": found}), WORKLOAD, metrics)
    _, lines, *_ = present_cache(document)
    return render_text([lines]).splitlines()


def test_hosts_copy_beforehand_together_and_the_slowest_ends_it() -> None:
    both = Preload(3, 10, 2.0, 0.5), Preload(1, 5, 4.0, 0.25)
    assert preload_fields(both) == {
        "num_files": 4,
        "num_bytes": 15,
        "seconds": 4.0,
        "read_share": 0.375,
    }
    assert preload_fields([*both, None]) is None


SAVES = "the cache saves time from epoch"
SLOW_FILL = {"settle_seconds_per_epoch": [12.0, 0.0]}


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (cached([10, 5], [0.0, 1.0]), f"cold AU 10%, warm AU 20%, {SAVES} 2 on"),
        (
            # The fill has taken 12 s more than an epoch from the origin; a warm one saves 5 s.
            cached([10, 5], [0.0, 1.0], **SLOW_FILL),
            "cold AU 10%, warm AU 20%, the cache saves time from epoch 4 on (assuming "
            "later epochs equal the last)",
        ),
        (cached([10, 10], [0.0, 1.0]), "cold AU 10%, warm AU 10%, the cache saves no time"),
        (cached([10, 10], [0.0, 0.0]), "cold AU 10%, hits are too rare for the cache to save time"),
        (cached([10], [0.0]), "cold AU 10%; more epochs (train.epochs) show warm ones"),
        (cached([10, 5], [0.0, 1.0], one_drive=True), "cold AU 10%, warm AU 20%"),
        (cached([1.01, 1.0], [0.0, 1.0]), "cold AU 99%, warm AU 100%"),
        (cached([1.03, 1.0], [0.0, 1.0]), f"cold AU 97%, warm AU 100%, {SAVES} 2 on"),
        (cached([1.0], [1.0], preload=PRELOAD), f"warm AU 100%, {SAVES} 3 on "),
    ],
)
def test_what_a_cache_is_worth(found: CacheMeasured, line: str) -> None:
    lines = [text for text in told(found) if "AU" in text]
    assert lines[0].startswith(line) if line.endswith(" ") else lines[0] == line


def test_the_loaders_start_is_no_gain_of_a_cache() -> None:
    found = cached([10, 10], [0.0, 1.0])
    (line, *_) = told(found, first_steps=[20.0, 0.0])
    assert line == "cold AU 10%, warm AU 10%, the cache saves no time"


def test_the_wear_of_a_cache_is_that_of_its_last_epoch() -> None:
    found = cached([10, 10], [0.0, 0.5], emulated_origin="at 1 GB/s")
    (line,) = told(found)[1:]
    assert line == (
        "cache's wear: 9.3 GiB written to the cache in the first epoch, 4.7 GiB in the last, 0.50 "
        "of its capacity; 500 MB/s if such epochs follow one another; drive.endurance=14PB says "
        "for how many years (origin emulated at 1 GB/s)"
    )
    lasting = cached([10, 10], [0.0, 0.5], endurance_bytes=365 * 86_400 * 2 * 500 * 10**6)
    assert ", for 2 years of its drives' life (drive.endurance)" in told(lasting)[1]


COLD = PlaceCounts(12 * GB, GB, 11 * GB, 3.5)
WARM = PlaceCounts(10**7, 9 * GB, 10**6, 1.25)


def test_hits_are_what_the_origin_did_not_give() -> None:
    epochs = [COLD, WARM, PlaceCounts(4 * GB, None, 2 * GB, None)]
    found = watched_fields([10 * GB] * 3, [epochs], [1.0] * 3)
    assert found["hit_share_per_epoch"] == [0.0, 0.999, 0.6]
    assert found["fill_ratio_per_epoch"] == [11 / 12, None, 0.5]
    assert found["cache_read_bytes_per_epoch"] == [GB, 9 * GB, None]
    assert found["daemon_cpu_seconds_per_epoch"] == [3.5, 1.25, None]


def test_drives_delivered_no_more_than_was_read() -> None:
    found = watched_fields([10 * GB, 10 * GB], [[COLD, WARM]], [1.0, 1.0])
    assert [stored_behind(found, 0), stored_behind(found, 1)] == [10 * GB, 9 * GB + 10**7]
