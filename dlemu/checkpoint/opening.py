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
    make_folder,
    read_record,
    remove_steps,
)
from dlemu.checkpoint.plan import Plan
from dlemu.errors import RunError, WorkloadError
from dlemu.storage.locks import locked
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
            return stack.enter_context(_taken(path, record, workload, plan, say))

        record = world.on_first(lambda: take(None))
        sees = world.local_rank != 0 or _sees(path, record)
        shared = all(world.all_gather(sees))
        keeps = world.rank == 0 or (not shared and world.local_rank == 0)
        if not sees:
            take(record)
        own = world.host_index
        here = (f.num_bytes for f in plan.files if shared or plan.hosts[f.rank] == own)
        lacks = _lacks(workload, path, sum(here), world.host) if keeps else ""
        direct = _direct(path, key.odirect)
        told = world.all_gather((lacks, direct))
        refusing = [rank for rank, (line, can) in enumerate(told) if line or can is None]
        if refusing:
            if keeps and key.num_checkpoints_write:
                forget(path)
            if world.rank != refusing[0]:  # one rank says it
                world.barrier()
            raise WorkloadError(
                lacks
                or f"{path} does not take O_DIRECT; leave out checkpoint.odirect=true, or write "
                "checkpoint.odirect=auto"
            )
        yield Opened(path, record, shared, keeps, direct=all(each for _, each in told))


def examine(workload: Workload, plan: Plan, host: str) -> float:
    """Return bytes per second that the folder takes in a probe of one second; nothing stays.

    Raises as `opened` does, as far as it can be told without making the folder.
    """
    path = folder_of(workload)
    check_own(path, read_record(path))
    there = next(each for each in (path, *path.absolute().parents) if each.is_dir())
    if lacks := _lacks(workload, there, plan.num_bytes, host):
        raise WorkloadError(lacks)
    try:
        return probe_writing(there, seconds=1.0)
    except OSError as error:
        raise WorkloadError(
            f"checkpoint.checkpoint_folder {path} cannot be written ({error.strerror}); name "
            "another"
        ) from None


def _lacks(workload: Workload, path: Path, num_bytes: int, host: str) -> str:
    """Return why there is no room for the checkpoints of this host; "" if there is."""
    key = workload.checkpoint
    number = key.num_checkpoints_write
    number = number if key.keep is None else min(number, key.keep + 1)
    return check_room(path, num_bytes, number, host) if number else ""


def _sees(path: Path, record: Record) -> bool:
    with suppress(RunError):
        seen = read_record(path)
        return seen is not None and seen.seed == record.seed
    return False


@contextmanager
def _taken(
    path: Path, record: Record | None, workload: Workload, plan: Plan, say: Say
) -> Iterator[Record]:
    """Yield the record of what is written, or read, in the folder of this host.

    `record` is that of rank 0, None on it.
    """
    writes = workload.checkpoint.num_checkpoints_write > 0
    made = not path.exists()
    old = read_record(path)
    if not writes:
        _check_known(path, old, plan, record)
    check_own(path, old)
    make_folder(path)
    try:
        with locked(path):
            if not writes:
                assert old is not None
                yield old
                return
            if old is not None and (removed := remove_steps(path, old)):
                say(f"removed: {counted(removed, 'checkpoint')} of an earlier command")
            new = record or _new_record(workload, plan)
            new.write(path)
            yield new
    except BlockingIOError:
        raise WorkloadError(
            f"checkpoint.checkpoint_folder {path} is in use by another dlemu; wait for its end, or "
            "name another"
        ) from None
    finally:
        if made:
            with suppress(OSError):  # it holds checkpoints
                path.rmdir()


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
    probe = path / PROBE
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o666))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False if wanted == "auto" else None
    finally:
        with suppress(OSError):
            os.unlink(probe)
    return True
