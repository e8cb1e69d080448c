"""Where files lie: a folder, a bucket, or a place of one's own, as one object.

A place is named by the first part of a URL: `s3://bucket/prefix`. Packages register places by an
entry point in the group `dlemu.places`; a user names a module of his own by its dotted path
(`my_place:PLACE://...`). A path without `://` is a `Folder` of a file system.

`Place` has what differs: how files are opened, listed, written and removed, whether the kernel has
a page cache for them, and who knows how many bytes were delivered. Four methods make a place. What
follows from them (requests in flight, a probe, a journal) is here, and is overridden where a place
does it better.
"""

import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import isabstract
from pathlib import Path, PosixPath
from time import perf_counter
from typing import IO, TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dlemu.errors import VERIFY, DatasetError, DlemuError, RunError, WorkloadError, in_short
from dlemu.plugins import Registry, UnknownPartError, is_url, named_place
from dlemu.storage.counted import Get, Got
from dlemu.storage.files import Write

if TYPE_CHECKING:
    import threading

    from dlemu.storage.extents import ExtentReader

_SMALL_BYTES = 1 << 20
_PROBE_BYTES = 8 << 20
"""Of one file that `write_rate` writes."""

Read = Callable[[memoryview, int], int]
"""`read(into, offset)` fills memory with a file's bytes; returns how many, 0 at the file's end.
Both are page-aligned, as O_DIRECT needs it."""


class MissingError(DatasetError):
    """There is no file of that name."""


@dataclass(frozen=True, kw_only=True)
class ReaderKeys:
    """How one worker reads: each place takes what it knows."""

    direct: bool = False
    """With O_DIRECT."""
    piece_bytes: int = 1 << 20
    """Bytes of a call."""
    io_depth: int = 1
    """Calls that are outstanding at most."""
    range_bytes: int | None = None
    """Bytes of a request; None: the place's own."""
    in_flight: int = 1
    """Requests that are outstanding at most."""
    whole: bool = False
    """Whether files are read from end to end; else by extents."""
    max_open: int = 8
    """Files that are kept open."""


class PlacePath(PosixPath):
    """The name of a file that no file system has, or the start of the names of many.

    It is a Path, so that what joins and shows paths needs to know nothing of places: `exists` and
    `is_dir` are always false.
    """

    scheme: ClassVar[str]
    """What stands before `://`: the name of the place."""

    def __str__(self) -> str:
        return f"{self.scheme}://{super().__str__()}"

    def __reduce__(self) -> tuple[Callable[..., Path], tuple[str]]:
        return path_of, (str(self),)

    def absolute(self) -> Self:
        return self

    def resolve(self, strict: bool = False) -> Self:
        return self


