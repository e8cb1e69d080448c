"""Several runs in a row, as MLPerf Storage asks for them, and the rules of its closed division.

Their results are "MLPerf-Storage-style": only what MLPerf's reviewers publish is an MLPerf result.
Edition v3.0 numbers its rules (Rules.md of mlcommons/storage); the messages name them. dlemu checks
and says what it found. It writes no submission: only `mlpstorage` may.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from dlemu.config.compose import leaves
from dlemu.config.model import Workload, load_workload
from dlemu.config.published import differing
from dlemu.config.source import WordSource
from dlemu.dataset.rule import (
    MEMORY_MULTIPLE,
    STEPS_PER_EPOCH,
    DatasetSize,
    accelerators_of,
    num_accelerators,
    required_size,
)
from dlemu.errors import WorkloadError
from dlemu.findings import Finding, fields_of, note, reason
from dlemu.judge.folders import begun
from dlemu.judge.outcome import judge_runs, row_of
from dlemu.judge.records import plain
from dlemu.judge.summary import RunsSummary, Summary, time_of_day
from dlemu.ranks.ending import last_act
from dlemu.ranks.world import World
from dlemu.report.words import sentence, telling, told, warning
from dlemu.report.words.rules import LABEL
from dlemu.run.job import OnRun, run_job
from dlemu.run.live import Live
from dlemu.terminal import Say, say

_MAX_PREFETCH = 2
_RUNS = 5
"""Consecutive runs (rules, "repeatability"); v2.0 also asks for a warm-up before them."""
_V3_MODELS = ("unet3d", "retinanet")
"""Training workloads of edition v3.0 (rule 2.1.11)."""
_MAX_CACHED_SHARE = 0.05
_COMPUTATION_THREADS = "reader.computation_threads"
"""DLIO's key, which a submitter may change, and which has no effect here."""


def check_closed(
    workload: Workload, size: DatasetSize, accelerators_per_host: Sequence[int] = ()
) -> Workload:
    """Return the workload with the closed division's bounds, if it keeps the rules.

    All values that differ from the published workload of that name are checked, wherever they were
    set, and all given keys that have no effect. `size` is the dataset that the rule asks for.

    Raises:
        WorkloadError: names all keys that may not be changed, and all values that are not allowed.
    """
    try:
        published = load_workload(workload.name, source=WordSource.INSTALLED)
    except WorkloadError:
        raise WorkloadError(
            f"division=closed runs the published workloads only, not {workload.name!r}"
        ) from None
    refusals = [
        *_refused_keys(workload, published),
        *_refused_values(workload),
        *_refused_checkpoints(workload),
        *_refused_runs(workload),
        *_refused_files(workload, size),
        *_refused_hosts(workload, accelerators_per_host),
    ]
    if refusals:
        found = "; ".join(map(sentence, refusals))
        raise WorkloadError(f"division=closed: {found}; or use division=open")
    if workload.metric.max_cached_share is None:
        workload = workload.with_keys({"metric.max_cached_share": _MAX_CACHED_SHARE})
    return workload


def _refused_keys(workload: Workload, published: Workload) -> Iterator[Finding]:
    """Yield the keys that a submitter may not change."""
    unet3d, edition = workload.name.startswith("unet3d"), workload.metric.edition
    rule = _rule(workload, "3.6.2")
    was = dict(leaves(published.model_dump()))
    for key in workload.given:
        if key in workload.ignored and key not in {*was, _COMPUTATION_THREADS}:
            yield reason("key_not_allowed", key=key, rule=rule)
    allowed = ["workflow.checkpoint"] if unet3d else []
    allowed += ["reader.odirect"] if unet3d and edition != "v1.0" else []
    for key, values in differing(workload, published, allowed).items():
        value, wanted = map(plain, values)
        yield reason("value_not_allowed", key=key, value=value, published=wanted, rule=rule)


def _refused_values(workload: Workload) -> Iterator[Finding]:
    """Yield the values out of bounds, of keys that may be changed."""
    if (size := workload.reader.prefetch_size) > _MAX_PREFETCH:
        rule = _rule(workload, "3.6.2")
        yield reason("prefetch_too_large", value=size, most=_MAX_PREFETCH, rule=rule)
    bound = workload.metric.max_cached_share
    if bound is not None and bound > _MAX_CACHED_SHARE:
        yield reason("cached_share_too_large", value=bound, most=_MAX_CACHED_SHARE)


def _refused_checkpoints(workload: Workload) -> Iterator[Finding]:
    """Yield a lack of UNet3D's checkpoint.

    The benchmark's files of v1.0 and v2.0 write one; those of v3.0 do not, and v3.0 compares runs
    with it and without it (editions.yaml of mlcommons/storage).
    """
    edition = workload.metric.edition
    unet3d = workload.name.startswith("unet3d") and edition != "v3.0"
    if unet3d and not workload.workflow.checkpoint:
        yield reason("checkpoint_missing", edition=edition)


