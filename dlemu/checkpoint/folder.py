"""The folder of checkpoints for one command: checked, held, our own old files removed.

A record in the folder says which files dlemu has written there. What the record does not name is
foreign: the folder is then refused, and nothing in it is touched.
"""

import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dlemu.checkpoint.dcp import FILES
from dlemu.checkpoint.dcp import folder_of as dcp_folder
from dlemu.checkpoint.plan import Plan
from dlemu.config.model import Workload
from dlemu.errors import DAMAGE, RunError, WorkloadError, in_short
from dlemu.ranks.world import World
from dlemu.storage.atomic import partial_path
from dlemu.storage.owned import OwnedFolder, direct, disk_bytes, room
from dlemu.storage.probe import probe_writing
from dlemu.units import counted, format_bytes

Say = Callable[[str], None]
RECORD = "dlemu-checkpoints.json"
"""Name of the record."""
_KEY = "checkpoint.checkpoint_folder"
_STEP = re.compile(r"global_epoch[1-9]\d{0,6}_step[1-9]\d{0,6}")
_NAME = re.compile(r"(dcp_\d+/)?[\w.-]*\w[\w.-]*")
_ROOM = 1 << 20
"""Bytes that the record and the folders take, about."""


@dataclass(frozen=True)
class Record:
    """What dlemu has written into a folder."""

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

    def owned(self, folder: Path) -> OwnedFolder:
        """Return the folder as dlemu owns it by this record."""
        return _owned(folder, [name for name, _ in self.files])

    def write(self, folder: Path) -> None:
        """Write the record into its folder. Raises OSError."""
        self.owned(folder).write(vars(self))


@dataclass(frozen=True)
class Opened:
    """The folder, as one rank has it."""

    path: Path
    record: Record
    shared: bool
    """Whether all hosts see the same folder."""
    keeps: bool
    """Whether this rank makes and removes what is in it: rank 0, or one rank of each host."""
    direct: bool
    """Whether files are opened with O_DIRECT."""


def step_folder(folder: Path, step: int, epoch: int = 1) -> Path:
    """Return the folder of a checkpoint, by DLIO's name; only a run has more than one epoch."""
    return folder / f"global_epoch{epoch}_step{step}"


def folder_of(workload: Workload) -> Path:
    """Return the folder of checkpoints.

    Raises:
        WorkloadError: checkpoint.checkpoint_folder is not set.
    """
    if not workload.checkpoint.checkpoint_folder:
        raise WorkloadError(f"{_KEY} is not set; add {_KEY}=/path/on/the/storage")
    return Path(workload.checkpoint.checkpoint_folder)


def read_record(folder: Path) -> Record | None:
    """Return what dlemu has written into a folder; None: nothing, or the folder is not there.

    Raises:
        RunError: the record is damaged, so that nothing tells what may be removed.
    """
    fields = _owned(folder).fields()
    if fields is None:
        return None
    try:
        files = tuple((str(name), int(size)) for name, size in fields.pop("files"))
        if any(not _NAME.fullmatch(name) for name, _ in files):
            raise ValueError("a file's name leads elsewhere")
        return Record(**fields | {"files": files, "steps": tuple(map(int, fields["steps"]))})
    except DAMAGE as error:
        raise RunError(
            f"{folder / RECORD} is damaged ({in_short(error)})",
            remedy=f"name another {_KEY}, or remove this one",
        ) from None


def remove(below: Path, record: Record) -> None:
    """Remove a checkpoint's folder, but nothing that the record does not name."""
    # The temporary name first: a thread that is being stopped may just give the final one.
    for name, _ in record.files:
        for path in (partial_path(below / name), below / name):
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)
    inner = {(below / name).parent for name, _ in record.files} - {below}
    for folder in (*inner, below):
        with suppress(OSError):  # it holds something foreign, or is gone
            os.rmdir(folder)


def clean(folder: Path, record: Record) -> int:
    """Remove all checkpoints that the record names, whole or not; return how many there were."""
    steps = _steps_in(folder)
    for name in steps:
        remove(folder / name, record)
    _forget(folder)
    return len(steps)


@contextmanager
def opened(workload: Workload, plan: Plan, world: World, say: Say) -> Iterator[Opened]:
    """Yield the folder, made and held. All ranks call it.

    Where checkpoints will be written, those of an earlier command are removed.

    Raises:
        WorkloadError: it holds something foreign, is in use, or cannot be made; there is no room,
            or nothing that could be read.
    """
    path, key = folder_of(workload), workload.checkpoint
    with ExitStack() as stack:

        def take(record: Record | None) -> Record:
            return stack.enter_context(_taken(path, record, workload, plan, world, say))

        record = world.on_first(lambda: take(None))
        sees = world.local_rank != 0 or _sees(path, record)
        shared = all(world.all_gather(sees))
        keeps = world.rank == 0 or (not shared and world.local_rank == 0)
        if not sees:
            take(record)
        if shared and world.num_hosts > 1:
            world.on_first(lambda: _check_room(workload, path, plan.num_bytes))
        takes = world.all_gather(bool(key.odirect) and direct(path))
        if key.odirect is True and not all(takes):
            if world.rank != takes.index(False):  # one rank says it
                world.barrier()
            raise WorkloadError(
                f"{path} does not take O_DIRECT; leave out checkpoint.odirect=true, or write "
                "checkpoint.odirect=auto"
            )
        yield Opened(path, record, shared, keeps, direct=all(takes))


