"""io_uring: many reads or writes in flight from one thread, with one system call for several.

A thin binding of the kernel's interface, as io_uring(7), io_uring_setup(2) and io_uring_enter(2)
describe it. Each place of the queue has its own memory and its own submission entry, which is
written once: for the next block only the offset changes, and the place's number joins the ring.
"""

import ctypes
import errno
import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

from dlemu.errors import RunError, reason_of, system_error
from dlemu.host.devices import read_text

_READ, _WRITE = 22, 23
"""Operations of an entry: IORING_OP_READ, IORING_OP_WRITE."""

_SETUP, _ENTER = 425, 426  # numbers of the system calls, the same on all but alpha
_SINGLE_ISSUER, _DEFER_TASKRUN, _GETEVENTS = 1 << 12, 1 << 13, 1
_RINGS, _ENTRIES = 0, 0x10000000  # what mmap's offset selects
_ENTRY_BYTES, _COMPLETION_BYTES = 64, 16
_WRAP = 0xFFFFFFFF  # heads and tails are 32-bit counters

_TOGETHER = 4
"""Places that are refilled before the kernel is called: with more, the drive's queue runs low while
Python works through a batch; with fewer, more calls are made."""
_MANY = 8192
"""Latencies that are handed over at once."""

_DISABLED = Path("/proc/sys/kernel/io_uring_disabled")
# PyDLL keeps Python's lock during a call. A process has one ring and no other thread.
_call = ctypes.PyDLL(None, use_errno=True).syscall
_call.restype = ctypes.c_long
# Plain numbers, which ctypes passes as int: with c_long a call takes half as long again.


class Ring:
    """A queue for one open file, used by one thread of a process that has no others."""

    def __init__(
        self, file: int, *, depth: int, size: int, address: int, writes: bool = False
    ) -> None:
        """Set up the queue: place i has `size` bytes of memory from `address` + i x `size` on.

        It reads into this memory, or writes from it.

        Raises:
            RunError: the kernel has no io_uring, or does not permit it.
        """
        self.depth, self._size = depth, size
        self._file, parameters = _set_up(depth)
        submissions, completions = struct.unpack_from("2I", parameters)
        # struct io_sqring_offsets and io_cqring_offsets: head, tail, mask, entries, …
        sq, cq = struct.unpack_from("7I", parameters, 40), struct.unpack_from("6I", parameters, 80)
        length = max(sq[6] + 4 * submissions, cq[5] + _COMPLETION_BYTES * completions)
        rings = mmap.mmap(self._file, length, offset=_RINGS)
        self._words = memoryview(rings).cast("I")
        self._sq_tail, self._sq_mask, self._order = sq[1] // 4, submissions - 1, sq[6] // 4
        self._cq_head, self._cq_tail, self._cq_mask = cq[0] // 4, cq[1] // 4, completions - 1
        self._completions = cq[5] // 4
        self._entries = mmap.mmap(self._file, _ENTRY_BYTES * submissions, offset=_ENTRIES)
        self._offsets = memoryview(self._entries).cast("Q")
        operation = _WRITE if writes else _READ
        for place in range(depth):
            # opcode, flags, ioprio, fd, off, addr, len, rw_flags, user_data
            fields = (operation, 0, 0, file, 0, address + place * size, size, 0, place)
            struct.pack_into("<BBHiQQIIQ", self._entries, _ENTRY_BYTES * place, *fields)

    def run(
        self,
        next_offset: Callable[[], int],
        until: int,
        add: Callable[[list[int]], object],
        prepare: Callable[[int], object] | None = None,
    ) -> None:
        """Keep all places busy until the clock (perf_counter_ns) says `until`.

        `add` gets the latencies, in ns, of many blocks at once. `prepare` is called with a place
        before its block is asked for. What is in flight at the end is waited for, and counts. An
        offset is asked for while the place's block before is read.

        Raises:
            OSError: a transfer failed.
            RunError: a transfer had fewer bytes than a block.
        """
        times = list[int]()
        words, offsets, order, fd = self._words, self._offsets, self._order, self._file
        sq_mask, cq_mask, size, clock = (
            self._sq_mask,
            self._cq_mask,
            self._size,
            time.perf_counter_ns,
        )
        sq_tail, cq_tail, completions = self._sq_tail, self._cq_tail, self._completions
        for place in range(self.depth):
            if prepare is not None:
                prepare(place)
            offsets[8 * place + 1] = next_offset()
            words[order + place] = place
        head, tail, in_flight = 0, self.depth, self.depth
        started = [clock()] * self.depth
        words[sq_tail] = tail
        self._submit(tail)
        if started[0] < until:
            for place in range(self.depth):
                offsets[8 * place + 1] = next_offset()
        while in_flight:
            num_done = (words[cq_tail] - head) & _WRAP
            if not num_done:
                if _call(_ENTER, fd, 0, 1, _GETEVENTS, 0, 0) < 0:
                    _check_again()
                continue
            first, number = head, num_done if num_done < _TOGETHER else _TOGETHER
            head += number
            now = clock()
            refill = now < until
            # Up to the call the drive waits, so what can be done later is.
            if refill:
                for count in range(first, head):
                    place = words[completions + 4 * (count & cq_mask)]
                    if prepare is not None:
                        prepare(place)
                    words[order + (tail & sq_mask)] = place
                    tail += 1
                words[sq_tail] = tail & _WRAP
                # Others that are done meanwhile are reaped by the same call.
                reap = _GETEVENTS if number < in_flight else 0
                taken = _call(_ENTER, fd, number, 0, reap, 0, 0)
                if taken != number:
                    self._submit(number - max(0, taken))
            else:
                in_flight -= number
            for count in range(first, head):
                at = completions + 4 * (count & cq_mask)  # user_data (u64), res (i32), flags
                place = words[at]
                if words[at + 2] != size:
                    _refuse(words[at + 2])
                if refill:
                    offsets[8 * place + 1] = next_offset()
                times.append(now - started[place])
                started[place] = now
            words[self._cq_head] = head & _WRAP
            if len(times) >= _MANY:
                add(times)
                times.clear()
        add(times)

    def _submit(self, number: int) -> None:
        """Hand over this many entries, in several calls if need be."""
        while number:
            taken = _call(_ENTER, self._file, number, 0, 0, 0, 0)
            if taken < 0:
                _check_again()
            number -= max(0, taken)

    def close(self) -> None:
        """Close the queue. The kernel holds the memory of what is in flight until it is done."""
        os.close(self._file)


