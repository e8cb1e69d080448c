"""Cells of a sweep: what was measured, on one target or on several at once, and what bounds it.

A target is a folder, in which files are written and removed, or a block device, which is read only.
Each worker has a file of random bytes of its own, which no storage can compress or deduplicate, or
a part of the device.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count, repeat
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from dlemu.config.model import Drive
from dlemu.errors import RunError
from dlemu.findings import Finding, Tell, note
from dlemu.host.devices import PROC, listed, read_text, total
from dlemu.host.place import Attachment
from dlemu.host.processes import read_cpu_times
from dlemu.judge.own_rates import OwnRates
from dlemu.judge.steady import fields_of
from dlemu.ranks.world import World
from dlemu.storage.files import NO_DIRECT, UNITS, aligned_buffer, create, open_sized
from dlemu.storage.folder import local_place
from dlemu.storage.gpu import cuda
from dlemu.storage.gpu.cufile import availability
from dlemu.storage.owned import disk_bytes, room, scratch
from dlemu.tools.paths import uring
from dlemu.tools.paths.blocks import CellJob, CellResult, CellSpec, DataPath, Pids, perform
from dlemu.units import PAGE_BYTES, counted, format_bytes

SUM = "sum"
"""The target of a cell that sums up those of a measurement."""
_COPIES = ("host_buffered", "host_direct_gpu_copy")
"""Paths whose bytes are written to memory and read from it again."""
_COPIED = 128 << 20
"""Bytes that are copied to measure the memory: more than caches hold."""
SECTOR = 512
"""Smallest logical block of a drive."""
_LARGEST_FILE = 2 << 30
"""Bytes per worker that published runs used for large blocks (gdsio -s 2048M)."""
_SMALLEST_FILE = 16 << 20
_AT_ONCE = 4
"""Files that are written at the same time."""
_PIECE = 16 << 20
"""Random bytes that are made at once."""
_WRITE = 1 << 20
"""Bytes of one write: an interrupt waits for no more of them."""
OnBegin = Callable[[str], object]
"""Takes the name of what is done next."""


@dataclass(frozen=True, kw_only=True)
class Cell(CellSpec):
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
    """Mean power of all CPU packages, and of all GPUs; None if it cannot be read, and where targets
    are measured together, but for their sum."""
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
    ceiling: str | None = None
    """The lowest of the rates that are known to bound this one; None: none is known."""
    ceiling_bytes_per_second: float | None = None
    steady: Mapping[str, Any] | None = None
    """How steadily its workers' bytes came, the fields of `judge.steady.Steadiness`. None: nothing
    is counted, the cell was shorter than five seconds, or is a sum."""


@dataclass(frozen=True, kw_only=True)
class RankTarget:
    """A target as the rank that measures it sees it."""

    name: str
    """As it is shown: of several hosts with the host's name."""
    target: Path
    rank: int
    host: str
    cells: Sequence[CellSpec]
    """The cells that can be measured there."""
    attached: Attachment
    identity: Mapping[str, str] = field(default_factory=dict)
    """Of its drives and its host, as `host.same` tells it."""
    cpus: tuple[int, ...] = ()
    """Of the NUMA node of its drives; (): workers are not bound."""
    notes: Sequence[Finding] = ()
    """Lines about what is left out, and where the target is attached."""
    memory_rate: float = 0.0
    """Bytes per second that the host's CPUs copy."""
    drive: Drive | None = None
    """Datasheet of its drives."""
    drives: int = 1


@dataclass(frozen=True)
class _Measured:
    """What the workers of a target did, and its host meanwhile."""

    place: RankTarget
    work: CellJob
    done: CellResult
    use: "HostUse"
    steady: Mapping[str, Any] | None


def measure(works: Sequence[CellJob], places: Sequence[RankTarget], world: World) -> list[Cell]:
    """Measure cells at once; return those of all ranks and, of several, their sum, on rank 0 only.

    All ranks call it, each with the works on its own targets, and with all places.

    Raises:
        RunError: a transfer failed, or a worker was killed.
    """
    before, rates = list[HostCounters](), list[OwnRates]()
    by_name = {place.name: place for place in places}
    with ExitStack() as watching:

        def ready(workers: Pids) -> None:
            world.barrier()
            before.append(HostCounters.now())
            world.barrier()  # the ranks begin together, once every host has its counts
            for pids in workers:
                rates.append(watching.enter_context(OwnRates(partial(moved_by, pids))))

        done = perform(works, ready)
        use = HostCounters.now().since(before[0])
    own = [
        _Measured(by_name[work.spec.target], work, each, use, fields_of(rate.steadiness()))
        for work, each, rate in zip(works, done, rates, strict=True)
    ]
    found = [each for rank in world.gather(own) or () for each in rank]
    cells = [_cell(each.work.spec, [each]) for each in found]
    return [*cells, _cell(sum_of(cells[0]), found)] if len(cells) > 1 else cells


