"""The steps of an epoch, put together from the batches of all accelerators of a rank."""

import threading
from collections.abc import Callable

from dlemu.loaders import Batch


class Steps:
    """Takes batches from many threads; hands over a step when it is whole.

    `changed` is notified when there is something for who waits. Batches are put without it: a lock
    that several threads want costs each of them more than all else that is done for a batch.
    """

    def __init__(self, num_steps: int, num_accelerators: int, changed: threading.Condition) -> None:
        self.num_steps = num_steps
        self.limit = 0
        """First step that may not be made yet."""
        self.ended = False
        self.changed = changed
        self._num_accelerators = num_accelerators
        self._awaited = 0
        self._error: Exception | None = None
        self._made: dict[int, dict[int, Batch]] = {}

    def may_make(self, step: int) -> bool:
        """Return whether a step's batches are to be made now."""
        return not self.ended and step < min(self.limit, self.num_steps)

    def put(self, batch: Batch, column: int) -> None:
        """Add a batch; the last one of the awaited step wakes its taker."""
        made = self._made.setdefault(batch.step, {})
        made[column] = batch
        # Who takes says what it awaits before it looks whether that is there: so one of us sees it.
        if batch.step == self._awaited and len(made) == self._num_accelerators:
            with self.changed:
                self.changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Have the error raised where the next step is taken; the first one counts."""
        with self.changed:
            self._error = self._error or error
            self.changed.notify_all()

    def take(
        self, step: int, *, look: Callable[[], None] = lambda: None, every: float | None = None
    ) -> list[Batch]:
        """Wait for all batches of a step; `look` is called every so many seconds.

        Raises:
            Exception: what `fail` or `look` said.
        """
        self._awaited = step
        with self.changed:
            while not self.changed.wait_for(lambda: self._error or self._whole(step), every):
                look()
            if self._error is not None:
                raise self._error
            made = self._made.pop(step)
            return [made[column] for column in range(self._num_accelerators)]

    def _whole(self, step: int) -> bool:
        return len(self._made.get(step, ())) == self._num_accelerators
