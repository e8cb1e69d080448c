"""Folders and files that dlemu makes: held by one command at a time, marked, and cleaned.

held         a folder that one command uses until it ends
OwnedFolder  such a folder with a mark, which says what dlemu has put there and may remove
OwnedPlace   the same in a bucket, or another place without paths
scratch      files that go at any end
direct       whether files in a folder are written with O_DIRECT
room         refuses what a drive has no room for
disk_bytes   how large a drive is, and how much of it is free
"""

import errno
import fcntl
import json
import os
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlemu.errors import (
    DAMAGE,
    DlemuError,
    RunError,
    WorkloadError,
    in_short,
    reason_of,
    system_error,
)
from dlemu.findings import Finding, Tell, note
from dlemu.ranks.ending import last_act
from dlemu.storage.files import NO_DIRECT, PARTIAL, create, read_regular, write_atomically
from dlemu.units import format_bytes

if TYPE_CHECKING:
    from dlemu.storage.place import Place

_POLL_SECONDS = 0.05


@contextmanager
def locked(folder: Path, *, seconds: float = 0.0) -> Iterator[None]:
    """Lock a folder; in the end it is unlocked, also for child processes.

    Where the file system has no locks, nothing is locked.

    Raises:
        BlockingIOError: another process holds the lock, and still does after `seconds`.
        OSError: the folder cannot be opened, or was renamed or removed meanwhile.
    """
    end = time.monotonic() + seconds
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        while not _try_lock(descriptor):
            if time.monotonic() >= end:
                raise system_error(errno.EWOULDBLOCK, folder)
            time.sleep(_POLL_SECONDS)
        if not os.path.samestat(os.fstat(descriptor), os.stat(folder)):
            raise system_error(errno.ESTALE, folder)
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Lock an open folder; return False if another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a network file system without locks
    return True


_TRIES = 20
"""A folder may vanish while it is being locked: another command removes the empty ones it made."""
_OF_THE_SYSTEM = "lost+found"