@dataclass(frozen=True)
class Place(ABC):
    """A folder of files in its place. Names of files are below it, with "/" between folders.

    Threads may share it. `at` gives each worker its own.
    """

    path: Path
    access: Any = None
    """What `reach` has returned on rank 0. It is never written or shown."""
    number: int = 0
    """Of the worker."""
    memory: NDArray[np.uint8] | None = field(default=None, repr=False, compare=False)
    """For a file that is written; None: it is allocated."""

    kind: ClassVar[str] = ""
    """What results show in place of a file system's type; "": the mount says it."""
    word: ClassVar[str] = "a place without paths"
    """What messages call it."""
    shape: ClassVar[str] = "FOLDER"
    """What stands behind `://`, for messages."""
    has_paths: ClassVar[bool] = False
    """Whether the kernel opens these files by name: libraries can, and they can be renamed."""
    has_page_cache: ClassVar[bool] = False
    """Whether the page cache of the host may hold the files' bytes."""
    takes_files: ClassVar[bool] = True
    """Whether files can be written there; else it is one file of fixed size that is only read."""
    survives_fork: ClassVar[bool] = False
    """Whether a forked process can go on to use what its parent has opened."""
    needs: ClassVar[tuple[str, str]] = ("", "")
    """An optional module that it imports, and what pip installs for it."""
    witness: ClassVar[Literal["kernel", "requests"]] = "requests"
    """Who knows how many bytes were delivered: the kernel's counters of drives, or the reader's
    `counts` of its own requests."""

    @abstractmethod
    def open(self, name: str) -> IO[bytes]:
        """Return a file, open to be read from any offset. Raises FileNotFoundError if missing."""

    @abstractmethod
    def list(self, below: str) -> Iterator[tuple[str, Any]]:
        """Yield name and bytes of all files in the folder `below`, and in those below it; "": all.

        In place of the bytes may stand an `os.DirEntry`, which is asked for them.
        """

    @abstractmethod
    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a file, whole or not at all, in place of one of that name."""

    @abstractmethod
    def delete(self, *names: str) -> None:
        """Remove files; they may be missing."""

    @classmethod
    def reach(cls, keys: Any = None) -> Any:
        """Return how it is reached, by the keys `storage.*` and the environment. On rank 0.

        Without `keys`, by the environment alone.

        Raises:
            WorkloadError: a value is missing or refused.
        """
        return None

    def at(self, number: int, memory: NDArray[np.uint8] | None = None) -> Self:
        """Return the same for a worker, with memory for the largest file that it writes."""
        return replace(self, number=number, memory=memory)

    def name_of(self, path: Path) -> str:
        """Return the name of a file below the folder, by its whole path."""
        return "/".join(path.parts[len(self.path.parts) :])

    @property
    def servers(self) -> tuple[str, ...]:
        """Servers by the names that results show; () if there are none, or they are not known."""
        return ()

    def is_there(self) -> bool:
        """Return whether the folder is there; where names need no folder, it always is."""
        return True

    def room(self) -> tuple[int, int] | None:
        """Return the bytes of what holds it, and how many are free; None: there is no bound."""
        return None

    def held(self, key: str, seconds: float) -> AbstractContextManager[None]:
        """Keep other writers of this host away; wait for them so long.

        Raises WorkloadError: another one holds it; `key` stands before its name.
        """
        return nullcontext()

    def whole(self, name: str) -> bytes:
        """Return the content of a small file. Raises FileNotFoundError if there is none."""
        with self.open(name) as file:
            return file.read()

    def get(
        self, name: str, start: int, stop: int | None, *, given_up: "threading.Event | None" = None
    ) -> Got:
        """Return the bytes from `start` to `stop` of a file; None: up to its end.

        When nobody wants the answer any more (`given_up`), it is not tried again.

        Raises:
            DatasetError: it is missing, or cannot be read.
            RunError: the place does not answer.
        """
        begin = perf_counter()
        try:
            with self.open(name) as file:
                num_bytes = file.seek(0, os.SEEK_END)
                file.seek(start)
                data = file.read(num_bytes if stop is None else stop - start)
        except FileNotFoundError:
            raise MissingError(f"{self.path / name} is missing", remedy=VERIFY) from None
        except DlemuError:
            raise
        except Exception as error:  # whatever a user's module raises
            why = f"{type(error).__name__}: {in_short(error)}"
            raise RunError(
                f"{self.path / name} cannot be read ({why})",
                remedy=f"python -m dlemu.contract {self.path} says what the place lacks",
            ) from error
        return Got(memoryview(data), num_bytes, perf_counter() - begin)

    def getter(self) -> Get:
        """Return what gets bytes of files by their whole paths."""
        start, get = len(f"{self.path}/"), self.get
        return lambda path, *extent, **given_up: get(path[start:], *extent, **given_up)

    def reader(self, keys: ReaderKeys) -> "ExtentReader":
        """Return what a worker reads with."""
        from dlemu.storage.objects import ObjectReader  # where it is read

        return ObjectReader(
            self.getter(),
            range_bytes=keys.range_bytes,
            in_flight=keys.in_flight,
            whole=keys.whole,
            max_open=keys.max_open,
        )

    def probe(
        self, names: Sequence[str], *, num_readers: int, seconds: float, once: bool = False
    ) -> float | None:
        """Return bytes per second that threads get from pieces of random files.

        None if nothing could be read. `once`: no piece is read twice, if that can be.
        """
        from dlemu.storage.objects import probe_objects

        paths = [str(self.path / name) for name in names]

        def get_of(number: int) -> Get:
            return self.at(number).getter()

        return probe_objects(get_of, paths, num_readers=num_readers, seconds=seconds)

    def write_rate(self, *, seconds: float) -> float:
        """Return bytes per second at which one thread writes; what it wrote is gone at the end.

        Raises:
            OSError, DlemuError: nothing can be written there.
        """
        name, data = f".dlemu-probe.{secrets.token_hex(4)}", secrets.token_bytes(_PROBE_BYTES)
        begin, done = perf_counter(), 0
        try:
            while not done or perf_counter() < begin + seconds:
                self.put(name, [data])
                done += len(data)
            return done / (perf_counter() - begin)
        finally:
            with suppress(OSError, DlemuError):
                self.delete(name)

    @contextmanager
    def reading(self, name: str) -> Iterator[Read]:
        """Yield what reads a file from its storage, past the page cache if possible."""
        with self.open(name) as file:

            def read(into: memoryview, offset: int) -> int:
                file.seek(offset)
                part = file.read(len(into))
                into[: len(part)] = part
                return len(part)

            yield read

    @contextmanager
    def writing(self, name: str, *, direct: bool, sync: bool = True) -> Iterator[Write]:
        """Yield what writes a file, which gets its name in the end. See `files.writing`."""
        memory = np.empty(_SMALL_BYTES, np.uint8) if self.memory is None else self.memory
        end = 0

        def write(data: memoryview, offset: int, num_bytes: int) -> None:
            nonlocal memory, end
            if offset + num_bytes > len(memory):
                memory = np.concatenate([memory, np.empty(offset + num_bytes, np.uint8)])
            memory.data[offset : offset + num_bytes] = data[:num_bytes]
            end = max(end, offset + num_bytes)

        yield write
        self.put(name, [memory[:end].data])  # type: ignore[list-item]

    def stream(
        self, name: str, pieces: Iterable[bytes], num_bytes: int, *, part_bytes: int, at_once: int
    ) -> None:
        """Write a large file of pieces that are made meanwhile; if they raise, there is none.

        A place that takes a file in parts sends `at_once` of them at a time.
        """
        self.put(name, pieces)

    @contextmanager
    def appending(self, name: str) -> Iterator[Callable[[bytes], object]]:
        """Yield what appends an entry to a new file, from any thread; it is whole in the end."""
        entries: list[bytes] = []
        yield entries.append
        self.put(name, entries)

    def make(self, folders: Iterable[Path]) -> None:  # noqa: B027
        """Make folders and those above them, if names need folders."""

    def sync(self, folders: Iterable[Path]) -> None:  # noqa: B027
        """Make the names in folders survive a power failure; what `put` wrote does."""

    def settle(self) -> None:  # noqa: B027
        """Sync files that were written without a sync."""

    def clear(self, below: str, mark: str, is_ours: Callable[[str], bool]) -> None:
        """Remove a folder of dlemu's own; `mark` and `is_ours` are those of an OwnedFolder."""
        self.delete(*(name for name, _ in self.list(below)))

    @contextmanager
    def repairing(self, name: str) -> Iterator[None]:
        """Make the folder of a lost file; in the end its name is on the drive."""
        yield