def moved_by(pids: Sequence[int]) -> float:
    """Return the bytes that these processes have had read from storage and written to it."""
    total = 0
    for pid in pids:
        for line in read_text(PROC / f"{pid}/io").splitlines():
            name, _, number = line.partition(": ")
            total += int(number) if name in ("read_bytes", "write_bytes") else 0
    return float(total)


def sum_of(asked: CellSpec) -> CellSpec:
    """Return the cell that sums up those that are measured together with one."""
    return replace(asked.shape, target=SUM)


def _cell(asked: CellSpec, measured: Sequence[_Measured]) -> Cell:
    """Return the cell of a target, or of the sum of several; CPU shares are of all their hosts."""
    done = CellResult()
    for each in measured:
        done.merge(each.done)
    num, latencies, moved = done.latencies.num, done.latencies, done.path_bytes
    cpu = done.user_seconds + done.system_seconds
    iops = sum(each.done.latencies.num / each.done.seconds for each in measured)
    hosts = {each.place.host: each for each in measured}.values()
    all_cpus = sum(each.done.seconds * each.use.cpus for each in hosts)
    part = asked.together and asked.target != SUM
    ceiling, ceiling_rate = _ceiling(asked, [each.place for each in measured])
    return Cell(
        **asdict(asked),
        elapsed=done.seconds,
        num_ios=num,
        gib_per_second=iops * asked.io_size / 2**30,
        iops=iops,
        latency_mean=latencies.mean(),
        latency_p50=latencies.percentile(50),
        latency_p99=latencies.percentile(99),
        latency_p999=latencies.percentile(99.9),
        cpu_user_percentage=100 * done.user_seconds / all_cpus,
        cpu_system_percentage=100 * done.system_seconds / all_cpus,
        host_user_percentage=fmean(each.use.user for each in hosts),
        host_system_percentage=fmean(each.use.system for each in hosts),
        cpu_seconds_per_gb=cpu / (num * asked.io_size / 1e9),
        cpu_watts=None if part else total([each.use.cpu_watts for each in hosts]),
        gpu_watts=None if part else total([each.use.gpu_watts for each in hosts]),
        mode=moved.mode,
        p2pdma_bytes=moved.p2pdma,
        nvidia_fs_bytes=moved.nvidia_fs,
        compat_bytes=moved.compat,
        host_bytes=moved.host,
        file_bytes=sum(each.work.file_bytes for each in measured) // len(measured),
        cpu_seconds_per_million_ios=cpu / (num / 1e6),
        ceiling=ceiling,
        ceiling_bytes_per_second=ceiling_rate,
        steady=None if asked.target == SUM else measured[0].steady,
    )


def _ceiling(asked: CellSpec, places: Sequence[RankTarget]) -> tuple[str | None, float | None]:
    """Return name and rate of the lowest ceiling that is known for these targets together."""
    sheets, links, memory = dict[Any, Any](), dict[Any, Any](), dict[Any, Any]()
    bandwidth = "write_bandwidth" if asked.pattern.endswith("write") else "read_bandwidth"
    for place in places:  # what two of them share counts once
        own, rate = place.attached.links, getattr(place.drive, bandwidth, None)
        sheets[place.host, *(own or [place.name])] = rate and place.drives * rate
        links |= {(place.host, name): each for name, each in own.items()}
        memory[place.host] = place.memory_rate if asked.path in _COPIES else None
    kinds = {place.attached.kind for place in places}
    name = " and ".join(sorted(kinds))
    bounds = {"datasheet": sheets, name: links, "memory": memory}
    known = [(rate, name) for name, rates in bounds.items() if (rate := total([*rates.values()]))]
    rate, lowest = min(known, default=(None, None))
    return lowest, rate


