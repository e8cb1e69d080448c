"""Threads of one process read for all its accelerators; `os.preadv` releases Python's lock.

1. streams    a stream is one worker of one accelerator: it makes every read_threads-th batch, one
              at a time and in order, and none further ahead than prefetch allows.
2. threads    take streams that may go on from a queue. There are at most as many threads as
              streams, so that nothing that the keys ask for is cut; but a thread begins only when
              no other is idle, so that few serve fast storage; and where nothing waits, because
              the files are memory, no more than CPUs: they would only take them from each other.
3. the step   is put together by the threads themselves, and whoever takes it wakes once, however
              many accelerators there are.
"""

import math
import resource
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from time import perf_counter

import numpy as np

from dlemu.devices import lies_in_memory
from dlemu.errors import RunError, WorkloadError
from dlemu.files import Layout
from dlemu.formats import FORMATS
from dlemu.host import usable_cpus
from dlemu.loaders import Batch
from dlemu.loaders.progress import Progress, tell
from dlemu.loaders.samples import Slots, Source, Task, sample_bytes, settle
from dlemu.loaders.steps import Steps
from dlemu.loaders.worker import SampleReader
from dlemu.plan import EpochPlan
from dlemu.storage import aligned_buffer
from dlemu.workload import Workload

_CLOSE_SECONDS = 5.0
"""How long a read that is under way may hold up `close`: one on dead storage never ends."""
_OTHER_FILES = 128
"""Descriptors left to the rest of the process."""


@dataclass(slots=True, eq=False)
class _Stream:
    """One worker of one accelerator."""

    column: int
    reader: SampleReader
    step: int = 0
    """Step of the batch that is made next."""
    tasks: Iterator[Task] = field(default_factory=lambda: iter(()))
    busy: bool = False


class ThreadsLoader:
    """Reads batches in threads of this process; see `dlemu.loaders.Loader`."""

    def __init__(
        self,
        workload: Workload,
        layout: Layout,
        folder: Path,
        *,
        accelerators: range,
        known_places: bool,
        keep: bool,
    ) -> None:
        self._source = settle(workload, layout, folder, known_places=known_places)
        self._accelerators = accelerators
        self._reads_here = workload.reader.read_threads == 0
        self._num_workers = max(1, workload.reader.read_threads)
        self._window = self._source.batches_in_flight
        num_streams = self._num_workers * len(accelerators)
        max_open = _files_of_each(num_streams, streamed=FORMATS[layout.format].streamed)
        self._slots = [_private_slots(self._source) if keep else None for _ in accelerators]
        notes = np.zeros((len(accelerators), self._num_workers, Progress.NUM_FIELDS))
        self._progress = [Progress(rows) for rows in notes]
        self._streams: list[list[_Stream]] = []  # by worker, then by accelerator
        for worker in range(self._num_workers):
            self._streams.append([])
            for column, accelerator in enumerate(accelerators):
                reader = SampleReader(
                    self._source,
                    accelerator=accelerator,
                    worker=worker,
                    slots=self._slots[column],
                    note=partial(self._progress[column].note, worker),
                    max_open=max_open,
                )
                self._streams[worker].append(_Stream(column, reader))
        self._crew = _Crew(_most_threads(num_streams, workload, folder), self._go_on)
        self._changed = threading.Condition()
        self._running: Steps | None = None
        self._num_busy = 0

    @property
    def direct(self) -> bool:
        return self._source.direct

    def epoch(self, epoch: int, plan: EpochPlan) -> Iterator[list[Batch]]:
        running = Steps(plan.num_steps, len(self._accelerators))
        self._running = running
        for worker, streams in enumerate(self._streams):
            steps = range(worker, plan.num_steps, self._num_workers)
            for stream in streams:
                accelerator = self._accelerators[stream.column]
                stream.tasks = self._source.tasks(epoch, plan, accelerator, steps)
                stream.step = worker
                stream.reader.start_epoch(epoch)
        if self._reads_here:
            for _ in range(plan.num_steps):
                yield [self._make(stream, running) for stream in self._streams[0]]
            return
        try:
            for limit in range(1, self._window):
                self._widen(running, limit)
            for step in range(plan.num_steps):
                self._widen(running, step + self._window)
                yield running.take(step)
        finally:
            self._end(running)

    def waiting_for(self) -> str:
        lines = []
        for accelerator, progress in zip(self._accelerators, self._progress, strict=True):
            lines += progress.told(self._source.layout, accelerator)
        return tell(lines)

    def pids(self) -> list[int]:
        return []

    def close(self) -> None:
        if self._running is not None:
            self._end(self._running)
        if self._crew.close():
            for stream in chain.from_iterable(self._streams):
                stream.reader.close()

    def _widen(self, running: Steps, limit: int) -> None:
        """Let the batches below this step be made; each time one step more."""
        with self._changed:
            running.limit = limit
            may_go_on = [
                stream
                for stream in self._streams[(limit - 1) % self._num_workers]
                if not stream.busy and running.may_make(stream.step)
            ]
            for stream in may_go_on:
                stream.busy = True
            self._num_busy += len(may_go_on)
        if may_go_on:
            self._crew.put(may_go_on)

    def _go_on(self, stream: _Stream) -> None:
        """Make a stream's batches, in a thread, until it is as far ahead as it may be."""
        running = self._running
        assert running is not None
        going_on = True
        while going_on:
            try:
                running.put(self._make(stream, running), stream.column)
            except _Unwanted:
                going_on = False
            except Exception as error:
                running.fail(error)
                going_on = False
            if going_on and running.may_make(stream.step):
                continue
            with self._changed:  # the limit may have been raised since
                if not going_on or not running.may_make(stream.step):
                    going_on = stream.busy = False
                    self._num_busy -= 1
                    if running.ended:
                        self._changed.notify_all()

    def _make(self, stream: _Stream, running: Steps) -> Batch:
        task = next(stream.tasks)
        cost = stream.reader.make(task, lambda: not running.ended)
        if cost is None:
            raise _Unwanted
        stream.step += self._num_workers
        slots = self._slots[stream.column]
        return Batch(
            epoch=task.epoch,
            step=task.step,
            accelerator=self._accelerators[stream.column],
            samples=task.samples,
            num_bytes=cost.num_bytes,
            ready=perf_counter(),
            read_seconds=cost.read_seconds,
            decode_seconds=cost.decode_seconds,
            hand_over_seconds=cost.hand_over_seconds,
            arrays=slots.arrays(task.step % slots.num_slots) if slots is not None else None,
        )

    def _end(self, running: Steps) -> None:
        """Stop reading; wait until no thread is at it."""
        with self._changed:
            running.ended = True
            unread = self._crew.withdraw()
            for stream in unread:
                stream.busy = False
            self._num_busy -= len(unread)
            self._changed.wait_for(lambda: self._num_busy == 0, timeout=_CLOSE_SECONDS)


