"""Several runs as MLPerf Storage asks for them, and the table of what they came to.

What passes here is "MLPerf-Storage-style": a result of MLPerf is what its reviewers have published.
"""

from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dlemu.dataset.rule import required_size
from dlemu.ending import last_act
from dlemu.errors import RunError, WorkloadError
from dlemu.results.folders import hold_for_runs
from dlemu.results.outcome import Outcome
from dlemu.results.proof import EXIT_STATUS
from dlemu.results.records import write_summary
from dlemu.results.several import LABEL, describe_run, judge, render_runs
from dlemu.results.text import render_run
from dlemu.run.closed import check_closed
from dlemu.run.job import Say, run_job
from dlemu.terminal import say
from dlemu.workload.model import Workload
from dlemu.world.world import World


def run_protocol(workload: Workload, *, world: World, say: Say = say) -> int:
    """Run the warm-ups and the runs that count, each with a seed of its own; return exit status.

    Raises:
        WorkloadError: division=closed does not allow a key or a value.
    """
    if workload.division == "closed":
        size = required_size(workload, world)
        try:
            workload = check_closed(workload, size)
        except WorkloadError:
            if world.rank == 0:  # whose failure ends the others below
                raise
    with hold_for_runs(workload, say) if world.rank == 0 else nullcontext() as own:
        base = world.broadcast(own)
        assert base is not None
        return _run_below(base, workload, world, say)


def _run_below(base: Path, workload: Workload, world: World, say: Say) -> int:
    """Make the runs in a folder of their own; return exit status."""
    summary: dict[str, Any] = {
        "status": "incomplete",
        "label": LABEL,
        "division": workload.division,
        "workload": workload.name,
        "start": _now(),
        "runs": [],
    }
    if world.rank == 0:
        write_summary(base, summary)

    def record(error: BaseException) -> None:
        if world.rank == 0:
            _write_failure(base, summary, error)

    try:
        with last_act(record):
            outcomes = _run_all(workload, base, summary, world, say)
    except BaseException as error:
        record(error)
        raise
    status = 0
    if world.rank == 0:
        summary |= judge(workload, outcomes) | {"end": _now()}
        write_summary(base, summary)
        say(f"\n{render_runs(workload, summary)}\nresults: {base}")
        status = EXIT_STATUS[summary["verdict"]]
    return world.broadcast(status)


def _run_all(
    workload: Workload, base: Path, summary: dict[str, Any], world: World, say: Say
) -> list[Outcome]:
    """Make the runs, one after the other; return those that count, on rank 0."""
    outcomes = []
    for number in range(workload.warmup + workload.runs):
        warming = number < workload.warmup
        name = f"warmup.{number + 1}" if warming else f"run.{number + 1 - workload.warmup}"
        if world.rank == 0:
            say(f"\n{name} of {workload.warmup} warm-ups and {workload.runs} runs")
        outcome = run_job(
            workload.with_keys(
                {
                    "output.folder": str(base / name),
                    "train.seed": workload.train.seed + number,
                }
            ),
            world=world,
            say=say,
        )
        if outcome is None:
            continue
        say(render_run(workload, outcome.metrics, outcome.summary))
        if not warming:
            outcomes.append(outcome)
        row = describe_run(workload, name, outcome)
        if summary["runs"]:
            ended = datetime.fromisoformat(summary["runs"][-1]["end"])
            row["gap_seconds"] = (datetime.fromisoformat(row["start"]) - ended).total_seconds()
        summary["runs"].append(row)
        write_summary(base, summary)
    return outcomes


def _write_failure(base: Path, summary: dict[str, Any], error: BaseException) -> None:
    """Record which run came to nothing; the disk may be what failed."""
    interrupted = isinstance(error, (KeyboardInterrupt, SystemExit))
    summary |= {
        "status": "incomplete" if interrupted else "failed",
        "error": "interrupted" if interrupted else str(error),
        "end": _now(),
    }
    with suppress(RunError):
        write_summary(base, summary)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