def _check_again() -> None:
    """Raise the error of a call, unless the call may be made again."""
    number = ctypes.get_errno()
    if number not in (errno.EINTR, errno.EAGAIN, errno.EBUSY):
        raise system_error(number)


def problem() -> str | None:
    """Return why io_uring cannot be used here; None if it can."""
    try:
        file, _ = _set_up(1)
    except RunError as error:
        return str(error)
    os.close(file)
    return None


def _set_up(depth: int) -> tuple[int, bytearray]:
    """Return the queue's file, and struct io_uring_params as the kernel filled it in."""
    number = 0
    # With both flags (Linux 6.1) the kernel completes requests only while this thread is in a call:
    # so what is read of the ring cannot change meanwhile, on a CPU of any memory order.
    for flags in (_SINGLE_ISSUER | _DEFER_TASKRUN, 0):
        parameters = bytearray(120)
        struct.pack_into("I", parameters, 8, flags)
        file = _call(_SETUP, depth, (ctypes.c_char * 120).from_buffer(parameters))
        if file >= 0:
            return int(file), parameters
        number = ctypes.get_errno()
        if number != errno.EINVAL:
            break
    why = reason_of(system_error(number))
    raise RunError(f"io_uring cannot be used ({why}){_why(number)}")


def _why(number: int) -> str:
    """Return what keeps io_uring away, and what to do."""
    setting = read_text(_DISABLED).strip() or "0"
    if number == errno.EPERM and setting != "0":
        return f": {_DISABLED} is {setting}; root may set it to 0"
    if number in (errno.EPERM, errno.ENOSYS):
        return ": seccomp forbids it, or the kernel has none; a container needs a profile with it"
    if number == errno.ENOMEM:
        return ": too little memory may be locked (ulimit -l); ask for smaller queue_depths"
    return ""


def _refuse(result: int) -> None:
    """Raise what a result of an entry other than the block's size means, as an unsigned number."""
    number = (1 << 32) - result
    if number < 4096:
        raise system_error(number)
    raise RunError(f"short transfer of {result} bytes")
