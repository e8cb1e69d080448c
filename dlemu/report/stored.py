"""Reads stored results back as documents, whichever command or tool has written them.

The metrics of runs are computed from their steps again.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from dlemu.errors import RunError
from dlemu.judge.earlier import with_findings
from dlemu.judge.metrics import measure_sums
from dlemu.judge.outcome import counting_rows, ended_early, judge_runs, row_of, with_metrics
from dlemu.judge.records import (
    CONFIG,
    SUMMARY,
    UNFINISHED,
    damaged,
    holds_result,
    map_steps,
    read_config,
    read_sizing,
    read_summary,
)
from dlemu.judge.summary import RunRow, RunsSummary, Summary
from dlemu.judge.sums import RankName, Rule, sum_all
from dlemu.report.blocks import Document
from dlemu.report.foreign import read_foreign
from dlemu.units import counted

_OF_SEVERAL = re.compile(r"(run|warmup)\.\d+")


@dataclass(frozen=True)
class Stored:
    """The result in a folder: its kind, document and runs."""

    folder: Path
    document: Document
    """Its `kind` is that of a command's result, or "foreign": what another tool has recorded of a
    run whose steps or keys are missing."""
    runs: Mapping[str, Document] = field(default_factory=dict)
    """The document of each run by its folder in this one, "" for the only one."""

    @property
    def kind(self) -> str:
        """The kind of the document."""
        return str(self.document["kind"])

    @property
    def counting(self) -> Sequence[Document]:
        """The runs that count: of several, those that ended, without warm-ups."""
        if self.kind != "runs":
            return list(self.runs.values())
        return [self.runs[row["name"]] for row in counting_rows(self.document["runs"])]

    @property
    def shown(self) -> Document:
        """The document with the folder of its files, as --json prints it."""
        return {"folder": str(self.folder), **self.document}


def read_result(folder: Path, keys: Mapping[str, object] | None = None) -> Stored:
    """Return what a folder holds; `keys` are those of `metric`, for another definition.

    Raises:
        RunError: it holds no result, the run did not end, or a file is damaged.
        WorkloadError: a key or value of `keys` is refused.
    """
    if sizing := read_sizing(folder):
        if not (sizing["answers"] or any(each["points"] for each in sizing["unfinished"].values())):
            raise RunError(f"{folder}: no answer, and no run of the search is complete")
        return Stored(folder, sizing)
    if (foreign := read_foreign(folder, keys or {})) is not None:
        return Stored(folder, *foreign)
    document = _summary_of(folder)
    match document.get("kind"):
        case kind if kind in _OF_OTHERS:
            if document["status"] in UNFINISHED:
                error = document.get("error", "the command did not end")
                raise RunError(f"{folder}: no result ({document['status']}): {error}")
            return Stored(folder, document)
        case kind if kind == "runs" or (kind is None and "runs" in document):
            return _read_runs(folder, cast(RunsSummary, document), keys or {})
        case _:
            run = cast(Document, _read_run(folder, cast(Summary, document), keys or {}))
            return Stored(folder, run, {"": run})


_OF_OTHERS = ("calibration", "checkpoint", "load", "paths")
"""Kinds of summaries that have no runs."""
_MOST_SHOWN = 3
"""Names of a summary of another program that a line shows."""


def _summary_of(folder: Path) -> dict[str, Any]:
    """Return a summary of dlemu's, as `read_summary` does: other programs write that name, too."""
    document = read_summary(folder)
    is_run = document.get("kind") not in _OF_OTHERS and "runs" not in document
    # What such a summary has had since the first version that is read.
    needed = ("status", "start") if is_run else ("status",)
    if lacks := [name for name in needed if name not in document]:
        has = [each[:40] for each in document if each not in needed][:_MOST_SHOWN]
        raise RunError(
            f"{folder / SUMMARY} is not of dlemu: it has {', '.join(has) or 'nothing'}, but no "
            f"{' and no '.join(lacks)}",
            remedy="name the folder of a run",
        )
    return document


