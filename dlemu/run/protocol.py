"""Several runs in a row, as MLPerf Storage asks for them.

Their results are "MLPerf-Storage-style": only what MLPerf's reviewers publish is an MLPerf result.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from dlemu.config.model import Workload
from dlemu.dataset.rule import accelerators_of, num_accelerators, required_size
from dlemu.errors import WorkloadError
from dlemu.judge.folders import begun
from dlemu.judge.judgement import EXIT_STATUS
from dlemu.judge.outcome import LABEL, Outcome, judge_runs, row_of
from dlemu.judge.summary import RunsSummary, Summary, time_of_day
from dlemu.ranks.ending import last_act
from dlemu.ranks.world import World
from dlemu.run.closed import check_closed, closed_warnings
from dlemu.run.job import OnRun, Say, run_job
from dlemu.run.live import Live
from dlemu.terminal import say

OnEnd = Callable[[Path, RunsSummary, Sequence[Outcome]], None]


def run_protocol(
    workload: Workload,
    *,
    world: World,
    say: Say = say,
    on_run: OnRun | None = None,
    on_end: OnEnd | None = None,
    live: Live,
) -> int:
    """Run the warm-ups and the runs that count, each with a seed of its own; return exit status.

    Rank 0 calls `on_run` after each run, also one that fails after whole epochs, and `on_end` with
    the folder, the summary and the runs that count.

    Raises:
        WorkloadError: division=closed does not allow a key or a value.
    """
    if workload.division == "closed":
        workload = _checked(workload, world)
    summary = RunsSummary(
        kind="runs",
        status="incomplete",
        label=LABEL,
        division=workload.division,
        workload=workload.name,
        start=time_of_day(),
        notes=[],
        runs=[],
    )
    outcomes = []
    with (
        begun(workload, world, summary, say, several=True) as record,
        last_act(record.fail),
    ):
        live.folder = record.folder
        if world.rank == 0:
            summary["notes"] = closed_warnings(workload, record.folder, world.num_hosts)
        for note in summary["notes"]:
            say(f"warning: {note}")
        record.write()
        names = [f"warmup.{number + 1}" for number in range(workload.warmup)]
        names += [f"run.{number + 1}" for number in range(workload.runs)]
        for number, name in enumerate(names):
            live.job = f"{name} of {workload.warmup} warm-ups and {workload.runs} runs"
            if world.rank == 0:
                say(f"\n{live.job}")
            keys = {
                "output.folder": str(record.folder / name),
                "train.seed": workload.train.seed + number,
            }
            own = workload.with_keys(keys)
            outcome = run_job(own, world=world, say=say, live=live, on_cut=on_run)
            if outcome is None:
                continue
            if on_run is not None:
                on_run(outcome.folder, outcome.summary)
            if number >= workload.warmup:
                outcomes.append(outcome)
            _add(summary, name, outcome.summary)
            record.write()
        if world.rank == 0:
            summary.update(judge_runs(summary, [outcome.summary for outcome in outcomes]))
            summary["end"] = time_of_day()
            record.write()
    if world.rank == 0 and on_end is not None:
        on_end(record.folder, summary, outcomes)
    return world.broadcast(EXIT_STATUS[summary["verdict"]] if world.rank == 0 else 0)


def _checked(workload: Workload, world: World) -> Workload:
    """Return what `check_closed` does; all ranks call it."""
    size = required_size(workload, world)
    own = accelerators_of(world.rank, world.num_ranks, num_accelerators(workload, world))
    by_host: Counter[int] = Counter()
    for host, number in world.all_gather((world.host_index, len(own))):
        by_host[host] += number
    try:
        return check_closed(workload, size, list(by_host.values()))
    except WorkloadError:
        if world.rank == 0:  # whose failure ends the others
            raise
        return workload


def _add(summary: RunsSummary, name: str, run: Summary) -> None:
    """Add one more run to the summary."""
    for field in ("system", "num_hosts", "dataset", "hostname", "data_loader", "reader"):
        summary[field] = run[field]
    summary["versions"] = run["versions"]
    row, rows = row_of(name, run), summary["runs"]
    if rows:
        ended = datetime.fromisoformat(rows[-1]["end"])
        gap = datetime.fromisoformat(row["start"]) - ended
        row["gap_seconds"] = gap.total_seconds()
    summary["runs"] = [*rows, row]
