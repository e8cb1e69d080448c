"""The steps of an epoch: what each worker does now, how far ahead batches may be read, and how they
come together.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from queue import SimpleQueue
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from dlemu.dataset.layout import Layout
from dlemu.host.processes import is_stopped
from dlemu.loaders import Batch, Loader
from dlemu.loaders.source import Slots, Source
from dlemu.storage.counted import NUM_BINS, bin_of

IDLE, READING, PREPROCESSING = range(3)
_WORDS = {READING: "reads", PREPROCESSING: "preprocesses"}


class Activity:
    """One row for each worker, (workers, NUM_FIELDS) float64; it writes the row, others read it."""

    NUM_FIELDS = 4 + NUM_BINS

    def __init__(self, rows: NDArray[np.float64]) -> None:
        self._rows = rows
        self._views = [row.data for row in rows]  # to write to one takes a third of the time

    def note(self, worker: int, what: int, file: int = -1) -> None:
        """Write down what a worker does from now on, and to which file; count a read that ends."""
        row, now = self._views[worker], perf_counter()
        if row[0] == READING:
            row[4 + bin_of(now - row[2])] += 1
        row[0] = what
        row[1] = file
        row[2] = now

    def set_pid(self, worker: int, pid: int) -> None:
        """Write down a worker's process number."""
        self._rows[worker, 3] = pid

    def pids(self) -> list[int]:
        """Return each worker's process number; 0 where it has not started yet."""
        return [int(pid) for pid in self._rows[:, 3]]

    def read_counts(self) -> NDArray[np.float64]:
        """Return how many reads of all workers fell into each bin, (NUM_BINS,)."""
        counts: NDArray[np.float64] = self._rows[:, 4:].sum(axis=0)
        return counts

    def busy(self, layout: Layout, accelerator: int) -> list[tuple[float, str]]:
        """Return since when (perf_counter) each busy worker does what, and how to say it."""
        rows = enumerate(self._rows[:, :4].tolist())
        return [
            (
                since,
                f"worker {worker} of accelerator {accelerator} {_WORDS[int(what)]}"
                f"{f' {layout.path(int(file))}' if file >= 0 else ''}",
            )
            for worker, (what, file, since, _) in rows
            if what != IDLE
        ]


def describe(busy: list[tuple[float, str]], most: int = 8) -> str:
    """Return the lines of `Activity.busy` as one, the longest wait first."""
    now = perf_counter()
    lines = [f"{text} for {now - since:.0f} s" for since, text in sorted(busy)]
    more = [f"{len(lines) - most} more"] if len(lines) > most else []
    return ", ".join(lines[:most] + more) or "no worker is busy"