def _read_runs(folder: Path, summary: RunsSummary, keys: Mapping[str, object]) -> Stored:
    """Return several runs; their verdict is the stored one where `keys` change nothing."""
    runs: dict[str, Summary] = {}
    rows = []
    for row in summary["runs"]:
        name = row["name"]
        inner = folder / name
        if inner.parent != folder or inner.name == "..":
            raise damaged(folder / SUMMARY, f"a run is named {name!a:.80}")
        runs[name] = _read_run(inner, cast(Summary, _summary_of(inner)), keys)
        again = row_of(name, runs[name])
        rows.append(RunRow({**row, **again, "gap_seconds": row["gap_seconds"]}))
    counting = [runs[row["name"]] for row in counting_rows(rows)]
    begun: dict[str, Summary] = {}
    for inner in cut_runs(folder, rows):
        with suppress(RunError):
            begun[inner.name] = _read_run(inner, cast(Summary, _summary_of(inner)), keys)
    if not counting:
        error = _no_verdict(folder, summary, "run that counts")
        shown = [str(folder / name) for name in (*runs, *begun)]
        command = shlex.join(["dlemu", "report", *shown])
        raise RunError(error, remedy=f"{command} shows what is there" if shown else "")
    every = cast(Mapping[str, Document], {**runs, **begun})
    is_old = "threshold_percentage" not in summary
    if "verdict" in summary and not keys and not is_old:
        # Of an earlier version the epochs under the threshold are a text.
        under = {row["name"]: row["epochs_under"] for row in rows}
        own = [{**row, "epochs_under": under[row["name"]]} for row in summary["runs"]]
        return Stored(folder, {**with_findings(summary), "runs": own}, every)
    judged = judge_runs({**summary, "runs": rows}, counting)
    if "verdict" in summary and not keys:
        return Stored(folder, {**judged, **_as_written(summary)}, every)
    if "verdict" not in summary:
        wanted = read_config(folder / next(iter(runs)), {}).runs
        judged["status"], judged["verdict"] = summary["status"], "NO VERDICT"
        judged["findings"] = [ended_early(summary, len(counting), wanted, "run").fields]
    return Stored(folder, cast(Document, judged), every)


def find_results(parent: Path) -> list[Path]:
    """Return the folders of runs, series and sizings below a folder, the newest last."""
    found = []
    for folder, inner, files in os.walk(parent):
        path = Path(folder)
        if holds_result(files):
            inner.clear()  # its own runs are no results beside it
            found.append(path)
    return sorted(found, key=lambda path: (written_at(path), path))


def written_at(folder: Path) -> float:
    """Return when a result was written last, in seconds since 1970."""
    times = [0.0]
    with suppress(OSError):
        times += [each.stat().st_mtime for each in folder.iterdir() if holds_result([each.name])]
    return max(times)


def attempts_of(folder: Path) -> list[Path]:
    """Return the folders that earlier runs of the same name have left, which did not end."""
    try:
        beside = sorted(folder.parent.iterdir())
    except OSError:
        return []
    return [path for path in beside if path.name.startswith(f"{folder.name}.attempt-")]


def cut_runs(folder: Path, rows: Sequence[RunRow]) -> list[Path]:
    """Return the folders of those of several runs that did not end."""
    ended = {row["name"] for row in rows}
    return [
        path
        for path in sorted(folder.iterdir())
        if path.name not in ended and _OF_SEVERAL.fullmatch(path.name)
    ]


def _read_run(folder: Path, summary: Summary, keys: Mapping[str, object]) -> Summary:
    """Return a run's document: the stored one if it ended and `keys` change nothing."""
    ended = summary["status"] not in UNFINISHED
    if ended and not summary["metric"]:
        raise _no_verdict(folder, summary)
    if not (folder / CONFIG).is_file():
        raise RunError(f"{folder / CONFIG} is missing; is {folder} a run's folder?")
    workload = read_config(folder, keys)
    if not ended and not any(folder.glob("steps.*.npy")):
        raise _no_verdict(folder, summary)
    sums = sum_all(
        ((RankName(rank), steps) for rank, steps in map_steps(folder)), Rule.of(workload)
    )
    if not ended:
        sums = sums.of_all(summary["num_accelerators"])
        if not sums.epochs:
            raise _no_verdict(folder, summary)
    metrics = measure_sums(sums)
    if metrics.num_accelerators != summary["num_accelerators"]:
        raise RunError(
            f"{folder} holds steps of {counted(metrics.num_accelerators, 'accelerator')}, "
            f"the run had {summary['num_accelerators']}; a steps.<rank>.npy is missing"
        )
    is_old = "per_epoch" not in summary
    if ended and not is_old and metrics.read_bytes != (stored := summary["measured"]["read_bytes"]):
        raise RunError(
            f"{folder}: its steps read {metrics.read_bytes:,} bytes, {stored:,} by summary.json; "
            "records are missing, or are another run's"
        )
    if ended and not keys and not is_old:
        return cast(Summary, with_findings(summary))
    judged = with_metrics(summary, workload, metrics)
    return cast(Summary, {**judged, **_as_written(summary)}) if ended and not keys else judged


def _as_written(summary: Summary | RunsSummary) -> dict[str, Any]:
    """Return verdict and findings of a document that lacks what later versions have beside them.

    Those of November 22, 2026 (220ebcf) are the oldest that are read. What they lack follows from
    the steps; the text is theirs.
    """
    return {"verdict": summary["verdict"], "findings": with_findings(summary)["findings"]}


def _no_verdict(
    folder: Path, summary: Summary | RunsSummary, whole: str = "epoch of all accelerators"
) -> RunError:
    """Return the error for runs that did not end, and of which nothing is whole."""
    error = summary.get("error", "the run did not end")
    return RunError(f"{folder}: no verdict ({summary['status']}), no whole {whole}: {error}")
