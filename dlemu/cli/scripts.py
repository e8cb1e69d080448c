"""The tables of --csv: their columns, and where in a document the value of each is."""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dlemu.config.published import value_of
from dlemu.host.place import find_host
from dlemu.judge.outcome import counting_rows
from dlemu.judge.summary import time_of_day
from dlemu.plugins import own_version
from dlemu.report.blocks import Document
from dlemu.report.sizing import shown_runs
from dlemu.units import each_once

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
    *(*_LAST, "remarks", "first"),
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
_PREDICTED: Mapping[str, _Source] = {
    "au_percent": "au_percentage",
    "read_MB_per_second": _mega("read_bytes_per_second"),
}
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
        "host": "here.host",
        "drive_model": lambda row: drive_models([row["here"]]),
        "remarks": lambda row: "; ".join(row["remarks"]),
        "first": lambda row: row["first"] is not None,
    },
    **dict.fromkeys(("prediction", "predictions", "cached prediction"), _PREDICTED),
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
        case "cached prediction":
            return [document["cold"], document["warm"]]
        case "load":
            return list(document["cells"])
        case _:
            return [{}]


def _written(row: Document, workload: "Workload | None") -> Document:
    """Return what no document holds: when a row is written, its name, and what was asked for."""
    identity: tuple[object, ...]
    if "folder" in row:
        identity = (Path(row["folder"]).resolve(), row.get("target") or row["start"])
    else:
        identity = (time.time_ns(), *(row[name] for name in ("way", "readers") if name in row))
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
