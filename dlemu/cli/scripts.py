"""The tables of --csv: their columns, and where in a document the value of each is.

Several commands may append rows to a file at once: a header, then one row each. A row is written by
one call while the file is locked. If that fails, the file is as it was.
"""

import csv
import fcntl
import hashlib
import io
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dlemu.config.published import value_of
from dlemu.errors import WorkloadError
from dlemu.host.place import find_host
from dlemu.judge.outcome import counting_rows
from dlemu.judge.records import named, plain
from dlemu.judge.summary import time_of_day
from dlemu.plugins import own_version
from dlemu.report.blocks import Document
from dlemu.report.sizing import shown_runs
from dlemu.report.words import sentence
from dlemu.storage.files import append_whole, check_regular
from dlemu.units import each_once

_MOST_HEADER = 1 << 16


if TYPE_CHECKING:
    from dlemu.config.model import Workload

_FIRST = ("time", "id", "label", "workload")
_LAST = ("host", "drive_model", "dlemu_version", "overrides_hash", "folder")
# New columns come last, whatever they are: scripts rely on the order.
RUN = (
    *(*_FIRST, "num_accelerators", "au_percent", "min_accelerator_au_percent"),
    *("samples_per_second", "read_MB_per_second", "verdict", "limit"),
    *(*_LAST, "runs"),
)
SIZE = (
    *(*_FIRST, "target", "drives", "num_accelerators", "at_least", "real_accelerators"),
    *("interval_low", "interval_high", "threshold_percent", "au_percent", "samples_per_second"),
    *("read_MB_per_second", "limit", "quick", "runs", "seconds"),
    *(*_LAST, "remarks", "first", "low", "high", "is_computed"),
)
PREDICT = (
    *(*_FIRST, "drive", "drives", "num_accelerators", "low", "high", "at_least"),
    *("real_accelerators", "au_percent", "read_MB_per_second", "limit", "calibrated"),
    *("dlemu_version", "overrides_hash", "minutes"),
)
DATASIZE = (
    *(*_FIRST, "num_accelerators", "num_files", "num_samples", "num_bytes", "decided_by"),
    *("memory_bytes", "dlemu_version", "overrides_hash"),
)
LOAD = (
    *("time", "id", "label", "model", "scale", "num_files", "num_bytes", "way", "readers"),
    *("seconds", "read_MB_per_second", "share_of_drive", "drive_MB_per_second"),
    *("cpu_seconds", "pages_before", "dlemu_version"),
)

_Source = str | Callable[[Document], Any]


def _mean_of(parts: str, name: str) -> Callable[[Document], float | None]:
    """Return the mean of a field over the parts of a row, such as the runs that count."""

    def mean(row: Document) -> float | None:
        values = [part[name] for part in row[parts]]
        return fmean(values) if values else None

    return mean


def _mega(found: _Source) -> Callable[[Document], float | None]:
    """Return a value in millions."""

    def divided(row: Document) -> float | None:
        value: Any = value_of(row, found) if isinstance(found, str) else found(row)
        return None if value is None else value / 1e6

    return divided


_RUN: Mapping[str, _Source] = {
    "time": "start",
    "au_percent": "metric.train_au_mean_percentage",
    "min_accelerator_au_percent": "metric.train_au_min_accelerator_percentage",
    "samples_per_second": "metric.train_throughput_mean_samples_per_second",
    "read_MB_per_second": _mega("measured.read_bytes_per_second"),
    "limit": "limit.name",
    "host": "hostname",
    "drive_model": lambda row: drive_models(row.get("system") or ()),
    "runs": lambda row: 1,
}
_HERE: Mapping[str, _Source] = {
    "host": "here.host",
    "drive_model": lambda row: drive_models([row["here"]]),
}
_PREDICTED: Mapping[str, _Source] = {
    "au_percent": "au_percentage",
    "read_MB_per_second": _mega("read_bytes_per_second"),
}
_NEEDED: Mapping[str, _Source] = dict.fromkeys(
    ("low", "high", "at_least", "real_accelerators", "limit", "calibrated", "minutes"),
    lambda row: None,
)
_SOURCES: Mapping[str, Mapping[str, _Source]] = {
    "run": _RUN,
    "runs": {
        **_RUN,
        "au_percent": "au_percentage.mean",
        "min_accelerator_au_percent": lambda row: min(
            each["min_accelerator_au_percentage"] for each in row["counting"]
        ),
        "samples_per_second": "samples_per_second.mean",
        "read_MB_per_second": _mega(_mean_of("counting", "read_bytes_per_second")),
        "limit": lambda row: each_once(each["limit"] for each in row["counting"]),
        "runs": lambda row: len(row["counting"]),
    },
    "sizing": {
        "interval_low": lambda row: row["interval"] and row["interval"][0],
        "interval_high": lambda row: row["interval"] and row["interval"][1],
        "threshold_percent": "threshold",
        "au_percent": _mean_of("shown", "au_percentage"),
        "samples_per_second": _mean_of("shown", "samples_per_second"),
        "read_MB_per_second": _mega(_mean_of("shown", "read_bytes_per_second")),
        "runs": lambda row: len(row["points"]),
        **_HERE,
        "remarks": lambda row: "; ".join(map(sentence, row["findings"])),
        "first": lambda row: row["first"] is not None,
    },
    **dict.fromkeys(("prediction", "predictions", "cached prediction"), _PREDICTED),
    **dict.fromkeys(("needs", "several needs"), _NEEDED),
    "paths": _HERE,
    "datasize": {"memory_bytes": "memory.num_bytes"},
    "load": {
        "read_MB_per_second": _mega("bytes_per_second"),
        "drive_MB_per_second": _mega("drive_bytes_per_second"),
    },
}
"""By kind of document, what stands in a column: the value of a dotted name, or of a function of the
row. A column that is not here has the value of its own name."""


