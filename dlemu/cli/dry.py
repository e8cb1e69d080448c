"""`--dry-run`: what a command would do, and whether it would be accepted. Nothing stays of it."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dlemu.checkpoint.folder import access_to, folder_of, probe
from dlemu.checkpoint.folder import examine as examine_folder
from dlemu.checkpoint.in_run import planned_in_run
from dlemu.checkpoint.plan import ShardPlan, planned
from dlemu.cli.output import CommandResult
from dlemu.datagen.write import examine, write_rate
from dlemu.dataset.layout import Dataset, layout_of
from dlemu.dataset.rule import (
    SizeCheck,
    measure_memory,
    num_accelerators,
    required_size,
    resolve_auto,
)
from dlemu.errors import DlemuError
from dlemu.judge.header import host_of, introduced
from dlemu.loaders.cache.host import check_cache, forecast_cache, uses_cache
from dlemu.plugins import is_url
from dlemu.ranks.world import Alone, World
from dlemu.report.checkpoint import facts_of_plan
from dlemu.report.words import sentence
from dlemu.report.words.places import Fact, facts_of
from dlemu.run.checkpoint_rules import check_closed
from dlemu.run.forecast import check_run, forecast_run
from dlemu.sizing.answers import find_jobs
from dlemu.sizing.measured import first_number, plan_of, seconds_of_run, settle
from dlemu.sizing.search import about_runs
from dlemu.storage.place import place_of
from dlemu.terminal import say, silent
from dlemu.tools.paths.sweep import plan_paths
from dlemu.units import counted, format_bytes, format_rate, format_seconds


def dry_run(command: str, workload: Any, world: World) -> Iterator[CommandResult]:
    """Yield what `dlemu <command>` would do; what it would refuse is raised. All ranks call it."""
    plans = {
        **{"datagen": _datagen, "run": _run, "size": _size, "checkpoint": _checkpoint},
        "paths": _paths,
    }
    for facts in plans[command](workload, world):
        yield CommandResult({"kind": "plan", "command": command, "facts": facts}, apart=False)
    if world.rank == 0:
        missing = ""
        if command == "checkpoint" and not workload.checkpoint.checkpoint_folder:
            missing = " with checkpoint.checkpoint_folder=/path/on/the/storage"
        say(f"dlemu {command} would be accepted{missing}; nothing was written")


def _datagen(workload: Any, world: World) -> Iterator[list[Fact]]:
    size = required_size(workload, world)
    workload = resolve_auto(workload, world)
    folder = workload.data_folder
    found = world.on_first(lambda: examine(workload.reach(), layout_of(workload)))
    if world.rank != 0:
        return
    missing, layout = len(found.todo.missing), found.todo.layout
    facts = [
        *_introduction(workload, world),
        ("write", f"{counted(missing, 'file')}, {format_bytes(found.num_bytes)}"),
        *_cache_of_new(workload, layout),
        *_rule(size, layout.num_files, world),
    ]
    if found.todo.changes:
        try:
            found.check_space(workload.place)
        except DlemuError:
            yield facts
            raise
        rate = write_rate(layout, folder)
        # Ranks of one host share its drive; how many of them a drive needs, nobody knows.
        seconds = found.num_bytes / rate if rate else math.inf
        facts.append(("time", f"{_about(seconds)}{_by(rate, 'written')}"))
    yield facts


def _run(workload: Any, world: World) -> Iterator[list[Fact]]:
    if workload.workflow.generate_data:
        yield from _datagen(workload, world)
    if not workload.workflow.train:
        return
    found = forecast_run(workload, world)
    if world.rank == 0:
        each, steps = found.epoch_bytes, counted(found.num_steps, "step")
        read = (
            f"{counted(found.num_epochs, 'epoch')} of {steps}, {format_bytes(each)} each, "
            f"{format_bytes(found.num_epochs * each)} in all"
        )
        slow, by = workload.origin.read_bandwidth, _by(found.bytes_per_second, "read")
        if slow and found.bytes_per_second == slow:
            by = f" (origin emulated at {format_rate(slow)})"
        writes = _checkpoints(found.workload, found.num_accelerators, found.num_steps)
        yield _facts(found, [("read", read), *writes], f"{_about(found.seconds)}{by}", world)
    check_run(workload, found, world)


def _size(workload: Any, world: World) -> Iterator[list[Fact]]:
    jobs = world.on_first(lambda: find_jobs(workload, say if world.rank == 0 else silent))
    for target, job in jobs:
        settled, layout, _ = world.on_first(partial(settle, job, world))
        enough = SizeCheck(settled, layout, measure_memory(settled, world))
        alone = settled.with_keys({"num_accelerators": world.num_ranks, "output.folder": None})
        one = forecast_run(alone, world, probes=False)  # `first_number` does
        lines: list[str] = []
        first, expected = first_number(target, enough, world, lines.append)
        if world.rank == 0:
            *plan, takes = map(sentence, plan_of(enough, first, expected))
            steps = max(1, enough.num_steps(first))
            read = settled.train.epochs * steps * first * settled.bytes_per_step
            search = (
                f"begins with {counted(first, 'accelerator')}, {format_bytes(read)} in a run; the "
                f"files are enough for {enough.most_accelerators:,}; {takes}"
            )
            facts = [
                *(("drive", line) for line in (*lines, *plan)),
                ("search", search),
                *(
                    (name, f"{line}, in the first run")
                    for name, line in _checkpoints(settled, first, steps)
                ),
            ]
            takes_all = about_runs(settled.size.confirm) * seconds_of_run(
                settled, steps, first, expected
            )
            yield _facts(one, facts, _about(takes_all), world)
        check_run(alone, one, world)
        enough.check(first, expected=expected)


def _facts(found: Any, facts: Sequence[Fact], time: str, world: World) -> list[Fact]:
    """Return the facts of a run, or the runs of a search; `facts` are those of the command."""
    workload, num_files = found.workload, found.layout.num_files
    kept = f"up to {workload.batches_in_flight} batches of each, and "
    readers = (
        f"{counted(found.num_accelerators, 'accelerator')} x "
        f"{counted(workload.reader.num_streams, 'worker')}, {format_bytes(found.memory_bytes)} of "
        f"memory on this host: {kept if workload.hands_over else ''}the workers' buffers"
    )
    return [
        *_introduction(workload, world, num_files),
        *(("dataset", line) for line in found.notes),
        *facts,
        *_cache(found.cache),
        ("readers", readers),
        *_rule(found.size, num_files, world),
        ("time", time),
    ]


def _checkpoints(workload: Any, num_accelerators: int, num_steps: int) -> list[Fact]:
    """Return the fact of the checkpoints that a run would write, if it writes any."""
    if not workload.workflow.checkpoint:
        return []
    return [("write", sentence(planned_in_run(workload, num_accelerators, num_steps)))]


def _cache_of_new(workload: Any, layout: Any) -> list[Fact]:
    """Return what the cache would do in a run on a dataset that may not be there yet.

    What the run would refuse, datagen does not.
    """
    if not uses_cache(workload):
        return []
    total = num_accelerators(workload, Alone())
    try:
        check_cache(workload)
        return [*_cache(forecast_cache(Dataset(workload, layout), Alone(), range(total), total))]
    except DlemuError as error:
        return [("cache", f"dlemu run would refuse it: {error}")]


def _cache(cache: Any) -> Iterator[Fact]:
    """Yield what a cache is, and what its first epochs would read."""
    if cache is None:
        return
    yield "cache", sentence(cache.introduction)
    epochs = cache.epochs
    for number, epoch in enumerate(epochs, 1):
        if number > 1 and epoch == epochs[number - 2]:
            continue
        more = number < cache.num_epochs and len(set(epochs[number - 1 :])) == 1
        later = ", later ones alike" if more else ""
        yield (
            "",
            f"epoch {number}{later}: planned hits {100 * epoch.hit_share:.1f}%, "
            f"{format_bytes(epoch.hit)} from the cache, {format_bytes(epoch.origin)} from the "
            f"origin, {format_bytes(epoch.written)} written to the cache",
        )
    yield from (("note", sentence(each)) for each in cache.notes)


def _checkpoint(workload: Any, world: World) -> Iterator[list[Fact]]:
    check_closed(workload, world)
    plan = ShardPlan.of(workload, world)
    if world.rank != 0:
        return
    fields, drive, rate = planned(workload, plan), workload.drive, None
    folder = workload.checkpoint.checkpoint_folder
    if folder:
        fields["system"] = [host_of(place_of(folder_of(workload), access_to(workload)), world.host)]
        try:
            examine_folder(workload, plan)
        except DlemuError:
            yield facts_of_plan(fields)
            raise
    if drive is not None and drive.write_bandwidth:
        rate = workload.drives * drive.write_bandwidth
        source = f"at {format_rate(rate)}, {workload.drives} x {drive.name}"
    elif folder and not is_url(folder):
        rate = probe(Path(folder))
        source = f"{format_rate(rate)} were written in a probe of one second"
    else:
        source = "name a drive (drive=d7_ps1010)"
        source += "" if folder else ", or checkpoint.checkpoint_folder"
    seconds = _about(plan.num_bytes / rate if rate else math.inf)
    yield [*facts_of_plan(fields), ("time", f"{seconds} a checkpoint ({source})")]


def _paths(sweep: Any, world: World) -> Iterator[list[Fact]]:
    plan = plan_paths(sweep, world)
    if world.rank == 0:
        targets = [("target", sentence(each)) for each in plan.notes]
        yield [*targets, ("cells", sentence(plan.summary))]


def _introduction(workload: Any, world: World, num_files: int | None = None) -> list[Fact]:
    return facts_of(
        introduced(workload, host=world.host, num_hosts=world.num_hosts, num_files=num_files)
    )


def _rule(size: Any, num_files: int, world: World) -> list[Fact]:
    """Return ranks and accelerators, and whether so many files are enough for them."""
    accelerators = counted(size.num_accelerators, "emulated accelerator")
    job = f"{counted(world.num_ranks, 'rank')}, {accelerators}"
    return [("job", job), *(("rule", sentence(each)) for each in size.judge(num_files))]


def _about(seconds: float) -> str:
    return "unknown" if seconds == math.inf else f"about {format_seconds(seconds)}"


def _by(rate: float | None, verb: str) -> str:
    """Return where a time comes from."""
    return f" ({format_rate(rate)} were {verb} in a probe of one second)" if rate else ""