@contextmanager
def made(folder: Path, *, new: bool = False) -> Iterator[None]:
    """Make a folder and those above it; in the end those are removed that stayed empty.

    Raises:
        OSError: it cannot be made; with `new` also where it is there.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    own: list[Path] = []  # another command may be faster, and what it has made is its own
    try:
        for path in reversed(missing):
            try:
                path.mkdir()
                own.append(path)
            except FileExistsError:
                if not path.is_dir() or (new and path == folder):
                    raise
        if folder not in missing:
            folder.mkdir(exist_ok=not new)
        yield
    finally:
        with suppress(OSError):  # it holds something, or is gone
            for path in reversed(own):
                path.rmdir()


@contextmanager
def held(folder: Path, *, key: str = "", seconds: float = 0.0, new: bool = False) -> Iterator[None]:
    """Make a folder as `made` does, and keep every other process of this host from holding it.

    The lock is the kernel's, on the folder itself: it needs no file, and ends with this process and
    its children.

    Raises:
        WorkloadError: another process holds it, also after `seconds`; `key` stands before its name.
        OSError: it cannot be made; with `new` also where it is there.
    """
    with ExitStack() as stack:
        for left in reversed(range(_TRIES)):
            attempt = ExitStack()
            try:
                attempt.enter_context(made(folder, new=new))
                stack.enter_context(locked(folder, seconds=seconds))
            except BlockingIOError:
                attempt.close()
                raise WorkloadError(
                    f"{key} {folder} is in use by another dlemu".lstrip(),
                    remedy="wait for its end, or name another",
                ) from None
            except OSError:
                attempt.close()
                if not left or (new and os.path.lexists(folder)):
                    raise
            else:
                stack.push(attempt)  # a folder that is removed is still locked
                break
        yield


@dataclass(frozen=True)
class OwnedFolder:
    """A folder in which dlemu writes and removes files, and which a mark makes its own."""

    path: Path
    mark: str
    """Name of the mark: a JSON file in the folder."""
    is_ours: Callable[[str], bool]
    """Whether dlemu makes what has this path below the folder; a folder's path ends with "/"."""
    key: str
    """What messages call it: "cache.folder"."""
    is_named: bool = True
    """Whether a user named it. A symbolic link is followed then, and refused else."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make and hold it. Raises WorkloadError: it is in use, or cannot be made."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self._hold(key=self.key))
            except OSError as error:
                raise self._unusable(error) from None
            yield

    def _hold(self, key: str = "") -> AbstractContextManager[None]:
        return held(self.path, key=key)

    def fields(self) -> dict[str, Any] | None:
        """Return what the mark says; None: there is none.

        Raises:
            RunError: it is damaged, so nothing tells what may be removed.
        """
        path = self.path / self.mark
        try:
            return dict(json.loads(self._read(self.mark)))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except DAMAGE as error:
            raise RunError(
                f"{path} is damaged ({in_short(error)})",
                remedy=f"name another {self.key}, or remove this one",
            ) from None

    def write(self, fields: Mapping[str, Any]) -> None:
        """Write the mark, whole or not at all. Raises OSError."""
        self._write(self.mark, json.dumps(fields, indent=1).encode())

    def _read(self, name: str) -> bytes:
        return read_regular(self.path / name, error=RunError)

    def _write(self, name: str, data: bytes) -> None:
        write_atomically(self.path / name, data)

    def _delete(self, name: str) -> None:
        (os.rmdir if name.endswith("/") else os.unlink)(self.path / name)

    def entries(self) -> list[str]:
        """Return the paths below the folder of what dlemu has made there, in order.

        Without a mark nothing is dlemu's.

        Raises:
            WorkloadError: something else is there, the folder is a link that nobody named, or it
                cannot be read; the line names it.
        """
        found = sorted(self._below())
        own = {f"{self.mark}{suffix}" for suffix in ("", PARTIAL)}
        is_marked = self.mark in found
        for name in found:
            if not (name in own or (is_marked and self._is_ours(name))):
                raise WorkloadError(
                    f"{self.key} {self.path} holds {name.rstrip('/')}, which dlemu has not written",
                    remedy="name another folder",
                )
        return [name for name in found if name not in own]

    def clean(self) -> None:
        """Remove what is dlemu's in it, and the folder if nothing else is there.

        The mark goes last, so that the next command knows what is left if this one is killed.
        """
        self.remove()
        self.forget()
        with suppress(OSError):
            os.rmdir(self.path)

    def remove(self, start: str = "") -> None:
        """Remove what is dlemu's in it, or in its folder `start` ("a/") and that as well."""
        for name in filter(None, (*self._below(start), start)):
            whole = name.removesuffix(PARTIAL)
            # The temporary name first: a thread that is being stopped may just give the final one.
            for each in (f"{whole}{PARTIAL}", whole) if self._is_ours(name) else ():
                with suppress(OSError):  # a folder with something foreign, or it is gone
                    self._delete(each)

    def folders(self) -> list[str]:
        """Return the names of all folders in it, also of foreign ones. Raises as `entries` does."""
        return sorted({name.partition("/")[0] for name in self._below() if "/" in name})

    def discard(self, name: str, tell: Tell) -> None:
        """Remove a folder in it that a command which was stopped has left, and say so."""
        tell(note("left_of_stopped", folder=str(self.path / name)))
        self.remove(f"{name}/")

    def forget(self) -> None:
        """Remove the mark, if nothing else is left."""
        with suppress(OSError, DlemuError):
            if {*self._below()} <= {self.mark}:
                self._delete(self.mark)

    @contextmanager
    def passing(
        self, fields: Mapping[str, Any], tell: Tell, *, keep: bool = False
    ) -> Iterator[None]:
        """Hold and mark it; at any end it is cleaned, unless `keep`.

        `tell` is called where the process ends and files stay: removing them takes too long, or is
        not possible.

        Raises:
            WorkloadError: another process holds it, or what has its name is somebody else's.
            OSError: it cannot be made or written.
        """
        with ExitStack() as stack:
            stack.enter_context(self._hold())
            if self.path.is_symlink() or self.fields() is None:
                self.entries()  # refuses what is there
            self.write(fields)
            if not keep:
                # The last act ends after the removal: an interrupted removal is then done again.
                late = partial(tell, self._left)
                stack.enter_context(last_act(lambda error: self._clean_at_last(tell), late=late))
                stack.callback(self.clean)
            yield

    def _clean_at_last(self, tell: Tell) -> None:
        self.clean()
        if self._stays():
            tell(self._left)

    def _stays(self) -> bool:
        """Return whether something is left of it."""
        return self.path.exists()

    @property
    def _left(self) -> Finding:
        """What is said where time is up, or a file cannot be removed; asks nothing of storage."""
        return note("files_left", folder=str(self.path), command=_removal_of(self.path))

    def _is_ours(self, name: str) -> bool:
        return self.is_ours(name) or self.is_ours(name.removesuffix(PARTIAL))

    def _below(self, start: str = "") -> Iterator[str]:
        """Yield all paths below the folder, a folder behind what is in it. Links are not followed.

        Raises WorkloadError as `entries` does.
        """
        if not (start or self.is_named) and self.path.is_symlink():
            raise WorkloadError(f"{self.path} is a symbolic link, not made by dlemu; rename it")
        try:
            with os.scandir(self.path / start) as entries:
                there = list(entries)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unusable(error) from None
        for entry in there:
            if not entry.is_dir(follow_symlinks=False):
                yield f"{start}{entry.name}"
            elif start or entry.name != _OF_THE_SYSTEM:
                yield from self._below(f"{start}{entry.name}/")
                yield f"{start}{entry.name}/"

    def _unusable(self, error: OSError) -> WorkloadError:
        what = f"{self.key} {self.path}"
        return WorkloadError.of_system(error, what, "cannot be used", "name another")


