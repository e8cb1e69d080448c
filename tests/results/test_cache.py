"""What a cache is worth, from counts whose meaning is known."""

from typing import Any, cast

import numpy as np
import pytest

from dlemu.results.cache import pays_from, worth_lines
from dlemu.results.metrics import Metrics, measure
from dlemu.results.records import STEP
from dlemu.results.summary import CacheMeasured

GB = 10**9


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
        "endurance_bytes": None,
    }
    found = cast(CacheMeasured, fields | changes)
    found["pays_from_epoch"] = pays_from(found)
    return found


def metrics_of(num_epochs: int) -> Metrics:
    """Return epochs of two steps without any wait."""
    steps = np.zeros((num_epochs, 2), STEP)
    steps["epoch"], steps["step"] = np.arange(num_epochs)[:, None], np.arange(2)
    steps["compute"] = steps["computation_time"] = 1.0
    return measure(steps)


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (cached([10, 5], [0.0, 1.0]), "cold AU 100%, warm AU 100%, the cache pays from epoch 2"),
        (
            # The fill has taken 12 s more than an epoch from the origin; a warm one saves 5 s.
            cached([10, 5], [0.0, 1.0], settle_seconds_per_epoch=[12.0, 0.0]),
            "cold AU 100%, warm AU 100%, the cache pays from epoch 4, if later epochs are as the "
            "last one",
        ),
        (cached([10, 10], [0.0, 1.0]), "cold AU 100%, warm AU 100%, the cache saves no time"),
        (cached([10, 10], [0.0, 0.0]), "cold AU 100%, hits are too rare to be worth the cache"),
        (cached([10], [0.0]), "cold AU 100%; add epochs (train.epochs) to see warm ones"),
    ],
)
def test_what_a_cache_is_worth(found: CacheMeasured, line: str) -> None:
    assert worth_lines(found, metrics_of(len(found["seconds_per_epoch"])))[0] == line


def test_an_emulated_origin_alone_is_no_cache() -> None:
    found = cached([10, 10], [0.0, 0.0], capacity_bytes=0, cache_write_bytes_per_epoch=[0, 0])
    assert worth_lines(found, metrics_of(2)) == []


def test_the_wear_of_a_cache_is_that_of_its_last_epoch() -> None:
    found = cached([10, 10], [0.0, 0.5], emulated_origin="at 1 GB/s")
    (line,) = worth_lines(found, metrics_of(2))[1:]
    assert line == (
        "cache's wear: 9.3 GiB written to the cache in the first epoch, 4.7 GiB in the last, 0.50 "
        "of its capacity; 500 MB/s if such epochs follow one another; drive.endurance=14PB tells "
        "for how many years (origin emulated at 1 GB/s)"
    )
    lasting = cached([10, 10], [0.0, 0.5], endurance_bytes=365 * 86_400 * 2 * 500 * 10**6)
    assert (
        ", which its drives take for 2 years (drive.endurance)"
        in (worth_lines(lasting, metrics_of(2))[1])
    )
