"""How a worker opens files through a cache: it executes what `tier.hits` has planned.

A hit opens the copy in the cache. A miss that is admitted reads the file whole from the origin into
memory; training gets it from there, and it is written to the cache. Other misses open the origin's
file itself.
"""

import mmap
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from queue import Full, Queue
from time import perf_counter

from dlemu.config.model import Workload
from dlemu.dataset.layout import Dataset
from dlemu.loaders.cache import shared_memory as columns
from dlemu.loaders.cache.folder import entry_path, write_entry
from dlemu.loaders.cache.shared_memory import FILLED, READ, State
from dlemu.storage.extents import ExtentReader, extent_reader
from dlemu.storage.regular import cannot_open, open_sized
from dlemu.units import round_up

_MOST_WAITING = 2
"""Files in memory that wait to be written; then the reader waits for the cache's drive."""
_LOOK_SECONDS = 0.2


@dataclass(slots=True)
class Fetched:
    """A file of the origin, whole, in memory."""

    descriptor: int
    memory: memoryview
    """Its bytes, up to a whole page."""
    num_bytes: int

    def close(self) -> None:
        """Give the memory back."""
        owner = self.memory.obj
        self.memory.release()
        if isinstance(owner, mmap.mmap):
            with suppress(BufferError):  # else with the last view of it
                owner.close()
        os.close(self.descriptor)


class Origin:
    """Reads whole files from the data folder, as slowly as origin.* says."""

    def __init__(self, workload: Workload, state: State, *, direct: bool) -> None:
        reader, origin = workload.reader, workload.origin
        self._direct, self._state = direct, state
        self._rate, self._latency = origin.read_bandwidth, origin.latency
        self._storage: ExtentReader = extent_reader(
            direct=direct, piece_bytes=int(reader.piece_bytes), io_depth=reader.io_depth
        )

    def fetch(self, path: str) -> Fetched:
        """Read a file into memory. Raises DatasetError as `ExtentReader` does."""
        file = self._storage.open(path)
        try:
            fetched = _memory(file.num_bytes)
            self.pretend(file.num_bytes)
            self._storage.read(file, 0, [fetched.memory[: file.num_bytes]])
            forget(file.descriptor, direct=self._direct)
        finally:
            self._storage.close_file(file)
        return fetched

    def pretend(self, num_bytes: int) -> None:
        """Sleep as long as an emulated origin takes; nothing where none is emulated."""
        if self._rate is None and not self._latency:
            return
        ends = time.monotonic()
        if self._rate is not None:
            ends = self._state.reserve(num_bytes / self._rate)
        time.sleep(max(0.0, ends + self._latency - time.monotonic()))

    def close(self) -> None:
        """End the reader's helper threads."""
        self._storage.close()


