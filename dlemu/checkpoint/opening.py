"""Takes the folder of checkpoints for one command: checked, locked, our own old files removed."""

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dlemu.checkpoint.dcp import FILES
from dlemu.checkpoint.dcp import folder_of as dcp_folder
from dlemu.checkpoint.folder import (
    PROBE,
    Record,
    check_own,
    check_room,
    forget,
    read_record,
    remove_steps,
)
from dlemu.checkpoint.plan import Plan
from dlemu.errors import RunError, WorkloadError
from dlemu.results.folders import hold
from dlemu.storage.atomic import create
from dlemu.storage.probe import probe_writing
from dlemu.units import counted
from dlemu.workload.model import Workload
from dlemu.world.world import World

Say = Callable[[str], None]


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


def folder_of(workload: Workload) -> Path:
    """Return the folder of checkpoints.

    Raises:
        WorkloadError: checkpoint.checkpoint_folder is not set.
    """
    if not workload.checkpoint.checkpoint_folder:
        raise WorkloadError(
            "checkpoint.checkpoint_folder is not set; add "
            "checkpoint.checkpoint_folder=/path/on/the/storage"
        )
    return Path(workload.checkpoint.checkpoint_folder)


@contextmanager
def opened(workload: Workload, plan: Plan, world: World, say: Say) -> Iterator[Opened]:
    """Yield the folder, made and locked. All ranks call it.

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
            world.on_first(lambda: _check_room(workload, path, None, plan.num_bytes, world.host))
        direct = _direct(path, key.odirect)
        told = world.all_gather(direct)
        if None in told:
            if world.rank != told.index(None):  # one rank says it
                world.barrier()
            raise WorkloadError(
                f"{path} does not take O_DIRECT; leave out checkpoint.odirect=true, or write "
                "checkpoint.odirect=auto"
            )
        yield Opened(path, record, shared, keeps, direct=all(told))


def examine(workload: Workload, plan: Plan, host: str) -> float:
    """Return bytes per second that the folder takes in a probe of one second; nothing stays.

    Raises as `opened` does, as far as it can be told without making the folder.
    """
    path = folder_of(workload)
    old = read_record(path)
    check_own(path, old)
    _check_room(workload, path, old, plan.num_bytes, host)
    there = next(each for each in (path, *path.absolute().parents) if each.is_dir())
    try:
        return probe_writing(there, seconds=1.0)
    except OSError as error:
        raise WorkloadError(
            f"checkpoint.checkpoint_folder {path} cannot be written ({error.strerror}); name "
            "another"
        ) from None


def _check_room(
    workload: Workload, path: Path, old: Record | None, num_bytes: int, host: str
) -> None:
    """Refuse checkpoints for which this host has no room. Raises as `check_room` does."""
    key = workload.checkpoint
    number = key.num_checkpoints_write
    number = number if key.keep is None else min(number, key.keep + 1)
    if number:
        check_room(path, old, num_bytes, number, host)


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
    writes = workload.checkpoint.num_checkpoints_write > 0
    old = read_record(path)
    if not writes:
        _check_known(path, old, plan, record)
    check_own(path, old)
    # Of a shared folder these are not all bytes, but what is refused here has removed nothing.
    _check_room(workload, path, old, plan.bytes_of_hosts().get(world.host_index, 0), world.host)
    with hold(path, "", key="checkpoint.checkpoint_folder"):
        if not writes:
            assert old is not None
            yield old
            return
        if old is not None and (removed := remove_steps(path, old)):
            say(f"removed: {counted(removed, 'checkpoint')} of an earlier command")
        new = record or _new_record(workload, plan)
        try:
            new.write(path)
            yield new
        finally:
            forget(path)


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


def _direct(path: Path, wanted: bool | str) -> bool | None:
    """Return whether files are opened with O_DIRECT; None if that was asked for and cannot be."""
    if not wanted:
        return False
    probe = path / f"{PROBE}.{secrets.token_hex(4)}"  # ranks share the folder
    try:
        os.close(create(probe, direct=True))
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        return False if wanted == "auto" else None
    finally:
        with suppress(OSError):
            os.unlink(probe)
    return True
