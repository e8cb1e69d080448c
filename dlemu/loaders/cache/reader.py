"""How a worker opens files through a cache: it executes what `cache.hits` has planned.

A hit opens the copy in the cache. A miss that is admitted reads the file whole from the origin into
memory; training gets it from there, and it is written to the cache. Other misses open the origin's
file itself.

`SharedCacheState` is memory that all readers of a host share meanwhile: the host's first rank makes
it (memfd_create) and writes the plan of each epoch into it. Readers are threads and processes of
all ranks of the host. The memory ends with the first rank.
"""

import fcntl
import mmap
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from queue import Full, Queue
from time import perf_counter
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dlemu.config.model import Workload
from dlemu.dataset.layout import Dataset, Samples
from dlemu.errors import RunError
from dlemu.loaders.cache.folder import entry_path, write_entry
from dlemu.loaders.cache.hits import EpochHits
from dlemu.storage.extents import ExtentReader, extent_reader
from dlemu.storage.files import cannot_open, open_sized
from dlemu.storage.pagecache import OnFile
from dlemu.units import round_up

READ, FILLED = 1, 2
"""How far a visit is: its file has been read; it is in the cache as well."""
ORIGIN_BYTES, CACHE_BYTES, WRITTEN_BYTES, HIT_BYTES, ASKED_BYTES, HITS, VISITS, FILLS = range(8)
"""Columns of `SharedCacheState.counters`. Each has one writer, so none needs a lock."""
_HEAD_BYTES = 4096
_NUM_ROWS_AT, _TEXT_AT, _TEXT_BYTES = 32, 1024, 1024
_POLL_SECONDS = 0.0005
_MOST_WAITING = 2
"""Files in memory that wait to be written; then the reader waits for the cache's drive."""
_LOOK_SECONDS = 0.2


class SharedCacheState:
    """The shared memory: how far each visit is, the plan of the epoch, and what was counted."""

    _NUM_COUNTERS: ClassVar = 8
    _made = -1
    """The descriptor that keeps the memory, in the process that made it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._map()

    @classmethod
    def make(cls, num_rows: int) -> "SharedCacheState":
        """Make the memory; other processes of the user open it by `path` while this one lives.

        `num_rows`: workers of all accelerators of the job; each has a row of counters.
        """
        made = os.memfd_create("dlemu-cache")
        os.ftruncate(made, _HEAD_BYTES + 8 * cls._NUM_COUNTERS * num_rows)
        os.pwrite(made, num_rows.to_bytes(8, "little"), _NUM_ROWS_AT)
        state = cls(f"/proc/{os.getpid()}/fd/{made}")
        state._made = made
        return state

    def _map(self) -> None:
        """Map what is there: the memory grows with the plans."""
        self._memory = mmap.mmap(self._descriptor, 0)
        view = memoryview(self._memory)
        self._free_at = np.frombuffer(view, np.float64, 1)
        self._sizes = np.frombuffer(view, np.int64, 3, 8).data
        num_rows = int(np.frombuffer(view, np.int64, 1, _NUM_ROWS_AT)[0])
        end = _HEAD_BYTES + 8 * self._NUM_COUNTERS * num_rows
        table = np.frombuffer(view[_HEAD_BYTES:end], np.int64)
        self.counters: NDArray[np.int64] = table.reshape(num_rows, self._NUM_COUNTERS)
        """(rows, columns), totals since the memory was made."""
        num, num_gone = self._sizes[0], self._sizes[1]
        parts = np.frombuffer(view[end : end + 8 * (5 * num + 1 + 3 * num_gone)], np.int64)
        ends = np.cumsum([num, num, num, num, num + 1, 3 * num_gone])
        self._num_samples, held, after, admitted, first, gone = np.split(parts, ends[:-1])
        self.hits = EpochHits(held, after, admitted, first, gone.reshape(-1, 3))
        """Plan of the epoch; its reads are the visits."""
        self.held, self.after, self.admitted = held.data, after.data, admitted.data
        """As in `hits`: items of memory are read in half the time of an array's."""
        self._done = np.frombuffer(view, np.uint8, num, end + parts.nbytes).data

    def begin(self, hits: EpochHits, num_samples: Samples) -> None:
        """Write the plan of an epoch. No reader may be at work."""
        num, num_gone = len(hits.held), len(hits.gone)
        tables = [num_samples, hits.held, hits.after, hits.admitted, hits.first_gone, hits.gone]
        data = np.concatenate([each.ravel() for each in tables]).tobytes()
        start = _HEAD_BYTES + self.counters.nbytes
        size = start + len(data) + num
        if size > os.fstat(self._descriptor).st_size:
            os.ftruncate(self._descriptor, size)
        os.pwrite(self._descriptor, data + bytes(num), start)
        self._sizes[0], self._sizes[1] = num, num_gone
        self._map()

    def start_epoch(self) -> None:
        """Take up the plan that the first rank has written."""
        self._map()

    def num_samples(self, visit: int) -> int:
        """Return how many samples are read in a visit."""
        return int(self._num_samples[visit])

    def mark(self, visit: int, how_far: int) -> None:
        """Note that a visit's file was read, or that it is in the cache as well."""
        with self._lock:
            if self._done[visit] < how_far:
                self._done[visit] = how_far

    def wait(self, visit: int, how_far: int) -> None:
        """Wait until a visit of any reader is that far.

        Raises:
            RunError: a file could not be written to the cache.
        """
        while self._done[visit] < how_far:
            self.check()
            time.sleep(_POLL_SECONDS)

    def wait_for_fills(self, at: OnFile) -> None:
        """Wait until each file that this epoch admits is in the cache. Raises as `wait`.

        `at` is called each time another one is.
        """
        for visit in np.flatnonzero(self.hits.admitted >= 0).tolist():
            self.wait(visit, FILLED)
            at("")

    def fail(self, text: str) -> None:
        """Tell all readers that the cache cannot be written."""
        self._memory[_TEXT_AT : _TEXT_AT + _TEXT_BYTES] = text.encode()[:_TEXT_BYTES].ljust(
            _TEXT_BYTES, b"\0"
        )
        self._sizes[2] = 1

    def check(self) -> None:
        """Raise RunError if a file could not be written to the cache."""
        if self._sizes[2]:
            text = bytes(self._memory[_TEXT_AT : _TEXT_AT + _TEXT_BYTES]).rstrip(b"\0")
            raise RunError(text.decode(errors="replace"))

    def reserve(self, seconds: float) -> float:
        """Take so many seconds of an emulated origin, which serves one after the other.

        Return when they end (time.monotonic): all processes of a host have that clock.
        """
        with self._lock:
            # The lock is of the open file: it holds between processes. The other one holds
            # between the threads that share this file.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            try:
                end = max(time.monotonic(), float(self._free_at[0])) + seconds
                self._free_at[0] = end
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return end

    def close(self) -> None:
        """Close the file; the mapping ends with its last user."""
        os.close(self._descriptor)
        if self._made >= 0:
            os.close(self._made)


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

    def __init__(self, workload: Workload, state: SharedCacheState, *, direct: bool) -> None:
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


