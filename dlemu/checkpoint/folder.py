"""Where checkpoints lie: in a folder or in a bucket, which dlemu owns by a record.

The record says which files dlemu has written there. What it does not name is foreign: the place is
then refused, and nothing in it is touched. Old files of our own are removed.
"""

import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

from dlemu.checkpoint.crew import Crew
from dlemu.checkpoint.files import (
    DCP_FILES,
    DcpWriter,
    PlaceWriter,
    Reader,
    Writer,
    dcp_folder,
)
from dlemu.checkpoint.plan import ShardPlan
from dlemu.config.checkpoint_sections import CheckpointSection
from dlemu.config.model import Workload
from dlemu.datagen.assemble import Content
from dlemu.errors import DAMAGE, RunError, WorkloadError, in_short
from dlemu.findings import Tell, note
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import World
from dlemu.storage.extents import extent_reader
from dlemu.storage.files import sync_folder
from dlemu.storage.owned import OwnedFolder, OwnedPlace, direct, disk_bytes, room
from dlemu.storage.place import ReaderKeys, path_of, place_of
from dlemu.storage.probe import probe_writing
from dlemu.units import counted, format_bytes

_LEAST_BYTES = 8 << 20
"""Of a piece: S3 takes parts of 5 MiB and more."""


KEY = "checkpoint.checkpoint_folder"
RECORD = "dlemu-checkpoints.json"
"""Name of the record."""
_STEP = re.compile(r"global_epoch[1-9]\d{0,6}_step[1-9]\d{0,6}")
_NAME = re.compile(r"(dcp_\d+/)?[\w.-]*\w[\w.-]*")


@dataclass(frozen=True)
class CheckpointRecord:
    """The record of a folder: which job dlemu wrote into it, and its files and steps."""

    model: str
    seed: int
    """Of the bytes."""
    scale: float
    writer: str
    """checkpoint.writer."""
    files: tuple[tuple[str, int], ...]
    """Name and bytes of each file of a checkpoint."""
    steps: tuple[int, ...] = ()
    """The checkpoints that are whole."""


@dataclass(frozen=True)
class CheckpointFolder(OwnedFolder):
    """A folder of checkpoints on a file system, as dlemu owns it by a record."""

    section: CheckpointSection = field(kw_only=True)
    is_closed: bool = field(default=False, kw_only=True)
    """Whether the closed division's rules hold, which fix number and size of checkpoints."""

    def of(self, record: CheckpointRecord | None) -> Self:
        """Return the same place, where the files of this record are dlemu's."""
        files = [] if record is None else [name for name, _ in record.files]
        own = {"", *files} | {f"{name.partition('/')[0]}/" for name in files if "/" in name}

        def is_ours(below: str) -> bool:
            step, slash, name = below.partition("/")
            return bool(slash and _STEP.fullmatch(step) and name in own)

        return replace(self, is_ours=is_ours)

    def record(self) -> CheckpointRecord | None:
        """Return what dlemu has written there; None: nothing, or the folder is not there.

        Raises:
            RunError: the record is damaged, so that nothing tells what may be removed.
        """
        fields = self.fields()
        if fields is None:
            return None
        try:
            files = tuple((str(name), int(size)) for name, size in fields.pop("files"))
            if any(not _NAME.fullmatch(name) for name, _ in files):
                raise ValueError("a file's name leads elsewhere")
            return CheckpointRecord(
                **fields | {"files": files, "steps": tuple(map(int, fields["steps"]))}
            )
        except DAMAGE as error:
            raise RunError(
                f"{self.path / RECORD} is damaged ({in_short(error)})",
                remedy=f"name another {KEY}, or remove this one",
            ) from None

    def make(self, below: Path, *, sync: bool = True) -> None:
        """Make a checkpoint's folder; with `sync` its name is on the drive. Raises OSError."""
        below.mkdir(exist_ok=True)
        if sync:
            sync_folder(self.path)

    def look(self) -> tuple[CheckpointRecord | None, list[str]]:
        """Return the record and what dlemu has made there. Raises as `record`, `entries` do."""
        record = self.record()
        return record, self.of(record).entries()

    def check_room(self, num_bytes: int, replaced: Iterable[str] = ()) -> None:
        """Refuse checkpoints of `num_bytes` each for which this host has no room.

        The folder need not be there. What will be `replaced` in it is room.

        Raises:
            WorkloadError: there is too little.
        """
        number = self.section.num_checkpoints_write
        if self.section.keep is not None:
            number = min(number, self.section.keep + 1)
        files = (self.path / name for name in replaced if name[-1] != "/")
        held = sum(512 * os.lstat(path).st_blocks for path in files)
        free = disk_bytes(self.path)[1] + held
        keep = "checkpoint.keep=1" if number > 2 else ""
        scale = f"checkpoint.scale={_scale(free, num_bytes):g}" if 0 < free < 2 * num_bytes else ""
        add = " ".join(filter(None, (keep, scale))) or "checkpoint.num_checkpoints_write=1"
        fewer = f"add {add}" if not self.is_closed else f"name another {KEY}"
        room(
            self.path,
            num_bytes * number + _ROOM,
            f"free space, or {fewer}" if free else "free space",
            what=f"{counted(number, 'checkpoint')} of {format_bytes(num_bytes)}",
            held_bytes=held,
            error=WorkloadError,
        )

    @property
    def piece_bytes(self) -> int:
        """Bytes of one call or request."""
        return self.section.piece_bytes

    def writer(self, content: Content, *, direct: bool, accelerator: int) -> Writer | DcpWriter:
        """Return a writer for the files of an accelerator, as the keys say."""
        depth, fsync = self.section.io_depth, self.section.fsync
        if self.section.writer == "dcp":
            return DcpWriter(content, accelerator, fsync=fsync)
        size = self.piece_bytes
        return Writer(content, piece_bytes=size, io_depth=depth, direct=direct, fsync=fsync)

    def reader(self, content: Content | None, *, direct: bool, accelerator: int) -> Reader:
        """Return a reader for the files of an accelerator; `content` as in Reader."""
        size, depth = self.piece_bytes, self.section.io_depth
        return Reader(extent_reader(direct=direct, piece_bytes=size, io_depth=depth), content)


