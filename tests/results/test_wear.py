"""Wear in words and figures."""

import pytest

from dlemu.host.drive_counters import Lifetime
from dlemu.host.wear import WearFields, sum_up
from dlemu.results.wear import (
    belongs_to,
    has_writes,
    lifetime_line,
    sustained,
    sustained_lines,
    sustained_write_rate,
    wear_line,
)
from dlemu.terminal import set_mode
from tests.host.test_wear import GB, drive
from tests.lab.published import read_endurance


def test_the_published_rate_is_that_of_binary_units() -> None:
    (row,) = read_endurance()
    rate = sustained(row.endurance_bytes, capacity=61_440 * 10**9, years=row.years, duty=row.duty)
    assert rate["binary_bytes_per_second"] / 2**20 == pytest.approx(row.published_MBps, rel=5e-4)
    assert rate["bytes_per_second"] / 1e6 == pytest.approx(2701.7, abs=0.05)
    assert sustained_lines(rate) == [
        "an endurance of 213 PB sustains, for 5 years, written 50% of the time:",
        "  213 x 10^15 bytes: 2,701.7 MB/s, 1.90 drive writes a day",
        "  213 x 2^50 bytes: 2,900.9 MiB/s, 2.14 drive writes a day",
    ]


def test_an_endurance_in_binary_units_has_one_meaning() -> None:
    rate = sustained(14 * 2**50)
    assert rate["binary_bytes_per_second"] == rate["bytes_per_second"]
    assert sustained_lines(rate) == [
        "an endurance of 14 PiB sustains, for 5 years, written 100% of the time:",
        "  14 x 2^50 bytes: 95.3 MiB/s",
    ]


def test_a_rate_needs_no_capacity() -> None:
    rate = sustained(14 * 10**15)
    assert rate["drive_writes_per_day"] is None
    assert sustained_lines(rate)[1] == "  14 x 10^15 bytes: 88.8 MB/s"


def test_half_the_time_allows_twice_the_rate() -> None:
    assert sustained_write_rate(365 * 86_400 * 5, years=5, duty=0.5) == 2


def known(**changes: object) -> WearFields:
    wear = sum_up([drive("nvme0n1", 4 * GB, 5 * GB, 3)], 3600.0, file_bytes=4 * GB)
    wear.update(changes)  # type: ignore[typeddict-item]
    return wear


@pytest.mark.parametrize(
    ("wear", "line"),
    [
        (
            known(),
            "wear: 3.7 GiB written to nvme0n1 (0.25 x the files' bytes), 4.7 GiB to flash, "
            "WAF 1.25; 3% of the life used; at this pace 0.096 drive writes a day",
        ),
        (
            known(file_system_amplification=147.62),
            "wear: 3.7 GiB written to nvme0n1 (147.62 x the files' bytes; the writes of other "
            "programs count), 4.7 GiB to flash, WAF 1.25; 3% of the life used; at this pace 0.096 "
            "drive writes a day",
        ),
        (
            known(years_left=12.345),
            "wear: 3.7 GiB written to nvme0n1 (0.25 x the files' bytes), 4.7 GiB to flash, "
            "WAF 1.25; 3% of the life used; at this pace 0.096 drive writes a day, 12.3 years left",
        ),
        (
            sum_up([drive("sda", None, None, None)], 86_400.0, endurance=365 * 10**10),
            "wear: 953.7 MiB written to sda; at this pace 0.001 drive writes a day, 10 years for a "
            "new drive; no WAF: sda is no NVMe drive",
        ),
        (
            sum_up([drive("sda", GB, None, None)], 86_400.0, file_bytes=0),
            "wear: 953.7 MiB written to sda, none of it into files of this command",
        ),
        (
            sum_up([], 1.0, no_drive="no drive is seen under the folder (nfs4)"),
            "wear: not known; no drive is seen under the folder (nfs4)",
        ),
    ],
)
def test_wear_is_one_line(wear: WearFields, line: str) -> None:
    assert wear_line(wear) == line


def test_little_is_not_worth_a_line() -> None:
    assert has_writes(known())
    assert not has_writes(
        known(block_bytes_written=10**8 - 1, host_bytes_written=None, file_bytes_written=None)
    )
    assert has_writes(sum_up([], 1.0, file_bytes=10**8))
    assert not has_writes(sum_up([], 1.0))


def test_a_report_shows_the_wear_of_what_wrote_files() -> None:
    read_only = sum_up([drive("sda", GB, None, None)], 13.0, file_bytes=0)
    assert belongs_to(known()) and not belongs_to(read_only)
    assert belongs_to(known(file_bytes_written=None)), "older runs with a cache"
    assert not belongs_to(
        known(block_bytes_written=10**7, host_bytes_written=None, file_bytes_written=1)
    )
    set_mode(verbose=True)
    try:
        assert belongs_to(read_only)
    finally:
        set_mode()


def test_the_counters_of_a_life() -> None:
    tells = Lifetime(
        name="nvme0n1",
        model="SB5PH27X076T",
        capacity_bytes=7_680 * 10**9,
        block_bytes_written=GB,
        host_bytes_written=2**40,
        host_bytes_read=2**41,
        media_bytes_written=2**41,
        media_source="log CAh",
        waf=2.0,
        percentage_used=3,
        available_spare=100,
        power_on_hours=742,
        media_errors=0,
        missing="",
    )
    assert lifetime_line(tells) == (
        "nvme0n1 (SB5PH27X076T, 7.68 TB): over its life 1.0 TiB written by hosts, 2.0 TiB to "
        "flash, WAF 2.00 (log CAh); 3% of the life used, 100% of the spare blocks left, "
        "742 hours powered on, 0 media errors"
    )
    mute = Lifetime(**{**dict.fromkeys(tells), **{"name": "vda", "model": ""}})  # type: ignore[typeddict-item]
    mute["capacity_bytes"], mute["missing"] = 275 * 10**9, "vda is no NVMe drive"
    assert lifetime_line(mute) == (
        "vda (275 GB): its own counters are not known: vda is no NVMe drive"
    )
