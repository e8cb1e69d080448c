"""`--dry-run`: what a command would do, and whether it would be accepted. Nothing stays of it."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dlemu.checkpoint.folder import access_to, folder_of, probe
from dlemu.checkpoint.folder import examine as examine_folder
from dlemu.checkpoint.in_run import planned_in_run
from dlemu.checkpoint.plan import Plan, planned
from dlemu.datagen.target import target_of
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
from dlemu.host.place import find_host
from dlemu.judge.header import introduction, servers_of
from dlemu.loaders.cache.forecast import forecast_tier
from dlemu.loaders.cache.host import check_tier, has_tier
from dlemu.ranks.world import Alone, World
from dlemu.report.checkpoint import present_plan
from dlemu.report.text import render_text
from dlemu.run.forecast import check_run, forecast_run
from dlemu.sizing.answers import find_jobs
from dlemu.sizing.measured import settle
from dlemu.terminal import say, silent
from dlemu.units import counted, format_bytes, format_rate, format_seconds

_READERS = 64
"""Threads that show what a drive gives to many accelerators."""
_SEARCH_RUNS = 6
"""Runs that a search usually needs before those that confirm its answer."""


def dry_run(command: str, workload: Any, world: World) -> int:
    """Show what `dlemu <command>` would do; what it would refuse is raised. Return exit status."""
    tell = say if world.rank == 0 else silent
    commands = {"datagen": _datagen, "run": _run, "size": _size, "checkpoint": _checkpoint}
    missing = commands[command](workload, world, tell)
    more = f" with {missing}" if missing else ""
    tell(f"dlemu {command} would be accepted{more}; nothing was written")
    return 0


def _datagen(workload: Any, world: World, tell: Any) -> None:
    size = required_size(workload, world)
    workload = resolve_auto(workload, world)
    folder = workload.data_folder
    found = world.on_first(lambda: examine(target_of(folder, workload.access), layout_of(workload)))
    if world.rank != 0:
        return
    _introduce(workload, world, tell)
    missing = len(found.todo.missing)
    tell(f"write:    {counted(missing, 'file')}, {format_bytes(found.num_bytes)}")
    _cache_of_new(workload, found.todo.layout, tell)
    _judge(size, found.todo.layout.num_files, world, tell)
    if found.todo.changes:
        found.check_space(folder)
        rate = write_rate(found.todo.layout, folder)
        # Ranks of one host share its drive; how many of them a drive needs, nobody knows.
        seconds = found.num_bytes / rate if rate else math.inf
        tell(f"time:     {_about(seconds)}{_by(rate, 'written')}")


def _run(workload: Any, world: World, tell: Any) -> None:
    if workload.workflow.generate_data:
        _datagen(workload, world, tell)
    if workload.workflow.train:
        found = forecast_run(workload, world)
        if world.rank == 0:
            each, steps = found.epoch_bytes, counted(found.num_steps, "step")
            read = (
                f"read:     {counted(found.num_epochs, 'epoch')} of {steps}, {format_bytes(each)} "
                f"each, {format_bytes(found.num_epochs * each)} in all"
            )
            slow, by = workload.origin.read_bandwidth, _by(found.bytes_per_second, "read")
            if slow and found.bytes_per_second == slow:
                by = f" (origin emulated at {format_rate(slow)})"
            facts = [read, *_checkpoints(found.workload, found.num_accelerators, found.num_steps)]
            _show(found, facts, f"{_about(found.seconds)}{by}", world, tell)
        check_run(workload, found, world)


def _size(workload: Any, world: World, tell: Any) -> None:
    jobs = world.on_first(lambda: find_jobs(workload, tell))
    for target, job in jobs:
        settled, layout, _ = world.on_first(partial(settle, job, world))
        enough = SizeCheck(settled, layout, measure_memory(settled, world))
        alone = {"num_accelerators": world.num_ranks, "output.folder": None}
        one = forecast_run(settled.with_keys(alone), world, num_readers=_READERS)
        if world.rank != 0:
            check_run(settled.with_keys(alone), one, world)
            continue
        rate = one.bytes_per_second or 0.0
        expected = rate / settled.demand / settled.metric.au
        most = min(settled.size.max_accelerators, enough.most_accelerators)
        first = settled.size.start or max(1, min(math.floor(expected) + 1, most))
        num_steps, epochs = max(1, enough.num_steps(first)), settled.train.epochs
        seconds = epochs * num_steps * settled.train.computation_time.mean / settled.metric.au
        read = epochs * num_steps * first * settled.bytes_per_step
        runs = _SEARCH_RUNS + settled.size.confirm
        facts = [
            *([f"target:   {target.name}"] if len(jobs) > 1 else []),
            f"drive:    {format_rate(rate)} in a probe of one second, about as much as "
            f"{expected:.1f} accelerators take; the files are enough for {most}",
            f"search:   begins with {counted(first, 'accelerator')}; about {runs} runs, each of "
            f"{format_bytes(read)} and {format_seconds(seconds)}",
            *(f"{line}, in the first run" for line in _checkpoints(settled, first, num_steps)),
        ]
        _show(one, facts, _about(runs * seconds), world, tell)
        check_run(settled.with_keys(alone), one, world)
        enough.check(first, expected=expected)


def _show(found: Any, facts: Sequence[str], time: str, world: World, tell: Any) -> None:
    """Show a run, or the runs of a search, before they begin; `facts` are those of the command."""
    workload, reader = found.workload, found.workload.reader
    _introduce(workload, world, tell, found.layout.num_files)
    for fact in facts:
        tell(fact)
    _cache(found.cache, tell)
    kept = f"up to {workload.batches_in_flight} batches of each, and "
    tell(
        f"readers:  {counted(found.num_accelerators, 'accelerator')} x "
        f"{counted(reader.num_streams, 'worker')}, {format_bytes(found.memory_bytes)} of memory on "
        f"this host: {kept if workload.hands_over else ''}the workers' buffers"
    )
    _judge(found.size, found.layout.num_files, world, tell)
    tell(f"time:     {time}")


def _checkpoints(workload: Any, num_accelerators: int, num_steps: int) -> list[str]:
    """Return the line on the checkpoints that a run would write, if it writes any."""
    if not workload.workflow.checkpoint:
        return []
    return [f"write:    {planned_in_run(workload, num_accelerators, num_steps)}"]


def _cache_of_new(workload: Any, layout: Any, tell: Any) -> None:
    """Show what the cache would do in a run on a dataset that may not be there yet.

    What the run would refuse, datagen does not.
    """
    if has_tier(workload):
        total = num_accelerators(workload, Alone())
        try:
            check_tier(workload)
            _cache(forecast_tier(Dataset(workload, layout), Alone(), range(total), total), tell)
        except DlemuError as error:
            tell(f"cache:    dlemu run would refuse it: {error}")


def _cache(cache: Any, tell: Any) -> None:
    """Show a cache and what its first epochs would read."""
    if cache is None:
        return
    tell(f"cache:    {cache.introduction}")
    epochs = cache.epochs
    for number, epoch in enumerate(epochs, 1):
        if number > 1 and epoch == epochs[number - 2]:
            continue
        more = number < cache.num_epochs and len(set(epochs[number - 1 :])) == 1
        later = ", later ones alike" if more else ""
        tell(
            f"          epoch {number}{later}: planned hits {100 * epoch.hit_share:.1f}%, "
            f"{format_bytes(epoch.hit)} from the cache, {format_bytes(epoch.origin)} from the "
            f"origin, {format_bytes(epoch.written)} written to the cache"
        )
    for note in cache.notes:
        tell(f"note:     {note}")


def _checkpoint(workload: Any, world: World, tell: Any) -> str | None:
    plan = Plan.of(workload, world)
    if world.rank != 0:
        return None
    fields, drive, rate = planned(workload, plan), workload.drive, None
    folder = workload.checkpoint.checkpoint_folder
    if folder:
        servers = servers_of(access_to(workload))
        fields["system"] = [find_host(folder_of(workload), name=world.host, servers=servers)]
    text = render_text(present_plan(fields))
    tell(text)
    if folder:
        examine_folder(workload, plan)
    if drive is not None and drive.write_bandwidth:
        rate = workload.drives * drive.write_bandwidth
        source = f"at {format_rate(rate)}, {workload.drives} x {drive.name}"
    elif folder and "://" not in folder:
        rate = probe(Path(folder))
        source = f"{format_rate(rate)} were written in a probe of one second"
    else:
        source = "name a drive (drive=d7_ps1010)"
        source += "" if folder else ", or checkpoint.checkpoint_folder"
    name = "time:".ljust(text.index(workload.model.name))
    tell(f"{name}{_about(plan.num_bytes / rate if rate else math.inf)} a checkpoint ({source})")
    return None if folder else "checkpoint.checkpoint_folder=/path/on/the/storage"


def _introduce(workload: Any, world: World, tell: Any, num_files: int | None = None) -> None:
    tell(introduction(workload, host=world.host, num_hosts=world.num_hosts, num_files=num_files))


def _judge(size: Any, num_files: int, world: World, tell: Any) -> None:
    tell(
        f"job:      {counted(world.num_ranks, 'rank')}, "
        f"{counted(size.num_accelerators, 'emulated accelerator')}"
    )
    for line in size.judge(num_files):
        tell(f"rule:     {line}")


def _about(seconds: float) -> str:
    return "unknown" if seconds == math.inf else f"about {format_seconds(seconds)}"


def _by(rate: float | None, verb: str) -> str:
    """Return where a time comes from."""
    return f" ({format_rate(rate)} were {verb} in a probe of one second)" if rate else ""