class TierReader:
    """Opens files for one worker. Not thread-safe; it has a thread of its own that writes."""

    def __init__(self, dataset: Dataset, *, row: int, direct: bool) -> None:
        """`row`: of this worker in `State.counters`. `direct`: whether O_DIRECT is used."""
        workload = dataset.workload
        self._folder = workload.cache.folder or ""
        self._waits = workload.cache.fill == "sync"
        self._direct = direct
        self._samples_per_file = dataset.layout.samples_per_file
        self._state = State(dataset.cache_state)
        self._row = row
        self._counts = self._state.counters[row].data
        self._origin = Origin(workload, self._state, direct=direct)
        self._queue: Queue[tuple[int, int, Fetched] | None] = Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._kind, self._size = columns.ORIGIN_BYTES, 0  # of the file that is open
        self.seconds = 0.0
        """Spent in `open`: reading the origin, waiting, and writing where fills are awaited."""

    def start_epoch(self) -> None:
        """Take up the plan of the epoch."""
        self._state.start_epoch()
        self._counts = self._state.counters[self._row].data

    def open(self, visit: int, number: int, path: str) -> tuple[int, int]:
        """Open a file of the dataset; return a descriptor for reading, and its size in bytes.

        Raises:
            DatasetError: the origin's file is missing or cannot be read.
            RunError: a file could not be written to the cache.
        """
        begin = perf_counter()
        self._state.check()
        found = None
        if self._state.held[visit] >= 0:
            found = self._open_held(visit, number)
        elif self._state.admitted[visit] >= 0:
            found = self._admit(visit, number, path)
        descriptor, self._size = found or self._open_origin(visit, path)
        self.seconds += perf_counter() - begin
        return descriptor, self._size

    def close(self, visit: int, descriptor: int, num_samples: int, num_bytes: int) -> None:
        """Note that a visit ends, of which so many samples and bytes were read.

        The caller closes the descriptor.
        """
        counts = self._counts
        asked = self._size * num_samples // self._samples_per_file
        counts[columns.VISITS] += 1
        counts[columns.ASKED_BYTES] += asked
        if self._kind == columns.CACHE_BYTES:
            counts[columns.HITS] += 1
            counts[columns.HIT_BYTES] += asked
        if self._kind >= 0:
            counts[self._kind] += num_bytes
            forget(descriptor, direct=self._direct)
        self._state.mark(visit, READ)

    def num_samples(self, visit: int) -> int:
        """Return how many samples are read in a visit."""
        return self._state.num_samples(visit)

    def end(self) -> None:
        """End the writing thread."""
        if self._thread is not None:
            with suppress(Full):
                self._queue.put(None, timeout=_LOOK_SECONDS)
        self._origin.close()
        self._state.close()

    def _open_held(self, visit: int, number: int) -> tuple[int, int] | None:
        """Open the copy in the cache; None: somebody has removed it."""
        state = self._state
        if (after := state.after[visit]) >= 0:
            state.wait(after, FILLED)
        path = entry_path(self._folder, number, state.held[visit])
        try:
            found = open_sized(path, direct=self._direct)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise cannot_open(path, error) from None
        self._kind = columns.CACHE_BYTES
        return found

    def _open_origin(self, visit: int, path: str) -> tuple[int, int]:
        try:
            descriptor, num_bytes = open_sized(path, direct=self._direct)
        except OSError as error:
            raise cannot_open(path, error) from None
        share = self._state.num_samples(visit) / self._samples_per_file
        self._origin.pretend(round(num_bytes * share))
        self._kind = columns.ORIGIN_BYTES
        return descriptor, num_bytes

    def _admit(self, visit: int, number: int, path: str) -> tuple[int, int]:
        """Read a file whole; return it in memory, and have it written."""
        fetched = self._origin.fetch(path)
        self._counts[columns.ORIGIN_BYTES] += fetched.num_bytes
        self._kind = -1  # training reads memory
        again = os.open(f"/proc/self/fd/{fetched.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        num_bytes = fetched.num_bytes
        if self._waits:
            self._store(visit, number, fetched)
            return again, num_bytes
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, daemon=True, name="dlemu cache")
            self._thread.start()
        while True:
            with suppress(Full):
                self._queue.put((visit, number, fetched), timeout=_LOOK_SECONDS)
                return again, num_bytes
            self._state.check()

    def _write(self) -> None:
        """Write the files that wait. Runs in a thread."""
        while (waiting := self._queue.get()) is not None:
            with suppress(Exception):  # all readers have been told
                self._store(*waiting)
            del waiting

    def _store(self, visit: int, number: int, fetched: Fetched) -> None:
        """Make room and write a file to the cache."""
        state, hits = self._state, self._state.hits
        try:
            first, last = hits.first_gone[visit : visit + 2].tolist()
            gone = hits.gone[first:last].tolist()
            for _, generation, after in gone:
                if after >= 0:
                    brings = hits.admitted[after] == generation
                    state.wait(after, FILLED if brings else READ)
            for file, generation in {(file, generation) for file, generation, _ in gone}:
                with suppress(FileNotFoundError):  # it made room for another file as well
                    os.unlink(entry_path(self._folder, file, generation))
            path = entry_path(self._folder, number, int(hits.admitted[visit]))
            write_entry(path, fetched.memory, fetched.num_bytes)
            self._counts[columns.WRITTEN_BYTES] += fetched.num_bytes
            self._counts[columns.FILLS] += 1
            state.mark(visit, FILLED)
        except Exception as error:  # whatever it is: others wait for this file
            state.fail(str(error))
            raise
        finally:
            fetched.close()


def forget(descriptor: int, *, direct: bool) -> None:
    """Drop a file's pages from the page cache: it must not be a third tier."""
    if not direct:
        with suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _memory(num_bytes: int) -> Fetched:
    """Return memory for a file that other descriptors can read."""
    made = os.memfd_create("dlemu-file", os.MFD_CLOEXEC)
    size = max(round_up(num_bytes), 4096)
    os.ftruncate(made, size)
    memory = memoryview(mmap.mmap(made, size))
    os.ftruncate(made, num_bytes)
    return Fetched(made, memory, num_bytes)
