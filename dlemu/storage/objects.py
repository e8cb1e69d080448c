"""Objects read as files are: an `ExtentReader` whose pieces are requests, several at a time.

Nothing is asked of a server but bytes (GET). Names and sizes follow from the manifest, and each
answer tells the size of its object, so there is no listing (LIST) and no question for it (HEAD).

1. pieces   A file that is read from end to end is read by whole objects, or by ranges. Of others
            just the extents are read that are asked for.
2. flight   `begin` sends the requests for the next files before they are read, at most `in_flight`
            at a time.
3. bytes    What answers receives into memory of its own. From there they are copied once, to where
            the bytes of files are read to; bytes that are dropped are not copied.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from time import perf_counter

import numpy as np

from dlemu.errors import VERIFY, DatasetError, DlemuError
from dlemu.storage.counted import Get, Got
from dlemu.storage.extents import (
    HEAD_BYTES,
    Check,
    ExtentReader,
    File,
    Leftover,
    Part,
    PartQueue,
    ReadFile,
)
from dlemu.storage.probe import rate_of
from dlemu.units import round_up

WHOLE_BYTES = 16 << 20
"""Objects up to this size are read by one request, unless a range is set."""
RANGE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class _RangeRequest:
    """A range of an object, for one request."""

    path: str
    start: int
    stop: int
    num_bytes: int
    """Of the object."""

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.stop == self.num_bytes


class ObjectReader(ExtentReader):
    """Reads objects for one worker. Not thread-safe.

    `needs_sizes` is true: `know` or `begin` must tell the size of what is opened.

    Args:
        get: what gets bytes of a file by its path.
        range_bytes: bytes of a request; None: WHOLE_BYTES and RANGE_BYTES.
        in_flight: requests that are outstanding at most.
        whole: whether files are read from end to end; else by extents.
        max_open: files that are kept open.
    """

    needs_sizes = True

    def __init__(
        self,
        get: Get,
        *,
        range_bytes: int | None,
        in_flight: int,
        whole: bool,
        max_open: int = 8,
    ) -> None:
        super().__init__(piece_bytes=HEAD_BYTES, io_depth=1, max_open=max_open)
        self._ask, self._most, self._whole = get, in_flight, whole
        self._most_whole, self._range = request_bytes(range_bytes)
        self._helpers = Helpers(in_flight) if in_flight > 1 else None
        self._given_up = threading.Event()
        self._sizes: dict[str, int] = {}
        self._announced: set[str] = set()
        """Paths whose pieces `begin` has put into the queue."""
        self._waiting: deque[_RangeRequest] = deque()
        self._begun: dict[_RangeRequest, Future[Got]] = {}

    def know(self, path: str, num_bytes: int) -> None:
        self._sizes, self._announced = {path: num_bytes}, set()

    def begin(self, files: Iterable[ReadFile]) -> None:
        files = list(files)
        self._sizes = {file.path: file.num_bytes for file in files}
        self._announced = {*self._sizes}
        self._begun.clear()  # of a batch that was given up
        self._waiting = deque(
            piece
            for file in files
            for piece in self._pieces(file.path, file.num_bytes, 0, file.wanted, ahead=False)
        )
        self._send()

    def open(self, path: str) -> File:
        """Return an object of which `know` or `begin` has told the size. Asks nobody."""
        return File(path, -1, self._sizes[path])

    def close_file(self, file: File) -> None:
        """Forget what is left of an object."""
        if self._leftover is not None and self._leftover.file is file:
            self._leftover = None

    def _has_changed(self, file: File) -> bool:
        """Each answer tells it: no request is sent for it alone."""
        return False

    def head(self, file: File, *, ahead: bool = False) -> memoryview:
        """Return a file's first bytes, at most 4096; the next read takes what came with them."""
        stop = min(HEAD_BYTES, file.num_bytes)
        [piece] = self._pieces(file.path, file.num_bytes, 0, stop, ahead=ahead)
        memory = self._take(piece)
        self._leftover = Leftover(file, 0, len(memory), memory)
        return memory[:HEAD_BYTES]

    def close(self) -> None:
        """Forget all objects; requests that are outstanding are not tried again."""
        self._given_up.set()
        self._waiting.clear()
        self._begun.clear()
        if self._helpers is not None:
            self._helpers.close()
        super().close()

    def read(
        self,
        file: File,
        offset: int,
        parts: Sequence[Part],
        *,
        ahead: bool = False,
        check: Check | None = None,
    ) -> None:
        self.counts.needed_bytes += sum(map(_length, parts))
        super().read(file, offset, parts, ahead=ahead, check=check)

    def read_each(
        self,
        file: File,
        offsets: Sequence[int],
        lengths: Sequence[int],
        into: Sequence[memoryview | None] = (),
    ) -> None:
        self.counts.needed_bytes += sum(lengths)
        pieces: list[_RangeRequest] = []
        targets: list[memoryview | None] = []
        memories = into or [None] * len(offsets)
        for start, length, memory in zip(offsets, lengths, memories, strict=True):
            for piece in self._ranges(file.path, file.num_bytes, start, start + length):
                pieces.append(piece)
                here = slice(piece.start - start, piece.stop - start)
                targets.append(None if memory is None else memory[here])
        for piece, target in zip(self._in_turn(pieces), targets, strict=True):
            got = self._take(piece)
            if target is not None:
                self._copy(got, [target], None)

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
        pieces = self._pieces(file.path, file.num_bytes, start, stop, ahead=ahead)
        for piece in self._in_turn(pieces):
            memory = self._take(piece)
            first, last = max(start, piece.start), min(stop, piece.stop)
            self._leftover = Leftover(file, piece.start, piece.stop, memory)
            self._copy(memory[first - piece.start :], parts.take(last - first), check)

    def _pieces(
        self, path: str, num_bytes: int, start: int, stop: int, *, ahead: bool
    ) -> list[_RangeRequest]:
        """Return the requests for an extent; `ahead`: the reader will go on from there."""
        if self._whole and num_bytes <= self._most_whole:
            return [_RangeRequest(path, 0, num_bytes, num_bytes)]
        if ahead:
            stop = min(num_bytes, start + round_up(stop - start, self._range))
        return self._ranges(path, num_bytes, start, stop)

    def _ranges(self, path: str, num_bytes: int, start: int, stop: int) -> list[_RangeRequest]:
        step = self._range
        return [
            _RangeRequest(path, at, min(at + step, stop), num_bytes)
            for at in range(start, stop, step)
        ]

    def _in_turn(self, pieces: Sequence[_RangeRequest]) -> Iterator[_RangeRequest]:
        """Yield pieces to be taken one after the other, and have the next ones sent before."""
        if pieces and pieces[0].path not in self._announced:
            self._waiting.extendleft(reversed(pieces))
        yield from pieces

    def _send(self) -> None:
        """Send requests for what waits, as many as may be outstanding."""
        while self._helpers is not None and self._waiting and len(self._begun) < self._most:
            piece = self._waiting.popleft()
            self._begun[piece] = self._helpers.submit(partial(self._get, piece))

    def _get(self, piece: _RangeRequest) -> Got:
        whole = piece.is_whole and self._whole
        stop = None if whole else piece.stop
        return self._ask(piece.path, piece.start, stop, given_up=self._given_up)

    def _take(self, piece: _RangeRequest) -> memoryview:
        """Return the bytes of a piece, and count what they cost."""
        begin = perf_counter()
        self._send()
        future = self._begun.pop(piece, None)
        if future is None:
            if self._waiting and self._waiting[0] == piece:
                self._waiting.popleft()
            got = self._get(piece)
        else:
            self._send()
            got = future.result()
        self.read_seconds += perf_counter() - begin
        self.bytes_read += len(got.memory)
        self.num_reads += 1
        self.counts.add(got.seconds, len(got.memory))
        self.counts.retries += got.retries
        self.counts.slow_downs += got.slow_downs
        if got.object_bytes != piece.num_bytes or len(got.memory) != piece.stop - piece.start:
            raise DatasetError(
                f"{piece.path}: it holds {got.object_bytes} bytes, {piece.num_bytes} are wanted",
                remedy=VERIFY,
            )
        return got.memory


