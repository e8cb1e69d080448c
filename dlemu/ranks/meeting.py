"""Where the ranks of a host meet at a barrier: shared memory says who is there, eventfds wake."""

import mmap
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from resource import RUSAGE_THREAD, getrusage

SPIN_SECONDS, BUSY_SPIN_SECONDS = 3e-4, 1e-4
"""Seconds for which a rank looks for the others before it sleeps, if they came that soon last time.

Waking up takes 30 to 150 µs, so ranks that sleep come late to the next barrier, too. Ranks that
look leave together, and then meet within some µs (docs/performance.md). The second is for a host
whose CPUs are few and busy: there a rank that looks keeps another one from its CPU.
"""
_REMEMBERED = 4
"""Barriers of which one must have been short: one rank that is late once shall not send all to
sleep, which then come late one after the other."""
_TURNS, _PREEMPTIONS = 32, 4
"""The CPUs are busy if so many times within so many barriers another program took this thread's."""
_TIME = struct.Struct("d")
_MOST_FILES = 250
"""Descriptors that one message may carry: Linux takes 253."""


class Meeting:
    """The barrier of a host's ranks, from the view of one of them.

    Shared memory holds one byte a rank, the number of the barrier at which it is (modulo 256), one
    for all, the number of the last barrier that they may leave, and one more a rank: whether it may
    sleep, on its sockets and its eventfd. Each byte of a rank is written by that rank alone; two
    ranks write the same into the one for all. So no lock can be left behind by a rank that is
    killed. Only ranks that may sleep are woken: that takes some µs for each.
    """

    def __init__(
        self,
        place: int,
        files: list[int],
        *,
        now: Callable[[], float] = time.perf_counter,
        preempted: Callable[[], int] = lambda: getrusage(RUSAGE_THREAD).ru_nivcsw,
    ) -> None:
        """Join as rank number `place` of the host; `files` are those of `make_files`.

        `preempted` tells how often another program has taken the CPU of the calling thread.
        """
        memory, *self._wakers = files
        self._place, self._num, self._now = place, len(self._wakers), now
        self._count_preempted = preempted
        self._may_sleep_at = self._num + 1
        self._time_at = _time_at(self._num)
        self._memory = mmap.mmap(memory, self._time_at + _TIME.size)
        os.close(memory)
        self._turn = 0
        self._spin, self._preempted = BUSY_SPIN_SECONDS, preempted()
        self._waits: deque[float] = deque([0.0], maxlen=_REMEMBERED)
        self._all = bytes(self._num)
        self._arrived = self.opened = 0.0
        """When the barrier that this rank has left was opened."""

    @property
    def file(self) -> int:
        """The descriptor that becomes readable when this rank should look again."""
        return self._wakers[self._place]

    def arrive(self) -> None:
        """Be at the next barrier."""
        self._turn = (self._turn + 1) % 256
        self._all = bytes([self._turn]) * self._num
        self._arrived = self._now()
        self._memory[self._may_sleep_at + self._place] = 0
        self._memory[self._place] = self._turn

    @property
    def is_full(self) -> bool:
        """Whether all ranks of the host are at this barrier; not to be asked once it is open."""
        return self._memory[: self._num] == self._all

    @property
    def is_open(self) -> bool:
        """Whether the ranks may leave this barrier."""
        return self._memory[self._num] == self._turn

    def here(self) -> Iterator[int]:
        """Yield the places of the ranks that are at this barrier."""
        return (place for place in range(self._num) if self._memory[place] == self._turn)

    def open(self) -> None:
        """Let all ranks leave."""
        _TIME.pack_into(self._memory, self._time_at, self._now())
        self._memory[self._num] = self._turn
        # A system call, as in `may_sleep`: one of the two sees what the other has written.
        os.getppid()
        for place, may_sleep in enumerate(self._memory[self._may_sleep_at : self._time_at]):
            if may_sleep and place != self._place:
                self.wake(place)

    def may_sleep(self) -> None:
        """Note that this rank is to be woken; the caller looks once more before it sleeps."""
        self._memory[self._may_sleep_at + self._place] = 1
        self.rest()

    def wake(self, place: int) -> None:
        """Have a rank look again; the call also makes others see what was written before it."""
        os.eventfd_write(self._wakers[place], 1)

    def leave(self) -> None:
        """Note how long the others were awaited: so the next barrier knows whether to sleep."""
        (self.opened,) = _TIME.unpack_from(self._memory, self._time_at)
        self._waits.append(self.opened - self._arrived)
        if self._turn % _TURNS == 0:
            before, self._preempted = self._preempted, self._count_preempted()
            is_busy = self._preempted - before >= _PREEMPTIONS
            self._spin = BUSY_SPIN_SECONDS if is_busy else SPIN_SECONDS

    def look(self, *, at_last: Callable[[], None]) -> None:
        """Look for the others: for a short time, if that was enough a moment ago, else once.

        A rank that sees that all have come calls `at_last`, once.
        """
        until = self._arrived + (self._spin if min(self._waits) < self._spin else 0.0)
        is_told = False
        while not self.is_open:
            if not is_told and self.is_full:
                is_told = True
                at_last()
            elif self._now() >= until:
                break
        if not self.is_open:
            # Two ranks that come at once may not see each other; after a system call they do.
            self.may_sleep()
            if self.is_full and not (is_told or self.is_open):
                at_last()

    def rest(self) -> None:
        """Forget who has woken this rank; the caller looks once more, and then may sleep."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.file)

    def close(self) -> None:
        for file in self._wakers:
            os.close(file)
        self._wakers.clear()


def _time_at(num: int) -> int:
    """Return where in the memory of so many ranks the time stands at which a barrier opened."""
    return -(-(2 * num + 1) // _TIME.size) * _TIME.size


def make_files(num: int) -> list[int]:
    """Return the descriptors that the ranks of a host share: the memory, and an eventfd a rank."""
    memory = os.memfd_create("dlemu-barrier")
    os.ftruncate(memory, _time_at(num) + _TIME.size)
    return [memory, *(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(num))]


def send_files(peer: socket.socket, files: list[int]) -> None:
    """Send descriptors to a rank of the same host."""
    for first in range(0, len(files), _MOST_FILES):
        socket.send_fds(peer, [b"f"], files[first : first + _MOST_FILES])


def receive_files(peer: socket.socket, num: int) -> list[int]:
    """Return so many descriptors that the first rank of the host has sent.

    Raises:
        OSError: it has sent something else, or this process may not open so many files.
    """
    files: list[int] = []
    while len(files) < num:
        word, found, _, _ = socket.recv_fds(peer, 1, min(_MOST_FILES, num - len(files)))
        files += found
        if word != b"f" or not found:
            raise OSError(f"{num} descriptors were expected, and {len(files)} came")
    return files
