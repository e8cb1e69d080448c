"""The steps of an epoch: how far ahead batches may be read, and how they come together."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from queue import SimpleQueue
from time import perf_counter

from dlemu.loaders import Batch


class Window:
    """Which batches of an accelerator may be read: as far as its training loop has asked.

    The loop takes batch n when step n begins and the batch is there; a loop that takes early takes
    batch n + 1 then, too. PyTorch's DataLoader sends one more request for each batch that is taken,
    so that `ahead` more than these are under way or waiting. With `ahead` of 0 nothing is: a batch
    is read while the loop waits for it.
    """

    def __init__(self, *, ahead: int, takes_early: int) -> None:
        self._ahead, self._takes_early = ahead, takes_early
        self._begun = 0
        self._whole = 0
        self._beyond: set[int] = set()

    def begin(self, step: int) -> None:
        """Note that the loop has come to this step."""
        self._begun = step + 1

    def made(self, step: int) -> None:
        """Note that a batch is there; they may come out of order, and are taken in order."""
        self._beyond.add(step)
        while self._whole in self._beyond:
            self._beyond.remove(self._whole)
            self._whole += 1

    @property
    def limit(self) -> int:
        """First step whose batch may not be read yet."""
        asked = self._begun + self._takes_early
        return max(min(self._whole, asked) + self._ahead, min(self._whole + 1, asked))


class Steps:
    """Takes batches from many threads; hands over a step when it is whole. One thread takes.

    The thread that takes sleeps on a binary semaphore, which the others release. Batches are put
    without a lock: a lock that several threads want costs each of them more than all else that is
    done for a batch.
    """

    def __init__(self, num_steps: int, num_accelerators: int) -> None:
        self.num_steps = num_steps
        self.ended = False
        self._num_accelerators = num_accelerators
        self._awaited = 0
        self._errors: list[Exception] = []
        self._made: dict[int, dict[int, Batch]] = {}
        self._wake_up = threading.Lock()
        self._wake_up.acquire()

    def put(self, batch: Batch, column: int) -> None:
        """Add a batch; the last one of the awaited step wakes its taker."""
        made = self._made.setdefault(batch.step, {})
        made[column] = batch
        # take() publishes `_awaited` before it checks `_made`, so no wake-up is lost.
        if batch.step == self._awaited and len(made) == self._num_accelerators:
            self._wake()

    def fail(self, error: Exception) -> None:
        """Have the error raised where the next step is taken; the first one counts."""
        self._errors.append(error)
        self._wake()

    def take(
        self, step: int, *, look: Callable[[], None] = lambda: None, every: float | None = None
    ) -> list[Batch]:
        """Wait for all batches of a step; `look` is called every so many seconds.

        Raises:
            Exception: what `fail` or `look` said.
        """
        self._awaited = step
        while not self._errors and len(self._made.get(step, ())) < self._num_accelerators:
            if not self._wake_up.acquire(timeout=-1 if every is None else every):
                look()
        if self._errors:
            raise self._errors[0]
        made = self._made.pop(step)
        return [made[column] for column in range(self._num_accelerators)]

    def _wake(self) -> None:
        with suppress(RuntimeError):  # it is awake already
            self._wake_up.release()


class Takers:
    """A thread for each accelerator, which takes its batches as its training loop would.

    A taker has the next batch brought while the accelerator computes, so that the time to bring it
    here is not charged to the storage. What the loop has not asked for yet must not be read
    thereby: each stream of batches holds its request back until it is advanced again, and a taker
    advances it when the next step has begun.
    """

    def __init__(
        self, running: Steps, streams: Sequence[Iterator[Batch]], *, when_asked: bool
    ) -> None:
        """`when_asked`: a batch is read while it is waited for, so none is brought earlier."""
        self._running = running
        self._begun: list[SimpleQueue[None]] = [SimpleQueue() for _ in streams]
        self._threads = [
            threading.Thread(target=self._take, args=each, daemon=True, name="dlemu taker")
            for each in zip(streams, self._begun, range(len(streams)), strict=True)
        ]
        if not when_asked:
            self.begin()
        for thread in self._threads:
            thread.start()

    def begin(self) -> None:
        """Say that the training loop has come to the next step."""
        for begun in self._begun:
            begun.put(None)

    def end(self, timeout: float) -> None:
        """Have the threads end; wait for them no longer than so many seconds."""
        self._running.ended = True
        self.begin()
        end = perf_counter() + timeout
        for thread in self._threads:
            thread.join(max(0.0, end - perf_counter()))

    def _take(self, stream: Iterator[Batch], begun: "SimpleQueue[None]", column: int) -> None:
        try:
            with closing(stream):  # type: ignore[type-var]
                begun.get()
                while not self._running.ended and (batch := next(stream, None)) is not None:
                    self._running.put(batch, column)
                    begun.get()
        except Exception as error:
            self._running.fail(error)
