"""`dlemu checkpoint`: from the keys to summary.json, around the job that writes and reads."""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dlemu.checkpoint.crew import Watch
from dlemu.checkpoint.dcp import check_memory, find_dcp
from dlemu.checkpoint.job import CheckpointJob
from dlemu.checkpoint.opening import Opened, folder_of, opened
from dlemu.checkpoint.outcome import Conditions, Entry, dlio_metric, find_limit, judge
from dlemu.checkpoint.plan import Plan, planned
from dlemu.checkpoint.progress import Progress
from dlemu.errors import RunError
from dlemu.host.devices import mount_under
from dlemu.host.limits import host_memory_bytes
from dlemu.host.observer import HostObserver
from dlemu.host.place import find_system
from dlemu.host.wear import WearWatch, combine_hosts
from dlemu.results.folders import hold_for_runs
from dlemu.results.header import place_fields
from dlemu.results.records import host_file, write_config, write_summary
from dlemu.results.summary import how_it_ended, time_of_day
from dlemu.storage.pagecache import Pages
from dlemu.workload.model import Workload
from dlemu.world.world import World

Say = Callable[[str], None]
Summary = dict[str, Any]
OnBegin = Callable[[Mapping[str, Any]], None]
_COUNTERS = "while reading the drives' counters"


@dataclass(frozen=True)
class CheckpointOutcome:
    """What rank 0 has in the end."""

    folder: Path
    """The results'."""
    summary: Summary
    """The fields of summary.json."""


def run_checkpoints(
    workload: Workload,
    *,
    world: World,
    watch: Watch,
    say: Say,
    on_begin: OnBegin,
    versions: Mapping[str, str],
    progress: Progress,
) -> CheckpointOutcome | None:
    """Write, drop and read the checkpoints of a workload; return the outcome on rank 0.

    All ranks call it. `watch` is a Watchdog of run/; `versions` is kept in the summary. `on_begin`
    is called on rank 0 with the summary as it is before anything is written.

    Raises:
        DlemuError: the keys do not fit, the folder is not ours or full, or a file is damaged.
    """
    if workload.checkpoint.writer == "dcp":
        world.on_first(lambda: bool(find_dcp()))  # a module cannot be sent
    world.on_first(lambda: folder_of(workload))
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
        "versions": dict(versions),
    }
    command = _Command(workload, world, watch, summary, progress)
    if world.rank == 0:
        command.say, command.on_begin = say, on_begin
    return command.run()


