"""Queues, shared memory, events and processes for worker processes, straight on Linux.

A queue is a pipe, and `put` writes to it. multiprocessing.Queue hands every message to a thread of
the sender, which has to wake up, take Python's lock and write. Three such threads work for a batch,
and they cost more than reading it.

The second half has all that relies on how torch's DataLoader works inside, and so may break with a
new torch. A DataLoader makes its queues, events and processes with the multiprocessing context that
it is given: Queue(), Event() and Process() are all that it calls. So our context replaces the
queues and events, holds back requests, and learns which processes the workers are.
tests/loaders/test_pipes.py checks each of these with the torch that is installed.
"""

import copy
import mmap
import os
import pickle
import queue
import select
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context, popen_fork, reduction
from multiprocessing.context import BaseContext, ForkProcess
from multiprocessing.process import BaseProcess
from multiprocessing.util import get_temp_dir
from queue import Empty, SimpleQueue
from typing import Any, Literal, TypeVar

from dlemu.errors import WorkloadError
from dlemu.units import counted

Method = Literal["fork", "forkserver", "spawn"]
T = TypeVar("T")

MOST_MESSAGES = 256
"""Messages that a pipe of Linux (64 KiB) always holds, at 256 bytes each."""
_MOST_OF_A_SOCKET = 107
"""Bytes of a socket's path (unix(7))."""
_LENGTH_BYTES = 4
_AT_ONCE = 1 << 16


class Pipe:
    """A queue from any number of processes to one, with the methods that torch's DataLoader calls.

    `put` blocks while the pipe is full.
    """

    _both = -1
    """One descriptor for both ends: a rank has a pipe for every worker, and few descriptors."""

    def __init__(self, context: BaseContext) -> None:
        self._lock = context.Lock()
        reader, writer = os.pipe()
        try:
            self._both = os.open(f"/proc/self/fd/{reader}", os.O_RDWR | os.O_CLOEXEC)
        finally:
            os.close(reader)
            os.close(writer)
        self._unread = bytearray()
        self._poll: select.poll | None = None

    def __getstate__(self) -> tuple[Any, ...]:
        # Locks and descriptors can be pickled only while a process is spawned.
        return self._lock, reduction.DupFd(self._both)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._lock, both = state
        self._both = both.detach()
        self._unread, self._poll = bytearray(), None

    def put(self, message: object) -> None:
        """Send a message."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        left = memoryview(len(data).to_bytes(_LENGTH_BYTES, "little") + data)
        with self._lock:
            while left:
                left = left[os.write(self._both, left) :]

    def get(self, timeout: float | None = None) -> Any:
        """Return the next message; raise queue.Empty if none came for `timeout` seconds."""
        while (message := self._cut()) is None:
            if self._poll is None:
                self._poll = select.poll()
                self._poll.register(self._both, select.POLLIN)
            if not self._poll.poll(None if timeout is None else timeout * 1e3):
                raise queue.Empty
            self._unread += os.read(self._both, _AT_ONCE)
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
        if self._both >= 0:
            os.close(self._both)
        self._both = -1

    def cancel_join_thread(self) -> None:
        """Do nothing: there is no thread to wait for."""

    def __del__(self) -> None:
        self.close()


class SharedMemory:
    """Zeroed memory that a process shares with the processes that it starts.

    It has no name: nothing is left in /dev/shm however a process dies, and a small /dev/shm (as in
    containers) does not limit it. Forked processes inherit it without a descriptor.
    """

    _descriptor = -1

    def __init__(self, num_bytes: int, method: Method, descriptor: int = -1) -> None:
        self._num_bytes, self._method, self._descriptor = num_bytes, method, descriptor
        if descriptor < 0 and method != "fork":
            self._descriptor = os.memfd_create("dlemu")
            os.ftruncate(self._descriptor, num_bytes)
        self.bytes = mmap.mmap(self._descriptor, num_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (self._num_bytes, self._method, reduction.DupFd(self._descriptor))

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def _attach(num_bytes: int, method: Method, duplicate: Any) -> SharedMemory:
    return SharedMemory(num_bytes, method, duplicate.detach())


class Flag:
    """An event between processes, with the methods that torch's DataLoader calls.

    It has no lock: a worker that is killed while it holds the lock of a multiprocessing.Event, at
    which workers look for every batch, leaves all others waiting for ever.
    """

    def __init__(self, method: Method) -> None:
        self._memory = SharedMemory(mmap.PAGESIZE, method)

    def set(self) -> None:
        """Set the event, for all processes."""
        self._memory.bytes[0] = 1

    def is_set(self) -> bool:
        """Return whether any process has set it."""
        return self._memory.bytes[0] == 1


class _Forked(popen_fork.Popen):
    """A forked process whose end is polled; multiprocessing's own class takes two descriptors."""

    sentinel = -1

    def wait(self, timeout: float | None = None) -> int | None:
        """Return the exit code, None if the process has not ended within `timeout` seconds."""
        if timeout is None:
            return self.poll(0)
        end, pause = time.monotonic() + timeout, 0.0005
        while (code := self.poll()) is None and time.monotonic() < end:
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        return code

    def _launch(self, process_obj: Any) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            # The parent's threads (watchdog, observer, live line) are there before the first fork.
            # One of them may be printing: the stream's lock is then held for ever here.
            sys.stdout, sys.stderr = (_stream(number) for number in (1, 2))
            try:
                code = process_obj._bootstrap()
            finally:
                os._exit(code)


def _stream(number: int) -> Any:
    """Return a new text stream to a descriptor; None where that is closed."""
    with suppress(OSError):
        return open(number, "w", buffering=1, encoding="utf-8", closefd=False)
    return None


