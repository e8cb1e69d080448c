"""Where a dataset's files lie: in a folder or in a bucket. Its workers write, read and list them.

Names are below the data folder, and are listed by one pass that opens no file. An object is there
whole or not at all, and is made in memory. `work_through` has threads of every rank do the work.
"""

import contextlib
import ctypes
import dataclasses
import errno
import io
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from dlemu.config.model import access_of
from dlemu.datagen.assemble import Assembly, Content, piece_buffer
from dlemu.dataset.layout import Layout, Samples
from dlemu.errors import RunError
from dlemu.formats import format_of
from dlemu.host.processes import memory_bytes
from dlemu.ranks.world import World
from dlemu.storage.files import (
    PARTIAL,
    Write,
    create,
    direct_if_possible,
    open_regular,
    read_at,
    read_regular,
    replacing,
    sync_folder,
    writing,
)
from dlemu.storage.owned import OwnedFolder
from dlemu.storage.s3 import Access, ObjectPath
from dlemu.storage.s3.store import MissingError, Store, store_of
from dlemu.units import format_bytes, round_up

FILES_IN_FLIGHT = 4
"""Files that a rank works on at once: the drive is busy while the CPU computes, and syncs of small
files share the file system's commits. Each takes a MiB of memory, which must fit the CPU's cache:
with 8 a drive was hardly faster, and took a tenth more CPU time."""
_MEETING_SECONDS = 1.0


@dataclass(frozen=True)
class FileProgress:
    """How far all ranks together are."""

    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    seconds: float
    """Since the start. Files that were complete before are not counted."""


OnProgress = Callable[[FileProgress], None]


class Stopped(Exception):
    """Raised by what was told to stop in the middle of a file, which is then gone."""


class Worker(ABC):
    """Works on one file after another, in a thread of its own."""

    def __init__(self) -> None:
        self.files_done = self.bytes_done = 0
        self.stopped = False
        """Set by the main thread: something failed elsewhere, or all is done."""

    @abstractmethod
    def do(self, file: int) -> None:
        """Work on a file. An exception ends the work of all ranks."""


def work_through(
    files: Samples,
    workers: Sequence[Worker],
    *,
    num_bytes: int,
    world: World,
    on_progress: OnProgress | None = None,
    every: float = _MEETING_SECONDS,
) -> None:
    """Let this rank's workers do its share of `files`; return when all ranks are done.

    All ranks call it with the same files, of `num_bytes` bytes in total. They meet once a second
    (`every`): that is how progress is summed up, and how they learn that another rank failed.
    """
    start = time.perf_counter()
    left = iter(files[world.rank :: world.num_ranks])
    with ThreadPoolExecutor(len(workers)) as pool:
        futures = {pool.submit(_run, worker, left) for worker in workers}
        try:
            finished = False
            while not finished:
                done, pending = wait(futures, every, FIRST_EXCEPTION)
                for future in done:
                    future.result()  # raises the worker's exception
                files_done = sum(worker.files_done for worker in workers)
                bytes_done = sum(worker.bytes_done for worker in workers)
                states = world.all_gather((files_done, bytes_done, not pending))
                finished = all(state[2] for state in states)
                if on_progress is not None and world.rank == 0:
                    files_done, bytes_done, _ = map(sum, zip(*states, strict=True))
                    seconds = time.perf_counter() - start
                    on_progress(
                        FileProgress(files_done, len(files), bytes_done, num_bytes, seconds)
                    )
        finally:
            for worker in workers:
                worker.stopped = True


def _run(worker: Worker, left: Iterator[np.int64]) -> None:
    while not worker.stopped:
        file = next(left, None)  # atomic under the GIL, so threads may share the iterator
        if file is None:
            return
        worker.do(int(file))
        worker.files_done += 1


WORK = ".dlemu"
"""Subfolder for the plan and the journals of an unfinished dataset."""
PLAN = f"{WORK}/recipe.json"
_NUMBER = re.compile(r".*_(\d{1,19})_of_\d+\.", re.ASCII | re.DOTALL)
_LEFT_BEHIND = {"lost+found", "Thumbs.db", "desktop.ini"}

