"""Bytes of an extent: buffered or O_DIRECT, piece by piece, into memory that is used again.

Whoever reads says where consecutive bytes of a file go: a part is memory to fill, or a number of
bytes that are read and dropped. Buffered, the kernel scatters them there itself, so that a byte is
copied once; O_DIRECT needs aligned memory, so its pieces pass through an aligned buffer. Dropped
bytes all land in one buffer of a piece's size, which stays in the CPU's second-level cache.
"""

import errno
import mmap
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal

import numpy as np

from dlemu.errors import DatasetError, WorkloadError
from dlemu.host.devices import lies_in_memory, mount_under
from dlemu.storage.regular import open_regular, open_sized
from dlemu.units import PAGE_BYTES, round_up

Part = memoryview | int
Check = Callable[[memoryview], object]

HEAD_BYTES = 4096
"""First bytes of a file, in which the formats' headers lie."""
_MOST_VECTORS = os.sysconf("SC_IOV_MAX")
_CACHED_BYTES = 8 << 20
"""Taken from the page cache by one call: between calls, threads wait for Python's lock."""
_DROPPED_BYTES = 1 << 18
"""Room for what is dropped, again and again: a part of the CPU's second-level cache."""


@dataclass(slots=True, eq=False)
class File:
    """An open file."""

    path: str
    descriptor: int
    num_bytes: int
    """Its size when it was opened."""


@dataclass(slots=True)
class _Window:
    """Bytes of a file that are in memory: the next read begins with them."""

    file: File
    start: int
    stop: int
    memory: memoryview


@dataclass(slots=True)
class _Piece:
    """A read, and where its bytes go."""

    start: int
    stop: int
    memory: memoryview
    into: list[memoryview]
    parts: list[Part]
    skipped: int = 0
    """Bytes before those that are wanted: O_DIRECT begins at a multiple of 4096."""
    got: Future[int] | None = None