@dataclass(frozen=True)
class CheckpointPlace(OwnedPlace, CheckpointFolder):
    """Checkpoints where names need no folders: without a lock, and with room for all."""

    def make(self, below: Path, *, sync: bool = True) -> None:
        """Do nothing: names need no folder."""

    def check_room(self, num_bytes: int, replaced: Iterable[str] = ()) -> None:
        """Do nothing: no bound is known."""

    @property
    def piece_bytes(self) -> int:
        return max(self.section.piece_bytes, _LEAST_BYTES)

    def writer(self, content: Content, *, direct: bool, accelerator: int) -> PlaceWriter:
        place, depth = self.place.at(accelerator), self.section.io_depth
        return PlaceWriter(place, content, piece_bytes=self.piece_bytes, at_once=depth)

    def reader(self, content: Content | None, *, direct: bool, accelerator: int) -> Reader:
        size, depth = self.piece_bytes, self.section.io_depth
        keys = ReaderKeys(piece_bytes=size, range_bytes=size, in_flight=depth, whole=True)
        return Reader(self.place.at(accelerator).reader(keys), content)


def checkpoints_at(
    path: Path, access: Any, section: CheckpointSection, *, is_closed: bool = False
) -> CheckpointFolder:
    """Return where checkpoints lie; `access` is what the place's `reach` has returned."""
    fields, place = (RECORD, lambda below: False, KEY), place_of(path, access)
    if place.has_paths:
        return CheckpointFolder(path, *fields, section=section, is_closed=is_closed)
    return CheckpointPlace(path, *fields, section=section, is_closed=is_closed, place=place)


_ROOM = 1 << 20
"""Bytes that the record and the folders take, about."""


@dataclass(frozen=True)
class Opened:
    """The folder, as one rank has it."""

    place: CheckpointFolder
    record: CheckpointRecord
    shared: bool
    """Whether all hosts see the same folder."""
    keeps: bool
    """Whether this rank makes and removes what is in it: rank 0, or one rank of each host."""
    direct: bool
    """Whether files are opened with O_DIRECT."""

    @property
    def path(self) -> Path:
        return self.place.path

    @cached_property
    def content(self) -> Content:
        """The bytes of the files."""
        return Content(self.record.seed)

    @contextmanager
    def crew(
        self,
        tool: Callable[..., Any],
        content: Content | None,
        accelerators: Iterable[int],
        world: World,
        watch: Watchdog,
        now: Callable[[], float] = time.perf_counter,
    ) -> Iterator[Crew[Any]]:
        """Yield accelerators of this rank, each with what `place.writer` or `.reader` makes."""
        make = partial(tool, content, direct=self.direct)
        with ExitStack() as stack:
            tools = [stack.enter_context(make(accelerator=each)) for each in accelerators]
            yield stack.enter_context(Crew(tools, self.path, world, watch, now))


def step_folder(folder: Path, step: int, epoch: int = 1) -> Path:
    """Return the folder of a checkpoint, by DLIO's name; only a run has more than one epoch."""
    return folder / f"global_epoch{epoch}_step{step}"


def folder_of(workload: Workload) -> Path:
    """Return the folder of checkpoints, in its place.

    Raises:
        WorkloadError: checkpoint.checkpoint_folder is not set.
    """
    folder = workload.checkpoint.checkpoint_folder
    if not folder:
        raise WorkloadError(f"{KEY} is not set; add {KEY}=/path/on/the/storage")
    return path_of(folder, KEY)


def access_to(workload: Workload) -> Any:
    """Return how the place of checkpoints is reached; None of a folder. On rank 0."""
    return place_of(folder_of(workload)).reach(workload.storage)