class LeanProcess(ForkProcess):
    """A forked process that takes no descriptor of its parent."""

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> _Forked:
        return _Forked(process_obj)


class Starter:
    """A thread that starts worker processes, and lives as long as this object.

    With PR_SET_PDEATHSIG the kernel kills a process when the thread that started it ends, and a
    loader may be iterated in a thread that ends early.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._started = False

    def call(self, function: Callable[[], T]) -> T:
        """Return what `function` returns, called in the thread; raise what it raises."""
        if not self._started:
            run = partial(_run_calls, self._calls)  # which does not hold this object
            threading.Thread(target=run, daemon=True, name="dlemu starter").start()
            self._started = True
        future: Future[T] = Future()

        def answer() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._calls.put(answer)
        return future.result()

    def close(self) -> None:
        """End the thread, and with it the processes; may be called again."""
        self._calls.put(None)

    def __del__(self) -> None:
        self.close()


def _run_calls(calls: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # it may hold the Starter, whose end ends this thread


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
        self._process = os.getpid()

    def watch(self, queue: Any) -> Any:
        """Return the queue; from now on its messages are held back while `held` is set.

        Those of a forked process, which may have been started meanwhile, are not.
        """
        put, reference = type(queue).put, weakref.ref(queue)  # a cycle would keep the queue alive

        def put_or_keep(*message: Any, **how: Any) -> None:
            queue = reference()
            if queue is None:  # torch's iterator, collected with its queue, sends a last message
                return
            now = partial(put, queue, *message, **how)
            if self.held and os.getpid() == self._process:
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


class Arrivals:
    """Takes each message out of a queue as soon as it is there, in a thread, and changes it.

    torch's DataLoader does so where it pins batches: a thread copies them in the order in which
    they come, which may not be the one in which they are wanted. The thread needs a GPU; this one
    does not.
    """

    _INTERVAL = 0.1
    """Seconds between two looks at whether the thread is to end."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        """`change` returns what is handed on in place of a message."""
        self._change = change
        self._process = os.getpid()
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def watch(self, queue: Any) -> Any:
        """Return the queue; what this process gets from it has passed through the thread."""
        get, ready = type(queue).get, SimpleQueue[tuple[Any, Exception | None]]()
        reference, threads = weakref.ref(queue), list[threading.Thread]()

        def get_changed(*given: Any, **how: Any) -> Any:
            own = reference()
            if os.getpid() != self._process:  # a worker gets its requests at first hand
                return get(own, *given, **how)
            if not threads:
                threads.append(threading.Thread(target=self._take, args=(own, ready), daemon=True))
                self._threads += threads
                threads[0].start()
            message, error = ready.get(*given, **how)
            if error is not None:
                raise error
            return message

        queue.get = get_changed
        return queue

    def close(self) -> None:
        """End the threads; may be called again."""
        self._ended.set()
        while self._threads:  # one that waits for the rest of a killed worker's message is left
            self._threads.pop().join(10 * self._INTERVAL)

    def _take(self, queue: Any, ready: "SimpleQueue[tuple[Any, Exception | None]]") -> None:
        get = partial(type(queue).get, queue, timeout=self._INTERVAL)
        while not self._ended.is_set():
            try:
                ready.put((self._change(get()), None))
            except Empty:
                pass
            except Exception as error:  # of a worker that died while it sent a message
                ready.put((None, error))


def lean_context(
    method: Method,
    *,
    num_messages: int,
    requests: Requests,
    processes: list[BaseProcess],
    arrivals: Arrivals | None = None,
) -> BaseContext:
    """Return a multiprocessing context whose events have no lock and whose queues are pipes.

    `num_messages` may be under way at once. More than MOST_MESSAGES could fill the pipes of both
    sides, which would deadlock: then queues are multiprocessing's, as where tensors pass through
    them, which are `arrivals`. `requests` may hold back what this process puts into them. Each new
    process is appended to `processes`.

    Raises:
        WorkloadError: tensors cannot pass, as the path of temporary files is too long.
    """
    if arrivals is not None:
        # A worker passes tensors on through a socket in a folder of its parent's, or in one that it
        # makes itself: that would be left, as it is ended by a signal.
        _check_sockets(get_temp_dir())
    context: Any = copy.copy(get_context(method))
    by_pipe = num_messages <= MOST_MESSAGES and arrivals is None
    make = partial(Pipe, context) if by_pipe else context.Queue
    make_process = LeanProcess if method == "fork" else context.Process

    def keep_process(*given: Any, **named: Any) -> BaseProcess:
        processes.append(make_process(*given, **named))
        return processes[-1]

    context.Event = partial(Flag, method)
    watch = _unchanged if arrivals is None else arrivals.watch
    context.Queue = lambda: requests.watch(watch(make()))
    context.Process = keep_process
    return context  # type: ignore[no-any-return]


def _check_sockets(folder: str) -> None:
    """Refuse a folder whose sockets would have too long a path: all would wait for a tensor."""
    over = len(os.fsencode(folder)) + len("/listener-01234567") - _MOST_OF_A_SOCKET
    if over > 0:
        raise WorkloadError(
            f"workers pass batches on through sockets below {os.path.dirname(folder)}, whose path "
            f"is {counted(over, 'byte')} too long for that; set TMPDIR=/tmp"
        )


def _unchanged(queue: Any) -> Any:
    return queue


@contextmanager
def many_workers() -> Iterator[None]:
    """Suppress torch's warning of more workers than CPUs: here it is intended."""
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