def memory_rate() -> float:
    """Return the bytes per second that this host's CPUs copy from memory to memory at once."""
    threads = min(os.cpu_count() or 1, 16)
    arrays = [np.ones((2, _COPIED // threads), np.uint8) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        best = math.inf
        for _ in range(3):
            start = time.perf_counter()
            list(pool.map(lambda pair: np.copyto(pair[0], pair[1]), arrays))
            best = min(best, time.perf_counter() - start)
    return _COPIED // threads * threads / best


Joules = Mapping[str, tuple[float, float]]
"""Counters of energy by name, intel-rapl:0 or gpu0: joules, and where they wrap around to 0."""


@dataclass(frozen=True)
class HostUse:
    """What a host did during a measurement, everything on it."""

    cpus: int
    user: float
    """Percent of its CPUs, as `system`."""
    system: float
    cpu_watts: float | None
    """Of all CPU packages; None: not counted."""
    gpu_watts: float | None


@dataclass(frozen=True)
class HostCounters:
    """What a host has counted until a moment."""

    seconds: float
    """Of the clock."""
    cpu: Mapping[str, float]
    joules: Joules

    @classmethod
    def now(cls) -> "HostCounters":
        cpu = read_cpu_times()
        if cpu is None:
            raise RunError("/proc/stat has no CPU times; paths needs a /proc of Linux")
        return cls(time.perf_counter(), cpu, read_joules())

    def since(self, start: "HostCounters") -> HostUse:
        """Return what the host did since then."""
        spent = {name: self.cpu[name] - start.cpu[name] for name in self.cpu}

        def share(*names: str) -> float:
            return 100 * sum(spent[name] for name in names) / max(sum(spent.values()), 1e-9)

        def watts(kind: str) -> float | None:
            now = {name: each for name, each in self.joules.items() if name.startswith(kind)}
            if not now or now.keys() - start.joules.keys():
                return None
            # At 300 W a counter wraps around every quarter of an hour, so at most once in a cell.
            grown = ((end - start.joules[name][0]) % wraps for name, (end, wraps) in now.items())
            return sum(grown) / (self.seconds - start.seconds)

        return HostUse(
            cpus=os.cpu_count() or 1,
            user=share("user", "nice"),
            system=share("system", "irq", "softirq"),
            cpu_watts=watts("intel-rapl"),
            gpu_watts=watts("gpu"),
        )


def read_joules(powercap: Path = Path("/sys/class/powercap")) -> Joules:
    """Return the counters now, as far as they can be read.

    CPUs: RAPL in /sys/class/powercap, which only root may read since Linux 5.10. GPUs: NVML (Volta
    and newer), if nvidia-ml-py is installed.
    """
    joules = {}
    # intel-rapl:0 is a package, AMD's as well; intel-rapl:0:1 is a part of it.
    for domain in listed(powercap, "intel-rapl:?"):
        with suppress(OSError):
            used, wraps = (
                int((domain / name).read_text(encoding="utf-8")) / 1e6
                for name in ("energy_uj", "max_energy_range_uj")
            )
            joules[domain.name] = used, wraps
    try:
        import pynvml
    except ModuleNotFoundError:
        return joules
    with suppress(pynvml.NVMLError):  # no driver, or no GPU
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            with suppress(pynvml.NVMLError):  # a GPU older than Volta
                gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
                used = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3
                joules[f"gpu{index}"] = used, math.inf
    return joules


class PathUnusableError(RunError):
    """A path takes no blocks on a target; the text is the reason."""


def least_block(path: DataPath, target: Path) -> int:
    """Return the bytes of the smallest block that a path takes on a target.

    Raises:
        PathUnusableError: it takes none.
        RunError: the target cannot be written.
    """
    if path in ("host_buffered", "cufile") and not local_place(target).takes_files:
        raise PathUnusableError("a block device is read with O_DIRECT; name a folder on it")
    if path == "host_buffered":
        return SECTOR
    if path == "cufile":
        if why := availability(target).why:
            raise PathUnusableError(why)
        return max(PAGE_BYTES, smallest_direct(target) or PAGE_BYTES)
    if path == "host_io_uring" and (problem := uring.problem()):
        raise PathUnusableError(problem)
    if path == "host_direct_gpu_copy":
        try:
            cuda.num_gpus()
        except RunError as error:
            raise PathUnusableError(str(error)) from None
    if least := smallest_direct(target):
        return least
    raise PathUnusableError("its file system does not open files with O_DIRECT")


def smallest_direct(target: Path) -> int | None:
    """Return the bytes of the smallest block that O_DIRECT reads on a target; it is tried.

    None: the file system does not open files with it. Raises as above.
    """
    with ExitStack() as stack:
        if not local_place(target).takes_files:
            file, _ = open_sized(target, direct=True, device=True)
        else:
            path = target / "dlemu_paths.probe"
            stack.enter_context(scratch(target, [path.name]))
            try:
                file = create(path, os.O_RDWR, direct=True)
            except OSError as error:
                if error.errno in NO_DIRECT:
                    return None
                raise RunError.of_system(
                    error, f"target {target}", "cannot be written", "name another"
                ) from None
            os.pwrite(file, aligned_buffer(2 * UNITS[-1]), 0)
        stack.callback(os.close, file)
        for size in (SECTOR, 1024, 2048, *UNITS):
            with suppress(OSError):  # EINVAL: not a multiple of the logical block
                os.preadv(file, [aligned_buffer(UNITS[-1])[:size]], size)
                return size
    return PAGE_BYTES


@contextmanager
def works_of(
    place: RankTarget, num: int, unit: int, asked: int | None, first: str, on_event: Tell
) -> Iterator[tuple[Callable[[CellSpec], CellJob], int]]:
    """Yield what gives a cell the files of its workers, and the bytes that were written for it.

    Each of `num` workers has a file, whose name begins with `first` and which is removed at the
    end, or a part of the device. Its bytes are a multiple of `unit`: `asked`, or as many as fit.
    """
    target, names = place.target, [f"{first}.{index}" for index in range(num)]
    files, starts = tuple(str(target / name) for name in names), (0,) * num
    takes_files = local_place(target).takes_files
    with ExitStack() as stack:
        if not takes_files:
            file, whole = open_sized(target, direct=True, device=True)
            os.close(file)
            size = min(asked or whole, whole // num) // unit * unit
            if not size:
                raise RunError(
                    f"target {target} has {format_bytes(whole)}, too little for "
                    f"{counted(num, 'part')} of {format_bytes(unit)}",
                    remedy="lower workers, io_sizes or queue_depths",
                )
            files, starts = (str(target),) * num, tuple(range(0, num * size, size))
        else:
            stack.enter_context(scratch(target, names))
            free = disk_bytes(target)[1]
            chosen = max(unit, min(_LARGEST_FILE, max(_SMALLEST_FILE, free // 4 // num)))
            size = (asked or chosen) // unit * unit
            what = f"{counted(num, 'file')} of {format_bytes(size)}"
            room(target, num * size, "free some, or lower file_size or workers", what=what)
            on_event(note("writing_files", files=num, bytes=size, target=str(target)))
            write_random_files([(path, size) for path in files])

        def work(cell: CellSpec) -> CellJob:
            return CellJob(
                spec=cell,
                files=files[: cell.workers],
                file_bytes=size // cell.io_size * cell.io_size,
                starts=starts,
                cpus=place.cpus,
            )

        yield work, num * size if takes_files else 0


def write_random_files(files: Sequence[tuple[str, int]]) -> None:
    """Write files, each with its own bytes; `files` has path and bytes of each.

    Raises:
        RunError: one cannot be written.
    """
    stopped = threading.Event()
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        try:
            paths, sizes = zip(*files, strict=True)
            list(threads.map(write_random_file, paths, count(), sizes, repeat(stopped)))
        finally:
            stopped.set()  # otherwise an interrupt would wait until all files are written


def write_random_file(
    path: str, seed: int, num_bytes: int, stopped: threading.Event | None = None
) -> None:
    """Write one file, unless `stopped` is set meanwhile, and sync it to the drive. Raises as above.

    Its bytes leave the page cache.
    """
    random = np.random.default_rng(seed)
    try:
        with open(path, "wb", buffering=0, opener=create) as file:
            for start in range(0, num_bytes, _PIECE):
                piece = random.integers(0, 1 << 64, _PIECE // 8, np.uint64).view(np.uint8)
                data = piece[: num_bytes - start].data
                while data:
                    if stopped is not None and stopped.is_set():
                        return
                    data = data[file.write(data[:_WRITE]) :]
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        raise RunError.of_system(error, path, "cannot be written", "free space") from None
