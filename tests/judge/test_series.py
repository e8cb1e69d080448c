"""series.csv: a row per host and interval, from records whose meaning is known."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dlemu.host.intervals import Observation
from dlemu.judge.records import STEP, write_steps
from dlemu.judge.series import COLUMNS, _num_until_read, steady_rate, write_series
from dlemu.judge.steady import Piece
from tests.lab.stored import GIB, observation, store_run, write_host


def test_every_column_is_what_the_counters_say(tmp_path: Path) -> None:
    wrap = (1 << 32) - 1000
    seen = [
        observation(100.0, 10, wrap),
        observation(100.2, 999, wrap),  # at an epoch's border: too close for a rate
        observation(101.0, 30, 1000),  # the queue's counter has wrapped around
        observation(103.0, 30, 1000),
    ]
    write_host(tmp_path, 0, seen, 5000.0)
    write_host(tmp_path, 3, [observation(7.0, 0, 0), observation(8.0, 1, 0)], 5094.5)
    (tmp_path / "summary.json").write_text(json.dumps({"system": [{"host": "a"}, {"host": "b"}]}))
    steps = np.zeros((4, 2), STEP)  # two accelerators, four steps of 0.5 s, from 100.5 to 102.5
    steps["step"], steps["accelerator"] = np.arange(4)[:, None], [0, 1]
    steps["start"] = 100.5 + 0.5 * steps["step"]
    steps["wait"], steps["compute"], steps["computation_time"] = 0.1, 0.3, 0.25
    steps["barrier"] = 0.1

    write_steps(tmp_path, 0, steps)
    write_series(tmp_path, tmp_path / "series.csv")

    first, second, other = csv.DictReader((tmp_path / "series.csv").read_text().splitlines())
    assert tuple(first) == COLUMNS
    assert first == {
        "seconds": "0.000",
        "host": "a",
        "epoch": "1",
        "drive_read_MB_per_s": "20.000",
        "drive_reads_per_s": "20.0",
        "drive_util_percent": "50.00",
        "drive_queue": "2.00",
        "network_read_MB_per_s": "",
        "read_calls_MB_per_s": "5.000",
        "page_cache_bytes": str(GIB),
        "host_cpu_percent": "25.00",
        "process_cpu_percent": "50.00",
        "au_percent": "50.00",
        "network_received_MB_per_s": "3.000",
        "network_sent_MB_per_s": "0.500",
    }
    # Half a second without a step belongs to no AU.
    assert (second["seconds"], second["epoch"], second["au_percent"]) == ("1.000", "1", "50.00")
    # The other host's clock shows 7 when the first shows 101.5.
    assert (other["host"], other["seconds"], other["au_percent"]) == ("b", "1.500", "")


def test_a_host_whose_time_of_day_is_wrong_has_the_runs_seconds(tmp_path: Path) -> None:
    """Its clock says an hour later; the first epoch starts on all hosts at once."""

    def starting(time: float) -> Observation:
        return replace(observation(time, 0, 0), label="epoch 0 start")

    write_host(tmp_path, 0, [starting(100.0), observation(102.0, 0, 0)], 5000.0)
    seen = [observation(7.0, 0, 0), starting(8.0), observation(9.0, 0, 0)]
    write_host(tmp_path, 1, seen, 5000.0 + 92.0 + 3600.0)
    (tmp_path / "summary.json").write_text("{}")
    write_series(tmp_path, tmp_path / "s.csv")
    rows = csv.DictReader((tmp_path / "s.csv").read_text().splitlines())
    assert [row["seconds"] for row in rows] == ["0.000", "-1.000", "0.000"]


def test_what_other_programs_read_from_the_drive_changes_no_rate_of_direct_reads(
    tmp_path: Path,
) -> None:
    """Half-way another program begins to read as much again; with O_DIRECT the calls tell."""
    folder = tmp_path / "run"
    store_run(folder, wait=0.5)
    begin, last = 100, 160
    seen = [
        observation(float(each), 5 * each + 5 * max(0, each - 115), 0)
        for each in range(begin, last)
    ]
    seen[0] = replace(seen[0], label="epoch 0 start")
    write_host(folder, 0, seen, 0.0)
    drive, own = (steady_rate(folder, received=False, direct=direct) for direct in (False, True))
    assert drive is not None and drive.trend == "rose"
    assert own is not None and own.trend == "steady"
    assert own.levels[0].bytes_per_second == pytest.approx(5e6, rel=0.02)


def test_an_epoch_counts_until_all_is_read() -> None:
    """At its end accelerators work on what is there; a drive that stalls is no end."""
    busy, rest = [Piece(1.0, 4e8)] * 20, [Piece(1.0, 1e5)] * 6
    assert _num_until_read([*busy, *rest]) == 20
    assert _num_until_read([*busy, *rest, *busy]) == 46
    assert _num_until_read([*busy, *[Piece(1.0, 4e7)] * 20]) > 35, "it is slow, and read on"
    assert _num_until_read([Piece(1.0, 0.0)] * 3) >= 1


def test_at_an_epochs_end_some_accelerators_have_read_all() -> None:
    """What the others read is less than the storage gives, and they wait less than before."""
    held = [Piece(1.0, 1e8, 60.0)] * 8
    assert _num_until_read([*held, Piece(1.0, 5.5e7, 68.0), Piece(1.0, 2.9e7, 82.0)]) == 8
    slower = [Piece(1.0, 4e7, 25.0)] * 2  # accelerators wait longer: the storage gave less
    assert _num_until_read([*held, *slower]) == 10
    assert _num_until_read([*held, Piece(1.0, 9e7, 70.0)]) == 9, "by little: noise"