class ExtentReader:
    """Reads files for one worker; it is not to be shared by threads.

    Attributes:
        bytes_read: what the kernel has handed over so far.
        read_seconds: time spent in its calls, or waiting for them.
        copy_seconds: time spent copying out of aligned buffers.
    """

    def __init__(
        self, *, direct: bool, piece_bytes: int, io_depth: int = 1, max_open: int = 8
    ) -> None:
        """Reads are of `piece_bytes`, with O_DIRECT rounded up to 4096, `io_depth` at a time."""
        self.direct = direct
        self.bytes_read = 0
        self.read_seconds = 0.0
        self.copy_seconds = 0.0
        self._piece_bytes = round_up(piece_bytes) if direct else piece_bytes
        self._depth = io_depth
        self._head = memoryview(bytearray(HEAD_BYTES))
        self._buffers = [aligned_buffer(round_up(self._piece_bytes)) for _ in range(io_depth)]
        self._threads = ThreadPoolExecutor(io_depth) if io_depth > 1 else None
        self._dropped = aligned_buffer(0 if direct else _DROPPED_BYTES)
        self._cached_flags: int | None = None if direct or io_depth > 1 else os.RWF_NOWAIT
        """How to read what is in the page cache, and nothing else; None: it cannot be told."""
        self._window: _Window | None = None
        self._open: OrderedDict[str, File] = OrderedDict()
        self._max_open = max_open

    def open(self, path: str) -> File:
        """Return a file opened for reading; `close_file` ends it.

        Raises:
            DatasetError: it is missing, is no file or cannot be read.
        """
        try:
            descriptor, num_bytes = open_sized(path, os.O_DIRECT if self.direct else 0)
            return File(path, descriptor, num_bytes)
        except FileNotFoundError:
            raise DatasetError(f"{path} is missing; dlemu verify lists what is damaged") from None
        except OSError as error:
            raise DatasetError(f"{path} cannot be opened: {error.strerror}") from None

    def close_file(self, file: File) -> None:
        """End what `open` began."""
        os.close(file.descriptor)

    def keep_open(self, path: str) -> File:
        """Return a file that stays open until so many others were asked for since.

        Raises:
            DatasetError: it is missing, cannot be read, or is no longer the one that was opened.
        """
        file = self._open.pop(path, None)
        if file is None:
            file = self.open(path)
            if len(self._open) >= self._max_open:
                self.close_file(self._open.popitem(last=False)[1])
        elif (now := os.fstat(file.descriptor)).st_nlink == 0 or now.st_size != file.num_bytes:
            os.close(file.descriptor)
            raise DatasetError(f"{path} was replaced or changed while it was being read")
        self._open[path] = file
        return file

    def head(self, file: File) -> memoryview:
        """Return a file's first bytes, at most 4096; valid until the next read.

        The read that follows does not fetch them again. With O_DIRECT the whole first piece is
        read, for a small read costs a drive as much time as a large one.
        """
        memory = self._buffers[0] if self.direct else self._head
        want = min(file.num_bytes, len(memory))
        piece = _Piece(0, want, memory, [memory[: round_up(want)] if self.direct else memory], [])
        got = self._fetch(file, piece)
        self._window = _Window(file, 0, got, memory)
        return memory[: min(got, HEAD_BYTES)]

    def read(
        self,
        file: File,
        offset: int,
        parts: Sequence[Part],
        *,
        ahead: bool = False,
        check: Check | None = None,
    ) -> None:
        """Read the bytes from `offset` on into the parts, in order.

        `ahead`: more of this file is wanted next, so with O_DIRECT the last piece is read whole,
        and its rest kept. `check` is shown all bytes in order.

        Raises:
            DatasetError: the file ends before the parts do, or cannot be read.
        """
        stop = offset + sum(part if isinstance(part, int) else len(part) for part in parts)
        if stop > file.num_bytes:
            raise DatasetError(
                f"{file.path} holds {file.num_bytes} bytes, at least {stop} are wanted; "
                f"it is cut short: dlemu verify lists what is damaged"
            )
        wanted = _Parts(parts)
        start = offset
        window = self._window
        if window is not None and window.file is file and window.start <= start < window.stop:
            known = min(stop, window.stop) - start
            memory = window.memory[start - window.start :][:known]
            self._deal(memory, wanted.take(known), check)
            start += known
        if self._threads is None and not self.direct:
            self._scatter(file, start, wanted, check)
        elif start < stop:
            self._pass_through(file, start, stop, wanted, ahead, check)

    def peek(self, file: File, offset: int, num_bytes: int) -> bytes:
        """Return bytes of a file; fewer only at its end."""
        data = bytearray(max(0, min(num_bytes, file.num_bytes - offset)))
        self.read(file, offset, [memoryview(data)])
        return bytes(data)

    def close(self) -> None:
        """Close all files; end the helper threads."""
        if self._threads is not None:
            self._threads.shutdown()
        while self._open:
            self.close_file(self._open.popitem()[1])

    def _scatter(self, file: File, start: int, parts: "_Parts", check: Check | None) -> None:
        """Read piece by piece, and let the kernel put the bytes where they go."""
        begin = perf_counter()
        if check is None and self._cached_flags is not None:
            start = self._take_cached(file, start, parts)
        spare, room = self._buffers[0], self._piece_bytes
        into: list[memoryview] = []
        for part in parts:
            left = part if isinstance(part, int) else len(part)
            while left:
                taken = left if left < room else room
                if isinstance(part, int):
                    into.append(spare[-room:][:taken])
                else:
                    into.append(part[:taken])
                    part = part[taken:]
                left -= taken
                room -= taken
                if room == 0:
                    self._fill_one(file, into, start, self._piece_bytes, check)
                    start += self._piece_bytes
                    into, room = [], self._piece_bytes
        if into:
            self._fill_one(file, into, start, self._piece_bytes - room, check)
        self.read_seconds += perf_counter() - begin

    def _take_cached(self, file: File, start: int, parts: "_Parts") -> int:
        """Read what is in the page cache, in few calls; return the offset at which that ends.

        Storage sees nothing of it, so that pieces need not have the size that it is to be asked in.
        """
        spare = self._dropped
        while taken := parts.take(_CACHED_BYTES):
            into = []
            for part in taken:
                if not isinstance(part, int):
                    into.append(part)
                    continue
                while part > _DROPPED_BYTES:
                    into.append(spare)
                    part -= _DROPPED_BYTES
                into.append(spare[:part])
            into = into[:_MOST_VECTORS]
            want = sum(map(len, into))
            got = self._read_cached(file, into, start)
            self.bytes_read += got
            start += got
            if got < want or len(into) == _MOST_VECTORS:
                parts.put_back(taken, skip=got)
            if got < want:
                break
        return start

    def _read_cached(self, file: File, into: list[memoryview], start: int) -> int:
        """Return how many bytes were in the page cache, and are now where they go."""
        if self._cached_flags is None:
            return 0
        try:
            return os.preadv(file.descriptor, into, start, self._cached_flags)
        except OSError as error:
            if error.errno == errno.EAGAIN or self._cached_flags == 0:
                return 0  # the read that follows tells what is wrong
        # This file system cannot tell. All of tmpfs is the page cache.
        self._cached_flags = 0 if lies_in_memory(Path(file.path).parent) else None
        return self._read_cached(file, into, start)

    def _fill_one(
        self, file: File, into: list[memoryview], start: int, want: int, check: Check | None
    ) -> None:
        self.bytes_read += _fill(file, into, start, want, direct=False)
        if check is not None:
            for memory in into:
                check(memory)

    def _pass_through(
        self,
        file: File,
        start: int,
        stop: int,
        parts: "_Parts",
        ahead: bool,
        check: Check | None,
    ) -> None:
        """Read several pieces at once, or into aligned buffers that are then copied from."""
        self._window = None
        under_way: deque[_Piece] = deque()
        try:
            for number, (first, last) in enumerate(self._cut(file, start, stop, ahead)):
                if len(under_way) == self._depth:
                    self._finish(file, under_way.popleft(), check)
                memory = self._buffers[number % self._depth]
                taken = parts.take(min(last, stop) - max(first, start))
                into = [memory[: round_up(last - first)]] if self.direct else _into(taken, memory)
                piece = _Piece(first, last, memory, into, taken, max(0, start - first))
                if self._threads is not None:
                    piece.got = self._threads.submit(
                        _fill, file, into, first, last - first, direct=self.direct
                    )
                under_way.append(piece)
            while under_way:
                self._finish(file, under_way.popleft(), check)
        finally:
            for piece in under_way:  # after an error: nobody may write to the buffers any more
                if piece.got is not None:
                    piece.got.exception()

    def _cut(self, file: File, start: int, stop: int, ahead: bool) -> Iterator[tuple[int, int]]:
        """Yield first and last byte of each read."""
        if self.direct:
            start -= start % PAGE_BYTES
            if ahead:  # so much more as makes whole pieces of all
                stop = start + round_up(stop - start, self._piece_bytes)
                stop = min(file.num_bytes, stop)
        for first in range(start, stop, self._piece_bytes):
            yield first, min(first + self._piece_bytes, stop)

    def _finish(self, file: File, piece: _Piece, check: Check | None) -> None:
        got = self._fetch(file, piece)
        if self.direct:
            self._window = _Window(file, piece.start, piece.start + got, piece.memory)
            self._deal(piece.memory[piece.skipped :], piece.parts, check)
        elif check is not None:
            for memory in piece.into:
                check(memory)

    def _fetch(self, file: File, piece: _Piece) -> int:
        begin = perf_counter()
        if piece.got is None:
            want = piece.stop - piece.start
            got = _fill(file, piece.into, piece.start, want, direct=self.direct)
        else:
            got = piece.got.result()
        self.read_seconds += perf_counter() - begin
        self.bytes_read += got
        return got

    def _deal(self, memory: memoryview, parts: list[Part], check: Check | None) -> None:
        """Copy what was read to where it goes."""
        begin = perf_counter()
        at = 0
        for part in parts:
            if isinstance(part, int):
                at += part
            else:
                part[:] = memory[at : at + len(part)]
                at += len(part)
        if check is not None:
            check(memory[:at])
        self.copy_seconds += perf_counter() - begin