def _refused_runs(workload: Workload) -> Iterator[Finding]:
    """Yield numbers of runs, and caches before them, that the rules do not take."""
    runs, warmup, edition = workload.runs, workload.warmup, workload.metric.edition
    if edition == "v3.0":
        if (warmup, runs) != (1, _RUNS):
            rule = "2.1.17"
            yield reason("other_runs", num_runs=_RUNS, runs=runs, warmup=warmup, rule=rule)
    elif runs < _RUNS:
        yield reason("too_few_runs", num_runs=_RUNS, runs=runs)
    if edition == "v2.0" and warmup < 1:
        yield reason("no_warmup", edition=edition, warmup=warmup)
    every, missing = {"v1.0": "run", "v3.0": "epoch"}.get(edition), ""
    if every and not (workload.output.drop_caches or workload.output.drop_all_caches):
        missing = "output.drop_caches"
    elif every == "epoch" and not workload.drops_each_epoch:
        missing = "output.drop_each_epoch"
    if missing:
        yield reason("caches_not_dropped", key=missing, edition=edition, before_every=every)


def _refused_files(workload: Workload, size: DatasetSize) -> Iterator[Finding]:
    """Yield a number of files that is not the rule's."""
    if workload.dataset.num_files_train == "auto":
        return
    got, exact = workload.num_files, workload.metric.edition == "v3.0"
    figures = {
        "num_files": got,
        "num_files_needed": size.num_files,
        "least_steps": STEPS_PER_EPOCH if size.decided_by == "steps" else None,
        "least_memory_multiple": MEMORY_MULTIPLE if size.decided_by == "memory" else None,
        "rule": _rule(workload, "3.3.1"),
    }
    if got < size.num_files:
        yield reason("files_missing", **figures)
    elif exact and got != size.num_files:
        yield reason("other_number_of_files", **figures)


def _refused_hosts(workload: Workload, accelerators: Sequence[int]) -> Iterator[Finding]:
    """Yield hosts that emulate other numbers of accelerators than others."""
    if workload.metric.edition == "v3.0" and len(set(accelerators)) > 1:
        total = max(1, round(sum(accelerators) / len(accelerators))) * len(accelerators)
        each = list(accelerators)
        yield reason("hosts_unequal", num_accelerators=each, equal_total=total, rule="3.3.6")


def _rule(workload: Workload, number: str) -> str | None:
    """Return a rule's number in the edition whose rules have numbers."""
    return number if workload.metric.edition == "v3.0" else None


def closed_warnings(workload: Workload, results: Path, num_hosts: int) -> list[Finding]:
    """Return what keeps the rules of edition v3.0 only under a condition that dlemu cannot check.

    `results` is the folder of the results; it and the data folder are there.
    """
    if workload.division != "closed" or workload.metric.edition != "v3.0":
        return []
    found = []
    if not workload.name.startswith(_V3_MODELS):
        models = list(_V3_MODELS)
        found.append(note("model_of_no_edition", rule="2.1.11", models=models, name=workload.name))
    if num_hosts > 1:
        found.append(note("distributed_result", rule="3.3.4", num_hosts=num_hosts))
    with suppress(OSError):
        if os.stat(workload.data_folder).st_dev == os.stat(results).st_dev:
            folders = {"data_folder": str(workload.data_folder), "results": str(results)}
            found.append(note("one_file_system", rule="3.4.2", **folders))
    return found


def run_protocol(
    workload: Workload,
    *,
    world: World,
    say: Say = say,
    on_run: OnRun | None = None,
    live: Live,
) -> tuple[Path, RunsSummary] | None:
    """Run the warm-ups and the runs that count, each with a seed of its own.

    Rank 0 calls `on_run` after each run, also one that fails after whole epochs. Returns the folder
    of the results and the fields of summary.json there, None on the others.

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
    counting = []
    with (
        begun(workload, world, summary, telling(say), several=True) as record,
        last_act(record.fail),
    ):
        live.folder = record.folder
        if world.rank == 0:
            warnings = closed_warnings(workload, record.folder, world.num_hosts)
            summary["notes"] = warned(warnings, say)
        record.write()
        names = [f"warmup.{number + 1}" for number in range(workload.warmup)]
        names += [f"run.{number + 1}" for number in range(workload.runs)]
        for number, name in enumerate(names):
            live.job = told("run_of_runs", run=name, warmup=workload.warmup, runs=workload.runs)
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
                counting.append(outcome.summary)
            _add(summary, name, outcome.summary)
            record.write()
        if world.rank == 0:
            summary.update(judge_runs(summary, counting))
            summary["end"] = time_of_day()
            record.write()
    return (record.folder, summary) if world.rank == 0 else None


def warned(warnings: Iterable[Finding], say: Say = say) -> list[dict[str, Any]]:
    """Say warnings, a line each, and return them for a summary."""
    found = [*warnings]
    for each in found:
        say(warning(each))
    return fields_of(found)


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
    summary["versions"], summary["num_accelerators"] = run["versions"], run["num_accelerators"]
    row, rows = row_of(name, run), summary["runs"]
    if rows:
        ended = datetime.fromisoformat(rows[-1]["end"])
        gap = datetime.fromisoformat(row["start"]) - ended
        row["gap_seconds"] = gap.total_seconds()
    summary["runs"] = [*rows, row]
