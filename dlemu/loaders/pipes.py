"""What torch's DataLoader and its workers talk through, made of what the kernel has.

Queues are pipes, written to where a message comes up. multiprocessing.Queue hands every message to
a thread of the sender, which has to wake up, take Python's lock and write: three such threads work
for a batch, and they cost more than to read it.
"""

import copy
import mmap
import os
import pickle
import queue
import select
import weakref
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context, reduction
from multiprocessing.context import BaseContext
from typing import Any, Literal

_LENGTH_BYTES = 4
_AT_ONCE = 1 << 16
_MOST_MESSAGES = 256
"""Small ones that a pipe of Linux surely holds: its 64 KiB, at 256 bytes each."""


class Pipe:
    """A queue from any processes to one, with the methods that torch's DataLoader calls.

    `put` blocks while the pipe is full.
    """

    def __init__(self, context: BaseContext) -> None:
        self._lock = context.Lock()
        self._reader, self._writer = os.pipe()
        self._begin()

    def _begin(self) -> None:
        self._unread = bytearray()
        self._poll: select.poll | None = None

    def __getstate__(self) -> tuple[Any, ...]:
        # As a process is spawned, and only then, locks and descriptors can go with it.
        return self._lock, reduction.DupFd(self._reader), reduction.DupFd(self._writer)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._lock, reader, writer = state
        self._reader, self._writer = reader.detach(), writer.detach()
        self._begin()

    def put(self, message: object) -> None:
        """Send a message."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        left = memoryview(len(data).to_bytes(_LENGTH_BYTES, "little") + data)
        with self._lock:
            while left:
                left = left[os.write(self._writer, left) :]

    def get(self, timeout: float | None = None) -> Any:
        """Return the next message.

        Raises:
            queue.Empty: none came for `timeout` seconds.
        """
        while (message := self._cut()) is None:
            if self._poll is None:
                self._poll = select.poll()
                self._poll.register(self._reader, select.POLLIN)
            if not self._poll.poll(None if timeout is None else timeout * 1e3):
                raise queue.Empty
            self._unread += os.read(self._reader, _AT_ONCE)
        return pickle.loads(message)

    def _cut(self) -> bytes | None:
        """Return the next message if all of it is there."""
        end = _LENGTH_BYTES + int.from_bytes(self._unread[:_LENGTH_BYTES], "little")
        if len(self._unread) < max(end, _LENGTH_BYTES + 1):
            return None
        message = bytes(self._unread[_LENGTH_BYTES:end])
        del self._unread[:end]
        return message

    def close(self) -> None:
        """Close this process's ends."""
        for end in (self._reader, self._writer):
            if end >= 0:
                os.close(end)
        self._reader = self._writer = -1

    def cancel_join_thread(self) -> None:
        """Do nothing: there is no thread to wait for."""

    def __del__(self) -> None:
        self.close()


class Flag:
    """An event between processes, with the methods that torch's DataLoader calls.

    Without a lock: who is killed while he holds that of multiprocessing.Event, and workers take it
    for every batch, leaves the others waiting for ever.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("dlemu flag")
            os.ftruncate(descriptor, mmap.PAGESIZE)
        self._descriptor = descriptor
        self._memory = mmap.mmap(descriptor, mmap.PAGESIZE)

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach_flag, (reduction.DupFd(self._descriptor),)

    def __del__(self) -> None:
        os.close(self._descriptor)

    def set(self) -> None:
        """Raise it for all."""
        self._memory[0] = 1

    def is_set(self) -> bool:
        """Return whether anybody has raised it."""
        return self._memory[0] == 1


def _attach_flag(duplicate: Any) -> Flag:
    return Flag(duplicate.detach())


class Requests:
    """Holds back what this process puts into queues, until it is to be sent.

    torch's DataLoader asks a worker for one more batch in the call that returns one. The loop that
    is emulated makes that call later than we do.
    """

    def __init__(self) -> None:
        self.held = False
        self._kept: list[Callable[[], None]] = []

    def watch(self, queue: Any) -> Any:
        """Return the queue, whose messages are held back from now on while `held` is set."""
        put, reference = type(queue).put, weakref.ref(queue)  # no cycle: a queue ends in time

        def put_or_keep(*message: Any, **how: Any) -> None:
            queue = reference()
            if queue is None:  # torch says goodbye to a queue that was collected with it
                return
            now = partial(put, queue, *message, **how)
            if self.held:
                self._kept.append(now)
            else:
                now()

        queue.put = put_or_keep
        return queue

    def send(self) -> None:
        """Send what was held back, in its order."""
        kept, self._kept = self._kept, []
        for put in kept:
            put()

    def drop(self) -> None:
        """Forget what was held back: its epoch has ended."""
        self.held = False
        self._kept.clear()


def lean_context(
    method: Literal["fork", "forkserver", "spawn"], *, num_messages: int, requests: Requests
) -> BaseContext:
    """Return a context of multiprocessing whose events have no lock and whose queues are pipes.

    `num_messages` may be under way at once. If that is so many that they could fill the pipes of
    both sides, who would then wait for one another, queues are multiprocessing's. `requests` may
    hold back what is put into them.
    """
    context = copy.copy(get_context(method))
    make = partial(Pipe, context) if num_messages <= _MOST_MESSAGES else context.Queue
    setattr(context, "Event", Flag)  # noqa: B010  (both hide methods)
    setattr(context, "Queue", lambda: requests.watch(make()))  # noqa: B010
    return context