Layouts = Sequence[Layout]


def left_behind(name: str) -> bool:
    """Return whether a file is hidden, or a server's or desktop's: never read, nor in the way."""
    return name.startswith(".") or name in _LEFT_BEHIND


@dataclass(frozen=True)
class Listing:
    """What lies below `train/` and `index/` of a data folder; paths are below that folder."""

    found: tuple[NDArray[np.int64], ...]
    """For each layout the bytes of its files and of their indexes, int64 (1 + indexes, files);
    -1: missing."""
    partial: tuple[str, ...]
    """Temporary files of the layouts, left by an interrupted datagen."""
    left_behind: tuple[str, ...]
    """Files that are never read: see `left_behind`."""
    strays: tuple[str, ...]
    """All other files: they do not belong to the dataset."""


def sort_out(found: Iterable[tuple[str, os.DirEntry[str] | int]], layouts: Layouts) -> Listing:
    """Sort what was found: each path below the data folder, with its entry or its bytes."""
    sizes = [
        np.full((1 + len(layout.index_paths(0)), layout.num_files), -1, np.int64)
        for layout in layouts
    ]
    partial: list[str] = []
    ignored: list[str] = []
    strays: list[str] = []
    for below, entry in found:
        whole = below.removesuffix(PARTIAL)
        owner = _owner(whole, layouts)
        if owner is None:
            (ignored if left_behind(below.rpartition("/")[2]) else strays).append(below)
        elif whole != below:
            partial.append(below)
        else:
            number, place, file = owner
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile, or a broken link
                size = entry if isinstance(entry, int) else entry.stat().st_size
                sizes[number][place, file] = size
    return Listing(tuple(sizes), *(tuple(sorted(paths)) for paths in (partial, ignored, strays)))


def _owner(below: str, layouts: Layouts) -> tuple[int, int, int] | None:
    """Return the number of the layout that a path belongs to, its row in `found`, and its file."""
    match = _NUMBER.match(below)
    if match is None:
        return None
    file = int(match[1])
    for number, layout in enumerate(layouts):
        if file >= layout.num_files:
            continue
        if layout.path(file) == below:
            return number, 0, file
        indexes = layout.index_paths(file)
        if below in indexes:
            return number, 1 + indexes.index(below), file
    return None