class CacheReader:
    """Opens files for one worker. Not thread-safe; it has a thread of its own that writes."""

    def __init__(self, dataset: Dataset, *, row: int, direct: bool) -> None:
        """`row`: of this worker in `SharedCacheState.counters`. `direct`: O_DIRECT is used."""
        workload = dataset.workload
        self._folder = workload.cache.folder or ""
        self._waits = workload.cache.fill == "sync"
        self._direct = direct
        self._layout = dataset.layout
        self._state = SharedCacheState(dataset.cache_state)
        self._row = row
        self._counts = self._state.counters[row].data
        self._origin = Origin(workload, self._state, direct=direct)
        self._queue: Queue[tuple[int, int, Fetched] | None] = Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._kind, self._size, self._in_file = ORIGIN_BYTES, 0, 1  # of the file that is open
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
        self._in_file = self._layout.in_file(number)
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
        asked = self._size * num_samples // self._in_file
        counts[VISITS] += 1
        counts[ASKED_BYTES] += asked
        if self._kind == CACHE_BYTES:
            counts[HITS] += 1
            counts[HIT_BYTES] += asked
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
        self._kind = CACHE_BYTES
        return found

    def _open_origin(self, visit: int, path: str) -> tuple[int, int]:
        try:
            descriptor, num_bytes = open_sized(path, direct=self._direct)
        except OSError as error:
            raise cannot_open(path, error) from None
        share = self._state.num_samples(visit) / self._in_file
        self._origin.pretend(round(num_bytes * share))
        self._kind = ORIGIN_BYTES
        return descriptor, num_bytes

    def _admit(self, visit: int, number: int, path: str) -> tuple[int, int]:
        """Read a file whole; return it in memory, and have it written."""
        fetched = self._origin.fetch(path)
        self._counts[ORIGIN_BYTES] += fetched.num_bytes
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
            self._counts[WRITTEN_BYTES] += fetched.num_bytes
            self._counts[FILLS] += 1
            state.mark(visit, FILLED)
        except Exception as error:  # whatever it is: others wait for this file
            state.fail(str(error))
            raise
        finally:
            fetched.close()


def forget(descriptor: int, *, direct: bool) -> None:
    """Drop a file's pages from the page cache: it must not be a second cache."""
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
