"""A CSV file to which commands append rows, several at once too: a header, then one row each.

A row is written by one call while the file is locked. If that fails, the file is as it was.
"""

import csv
import fcntl
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

from dlemu.errors import WorkloadError
from dlemu.judge.records import named, plain
from dlemu.storage.atomic import append_whole
from dlemu.storage.regular import check_regular

Row = Mapping[str, Any]
_MOST_HEADER = 1 << 16


def check_table(path: Path, columns: Sequence[str]) -> None:
    """Refuse a file to which rows of these columns cannot be appended, before hours are spent.

    Raises:
        WorkloadError: it has other columns, is no file, or cannot be written.
    """
    check_regular(path, error=WorkloadError)
    try:
        if path.exists():
            with path.open("a+b") as file:  # opened as for a row, and not changed
                file.seek(0)
                _check_columns(path, file.read(_MOST_HEADER), columns)
        elif not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            raise OSError(0, "its folder is missing or read-only")
    except OSError as error:
        raise WorkloadError(
            f"--csv {path} cannot be written ({error.strerror}); name another file"
        ) from None


def append_rows(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Append rows, all or none; a new file gets the header first.

    Raises:
        WorkloadError: the file has other columns.
        RunError: it cannot be written.
    """
    with named(path), path.open("a+b", buffering=0) as file, _locked(file.fileno()):
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        head = file.read(_MOST_HEADER)
        _check_columns(path, head, columns)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([] if head.strip() else [columns])
        writer.writerows(list(map(_cells(row).get, columns)) for row in rows)
        data = text.getvalue().encode("utf-8", errors="backslashreplace")
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":  # edited by hand
            data = b"\n" + data
        append_whole(file, data)


def _check_columns(path: Path, head: bytes, columns: Sequence[str]) -> None:
    """Refuse a file whose first bytes are no header of these columns; it may be empty."""
    if not head.strip():
        return
    line = head.partition(b"\n")[0].decode("utf-8-sig", errors="replace")
    held = next(csv.reader([line.rstrip("\r")]), [])
    pairs = enumerate(zip_longest(held, columns, fillvalue=""), 1)
    if unlike := next(((n, own, new) for n, (own, new) in pairs if own != new), None):
        number, own, new = unlike
        raise WorkloadError(
            f"--csv {path} has other columns ({number} is {own!a:.40}, not {new!a}); name another "
            "file"
        )


def _cells(row: Row) -> dict[str, str]:
    """Return a row as text: true and false as JSON has them, what is not known as nothing."""
    cells = {}
    for name, value in plain(row).items():
        if isinstance(value, bool):
            value = str(value).lower()
        cells[name] = "" if value is None else str(value)
    return cells


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    """Wait for the lock of an open file, and hold it; some network file systems have no locks."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
