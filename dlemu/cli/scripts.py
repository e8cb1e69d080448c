"""For scripts: an answer as one JSON document (--json), and as rows of a CSV file (--csv)."""

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

from dlemu.cli.words import Words
from dlemu.config.published import value_of
from dlemu.errors import WorkloadError
from dlemu.host.place import find_host
from dlemu.judge.records import plain
from dlemu.judge.summary import time_of_day
from dlemu.report.table import Row, append_rows, check_table
from dlemu.terminal import answer
from dlemu.units import each_once

if TYPE_CHECKING:
    from dlemu.config.model import Workload
    from dlemu.dataset.rule import DatasetSize
    from dlemu.sizing.answers import Sized
    from dlemu.sizing.predict import Predicted

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


@dataclass(frozen=True)
class Script:
    """Where the answer of a command goes, beside the terminal."""

    as_json: bool
    table: Path | None
    columns: Sequence[str]
    label: str

    @classmethod
    def of(cls, words: Words, columns: Sequence[str]) -> "Script":
        """Return what the words ask for; a file that will not take the rows is refused now.

        Raises:
            WorkloadError: --label stands without --csv, or the file cannot be appended to.
        """
        table = words.path("--csv")
        if table is None and "--label" in words.options:
            raise WorkloadError("--label is a column of --csv FILE; name the file as well")
        if table is not None:
            check_table(table, columns)
        label = words.options.get("--label", "")
        return cls("--json" in words.options, table, columns, label)

    @property
    def is_asked(self) -> bool:
        """Whether a script waits for an answer."""
        return self.as_json or self.table is not None

    def tell(self, document: Any, rows: Sequence[Row]) -> None:
        """Append the rows and print the document, as far as asked for."""
        if self.table is not None:
            common = {"label": self.label, "dlemu_version": version("dlemu")}
            append_rows(self.table, self.columns, [common | dict(row) for row in rows])
        if self.as_json:
            answer(json_text(document))


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """Return JSON in ASCII without control characters; what is not finite becomes null."""
    return json.dumps(plain(value), indent=indent).replace("\x7f", "\\u007f")


def run_document(folder: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what --json prints of a run or of several: as `dlemu report --json`."""
    return {"folder": str(folder)} | dict(summary)


def run_row(
    workload: "Workload",
    folder: Path,
    document: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]] = (),
) -> Row:
    """Return the row of a run, or of several: `runs` that count, of which it has the means."""
    runs = runs or [document]

    def over(path: str) -> list[float]:
        return [cast(float, value_of(run, path)) for run in runs]

    return {
        **_common(workload, folder.resolve(), document["start"]),
        "time": document["start"],
        "num_accelerators": runs[0]["num_accelerators"],
        "au_percent": fmean(over("metric.train_au_mean_percentage")),
        "min_accelerator_au_percent": min(over("metric.train_au_min_accelerator_percentage")),
        "samples_per_second": fmean(over("metric.train_throughput_mean_samples_per_second")),
        "read_MB_per_second": fmean(over("measured.read_bytes_per_second")) / 1e6,
        "verdict": document["verdict"],
        "limit": each_once(run["limit"]["name"] for run in runs),
        "host": runs[0]["hostname"],
        "drive_model": drive_models(runs[0].get("system", ())),
        "folder": folder,
        "runs": len(runs),
    }


def size_row(answer: "Sized") -> Row:
    """Return the row of one target and workload."""
    low, high = answer.interval or (None, None)
    rate = answer.mean("read_bytes_per_second")
    here = find_host(Path(answer.target.folder))
    same = ("num_accelerators", "at_least", "real_accelerators", "limit")
    return {
        **_common(answer.workload, answer.folder.resolve(), answer.target.name),
        **{name: getattr(answer, name) for name in same},
        "target": answer.target.name,
        "drives": answer.target.num_drives,
        "interval_low": low,
        "interval_high": high,
        "threshold_percent": answer.threshold,
        "au_percent": answer.mean("au_percentage"),
        "samples_per_second": answer.mean("samples_per_second"),
        "read_MB_per_second": rate and rate / 1e6,
        "remarks": "; ".join(answer.remarks),
        "first": answer.first is not None,
        "quick": answer.workload.size.quick,
        "runs": len(answer.points),
        "seconds": answer.seconds,
        "host": here["host"],
        "drive_model": drive_models([here]),
        "folder": answer.folder,
    }


def predict_row(answer: "Predicted") -> Row:
    """Return the row of a prediction."""
    same = ("num_accelerators", "low", "high", "at_least", "real_accelerators", "calibrated")
    return {
        **_common(answer.workload, time.time_ns()),
        **{name: getattr(answer, name) for name in (*same, "limit", "minutes")},
        "drive": answer.drive.name,
        "drives": answer.workload.drives,
        "au_percent": answer.au_percentage,
        "read_MB_per_second": answer.read_bytes_per_second / 1e6,
    }


def datasize_row(size: "DatasetSize") -> Row:
    """Return the row of a dataset's size."""
    return {
        **size.document,
        **_common(size.workload, time.time_ns()),
        "memory_bytes": size.memory.num_bytes,
    }


def _common(workload: "Workload", *identity: object) -> dict[str, Any]:
    """Return the first columns, and the hash of what the user asked for."""
    tree = workload.model_dump(mode="json")
    asked = {key: value_of(tree, key) for key in workload.given if not key.startswith("output.")}
    return {
        "time": time_of_day(),
        "id": short_hash(workload.name, *identity),
        "workload": workload.name,
        "overrides_hash": short_hash(workload.name, sorted(asked.items())),
    }


def drive_models(hosts: Iterable[Mapping[str, Any]]) -> str:
    """Return the models of all drives, each once."""
    return each_once(drive["model"] for host in hosts for drive in host["drives"])


def short_hash(*parts: object) -> str:
    """Return twelve letters that stand for some values."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
