"""One measurement of one data path: workers that read or write blocks of files for some seconds.

Each worker has its own file, with `queue_depth` blocks of it in flight. Paths with blocking calls
need a reader for each of these, with a buffer of its own; io_uring needs one. The data paths:

    host_buffered           page cache
    host_direct             O_DIRECT
    host_io_uring           O_DIRECT through io_uring: one reader for all blocks in flight
    host_direct_gpu_copy    O_DIRECT, then a copy from pinned memory to the GPU
    cufile                  cuFile, by whichever path it chooses: see `CellResult.path_bytes`
"""

import multiprocessing
import os
import resource
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import chain, repeat
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from dlemu.errors import DlemuError, RunError, system_line
from dlemu.storage.counted import PathBytes
from dlemu.storage.files import open_sized
from dlemu.storage.gpu.cuda import DeviceMemory, GpuContext, HostMemory
from dlemu.storage.gpu.cufile import DeviceBuffer, DeviceFile, Driver
from dlemu.tools.paths.uring import Ring
from dlemu.units import PAGE_BYTES

DataPath = Literal[
    "host_buffered",
    "host_direct",
    "host_io_uring",
    "host_direct_gpu_copy",
    "cufile",
]
Pattern = Literal["seq_read", "random_read", "seq_write", "random_write"]
DATA_PATHS: tuple[DataPath, ...] = get_args(DataPath)
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
TO_GPU: tuple[DataPath, ...] = ("host_direct_gpu_copy", "cufile")
"""Paths that end in a GPU's memory."""

PROCESSES_BELOW = 128 * 1024
"""Smaller blocks into host memory need several processes: Python threads do not scale with them. At
4 KiB, 4 threads reach 171,000 IOPS, fio 365,000."""

_CHUNK = 8192
"""Blocks whose latencies are added to the histogram at once."""

_PER_POWER = 64
"""Buckets of equal width for each power of two of ns: their middle is off by 1/128 at most."""
_NUM_POWERS = 44
"""Powers of two covered: up to 2^43 ns, 2.4 hours."""


@dataclass(frozen=True, kw_only=True)
class CellSpec:
    """A measurement that is asked for; the same values are the same cell of a table."""

    target: str
    path: DataPath
    pattern: Pattern
    io_size: int
    """Bytes of a block."""
    workers: int
    """Of each target."""
    seconds: float
    queue_depth: int = 1
    """Blocks that each worker has in flight."""
    queues: int | None = None
    """Hardware queues of the target's drive: an emulated drive may get others between two sweeps.
    None: no single drive is known."""
    gpu: int | None = None
    """Number of the GPU that the bytes go to; None: they stay in host memory."""
    together: tuple[str, ...] = ()
    """Targets that are read or written at the same time; (): this one alone."""

    @property
    def asked(self) -> "CellSpec":
        """This cell, without what a subclass adds."""
        return CellSpec(**{field.name: getattr(self, field.name) for field in fields(CellSpec)})

    @property
    def shape(self) -> "CellSpec":
        """The same without its target."""
        return replace(self.asked, target="", queues=None, gpu=None)


@dataclass(frozen=True, kw_only=True)
class CellJob:
    """A measurement with the files of its workers."""

    spec: CellSpec
    files: tuple[str, ...]
    """One per worker."""
    file_bytes: int
    """Bytes of each file that are used."""
    starts: tuple[int, ...] = ()
    """Byte at which the used part of each file begins; (): at 0. Parts of one device differ."""
    cpus: tuple[int, ...] = ()
    """CPUs that the workers are bound to; (): none."""

    @property
    def writes(self) -> bool:
        return self.spec.pattern.endswith("write")

    @property
    def on_gpu(self) -> bool:
        return self.spec.path in TO_GPU

    @property
    def num_readers(self) -> int:
        """Number of those that read or write blocks; blocking calls need `queue_depth` a file."""
        return len(self.files) * (1 if self.spec.path == "host_io_uring" else self.spec.queue_depth)

    @property
    def num_processes(self) -> int:
        """One per reader for small blocks into host memory, otherwise one for all."""
        # Several CUDA contexts would take turns on the GPU, and that would be measured.
        if self.on_gpu:
            return 1
        small = self.spec.io_size < PROCESSES_BELOW or self.spec.path == "host_io_uring"
        return self.num_readers if small else 1


