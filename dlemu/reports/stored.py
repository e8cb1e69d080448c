"""Reads stored results back, and computes their metrics from the steps again."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from dlemu.errors import RunError
from dlemu.reports.checkpoints import StoredCheckpoints, is_checkpoint, read_checkpoints
from dlemu.reports.foreign import Foreign, is_foreign, read_foreign
from dlemu.reports.rows import ResultRow
from dlemu.reports.sizings import ANSWER, StoredSizing, is_sizing, read_sizing
from dlemu.results.judgement import EXIT_STATUS, describe_end
from dlemu.results.metrics import measure_sums
from dlemu.results.outcome import Outcome, with_metrics
from dlemu.results.records import (
    CONFIG,
    SUMMARY,
    UNFINISHED,
    map_steps,
    read_config,
    read_summary,
)
from dlemu.results.several import counting_rows, judge_runs, row_of
from dlemu.results.summary import RunRow, RunsSummary, Summary
from dlemu.results.sums import Rule, sum_all
from dlemu.units import counted
from dlemu.workload.model import Workload

_OF_SEVERAL = re.compile(r"(run|warmup)\.\d+")


@dataclass(frozen=True)
class Stored:
    """What a folder holds: a run, or several with a verdict on all."""

    folder: Path
    workload: Workload
    outcomes: Mapping[str, Outcome]
    """Of each run by its name, "" for the only one."""
    together: RunsSummary | None = None
    """Of several runs."""

    @property
    def counting(self) -> Mapping[str, Outcome]:
        """The runs that count: of several, those that ended, without warm-ups."""
        if self.together is None:
            return self.outcomes
        names = [row["name"] for row in counting_rows(self.together["runs"])]
        return {name: self.outcomes[name] for name in names}

    @property
    def summary(self) -> Mapping[str, Any]:
        """The fields of summary.json."""
        return self.outcomes[""].summary if self.together is None else self.together

    @property
    def rows(self) -> Sequence[ResultRow]:
        """A row for each run."""
        return [
            _row(self.folder / name, outcome.summary) for name, outcome in self.outcomes.items()
        ]

    @property
    def status(self) -> int:
        """As `dlemu run` exits: 0 passed, 1 failed or no verdict, 2 under the threshold."""
        return EXIT_STATUS[self.summary["verdict"]]


Result = Stored | StoredCheckpoints | StoredSizing | Foreign
"""What a folder holds. Each kind has `folder`, `summary`
as `dlemu report --json` prints it, `rows` of a table of all results, and `status`: how the command
exits, 0 passed, 1 no verdict, 2 under the threshold."""


def read_result(folder: Path, keys: Mapping[str, object] | None = None) -> Result:
    """Return what a folder holds, whichever command or tool has written it.

    `keys` are those of `metric`, for another definition.

    Raises:
        RunError: it holds no result, the run did not end, or a file is damaged.
        WorkloadError: a key or value of `keys` is refused.
    """
    if is_sizing(folder):
        return read_sizing(folder)
    if is_foreign(folder):
        return read_foreign(folder, keys or {})
    if is_checkpoint(summary := read_summary(folder)):
        return read_checkpoints(folder, summary)
    return read_folder(folder, keys)


def read_folder(folder: Path, keys: Mapping[str, object] | None = None) -> Stored:
    """Return what a folder holds; its verdict is the stored one where `keys` change nothing.

    Raises:
        RunError: it is no run's folder, the run did not end, or a file is damaged.
    """
    tree = read_summary(folder)
    if tree.get("kind") != "runs":
        workload, outcome = _read_run(folder, cast(Summary, tree), keys or {})
        return Stored(folder, workload, {"": outcome})
    summary = cast(RunsSummary, tree)
    outcomes = {}
    rows = []
    for row in summary["runs"]:
        name = row["name"]
        inner = folder / name
        if inner.parent != folder or inner.name == "..":
            raise RunError(f"{folder / SUMMARY} is damaged: a run is named {name!a:.80}")
        workload, outcome = _read_run(inner, cast(Summary, read_summary(inner)), keys or {})
        outcomes[name] = outcome
        again = row_of(workload, name, outcome)
        rows.append(RunRow({**row, **again, "gap_seconds": row["gap_seconds"]}))
    counting = [outcomes[row["name"]] for row in counting_rows(rows)]
    begun = _cut_short(folder, rows, keys or {})
    if not counting:
        error = _no_verdict(folder, summary, "run that counts")
        shown = [str(folder / name) for name in (*outcomes, *begun)]
        command = shlex.join(["dlemu", "report", *shown])
        raise RunError(error, remedy=f"{command} shows what is there" if shown else "")
    if summary.get("passed") is not None and not keys:
        return Stored(folder, workload, {**outcomes, **begun}, summary)
    judged = judge_runs({**summary, "runs": rows}, counting)
    if summary.get("passed") is None:
        reason = describe_end(summary, f"after {len(counting)} of {counted(workload.runs, 'run')}")
        judged["status"], judged["reasons"] = summary["status"], [reason]
        judged["verdict"], judged["passed"], judged["remarks"] = "NO VERDICT", False, []
    return Stored(folder, workload, {**outcomes, **begun}, judged)


def find_results(parent: Path) -> list[Path]:
    """Return the folders of runs, series and sizings below a folder, the newest last."""
    found = []
    for folder, inner, files in os.walk(parent):
        path = Path(folder)
        if is_sizing(path) or SUMMARY in files:
            inner.clear()  # its own runs are no results beside it
            found.append(path)
    return sorted(found, key=lambda path: (_written(path), path))


def _written(folder: Path) -> float:
    """Return when a result was written last."""
    times = [0.0]
    logs = folder.glob("*.jsonl") if is_sizing(folder) else ()
    for path in (folder / SUMMARY, folder / ANSWER, *logs):
        with suppress(OSError):
            times.append(path.stat().st_mtime)
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


def _cut_short(
    folder: Path, rows: Sequence[RunRow], keys: Mapping[str, object]
) -> dict[str, Outcome]:
    """Return those of several runs that did not end but hold whole epochs."""
    found = {}
    for inner in cut_runs(folder, rows):
        with suppress(RunError):
            _, found[inner.name] = _read_run(inner, cast(Summary, read_summary(inner)), keys)
    return found


def _row(folder: Path, run: Summary) -> ResultRow:
    def mean(field: str) -> float:
        return fmean(cast(Mapping[str, Any], epoch)[field] for epoch in run["per_epoch"])

    rate, counted_rate = mean("true_samples_per_second"), mean("samples_per_second")
    return ResultRow(
        name=str(folder),
        tool="dlemu",
        workload=run["workload"],
        num_accelerators=run["num_accelerators"],
        au_percentage=mean("au_percentage"),
        told_au_percentage=mean("au_percentage"),
        whole_au_percentage=mean("whole_epoch_au_percentage"),
        samples_per_second=rate,
        nominal_MB_per_second=mean("nominal_bytes_per_second") / 1e6 * rate / counted_rate,
        first_step_seconds=mean("first_step_seconds"),
        verdict=run["verdict"],
    )


def _read_run(
    folder: Path, summary: Summary, keys: Mapping[str, object]
) -> tuple[Workload, Outcome]:
    """Return a run's workload and its outcome."""
    ended = summary["status"] not in UNFINISHED
    if ended and not summary["metric"]:
        raise _no_verdict(folder, summary)
    if not (folder / CONFIG).is_file():
        raise RunError(f"{folder / CONFIG} is missing; is {folder} a run's folder?")
    workload = read_config(folder, keys)
    if not ended and not any(folder.glob("steps.*.npy")):
        raise _no_verdict(folder, summary)
    sums = sum_all(((str(rank), steps) for rank, steps in map_steps(folder)), Rule.of(workload))
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
    if ended and metrics.read_bytes != (told := summary["measured"]["read_bytes"]):
        raise RunError(
            f"{folder}: its steps read {metrics.read_bytes:,} bytes, {told:,} by summary.json; "
            "records are missing, or are another run's"
        )
    if ended and not keys:
        return workload, Outcome(folder, metrics, summary)
    return workload, Outcome(folder, metrics, with_metrics(summary, workload, metrics))


def _no_verdict(
    folder: Path, summary: Summary | RunsSummary, whole: str = "epoch of all accelerators"
) -> RunError:
    """Return the error for runs that did not end, and of which nothing is whole."""
    error = summary.get("error", "the run did not end")
    return RunError(f"{folder}: no verdict ({summary['status']}), no whole {whole}: {error}")
