"""`dlemu checkpoint`: from the keys to summary.json, around the job that writes, drops and reads.

All ranks call every method of the job. What it finds is told by rank 0.
"""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from dlemu.checkpoint.crew import Crew, Progress
from dlemu.checkpoint.files import ReadTimes, WriteTimes, check_dcp
from dlemu.checkpoint.folder import Opened, access_to, folder_of, opened, step_folder
from dlemu.checkpoint.outcome import (
    Conditions,
    Entry,
    Kind,
    RankReport,
    dlio_metric,
    entry_of,
    limit_of,
    verdict_of,
)
from dlemu.checkpoint.plan import Plan, planned
from dlemu.config.model import Workload
from dlemu.datagen.assemble import Content
from dlemu.errors import DlemuError, RunError
from dlemu.host.devices import mount_under
from dlemu.host.intervals import HostObserver, summarize_interval
from dlemu.host.place import find_host
from dlemu.host.processes import host_memory_bytes
from dlemu.host.wear import WearWatch, combine_hosts
from dlemu.judge.evidence import stored_bytes
from dlemu.judge.folders import begun, versions
from dlemu.judge.header import servers_of
from dlemu.judge.records import host_file
from dlemu.judge.summary import time_of_day
from dlemu.ranks.ending import last_act
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import World
from dlemu.storage.pagecache import Pages, drop, drop_all_caches, look
from dlemu.storage.s3.location import in_bucket
from dlemu.terminal import silent
from dlemu.units import format_rate, format_seconds

Say = Callable[[str], None]
_FULL = (errno.ENOSPC, errno.EDQUOT)
_END_SECONDS = 30.0
"""A thread that ends the process does so within this time."""


