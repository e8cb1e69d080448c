"""A sweep over the data paths of folders, as vendors publish it for GPUDirect Storage.

1. cells     every combination of target, path, pattern, block size and number of workers
2. files     one file of random bytes per worker and target, removed at the end
3. measure   each cell for some seconds; cells.jsonl keeps those done, which are not measured again
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, TypeAdapter, model_validator

from dlemu.config.sections import LISTED, Arguments, Size, Switch
from dlemu.errors import DAMAGE, RunError, in_short
from dlemu.host.place import find_connection
from dlemu.host.processes import read_cpu_times
from dlemu.host.wear import WearFields, WearWatch, has_writes
from dlemu.judge.folders import hold
from dlemu.judge.records import JsonLines, check_writable
from dlemu.judge.summary import time_of_day
from dlemu.storage.atomic import create
from dlemu.storage.buffers import aligned_buffer
from dlemu.storage.gpu import cuda
from dlemu.storage.gpu.availability import availability, lists_gpu
from dlemu.storage.owned import direct, disk_bytes, held, room, scratch
from dlemu.tools.paths import uring
from dlemu.tools.paths.blocks import DATA_PATHS, DataPath, Pattern, Work, perform
from dlemu.tools.paths.energy import Energy, read_energy
from dlemu.tools.paths.random_files import write_random_files
from dlemu.units import (
    PAGE_BYTES,
    counted,
    format_bytes,
    format_left,
    format_rate,
    format_seconds,
)

CELLS = "cells.jsonl"
"""Keeps the cells that were measured."""
WEAR = "wear.jsonl"
"""Keeps what was written to the drives, a line for each command that wrote enough to tell."""
_LARGEST_FILE = 2 << 30
"""Bytes per worker that published runs used for large blocks (gdsio -s 2048M)."""
_SMALLEST_FILE = 16 << 20

_TO_GPU = ("host_direct_gpu_copy", "cufile")
"""Paths that end in a GPU's memory; not looked at on a host without one, unless named."""
_AT_DEPTHS: tuple[DataPath, ...] = ("host_direct", "host_io_uring")
"""Paths to compare where queue depths are asked for."""
SECTOR = 512
"""Smallest logical block of a drive."""

_LONGEST, _MOST_WORKERS = 86_400, 1024
_DEEPEST = 4096

OnEvent = Callable[[str], None]


def _block(size: int) -> int:
    if size <= 0 or size % (PAGE_BYTES if size > PAGE_BYTES else SECTOR):
        raise ValueError(
            f"must be a multiple of {PAGE_BYTES} bytes, or of {SECTOR} below that, got {size}: "
            "O_DIRECT and cuFile take nothing else"
        )
    return size


