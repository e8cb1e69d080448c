"""Threads of one process read for all its accelerators; `os.preadv` releases Python's lock.

1. streams    A stream is one worker of one accelerator. It makes every read_threads-th batch, or in
              tf.data's order and for DALI its part of every batch: one at a time, in order, and no
              further ahead than the training loop has asked for (`steps.Window`).
2. threads    Threads take streams that may go on from a queue. A new thread starts only if no other
              is idle, so a few threads serve fast storage. There are at most as many as streams. If
              the files lie in memory nothing waits, and there are at most as many as CPUs.
3. steps      The thread that makes the last batch of a step wakes the training loop: one wake-up
              for each step, however many accelerators there are.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

import numpy as np

from dlemu.config.model import Workload
from dlemu.dataset.layout import Dataset
from dlemu.dataset.plan import EpochPlan
from dlemu.errors import RunError
from dlemu.host.devices import lies_in_memory
from dlemu.host.processes import usable_cpus
from dlemu.loaders import FILES_KEPT, OTHERS, Batch, make_room
from dlemu.loaders.source import Cost, Slots, Source, Task, row_bytes_of
from dlemu.loaders.steps import CLOSE_SECONDS, Activity, StepCollector, Window, WorkersLoader
from dlemu.loaders.worker import SampleReader, make_batch
from dlemu.storage.counted import GetCounts
from dlemu.storage.files import aligned_buffer


@dataclass(slots=True, eq=False)
class _Stream:
    """One worker of one accelerator."""

    reader: SampleReader
    column: "_Column"
    tasks: Iterator[Task] = field(default_factory=lambda: iter(()))
    task: Task | None = None
    """The batch that it makes next; None: it has finished this epoch."""
    busy: bool = False


class _Column:
    """One accelerator: its streams, and the parts of its batches that are there."""

    def __init__(self, source: Source, number: int, accelerator: int, row_bytes: int) -> None:
        self.number, self.accelerator = number, accelerator
        self._lock = threading.Lock()  # guards the attributes below
        self.streams: list[_Stream] = []
        self.slots: Slots | None = None
        if row_bytes:
            memory = aligned_buffer(Slots.num_bytes(source, row_bytes))
            self.slots = Slots(memory, source, row_bytes)
        self._source = source
        self._plan: EpochPlan
        self._window: Window
        self._limit = 0
        self._num_parts: list[int] | None = None
        """Parts of each step's batch; None: one stream makes a whole batch."""
        self._parts: dict[int, list[Cost]] = {}

    def start(self, epoch: int, plan: EpochPlan) -> list[_Stream]:
        """Start an epoch; return the streams that may go on."""
        source = self._source
        for number, stream in enumerate(self.streams):
            stream.tasks = source.tasks(
                epoch, plan, self.accelerator, stream=number, num_streams=len(self.streams)
            )
            stream.task = next(stream.tasks, None)
            stream.reader.start_epoch(epoch)
        self._plan, self._limit, self._parts = plan, 0, {}
        if source.shares_batches(plan):
            sharing = min(len(self.streams), source.workload.reader.batch_size)
            self._num_parts = [sharing] * plan.num_steps
        elif plan.stream_of is not None:
            self._num_parts = plan.takes_part(self.accelerator).sum(axis=1).tolist()
        self._window = Window(
            ahead=source.workload.reader.batches_ahead, takes_early=source.takes_early
        )
        return self._released()

    def begin(self, step: int) -> list[_Stream]:
        """Note that training has come to a step; return the streams that may go on now."""
        with self._lock:
            self._window.begin(step)
            return self._released()

    def made(
        self, stream: _Stream, task: Task, cost: Cost
    ) -> tuple[Batch | None, list[_Stream], bool]:
        """Note what a stream has made.

        Return the batch if all its parts are there, the other streams that may go on now, and
        whether this one may. If not, it is idle, and another thread may have taken it already.
        """
        following = next(stream.tasks, None)
        with self._lock:
            batch = self._join(task, cost)
            if batch is not None:
                self._window.made(task.step)
            may_go_on = self._released()
            stream.task = following
            stream.busy = following is not None and following.step < self._limit
            return batch, may_go_on, stream.busy

    def _released(self) -> list[_Stream]:
        """Move the limit to the window's; return the idle streams that it held back."""
        before, self._limit = self._limit, self._window.limit
        if self._num_parts is None:
            num = len(self.streams)
            released = [self.streams[step % num] for step in range(before, self._limit)]
        else:
            released = self.streams if before < self._limit else []
        may_go_on = []
        for stream in released:
            if not stream.busy and stream.task is not None and stream.task.step < self._limit:
                stream.busy = True
                may_go_on.append(stream)
        return may_go_on

    def _join(self, task: Task, cost: Cost) -> Batch | None:
        """Return the batch, None while parts of it are missing."""
        if self._num_parts is not None:
            parts = self._parts.setdefault(task.step, [])
            parts.append(cost)
            if len(parts) < self._num_parts[task.step]:
                return None
            del self._parts[task.step]
            cost = Cost(*map(sum, zip(*parts, strict=True)))
        return make_batch(
            cost, self.slots, self._plan, self.accelerator, epoch=task.epoch, step=task.step
        )


