"""How fast storage is: with few and with many readers, and when it is written to."""

import fcntl
import math
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from dlemu.errors import DatasetError
from dlemu.host.devices import lies_in_memory
from dlemu.storage.files import aligned_buffer, direct_if_possible, open_regular

longest_seconds = math.inf
"""No probe takes longer, whatever its caller asks for. Tests set it: none is about the rate."""
_PIECE = 1 << 20
_LONGER = 4
"""Storage so slow that no piece came in time is read for at most this many times as long."""
_LAST_READS_SECONDS = 5.0
_ROUNDS = 3
_CLEARLY_MORE = 1.05
_MOST_WRITTEN = 256 << 20


@dataclass(frozen=True)
class Probe:
    """Bytes per second that few and many readers got from the same files, in turns."""

    num_few: int
    few: float
    num_many: int
    many: float


def probe_readers(paths: Sequence[Path], *, few: int, many: int, seconds: float) -> Probe | None:
    """Return what few and many threads get; None if nothing could be read.

    They take turns, and the medians count: a drive that is slow for a moment, or that others use,
    affects both. `seconds` is the time of all turns together. Where many got clearly more, they get
    a turn that is as long as all of these: a throttle lets a burst pass at the start of each. In
    memory there is none.
    """
    rates: dict[int, list[float]] = {few: [], many: []}
    each = min(seconds, longest_seconds) / _ROUNDS / len(rates)
    for seed in range(_ROUNDS):
        for num_readers, found in rates.items():
            rate = probe_rate(paths, num_readers=num_readers, seconds=each, seed=seed)
            if rate is None:
                return None
            found.append(rate)
    most = median(rates[many])
    if most > _CLEARLY_MORE * median(rates[few]) and not lies_in_memory(paths[0].parent):
        whole = each * _ROUNDS * len(rates)
        lasting = probe_rate(paths, num_readers=many, seconds=whole, seed=_ROUNDS)
        most = min(most, lasting or most)
    return Probe(few, median(rates[few]), many, most)


def probe_rate(
    paths: Sequence[Path],
    *,
    num_readers: int,
    seconds: float,
    seed: int = 0,
    once: bool = False,
) -> float | None:
    """Return bytes per second that `num_readers` threads get from random 1 MiB pieces of files.

    Reads bypass the page cache if the file system allows that. None if nothing could be read.
    `once`: no piece is read twice, which a cache in the drive would serve; it ends with the files.
    """
    pieces: Callable[[np.random.Generator], Iterator[int]] = partial(_random_pieces, paths)
    if once:
        pieces = partial(_pieces_once, _all_pieces(paths, seed))
    return rate_of(pieces, num_readers=num_readers, seconds=seconds, seed=seed)


def rate_of(
    read_pieces: Callable[[np.random.Generator], Iterator[int]],
    *,
    num_readers: int,
    seconds: float,
    seed: int = 0,
) -> float | None:
    """Return bytes per second of threads; `read_pieces` reads and yields the bytes of a piece."""
    seconds = min(seconds, longest_seconds)
    came: list[tuple[float, int]] = []
    begun, ended = threading.Event(), threading.Event()

    def read(reader: int) -> None:
        generator = np.random.default_rng((seed, reader))
        # Readers that begin at once would keep the interpreter from starting hundreds of others.
        begun.wait()
        for num_bytes in read_pieces(generator):
            if num_bytes:
                came.append((time.perf_counter(), num_bytes))
            if ended.is_set():
                return

    threads = [
        threading.Thread(target=read, args=(number,), daemon=True) for number in range(num_readers)
    ]
    for thread in threads:
        thread.start()
    start = time.perf_counter()
    begun.set()
    time.sleep(seconds)
    while len(came) < num_readers and time.perf_counter() < start + _LONGER * seconds:
        time.sleep(min(0.05, seconds))
    # The time ends with the last whole piece: of slow storage there are few, and a part of one
    # would weigh much. Where none has ended yet, the first ones count.
    whole = list(came) or came
    ended.set()
    for thread in threads:
        thread.join(max(0.0, start + _LONGER * seconds + _LAST_READS_SECONDS - time.perf_counter()))
    if not whole:
        return None
    return sum(num_bytes for _, num_bytes in whole) / (max(at for at, _ in whole) - start) or None


def _random_pieces(paths: Sequence[Path], generator: np.random.Generator) -> Iterator[int]:
    """Read random pieces of files for ever; yield the bytes of each, 0 for what cannot be read."""
    buffer = aligned_buffer(_PIECE)
    while True:
        path = paths[int(generator.integers(len(paths)))]
        yield from _read(path, lambda number: generator.permutation(number)[:16], buffer)
        yield 0  # after the first piece: a reader that began late has still read one


def _pieces_once(left: list[tuple[Path, int]], _: np.random.Generator) -> Iterator[int]:
    """Read pieces that are left, which other threads take from as well; yield their bytes."""
    buffer = aligned_buffer(_PIECE)
    with suppress(IndexError):
        while True:
            path, piece = left.pop()
            yield from _read(path, partial(_this, piece), buffer)


def _this(piece: int, number: int) -> Iterable[int]:
    """Return a piece of a file that has so many."""
    return [piece]


def _all_pieces(paths: Sequence[Path], seed: int) -> list[tuple[Path, int]]:
    """Return all pieces of files, in any order."""
    found = []
    for path in paths:
        with suppress(OSError):
            pieces = max(1, path.stat().st_size // _PIECE)
            found += [(path, piece) for piece in range(pieces)]
    random.Random(seed).shuffle(found)
    return found


def _read(path: Path, choose: Callable[[int], Iterable[int]], buffer: memoryview) -> Iterator[int]:
    """Read those pieces of a file that are chosen of so many; yield the bytes of each."""
    with suppress(OSError, DatasetError):
        file, is_direct = direct_if_possible(open_regular, path)
        if not is_direct:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            for piece in choose(max(1, os.fstat(file).st_size // _PIECE)):
                yield os.preadv(file, [buffer], int(piece) * _PIECE)
        finally:
            os.close(file)


def probe_writing(folder: Path, *, seconds: float) -> float:
    """Return bytes per second at which one thread writes a file into a folder and syncs it.

    The file has no name, where the file system allows that, and is gone at the end. It has at most
    256 MiB, and an eighth of what is free. The page cache is bypassed where possible.

    Raises:
        OSError: nothing can be written there.
    """
    seconds = min(seconds, longest_seconds)
    piece = aligned_buffer(_PIECE)
    piece[:] = np.random.default_rng(0).bytes(_PIECE)
    with tempfile.TemporaryFile(dir=folder, prefix=".dlemu-probe.", buffering=0) as file:
        number = file.fileno()
        with suppress(OSError):
            flags = fcntl.fcntl(number, fcntl.F_GETFL)
            fcntl.fcntl(number, fcntl.F_SETFL, flags | os.O_DIRECT)
        room = min(_MOST_WRITTEN, shutil.disk_usage(folder).free // 8)
        most = max(_PIECE, room // _PIECE * _PIECE)
        start, done = time.perf_counter(), 0
        while done < _MOST_WRITTEN and time.perf_counter() < start + seconds:
            done += os.pwrite(number, piece, done % most)
        os.fsync(number)
        return done / (time.perf_counter() - start)
