"""A dataset's files in their place: what is there, and the workers that write and read them.

Names are below the data folder, and are listed by one pass that opens no file. What has no path is
there whole or not at all, and is made in memory. `work_through` has threads of every rank do the
work.
"""

import contextlib
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlemu.datagen.assemble import Assembly, Content, piece_buffer
from dlemu.dataset.layout import Layout, Samples
from dlemu.errors import RunError
from dlemu.formats import format_of
from dlemu.host.processes import memory_bytes
from dlemu.ranks.world import World
from dlemu.storage.files import PARTIAL, Write
from dlemu.storage.folder import left_behind
from dlemu.storage.place import Place
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

Layouts = Sequence[Layout]


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


_SHARE_OF_MEMORY = 4
"""Objects that are being written may take one part in so many of a host's memory."""
_TREES = ("train", "index/train")


def listing_of(place: Place, *layouts: Layout) -> Listing:
    """Return what lies in a data folder."""
    return sort_out((each for tree in _TREES for each in place.list(tree)), layouts)


def journals(place: Place) -> list[str]:
    """Return the names of all journals."""
    return [name for name, _ in place.list(WORK) if name.endswith(".journal")]


def forget(place: Place) -> None:
    """Remove the plan and the journals."""
    place.clear(WORK, Path(PLAN).name, lambda name: name.endswith(".journal"))


def places_of_workers(place: Place, layout: Layout, world: World) -> list[Place]:
    """Return the place for each worker of this rank."""
    if place.has_paths:
        return [place] * FILES_IN_FLIGHT
    largest = int(layout.all_sizes().max())
    room = memory_bytes() // _SHARE_OF_MEMORY // world.num_local_ranks
    if largest > room:
        raise RunError(
            f"an object of {format_bytes(largest)} is made in memory, of which a rank may take "
            f"{format_bytes(room)} here; use smaller files or fewer ranks on a host"
        )
    first = world.rank * FILES_IN_FLIGHT
    return [
        place.at(first + each, np.empty(largest, np.uint8))
        for each in range(min(FILES_IN_FLIGHT, room // largest))
    ]


class FileMaker(Worker):
    """Makes the bytes of files, for the place where they are written or compared."""

    def __init__(self, target: Place, layout: Layout, content: Content) -> None:
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