class WorkersLoader(Loader):
    """A loader whose workers note what they do, and which hands batches over in slots."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.direct = source.direct
        self._activities: dict[int, Activity] = {}
        """What the workers of each accelerator do."""
        self._slots: list[Slots] = []
        """Of each accelerator; none where bytes are dropped."""

    def busy(self) -> list[tuple[float, str]]:
        """Return what each busy worker does, as `Activity.busy` does."""
        busy = (table.busy(self._source.layout, each) for each, table in self._activities.items())
        return [line for lines in busy for line in lines]

    def waiting_for(self) -> str:
        names = self._source.dataset.place.servers[:4]
        servers = f" from {', '.join(names)}" if names else ""
        halted = [pid for pid in self.pids() if is_stopped(pid)]
        stopped = f"; stopped, kill -CONT lets them go on: {halted}" if halted else ""
        return f"{describe(self.busy())}{servers}{stopped}"

    def read_counts(self) -> NDArray[np.float64]:
        return sum((each.read_counts() for each in self._activities.values()), np.zeros(NUM_BINS))

    def memory(self) -> list[NDArray[np.uint8]]:
        return [slots.data for slots in self._slots]


CLOSE_SECONDS = 5.0
"""How long closing waits for a read or a worker: a read on dead storage never returns."""
_LOOK_SECONDS = 1.0


class Window:
    """Which batches of an accelerator may be read now: as many as its training loop has asked for.

    The loop takes batch n when step n begins and the batch is there; a pipelined loop then takes
    batch n + 1 as well. PyTorch's DataLoader sends one more request for each batch that is taken,
    so `ahead` batches beyond those are being read or waiting. With `ahead` of 0, a batch is read
    only while the loop waits for it.
    """

    def __init__(self, *, ahead: int, takes_early: int) -> None:
        """`takes_early`: 1 for a pipelined loop, else 0."""
        self._ahead, self._takes_early = ahead, takes_early
        self._begun = 0
        self._whole = 0
        self._beyond: set[int] = set()

    def begin(self, step: int) -> None:
        """Note that the loop has come to this step."""
        self._begun = step + 1

    def made(self, step: int) -> None:
        """Note that a batch is there. Batches may come in any order; they are taken in order."""
        self._beyond.add(step)
        while self._whole in self._beyond:
            self._beyond.remove(self._whole)
            self._whole += 1

    @property
    def limit(self) -> int:
        """First step whose batch may not be read yet."""
        asked = self._begun + self._takes_early
        return max(min(self._whole, asked) + self._ahead, min(self._whole + 1, asked))


class StepCollector:
    """Collects batches from many threads; one thread takes the steps whose batches are all there.

    The taking thread sleeps on a binary semaphore, which the others release. `put` has no lock: a
    lock that several threads want costs more than everything else that is done for a batch.
    """

    def __init__(self, num_accelerators: int) -> None:
        self.ended = False
        """Set when the epoch is over or no longer wanted."""
        self._num_accelerators = num_accelerators
        self._awaited = 0
        self._errors: list[Exception] = []
        self._made: dict[int, dict[int, Batch]] = {}
        self._wake_up = threading.Lock()
        self._wake_up.acquire()

    def put(self, batch: Batch, column: int) -> None:
        """Add the batch of the accelerator at `column`; the step's last one wakes the taker."""
        made = self._made.setdefault(batch.step, {})
        made[column] = batch
        # take() publishes `_awaited` before it checks `_made`, so no wake-up is lost.
        if batch.step == self._awaited and len(made) == self._num_accelerators:
            self._wake()

    def fail(self, error: Exception) -> None:
        """Have `take` raise the error; only the first one is raised."""
        self._errors.append(error)
        self._wake()

    def take(self, step: int, *, look: Callable[[], None] = lambda: None) -> list[Batch]:
        """Wait for all batches of a step; call `look` each second meanwhile."""
        self._awaited = step
        while not self._errors and len(self._made.get(step, ())) < self._num_accelerators:
            if not self._wake_up.acquire(timeout=_LOOK_SECONDS):
                look()
        if self._errors:
            raise self._errors[0]
        made = self._made.pop(step)
        return [made[column] for column in range(self._num_accelerators)]

    def _wake(self) -> None:
        with suppress(RuntimeError):  # it is awake already
            self._wake_up.release()


class Takers:
    """One thread for each accelerator, which takes its batches as its training loop would.

    A taker fetches the next batch while the accelerator computes, so that the storage is not
    charged for bringing it here. It must not cause reads that the training loop has not asked for
    yet. So each stream of batches sends its next request only when it is advanced again, and a
    taker advances it only when the next step has begun, and a pipelined loop has queued the kernels
    of the batch before.
    """

    def __init__(
        self, streams: Sequence[Iterator[Batch]], *, when_asked: bool, launch: float = 0.0
    ) -> None:
        """`when_asked`: a batch is read only while it is waited for, so none is taken early.

        `launch`: seconds that the loop takes to queue a step when its batch is there.
        """
        self._launch = launch
        self._collector = StepCollector(len(streams))
        self._begun: list[SimpleQueue[None]] = [SimpleQueue() for _ in streams]
        self._threads = [
            threading.Thread(target=self._take, args=each, daemon=True, name="dlemu taker")
            for each in zip(streams, self._begun, range(len(streams)), strict=True)
        ]
        if not when_asked:
            self._begin()
        for thread in self._threads:
            thread.start()

    def steps(
        self, num_steps: int, *, look: Callable[[], None] = lambda: None
    ) -> Iterator[list[Batch]]:
        """Yield each step's batches when the loop comes to it; `look` is called while it waits."""
        for step in range(num_steps):
            self._begin()
            yield self._collector.take(step, look=look)

    def end(self) -> None:
        """End the threads; wait no longer than CLOSE_SECONDS. May be called again."""
        self._collector.ended = True
        self._begin()
        end = perf_counter() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - perf_counter()))

    def _begin(self) -> None:
        """Tell the threads that the training loop has come to the next step."""
        for begun in self._begun:
            begun.put(None)

    def _take(self, stream: Iterator[Batch], begun: "SimpleQueue[None]", column: int) -> None:
        try:
            with closing(stream):  # type: ignore[type-var]
                begun.get()
                while not self._collector.ended and (batch := next(stream, None)) is not None:
                    queued = perf_counter() + self._launch
                    self._collector.put(batch, column)
                    begun.get()
                    if self._launch and not self._collector.ended:
                        time.sleep(max(0.0, queued - perf_counter()))
        except Exception as error:
            self._collector.fail(error)