class Latencies:
    """Percentiles of any number of latencies in 22 KiB of memory, with an error of at most 0.8 %.

    A histogram with logarithmic buckets, after Gil Tene's HdrHistogram; times are in ns.
    """

    def __init__(self) -> None:
        self.counts: npt.NDArray[np.int64] = np.zeros(_NUM_POWERS * _PER_POWER, np.int64)
        self.total = 0
        """Exact sum of all latencies."""

    @property
    def num(self) -> int:
        return int(self.counts.sum())

    def add(self, times: Sequence[int] | npt.NDArray[np.int64]) -> None:
        """Count latencies, each at least 0 ns."""
        values = np.asarray(times, np.int64)
        fractions, powers = np.frexp(values)  # value = fraction x 2^power, 0.5 <= fraction < 1
        places = ((fractions - 0.5) * 2 * _PER_POWER).clip(0).astype(np.int64)
        self.counts += np.bincount(powers * _PER_POWER + places, minlength=len(self.counts))
        self.total += int(values.sum())

    def merge(self, other: "Latencies") -> None:
        self.counts += other.counts
        self.total += other.total

    def mean(self) -> float:
        """Return the exact mean in seconds."""
        return self.total / self.num / 1e9

    def percentile(self, percent: float) -> float:
        """Return the percentile in seconds, by nearest rank (NumPy: "inverted_cdf")."""
        rank = max(1, int(np.ceil(self.num * percent / 100)))
        place = int(np.searchsorted(self.counts.cumsum(), rank))
        power, step = divmod(place, _PER_POWER)
        return float(np.ldexp(0.5 + (step + 0.5) / (2 * _PER_POWER), power)) / 1e9


_Pipe: TypeAlias = "Connection[Any, Any]"
Pids: TypeAlias = Sequence[Sequence[int]]


@dataclass
class CellResult:
    """Totals of one or more workers."""

    latencies: Latencies = field(default_factory=Latencies)
    seconds: float = 0.0
    """Until the last worker ended, with its last block and, for buffered writes, the sync."""
    user_seconds: float = 0.0
    system_seconds: float = 0.0
    path_bytes: PathBytes = field(default_factory=PathBytes)

    def merge(self, other: "CellResult") -> None:
        self.latencies.merge(other.latencies)
        self.seconds = max(self.seconds, other.seconds)
        self.user_seconds += other.user_seconds
        self.system_seconds += other.system_seconds
        self.path_bytes += other.path_bytes


def perform(
    works: Sequence[CellJob], ready: Callable[[Pids], object] = lambda pids: None
) -> list[CellResult]:
    """Run the workers of all works at once; return what those of each did.

    `ready` is called when all of them have opened their files, with the process ids of the workers
    of each work; they begin 0.02 s later.
    """
    context = multiprocessing.get_context("forkserver")
    # The forkserver has imported this module, so its forks start fast. They do not have this
    # process's threads and CUDA context, which must not be forked.
    context.set_forkserver_preload([__name__])
    groups: dict[_Pipe, tuple[BaseProcess, CellResult]] = {}
    done = [CellResult() for _ in works]
    try:
        for work, total in zip(works, done, strict=True):
            for place in range(work.num_processes):
                ours, theirs = context.Pipe()
                members = tuple(range(place, work.num_readers, work.num_processes))
                arguments = (theirs, work, members)
                process = context.Process(target=_run_group, args=arguments, daemon=True)
                process.start()
                theirs.close()
                groups[ours] = process, total
        list(_receive_all(groups))  # each says that it is ready
        workers = groups.values()
        ready([[own.pid or 0 for own, of in workers if of is total] for total in done])
        start = time.perf_counter() + 0.02  # time for the message to reach all of them
        for pipe in groups:
            with suppress(BrokenPipeError):  # that worker has ended; reading its pipe says so
                pipe.send(start)
        for pipe, result in _receive_all(groups):
            assert isinstance(result, CellResult)
            groups[pipe][1].merge(result)
        return done
    finally:
        for pipe, (worker, _) in groups.items():
            worker.terminate()
            worker.join()
            pipe.close()


