"""The steps of an epoch, put together from the batches of all accelerators of a rank."""

import threading
from collections.abc import Callable
from contextlib import suppress

from dlemu.loaders import Batch


class Steps:
    """Takes batches from many threads; hands over a step when it is whole. One thread takes.

    Who takes sleeps on a lock that others let go of; it looks again whenever it gets it. Batches
    are put without any: one that several threads want costs each of them more than all else that
    is done for a batch.
    """

    def __init__(self, num_steps: int, num_accelerators: int) -> None:
        self.num_steps = num_steps
        self.limit = 0
        """First step that may not be made yet."""
        self.ended = False
        self._num_accelerators = num_accelerators
        self._awaited = 0
        self._errors: list[Exception] = []
        self._made: dict[int, dict[int, Batch]] = {}
        self._bed = threading.Lock()
        self._bed.acquire()

    def may_make(self, step: int) -> bool:
        """Return whether a step's batches are to be made now."""
        return not self.ended and step < min(self.limit, self.num_steps)

    def put(self, batch: Batch, column: int) -> None:
        """Add a batch; the last one of the awaited step wakes its taker."""
        made = self._made.setdefault(batch.step, {})
        made[column] = batch
        # Who takes says what it awaits before it looks whether that is there: so one of us sees it.
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
            if not self._bed.acquire(timeout=-1 if every is None else every):
                look()
        if self._errors:
            raise self._errors[0]
        made = self._made.pop(step)
        return [made[column] for column in range(self._num_accelerators)]

    def _wake(self) -> None:
        with suppress(RuntimeError):  # it is awake already
            self._bed.release()
