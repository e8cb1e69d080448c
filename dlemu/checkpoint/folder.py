"""The folder of checkpoints: what is in it, what may be removed, and whether there is room.

A record in the folder says which files dlemu has written there. What the record does not name is
foreign: the folder is then refused, and nothing in it is touched.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dlemu.errors import DAMAGE, RunError, WorkloadError, in_short
from dlemu.storage.atomic import PARTIAL, partial_path, write_atomically
from dlemu.storage.regular import read_regular
from dlemu.units import counted, format_bytes

RECORD = "dlemu-checkpoints.json"
"""Name of the record."""
PROBE = ".dlemu-odirect"
"""Name of an empty file that shows for a moment whether O_DIRECT works."""
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

    def write(self, folder: Path) -> None:
        """Write the record into its folder."""
        write_atomically(folder / RECORD, json.dumps(vars(self)).encode())


def step_folder(folder: Path, step: int, epoch: int = 1) -> Path:
    """Return the folder of a checkpoint, by DLIO's name; only a run has more than one epoch."""
    return folder / f"global_epoch{epoch}_step{step}"


def read_record(folder: Path) -> Record | None:
    """Return what dlemu has written into a folder; None: nothing, or the folder is not there.

    Raises:
        RunError: the record is damaged, so that nothing tells what may be removed.
    """
    path = folder / RECORD
    try:
        tree = json.loads(read_regular(path, error=RunError))
        files = tuple((str(name), int(size)) for name, size in tree.pop("files"))
        steps = tuple(map(int, tree.pop("steps")))
        if any(not _NAME.fullmatch(name) for name, _ in files):
            raise ValueError("a file's name leads elsewhere")
        return Record(**tree, files=files, steps=steps)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except DAMAGE as error:
        raise RunError(
            f"{path} is damaged ({in_short(error)})",
            remedy="name another checkpoint.checkpoint_folder, or remove this one",
        ) from None


def check_own(folder: Path, record: Record | None) -> None:
    """Refuse a folder that holds anything that is not in its record.

    Raises:
        WorkloadError: it does, or it is no folder; the line names the first such entry.
    """
    try:
        entries = sorted(os.listdir(folder))
    except FileNotFoundError:
        return
    except OSError as error:
        raise WorkloadError(
            f"checkpoint.checkpoint_folder {folder} cannot be used ({error.strerror}); name another"
        ) from None
    for name in entries:
        if name in (RECORD, RECORD + PARTIAL) or name.startswith(PROBE):
            continue
        foreign = _foreign_in(folder / name, record) if _STEP.fullmatch(name) else name
        if foreign:
            raise WorkloadError(
                f"checkpoint.checkpoint_folder {folder} holds {foreign}, which dlemu has "
                "not written; name another folder"
            )


def _foreign_in(step: Path, record: Record | None) -> str:
    """Return the first entry of a checkpoint that is not in the record; "" if all are."""
    own = set() if record is None else {name for name, _ in record.files}
    own |= {name.partition("/")[0] for name in own}
    if record is None or step.is_symlink() or not step.is_dir():
        return step.name
    names = (name for name in sorted(os.listdir(step)) if name.removesuffix(PARTIAL) not in own)
    return next((f"{step.name}/{name}" for name in names), "")


def remove_steps(folder: Path, record: Record, steps: Iterable[int] | None = None) -> int:
    """Remove checkpoints, whole or not, but nothing that the record does not name.

    `steps` None: all that are there. Returns how many folders were there.
    """
    given = None if steps is None else [step_folder(folder, step) for step in steps]
    return sum(remove(below, record) for below in (_steps_in(folder) if given is None else given))


def remove(below: Path, record: Record) -> bool:
    """Remove what the record names in a checkpoint's folder; return whether that is gone."""
    # The temporary name first: a thread that is being stopped may just give the final one.
    for name, _ in record.files:
        for path in (partial_path(below / name), below / name):
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)
    inner = {below / name.rpartition("/")[0] for name, _ in record.files}
    for path in inner - {below}:
        with suppress(OSError):
            os.rmdir(path)
    with suppress(OSError):  # it holds something foreign, or is gone
        os.rmdir(below)
        return True
    return False


def _steps_in(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder) if _STEP.fullmatch(name)]
    except FileNotFoundError:
        return []


def forget(folder: Path) -> None:
    """Remove the record, once no checkpoint is left."""
    if _steps_in(folder):  # another rank still removes its own
        return
    with suppress(OSError):
        os.unlink(folder / RECORD)


def check_room(
    folder: Path, old: Record | None, num_bytes: int, checkpoints: int, host: str
) -> None:
    """Refuse checkpoints of `num_bytes` each for which the drive has no room.

    The folder need not be there. What the old record names will be removed, so it is room.

    Raises:
        WorkloadError: there is too little.
    """
    there = next(each for each in (folder, *folder.absolute().parents) if each.is_dir())
    needed = num_bytes * checkpoints + _ROOM
    free = shutil.disk_usage(there).free + (_held_bytes(folder, old) if old else 0)
    if needed <= free:
        return
    keep = "checkpoint.keep=1" if checkpoints > 2 else ""
    scale = f"checkpoint.scale={_scale(free, num_bytes):g}" if 0 < free < 2 * num_bytes else ""
    add = " ".join(filter(None, (keep, scale))) or "checkpoint.num_checkpoints_write=1"
    remedy = f"free space, or add {add}" if free else "free space"
    raise WorkloadError(
        f"{folder} on host {host} has room for {format_bytes(free)}, "
        f"{counted(checkpoints, 'checkpoint')} of {format_bytes(num_bytes)} need "
        f"{format_bytes(needed)}",
        remedy=remedy,
    )


def _held_bytes(folder: Path, record: Record) -> int:
    """Return the bytes that the drive gets back when what the record names is removed."""
    held = 0
    for step in _steps_in(folder):
        for name, _ in record.files:
            for path in (step / name, partial_path(step / name)):
                with suppress(OSError):
                    held += 512 * path.lstat().st_blocks
    return held


def _scale(free: int, num_bytes: int) -> float:
    """Return a factor, of one digit, with which two checkpoints fit. `free` is above 0."""
    exact = free / (2.1 * num_bytes)
    digit = 10.0 ** -len(f"{1 / exact:.0f}") if exact < 1 else 1.0
    return max(1, int(exact / digit)) * digit
