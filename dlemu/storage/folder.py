"""Files of a file system, as a place: what `put` and `delete` did survives a power failure.

A block device is a place of one file that is only read. The keys ask what a folder is like, so its
module is in every command: what is read and written with is imported when it is.
"""

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar, Literal

from dlemu.errors import RunError, system_error
from dlemu.storage.files import (
    Write,
    create,
    direct_if_possible,
    open_regular,
    open_sized,
    read_at,
    read_regular,
    replacing,
    sync_folder,
    writing,
)
from dlemu.storage.place import Place, Read, ReaderKeys

if TYPE_CHECKING:
    from dlemu.storage.extents import ExtentReader

_LEFT_BEHIND = {"lost+found", "Thumbs.db", "desktop.ini"}


def left_behind(name: str) -> bool:
    """Return whether a file is hidden, or a server's or desktop's: never read, nor in the way."""
    return name.startswith(".") or name in _LEFT_BEHIND


def _leads_back(target: str, through: Sequence[str]) -> bool:
    """Return whether a link's target holds a folder whose links led here, by their real paths."""
    return any(f"{each}/".startswith(f"{target.rstrip('/')}/") for each in through)


class Folder(Place):
    """A folder of a file system."""

    word: ClassVar[str] = "a folder"
    has_paths: ClassVar[bool] = True
    has_page_cache: ClassVar[bool] = True
    survives_fork: ClassVar[bool] = True
    witness: ClassVar[Literal["kernel", "requests"]] = "kernel"

    def open(self, name: str) -> IO[bytes]:
        return open(open_regular(self.path / name), "rb")

    def list(self, below: str) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
        """Yield files as `Place.list` does.

        Links to folders are followed: they may spread a dataset over several drives. Not those that
        lead back to where they were found. Hidden folders (a file server's snapshots) and
        `lost+found` are skipped.
        """
        left: list[tuple[str, tuple[str, ...]]] = [(below, ())]
        while left:
            folder, through = left.pop()
            above = f"{folder}/" if folder else ""
            try:
                with os.scandir(self.path / folder) as entries:
                    for entry in entries:
                        if not entry.is_dir():
                            yield f"{above}{entry.name}", entry
                        elif not left_behind(entry.name):
                            behind = through
                            if entry.is_symlink():
                                behind = (*through, os.path.realpath(self.path / folder))
                                if _leads_back(os.path.realpath(entry.path), behind):
                                    continue
                            left.append((f"{above}{entry.name}", behind))
            except FileNotFoundError:
                continue

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write as `Place.put` does; the folder of the file is made if it is not there."""
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as partial_file, open(partial_file, "wb", opener=create) as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)

    def delete(self, *names: str) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)
        sync_folder(self.path)

    def is_there(self) -> bool:
        return self.path.is_dir()

    def room(self) -> tuple[int, int]:
        from dlemu.storage.owned import disk_bytes

        return disk_bytes(self.path)

    def held(self, key: str, seconds: float) -> AbstractContextManager[None]:
        from dlemu.storage.owned import held

        return held(self.path, key=key, seconds=seconds)

    def whole(self, name: str) -> bytes:
        return read_regular(self.path / name)

    def reader(self, keys: ReaderKeys) -> "ExtentReader":
        from dlemu.storage.extents import extent_reader

        return extent_reader(
            direct=keys.direct,
            piece_bytes=keys.piece_bytes,
            io_depth=keys.io_depth,
            max_open=keys.max_open,
        )

    def probe(
        self, names: Sequence[str], *, num_readers: int, seconds: float, once: bool = False
    ) -> float | None:
        from dlemu.storage.probe import probe_rate

        paths = [self.path / name for name in names]
        return probe_rate(paths, num_readers=num_readers, seconds=seconds, once=once)

    def write_rate(self, *, seconds: float) -> float:
        from dlemu.storage.probe import probe_writing

        return probe_writing(self.path, seconds=seconds)

    @contextmanager
    def reading(self, name: str) -> Iterator[Read]:
        number, _ = direct_if_possible(open_regular, self.path / name)
        try:
            yield partial(read_at, number)
        finally:
            os.close(number)

    @contextmanager
    def writing(self, name: str, *, direct: bool, sync: bool = True) -> Iterator[Write]:
        with writing(self.path / name, direct=direct, sync=sync) as write:
            yield write

    @contextmanager
    def appending(self, name: str) -> Iterator[Callable[[bytes], object]]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        number = os.open(self.path / name, flags, 0o666)
        try:
            yield partial(os.write, number)
        finally:
            os.close(number)

    def make(self, folders: Iterable[Path]) -> None:
        for below in folders:
            (self.path / below).mkdir(parents=True, exist_ok=True)

    def sync(self, folders: Iterable[Path]) -> None:
        for below in folders:
            sync_folder(self.path / below)

    def settle(self) -> None:
        """Sync the whole file system."""
        number, libc = os.open(self.path, os.O_RDONLY), ctypes.CDLL(None, use_errno=True)
        try:
            if libc.syncfs(number):
                raise system_error(ctypes.get_errno(), self.path)
        finally:
            os.close(number)

    def clear(self, below: str, mark: str, is_ours: Callable[[str], bool]) -> None:
        from dlemu.storage.owned import OwnedFolder

        OwnedFolder(self.path / below, mark, is_ours, below).clean()

    @contextmanager
    def repairing(self, name: str) -> Iterator[None]:
        folder = (self.path / name).parent
        folder.mkdir(parents=True, exist_ok=True)
        yield
        sync_folder(folder)


class DevicePlace(Folder):
    """A block device: one file of its whole size, which is read and never written."""

    kind: ClassVar[str] = "block device"
    word: ClassVar[str] = "a block device"
    takes_files: ClassVar[bool] = False

    def open(self, name: str) -> IO[bytes]:
        return open(open_sized(self.path, device=True)[0], "rb")

    def list(self, below: str) -> Iterator[tuple[str, int]]:  # type: ignore[override]
        yield self.path.name, self.num_bytes

    @property
    def num_bytes(self) -> int:
        """Its size."""
        number, num_bytes = open_sized(self.path, direct=True, device=True)
        os.close(number)
        return num_bytes

    def is_there(self) -> bool:
        return self.path.is_block_device()

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        raise RunError(f"{self.path} is a block device, which is only read")

    def delete(self, *names: str) -> None:
        raise RunError(f"{self.path} is a block device, which is only read")


def local_place(path: Path) -> Folder:
    """Return the place of a folder or a block device; it is looked at."""
    return DevicePlace(path) if path.is_block_device() else Folder(path)
