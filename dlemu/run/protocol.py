"""Several runs in a row, as MLPerf Storage asks for them.

Their results are "MLPerf-Storage-style": only what MLPerf's reviewers publish is an MLPerf result.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from dlemu.dataset.rule import accelerators_of, num_accelerators, required_size
from dlemu.errors import WorkloadError
from dlemu.results.judgement import EXIT_STATUS
from dlemu.results.lifecycle import Record, begun
from dlemu.results.outcome import Outcome
from dlemu.results.several import LABEL, judge_runs, row_of
from dlemu.results.summary import RunRow, RunsSummary, time_of_day
from dlemu.run.closed import check_closed, closed_warnings
from dlemu.run.job import OnRun, Say, run_job
from dlemu.run.live import Live
from dlemu.terminal import say
from dlemu.workload.model import Workload
from dlemu.world.ending import last_act
from dlemu.world.world import World

OnEnd = Callable[[Path, RunsSummary, Sequence[Outcome]], None]


def run_protocol(
    workload: Workload,
    *,
    world: World,
    say: Say = say,
    on_run: OnRun | None = None,
    on_end: OnEnd | None = None,
    live: Live | None = None,
) -> int:
    """Run the warm-ups and the runs that count, each with a seed of its own; return exit status.

    Rank 0 calls `on_run` after each run, also one that fails after whole epochs, and `on_end` with
    the folder, the summary and the runs that count.

    Raises:
        WorkloadError: division=closed does not allow a key or a value.
    """
    if workload.division == "closed":
        size = required_size(workload, world)
        own = accelerators_of(world.rank, world.num_ranks, num_accelerators(workload, world))
        by_host: Counter[int] = Counter()
        for host, number in world.all_gather((world.host_index, len(own))):
            by_host[host] += number
        try:
            workload = check_closed(workload, size, list(by_host.values()))
        except WorkloadError:
            if world.rank == 0:  # whose failure ends the others below
                raise
    summary = RunsSummary(
        kind="runs",
        status="incomplete",
        label=LABEL,
        division=workload.division,
        workload=workload.name,
        start=time_of_day(),
        runs=[],
    )
    with (
        begun(workload, world, summary, say, several=True) as record,
        last_act(record.fail),
    ):
        outcomes = _Runs(record, summary, workload, world, say, live or Live()).run(on_run)
        if world.rank == 0:
            summary.update(judge_runs(summary, [outcome.summary for outcome in outcomes]))
            summary["end"] = time_of_day()
            record.write()
    if world.rank == 0 and on_end is not None:
        on_end(record.folder, summary, outcomes)
    return world.broadcast(EXIT_STATUS[summary["verdict"]] if world.rank == 0 else 0)


class _Runs:
    """The runs in a folder of their own, and their summary on rank 0."""

    def __init__(
        self,
        record: Record,
        summary: RunsSummary,
        workload: Workload,
        world: World,
        say: Say,
        live: Live,
    ) -> None:
        self._record, self._summary, self._workload = record, summary, workload
        self._world, self._say, self._live = world, say, live
        live.folder = record.folder
        first = world.rank == 0
        notes = closed_warnings(workload, record.folder, world.num_hosts) if first else []
        for note in notes:
            say(f"warning: {note}")
        summary["notes"] = notes
        record.write()

    def run(self, on_run: OnRun | None) -> list[Outcome]:
        """Make the runs, one after the other; return those that count, on rank 0."""
        workload = self._workload
        outcomes = []
        for number in range(workload.warmup + workload.runs):
            warming = number < workload.warmup
            name = f"warmup.{number + 1}" if warming else f"run.{number + 1 - workload.warmup}"
            self._live.job = f"{name} of {workload.warmup} warm-ups and {workload.runs} runs"
            if self._world.rank == 0:
                self._say(f"\n{self._live.job}")
            keys = {
                "output.folder": str(self._record.folder / name),
                "train.seed": workload.train.seed + number,
            }
            outcome = run_job(
                workload.with_keys(keys),
                world=self._world,
                say=self._say,
                live=self._live,
                on_cut=on_run,
            )
            if outcome is None:
                continue
            if on_run is not None:
                on_run(outcome.folder, outcome.summary)
            run = outcome.summary
            for field in ("place", "dataset", "hostname", "data_loader", "reader", "versions"):
                self._summary[field] = run[field]
            if not warming:
                outcomes.append(outcome)
            self._add(row_of(name, run))
        return outcomes

    def _add(self, row: RunRow) -> None:
        """Write the summary with one more run."""
        rows = self._summary["runs"]
        if rows:
            ended = datetime.fromisoformat(rows[-1]["end"])
            gap = datetime.fromisoformat(row["start"]) - ended
            row["gap_seconds"] = gap.total_seconds()
        self._summary["runs"] = [*rows, row]
        self._record.write()