def _receive_all(pipes: Iterable[_Pipe]) -> Iterator[tuple[_Pipe, CellResult | None]]:
    """Yield each pipe with one message of it as they come, so that a failure is seen at once."""
    awaited = list(pipes)
    while awaited:
        for pipe in wait(awaited):
            assert isinstance(pipe, Connection)
            awaited.remove(pipe)
            try:
                message = pipe.recv()
            except (EOFError, ConnectionResetError):  # a reset: with our message unread
                raise RunError("a worker ended without a word; killed, or out of memory?") from None
            if isinstance(message, str):
                raise RunError(message)
            yield pipe, message


def _run_group(pipe: _Pipe, work: CellJob, members: tuple[int, ...]) -> None:
    """Run the workers with the numbers `members`, as one process."""
    _end_with_parent(pipe)
    try:
        with ExitStack() as stack:
            if work.cpus:
                os.sched_setaffinity(0, work.cpus)  # before memory is touched: it lies near then
            gpu = stack.enter_context(GpuContext(work.spec.gpu or 0)) if work.on_gpu else None
            driver = None
            if work.spec.path == "cufile":
                driver = stack.enter_context(Driver(os.path.dirname(work.files[0])))
            workers = [_Worker(work, member, gpu, driver, stack) for member in members]
            pipe.send(None)
            start = pipe.recv()
            time.sleep(max(0.0, start - time.perf_counter()))
            before = resource.getrusage(resource.RUSAGE_SELF)
            latencies = _run_threads(workers, start + work.spec.seconds)
            seconds = time.perf_counter() - start
            after = resource.getrusage(resource.RUSAGE_SELF)
            read = PathBytes(host=latencies.num * work.spec.io_size)
            done = CellResult(
                latencies,
                seconds,
                after.ru_utime - before.ru_utime,
                after.ru_stime - before.ru_stime,
                driver.path_bytes() if driver is not None else read,
            )
        pipe.send(done)
    except (DlemuError, OSError) as error:
        why = system_line(error) if isinstance(error, OSError) else error
        spec = work.spec
        pipe.send(str(RunError(f"{spec.path}, {spec.pattern}, {spec.io_size} bytes: {why}")))