class Sweep(Arguments):
    """What to measure; every combination is a cell."""

    target: Annotated[tuple[Path, ...], LISTED, Field(min_length=1)]
    """Folders, instead of FOLDER: a local drive, a remote mount."""
    seconds: Annotated[float, Field(gt=0, le=_LONGEST)] = 45.0
    """Seconds of each measurement, as in the published tables."""
    io_sizes: Annotated[
        tuple[Annotated[Size, AfterValidator(_block)], ...], LISTED, Field(min_length=1)
    ] = tuple(kib << 10 for kib in (4, 16, 64, 128, 512, 1024, 4096))
    """Bytes of a block; 512B where the device allows it."""
    queue_depths: (
        Annotated[tuple[Annotated[int, Field(ge=1, le=_DEEPEST)], ...], LISTED, Field(min_length=1)]
        | None
    ) = None
    """Blocks that each worker has in flight; compares processes and io_uring. None: one, and no
    path that is for more."""
    workers: Annotated[
        tuple[Annotated[int, Field(ge=1, le=_MOST_WORKERS)], ...], LISTED, Field(min_length=1)
    ] = (8,)
    """Processes that read or write at once."""
    patterns: Annotated[tuple[Pattern, ...], LISTED, Field(min_length=1)] = (
        "seq_read",
        "random_read",
    )
    """Writing wears drives, so it must be asked for."""
    paths: Annotated[tuple[DataPath, ...], LISTED, Field(min_length=1)] | None = None
    """None: all that work here. One that is named and does not work is an error."""
    file_size: Size | None = None
    """Bytes of each worker's file. None: 2 GiB, less if that would take over a quarter of the free
    space, and more if the largest block at the greatest depth needs it."""
    output: Path = Path("outputs/paths")
    """Folder for cells.jsonl, paths.csv, paths.json, paths.txt and pictures. The same command goes
    on there where it was interrupted."""
    progress: Switch = "on"
    """Show on stderr what is being measured."""

    @property
    def depths(self) -> tuple[int, ...]:
        """Blocks that each worker has in flight."""
        return (1,) if self.queue_depths is None else self.queue_depths

    @model_validator(mode="after")
    def _places(self) -> Self:
        least = max(self.io_sizes) * max(self.depths)
        if self.file_size is not None and self.file_size < least:
            deep = "" if max(self.depths) == 1 else " x the largest of queue_depths"
            raise ValueError(
                f"file_size must be at least the largest of io_sizes{deep}, {least} bytes, "
                f"got {self.file_size}"
            )
        for target in self.target:
            if not target.is_dir():
                raise ValueError(f"target {target} is not a folder; create or mount it")
        return self


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a cell measures; the same values are the same cell."""

    target: str
    path: DataPath
    pattern: Pattern
    io_size: int
    """Bytes of a block."""
    workers: int
    seconds: float
    queue_depth: int = 1
    """Blocks that each worker has in flight."""
    queues: int | None = None
    """Hardware queues of the target's drive: an emulated drive may get others between two sweeps.
    None: no single drive is known."""


@dataclass(frozen=True, kw_only=True)
class Cell(Asked):
    """One measurement. CPU percentages are of all CPUs of the host, as `top` and vendors count."""

    elapsed: float
    """Seconds measured, including the last block and, for buffered writes, the sync."""
    num_ios: int
    gib_per_second: float
    iops: float
    latency_mean: float
    """Seconds per block, as the percentiles."""
    latency_p50: float
    latency_p99: float
    latency_p999: float
    cpu_user_percentage: float
    """Of the measuring processes."""
    cpu_system_percentage: float
    host_user_percentage: float
    """Of everything on the host, including the kernel's own threads."""
    host_system_percentage: float
    cpu_seconds_per_gb: float
    """User and system time of the measuring processes per 10^9 bytes."""
    cpu_watts: float | None
    """Mean power of all CPU packages, and of all GPUs; None if it cannot be read."""
    gpu_watts: float | None
    mode: str
    """The path that the bytes took: by cuFile's counters p2pdma, nvidia-fs or compat; else host."""
    p2pdma_bytes: int
    nvidia_fs_bytes: int
    compat_bytes: int
    host_bytes: int
    file_bytes: int
    cpu_seconds_per_million_ios: float | None = None
    """User and system time of the measuring processes; None: measured by an earlier version."""

    @property
    def bytes_per_second(self) -> float:
        return self.gib_per_second * 2**30

    @property
    def asked(self) -> Asked:
        return Asked(**{field.name: getattr(self, field.name) for field in fields(Asked)})


def run_paths(
    sweep: Sweep,
    on_event: OnEvent,
    on_begin: OnEvent = lambda text: None,
    on_wear: Callable[[WearFields], None] = lambda wear: None,
) -> list[Cell]:
    """Measure the cells that the output folder lacks; return all.

    `on_event` gets lines of text, `on_begin` what is done next, `on_wear` what was written.
    """
    with ExitStack() as stack:
        for target in sweep.target:  # the files of two sweeps would have the same names
            if target.resolve() != sweep.output.resolve():  # else the results hold it
                stack.enter_context(held(target, key="target"))
        return _run_alone(sweep, on_event, on_begin, on_wear)


def _run_alone(
    sweep: Sweep, on_event: OnEvent, on_begin: OnEvent, on_wear: Callable[[WearFields], None]
) -> list[Cell]:
    asked = {target: list(_ask(sweep, target, on_event)) for target in sweep.target}
    all_asked = [each for cells in asked.values() for each in cells]
    with hold(sweep.output, "paths", key="output"):
        store = JsonLines(sweep.output / CELLS)
        known = {cell.asked: cell for cell in cells_of(store)}
        num_left = sum(each not in known for each in all_asked)
        on_event(
            f"{len(all_asked)} cells, {len(all_asked) - num_left} of them measured before; "
            f"{num_left} x {format_seconds(sweep.seconds)} = "
            f"{format_seconds(num_left * sweep.seconds)}"
        )
        check_writable(sweep.output / "paths.json")
        watch, written = WearWatch(*sweep.target), 0
        watch.start()
        for target in sweep.target:
            left = [each for each in asked[target] if each not in known]
            if not left:
                continue
            on_begin(f"writing files into {target}")
            with _files(sweep, target, on_event) as (files, file_bytes):
                written += len(files) * file_bytes
                for each in left:
                    on_begin(f"{each.path} {each.pattern} {format_bytes(each.io_size)}")
                    cell = _measure(each, files[: each.workers], file_bytes)
                    num_left -= 1
                    on_event(
                        f"{cell.target} {cell.path} {cell.pattern} {format_bytes(cell.io_size)} x "
                        f"{cell.workers}{_deep(cell)}: {format_rate(cell.bytes_per_second)}, p99 "
                        f"{format_seconds(cell.latency_p99)}, {cell.cpu_seconds_per_gb:.3f} "
                        f"CPU-s/GB{format_left(num_left * sweep.seconds, before='; ')}"
                    )
                    known[each] = cell
                    store.append(asdict(cell))
                    written += _written(cell)
        wear = watch.finish(file_bytes=written)
        if has_writes(wear):
            JsonLines(sweep.output / WEAR).append({"end": time_of_day(), **wear})
            on_wear(wear)
    return [*_alike_elsewhere(known, all_asked), *(known[each] for each in all_asked)]


