"""All that relies on how torch's DataLoader works inside, and so may break with a new torch.

A DataLoader makes its queues, events and processes with the multiprocessing context that it is
given: Queue(), Event() and Process() are all that it calls. So our context replaces the queues and
events, holds back requests, and learns which processes the workers are.
tests/loaders/test_torch_internals.py checks each of these with the torch that is installed.
"""

import contextlib
import copy
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from dlemu.loaders.descriptors import MOST_MESSAGES
from dlemu.loaders.pipes import Flag, LeanProcess, Method, Pipe

SHUT_DOWN, IS_SHUT_DOWN = "_shutdown_workers", "_shutdown"
"""Names of a DataLoader's iterator: the method that ends its workers, and whether it has."""
ITERATOR, WATCHES = "_iterator", "_worker_pids_set"
"""Names of a DataLoader's kept iterator, and of whether torch's handler of SIGCHLD looks at it."""


class Requests:
    """Holds back what this process puts into queues, until `send`.

    torch's DataLoader requests one more batch in the same call that returns one; dlemu makes that
    call earlier than the training loop that it emulates.
    """

    def __init__(self) -> None:
        self.held = False
        self._kept: list[Callable[[], None]] = []

    def watch(self, queue: Any) -> Any:
        """Return the queue; from now on its messages are held back while `held` is set."""
        put, reference = type(queue).put, weakref.ref(queue)  # a cycle would keep the queue alive

        def put_or_keep(*message: Any, **how: Any) -> None:
            queue = reference()
            if queue is None:  # torch's iterator, collected with its queue, sends a last message
                return
            now = partial(put, queue, *message, **how)
            if self.held:
                self._kept.append(now)
            else:
                now()

        queue.put = put_or_keep
        return queue

    def send(self) -> None:
        """Send what was held back, in order."""
        kept, self._kept = self._kept, []
        for put in kept:
            put()

    def drop(self) -> None:
        """Forget what was held back: its epoch has ended."""
        self.held = False
        self._kept.clear()


def lean_context(
    method: Method, *, num_messages: int, requests: Requests, processes: list[BaseProcess]
) -> BaseContext:
    """Return a multiprocessing context whose events have no lock and whose queues are pipes.

    `num_messages` may be under way at once. More than MOST_MESSAGES could fill the pipes of both
    sides, which would deadlock: then queues are multiprocessing's. `requests` may hold back what
    this process puts into them. Each new process is appended to `processes`.
    """
    context: Any = copy.copy(get_context(method))
    make = partial(Pipe, context) if num_messages <= MOST_MESSAGES else context.Queue
    make_process = LeanProcess if method == "fork" else context.Process

    def keep_process(*given: Any, **named: Any) -> BaseProcess:
        processes.append(make_process(*given, **named))
        return processes[-1]

    context.Event = partial(Flag, method)
    context.Queue = lambda: requests.watch(make())
    context.Process = keep_process
    return context  # type: ignore[no-any-return]


@contextlib.contextmanager
def many_workers() -> Iterator[None]:
    """Suppress torch's warning of more workers than CPUs: whoever emulates so many knows it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def stop_watching(loader: Any) -> None:
    """Keep torch's handler of SIGCHLD from an error in this process if a worker is ended.

    A worker that begins just now has no handler of SIGTERM yet, and is killed by it. The handler of
    SIGCHLD is there if the user's program has a DataLoader of its own.
    """
    from torch.utils.data._utils.signal_handling import _remove_worker_pids  # type: ignore[attr-defined, unused-ignore]

    iterator = getattr(loader, ITERATOR, None)
    if getattr(iterator, WATCHES, False):
        _remove_worker_pids(id(iterator))
        setattr(iterator, WATCHES, False)


def disarm(error: BaseException) -> None:
    """Keep torch from a traceback when it collects the iterator that could not be made."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        made: Any = frame.f_locals.get("self")
        if hasattr(made, SHUT_DOWN):
            setattr(made, IS_SHUT_DOWN, True)
