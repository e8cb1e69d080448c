"""`dlemu checkpoint`: from the keys to summary.json, around the job that writes and reads."""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dlemu.checkpoint.crew import Progress
from dlemu.checkpoint.dcp import check_dcp
from dlemu.checkpoint.folder import Opened, access_to, folder_of, opened
from dlemu.checkpoint.job import CheckpointJob
from dlemu.checkpoint.outcome import Conditions, Entry, dlio_metric, find_limit, judge
from dlemu.checkpoint.plan import Plan, planned
from dlemu.config.model import Workload
from dlemu.host.intervals import HostObserver
from dlemu.host.place import find_host
from dlemu.host.processes import host_memory_bytes
from dlemu.host.wear import WearWatch, combine_hosts
from dlemu.judge.folders import begun, versions
from dlemu.judge.header import servers_of
from dlemu.judge.records import host_file
from dlemu.judge.summary import time_of_day
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import World
from dlemu.storage.pagecache import Pages
from dlemu.storage.s3.location import in_bucket
from dlemu.terminal import silent

Summary = dict[str, Any]
_COUNTERS = "while reading the drives' counters"


def run_checkpoints(
    workload: Workload,
    *,
    world: World,
    say: Callable[[str], None],
    on_begin: Callable[[Mapping[str, Any]], None],
    progress: Progress,
) -> tuple[Path, Summary] | None:
    """Write, drop and read the checkpoints of a workload; all ranks call it.

    `on_begin` is called on rank 0 with the summary as it is before anything is written. Returns the
    folder of the results and the fields of summary.json on rank 0, None on the others.

    Raises:
        DlemuError: the keys do not fit, the folder is not ours or full, or a file is damaged.
    """
    target, key = world.on_first(lambda: folder_of(workload)), workload.checkpoint
    plan = Plan.of(workload, world)
    if key.writer == "dcp":
        most = max(plan.bytes_of_hosts().values())
        world.on_first(lambda: check_dcp(most))
    summary: Summary = {
        "kind": "checkpoint",
        "status": "incomplete",
        "workload": workload.name,
        "num_ranks": world.num_ranks,
        "num_hosts": world.num_hosts,
        "hostname": world.host,
        "start": time_of_day(),
        "metric": {},
        "ignored": list(workload.ignored),
        "notes": list(world.notes),
        "versions": versions(),
    }
    say = say if world.rank == 0 else silent
    with (
        Watchdog(workload.output.stall_seconds, world) as watch,
        begun(workload, world, summary, say, watch=watch) as record,
        ExitStack() as stack,
    ):
        with watch.phase(f"while looking at {target}", lambda: str(target)):
            folder = stack.enter_context(opened(workload, plan, world, say))
        plan = plan if folder.shared else plan.on_own_hosts()
        with watch.phase("while looking at the host"):
            servers = servers_of(access_to(workload))
            own = find_host(target, name=world.host, servers=servers)
        hosts = world.gather(own if world.local_rank == 0 else None)
        if hosts is not None:
            summary["system"] = [host for host in hosts if host is not None]
            _introduce(summary, workload, plan, folder)
            record.write()
            on_begin(summary)
        job = CheckpointJob(workload, plan, folder, world=world, watch=watch)
        job.say, job.progress = say, progress
        path = host_file(record.folder, world.rank) if record.folder.is_dir() else None
        saves, loads, pages = _work(workload, job, summary, path)
        if world.rank == 0:
            _judge(summary, workload, folder.place.file_system, saves, loads, pages)
            record.write()
    return (record.folder, summary) if world.rank == 0 else None


def _introduce(summary: Summary, workload: Workload, plan: Plan, folder: Opened) -> None:
    """Add to the summary what is known before anything is written."""
    summary |= planned(workload, plan)
    summary["checkpoint"] |= {
        "odirect": folder.direct,
        "shared": folder.shared,
        "foreign_share": plan.foreign_share,
    }
    if workload.checkpoint.odirect == "auto" and not folder.direct:
        note = f"checkpoint.odirect=auto: {folder.path} does not take O_DIRECT"
        summary["notes"] = [*summary["notes"], note]


def _work(
    workload: Workload, job: CheckpointJob, summary: Summary, path: Path | None
) -> tuple[list[Entry], list[Entry], Pages | None]:
    """Write, drop and read, while the host is observed into `path`.

    Returns, on rank 0, what was written and read, and the pages that were in memory before the
    reads. The wear of the drives is added to the summary there.
    """
    world, watch, target = job.world, job.watch, folder_of(workload)
    wear, key = WearWatch(*([] if in_bucket(target) else [target])), workload.checkpoint
    pids = world.all_gather((world.host_index, os.getpid()))
    with ExitStack() as stack:
        if world.local_rank == 0:
            with watch.phase(_COUNTERS):
                wear.start()
            here = [pid for host, pid in pids if host == world.host_index]
            job.observer = stack.enter_context(HostObserver([target], lambda: here, path))
        saves = job.write() if key.num_checkpoints_write else []
        reads = key.num_checkpoints_read and key.writer == "dlemu"
        pages = job.make_cold() if reads else None
        loads = job.read() if reads else []
    with watch.phase(_COUNTERS):
        written = sum(entry["num_bytes"] for entry in saves)  # of all ranks, on rank 0
        grown = wear.finish(file_bytes=written) if world.local_rank == 0 else None
    worn = world.gather(grown)
    if worn is not None:
        endurance = None if workload.drive is None else workload.drive.endurance
        known = [each for each in worn if each is not None]
        summary["measured"] = {"wear": combine_hosts(known, endurance=endurance)}
    return saves, loads, pages


def _judge(
    summary: Summary,
    workload: Workload,
    file_system: str,
    saves: list[Entry],
    loads: list[Entry],
    pages: Pages | None,
) -> None:
    """Add to the summary what was measured, and what it means."""
    key, share = workload.checkpoint, pages.share if pages else None
    conditions = Conditions(
        file_system=file_system,
        bypasses=summary["checkpoint"]["odirect"] or file_system == "s3",
        fsync=key.fsync,
        cached_share=share,
    )
    summary["checkpoint"] |= {
        "saves": saves,
        "loads": loads,
        "cached_share": share,
        "host_memory_bytes": host_memory_bytes()[0],
    }
    summary["metric"] = dlio_metric(saves, loads, rank_sync=key.rank_sync)
    summary["limit"] = find_limit("save", saves, conditions) if saves else None
    summary["load_limit"] = find_limit("load", loads, conditions) if loads else None
    if key.num_checkpoints_read and key.writer != "dlemu":
        summary["notes"] = [*summary["notes"], "checkpoint.writer=dcp: nothing was read back"]
    summary["verdict"] = judge(saves, loads, key.max_seconds, summary["limit"])
    summary |= {"status": "complete", "end": time_of_day()}