class _Command:
    """A command on this rank: its stages are methods, in the order in which `run` calls them."""

    def __init__(
        self,
        workload: Workload,
        world: World,
        watch: Watch,
        summary: Summary,
        progress: Progress,
    ) -> None:
        self._workload, self._world, self._watch = workload, world, watch
        self._summary, self._progress = summary, progress
        self._key = workload.checkpoint
        self._target = folder_of(workload)
        self._plan = Plan.of(workload, world)
        self.say: Say = lambda text: None
        self.on_begin: OnBegin = lambda summary: None

    def run(self) -> CheckpointOutcome | None:
        """Do all stages; return the outcome on rank 0, None on the others."""
        world, watch = self._world, self._watch
        if self._key.writer == "dcp":
            most = max(self._plan.bytes_of_hosts().values())
            world.on_first(lambda: check_memory(most))
        with ExitStack() as stack:
            own = None
            if world.rank == 0:
                own = stack.enter_context(hold_for_runs(self._workload, self.say))
                write_config(own, self._workload)
            results = world.broadcast(own)
            assert results is not None
            try:
                watch.record = lambda error: self._record(results, error)
                with watch.phase(f"while looking at {self._target}", lambda: str(self._target)):
                    found = opened(self._workload, self._plan, world, self.say)
                    folder = stack.enter_context(found)
                self._introduce(results, folder)
                self._work(results, folder)
            except BaseException as error:
                self._record(results, error)  # first: launchers kill soon
                cause = world.cause(error)
                if cause is not error:
                    self._record(results, cause)
                    raise cause from None
                raise
            return CheckpointOutcome(results, self._summary) if world.rank == 0 else None

    def _introduce(self, results: Path, folder: Opened) -> None:
        """Begin the summary."""
        if not folder.shared:
            self._plan = self._plan.on_own_hosts()
        plan, world = self._plan, self._world
        with self._watch.phase("while looking at the host"):
            system = find_system(self._target) if world.local_rank == 0 else None
        hosts = world.gather(system)
        if hosts is None:
            return
        self._summary |= {
            **planned(self._workload, plan),
            "place": place_fields(self._target, host=world.host, num_hosts=world.num_hosts),
            "system": [asdict(host) for host in hosts if host is not None],
        }
        self._summary["checkpoint"] |= {
            "odirect": folder.direct,
            "shared": folder.shared,
            "foreign_share": plan.foreign_share,
        }
        if self._key.odirect == "auto" and not folder.direct:
            note = f"checkpoint.odirect=auto: {self._target} does not take O_DIRECT"
            self._summary["notes"] = [*self._summary["notes"], note]
        write_summary(results, self._summary)
        self.on_begin(self._summary)

    def _work(self, results: Path, folder: Opened) -> None:
        """Write, drop and read; on rank 0 judge and write the summary."""
        world, key = self._world, self._key
        job = CheckpointJob(self._workload, self._plan, folder, world=world, watch=self._watch)
        job.say, job.progress = self.say, self._progress
        pids = world.all_gather((world.host_index, os.getpid()))
        here = [pid for host, pid in pids if host == world.host_index]
        wear = WearWatch(folder.path)
        with ExitStack() as stack:
            if world.local_rank == 0:
                with self._watch.phase(_COUNTERS):
                    wear.start()
                path = host_file(results, world.rank) if results.is_dir() else None
                job.observer = stack.enter_context(HostObserver([folder.path], lambda: here, path))
            saves = job.write() if key.num_checkpoints_write else []
            reads = key.num_checkpoints_read and key.writer == "dlemu"
            pages = job.make_cold() if reads else None
            loads = job.read() if reads else []
        self._count_wear(wear, sum(entry["num_bytes"] for entry in saves))
        if world.rank == 0:
            self._judge(saves, loads, pages)
            write_summary(results, self._summary)

    def _count_wear(self, watch: WearWatch, written: int) -> None:
        """Add on rank 0 what was written to the drives; `written` has the bytes of all ranks."""
        world, drive, found = self._world, self._workload.drive, None
        if world.local_rank == 0:
            with self._watch.phase(_COUNTERS):
                found = watch.finish(file_bytes=written if world.rank == 0 else 0)
        hosts = [each for each in world.gather(found) or () if each is not None]
        if world.rank == 0:
            endurance = None if drive is None else drive.endurance
            self._summary["measured"] = {"wear": combine_hosts(hosts, endurance=endurance)}

    def _judge(self, saves: list[Entry], loads: list[Entry], pages: Pages | None) -> None:
        key, summary = self._key, self._summary
        mount = mount_under(self._target)
        conditions = Conditions(
            file_system=mount.kind if mount else "",
            bypasses=summary["checkpoint"]["odirect"],
            fsync=key.fsync,
            cached_share=pages.share if pages else None,
        )
        summary["checkpoint"] |= {
            "saves": saves,
            "loads": loads,
            "cached_share": pages.share if pages else None,
            "host_memory_bytes": host_memory_bytes()[0],
        }
        summary["metric"] = dlio_metric(saves, loads, rank_sync=key.rank_sync)
        summary["limit"] = find_limit("save", saves, conditions) if saves else None
        summary["load_limit"] = find_limit("load", loads, conditions) if loads else None
        if key.num_checkpoints_read and key.writer != "dlemu":
            summary["notes"] = [*summary["notes"], "checkpoint.writer=dcp: nothing was read back"]
        summary["verdict"] = judge(saves, loads, key.max_seconds, summary["limit"])
        summary |= {"status": "complete", "end": time_of_day()}

    def _record(self, results: Path, error: BaseException) -> None:
        """Write on rank 0 why the command did not end."""
        if self._world.rank != 0:
            return
        self._summary["status"], self._summary["error"] = how_it_ended(error)
        self._summary["end"] = time_of_day()
        with suppress(RunError):  # the first error says more
            write_summary(results, self._summary)
