"""`dlemu checkpoint`: from the keys to summary.json, around the job that writes, drops and reads.

All ranks call every method of the job. What it finds is told by rank 0.
"""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from dlemu.checkpoint.crew import Crew, Progress
from dlemu.checkpoint.files import Files, check_dcp
from dlemu.checkpoint.folder import Opened, access_to, folder_of, opened, step_folder
from dlemu.checkpoint.outcome import (
    Conditions,
    Entry,
    Kind,
    RankReport,
    dlio_metric,
    entry_of,
    limit_of,
    pieces_of_ranks,
    verdict_of,
)
from dlemu.checkpoint.plan import ShardPlan, planned
from dlemu.config.model import Workload
from dlemu.datagen.assemble import Content
from dlemu.errors import DlemuError, RunError, reason_of
from dlemu.findings import Finding, Tell, note
from dlemu.host.devices import mount_under
from dlemu.host.intervals import HostObserver, end_of, start_of, summarize_interval
from dlemu.host.processes import host_memory_bytes
from dlemu.host.wear import WearWatch, combine_hosts
from dlemu.judge.evidence import stored_bytes
from dlemu.judge.folders import begun, first_fields
from dlemu.judge.header import hosts_of
from dlemu.judge.records import host_file
from dlemu.judge.steady import Piece, steadiness
from dlemu.judge.steady import fields_of as steady_fields
from dlemu.ranks.ending import last_act
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import World
from dlemu.storage.owned import why_full
from dlemu.storage.pagecache import Pages, drop, drop_all_caches, look
from dlemu.storage.place import place_of

_FULL = (errno.ENOSPC, errno.EDQUOT)
_END_SECONDS = 30.0
"""A thread that ends the process does so within this time."""
Summary = dict[str, Any]
_COUNTERS = "reading the drives' counters"


def _untold(finding: Finding) -> None:
    """Say nothing of it: rank 0 does."""


