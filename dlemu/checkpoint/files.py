"""Writes and reads the files, or objects, of one accelerator: unique bytes, timed by their parts.

A thread of the writer's own makes the bytes in aligned buffers, ahead of what is written. So the
time in which the drive gets nothing because bytes are missing can be told: `WriteTimes.waited`. A
reader compares the bytes on request.

An object is there whole or not at all, and on the storage when its last request is answered: so
there is no temporary name, no fsync and no O_DIRECT. A piece is a part of an upload, or a range.
"""

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

import numpy as np

from dlemu.datagen.assemble import Content
from dlemu.datagen.target import Stopped
from dlemu.errors import DatasetError, RunError, WorkloadError
from dlemu.host.processes import host_memory_bytes
from dlemu.storage.extents import ExtentReader, File
from dlemu.storage.files import aligned_buffer, create, replacing, sync_folder, write_at
from dlemu.storage.place import Place
from dlemu.units import PAGE_BYTES, format_bytes, round_up

Files = Sequence[tuple[str, int, int]]
"""Name, bytes and sample (the number of the bytes) of each file of an accelerator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The fields of WriteTimes and ReadTimes; files are summed up with `+`."""

    num_bytes: int = 0
    open: float = 0.0

    def __add__(self, other: Self) -> Self:
        sums = map(sum, zip(astuple(self), astuple(other), strict=True))
        return type(self)(**dict(zip(self.__dataclass_fields__, sums, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTimes(Times):
    """Seconds of the parts of writing a file."""

    write: float = 0.0
    """From the first to the last write call, without `waited`."""
    waited: float = 0.0
    """For bytes that were not made yet; with several threads, their mean."""
    fsync: float = 0.0
    """Of the file, and of the folder where it is synced."""
    close: float = 0.0
    """Closing the file, and giving it its name."""
    generation: float = 0.0
    """CPU seconds of the thread that made the bytes, since the file before ended; they pass beside
    the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTimes(Times):
    """Seconds of the parts of reading a file."""

    read: float = 0.0
    """From the first to the last read call, without `compare`."""
    compare: float = 0.0
    """Making the bytes again and comparing them."""
    close: float = 0.0


_SPARE_BUFFERS = 2
"""Buffers beside those that are being written: one is full while the next is being filled."""


@dataclass(frozen=True, slots=True)
class _WritePiece:
    offset: int
    memory: memoryview
    num_bytes: int
    """Bytes that belong to the file; the memory goes on to a multiple of 4096."""


class Writer:
    """Writes files one after the other. Not thread-safe, but for `stop`.

    Args:
        content: where the bytes come from; writers may share it.
        piece_bytes: bytes of a write call.
        io_depth: threads that write a file.
        direct: write with O_DIRECT. The last piece is written whole, and the file then cut.
        fsync: wait for the drive at the end of each file.
    """

    def __init__(
        self,
        content: Content,
        *,
        piece_bytes: int,
        io_depth: int = 1,
        direct: bool = False,
        fsync: bool = True,
    ) -> None:
        self._content, self._direct, self._fsync = content, direct, fsync
        self._piece_bytes = round_up(piece_bytes)
        self._io_depth = io_depth
        self.bytes_done = 0
        """Bytes written so far, for another thread that shows progress; about right."""
        self._stopped = False
        self._failure: BaseException | None = None
        self._prepared: list[tuple[int, int]] = []
        self._todo: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        self._free: SimpleQueue[memoryview] = SimpleQueue()
        self._made: SimpleQueue[_WritePiece | None] = SimpleQueue()
        self._generation = self._generation_told = 0.0
        self._pool = ThreadPoolExecutor(io_depth - 1) if io_depth > 1 else None
        self._maker = threading.Thread(target=self._make, name="bytes", daemon=True)

    def __enter__(self) -> Self:
        for _ in range(self._io_depth + _SPARE_BUFFERS):
            self._free.put(aligned_buffer(self._piece_bytes))
        self._maker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._todo.put(None)
        self._free.put(memoryview(b""))  # for a maker that waits for a buffer
        self._maker.join()
        if self._pool is not None:
            self._pool.shutdown()

    def stop(self) -> None:
        """End the writing soon, from any thread: the next write call raises Stopped."""
        self._stopped = True

    def prepare(self, files: Sequence[tuple[int, int]]) -> None:
        """Begin to make the bytes of files, (sample, bytes) in the order they will be written in.

        The first buffers are then full before the first `write`, outside its time.
        """
        for each in files:
            self._prepared.append(each)
            self._todo.put(each)

    def write(self, path: Path, num_bytes: int, *, sample: int) -> WriteTimes:
        """Write a file and return its times; it gets its name when it is whole.

        `sample` is the number of its bytes: no two files of a content have the same. It is the next
        of those that were prepared, unless none is.

        Raises:
            OSError: the drive is full, for example; the file is gone, and the writer is spent.
            Stopped: `stop` was called.
        """
        if not self._prepared:
            self.prepare([(sample, num_bytes)])
        prepared = self._prepared.pop(0)
        assert prepared == (sample, num_bytes), "files are written in the order of `prepare`"
        times = self._write_file(path, num_bytes)
        made, self._generation_told = self._generation - self._generation_told, self._generation
        return replace(times, generation=made)

    def _write_file(self, path: Path, num_bytes: int) -> WriteTimes:
        """Write the bytes of the next file as they are made."""
        begin = time.perf_counter()
        with replacing(path) as partial:
            file = create(partial, direct=self._direct)
            try:
                opened = time.perf_counter()
                waited = self._write_pieces(file, num_bytes)
                written = time.perf_counter()
                if self._fsync:
                    os.fsync(file)
                synced = time.perf_counter()
            finally:
                os.close(file)
        return WriteTimes(
            num_bytes=num_bytes,
            open=opened - begin,
            write=written - opened - waited,
            waited=waited,
            fsync=synced - written,
            close=time.perf_counter() - synced,
        )

    def work(
        self, folder: Path, files: Files, at: Callable[[str], object] = lambda path: None
    ) -> WriteTimes:
        """Write an accelerator's files into a folder, and sync it; `at` gets its path before.

        Raises as `write` does.
        """
        at(str(folder))
        total = WriteTimes()
        for name, num_bytes, sample in files:
            total += self.write(folder / name, num_bytes, sample=sample)
        if self._fsync and files:
            begin = time.perf_counter()
            sync_folder(folder)
            total += WriteTimes(fsync=time.perf_counter() - begin)
        return total

    def _write_pieces(self, file: int, num_bytes: int) -> float:
        """Write a file's bytes; return the seconds of waiting for them."""
        others: list[Future[float]] = []
        if self._pool is not None:
            others = [self._pool.submit(self._drain, file) for _ in range(self._io_depth - 1)]
        try:
            waits = [self._drain(file)]
        except BaseException:  # an interrupt, while it waited for bytes
            self._stopped = True
            raise
        finally:  # the file is closed after that
            wait(others)
        waits += [other.result() for other in others]
        self._check()
        if self._direct and num_bytes % PAGE_BYTES:
            os.ftruncate(file, num_bytes)
        return sum(waits) / len(waits)

    def _check(self) -> None:
        """Raise what went wrong, or Stopped."""
        if self._failure is not None:
            raise self._failure
        if self._stopped:
            raise Stopped

    def _drain(self, file: int) -> float:
        """Write what is made until the file ends; return the seconds of waiting for it."""
        waited = 0.0
        while True:
            begin = time.perf_counter()
            piece = self._made.get()
            waited += time.perf_counter() - begin
            if piece is None:
                return waited
            if not self._stopped:
                try:
                    self._write_piece(file, piece)
                except BaseException as error:
                    self._failure, self._stopped = error, True
            self._free.put(piece.memory)

    def _write_piece(self, file: int, piece: _WritePiece) -> None:
        size = round_up(piece.num_bytes) if self._direct else piece.num_bytes
        write_at(file, piece.memory[:size], piece.offset)
        self.bytes_done += piece.num_bytes

    def _make(self) -> None:
        """Make the bytes of all files; behind each file an end for each thread that writes it."""
        while (todo := self._todo.get()) is not None:
            try:
                if not self._stopped:  # `__exit__` wakes a maker that waits for a buffer only once
                    self._make_file(*todo)
            except BaseException as error:
                self._failure, self._stopped = error, True
            for _ in range(self._io_depth):
                self._made.put(None)

    def _make_file(self, sample: int, num_bytes: int) -> None:
        for offset in range(0, num_bytes, self._piece_bytes):
            memory = self._free.get()
            if self._stopped:
                return
            begin = time.thread_time()
            size = min(self._piece_bytes, num_bytes - offset)
            out = np.frombuffer(memory, np.uint8)
            self._content.fill(out[:size], sample, offset)
            out[size : round_up(size)] = 0
            self._generation += time.thread_time() - begin
            self._made.put(_WritePiece(offset, memory, size))


_AGAIN = "write the checkpoints again"


class Reader:
    """Reads the files of one accelerator. Not thread-safe, but for `stop`.

    Args:
        reader: the storage's; it is closed in the end.
        content: where the bytes came from, to compare each; None reads and drops them.
    """

    def __init__(self, reader: ExtentReader, content: Content | None = None) -> None:
        self._reader, self._content = reader, content
        self._stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._reader.close()

    @property
    def bytes_done(self) -> int:
        """Bytes read so far, for another thread that shows progress; about right."""
        return self._reader.bytes_read

    def stop(self) -> None:
        """End the reading soon, from any thread: it raises Stopped after the next piece."""
        self._stopped = True

    def work(
        self, folder: Path, files: Files, at: Callable[[str], object] = lambda path: None
    ) -> ReadTimes:
        """Read an accelerator's files; `at` gets the path of each before.

        Raises as `read` does.
        """
        total = ReadTimes()
        for name, num_bytes, sample in files:
            at(str(folder / name))
            total += self.read(folder / name, num_bytes, sample=sample)
        return total

    def read(self, path: Path, num_bytes: int, *, sample: int = 0) -> ReadTimes:
        """Read a file from end to end and return its times. `sample` is that of its writing.

        Raises:
            RunError: it is missing or cannot be read, has another size, or holds other bytes; the
                line says where.
            Stopped: `stop` was called.
        """
        begin = time.perf_counter()
        self._reader.know(str(path), num_bytes)
        try:
            file = self._reader.open(str(path))
            opened = time.perf_counter()
            try:
                if file.num_bytes != num_bytes:
                    problem = f"{path} holds {file.num_bytes:,} bytes, {num_bytes:,} were written"
                    raise RunError(problem, remedy=_AGAIN)
                compared = self._read_all(file, sample)
                read = time.perf_counter()
            finally:
                self._reader.close_file(file)
        except DatasetError as error:
            raise RunError(error.problem, remedy=_AGAIN) from None
        return ReadTimes(
            num_bytes=num_bytes,
            open=opened - begin,
            read=read - opened - compared,
            compare=compared,
            close=time.perf_counter() - read,
        )

    def _read_all(self, file: File, sample: int) -> float:
        """Read a file; return the seconds of comparing."""
        content, reader, offset = self._content, self._reader, 0

        def check(got: memoryview) -> None:
            nonlocal offset
            if self._stopped:
                raise Stopped
            if content is not None:
                wanted = np.empty(len(got), np.uint8)
                content.fill(wanted, sample, offset)
                same = np.frombuffer(got, np.uint8) == wanted
                if not same.all():
                    first = offset + int(np.argmin(same))
                    raise RunError(f"{file.path} is damaged at byte {first:,}", remedy=_AGAIN)
            offset += len(got)

        before = reader.check_seconds
        reader.read(file, 0, [file.num_bytes], check=check)
        return 0.0 if content is None else reader.check_seconds - before


class PlaceWriter(Writer):
    """Puts an accelerator's files while their bytes are made, `at_once` parts at a time."""

    def __init__(self, place: Place, content: Content, *, piece_bytes: int, at_once: int) -> None:
        super().__init__(content, piece_bytes=piece_bytes, fsync=False)
        self._place, self._at_once = place, at_once

    def _write_file(self, path: Path, num_bytes: int) -> WriteTimes:
        waited, begin = 0.0, time.perf_counter()

        def pieces() -> Iterator[bytes]:
            nonlocal waited
            while True:
                start = time.perf_counter()
                piece = self._made.get()
                waited += time.perf_counter() - start
                if piece is None or self._stopped:
                    return self._check()
                sent = bytes(piece.memory[: piece.num_bytes])  # kept until the part is answered
                self._free.put(piece.memory)
                yield sent
                self.bytes_done += len(sent)

        name, size = self._place.name_of(path), self._piece_bytes
        self._place.stream(name, pieces(), num_bytes, part_bytes=size, at_once=self._at_once)
        write = time.perf_counter() - begin - waited
        return WriteTimes(num_bytes=num_bytes, write=write, waited=waited)


DCP_FILES = ("__0_0.distcp", ".metadata", ".metadata.tmp")
"""What torch writes for one accelerator."""


def find_dcp() -> Any:
    """Return torch.distributed.checkpoint.

    Raises:
        WorkloadError: torch is missing.
    """
    try:
        import torch.distributed.checkpoint as dcp
    except ImportError:
        raise WorkloadError(
            "checkpoint.writer=dcp needs torch; pip install 'dlemu[torch]', or leave it out"
        ) from None
    # Without a process group each accelerator saves for itself, as is meant here.
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    return dcp


def check_dcp(num_bytes: int) -> None:
    """Refuse tensors of a host for which this one has too little memory.

    Raises:
        WorkloadError: it has less than `num_bytes`, or torch is missing.
    """
    find_dcp()
    memory, _ = host_memory_bytes()
    if num_bytes > memory:
        raise WorkloadError(
            f"checkpoint.writer=dcp keeps its tensors in memory: {format_bytes(num_bytes)} on a "
            f"host of {format_bytes(memory)}; set a smaller checkpoint.scale"
        )


def dcp_folder(accelerator: int) -> str:
    """Return the folder of an accelerator within a checkpoint's."""
    return f"dcp_{accelerator}"


class DcpWriter:
    """Has the methods of Writer. The tensors lie in memory, as those of a training job do.

    Each accelerator saves for itself, without a process group: one file, by one thread, and its
    metadata, as torch does by default for each rank.
    """

    def __init__(self, content: Content, accelerator: int, *, fsync: bool) -> None:
        self._dcp, self._content = find_dcp(), content
        self._accelerator, self._fsync = accelerator, fsync
        self._tensors: dict[int, Any] = {}
        self._generation = 0.0
        self.bytes_done = 0
        self._stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tensors.clear()

    def stop(self) -> None:
        """Write nothing from the next call on; one that runs goes on."""
        self._stopped = True

    def prepare(self, files: Sequence[tuple[int, int]]) -> None:
        """Make the tensors (sample, bytes), outside the measured time."""
        import torch

        begin = time.thread_time()
        self._tensors.clear()
        for sample, num_bytes in files:
            out = np.empty(num_bytes, np.uint8)
            self._content.fill(out, sample)
            self._tensors[sample] = torch.from_numpy(out)
        self._generation = time.thread_time() - begin

    def work(
        self, folder: Path, files: Files, at: Callable[[str], object] = lambda path: None
    ) -> WriteTimes:
        """Save the prepared tensors as one state; raises as torch does, or Stopped."""
        at(str(folder))
        if self._stopped:
            raise Stopped
        below = folder / dcp_folder(self._accelerator)
        writer = self._dcp.FileSystemWriter(below, sync_files=self._fsync)
        state = {name: self._tensors[sample] for name, _, sample in files}
        begin = time.perf_counter()
        self._dcp.save(state, storage_writer=writer, no_dist=True)
        saved = time.perf_counter()
        if self._fsync:
            sync_folder(folder)
        num_bytes = sum(size for _, size, _ in files)
        self.bytes_done += num_bytes
        return WriteTimes(
            num_bytes=num_bytes,
            write=saved - begin,
            fsync=time.perf_counter() - saved,
            generation=self._generation,
        )
