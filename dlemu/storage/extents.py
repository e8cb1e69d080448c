"""Extents of files read into memory: buffered or with O_DIRECT, in pieces of a given size.

An extent is a run of consecutive bytes. The caller lists where they go, as parts: a part is memory
to fill, or a number of bytes to read and drop. In a buffered read the kernel scatters the bytes
into the parts, so each byte is copied once. O_DIRECT needs aligned memory: its pieces are read into
aligned buffers and copied from there. Dropped bytes all go to one buffer of a piece's size, which
stays in the CPU's second-level cache.
"""

import errno
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal

from dlemu.errors import VERIFY, DatasetError, WorkloadError
from dlemu.host.devices import lies_in_memory, mount_under
from dlemu.storage.counted import GetCounts, ReadCounts
from dlemu.storage.files import (
    aligned_buffer,
    cannot_open,
    direct_unit,
    open_regular,
    open_sized,
)
from dlemu.units import PAGE_BYTES, round_up

Part = memoryview | int
"""Memory to fill, or a number of bytes to read and drop."""
Check = Callable[[memoryview], object]
"""Called with all bytes that are read, in order."""
_Extent = tuple[int, int, memoryview | None]
"""Offset and bytes of an extent, and memory for its first bytes; None: all are dropped."""

HEAD_BYTES = 4096
"""First bytes of a file; the formats' headers lie in them."""
UNDISTURBED = "run again when nobody writes there"
_MOST_VECTORS = os.sysconf("SC_IOV_MAX")
_CACHED_BYTES = 8 << 20
"""Most bytes that one call copies from the page cache. Fewer calls wait less for Python's lock."""
_DROPPED_BYTES = 1 << 18
"""Size of the buffer for dropped bytes from the page cache: it fits the second-level cache."""


@dataclass(slots=True, eq=False)
class File:
    """An open file."""

    path: str
    descriptor: int
    num_bytes: int
    """Its size when it was opened."""
    found: object = None
    """What the caller read of its headers, which holds as long as the file stays open."""


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file of known size that will be read, and how much of it."""

    path: str
    num_bytes: int
    wanted: int
    """Bytes from its start that are read."""


@dataclass(slots=True)
class Leftover:
    """Bytes that were read before they were asked for; the next read takes them from memory."""

    file: File
    start: int
    stop: int
    memory: memoryview


@dataclass(slots=True)
class _ReadCall:
    """One read call, and the parts that its bytes are for."""

    start: int
    stop: int
    memory: memoryview
    into: list[memoryview]
    parts: list[Part]
    skipped: int = 0
    """Bytes before the first that is wanted: O_DIRECT begins at a multiple of its unit."""
    got: Future[int] | None = None
    """Result of a helper thread; None: the caller reads."""


class PartQueue:
    """A queue of parts. A part may be cut in two when the next bytes are taken."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self._left = deque(parts)

    def __iter__(self) -> Iterator[Part]:
        return iter(self._left)

    def put_back(self, parts: list[Part], *, skip: int) -> None:
        """Put parts back to the front, without their first `skip` bytes."""
        again = PartQueue(parts)
        again.take(skip)
        self._left.extendleft(reversed(again._left))

    def take(self, num_bytes: int) -> list[Part]:
        """Remove and return the parts of the next bytes; the last one is cut where they end."""
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