@dataclass
class CheckpointJob:
    """Writes and reads the checkpoints of a record, on this rank."""

    _workload: Workload
    _plan: ShardPlan
    _opened: Opened
    _world: World
    _watch: Watchdog
    _tell: Tell = _untold
    _progress: Progress = field(default_factory=Progress)
    _observer: HostObserver | None = None
    """Of this host, on its first rank."""
    _gate: Any = field(default_factory=threading.Lock)
    """Held while a checkpoint's folder is made, and while all are removed."""
    _is_over: bool = False

    def __post_init__(self) -> None:
        self._pieces: dict[Kind, list[Piece]] = {"save": [], "load": []}
        self._checkpoint, self._record = self._workload.checkpoint, self._opened.record
        self._folder = self._opened.path
        mount = mount_under(self._folder)
        self._file_system = mount.kind if mount else ""  # "" of a bucket or if unknown

    def work(self, path: Path | None) -> Summary:
        """Write, drop and read, while the host is observed into `path`.

        Returns, on rank 0, the fields of the summary that this adds.
        """
        world, key, target = self._world, self._checkpoint, self._folder
        wear = WearWatch(*([target] if place_of(target).has_paths else []))
        pids = world.all_gather((world.host_index, os.getpid()))
        with ExitStack() as stack:
            if world.local_rank == 0:
                with self._watch.phase(_COUNTERS):
                    wear.start()
                here = [pid for host, pid in pids if host == world.host_index]
                observer = HostObserver([target], lambda: here, path)
                self._observer = stack.enter_context(observer)
            saves = self.write() if key.num_checkpoints_write else []
            reads = key.num_checkpoints_read and key.writer == "dlemu"
            pages = self.make_cold() if reads else None
            loads = self.read() if reads else []
        with self._watch.phase(_COUNTERS):
            written = sum(entry["num_bytes"] for entry in saves)  # of all ranks, on rank 0
            grown = wear.finish(file_bytes=written) if world.local_rank == 0 else None
        worn = world.gather(grown)
        if worn is None:
            return {}
        drive = self._workload.drive
        known = [each for each in worn if each is not None]
        found = combine_hosts(known, endurance=None if drive is None else drive.endurance)
        return {"measured": {"wear": found}} | self._judged(saves, loads, pages)

    def _judged(self, saves: list[Entry], loads: list[Entry], pages: Pages | None) -> Summary:
        """Return what was measured, and what it means."""
        key, share = self._checkpoint, pages.share if pages else None
        conditions = Conditions(
            file_system=self._file_system,
            bypasses=self._opened.direct or not place_of(self._folder).has_page_cache,
            fsync=key.fsync,
            cached_share=share,
        )
        # Through the page cache a drive writes when the kernel wants it to.
        written = self._pieces["save"] if conditions.bypasses else []
        steady = {"save": steadiness(written), "load": steadiness(self._pieces["load"])}
        limit = limit_of("save", saves, conditions, steady["save"]) if saves else None
        return {
            "checkpoint": {
                "saves": saves,
                "loads": loads,
                "cached_share": share,
                "host_memory_bytes": host_memory_bytes()[0],
                "steady": {kind: steady_fields(found) for kind, found in steady.items()},
            },
            "metric": dlio_metric(saves, loads, rank_sync=key.rank_sync),
            "limit": limit,
            "load_limit": limit_of("load", loads, conditions, steady["load"]) if loads else None,
            "verdict": verdict_of(saves, loads, key.max_seconds, limit),
        }

    def write(self) -> list[Entry]:
        """Write the checkpoints; return the fields of each on rank 0.

        If it fails or is interrupted, what was written is removed.

        Raises:
            RunError: the drive is full, or refuses a write.
        """
        opened, entries = self._opened, list[Entry]()
        with self._removed_on_failure(), self._crew(opened.place.writer, opened.content) as crew:
            for step in range(1, self._checkpoint.num_checkpoints_write + 1):
                folder = step_folder(self._folder, step)
                files = [self._plan.written_by(a, step) for a in self._plan.accelerators]
                with self._watch.phase(f"preparing checkpoint {step}", lambda: str(folder)):  # noqa: B023 (called in this turn)
                    if opened.keeps:
                        self._make(folder)
                    for writer, own in zip(crew.tools, files, strict=True):
                        writer.prepare([(sample, size) for _, size, sample in own])
                entries += self._round("save", step, step, crew, files)
                self._note(step)
        return entries

    def read(self) -> list[Entry]:
        """Read the checkpoints, the oldest first and in turn; return the fields of each on rank 0.

        Raises:
            RunError: a file is missing or damaged.
        """
        key, steps, entries = self._checkpoint, self._record.steps, list[Entry]()
        content = self._opened.content if key.verify else None
        with self._crew(self._opened.place.reader, content) as crew:
            for turn in range(key.num_checkpoints_read):
                step = steps[turn % len(steps)]
                if turn >= len(steps):  # it was read before, and is in memory again
                    self.make_cold([step])
                files = [self._plan.read_by(a, step) for a in self._plan.accelerators]
                entries += self._round("load", turn + 1, step, crew, files)
        return entries

    def make_cold(self, steps: Sequence[int] | None = None) -> Pages | None:
        """Drop checkpoints from each host's page cache; return on rank 0 what stayed, of all hosts.

        With output.drop_caches=false it only looks. None as well where no host has a page
        cache of them.
        """
        if not place_of(self._folder).has_page_cache:
            return None
        world, output = self._world, self._workload.output
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
        with self._watch.phase("dropping the checkpoints from the page cache"):
            if output.drop_all_caches and world.local_rank == 0:
                drop_all_caches()
            world.barrier()
            act = drop if output.drop_caches and not output.drop_all_caches else look
            own_pages = act([path for path in paths if path.exists()], at=self._watch.at)
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
        return self._opened.crew(tool, content, own, self._world, self._watch)

    def _round(
        self, kind: Kind, turn: int, step: int, crew: Crew[Any], files: Sequence[Files]
    ) -> list[Entry]:
        """Let all accelerators work between two barriers; return the fields of that on rank 0."""
        verb, number = "writing", self._checkpoint.num_checkpoints_write
        if kind == "load":
            verb, number = "reading", self._checkpoint.num_checkpoints_read
        doing, watch, observer = f"{verb} checkpoint {turn}", self._watch, self._observer
        folder = step_folder(self._folder, step)
        time.sleep(self._checkpoint.time_between_checkpoints)
        self._progress.does(doing, crew, self._plan.num_bytes)
        with watch.phase(doing, watch.longest_at):
            watch.barrier()  # a rank that is late is not in the counts
            if observer is not None:
                observer.mark(start_of(doing))
            watch.barrier()
            begin = time.perf_counter()
            worked = crew.run(lambda n: crew.tools[n].work(folder, files[n], at=watch.at))
            watch.barrier()
            between = time.perf_counter() - begin
            interval, stored = None, None
            if observer is not None:
                observer.mark(end_of(doing))
                interval = summarize_interval(observer.during(doing))
                stored = stored_bytes(interval, self._file_system)
        own = zip(self._plan.accelerators, worked, strict=True)
        each = [(accelerator, *found) for accelerator, found in own]
        report = RankReport(self._world.rank, self._world.host, each, interval, stored, crew.moved)
        reports = self._world.gather(report)
        if reports is None:
            return []
        self._pieces[kind] += pieces_of_ranks(reports)
        entry = entry_of(step, reports, between)
        found = note(
            "checkpoint_taken",
            operation=kind,
            number=turn,
            planned=number,
            seconds=entry["seconds"],
            bytes_per_second=entry["num_bytes"] / entry["seconds"],
        )
        self._tell(found)
        return [entry]

    def _note(self, step: int) -> None:
        """Enter a whole checkpoint in the record, and remove those that are not to be kept."""
        steps = (*self._record.steps, step)
        keep = self._checkpoint.keep or len(steps)
        gone, kept = steps[:-keep], steps[-keep:]
        with self._watch.phase(f"removing checkpoints below {self._folder}"):
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
            problem = f"cannot be written ({reason_of(error)})"
            remedy = "name another checkpoint.checkpoint_folder"
            if error.errno in _FULL:
                problem = why_full(self._folder, error)
                remedy = "free space, or add checkpoint.keep=1 or a smaller checkpoint.scale"
                if self._opened.place.is_closed:
                    remedy = "free space, or name another checkpoint.checkpoint_folder"
            why = f"{self._folder} {problem}, what was written is removed"
            raise RunError(why, remedy=remedy) from error


