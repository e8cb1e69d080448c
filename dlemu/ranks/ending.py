"""Ends a process even if its main thread is in a system call that never returns.

Python handles signals in the main thread only, between two calls; so this runs in other threads.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self

from dlemu.errors import LostRankError
from dlemu.terminal import complain

LastAct = Callable[[BaseException], object]

_ACT_SECONDS = 3.0
"""Time for one last act: the run's folder may be on the storage that hangs."""
_CLEAN_SECONDS = 2.0
"""Time for an interrupted main thread to end by itself."""
_EXIT_SECONDS = 10.0
"""Time for the interpreter to end: it waits for its threads, and one may be stuck."""
_LOOK_SECONDS = 0.25
INTERRUPTED = 130
"""Exit status that shells give a command ended by SIGINT."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_last_acts: list[tuple[LastAct, Callable[[], object]]] = []


@contextmanager
def last_act(act: LastAct, *, late: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Make `end_process` call `act(error)`, until the `with` ends; `late` if it takes too long."""
    both = act, late
    _last_acts.append(both)
    try:
        yield
    finally:
        _last_acts.remove(both)


def end_process(
    error: BaseException, status: int, *, leave: Callable[[int], int] = lambda status: status
) -> None:
    """Call the last acts, each for a limited time; end the process without cleaning up.

    `leave(status)` is called after them and returns the exit status.
    """
    for act, late in reversed(_last_acts):
        thread = threading.Thread(target=act, args=(error,), daemon=True)
        thread.start()
        thread.join(_ACT_SECONDS)
        if thread.is_alive():
            late()
    with suppress(Exception):
        status = leave(status)
    os._exit(status)


class Interrupts:
    """Makes the first SIGINT or SIGTERM end the process, whatever the main thread does.

    The signal raises KeyboardInterrupt. If the main thread does not end in time, for example in a
    system call that never returns, a thread ends the process. Later signals have no effect.
    """

    def __init__(self) -> None:
        self.speaks = True
        """Whether this process prints "interrupted"; of several ranks, one does."""
        self.cause: Callable[[BaseException], BaseException] = lambda error: error
        """Tells the end of another rank that let a launcher interrupt this one: `World.cause`."""
        self._has_spoken = False
        self._since: float | None = None
        self._main = threading.get_ident()
        self._left = False
        self._before: dict[signal.Signals, object] = {}
        self._thread = threading.Thread(target=self._watch, name="interrupts", daemon=True)

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            # A shell's background job ignores SIGINT from the start; it stays so.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._come)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left = True
        signal.pthread_kill(self._thread.ident or 0, signal.SIGINT)  # only wakes it
        self._thread.join()
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def say(self) -> int:
        """Print "interrupted", once; return the exit status."""
        if self.speaks and not self._has_spoken:
            self._has_spoken = True
            complain("interrupted")
        return INTERRUPTED

    def _come(self, number: int, frame: FrameType | None) -> None:
        # The SIGINT of __exit__ arrives here if the thread has not blocked it yet.
        if self._since is None and not self._left:
            self._since = time.perf_counter()
            raise KeyboardInterrupt

    def _watch(self) -> None:
        taken = None
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        while not self._left:
            # A blocked main thread does not take the signal; sigtimedwait then gets it.
            found = signal.sigtimedwait(_SIGNALS, _LOOK_SECONDS)
            now = time.perf_counter()
            if found is not None and not self._left:
                signal.pthread_kill(self._main, found.si_signo)
                taken = now
            since = taken if self._since is None else self._since
            if since is not None and now - since > _CLEAN_SECONDS and not self._left:
                error = self.cause(KeyboardInterrupt())
                if isinstance(error, LostRankError):
                    complain(str(error))
                    end_process(error, 1)
                end_process(KeyboardInterrupt(), self.say())


def end_soon(status: int) -> None:
    """End the process after some seconds, in case its own end hangs."""
    timer = threading.Timer(_EXIT_SECONDS, os._exit, [status])
    timer.daemon = True
    timer.start()


def say_launcher_waits(hosts: Iterable[str]) -> None:
    """Say how to end a launcher that waits for hosts which cannot be reached any more.

    Open MPI's mpirun waits for them without limit, also after an abort. It is not ours to kill.
    """
    parent = os.getppid()
    with suppress(OSError):
        with open(f"/proc/{parent}/comm", encoding="utf-8", errors="replace") as file:
            name = file.read().strip()
        how = f"kill -9 {parent}" if name in ("prterun", "orterun", "mpirun") else "Ctrl-C twice"
        complain(f"if mpirun goes on waiting for host {', '.join(hosts)}, this ends it: {how}")
