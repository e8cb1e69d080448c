"""The steps of an epoch, put together from the batches of all accelerators of a rank."""

import threading
from collections import defaultdict
from collections.abc import Callable

from dlemu.loaders import Batch


class Steps:
    """Takes batches from many threads; hands over a step when it is whole.

    `changed` guards what is here, and is notified when there is something for who waits.
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
        self._made: dict[int, dict[int, Batch]] = defaultdict(dict)

    def put(self, batch: Batch, column: int) -> None:
        """Add a batch; the last one of the awaited step wakes its taker."""
        with self.changed:
            made = self._made[batch.step]
            made[column] = batch
            if len(made) == self._num_accelerators and batch.step == self._awaited:
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
        with self.changed:
            self._awaited = step
            while not self.changed.wait_for(lambda: self._error or self._whole(step), every):
                look()
            if self._error is not None:
                raise self._error
            made = self._made.pop(step)
            return [made[column] for column in range(self._num_accelerators)]

    def _whole(self, step: int) -> bool:
        return len(self._made[step]) == self._num_accelerators