def probe_objects(
    get_of: Callable[[int], Get], paths: Sequence[str], *, num_readers: int, seconds: float
) -> float | None:
    """Return bytes per second that threads get from the starts of random files.

    Each has one request outstanding; `get_of` returns what the one of this number asks. None if
    nothing could be read.
    """
    turns = iter(range(num_readers))

    def read(generator: np.random.Generator) -> Iterator[int]:
        get = get_of(next(turns))
        while True:
            chosen = paths[int(generator.integers(len(paths)))]
            try:
                yield len(get(chosen, 0, RANGE_BYTES).memory)
            except DlemuError:
                return

    return rate_of(read, num_readers=num_readers, seconds=seconds)


def request_bytes(range_bytes: int | None) -> tuple[int, int]:
    """Return the size up to which one request gets an object, and that of the requests of others.

    `range_bytes` as in ObjectReader.
    """
    return range_bytes or WHOLE_BYTES, range_bytes or RANGE_BYTES


def requests_of(num_bytes: float, range_bytes: int | None) -> int:
    """Return how many requests get a whole object; `range_bytes` as in ObjectReader."""
    most_whole, each = request_bytes(range_bytes)
    return 1 if num_bytes <= most_whole else math.ceil(num_bytes / each)


def _length(part: Part) -> int:
    return part if isinstance(part, int) else len(part)


class Helpers:
    """Threads that send requests for one reader; they end with the process."""

    def __init__(self, most: int) -> None:
        self._most, self._num, self._idle = most, 0, 0
        self._lock = threading.Lock()
        self._work: SimpleQueue[tuple[Future[Got], Callable[[], Got]] | None] = SimpleQueue()

    def submit(self, ask: Callable[[], Got]) -> Future[Got]:
        """Have a thread call `ask`."""
        future: Future[Got] = Future()
        self._work.put((future, ask))
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif self._num < self._most:
                self._num += 1
                threading.Thread(target=self._run, daemon=True, name="dlemu GET").start()
        return future

    def close(self) -> None:
        """Let the threads end when they have their answers."""
        for _ in range(self._num):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            future, ask = work
            try:
                future.set_result(ask())
            except BaseException as error:
                future.set_exception(error)
            with self._lock:
                self._idle += 1