@dataclass(frozen=True)
class OwnedPlace(OwnedFolder):
    """The same where names need no folders: nothing keeps another command away."""

    place: "Place" = field(kw_only=True)

    def _hold(self, key: str = "") -> AbstractContextManager[None]:
        return nullcontext()

    def _read(self, name: str) -> bytes:
        return self.place.whole(name)

    def _write(self, name: str, data: bytes) -> None:
        self.place.put(name, [data])

    def _delete(self, name: str) -> None:
        if not name.endswith("/"):
            self.place.delete(name)

    def _below(self, start: str = "") -> Iterator[str]:
        # What is removed meanwhile is not to be met in the middle of a list.
        return iter([name for name, _ in self.place.list(start.rstrip("/"))])

    def _stays(self) -> bool:
        return bool([*self._below()])

    @property
    def _left(self) -> Finding:
        return note("files_left", folder=str(self.path), command=None)


def _removal_of(path: Path) -> str:
    return f"rm -r {shlex.quote(str(path))}"


@contextmanager
def scratch(folder: Path, files: Sequence[str]) -> Iterator[None]:
    """Keep these files in a folder until the end, whatever ends it: they are gone then.

    What a killed process left of them goes first. A slow drive may hold the removal of a file that
    is being written for longer than an interrupted process waits: then another one removes them.

    Raises:
        OSError: a file that is there cannot be removed.
    """

    def remove(error: BaseException | None = None) -> None:
        for name in files:
            with suppress(FileNotFoundError):
                os.unlink(folder / name)

    def remove_later() -> None:
        import subprocess  # slow, and hardly ever needed

        paths = [os.path.abspath(folder / name) for name in files]
        none = subprocess.DEVNULL
        with suppress(OSError):
            subprocess.Popen(
                ["rm", "-f", "--", *paths],
                stdin=none,
                stdout=none,
                stderr=none,
                start_new_session=True,  # no signal for the group of this process reaches it
            )

    remove()
    try:
        with last_act(remove, late=remove_later):
            yield
    finally:
        remove()


def direct(folder: Path) -> bool:
    """Return whether files in a folder are opened with O_DIRECT: one is made there for a moment.

    Raises:
        OSError: the folder cannot be written.
    """
    path = folder / f".dlemu-odirect.{secrets.token_hex(4)}"  # ranks may share the folder
    try:
        os.close(create(path, direct=True))
    except OSError as error:
        if error.errno not in NO_DIRECT:
            raise
        return False
    finally:
        with suppress(OSError):
            os.unlink(path)
    return True


def _there(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that is there."""
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())


def why_full(folder: Path, error: OSError) -> str:
    """Return "is full (...)" for a folder that took no more; it says so if files are all it lacks.

    A file system may have room for bytes, and none for the names of further files (inodes).
    """
    with suppress(OSError):
        entries = os.statvfs(_there(folder))
        if entries.f_files and not entries.f_favail:
            return f"has no room for another file: its {entries.f_files:,} inodes are taken (df -i)"
    return f"is full ({reason_of(error)})"


def disk_bytes(folder: Path) -> tuple[int, int]:
    """Return the bytes of a folder's drive and how many are free. It need not be there yet."""
    there = _there(folder)
    total, _, free = shutil.disk_usage(there)
    return total, free


def room(
    folder: Path,
    num_bytes: float,
    remedy: str,
    *,
    what: str,
    held_bytes: int = 0,
    num_files: int = 0,
    error: type[DlemuError] = RunError,
) -> None:
    """Refuse files of `num_bytes` together if there is no room for them in a folder.

    `what`: what they are. `num_files`: of those that are new, each of which takes an inode.
    `held_bytes`: of files that will be removed before. The folder need not be there. `remedy` ends
    the line.

    Raises:
        DlemuError: there is too little room; the type is `error`.
    """
    there = _there(folder)
    entries = os.statvfs(there)
    if entries.f_files and num_files > entries.f_favail:  # some count none, as btrfs
        raise error(
            f"{folder} has room for {entries.f_favail:,} files (inodes), too little for {what}",
            remedy=f"use fewer files, or a file system with more inodes: df -i {there}",
        )
    free = disk_bytes(folder)[1] + held_bytes
    if num_bytes > free:
        raise error(
            f"{folder} has {format_bytes(free)} free, too little for {what}, "
            f"{format_bytes(num_bytes)}",
            remedy=remedy,
        )