@contextmanager
def opened(workload: Workload, plan: ShardPlan, world: World, tell: Tell) -> Iterator[Opened]:
    """Yield the folder, made and held. All ranks call it.

    Where checkpoints will be written, those of an earlier command are removed.

    Raises:
        WorkloadError: it holds something foreign, is in use, or cannot be made; there is no room,
            or nothing that could be read.
    """
    path, key = folder_of(workload), workload.checkpoint
    access = world.on_first(lambda: access_to(workload))
    place = checkpoints_at(path, access, key, is_closed=workload.division == "closed")
    with ExitStack() as stack:

        def take(record: CheckpointRecord | None) -> CheckpointRecord:
            return stack.enter_context(_taken(place, record, workload, plan, world, tell))

        record = world.on_first(lambda: take(None))
        sees = world.local_rank != 0
        if not sees:
            with suppress(RunError):
                seen = place.record()
                sees = seen is not None and seen.seed == record.seed
        shared = all(world.all_gather(sees))
        keeps = world.rank == 0 or (not shared and world.local_rank == 0)
        if not sees:
            take(record)
        if shared and world.num_hosts > 1:
            world.on_first(lambda: place.check_room(plan.num_bytes))
        has_paths = place_of(path).has_paths
        takes = world.all_gather(bool(key.odirect) and has_paths and direct(path))
        if key.odirect is True and not all(takes):
            if world.rank != takes.index(False):  # one rank says it
                world.barrier()
            raise WorkloadError(
                f"{path} does not take O_DIRECT; leave out checkpoint.odirect=true, or write "
                "checkpoint.odirect=auto"
            )
        yield Opened(place.of(record), record, shared, keeps, direct=all(takes))


def examine(workload: Workload, plan: ShardPlan) -> None:
    """Raise what `opened` would raise, as far as it can be known without making the folder."""
    path, key, is_closed = folder_of(workload), workload.checkpoint, workload.division == "closed"
    place = checkpoints_at(path, access_to(workload), key, is_closed=is_closed)
    _, entries = place.look()
    place.check_room(plan.num_bytes, entries)


def probe(path: Path) -> float:
    """Return bytes per second that a folder, or that above it, takes in a second; nothing stays.

    Raises:
        WorkloadError: it cannot be written.
    """
    there = next(each for each in (path, *path.absolute().parents) if each.is_dir())
    try:
        return probe_writing(there, seconds=1.0)
    except OSError as error:
        raise WorkloadError.of_system(
            error, f"{KEY} {path}", "cannot be written", "name another"
        ) from None


@contextmanager
def _taken(
    place: CheckpointFolder,
    record: CheckpointRecord | None,
    workload: Workload,
    plan: ShardPlan,
    world: World,
    tell: Tell,
) -> Iterator[CheckpointRecord]:
    """Yield the record of what is written, or read, in the folder of this host.

    `record` is that of rank 0, None on it.
    """
    old, entries = place.look()
    if workload.checkpoint.num_checkpoints_write == 0:
        _check_known(place.path, old, plan, record)
        assert old is not None
        with place.held():
            yield old
        return
    # On a shared folder this counts one host's bytes only; nothing is removed before this check.
    place.check_room(plan.bytes_of_hosts().get(world.host_index, 0), entries)
    new = record or _new_record(workload, plan)
    with place.held():
        if entries:
            place.of(old).remove()
            number = len({name.partition("/")[0] for name in entries})
            tell(note("earlier_checkpoints_removed", number=number))
        try:
            place.write(vars(new))
            yield new
        finally:
            place.forget()


def _new_record(workload: Workload, plan: ShardPlan) -> CheckpointRecord:
    key, accelerators = workload.checkpoint, range(plan.share.written)
    files = tuple((file.name, file.num_bytes) for file in plan.files)
    if key.writer == "dcp":  # sizes are torch's
        files = tuple((f"{dcp_folder(a)}/{name}", 0) for a in accelerators for name in DCP_FILES)
    return CheckpointRecord(workload.model.name, secrets.randbits(63), key.scale, key.writer, files)


def _check_known(
    path: Path, old: CheckpointRecord | None, plan: ShardPlan, first: CheckpointRecord | None
) -> None:
    """Refuse to read what this job would not have written."""
    files = tuple((file.name, file.num_bytes) for file in plan.files)
    if old is None or not old.steps:
        raise WorkloadError(
            f"{path} holds no checkpoints of dlemu", remedy="set checkpoint.num_checkpoints_write"
        )
    if old.files != files or (first is not None and first.seed != old.seed):
        raise WorkloadError(
            f"{path} holds checkpoints of {old.model} (scale {old.scale:g}, writer {old.writer}), "
            "not the files of this job",
            remedy="give the keys that they were written with, or write them again",
        )


def _scale(free: int, num_bytes: int) -> float:
    """Return a factor, of one digit, with which two checkpoints fit. `free` is above 0."""
    exact = free / (2.1 * num_bytes)
    digit = 10.0 ** -len(f"{1 / exact:.0f}") if exact < 1 else 1.0
    return max(1, int(exact / digit)) * digit
