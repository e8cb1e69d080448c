"""Rows are appended whole, by several commands at once, and never to another table."""

import csv
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from dlemu.cli.scripts import append_rows, check_table
from dlemu.errors import RunError, WorkloadError

COLUMNS = ("time", "label", "value", "flag")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.csv"


def read(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_commands_append_at_once(path: Path) -> None:
    def append(number: int) -> None:
        append_rows(path, COLUMNS, [{"time": number, "label": "x" * 5000}])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(append, range(80)))
    head, *rows = read(path)
    assert head == list(COLUMNS)
    assert sorted(int(row[0]) for row in rows) == list(range(80))
    assert {row[1] for row in rows} == {"x" * 5000}


def test_rows_go_behind_a_line_that_was_written_by_hand(path: Path) -> None:
    path.write_text("time,label,value,flag\r\n1,,,9")
    append_rows(path, COLUMNS, [{"time": 2, "flag": False}])
    assert read(path)[1:] == [["1", "", "", "9"], ["2", "", "", "false"]]


@pytest.mark.parametrize("before", ["", "time,label,value,flag\n1,,,\n"])
def test_a_row_that_the_disk_does_not_take_is_taken_back(
    before: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text(before)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "fsync", Mock(side_effect=full))
    with pytest.raises(RunError, match=r"runs.csv cannot be written \(No space left"):
        append_rows(path, COLUMNS, [{"time": 2}])
    assert path.read_text() == before


def test_what_cannot_be_appended_to_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    refused = {"fifo": "is a FIFO", ".": "a folder", "no/x.csv": "folder is missing"}
    for name, why in (refused | {"file/x.csv": "folder is missing"}).items():
        with pytest.raises(WorkloadError, match=why):
            check_table(tmp_path / name, COLUMNS)
