"""Cells of a sweep: what is asked for, what was measured, and how cells are measured at once."""

import math
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from dlemu.config.model import Drive
from dlemu.errors import RunError
from dlemu.host.processes import read_cpu_times
from dlemu.host.topology import Attachment
from dlemu.ranks.world import World
from dlemu.tools.paths.blocks import DataPath, Done, Latencies, Pattern, Work, perform

SUM = "sum"
"""The target of a cell that sums up those of a measurement."""
TO_GPU = ("host_direct_gpu_copy", "cufile")
"""Paths that end in a GPU's memory."""
_COPIES = ("host_buffered", "host_direct_gpu_copy")
"""Paths whose bytes are written to memory and read from it again."""
_COPIED = 128 << 20
"""Bytes that are copied to measure the memory: more than caches hold."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a cell measures; the same values are the same cell."""

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

    @property
    def bytes_per_second(self) -> float:
        return self.gib_per_second * 2**30

    @property
    def asked(self) -> Asked:
        return Asked(**{field.name: getattr(self, field.name) for field in fields(Asked)})


@dataclass(frozen=True, kw_only=True)
class Place:
    """A target as the rank that measures it sees it."""

    name: str
    """As it is shown: of several hosts with the host's name."""
    target: Path
    rank: int
    host: str
    shapes: tuple[Asked, ...]
    """What can be measured there, without target, queues and GPU."""
    queues: int | None
    gpu: int | None
    attached: Attachment
    cpus: tuple[int, ...]
    """Of the NUMA node of its drives; (): workers are not bound."""
    notes: tuple[str, ...]
    """Lines about what is left out, and where the target is attached."""
    memory_rate: float = 0.0
    """Bytes per second that the host's CPUs copy."""
    drive: Drive | None = None
    """Datasheet of its drives."""
    drives: int = 1

    def asked(self, shape: Asked) -> Asked:
        """Return the cell of this target for a shape."""
        gpu = self.gpu if shape.path in TO_GPU else None
        return replace(shape, target=self.name, queues=self.queues, gpu=gpu)


@dataclass(frozen=True)
class _HostUse:
    """What a host did during a measurement, everything on it."""

    cpus: int
    user: float
    """Percent of its CPUs, as `system`."""
    system: float
    watts: tuple[float | None, float | None]
    """Of all CPU packages, and of all GPUs."""


@dataclass(frozen=True)
class _Measured:
    """What the workers of a target did."""

    asked: Asked
    file_bytes: int
    done: Done
    elapsed: float
    use: _HostUse


def shape_of(asked: Asked) -> Asked:
    """Return what is asked for, wherever it is measured."""
    return replace(asked, target="", queues=None, gpu=None)


Parts = tuple[tuple[str, ...], tuple[int, ...], int]
"""Files of the workers, where each worker's part begins, and the bytes of a part."""


def measure(
    asked: Sequence[Asked], places: Sequence[Place], parts: Mapping[str, Parts], world: World
) -> list[Cell]:
    """Measure cells at once, each on its target's rank; return them and, of several, their sum.

    All ranks call it with the same cells, and with the parts of their own targets; ranks other than
    0 get none.

    Raises:
        RunError: a transfer failed, or a worker was killed.
    """
    by_name = {place.name: place for place in places}
    own = [each for each in asked if by_name[each.target].rank == world.rank]
    works = [_work(each, by_name[each.target], parts[each.target]) for each in own]
    before: list[tuple[dict[str, float], Energy, float]] = []

    def ready() -> None:
        world.barrier()  # the ranks begin together
        before.append(_counters())

    done = perform(works, ready)
    use = _host_use(before[0], _counters())
    gathered = world.gather(
        [
            _Measured(each, work.file_bytes, *result, use)
            for each, work, result in zip(own, works, done, strict=True)
        ]
    )
    if gathered is None:
        return []
    found = {each.asked: each for rank in gathered for each in rank}
    there = [by_name[each.target] for each in asked]
    cells = [_cell(each, [place], [found[each]]) for each, place in zip(asked, there, strict=True)]
    if len(asked) == 1:
        return cells
    total = replace(shape_of(asked[0]), target=SUM)
    return [*cells, _cell(total, there, [found[each] for each in asked])]


def _work(asked: Asked, place: Place, parts: Parts) -> Work:
    files, starts, num_bytes = parts
    return Work(
        path=asked.path,
        pattern=asked.pattern,
        io_size=asked.io_size,
        files=files[: asked.workers],
        starts=starts,
        file_bytes=num_bytes // asked.io_size * asked.io_size,
        seconds=asked.seconds,
        depth=asked.queue_depth,
        gpu=asked.gpu or 0,
        cpus=place.cpus,
    )


