"""Wear in words and figures."""

import pytest

from dlemu.host.wear import WearFields, sum_up
from dlemu.results.wear import (
    belongs_to,
    has_writes,
    sustained,
    wear_line,
)
from dlemu.terminal import set_mode
from tests.host.test_wear import GB, drive


def test_an_endurance_in_binary_units_has_one_meaning() -> None:
    rate = sustained(14 * 2**50)
    assert rate["binary_bytes_per_second"] == rate["bytes_per_second"]


def known(**changes: object) -> WearFields:
    wear = sum_up([drive("nvme0n1", 4 * GB, 5 * GB, 3)], 3600.0, file_bytes=4 * GB)
    wear.update(changes)  # type: ignore[typeddict-item]
    return wear


@pytest.mark.parametrize(
    ("wear", "line"),
    [
        (
            known(file_system_amplification=147.62, years_left=12.345),
            "wear: 3.7 GiB written to nvme0n1 (147.62 x the files' bytes; the writes of other "
            "programs count), 4.7 GiB to flash, WAF 1.25; 3% of the life used; at this pace 0.096 "
            "drive writes a day, 12.3 years left",
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