class CheckpointJob:
    """Writes and reads the checkpoints of a record, on this rank."""

    def __init__(
        self,
        workload: Workload,
        plan: Plan,
        folder: Opened,
        *,
        world: World,
        watch: Watchdog,
    ) -> None:
        self.world, self.watch = world, watch
        self._checkpoint, self._output = workload.checkpoint, workload.output
        self._plan, self._opened, self._folder = plan, folder, folder.path
        self._record = folder.record
        mount = mount_under(folder.path)
        self.file_system = mount.kind if mount else ""
        """Type of the folder's, "" of a bucket or if unknown."""
        self.say: Say = lambda text: None
        self.progress = Progress()
        self.observer: HostObserver | None = None
        """Of this host, on its first rank."""
        self._gate = threading.Lock()
        """Held while a checkpoint's folder is made, and while all are removed."""
        self._is_over = False

    def write(self) -> list[Entry]:
        """Write the checkpoints; return the fields of each on rank 0.

        If it fails or is interrupted, what was written is removed.

        Raises:
            RunError: the drive is full, or refuses a write.
        """
        number, opened = self._checkpoint.num_checkpoints_write, self._opened
        entries: list[Entry] = []
        with self._removed_on_failure(), self._crew(opened.place.writer, opened.content) as crew:
            for step in range(1, number + 1):
                folder = step_folder(self._folder, step)
                files = [self._plan.written_by(a, step) for a in self._plan.accelerators]
                with self.watch.phase(f"while preparing checkpoint {step}", lambda: str(folder)):  # noqa: B023
                    if opened.keeps:
                        self._make(folder)
                    for writer, own in zip(crew.tools, files, strict=True):
                        writer.prepare([(sample, size) for _, size, sample in own])

                def act(number: int) -> Any:
                    self.watch.at(str(folder))  # noqa: B023 (called in this turn)
                    return crew.tools[number].write_share(folder, files[number])  # noqa: B023

                entries += self._shot("save", step, number, step, crew, act)
                self._note(step)
        return entries

    def read(self) -> list[Entry]:
        """Read the checkpoints, the oldest first and in turn; return the fields of each on rank 0.

        Raises:
            RunError: a file is missing or damaged.
        """
        key, steps = self._checkpoint, self._record.steps
        number, entries = key.num_checkpoints_read, list[Entry]()
        content = self._opened.content if key.verify else None
        with self._crew(self._opened.place.reader, content) as crew:
            for turn in range(number):
                step = steps[turn % len(steps)]
                if turn >= len(steps):  # it was read before, and is in memory again
                    self.make_cold([step])
                folder = step_folder(self._folder, step)
                files = [self._plan.read_by(a, step) for a in self._plan.accelerators]

                def act(number: int) -> Any:
                    return crew.tools[number].read_share(folder, files[number], at=self.watch.at)  # noqa: B023

                entries += self._shot("load", turn + 1, number, step, crew, act)
        return entries

    def make_cold(self, steps: Sequence[int] | None = None) -> Pages | None:
        """Drop checkpoints from each host's page cache; return on rank 0 what stayed, of all hosts.

        With output.drop_caches=false it only looks. None as well for a bucket, which has no cache
        on these hosts.
        """
        if in_bucket(self._folder):
            return None
        world, output = self.world, self._output
        own = [
            file.name
            for file in self._plan.files
            if self._plan.shift or self._plan.hosts[file.rank] == world.host_index
        ]
        names = own[world.local_rank :: world.num_local_ranks]
        paths = [
            step_folder(self._folder, step) / name
            for step in (self._record.steps if steps is None else steps)
            for name in names
        ]
        with self.watch.phase("in the cold start"):
            if output.drop_all_caches and world.local_rank == 0:
                drop_all_caches()
            world.barrier()
            act = drop if output.drop_caches and not output.drop_all_caches else look
            own_pages = act([path for path in paths if path.exists()], at=self.watch.at)
        everyone = world.gather(astuple(own_pages))
        return None if everyone is None else Pages(*map(sum, zip(*everyone, strict=True)))

    def _make(self, folder: Path) -> None:
        """Make a checkpoint's folder, unless another thread removes them all: the process ends."""
        with self._gate:
            if not self._is_over:
                self._opened.place.make(folder)
                return
        time.sleep(_END_SECONDS)

    def clean(self, error: BaseException | None = None) -> None:
        """Remove all that was written, and the record; no folder is made after that."""
        with self._gate:
            self._is_over = True
            self._opened.place.remove()
            self._opened.place.forget()

    def _crew(
        self, tool: Callable[..., Any], content: Content | None
    ) -> AbstractContextManager[Crew[Any]]:
        own = self._plan.accelerators
        return self._opened.crew(tool, content, own, self.world, self.watch)

    def _shot(
        self,
        kind: Kind,
        turn: int,
        number: int,
        step: int,
        crew: Crew[Any],
        act: Callable[[int], WriteTimes | ReadTimes],
    ) -> list[Entry]:
        """Let all accelerators work between two barriers; return the fields of that on rank 0."""
        doing = f"{'writing' if kind == 'save' else 'reading'} checkpoint {turn}"
        time.sleep(self._checkpoint.time_between_checkpoints)
        self.progress.does(doing, crew, self._plan.num_bytes)
        with self.watch.phase(f"while {doing}", self.watch.longest_at):
            if self.observer is not None:
                self.observer.mark(f"{doing} start")
            self.watch.barrier()
            begin = time.perf_counter()
            worked = crew.run(act)
            self.watch.barrier()
            between = time.perf_counter() - begin
            interval = stored = None
            if self.observer is not None:
                self.observer.mark(f"{doing} end")
                seen = self.observer.between(f"{doing} start", f"{doing} end")
                interval = summarize_interval(seen)
                stored = stored_bytes(interval, self.file_system)
        own = zip(self._plan.accelerators, worked, strict=True)
        report = RankReport(
            self.world.rank,
            self.world.host,
            [(accelerator, *each) for accelerator, each in own],
            interval,
            stored,
        )
        reports = self.world.gather(report)
        if reports is None:
            return []
        entry = entry_of(step, reports, between)
        rate = format_rate(entry["num_bytes"] / entry["seconds"])
        self.say(f"{kind} {turn} of {number}: {format_seconds(entry['seconds'])}, {rate}")
        return [entry]

    def _note(self, step: int) -> None:
        """Enter a whole checkpoint in the record, and remove those that are not to be kept."""
        steps = (*self._record.steps, step)
        keep = self._checkpoint.keep or len(steps)
        gone, kept = steps[:-keep], steps[-keep:]
        with self.watch.phase(f"while removing checkpoints below {self._folder}"):
            self._record = replace(self._record, steps=kept)
            if self._opened.keeps:
                self._opened.place.write(vars(self._record))
                for each in gone:
                    self._opened.place.remove(f"{step_folder(self._folder, each).name}/")

    @contextmanager
    def _removed_on_failure(self) -> Iterator[None]:
        """Remove what was written if the `with` fails, or the process ends in it."""
        try:
            with last_act(self.clean):
                yield
        except BaseException as error:
            with suppress(OSError, DlemuError):
                self.clean()
            if not isinstance(error, OSError):
                raise
            problem, remedy = "cannot be written", "name another checkpoint.checkpoint_folder"
            if error.errno in _FULL:
                problem = "is full"
                remedy = "free space, or add checkpoint.keep=1 or a smaller checkpoint.scale"
            why = (
                f"{self._folder} {problem} ({error.strerror or error}), what was written is removed"
            )
            raise RunError(why, remedy=remedy) from error


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
            _judge(summary, workload, job.file_system, saves, loads, pages)
            record.write()
    return (record.folder, summary) if world.rank == 0 else None


def _introduce(summary: Summary, workload: Workload, plan: Plan, folder: Opened) -> None:
    """Add to the summary what is known before anything is written."""
    summary |= planned(workload, plan)
    summary["checkpoint"] |= {
        "odirect": folder.direct,
        "shared": folder.shared,
        "piece_bytes": folder.place.piece_bytes(workload.checkpoint),
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
        bypasses=summary["checkpoint"]["odirect"] or in_bucket(folder_of(workload)),
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
    summary["limit"] = limit_of("save", saves, conditions) if saves else None
    summary["load_limit"] = limit_of("load", loads, conditions) if loads else None
    if key.num_checkpoints_read and key.writer != "dlemu":
        summary["notes"] = [*summary["notes"], "checkpoint.writer=dcp: nothing was read back"]
    summary["verdict"] = verdict_of(saves, loads, key.max_seconds, summary["limit"])
    summary |= {"status": "complete", "end": time_of_day()}