def _cell(asked: Asked, places: Sequence[Place], measured: Sequence[_Measured]) -> Cell:
    """Return the cell of a target, or of the sum of several; CPU shares are of all their hosts."""
    total = Done(Latencies(), 0.0)
    for each in measured:
        total.merge(each.done)
    hosts = {place.host: each for place, each in zip(places, measured, strict=True)}
    num, latencies, moved = total.latencies.num, total.latencies, total.path_bytes
    cpu = total.user_seconds + total.system_seconds
    iops = sum(each.done.latencies.num / each.elapsed for each in measured)
    all_cpus = sum(each.elapsed * each.use.cpus for each in hosts.values())
    watts = [
        None
        if None in each or (asked.together and asked.target != SUM)
        else sum(filter(None, each))
        for each in zip(*(each.use.watts for each in hosts.values()), strict=True)
    ]
    ceiling, ceiling_rate = _ceiling(asked, places)
    return Cell(
        **asdict(asked),
        elapsed=max(each.elapsed for each in measured),
        num_ios=num,
        gib_per_second=iops * asked.io_size / 2**30,
        iops=iops,
        latency_mean=latencies.mean(),
        latency_p50=latencies.percentile(50),
        latency_p99=latencies.percentile(99),
        latency_p999=latencies.percentile(99.9),
        cpu_user_percentage=100 * total.user_seconds / all_cpus,
        cpu_system_percentage=100 * total.system_seconds / all_cpus,
        host_user_percentage=fmean(each.use.user for each in hosts.values()),
        host_system_percentage=fmean(each.use.system for each in hosts.values()),
        cpu_seconds_per_gb=cpu / (num * asked.io_size / 1e9),
        cpu_watts=watts[0],
        gpu_watts=watts[1],
        mode=moved.mode,
        p2pdma_bytes=moved.p2pdma,
        nvidia_fs_bytes=moved.nvidia_fs,
        compat_bytes=moved.compat,
        host_bytes=moved.host,
        file_bytes=sum(each.file_bytes for each in measured) // len(measured),
        cpu_seconds_per_million_ios=cpu / (num / 1e6),
        ceiling=ceiling,
        ceiling_bytes_per_second=ceiling_rate,
    )


def _ceiling(asked: Asked, places: Sequence[Place]) -> tuple[str | None, float | None]:
    """Return name and rate of the lowest ceiling that is known for these targets together."""
    sheets, links, memory = dict[Any, Any](), dict[Any, Any](), dict[Any, Any]()
    bandwidth = "write_bandwidth" if asked.pattern.endswith("write") else "read_bandwidth"
    for place in places:  # what two of them share counts once
        own, rate = place.attached.links, getattr(place.drive, bandwidth, None)
        sheets[place.host, *(own or [place.name])] = rate and place.drives * rate
        links |= {(place.host, name): each for name, each in own.items()}
        memory[place.host] = place.memory_rate if asked.path in _COPIES else None
    kinds = {place.attached.kind for place in places}
    bounds = {"datasheet": sheets, " and ".join(sorted(kinds)): links, "memory": memory}
    known = [
        (sum(rates.values()), name)
        for name, rates in bounds.items()
        if rates and all(rates.values())
    ]
    rate, name = min(known, default=(None, None))
    return name, rate


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


@dataclass(frozen=True)
class Energy:
    """Counters at one moment, in joules; empty where none can be read."""

    cpus: Mapping[str, float]
    """By processor package."""
    cpu_ranges: Mapping[str, float]
    """The value at which each package's counter wraps around to 0."""
    gpus: Mapping[str, float]
    """By GPU."""

    def joules_since(self, start: "Energy") -> tuple[float | None, float | None]:
        """Return the joules of all packages and of all GPUs since `start`; None: not known."""
        cpus = gpus = None
        if self.cpus and self.cpus.keys() == start.cpus.keys():
            # At 300 W a counter wraps around every quarter of an hour, so at most once in a cell.
            cpus = sum(
                (now - start.cpus[name]) % self.cpu_ranges[name] for name, now in self.cpus.items()
            )
        if self.gpus and self.gpus.keys() == start.gpus.keys():
            gpus = sum(now - start.gpus[name] for name, now in self.gpus.items())
        return cpus, gpus


def read_energy(powercap: Path = Path("/sys/class/powercap")) -> Energy:
    """Return the counters now.

    CPUs: RAPL in /sys/class/powercap, which only root may read since Linux 5.10. GPUs: NVML (Volta
    and newer), if nvidia-ml-py is installed.
    """
    cpus, ranges = {}, {}
    # intel-rapl:0 is a package, AMD's as well; intel-rapl:0:1 is a part of it.
    for domain in sorted(powercap.glob("intel-rapl:?")):
        try:
            joules, wraps_at = (
                int((domain / name).read_text(encoding="utf-8")) / 1e6
                for name in ("energy_uj", "max_energy_range_uj")
            )
        except OSError:
            continue
        cpus[domain.name], ranges[domain.name] = joules, wraps_at
    return Energy(cpus, ranges, _gpu_joules())


def _gpu_joules() -> dict[str, float]:
    try:
        import pynvml
    except ModuleNotFoundError:
        return {}
    joules = {}
    with suppress(pynvml.NVMLError):  # no driver, or no GPU
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            with suppress(pynvml.NVMLError):  # a GPU older than Volta
                gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
                joules[f"gpu{index}"] = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3
    return joules


def _counters() -> tuple[dict[str, float], Energy, float]:
    """Return the host's CPU times, its energy, and the time of the clock."""
    cpu = read_cpu_times()
    if cpu is None:
        raise RunError("/proc/stat has no CPU times; paths needs a /proc of Linux")
    return cpu, read_energy(), time.perf_counter()


def _host_use(
    before: tuple[dict[str, float], Energy, float], after: tuple[dict[str, float], Energy, float]
) -> _HostUse:
    (cpu_before, energy_before, start), (cpu, energy, end) = before, after
    seconds = {name: cpu[name] - cpu_before[name] for name in cpu}
    cpus, gpus = (
        None if joules is None else joules / (end - start)
        for joules in energy.joules_since(energy_before)
    )

    def share(*names: str) -> float:
        return 100 * sum(seconds[name] for name in names) / max(sum(seconds.values()), 1e-9)

    return _HostUse(
        cpus=os.cpu_count() or 1,
        user=share("user", "nice"),
        system=share("system", "irq", "softirq"),
        watts=(cpus, gpus),
    )
