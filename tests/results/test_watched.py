"""The fields and the table of a mounted cache."""

import numpy as np

from dlemu.host.watched import PlaceCounts
from dlemu.report.blocks import Lines, Table
from dlemu.report.cache import present_cache
from dlemu.results.metrics import measure
from dlemu.results.outcome import with_metrics
from dlemu.results.summary import Summary
from dlemu.results.watched import stored_bytes, watched_fields
from dlemu.run.replay import new_steps
from dlemu.workload.model import load_workload

GB = 10**9


def fields(*epochs: PlaceCounts, read: int = 10 * GB, hosts: int = 1) -> dict[str, object]:
    found = watched_fields([hosts * read] * len(epochs), [epochs] * hosts, [1.0] * len(epochs))
    return dict(found)


COLD = PlaceCounts(12 * GB, GB, 11 * GB, 3.5)
WARM = PlaceCounts(10**7, 9 * GB, 10**6, 1.25)


def test_hits_are_what_the_origin_did_not_give() -> None:
    found = fields(COLD, WARM, PlaceCounts(4 * GB, None, 2 * GB, None))
    assert found["hit_share_per_epoch"] == [0.0, 0.999, 0.6]
    assert found["fill_ratio_per_epoch"] == [11 / 12, None, 0.5]
    assert found["cache_read_bytes_per_epoch"] == [GB, 9 * GB, None]
    assert found["daemon_cpu_seconds_per_epoch"] == [3.5, 1.25, None]


def test_hosts_are_added_up() -> None:
    assert fields(COLD, WARM, hosts=2) == {
        **fields(COLD, WARM),
        "read_bytes_per_epoch": [20 * GB, 20 * GB],
        "origin_bytes_per_epoch": [24 * GB, 2 * 10**7],
        "cache_read_bytes_per_epoch": [2 * GB, 18 * GB],
        "cache_write_bytes_per_epoch": [22 * GB, 2 * 10**6],
        "daemon_cpu_seconds_per_epoch": [7.0, 2.5],
    }


def test_what_is_not_counted_is_not_known() -> None:
    found = watched_fields([5], [[PlaceCounts()]], [1.0])
    assert (found["hit_share_per_epoch"], found["fill_ratio_per_epoch"]) == ([None], [None])
    assert stored_bytes(found, 0) is None
    nothing = watched_fields([0], [[COLD]], [1.0])
    assert nothing["hit_share_per_epoch"] == [None]


def test_drives_delivered_no_more_than_was_read() -> None:
    found = watched_fields([10 * GB, 10 * GB], [[COLD, WARM]], [1.0, 1.0])
    assert [stored_bytes(found, 0), stored_bytes(found, 1)] == [10 * GB, 9 * GB + 10**7]


def test_the_table_has_a_row_of_each_epoch() -> None:
    parts = []
    for epoch, wait in ((0, 0.9), (1, 0.1)):
        steps = new_steps(epoch, np.full((4, 1), 0.1))
        steps["compute"], steps["wait"], steps["num_samples"] = 0.1, wait, 1
        steps["accelerator"] = 0
        parts.append(steps.ravel())
    metrics = measure(np.concatenate(parts))
    found = watched_fields([10 * GB, 10 * GB], [[COLD, WARM]], [1.0, 1.0])

    workload = load_workload("unet3d_h100")
    run = with_metrics(Summary(measured={"cache": found}), workload, metrics)
    table, lines, *_ = present_cache(run)

    assert isinstance(table, Table) and table.heads[-1] == "daemon CPU (s)"
    assert table.rows[0] == [
        *("1", "10.00", "1.00", "0.0", "10,000.0", "12,000.0", "1,000.0", "11,000.0", "0.92"),
        "3.50",
    ]
    assert table.rows[1][3:] == ["99.9", "10,000.0", "10.0", "9,000.0", "1.0", "-", "1.25"]
    assert lines == Lines(["cold AU 10%, warm AU 50%"])