class _HugePages:
    """Memory in huge pages, cut into buffers one behind the other; what is left serves the next.

    A request lists every run of neighbouring pages in its buffer: 256 of 4 KiB for 1 MiB, or one.
    Each costs the kernel time, and a virtual drive much more than that.
    """

    _PAGE = 2 << 20

    def __init__(self) -> None:
        self.forget()
        # What a parent and its child share is copied where they write, 4 KiB by 4 KiB.
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Begin anew."""
        self._lock = threading.Lock()
        self._left = memoryview(b"")

    def cut(self, num_bytes: int) -> memoryview:
        """Return zeroed memory that begins at a page."""
        taken = round_up(num_bytes)
        with self._lock:
            if taken > len(self._left):
                self._left = self._map(round_up(taken, self._PAGE))
            cut, self._left = self._left[:num_bytes], self._left[taken:]
        return cut

    def _map(self, num_bytes: int) -> memoryview:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(-1, num_bytes + self._PAGE, flags=flags)
        with suppress(OSError):  # a kernel that has none; then it is 4 KiB pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        whole = memoryview(memory)
        start = -np.frombuffer(whole, np.uint8).ctypes.data % self._PAGE
        return whole[start : start + num_bytes]


_huge_pages = _HugePages()


def aligned_buffer(num_bytes: int) -> memoryview:
    """Return zeroed memory that begins at a page, as O_DIRECT wants it, if possible in huge pages.

    It is this process's own: one that is forked off gets a copy.
    """
    return _huge_pages.cut(num_bytes)


def settle_direct(path: Path, odirect: bool | Literal["auto"]) -> bool:
    """Return whether files like `path` are to be read with O_DIRECT.

    Raises:
        DatasetError: the file is missing or cannot be read.
        WorkloadError: the user wants it, and the file system refuses.
    """
    if odirect is False:
        return False
    reader = ExtentReader(direct=False, piece_bytes=PAGE_BYTES)
    reader.close_file(reader.open(str(path)))  # says what is wrong, should it not be O_DIRECT
    try:
        descriptor = open_regular(path, os.O_DIRECT)
        try:
            os.preadv(descriptor, [aligned_buffer(PAGE_BYTES)], 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise DatasetError(f"{path} cannot be read: {error.strerror}") from None
        if odirect == "auto":
            return False
        raise WorkloadError(
            f"reader.odirect: {path.parent} ({_file_system(path)}) does not take O_DIRECT; "
            f"use reader.odirect=auto or another folder"
        ) from None
    return True


def _file_system(path: Path) -> str:
    mount = mount_under(path.parent)
    return "unknown" if mount is None else mount.kind


class _Parts:
    """Parts, of which the next bytes are taken again and again."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self._left = deque(parts)

    def __iter__(self) -> Iterator[Part]:
        return iter(self._left)

    def put_back(self, parts: list[Part], *, skip: int) -> None:
        """Have parts come next again, but for their first bytes."""
        again = _Parts(parts)
        again.take(skip)
        self._left.extendleft(reversed(again._left))

    def take(self, num_bytes: int) -> list[Part]:
        """Return the parts of the next bytes; the last one is cut where they end."""
        taken: list[Part] = []
        while num_bytes and self._left:
            part = self._left.popleft()
            size = part if isinstance(part, int) else len(part)
            if size > num_bytes:
                if isinstance(part, int):
                    self._left.appendleft(size - num_bytes)
                    part = num_bytes
                else:
                    self._left.appendleft(part[num_bytes:])
                    part = part[:num_bytes]
                size = num_bytes
            taken.append(part)
            num_bytes -= size
        return taken