def _end_with_parent(pipe: _Pipe) -> None:
    """Let the parent end this process: at Ctrl-C, and whenever it ends itself.

    PR_SET_PDEATHSIG would not do: the forkserver, which is the parent for the kernel, may stay.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        ends = select.poll()
        ends.register(pipe, 0)  # only that the other end is closed
        ends.poll()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run_threads(workers: "list[_Worker]", deadline: float) -> Latencies:
    if len(workers) == 1:  # in the thread that has made its ring, which must use it
        return workers[0].run(deadline)
    with ThreadPoolExecutor(len(workers)) as threads:
        first, *others = threads.map(_Worker.run, workers, repeat(deadline))
    for other in others:
        first.merge(other)
    return first


class _Worker:
    """Reads or writes blocks of one file, or a share of them, through buffers of its own."""

    def __init__(
        self,
        work: CellJob,
        index: int,
        gpu: GpuContext | None,
        driver: Driver | None,
        stack: ExitStack,
    ) -> None:
        self._work = work
        self._gpu = gpu
        # Readers of one file go through it in one order, and take every n-th block of it.
        self._share, number = divmod(index, len(work.files))
        self._order = np.random.default_rng((number, len(work.files)))
        self._file = work.files[number]
        self._start = work.starts[number] if work.starts else 0
        self._fd, _ = open_sized(
            self._file,
            direct=work.spec.path not in ("host_buffered", "cufile"),
            writes=work.writes,
            device=not work.writes,
            error=RunError,
        )
        stack.callback(os.close, self._fd)
        # Start with a cold page cache.
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        places = work.spec.queue_depth if work.spec.path == "host_io_uring" else 1
        size = places * work.spec.io_size
        self._buffer = stack.enter_context(HostMemory(max(size, PAGE_BYTES)))
        self._view = self._buffer.view[:size]
        self._view[:] = np.random.default_rng(index).bytes(size)
        blocks = np.frombuffer(self._view, np.uint64).reshape(places, work.spec.io_size // 8)
        self._stamps = blocks[:, :: PAGE_BYTES // 8]
        self._first_stamps = self._stamps.copy()
        self._num_written = 0
        self._lists = self._offsets()
        self._first_list = next(self._lists)  # shuffled before the measurement begins
        self._ring = None
        if work.spec.path == "host_io_uring":
            self._ring = Ring(
                self._fd,
                depth=places,
                size=work.spec.io_size,
                address=self._buffer.address,
                writes=work.writes,
            )
            stack.callback(self._ring.close)
        else:
            self._transfer = self._transfer_of(driver, stack)

    def run(self, deadline: float) -> Latencies:
        """Read or write until the deadline, on the clock of time.perf_counter."""
        latencies, end = Latencies(), int(deadline * 1e9)
        lists = chain([self._first_list], self._lists)
        if self._ring is not None:
            prepare = self._stamp if self._work.writes else None
            next_offset = chain.from_iterable(lists).__next__
            self._ring.run(next_offset, end, latencies.add, prepare)
            return latencies
        if self._gpu is not None:
            self._gpu.use()
        size, transfer, clock = self._work.spec.io_size, self._transfer, time.perf_counter_ns
        for offsets in lists:
            stamps = [clock()]
            for offset in offsets:
                if transfer(offset) != size:
                    raise RunError(f"{self._file}: short transfer at byte {offset}")
                now = clock()
                stamps.append(now)
                if now >= end:
                    break
            times = np.array(stamps, np.int64)
            latencies.add(times[1:] - times[:-1])
            if stamps[-1] >= end:
                break
        if self._work.writes and self._work.spec.path == "host_buffered":
            os.fdatasync(self._fd)  # otherwise only memory was measured
        return latencies

    def _offsets(self) -> Iterator[list[int]]:
        """Yield offsets, for ever: in each round every block of the file, or of the share, once."""
        num_blocks = self._work.file_bytes // self._work.spec.io_size
        num_shares = self._work.num_readers // len(self._work.files)
        while True:
            order = np.arange(num_blocks)
            if self._work.spec.pattern.startswith("random"):
                self._order.shuffle(order)
            own = order[self._share :: num_shares]
            for start in range(0, len(own), _CHUNK):
                yield (own[start : start + _CHUNK] * self._work.spec.io_size + self._start).tolist()
            if self._work.spec.path == "host_buffered":
                # The next round must not find its blocks in the page cache.
                if self._work.writes:
                    os.fdatasync(self._fd)
                os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def _stamp(self, place: int) -> None:
        """Make every 4 KiB of a buffer unique: storage that deduplicates would look too fast."""
        self._num_written += 1
        # Multiples of an odd number repeat only after 2^64 of them.
        step = np.uint64(self._num_written * 0x9E3779B97F4A7C15 % (1 << 64))
        np.add(self._first_stamps[place], step, out=self._stamps[place])

    def _transfer_of(self, driver: Driver | None, stack: ExitStack) -> Callable[[int], int]:
        """Return what moves the block at an offset by a blocking call, and returns its bytes."""
        size, address, writes = self._work.spec.io_size, self._buffer.address, self._work.writes
        memory = stack.enter_context(DeviceMemory(size)) if self._work.on_gpu else None
        if memory is not None and driver is not None:
            memory.fill(address, size)
            buffer = stack.enter_context(DeviceBuffer(driver, memory.address, size))
            file = stack.enter_context(DeviceFile(driver, self._file, writable=writes))
            move = file.write if writes else file.read
            return lambda offset: move(buffer, size, offset)
        if memory is not None:
            self._buffer.pin()

        def read(offset: int) -> int:
            done = os.preadv(self._fd, [self._view], offset)
            if memory is not None:
                memory.fill(address, size)
            return done

        def write(offset: int) -> int:
            if memory is not None:
                memory.drain(address, size)
            self._stamp(0)
            return os.pwritev(self._fd, [self._view], offset)

        if writes:
            return write
        return partial(os.preadv, self._fd, [self._view]) if memory is None else read