def _deep(cell: Asked) -> str:
    return "" if cell.queue_depth == 1 else f", depth {cell.queue_depth}"


def _alike_elsewhere(known: dict[Asked, Cell], asked: Sequence[Asked]) -> Iterator[Cell]:
    """Yield the cells of earlier sweeps that differ from those asked in the target alone."""

    def anywhere(cell: Asked) -> Asked:
        return replace(cell, target="", queues=None)

    shapes, own = {anywhere(each) for each in asked}, {*asked}
    yield from (known[each] for each in known if each not in own and anywhere(each) in shapes)


def _written(cell: Cell) -> int:
    """Return the bytes that a cell wrote."""
    return cell.num_ios * cell.io_size if cell.pattern.endswith("write") else 0


_CELL = TypeAdapter(Cell)


def cells_of(store: JsonLines) -> list[Cell]:
    """Return the finished cells of a cells.jsonl."""
    try:
        return [_CELL.validate_python(value) for value in store.values]
    except DAMAGE as error:
        raise RunError(f"{store.path} is damaged: {in_short(error)}; remove it") from None


def _ask(sweep: Sweep, target: Path, on_event: OnEvent) -> Iterator[Asked]:
    """Yield the cells to measure on a target, in the order of measuring."""
    usable = []
    wanted = sweep.paths or (DATA_PATHS if sweep.queue_depths is None else _AT_DEPTHS)
    if sweep.paths is None and sweep.queue_depths is None:
        # With one block in flight, io_uring says nothing new.
        hidden = ("host_io_uring", *(() if lists_gpu() else _TO_GPU))
        wanted = tuple(path for path in DATA_PATHS if path not in hidden)
    for path in wanted:
        problem = path_problem(path, target)
        if problem is None:
            usable.append(path)
        elif sweep.paths is None:
            on_event(f"left out on {target}: {path}: {problem}")
        else:
            raise RunError(f"paths={path} does not work on {target}: {problem}")
    connection = find_connection(target)
    if connection is not None and (sweep.queue_depths is not None or len(sweep.target) > 1):
        on_event(f"{target}: {connection[0]}")
    sizes = {path: set(_taken_sizes(sweep, path, target, on_event)) for path in usable}
    # Paths vary fastest: what is compared is measured shortly after each other.
    for pattern, workers, io_size, depth, path in itertools.product(
        sweep.patterns, sweep.workers, sweep.io_sizes, sweep.depths, usable
    ):
        if io_size in sizes[path]:
            yield Asked(
                target=str(target),
                path=path,
                pattern=pattern,
                io_size=io_size,
                workers=workers,
                seconds=sweep.seconds,
                queue_depth=depth,
                queues=None if connection is None else connection[1],
            )


def _taken_sizes(sweep: Sweep, path: DataPath, target: Path, on_event: OnEvent) -> Iterator[int]:
    """Yield the block sizes that a path takes in a folder; a line about those it does not."""
    for size in sweep.io_sizes:
        least = PAGE_BYTES if path == "cufile" else SECTOR
        if path not in ("host_buffered", "cufile") and size < PAGE_BYTES:
            least = smallest_direct(target)
        if size < least:
            on_event(
                f"left out on {target}: {path} with blocks of {size} B: {least} B is the least "
                f"there{'' if path == 'cufile' else ' (the logical block of the device)'}"
            )
        else:
            yield size


def path_problem(path: DataPath, target: Path) -> str | None:
    """Return why a path cannot be measured in a folder; None if it can."""
    if path == "cufile":
        found = availability(target)
        return None if found.usable else found.why
    try:
        if path != "host_buffered" and not direct(target):
            return "its file system does not open files with O_DIRECT"
    except OSError as error:
        raise RunError(
            f"target {target} cannot be written ({error.strerror})", remedy="name another"
        ) from None
    if path == "host_io_uring":
        return uring.problem()
    if path == "host_direct_gpu_copy":
        try:
            cuda.num_gpus()
        except RunError as error:
            return str(error)
    return None