def _into(parts: list[Part], spare: memoryview) -> list[memoryview]:
    """Return memory for the parts; dropped bytes go to the spare memory, beside one another."""
    if len(parts) == 1 and isinstance(parts[0], int):
        return [spare[: parts[0]]]
    into, at = [], 0
    for part in parts:
        if isinstance(part, int):
            into.append(spare[at : at + part])
            at += part
        else:
            into.append(part)
    return into


def _fill(file: File, into: list[memoryview], start: int, want: int, *, direct: bool) -> int:
    """Read `want` bytes or, with O_DIRECT, up to the alignment behind them; return how many."""
    got = 0
    try:
        got = os.preadv(file.descriptor, into[:_MOST_VECTORS], start)
        done = got
        while got < want:
            if done == 0 or (direct and got % PAGE_BYTES):
                raise DatasetError(
                    f"{file.path} ends at byte {start + got}, but held {file.num_bytes} "
                    f"bytes when it was opened: it was cut while it was being read"
                )
            into = _after(into, done)
            done = os.preadv(file.descriptor, into[:_MOST_VECTORS], start + got)
            got += done
    except OSError as error:
        raise DatasetError(
            f"{file.path} cannot be read at byte {start + got}: {error.strerror}"
        ) from None
    return got


def _after(into: list[memoryview], num_bytes: int) -> list[memoryview]:
    """Return the memory that is left when so many bytes are filled."""
    for index, memory in enumerate(into):
        if num_bytes < len(memory):
            return [memory[num_bytes:], *into[index + 1 :]]
        num_bytes -= len(memory)
    return []
