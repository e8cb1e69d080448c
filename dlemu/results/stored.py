"""Runs that were stored, read back: their metrics computed anew from the steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlemu.errors import RunError
from dlemu.results.metrics import measure_run, whole_epochs
from dlemu.results.outcome import Outcome, summarize
from dlemu.results.proof import EXIT_STATUS, describe_end
from dlemu.results.records import CONFIG, SUMMARY, UNFINISHED, read_steps, read_summary
from dlemu.results.several import describe_run, judge, render_runs
from dlemu.results.text import render_run
from dlemu.units import counted
from dlemu.workload.model import Workload, load_workload


@dataclass(frozen=True)
class Stored:
    """One folder of the command line: a run, or several of a protocol with their own verdict."""

    folder: Path
    workload: Workload
    outcomes: Mapping[str, Outcome]
    """Of each run by its name, "" for the only one."""
    summary: Mapping[str, Any]

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
        if "runs" in self.summary:
            parts.append(render_runs(self.workload, self.summary))
        return "\n\n".join(parts)

    @property
    def status(self) -> int:
        """As `dlemu run` exits: 0 passed, 1 failed or no verdict, 2 under the threshold."""
        return EXIT_STATUS[self.summary["verdict"]]


def read_folder(folder: Path, keys: Mapping[str, object] | None = None) -> Stored:
    """Return what a folder holds, its metrics computed anew.

    Raises:
        RunError: it is no run's folder, the run did not end, or a file is damaged.
    """
    summary = read_summary(folder)
    if "runs" not in summary:
        workload, outcome = _read_run(folder, summary, keys or {})
        return Stored(folder, workload, {"": outcome}, outcome.summary)
    outcomes = {}
    for row in summary["runs"]:
        inner = folder / row["name"]
        if inner.parent != folder or inner.name == "..":
            raise RunError(f"{folder / SUMMARY} is damaged: a run is named {row['name']!a:.80}")
        workload, outcomes[row["name"]] = _read_run(inner, read_summary(inner), keys or {})
    counting = [out for name, out in outcomes.items() if not name.startswith("warmup")]
    if not counting:
        raise _no_verdict(folder, summary)
    rows = [
        row | describe_run(workload, row["name"], outcomes[row["name"]]) | _gap(row)
        for row in summary["runs"]
    ]
    judged = judge(workload, counting)
    if "passed" not in summary:
        reason = describe_end(summary, f"after {len(counting)} of {counted(workload.runs, 'run')}")
        judged |= {"verdict": "NO VERDICT", "passed": False, "reasons": [reason]}
        judged["status"] = summary.get("status")
    return Stored(folder, workload, outcomes, summary | {"runs": rows} | judged)


def _gap(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"gap_seconds": row.get("gap_seconds")}


def _read_run(
    folder: Path, summary: dict[str, Any], keys: Mapping[str, object]
) -> tuple[Workload, Outcome]:
    """Return a run's workload and what came of it."""
    ended = summary.get("status") not in UNFINISHED
    if ended and not summary.get("metric"):
        raise _no_verdict(folder, summary)
    if not (folder / CONFIG).is_file():
        raise RunError(f"{folder / CONFIG} is missing; is {folder} a run's folder?")
    workload = load_workload(folder / CONFIG, keys)
    if not ended and not any(folder.glob("steps.*.npy")):
        raise _no_verdict(folder, summary)
    steps = read_steps(folder)
    if not ended:
        steps = whole_epochs(steps, summary.get("num_accelerators", 0))
        if len(steps) == 0:
            raise _no_verdict(folder, summary)
    metrics = measure_run(workload, steps)
    if metrics.num_accelerators != summary.get("num_accelerators"):
        raise RunError(
            f"{folder} holds steps of {counted(metrics.num_accelerators, 'accelerator')}, "
            f"the run had {summary.get('num_accelerators')}; a steps.<rank>.npy is missing"
        )
    told = summary["measured"].get("read_bytes")
    if ended and metrics.read_bytes != told:
        raise RunError(
            f"{folder}: its steps read {metrics.read_bytes:,} bytes, {told:,} by summary.json; "
            "records are missing, or are another run's"
        )
    summary = summary | summarize(workload, metrics, summary)
    return workload, Outcome(folder, metrics, summary, summary["verdict"] == "PASS")


def _no_verdict(folder: Path, summary: Mapping[str, Any]) -> RunError:
    """Return the line of what did not end, and of which nothing whole is there."""
    what = "run that counts" if "runs" in summary else "epoch of all accelerators"
    error = summary.get("error", "the run did not end")
    return RunError(f"{folder}: no verdict ({summary.get('status')}), no whole {what}: {error}")