def walk(folder: Path, tree: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all files in `folder/tree` with their paths below `folder`; none if it does not exist.

    An empty `tree` is the folder itself.

    Links to folders are followed: they may spread a dataset over several drives. Hidden folders
    (a file server's snapshots) and `lost+found` are skipped.
    """
    left = [tree]
    while left:
        below = left.pop()
        start = f"{below}/" if below else ""
        try:
            with os.scandir(folder / below) as entries:
                for entry in entries:
                    if not entry.is_dir():
                        yield start + entry.name, entry
                    elif not left_behind(entry.name):
                        left.append(start + entry.name)
        except FileNotFoundError:
            continue


_SHARE_OF_MEMORY = 4
"""Objects that are being written may take one part in so many of a host's memory."""
_TREES = ("train", "index/train")

Read = Callable[[memoryview, int], int]
"""`read(into, offset)` fills memory with a file's bytes; returns how many, 0 at the file's end."""


@dataclass(frozen=True)
class Folder:
    """A dataset's place on a file system. What `put` and `delete` did survives a power failure."""

    path: Path
    access: Access | None = None
    """Of a bucket."""

    def listing(self, *layouts: Layout) -> Listing:
        """Return what lies there."""
        return sort_out((each for tree in _TREES for each in walk(self.path, tree)), layouts)

    def writing(
        self, name: str, *, direct: bool, sync: bool = True
    ) -> AbstractContextManager[Write]:
        """Yield what writes a file, as `files.writing` does."""
        return writing(self.path / name, direct=direct, sync=sync)

    @contextmanager
    def reading(self, name: str) -> Iterator[Read]:
        """Yield what reads a file; past the page cache if possible: the drive is read."""
        number, _ = direct_if_possible(open_regular, self.path / name)
        try:
            yield partial(read_at, number)
        finally:
            os.close(number)

    def whole(self, name: str) -> bytes:
        """Return the content of a small file. Raises FileNotFoundError if there is none."""
        return read_regular(self.path / name)

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a file, whole or not at all; its folder is made if it is not there."""
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as partial, open(partial, "wb", opener=create) as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)

    def delete(self, *names: str) -> None:
        """Remove files; they may be missing."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)
        sync_folder(self.path)

    @contextmanager
    def journal(self, name: str) -> Iterator[Callable[[bytes], object]]:
        """Yield what appends an entry to a new journal, from any thread."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        number = os.open(self.path / WORK / name, flags, 0o666)
        try:
            yield partial(os.write, number)
        finally:
            os.close(number)

    def journals(self) -> list[str]:
        """Return the names of all journals."""
        return [f"{WORK}/{path.name}" for path in (self.path / WORK).glob("*.journal")]

    def opened(self, name: str) -> BinaryIO:
        """Return a file, open to be read."""
        return open(open_regular(self.path / name), "rb")

    def make(self, folders: Iterable[Path]) -> None:
        """Make folders and those above them."""
        for below in folders:
            (self.path / below).mkdir(parents=True, exist_ok=True)

    def sync(self, folders: Iterable[Path]) -> None:
        """Make the names in folders survive a power failure."""
        for below in folders:
            sync_folder(self.path / below)

    def settle(self) -> None:
        """Sync the whole file system, for files that were written without a sync."""
        number, libc = os.open(self.path, os.O_RDONLY), ctypes.CDLL(None, use_errno=True)
        try:
            if libc.syncfs(number):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            os.close(number)

    def forget(self) -> None:
        """Remove the plan and the journals."""
        mark = Path(PLAN).name
        OwnedFolder(self.path / WORK, mark, lambda name: name.endswith(".journal"), WORK).clean()

    @contextmanager
    def repairing(self, name: str) -> Iterator[None]:
        """Make the folder of a lost file; in the end its name is on the drive."""
        folder = (self.path / name).parent
        folder.mkdir(parents=True, exist_ok=True)
        yield
        sync_folder(folder)

    def of_workers(self, layout: Layout, world: World) -> list["Folder"]:
        """Return the place for each worker of this rank."""
        return [self] * FILES_IN_FLIGHT


@dataclass(frozen=True)
class Bucket(Folder):
    """A dataset's place in a bucket, where names need no folders, and what was put is there."""

    path: ObjectPath
    access: Access
    number: int = 0
    """Of the worker: endpoints are dealt out in turn."""
    memory: NDArray[np.uint8] = field(default_factory=lambda: np.empty(1 << 20, np.uint8))
    """For an object that is written."""

    def listing(self, *layouts: Layout) -> Listing:
        return sort_out((each for tree in _TREES for each in self.sizes(tree)), layouts)

    @contextmanager
    def writing(self, name: str, *, direct: bool, sync: bool = True) -> Iterator[Write]:
        end = 0

        def write(data: memoryview, offset: int, num_bytes: int) -> None:
            nonlocal end
            self.memory.data[offset : offset + num_bytes] = data[:num_bytes]
            end = max(end, offset + num_bytes)

        yield write
        self.store.put((self.path / name).key, self.memory[:end].data)

    @contextmanager
    def reading(self, name: str) -> Iterator[Read]:
        memory = self.store.get((self.path / name).key, 0, None).memory

        def read(into: memoryview, offset: int) -> int:
            part = memory[offset : offset + len(into)]
            into[: len(part)] = part
            return len(part)

        yield read

    def whole(self, name: str) -> bytes:
        try:
            return self.store.get_whole((self.path / name).key)
        except MissingError:
            missing = errno.ENOENT, os.strerror(errno.ENOENT)
            raise FileNotFoundError(*missing, str(self.path / name)) from None

    @contextmanager
    def repairing(self, name: str) -> Iterator[None]:
        yield

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        self.store.put((self.path / name).key, memoryview(b"".join(pieces)))

    def delete(self, *names: str) -> None:
        for name in names:
            self.store.delete((self.path / name).key)

    @contextmanager
    def journal(self, name: str) -> Iterator[Callable[[bytes], object]]:
        entries: list[bytes] = []
        yield entries.append
        self.put(f"{WORK}/{name}", entries)

    def journals(self) -> list[str]:
        return [name for name in self._work() if name.endswith(".journal")]

    def opened(self, name: str) -> BinaryIO:
        return io.BytesIO(self.whole(name))

    def make(self, folders: Iterable[Path]) -> None:
        pass

    sync = make

    def settle(self) -> None:
        pass

    def forget(self) -> None:
        self.delete(*self._work())

    def _work(self) -> list[str]:
        return [name for name, _ in self.sizes(WORK)]

    def sizes(self, below: str) -> Iterator[tuple[str, int]]:
        """Yield the name and the bytes of each object whose name begins with a folder's."""
        base = self.path.key
        start = len(base) + 1 if base else 0
        for key, size in self.store.sizes((self.path / below).key):
            yield key[start:], size

    def of_workers(self, layout: Layout, world: World) -> list[Folder]:
        largest = int(layout.all_sizes().max())
        room = memory_bytes() // _SHARE_OF_MEMORY // world.num_local_ranks
        if largest > room:
            raise RunError(
                f"an object of {format_bytes(largest)} is made in memory, of which a rank may take "
                f"{format_bytes(room)} here; use smaller files or fewer ranks on a host"
            )
        first = world.rank * FILES_IN_FLIGHT
        return [
            dataclasses.replace(self, number=first + each, memory=np.empty(largest, np.uint8))
            for each in range(min(FILES_IN_FLIGHT, room // largest))
        ]

    @property
    def store(self) -> Store:
        """How the worker reaches it."""
        return store_of(self.access, self.number, self.path.bucket)


def target_of(folder: Path, access: Access | None = None) -> Folder:
    """Return the place of a dataset; `access` is that of a bucket, else of the environment."""
    if isinstance(folder, ObjectPath):
        return Bucket(folder, access or access_of())
    return Folder(folder)


class FileMaker(Worker):
    """Makes the bytes of files, for the place where they are written or compared."""

    def __init__(self, target: Folder, layout: Layout, content: Content) -> None:
        super().__init__()
        self.target, self.layout = target, layout
        self._content, self._format = content, format_of(layout)
        self._buffer = piece_buffer()

    def names(self, file: int) -> tuple[str, ...]:
        """Return the names of a file and of its indexes."""
        layout = self.layout
        return layout.path(file), *layout.index_paths(file)

    def made(self, file: int, take: Write) -> int:
        """Make a file, and hand it to `take` in whole pages; return its CRC-32C."""

        def put(piece: NDArray[np.uint8], offset: int) -> None:
            if self.stopped:
                raise Stopped
            num_bytes = len(piece)
            padded = self._buffer[: round_up(num_bytes)]  # `piece` is the start of this buffer
            padded[num_bytes:] = 0
            take(padded.data, offset, num_bytes)
            self.bytes_done += num_bytes

        assembly = Assembly(self._content, self._buffer, put)
        self._format.write(assembly, self.layout.file_samples(file))
        _, crc = assembly.finish()
        return crc

    def write_indexes(self, file: int, *, sync: bool = True) -> None:
        """Write a file's indexes, if the format has some."""
        for name, index in zip(self.names(file)[1:], self.layout.indexes(file), strict=True):
            with self.target.writing(name, direct=False, sync=sync) as write:
                write(memoryview(index), 0, len(index))

    def write_file(self, file: int, *, wanted_crc: int | None = None) -> int:
        """Write a file and return its CRC-32C.

        Raises:
            ValueError: the CRC-32C is not the wanted one; the file is as it was before.
        """
        with self.target.writing(self.names(file)[0], direct=True) as write:
            crc = self.made(file, write)
            if wanted_crc not in (None, crc):
                raise ValueError(f"its checksum would be {crc}, not {wanted_crc}")
        return crc