def rows_of(
    document: Document, workloads: Sequence["Workload"], columns: Sequence[str], label: str
) -> list[dict[str, object]]:
    """Return the rows of a document by column; `workloads` are those of its parts."""
    own = {"label": label, "dlemu_version": own_version()}
    sources = _SOURCES[document["kind"]]
    rows = []
    for part, workload in zip_longest(_parts(document), workloads):
        row = {**document, **part, **own}
        row |= _written(row, workload)
        taken = {column: sources.get(column, column) for column in columns}
        rows.append(
            {
                column: value_of(row, source) if isinstance(source, str) else source(row)
                for column, source in taken.items()
            }
        )
    return rows


def _parts(document: Document) -> Iterable[Document]:
    """Return the parts of a document that are a row each, with what their columns are made of."""
    match document["kind"]:
        case "runs":
            return [{"counting": counting_rows(document["runs"])}]
        case "sizing":
            return [
                {**each, "shown": shown_runs(each), "here": find_host(Path(each["data_folder"]))}
                for each in document["answers"]
            ]
        case "predictions":
            return list(document["answers"])
        case "needs" | "several needs":
            return list(_drives_needed(document.get("answers", [document])))
        case "cached prediction":
            return [document["cold"], document["warm"]]
        case "load":
            return [
                {**cell, "identity": (cell["way"], cell["readers"])} for cell in document["cells"]
            ]
        case "paths":
            return _cells_of_paths(document["cells"])
        case _:
            return [{}]


def _drives_needed(answers: Iterable[Document]) -> Iterator[Document]:
    """Yield for each drive the number by the rule, and the bare one at an AU of 100 %."""
    for found in answers:
        for drive in found["storages"]:
            for way, au in (("rule", found["threshold"]), ("bare", 100.0)):
                rate = found[way]["read_bytes_per_second"] / 1e6
                own = {"drive": drive["drive"], "drives": drive[way], "au_percent": au}
                yield {
                    **found,
                    **own,
                    "read_MB_per_second": rate,
                    "identity": (drive["drive"], way),
                }


def _cells_of_paths(cells: Sequence[Document]) -> Iterator[Document]:
    from dlemu.tools.paths.blocks import CellSpec

    names = [field.name for field in fields(CellSpec) if field.name != "target"]
    here = {target: _here(target) for target in {cell["target"] for cell in cells}}
    for cell in cells:
        trend = (cell.get("steady") or {}).get("trend")
        row = {**cell, "together": ",".join(cell["together"]), "here": here[cell["target"]]}
        row["steady"] = trend
        yield {**row, "identity": [row[name] for name in names]}


def _here(target: str) -> Document:
    """Return the host and the drives of a target; it may be another host's, or the sum."""
    if Path(target).exists():
        return find_host(Path(target))
    return {"host": target.rpartition(":")[0], "drives": ()}


def _written(row: Document, workload: "Workload | None") -> Document:
    """Return what no document holds: when a row is written, its name, and what was asked for."""
    identity: tuple[object, ...]
    if "folder" in row:
        identity = (Path(row["folder"]).resolve(), row.get("target") or row["start"])
    else:
        identity = (time.time_ns(),)
    identity = (*identity, *row.get("identity", ()))
    own = {"time": time_of_day(), "id": short_hash(row.get("workload"), *identity)}
    if workload is None:
        return own
    tree = workload.model_dump(mode="json")
    asked = {key: value_of(tree, key) for key in workload.given if not key.startswith("output.")}
    return own | {"overrides_hash": short_hash(workload.name, sorted(asked.items()))}


def drive_models(hosts: Iterable[Document]) -> str:
    """Return the models of all drives, each once."""
    return each_once(drive["model"] for host in hosts for drive in host["drives"])


def short_hash(*parts: object) -> str:
    """Return twelve letters that stand for some values."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


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
        raise WorkloadError.of_system(
            error, f"--csv {path}", "cannot be written", "name another file"
        ) from None


def append_rows(path: Path, columns: Sequence[str], rows: Sequence[Document]) -> None:
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


def _cells(row: Document) -> dict[str, str]:
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
