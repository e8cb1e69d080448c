"""Reads stored runs back, and computes their metrics from the steps again."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dlemu.errors import RunError
from dlemu.results.judgement import EXIT_STATUS, describe_end
from dlemu.results.metrics import epochs_of_all, measure_run
from dlemu.results.outcome import Outcome, outcome_of, with_metrics
from dlemu.results.records import CONFIG, SUMMARY, read_config, read_steps, read_summary
from dlemu.results.several import judge_runs, render_runs, row_of
from dlemu.results.summary import RunRow, RunsSummary, Summary
from dlemu.results.text import render_run
from dlemu.units import counted
from dlemu.workload.model import Workload


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
    def summary(self) -> Mapping[str, Any]:
        """The fields of summary.json, computed again."""
        return self.outcomes[""].summary if self.together is None else self.together.as_json()

    @property
    def text(self) -> str:
        """The report as the terminal shows it."""
        parts = []
        for name, outcome in self.outcomes.items():
            status = outcome.summary["status"]
            parts.append(
                f"{self.folder / name}: {status}\n"
                f"{render_run(self.workload, outcome.metrics, outcome.summary)}"
            )
        if self.together is not None:
            parts.append(render_runs(self.workload, self.together))
        return "\n\n".join(parts)

    @property
    def status(self) -> int:
        """As `dlemu run` exits: 0 passed, 1 failed or no verdict, 2 under the threshold."""
        return EXIT_STATUS[self.summary["verdict"]]


def read_folder(folder: Path, keys: Mapping[str, object] | None = None) -> Stored:
    """Return what a folder holds, with its metrics computed again.

    Raises:
        RunError: it is no run's folder, the run did not end, or a file is damaged.
    """
    tree = read_summary(folder)
    if "runs" not in tree:
        workload, outcome = _read_run(folder, Summary.of(tree), keys or {})
        return Stored(folder, workload, {"": outcome})
    summary = RunsSummary.of(tree)
    outcomes = {}
    rows = []
    for row in summary.runs:
        inner = folder / row.name
        if inner.parent != folder or inner.name == "..":
            raise RunError(f"{folder / SUMMARY} is damaged: a run is named {row.name!a:.80}")
        workload, outcome = _read_run(inner, Summary.of(read_summary(inner)), keys or {})
        outcomes[row.name] = outcome
        rows.append(_again(row, row_of(workload, row.name, outcome)))
    counting = [out for name, out in outcomes.items() if not name.startswith("warmup")]
    if not counting:
        raise _no_verdict(folder, summary, "run that counts")
    judged = judge_runs(replace(summary, runs=rows), counting)
    if summary.passed is None:
        reason = describe_end(summary, f"after {len(counting)} of {counted(workload.runs, 'run')}")
        judged = replace(
            judged, status=summary.status, verdict="NO VERDICT", passed=False, reasons=[reason]
        )
    return Stored(folder, workload, outcomes, judged)


def _again(row: RunRow, computed: RunRow) -> RunRow:
    """Return a row computed again, with what only the stored one has."""
    return replace(computed, as_read=row.as_read, gap_seconds=row.gap_seconds)


def _read_run(
    folder: Path, summary: Summary, keys: Mapping[str, object]
) -> tuple[Workload, Outcome]:
    """Return a run's workload and its outcome."""
    ended = not summary.unfinished
    if ended and not summary.metric.as_read:
        raise _no_verdict(folder, summary)
    if not (folder / CONFIG).is_file():
        raise RunError(f"{folder / CONFIG} is missing; is {folder} a run's folder?")
    workload = read_config(folder, keys)
    if not ended and not any(folder.glob("steps.*.npy")):
        raise _no_verdict(folder, summary)
    steps = read_steps(folder)
    if not ended:
        steps = epochs_of_all(steps, summary.num_accelerators)
        if len(steps) == 0:
            raise _no_verdict(folder, summary)
    metrics = measure_run(workload, steps)
    if metrics.num_accelerators != summary.num_accelerators:
        raise RunError(
            f"{folder} holds steps of {counted(metrics.num_accelerators, 'accelerator')}, "
            f"the run had {summary.num_accelerators}; a steps.<rank>.npy is missing"
        )
    told = summary.measured.read_bytes
    if ended and metrics.read_bytes != told:
        raise RunError(
            f"{folder}: its steps read {metrics.read_bytes:,} bytes, {told:,} by summary.json; "
            "records are missing, or are another run's"
        )
    return workload, outcome_of(folder, metrics, with_metrics(summary, workload, metrics))


def _no_verdict(
    folder: Path, summary: Summary | RunsSummary, whole: str = "epoch of all accelerators"
) -> RunError:
    """Return the error for runs that did not end, and of which nothing is whole."""
    error = "the run did not end" if summary.error is None else summary.error
    return RunError(f"{folder}: no verdict ({summary.status}), no whole {whole}: {error}")