def examine(workload: Workload, plan: Plan) -> None:
    """Raise what `opened` would raise, as far as it can be known without making the folder."""
    path = folder_of(workload)
    _, entries = _look(path)
    _check_room(workload, path, plan.num_bytes, entries)


def probe(path: Path) -> float:
    """Return bytes per second that a folder, or that above it, takes in a second; nothing stays.

    Raises:
        WorkloadError: it cannot be written.
    """
    there = next(each for each in (path, *path.absolute().parents) if each.is_dir())
    try:
        return probe_writing(there, seconds=1.0)
    except OSError as error:
        raise WorkloadError(
            f"{_KEY} {path} cannot be written ({error.strerror}); name another"
        ) from None


def _owned(folder: Path, files: Sequence[str] = ()) -> OwnedFolder:
    """Return a folder whose checkpoints have these files."""
    own = {"", *files} | {f"{name.partition('/')[0]}/" for name in files if "/" in name}

    def is_ours(below: str) -> bool:
        step, slash, name = below.partition("/")
        return bool(slash and _STEP.fullmatch(step) and name in own)

    return OwnedFolder(folder, RECORD, is_ours, _KEY)


def _steps_in(folder: Path) -> list[str]:
    """Return the names of the checkpoints in a folder."""
    with suppress(FileNotFoundError):
        return [name for name in os.listdir(folder) if _STEP.fullmatch(name)]
    return []


def _forget(folder: Path) -> None:
    """Remove the record once no checkpoint is left; another rank may still remove its own."""
    with suppress(OSError):
        if not _steps_in(folder):
            os.unlink(folder / RECORD)


def _look(folder: Path) -> tuple[Record | None, list[str]]:
    """Return the record of a folder and what dlemu has made there. Raises as `opened` does."""
    record = read_record(folder)
    return record, (_owned(folder) if record is None else record.owned(folder)).entries()


def _sees(path: Path, record: Record) -> bool:
    with suppress(RunError):
        seen = read_record(path)
        return seen is not None and seen.seed == record.seed
    return False


@contextmanager
def _taken(
    path: Path, record: Record | None, workload: Workload, plan: Plan, world: World, say: Say
) -> Iterator[Record]:
    """Yield the record of what is written, or read, in the folder of this host.

    `record` is that of rank 0, None on it.
    """
    old, entries = _look(path)
    if workload.checkpoint.num_checkpoints_write == 0:
        _check_known(path, old, plan, record)
        assert old is not None
        with old.owned(path).held():
            yield old
        return
    # On a shared folder this counts one host's bytes only; nothing is removed before this check.
    _check_room(workload, path, plan.bytes_of_hosts().get(world.host_index, 0), entries)
    new = record or _new_record(workload, plan)
    with new.owned(path).held():
        if old is not None and (removed := clean(path, old)):
            say(f"removed: {counted(removed, 'checkpoint')} of an earlier command")
        try:
            new.write(path)
            yield new
        finally:
            _forget(path)


def _new_record(workload: Workload, plan: Plan) -> Record:
    key, accelerators = workload.checkpoint, range(plan.share.written)
    files = tuple((file.name, file.num_bytes) for file in plan.files)
    if key.writer == "dcp":  # sizes are torch's
        files = tuple((f"{dcp_folder(a)}/{name}", 0) for a in accelerators for name in FILES)
    return Record(workload.model.name, secrets.randbits(63), key.scale, key.writer, files)


def _check_known(path: Path, old: Record | None, plan: Plan, first: Record | None) -> None:
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


def _check_room(
    workload: Workload, path: Path, num_bytes: int, replaced: Iterable[str] = ()
) -> None:
    """Refuse checkpoints of `num_bytes` each for which this host has no room.

    The folder need not be there. What will be `replaced` in it is room.

    Raises:
        WorkloadError: there is too little.
    """
    number = workload.checkpoint.num_checkpoints_write
    if workload.checkpoint.keep is not None:
        number = min(number, workload.checkpoint.keep + 1)
    held = sum(512 * os.lstat(path / name).st_blocks for name in replaced if name[-1] != "/")
    free = disk_bytes(path)[1] + held
    keep = "checkpoint.keep=1" if number > 2 else ""
    scale = f"checkpoint.scale={_scale(free, num_bytes):g}" if 0 < free < 2 * num_bytes else ""
    add = " ".join(filter(None, (keep, scale))) or "checkpoint.num_checkpoints_write=1"
    room(
        path,
        num_bytes * number + _ROOM,
        f"free space, or add {add}" if free else "free space",
        what=f"{counted(number, 'checkpoint')} of {format_bytes(num_bytes)}",
        held_bytes=held,
        error=WorkloadError,
    )


def _scale(free: int, num_bytes: int) -> float:
    """Return a factor, of one digit, with which two checkpoints fit. `free` is above 0."""
    exact = free / (2.1 * num_bytes)
    digit = 10.0 ** -len(f"{1 / exact:.0f}") if exact < 1 else 1.0
    return max(1, int(exact / digit)) * digit
