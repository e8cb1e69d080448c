"""Where a dataset's files lie: in a folder or in a bucket. Its workers write, read and list them.

Names are below the data folder. An object is there whole or not at all, and is made in memory.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlemu.datagen.assemble import Assembly, piece_buffer
from dlemu.datagen.content import Content
from dlemu.datagen.listing import Listing, sort_out, walk
from dlemu.datagen.recipe import Recipe
from dlemu.datagen.work import FILES_IN_FLIGHT, Stopped, Worker
from dlemu.dataset.layout import Layout
from dlemu.errors import RunError
from dlemu.formats import format_of
from dlemu.host.processes import memory_bytes
from dlemu.ranks.world import World
from dlemu.storage.atomic import Write, sync_folder, writing
from dlemu.storage.regular import direct_if_possible, open_regular, read_regular
from dlemu.storage.s3.location import Access, ObjectPath
from dlemu.storage.s3.store import Store, store_of
from dlemu.units import format_bytes, round_up

_SHARE_OF_MEMORY = 4
"""Objects that are being written may take one part in so many of a host's memory."""
_TREES = ("train", "index/train")

Read = Callable[[memoryview, int], int]
"""`read(into, offset)` fills memory with a file's bytes; returns how many, 0 at the file's end."""


@dataclass(frozen=True)
class Folder:
    """A dataset's place on a file system."""

    path: Path

    def listing(self, *layouts: Layout) -> Listing:
        """Return what lies there."""
        return sort_out((each for tree in _TREES for each in walk(self.path, tree)), layouts)

    def writing(
        self, name: str, *, direct: bool, sync: bool = True
    ) -> AbstractContextManager[Write]:
        """Yield what writes a file, as `atomic.writing` does."""
        return writing(self.path / name, direct=direct, sync=sync)

    @contextmanager
    def reading(self, name: str) -> Iterator[Read]:
        """Yield what reads a file; past the page cache if possible: the drive is read."""
        number, _ = direct_if_possible(open_regular, self.path / name)
        try:
            yield lambda into, offset: os.preadv(number, [into], offset)
        finally:
            os.close(number)

    def whole(self, name: str) -> bytes:
        """Return the content of a small file."""
        return read_regular(self.path / name)

    @contextmanager
    def repairing(self, name: str) -> Iterator[None]:
        """Make the folder of a lost file; in the end its name is on the drive."""
        folder = (self.path / name).parent
        folder.mkdir(parents=True, exist_ok=True)
        yield
        sync_folder(folder)

    def of_workers(self, recipe: Recipe, world: World) -> list["Folder"]:
        """Return the place for each worker of this rank."""
        return [self] * FILES_IN_FLIGHT


@dataclass(frozen=True)
class Bucket:
    """A dataset's place in a bucket, how it is reached, and memory for an object."""

    path: ObjectPath
    access: Access
    number: int = 0
    """Of the worker: endpoints are dealt out in turn."""
    memory: NDArray[np.uint8] = field(default_factory=lambda: np.empty(1 << 20, np.uint8))

    def listing(self, *layouts: Layout) -> Listing:
        """Return what lies there."""
        base = self.path.key
        start = len(base) + 1 if base else 0
        found = (
            (key[start:], size)
            for tree in _TREES
            for key, size in self._store.sizes((self.path / tree).key)
        )
        return sort_out(found, layouts)

    @contextmanager
    def writing(self, name: str, *, direct: bool, sync: bool = True) -> Iterator[Write]:
        """Yield what writes an object, which is put in the end."""
        end = 0

        def write(data: memoryview, offset: int, num_bytes: int) -> None:
            nonlocal end
            self.memory.data[offset : offset + num_bytes] = data[:num_bytes]
            end = max(end, offset + num_bytes)

        yield write
        self.put(name, self.memory[:end].data)

    @contextmanager
    def reading(self, name: str) -> Iterator[Read]:
        """Yield what reads an object, which is in memory."""
        memory = self._store.get((self.path / name).key, 0, None).memory

        def read(into: memoryview, offset: int) -> int:
            part = memory[offset : offset + len(into)]
            into[: len(part)] = part
            return len(part)

        yield read

    def whole(self, name: str) -> bytes:
        """Return the content of an object."""
        return self._store.get_whole((self.path / name).key)

    def repairing(self, name: str) -> AbstractContextManager[None]:
        """Do nothing: an object needs no folder."""
        return nullcontext()

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Write an object."""
        self._store.put((self.path / name).key, memoryview(data))

    def delete(self, name: str) -> None:
        """Remove an object; it may be missing."""
        self._store.delete((self.path / name).key)

    def of_workers(self, recipe: Recipe, world: World) -> list["Bucket"]:
        """Return the place for each worker of this rank: as many as there is memory for."""
        largest = int(recipe.layout.all_sizes().max())
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
    def _store(self) -> Store:
        return store_of(self.access, self.number, self.path.bucket)


Target = Folder | Bucket


class FileMaker(Worker):
    """Makes the bytes of files, for the place where they are written or compared."""

    def __init__(self, target: Target, recipe: Recipe, content: Content) -> None:
        super().__init__()
        self.target, self.recipe = target, recipe
        self._content, self._format = content, format_of(recipe.layout)
        self._buffer = piece_buffer()

    def names(self, file: int) -> tuple[str, ...]:
        """Return the names of a file and of its indexes."""
        layout = self.recipe.layout
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
        self._format.write(assembly, self.recipe.file_samples(file))
        _, crc = assembly.finish()
        return crc

    def write_indexes(self, file: int, *, sync: bool = True) -> None:
        """Write a file's indexes, if the format has some."""
        for name, index in zip(self.names(file)[1:], self.recipe.indexes(file), strict=True):
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