class ThreadsLoader(WorkersLoader):
    """Reads batches in threads of this process; see `dlemu.loaders.Loader`."""

    def __init__(self, dataset: Dataset, *, accelerators: range, keep: int) -> None:
        source = Source.open(dataset, keep=keep)
        super().__init__(source)
        row_bytes = row_bytes_of(source, len(accelerators))
        num_workers = dataset.workload.reader.num_streams
        num_streams = num_workers * len(accelerators)
        room = make_room(dataset.workload, len(accelerators)) - OTHERS
        tables = np.zeros((len(accelerators), num_workers, Activity.NUM_FIELDS))
        self._activities = dict(zip(accelerators, map(Activity, tables), strict=True))
        self._columns = [
            _Column(source, number, accelerator, row_bytes)
            for number, accelerator in enumerate(accelerators)
        ]
        self._slots = [each.slots for each in self._columns if each.slots is not None]
        for column, activity in zip(self._columns, self._activities.values(), strict=True):
            for worker in range(num_workers):
                reader = SampleReader(
                    source,
                    accelerator=column.accelerator,
                    worker=worker,
                    slots=column.slots,
                    note=partial(activity.note, worker),
                    max_open=max(1, min(FILES_KEPT, room // num_streams)),
                )
                column.streams.append(_Stream(reader, column))
        waits = dataset.workload.reader.preprocess_time.mean > 0 or not lies_in_memory(
            dataset.folder
        )
        cpus = math.ceil(usable_cpus())
        self._crew = _Crew(num_streams if waits else min(num_streams, cpus), self._go_on)
        self._running: StepCollector | None = None
        self._idle = threading.Condition()

    @classmethod
    def reads(cls, workload: Workload) -> bool:
        return True

    def epoch(self, epoch: int, plan: EpochPlan) -> Iterator[list[Batch]]:
        with self.read(epoch, plan) as running:
            for step in range(plan.num_steps):
                self.begin(step)
                yield running.take(step)

    @contextmanager
    def read(self, epoch: int, plan: EpochPlan) -> Iterator[StepCollector]:
        """Read an epoch, whose steps are taken from what is yielded; `begin` lets it go on."""
        self._running = running = StepCollector(len(self._columns))
        self._crew.put([stream for column in self._columns for stream in column.start(epoch, plan)])
        try:
            yield running
        finally:
            self._end(running)

    def begin(self, step: int) -> None:
        """Note that training has come to a step: its batch is wanted, and more may be read."""
        may_go_on = [stream for column in self._columns for stream in column.begin(step)]
        if may_go_on:
            self._crew.put(may_go_on)

    def gets(self) -> GetCounts:
        streams = (stream for column in self._columns for stream in column.streams)
        return sum((stream.reader.gets for stream in streams), GetCounts())

    def close(self) -> None:
        if self._running is not None:
            self._end(self._running)
        if self._crew.close():
            for column in self._columns:
                for stream in column.streams:
                    stream.reader.close()

    def _go_on(self, stream: _Stream) -> None:
        """Make a stream's batches until it is as far ahead as it may be. Runs in a thread."""
        running, column = self._running, stream.column
        assert running is not None
        goes_on = True
        try:
            while goes_on:
                task = stream.task
                assert task is not None
                cost = None
                if not running.ended:
                    cost = stream.reader.make(task, lambda: not running.ended)
                if cost is None:
                    stream.busy = False
                    break
                batch, may_go_on, goes_on = column.made(stream, task, cost)
                if batch is not None:
                    running.put(batch, column.number)
                if may_go_on:
                    self._crew.put(may_go_on)
        except Exception as error:
            stream.busy = False
            running.fail(error)
        if running.ended:
            with self._idle:
                self._idle.notify_all()

    def _end(self, running: StepCollector) -> None:
        """Stop reading; wait until no thread reads."""
        running.ended = True
        for stream in self._crew.withdraw():
            stream.busy = False
        streams = [stream for column in self._columns for stream in column.streams]
        with self._idle:
            self._idle.wait_for(lambda: not any(each.busy for each in streams), CLOSE_SECONDS)


class _Crew:
    """At most `most` threads that run streams; the thread that became idle last works next."""

    def __init__(self, most: int, run: Callable[[_Stream], None]) -> None:
        self._most = most
        self._run = run
        self._lock = threading.Lock()
        self._ready: deque[_Stream] = deque()
        self._asleep: list[threading.Lock] = []
        self._threads: list[threading.Thread] = []
        self._closed = False

    def put(self, streams: list[_Stream]) -> None:
        """Queue streams to run. This wakes one thread, which wakes the next, and so on."""
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

    def withdraw(self) -> deque[_Stream]:
        """Take the streams out of the queue that no thread has started, and return them."""
        with self._lock:
            unread, self._ready = self._ready, deque()
        return unread

    def close(self) -> bool:
        """End the threads; return False if a read keeps one longer than CLOSE_SECONDS."""
        with self._lock:
            self._closed = True
            for wake_up in self._asleep:
                wake_up.release()
            self._asleep.clear()
        end = perf_counter() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - perf_counter()))
        return not any(thread.is_alive() for thread in self._threads)

    def _wake(self) -> None:
        with self._lock:
            if self._ready and self._asleep:
                self._asleep.pop().release()

    def _work(self) -> None:
        wake_up = threading.Lock()
        wake_up.acquire()
        while True:
            with self._lock:
                stream = self._ready.popleft() if self._ready else None
                if stream is None:
                    if self._closed:
                        return
                    self._asleep.append(wake_up)
            if stream is None:
                wake_up.acquire()
                continue
            self._wake()
            self._run(stream)