class ExtentReader(ReadCounts):
    """Reads files for one worker. Not thread-safe. `extent_reader` makes one."""

    direct = False
    unit = PAGE_BYTES
    """Bytes of which O_DIRECT reads multiples."""
    needs_sizes = False
    """Whether the size of a file must be told before it is opened, by `know` or `begin`."""
    _is_settled = False

    def __init__(self, *, piece_bytes: int, io_depth: int, max_open: int) -> None:
        super().__init__()
        self.counts = GetCounts()
        """Requests so far, of a reader that sends some."""
        self._piece_bytes = piece_bytes
        self._buffers = [aligned_buffer(round_up(piece_bytes)) for _ in range(io_depth)]
        self._head = aligned_buffer(round_up(piece_bytes) if self.direct else HEAD_BYTES)
        self._from_head: Leftover | None = None
        """The bytes that `head` read: a look elsewhere in the file does not lose them."""
        self._leftover: Leftover | None = None
        self._open: OrderedDict[str, File] = OrderedDict()
        self._max_open = max_open

    def know(self, path: str, num_bytes: int) -> None:
        """Note the size of the file that is opened next."""

    def begin(self, files: Iterable[ReadFile]) -> None:
        """Send requests for files that are read next, each from its start."""

    def open(self, path: str) -> File:
        """Open a file for reading; `close_file` closes it."""
        try:
            self.settle(path)
            descriptor, num_bytes = open_sized(path, direct=self.direct)
            return File(path, descriptor, num_bytes)
        except OSError as error:
            raise cannot_open(path, error) from None

    def settle(self, path: str) -> None:
        """Find the unit of O_DIRECT by the first file that is read. Raises OSError."""
        if not self.direct or self._is_settled:
            return
        self._is_settled = True
        self.unit = direct_unit(path) or PAGE_BYTES
        if self.unit > PAGE_BYTES:
            self._piece_bytes = round_up(self._piece_bytes, self.unit)
            self._buffers = [aligned_buffer(self._piece_bytes) for _ in self._buffers]
            self._head = aligned_buffer(self._piece_bytes)

    def close_file(self, file: File) -> None:
        """Close a file that `open` opened."""
        os.close(file.descriptor)

    def keep_open(self, path: str) -> File:
        """Return a file that stays open until `max_open` other files were asked for."""
        file = self._open.pop(path, None)
        if file is None:
            if len(self._open) >= self._max_open:
                self.close_file(self._open.popitem(last=False)[1])
            file = self.open(path)
        elif self._has_changed(file):
            self.close_file(file)
            raise DatasetError(
                f"{path} was replaced or changed while it was being read",
                remedy=UNDISTURBED,
            )
        self._open[path] = file
        return file

    @property
    def _unit(self) -> int:
        return self.unit if self.direct else 0

    def _has_changed(self, file: File) -> bool:
        """Return whether a file that is kept open is no longer the one that was opened."""
        try:
            now = os.fstat(file.descriptor)
        except OSError:  # a network file system has lost it
            return True
        return now.st_nlink == 0 or now.st_size != file.num_bytes

    def head(self, file: File, *, ahead: bool = False) -> memoryview:
        """Return a file's first bytes, at most 4096; valid until the next call.

        The next read takes these bytes from memory. `ahead`: the caller will read the file from its
        first byte on. Then O_DIRECT reads a whole piece, because a small read takes a drive as long
        as a large one.
        """
        memory = self._head
        want = min(file.num_bytes, len(memory) if ahead else HEAD_BYTES)
        into = memory[: round_up(want, self.unit)] if self.direct else memory
        got = self._fetch(file, _ReadCall(0, want, memory, [into], []))
        self._from_head, self._leftover = Leftover(file, 0, got, memory), None
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

        `ahead`: the caller will go on from here in this file. Then O_DIRECT reads the last piece
        whole and keeps its rest for the next call. `check` gets all bytes in order.
        """
        stop = offset + sum(part if isinstance(part, int) else len(part) for part in parts)
        _check_end(file, stop)
        wanted = PartQueue(parts)
        start = offset
        for left in (self._leftover, self._from_head):
            if left is not None and left.file is file and left.start <= start < left.stop:
                known = min(stop, left.stop) - start
                self._copy(left.memory[start - left.start :][:known], wanted.take(known), check)
                start += known
                break
        if start < stop:
            self._read_rest(file, start, stop, wanted, ahead=ahead, check=check)

    def read_each(
        self,
        file: File,
        offsets: Sequence[int],
        lengths: Sequence[int],
        into: Sequence[memoryview | None] = (),
    ) -> None:
        """Read extents that lie apart, each with a call of its own.

        `into`: memory for the first bytes of each extent; the rest is dropped, without `into` all.
        For small samples in any order: much less work a read than `read`. An extent longer than a
        piece takes several calls. With an `io_depth`, so many extents are read at once.
        """
        _check_end(file, max(map(sum, zip(offsets, lengths, strict=True)), default=0))
        self._from_head = self._leftover = None
        begin = perf_counter()
        extents = list(zip(offsets, lengths, into or [None] * len(offsets), strict=True))
        num_bytes, num_reads = self._read_extents(file, extents)
        self.read_seconds += perf_counter() - begin
        self.bytes_read += num_bytes
        self.num_reads += num_reads

    def _read_extents(self, file: File, extents: list[_Extent]) -> tuple[int, int]:
        """Read extents; return the bytes, and the calls that read them."""
        return self._read_some(file, extents, self._buffers[0])

    def _read_some(self, file: File, extents: list[_Extent], buffer: memoryview) -> tuple[int, int]:
        """Read extents one after the other, dropped bytes into `buffer`."""
        descriptor, most, direct = file.descriptor, len(buffer), self.direct
        total, calls, start = 0, len(extents), 0
        try:
            for start, length, into in extents:
                if length <= most and not direct:
                    if into is None:
                        memory = [buffer[:length]]
                    elif len(into) == length:
                        memory = [into]
                    else:
                        memory = [into, buffer[: length - len(into)]]
                    got = os.preadv(descriptor, memory, start)
                    if got == length:
                        total += got
                        continue
                num_bytes, num_calls = self._read_long(file, start, length, into, buffer)
                total += num_bytes
                calls += num_calls - 1
        except OSError as error:
            raise _cannot_read(file, start, error) from None
        return total, calls

    def _read_long(
        self, file: File, start: int, length: int, into: memoryview | None, buffer: memoryview
    ) -> tuple[int, int]:
        """Read one extent in pieces of the buffer's size; return its bytes and calls."""
        at, stop, total, calls = start, start + length, 0, 0
        while at < stop:
            first = at - at % self.unit if self.direct else at
            end = min(stop, first + len(buffer))
            memory = buffer[: round_up(end - first, self.unit) if self.direct else end - first]
            total += _fill(file, [memory], first, end - first, unit=self._unit)
            calls += 1
            if into is not None:
                kept = into[at - start : end - start]
                kept[:] = memory[at - first :][: len(kept)]
            at = end
        return total, calls

    def peek(self, file: File, offset: int, num_bytes: int) -> bytes:
        """Return bytes of a file; fewer only at its end."""
        data = bytearray(max(0, min(num_bytes, file.num_bytes - offset)))
        from_head = self._from_head
        self.read(file, offset, [memoryview(data)])
        self._from_head = from_head
        return bytes(data)

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self.close_file(self._open.popitem()[1])

    def _read_rest(
        self,
        file: File,
        start: int,
        stop: int,
        parts: PartQueue,
        *,
        ahead: bool,
        check: Check | None,
    ) -> None:
        """Read the bytes from `start` to `stop`, none of which is in memory yet."""
        raise NotImplementedError

    def _fetch(self, file: File, piece: _ReadCall) -> int:
        """Read a piece, or wait until a helper thread has; return its bytes."""
        begin = perf_counter()
        if piece.got is None:
            want = piece.stop - piece.start
            got = _fill(file, piece.into, piece.start, want, unit=self._unit)
        else:
            got = piece.got.result()
        self.read_seconds += perf_counter() - begin
        self.bytes_read += got
        self.num_reads += 1
        return got

    def _copy(self, memory: memoryview, parts: list[Part], check: Check | None) -> None:
        """Copy bytes that are in memory into the parts."""
        begin = perf_counter()
        at = 0
        for part in parts:
            if isinstance(part, int):
                at += part
            else:
                part[:] = memory[at : at + len(part)]
                at += len(part)
        self.copy_seconds += perf_counter() - begin
        self._show([memory[:at]], check)

    def _show(self, memories: list[memoryview], check: Check | None) -> None:
        """Give bytes that were read to the check, in order."""
        if check is None:
            return
        begin = perf_counter()
        for memory in memories:
            check(memory)
        self.check_seconds += perf_counter() - begin