def smallest_direct(target: Path) -> int:
    """Return the bytes of the smallest block that O_DIRECT reads in a folder; it is tried."""
    path = target / "dlemu_paths.probe"
    with ExitStack() as stack:
        stack.enter_context(scratch(target, [path.name]))
        file = create(path, os.O_RDWR, direct=True)
        stack.callback(os.close, file)
        os.pwrite(file, aligned_buffer(PAGE_BYTES), 0)
        size = SECTOR
        while size < PAGE_BYTES:
            with suppress(OSError):  # EINVAL: not a multiple of the logical block
                os.preadv(file, [aligned_buffer(PAGE_BYTES)[:size]], size)
                return size
            size *= 2
    return PAGE_BYTES


def _measure(asked: Asked, files: tuple[str, ...], file_bytes: int) -> Cell:
    work = Work(
        path=asked.path,
        pattern=asked.pattern,
        io_size=asked.io_size,
        files=files,
        file_bytes=file_bytes // asked.io_size * asked.io_size,
        seconds=asked.seconds,
        depth=asked.queue_depth,
    )
    before: list[tuple[dict[str, float], Energy, float]] = []
    done, elapsed = perform(work, lambda: before.append(_counters()))
    (cpu_before, energy_before, start), (cpu, energy, end) = before[0], _counters()
    num_bytes = done.latencies.num * work.io_size

    def host_share(*names: str) -> float:
        seconds = {name: cpu[name] - cpu_before[name] for name in cpu}
        return 100 * sum(seconds[name] for name in names) / max(sum(seconds.values()), 1e-9)

    cpu_watts, gpu_watts = (
        None if joules is None else joules / (end - start)
        for joules in energy.joules_since(energy_before)
    )
    all_cpus = elapsed * (os.cpu_count() or 1)
    return Cell(
        **asdict(asked),
        elapsed=elapsed,
        num_ios=done.latencies.num,
        gib_per_second=num_bytes / elapsed / 2**30,
        iops=done.latencies.num / elapsed,
        latency_mean=done.latencies.mean(),
        latency_p50=done.latencies.percentile(50),
        latency_p99=done.latencies.percentile(99),
        latency_p999=done.latencies.percentile(99.9),
        cpu_user_percentage=100 * done.user_seconds / all_cpus,
        cpu_system_percentage=100 * done.system_seconds / all_cpus,
        host_user_percentage=host_share("user", "nice"),
        host_system_percentage=host_share("system", "irq", "softirq"),
        cpu_seconds_per_gb=(done.user_seconds + done.system_seconds) / (num_bytes / 1e9),
        cpu_watts=cpu_watts,
        gpu_watts=gpu_watts,
        mode=done.path_bytes.mode,
        p2pdma_bytes=done.path_bytes.p2pdma,
        nvidia_fs_bytes=done.path_bytes.nvidia_fs,
        compat_bytes=done.path_bytes.compat,
        host_bytes=done.path_bytes.host,
        file_bytes=work.file_bytes,
        cpu_seconds_per_million_ios=(done.user_seconds + done.system_seconds)
        / (done.latencies.num / 1e6),
    )


def _counters() -> tuple[dict[str, float], Energy, float]:
    """Return the host's CPU times, its energy, and the time of the clock."""
    cpu = read_cpu_times()
    if cpu is None:
        raise RunError("/proc/stat has no CPU times; paths needs a /proc of Linux")
    return cpu, read_energy(), time.perf_counter()


@contextmanager
def _files(sweep: Sweep, target: Path, on_event: OnEvent) -> Iterator[tuple[tuple[str, ...], int]]:
    """Write the workers' files into the target; yield them and their size; remove them at last."""
    names = [f"dlemu_paths.{index}" for index in range(max(sweep.workers))]
    with scratch(target, names):
        free = disk_bytes(target)[1]
        largest = max(sweep.io_sizes) * max(sweep.depths)
        chosen = max(largest, min(_LARGEST_FILE, max(_SMALLEST_FILE, free // 4 // len(names))))
        size = (sweep.file_size or chosen) // largest * largest
        what = f"{counted(len(names), 'file')} of {format_bytes(size)}"
        room(target, len(names) * size, "free some, or lower file_size or workers", what=what)
        on_event(f"writing {what} into {target}")
        files = tuple(str(target / name) for name in names)
        write_random_files([(file, size) for file in files])
        yield files, size
