"""The folder of checkpoints for one command: checked, held, our own old files removed.

A record in the folder says which files dlemu has written there. What the record does not name is
foreign: the folder is then refused, and nothing in it is touched.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dlemu.checkpoint.dcp import FILES
from dlemu.checkpoint.dcp import folder_of as dcp_folder
from dlemu.checkpoint.place import KEY, CheckpointFolder, Written, place_of
from dlemu.checkpoint.plan import Plan
from dlemu.config.model import Workload, access_of
from dlemu.errors import RunError, WorkloadError
from dlemu.ranks.world import World
from dlemu.storage.owned import room
from dlemu.storage.probe import probe_writing
from dlemu.storage.s3.location import Access, in_bucket, object_path
from dlemu.units import counted, format_bytes

Say = Callable[[str], None]
_ROOM = 1 << 20
"""Bytes that the record and the folders take, about."""


@dataclass(frozen=True)
class Opened:
    """The folder, as one rank has it."""

    place: CheckpointFolder
    record: Written
    shared: bool
    """Whether all hosts see the same folder."""
    keeps: bool
    """Whether this rank makes and removes what is in it: rank 0, or one rank of each host."""
    direct: bool
    """Whether files are opened with O_DIRECT."""

    @property
    def path(self) -> Path:
        return self.place.path


def step_folder(folder: Path, step: int, epoch: int = 1) -> Path:
    """Return the folder of a checkpoint, by DLIO's name; only a run has more than one epoch."""
    return folder / f"global_epoch{epoch}_step{step}"


def folder_of(workload: Workload) -> Path:
    """Return the folder of checkpoints, which may be in a bucket.

    Raises:
        WorkloadError: checkpoint.checkpoint_folder is not set.
    """
    folder = workload.checkpoint.checkpoint_folder
    if not folder:
        raise WorkloadError(f"{KEY} is not set; add {KEY}=/path/on/the/storage")
    return object_path(folder, KEY) if "://" in folder else Path(folder)


def access_to(workload: Workload) -> Access | None:
    """Return how the bucket of checkpoints is reached; None: they go to a folder. On rank 0."""
    return access_of(workload.storage) if in_bucket(folder_of(workload)) else None


@contextmanager
def opened(workload: Workload, plan: Plan, world: World, say: Say) -> Iterator[Opened]:
    """Yield the folder, made and held. All ranks call it.

    Where checkpoints will be written, those of an earlier command are removed.

    Raises:
        WorkloadError: it holds something foreign, is in use, or cannot be made; there is no room,
            or nothing that could be read.
    """
    path, key = folder_of(workload), workload.checkpoint
    place = place_of(path, world.on_first(lambda: access_to(workload)))
    with ExitStack() as stack:

        def take(record: Written | None) -> Written:
            return stack.enter_context(_taken(place, record, workload, plan, world, say))

        record = world.on_first(lambda: take(None))
        sees = world.local_rank != 0 or _sees(place, record)
        shared = all(world.all_gather(sees))
        keeps = world.rank == 0 or (not shared and world.local_rank == 0)
        if not sees:
            take(record)
        if shared and world.num_hosts > 1:
            world.on_first(lambda: _check_room(workload, place, plan.num_bytes))
        takes = world.all_gather(bool(key.odirect) and place.takes_direct())
        if key.odirect is True and not all(takes):
            if world.rank != takes.index(False):  # one rank says it
                world.barrier()
            raise WorkloadError(
                f"{path} does not take O_DIRECT; leave out checkpoint.odirect=true, or write "
                "checkpoint.odirect=auto"
            )
        yield Opened(place, record, shared, keeps, direct=all(takes))


def examine(workload: Workload, plan: Plan) -> None:
    """Raise what `opened` would raise, as far as it can be known without making the folder."""
    place = place_of(folder_of(workload), access_to(workload))
    _, entries = _look(place)
    _check_room(workload, place, plan.num_bytes, entries)


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
            f"{KEY} {path} cannot be written ({error.strerror}); name another"
        ) from None


def _look(place: CheckpointFolder) -> tuple[Written | None, list[str]]:
    """Return the record of a folder and what dlemu has made there. Raises as `opened` does."""
    record = place.record()
    return record, place.of(record).entries()


def _sees(place: CheckpointFolder, record: Written) -> bool:
    with suppress(RunError):
        seen = place.record()
        return seen is not None and seen.seed == record.seed
    return False


@contextmanager
def _taken(
    place: CheckpointFolder,
    record: Written | None,
    workload: Workload,
    plan: Plan,
    world: World,
    say: Say,
) -> Iterator[Written]:
    """Yield the record of what is written, or read, in the folder of this host.

    `record` is that of rank 0, None on it.
    """
    old, entries = _look(place)
    if workload.checkpoint.num_checkpoints_write == 0:
        _check_known(place.path, old, plan, record)
        assert old is not None
        with place.held():
            yield old
        return
    # On a shared folder this counts one host's bytes only; nothing is removed before this check.
    _check_room(workload, place, plan.bytes_of_hosts().get(world.host_index, 0), entries)
    new = record or _new_record(workload, plan)
    with place.held():
        if old is not None and (removed := place.remove_all(old)):
            say(f"removed: {counted(removed, 'checkpoint')} of an earlier command")
        try:
            place.write(vars(new))
            yield new
        finally:
            place.forget()


def _new_record(workload: Workload, plan: Plan) -> Written:
    key, accelerators = workload.checkpoint, range(plan.share.written)
    files = tuple((file.name, file.num_bytes) for file in plan.files)
    if key.writer == "dcp":  # sizes are torch's
        files = tuple((f"{dcp_folder(a)}/{name}", 0) for a in accelerators for name in FILES)
    return Written(workload.model.name, secrets.randbits(63), key.scale, key.writer, files)


def _check_known(path: Path, old: Written | None, plan: Plan, first: Written | None) -> None:
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
    workload: Workload, place: CheckpointFolder, num_bytes: int, replaced: Iterable[str] = ()
) -> None:
    """Refuse checkpoints of `num_bytes` each for which this host has no room.

    The folder need not be there. What will be `replaced` in it is room.

    Raises:
        WorkloadError: there is too little.
    """
    found = place.free_bytes(replaced)
    if found is None:
        return
    (held, free), number = found, workload.checkpoint.num_checkpoints_write
    free += held
    if workload.checkpoint.keep is not None:
        number = min(number, workload.checkpoint.keep + 1)
    keep = "checkpoint.keep=1" if number > 2 else ""
    scale = f"checkpoint.scale={_scale(free, num_bytes):g}" if 0 < free < 2 * num_bytes else ""
    add = " ".join(filter(None, (keep, scale))) or "checkpoint.num_checkpoints_write=1"
    room(
        place.path,
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