class _Buffered(ExtentReader):
    """Reads through the page cache, one call at a time; the kernel scatters the bytes."""

    def __init__(self, *, piece_bytes: int, max_open: int) -> None:
        super().__init__(piece_bytes=piece_bytes, io_depth=1, max_open=max_open)
        self._dropped = aligned_buffer(_DROPPED_BYTES)
        self._cached_flags: int | None = os.RWF_NOWAIT
        """Flags of a call that reads only what is in the page cache; None: there is no such call
        on this file system."""

    def _read_rest(
        self,
        file: File,
        start: int,
        stop: int,
        parts: PartQueue,
        *,
        ahead: bool,
        check: Check | None,
    ) -> None:
        begin, checked = perf_counter(), self.check_seconds
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
                    self._read_piece(file, into, start, self._piece_bytes, check)
                    start += self._piece_bytes
                    into, room = [], self._piece_bytes
        if into:
            self._read_piece(file, into, start, self._piece_bytes - room, check)
        self.read_seconds += perf_counter() - begin - (self.check_seconds - checked)

    def _take_cached(self, file: File, start: int, parts: PartQueue) -> int:
        """Read what is in the page cache, in few calls; return the offset where that ends.

        The storage sees nothing of these calls, so they need not have the size of a piece.
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
            self.num_reads += self._cached_flags is not None  # else it was refused: none was made
            self.bytes_read += got
            start += got
            if got < want or len(into) == _MOST_VECTORS:
                parts.put_back(taken, skip=got)
            if got < want:
                break
        return start

    def _read_cached(self, file: File, into: list[memoryview], start: int) -> int:
        """Read bytes that are in the page cache; return how many, up to the first missing one."""
        if self._cached_flags is None:
            return 0
        try:
            return os.preadv(file.descriptor, into, start, self._cached_flags)
        except OSError as error:
            if error.errno == errno.EAGAIN or self._cached_flags == 0:
                return 0  # an ordinary read follows, and reports what is wrong
        # The file system does not know RWF_NOWAIT. On tmpfs all bytes are in memory anyway.
        self._cached_flags = 0 if lies_in_memory(Path(file.path).parent) else None
        return self._read_cached(file, into, start)

    def _read_piece(
        self, file: File, into: list[memoryview], start: int, want: int, check: Check | None
    ) -> None:
        self.bytes_read += _fill(file, into, start, want, unit=0)
        self.num_reads += 1
        self._show(into, check)


class _InPieces(ExtentReader):
    """Reads `io_depth` pieces at once, each in a helper thread; one at a time without threads.

    With O_DIRECT it reads into aligned buffers, and copies from there.
    """

    def __init__(self, *, direct: bool, piece_bytes: int, io_depth: int, max_open: int) -> None:
        self.direct = direct
        super().__init__(piece_bytes=piece_bytes, io_depth=io_depth, max_open=max_open)
        self._depth = io_depth
        self._threads = ThreadPoolExecutor(io_depth) if io_depth > 1 else None

    def close(self) -> None:
        """Close all files and end the helper threads."""
        if self._threads is not None:
            self._threads.shutdown()
        super().close()

    def _read_rest(
        self,
        file: File,
        start: int,
        stop: int,
        parts: PartQueue,
        *,
        ahead: bool,
        check: Check | None,
    ) -> None:
        self._from_head = self._leftover = None
        under_way: deque[_ReadCall] = deque()
        try:
            for piece in self._cut(file, start, stop, parts, ahead=ahead):
                if len(under_way) == self._depth:
                    self._finish(file, under_way.popleft(), check)
                if self._threads is not None:
                    want = piece.stop - piece.start
                    piece.got = self._threads.submit(
                        _fill, file, piece.into, piece.start, want, unit=self._unit
                    )
                under_way.append(piece)
            while under_way:
                self._finish(file, under_way.popleft(), check)
        finally:
            for piece in under_way:  # after an error: wait until no thread writes to the buffers
                if piece.got is not None:
                    piece.got.exception()

    def _read_extents(self, file: File, extents: list[_Extent]) -> tuple[int, int]:
        if self._threads is None or len(extents) < 2:
            return super()._read_extents(file, extents)
        shares = (extents[first :: self._depth] for first in range(self._depth))
        reads = [
            self._threads.submit(self._read_some, file, share, buffer)
            for share, buffer in zip(shares, self._buffers, strict=True)
        ]
        wait(reads)  # after an error too: no thread writes to memory of the caller
        num_bytes, num_reads = zip(*(read.result() for read in reads), strict=True)
        return sum(num_bytes), sum(num_reads)

    def _cut(
        self, file: File, start: int, stop: int, parts: PartQueue, *, ahead: bool
    ) -> Iterator[_ReadCall]:
        """Yield the pieces of an extent, in order."""
        begin, end = start, stop
        if self.direct:
            begin = start - start % self.unit
            if ahead:  # round the length up to whole pieces
                end = min(file.num_bytes, begin + round_up(stop - begin, self._piece_bytes))
        for number, first in enumerate(range(begin, end, self._piece_bytes)):
            last = min(first + self._piece_bytes, end)
            memory = self._buffers[number % self._depth]
            taken = parts.take(min(last, stop) - max(first, start))
            if self.direct:
                into = [memory[: round_up(last - first, self.unit)]]
                yield _ReadCall(first, last, memory, into, taken, max(0, start - first))
            else:
                yield _ReadCall(first, last, memory, _into(taken, memory), [])

    def _finish(self, file: File, piece: _ReadCall, check: Check | None) -> None:
        """Have a piece read, and its bytes in the parts."""
        got = self._fetch(file, piece)
        if self.direct:
            self._leftover = Leftover(file, piece.start, piece.start + got, piece.memory)
            self._copy(piece.memory[piece.skipped :], piece.parts, check)
        else:
            self._show(piece.into, check)


def extent_reader(
    *, direct: bool, piece_bytes: int, io_depth: int = 1, max_open: int = 8
) -> ExtentReader:
    """Return a reader of pieces of `piece_bytes`, `io_depth` at a time.

    With O_DIRECT, `piece_bytes` is rounded up to a multiple of 4096.
    """
    if direct or io_depth > 1:
        size = round_up(piece_bytes) if direct else piece_bytes
        return _InPieces(direct=direct, piece_bytes=size, io_depth=io_depth, max_open=max_open)
    return _Buffered(piece_bytes=piece_bytes, max_open=max_open)


def settle_direct(path: Path, odirect: bool | Literal["auto"]) -> bool:
    """Return whether files like `path` are read with O_DIRECT; if they must and cannot, raise."""
    if odirect is False:
        return False
    try:
        os.close(open_regular(path))  # an error that has nothing to do with O_DIRECT
    except OSError as error:
        raise cannot_open(path, error) from None
    try:
        unit = direct_unit(path)
    except OSError as error:
        raise DatasetError.of_system(error, path, "cannot be read", VERIFY) from None
    if unit is None:
        if odirect == "auto":
            return False
        mount = mount_under(path.parent)
        kind = "unknown" if mount is None else mount.kind
        raise WorkloadError(
            f"reader.odirect: {path.parent} ({kind}) does not take O_DIRECT; "
            f"use reader.odirect=auto or another folder"
        )
    return True


def _into(parts: list[Part], spare: memoryview) -> list[memoryview]:
    """Return memory for the parts; dropped bytes go to `spare`, one part behind the other."""
    into, at = [], 0
    for part in parts:
        if isinstance(part, int):
            into.append(spare[at : at + part])
            at += part
        else:
            into.append(part)
    return into


def _fill(file: File, into: list[memoryview], start: int, want: int, *, unit: int) -> int:
    """Read `want` bytes, with O_DIRECT up to the next multiple of `unit`; return how many."""
    got = 0
    try:
        got = os.preadv(file.descriptor, into[:_MOST_VECTORS], start)
        done = got
        while got < want:
            if done == 0 or (unit and got % unit):
                raise DatasetError(
                    f"{file.path} ends at byte {start + got}, but held {file.num_bytes} "
                    "bytes when it was opened: it was cut while it was being read",
                    remedy=UNDISTURBED,
                )
            into = _after(into, done)
            done = os.preadv(file.descriptor, into[:_MOST_VECTORS], start + got)
            got += done
    except OSError as error:
        raise _cannot_read(file, start + got, error) from None
    return got


def _cannot_read(file: File, at: int, error: OSError) -> DatasetError:
    return DatasetError.of_system(error, file.path, f"cannot be read at byte {at}", VERIFY)


def _check_end(file: File, stop: int) -> None:
    """Refuse to read up to an offset that a file does not reach."""
    if stop > file.num_bytes:
        raise DatasetError(
            f"{file.path} holds {file.num_bytes} bytes, at least {stop} are wanted: it is "
            "cut short",
            remedy=VERIFY,
        )


def _after(into: list[memoryview], num_bytes: int) -> list[memoryview]:
    """Return the memory that is left after `num_bytes` were filled."""
    for index, memory in enumerate(into):
        if num_bytes < len(memory):
            return [memory[num_bytes:], *into[index + 1 :]]
        num_bytes -= len(memory)
    return []