PLACES: Registry[type] = Registry(
    "dlemu.places",
    type,
    "PLACE",
    "python -m dlemu.contract says what it lacks",
    folder="dlemu.storage.folder:Folder",
    s3="dlemu.storage.s3.bucket:Bucket",
)
"""Places by name: what stands before `://`."""


def place_type(name: str) -> type[Place]:
    """Return the class of a place. Raises ValueError as `Registry` does."""
    found = PLACES[name]
    if not issubclass(found, Place) or isabstract(found):
        raise ValueError(
            f"={name} cannot be used: it must be a subclass of dlemu.storage.place.Place that "
            "defines open, list, put and delete"
        )
    return found


def path_of(text: str, key: str = "dataset.data_folder") -> Path:
    """Return the path that a text names, in its place; `key` is that of the text.

    Raises:
        WorkloadError: there is no such place, or it has no such path.
    """
    if not is_url(text):
        return Path(text)
    name = named_place(text)
    try:
        kind = place_type(name)
    except UnknownPartError:
        others = ", ".join(f"{each}://" for each in PLACES if each not in _LOCAL)
        raise WorkloadError(
            f"{key}={text}: places are folders, {others} and MODULE:PLACE:// of your own, got "
            f"{name}://; a server with another protocol may have a gateway for S3"
        ) from None
    except ValueError as error:
        raise WorkloadError(f"{key}{error}") from None
    if kind.has_paths:
        raise WorkloadError(f"{key}={text}: a folder is named by its path; leave {name}:// out")
    path = _path_type(name)(text.partition("://")[2].strip("/"))
    if not path.parts or ".." in path.parts:
        raise WorkloadError(f"{key}={text} must be {name}://{kind.shape}")
    return path


@cache
def _path_type(name: str) -> type[PlacePath]:
    return type("PlacePath", (PlacePath,), {"scheme": name})


_LOCAL = ("folder",)


def place_of(path: Path, access: Any = None) -> Place:
    """Return the place of a path; `access` is what its `reach` returned. Asks nobody."""
    name = path.scheme if isinstance(path, PlacePath) else "folder"
    return place_type(name)(path, access)