class _Unwanted(Exception):
    """The epoch was ended while a batch was read for it."""


class _Crew:
    """Threads that run streams, at most so many; the one that rested last works next."""

    def __init__(self, most: int, run: Callable[[_Stream], None]) -> None:
        self._most = most
        self._run = run
        self._lock = threading.Lock()
        self._ready: deque[_Stream] = deque()
        self._asleep: list[threading.Lock] = []
        self._threads: list[threading.Thread] = []
        self._closed = False

    def put(self, streams: list[_Stream]) -> None:
        """Have streams run. This wakes one thread, which wakes the next, and so on.

        Raises:
            RunError: the host gives no more threads.
        """
        with self._lock:
            self._ready.extend(streams)
            wanted = len(self._ready) - len(self._asleep)
            num_new = max(0, min(wanted, self._most - len(self._threads)))
        for _ in range(num_new):
            thread = threading.Thread(target=self._work, daemon=True, name="dlemu reader")
            try:
                thread.start()
            except RuntimeError:
                raise RunError(
                    f"this host gives no more than {len(self._threads)} threads, and "
                    f"reader.read_threads x accelerators are {self._most}; raise `ulimit -u`"
                ) from None
            self._threads.append(thread)
        self._wake()

    def withdraw(self) -> list[_Stream]:
        """Return the streams that no thread has begun with; they will not be run."""
        with self._lock:
            unread = list(self._ready)
            self._ready.clear()
        return unread

    def close(self) -> bool:
        """End the threads; return False if one is held up for too long by a read."""
        with self._lock:
            self._closed = True
            for bed in self._asleep:
                bed.release()
            self._asleep.clear()
        end = perf_counter() + _CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - perf_counter()))
        return not any(thread.is_alive() for thread in self._threads)

    def _wake(self) -> None:
        with self._lock:
            if self._ready and self._asleep:
                self._asleep.pop().release()

    def _work(self) -> None:
        bed = threading.Lock()
        bed.acquire()
        while True:
            with self._lock:
                stream = self._ready.popleft() if self._ready else None
                if stream is None:
                    if self._closed:
                        return
                    self._asleep.append(bed)
            if stream is None:
                bed.acquire()
                continue
            self._wake()
            self._run(stream)


def _most_threads(num_streams: int, workload: Workload, folder: Path) -> int:
    waits = workload.reader.preprocess_time.mean > 0 or not lies_in_memory(folder)
    return num_streams if waits else min(num_streams, math.ceil(usable_cpus()))


def _private_slots(source: Source) -> Slots:
    row_bytes = sample_bytes(source)
    memory = aligned_buffer(Slots.num_bytes(source, row_bytes))
    slots = Slots(memory, source, row_bytes)
    slots.begin()
    return slots


def _files_of_each(num_streams: int, *, streamed: bool) -> int:
    """Return how many files a stream may keep open, and raise this process's limit if it must.

    A stream that reads file after file needs one, and a file of one sample is closed at once.
    """
    wish = 1 if streamed else 8
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = num_streams * wish + _OTHER_FILES
    if need > soft:
        soft = min(need, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    each = (soft - _OTHER_FILES) // num_streams
    if each < 1:
        raise WorkloadError(
            f"reader.read_threads x accelerators must be at most {hard - _OTHER_FILES} here, got "
            f"{num_streams}: a process may open {hard} files; raise `ulimit -Hn` or use more ranks"
        )
    return min(wish, each)
