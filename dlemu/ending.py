"""Ends a process although its main thread may be in a system call that never returns.

The main thread handles signals, and only between two calls. What is here runs in other threads.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self

from dlemu.terminal import complain

LastAct = Callable[[BaseException], object]

_ACT_SECONDS = 3.0
"""How long a last act may take: the run's folder may be on the storage that hangs."""
_CLEAN_SECONDS = 2.0
"""How long an interrupted main thread may take to end by itself."""
_EXIT_SECONDS = 10.0
"""How long the interpreter may take to end: it waits for threads, of which one may be stuck."""
_LOOK_SECONDS = 0.25
_INTERRUPTED = 130
"""What shells give a command that SIGINT ended."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_last_acts: list[LastAct] = []


@contextmanager
def last_act(act: LastAct) -> Iterator[None]:
    """Have `end_process` call `act(error)`, until the `with` ends."""
    _last_acts.append(act)
    try:
        yield
    finally:
        _last_acts.remove(act)


def end_process(
    error: BaseException, status: int, *, leave: Callable[[int], int] = lambda status: status
) -> None:
    """Do the last acts, as far as they come to an end; end the process without cleaning up.

    `leave(status)` comes after them and returns the status to end with.
    """
    for act in reversed(_last_acts):
        thread = threading.Thread(target=act, args=(error,), daemon=True)
        thread.start()
        thread.join(_ACT_SECONDS)
    with suppress(Exception):
        status = leave(status)
    os._exit(status)


class Interrupts:
    """Lets the first Ctrl-C, or SIGTERM, end the process, whatever the main thread is doing.

    It becomes a KeyboardInterrupt. If the main thread does not end in time, or is in a system call
    that never returns, the process ends all the same. Signals that follow change nothing.
    """

    def __init__(self) -> None:
        self.speaks = True
        """Whether this process says that it was interrupted: of several ranks, one does."""
        self._said = False
        self._since: float | None = None
        self._main = threading.get_ident()
        self._left = False
        self._before: dict[signal.Signals, object] = {}
        self._thread = threading.Thread(target=self._watch, name="interrupts", daemon=True)

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            # Whoever ignores a signal from the start goes on to: a shell's background job.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._come)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left = True
        signal.pthread_kill(self._thread.ident or 0, signal.SIGINT)  # wakes it, and no more
        self._thread.join()
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def say(self) -> int:
        """Say once that the process was interrupted; return its exit status."""
        if self.speaks and not self._said:
            self._said = True
            complain("interrupted")
        return _INTERRUPTED

    def _come(self, number: int, frame: FrameType | None) -> None:
        # At the end our own SIGINT comes here if the thread has not got as far as to block it.
        if self._since is None and not self._left:
            self._since = time.perf_counter()
            raise KeyboardInterrupt

    def _watch(self) -> None:
        taken = None
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        while not self._left:
            # A signal that the main thread does not take is left to any other that asks.
            found = signal.sigtimedwait(_SIGNALS, _LOOK_SECONDS)
            now = time.perf_counter()
            if found is not None and not self._left:
                signal.pthread_kill(self._main, found.si_signo)
                taken = now
            since = taken if self._since is None else self._since
            if since is not None and now - since > _CLEAN_SECONDS and not self._left:
                end_process(KeyboardInterrupt(), self.say())


def end_soon(status: int) -> None:
    """End the process in some seconds, should its own end hang."""
    timer = threading.Timer(_EXIT_SECONDS, os._exit, [status])
    timer.daemon = True
    timer.start()