def run_checkpoints(
    workload: Workload,
    *,
    world: World,
    tell: Tell,
    on_begin: Callable[[Mapping[str, Any]], None],
    progress: Progress,
    warn: Callable[[Path], list[dict[str, Any]]] = lambda results: [],
) -> tuple[Path, Summary] | None:
    """Write, drop and read the checkpoints of a workload; all ranks call it.

    `on_begin` is called on rank 0 with the summary as it is before anything is written; `warn` with
    the folder of the results, for notes to the summary. Returns that folder and the fields of
    summary.json on rank 0, None on the others.

    Raises:
        DlemuError: the keys do not fit, the folder is not ours or full, or a file is damaged.
    """
    target, key = world.on_first(lambda: folder_of(workload)), workload.checkpoint
    plan = ShardPlan.of(workload, world)
    if key.writer == "dcp":
        most = max(plan.bytes_of_hosts().values())
        world.on_first(lambda: check_dcp(most))
    summary = first_fields("checkpoint", workload, world)
    tell = tell if world.rank == 0 else _untold
    with (
        Watchdog(workload.output.stall_seconds, world) as watch,
        begun(workload, world, summary, tell, watch=watch) as record,
        ExitStack() as stack,
    ):
        with watch.phase(f"looking at {target}", lambda: str(target)):
            folder = stack.enter_context(opened(workload, plan, world, tell))
        plan = plan if folder.shared else plan.on_own_hosts()
        summary["system"] = hosts_of(place_of(target, access_to(workload)), world, watch)
        if world.rank == 0:
            summary |= planned(workload, plan)
            summary["checkpoint"] |= {
                "odirect": folder.direct,
                "shared": folder.shared,
                "piece_bytes": folder.place.piece_bytes,
                "foreign_share": plan.foreign_share,
            }
            if key.odirect == "auto" and not folder.direct:
                unused = note("checkpoint_without_odirect", folder=str(target))
                summary["notes"].append(unused.fields)
            if workload.division == "closed":
                summary |= {"division": "closed", "edition": workload.metric.edition}
            summary["notes"] += warn(record.folder)
            record.write()
            on_begin(summary)
        job = CheckpointJob(workload, plan, folder, world, watch, tell, progress)
        path = host_file(record.folder, world.rank) if record.folder.is_dir() else None
        found = job.work(path)
        if world.rank == 0:
            found["checkpoint"] = summary["checkpoint"] | found["checkpoint"]
            if key.num_checkpoints_read and key.writer != "dlemu":
                summary["notes"].append(note("not_read_back", writer=key.writer).fields)
            record.complete(found)
    return (record.folder, summary) if world.rank == 0 else None
