"""Memory that all readers of a host share while they read through a cache.

The host's first rank makes it (memfd_create) and writes the plan of each epoch into it. Readers are
threads and processes of all ranks of the host. The memory ends with the first rank.
"""

import fcntl
import mmap
import os
import threading
import time
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dlemu.dataset.layout import Samples
from dlemu.errors import RunError
from dlemu.loaders.cache.hits import EpochHits
from dlemu.storage.pagecache import OnFile

READ, FILLED = 1, 2
"""How far a visit is: its file has been read; it is in the cache as well."""
ORIGIN_BYTES, CACHE_BYTES, WRITTEN_BYTES, HIT_BYTES, ASKED_BYTES, HITS, VISITS, FILLS = range(8)
"""Columns of `State.counters`. Each has one writer, so none needs a lock."""
_HEAD_BYTES = 4096
_NUM_ROWS_AT, _TEXT_AT, _TEXT_BYTES = 32, 1024, 1024
_POLL_SECONDS = 0.0005


class State:
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
    def make(cls, num_rows: int) -> "State":
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
