"""Cells of a sweep: what was measured, on one target or on several at once, and what bounds it."""

import math
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from dlemu.config.model import Drive
from dlemu.errors import RunError
from dlemu.host.place import Attachment
from dlemu.host.processes import read_cpu_times
from dlemu.ranks.world import World
from dlemu.tools.paths.blocks import Asked, Done, Work, perform

SUM = "sum"
"""The target of a cell that sums up those of a measurement."""
_COPIES = ("host_buffered", "host_direct_gpu_copy")
"""Paths whose bytes are written to memory and read from it again."""
_COPIED = 128 << 20
"""Bytes that are copied to measure the memory: more than caches hold."""


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


@dataclass(frozen=True, kw_only=True)
class Place:
    """A target as the rank that measures it sees it."""

    name: str
    """As it is shown: of several hosts with the host's name."""
    target: Path
    rank: int
    host: str
    cells: Sequence[Asked]
    """What can be measured there."""
    attached: Attachment
    cpus: tuple[int, ...] = ()
    """Of the NUMA node of its drives; (): workers are not bound."""
    notes: Sequence[str] = ()
    """Lines about what is left out, and where the target is attached."""
    memory_rate: float = 0.0
    """Bytes per second that the host's CPUs copy."""
    drive: Drive | None = None
    """Datasheet of its drives."""
    drives: int = 1


@dataclass(frozen=True)
class _Measured:
    """What the workers of a target did, and its host meanwhile."""

    place: Place
    work: Work
    done: Done
    use: "HostUse"


def measure(works: Sequence[Work], places: Sequence[Place], world: World) -> list[Cell]:
    """Measure cells at once; return those of all ranks and, of several, their sum, on rank 0 only.

    All ranks call it, each with the works on its own targets, and with all places.

    Raises:
        RunError: a transfer failed, or a worker was killed.
    """
    before: list[HostCounters] = []

    def ready() -> None:
        world.barrier()  # the ranks begin together
        before.append(HostCounters.now())

    done = perform(works, ready)
    use = HostCounters.now().since(before[0])
    by_name = {place.name: place for place in places}
    own = [
        _Measured(by_name[work.target], work, each, use)
        for work, each in zip(works, done, strict=True)
    ]
    found = [each for rank in world.gather(own) or () for each in rank]
    cells = [_cell(each.work.asked, [each]) for each in found]
    return [*cells, _cell(sum_of(cells[0]), found)] if len(cells) > 1 else cells


def sum_of(asked: Asked) -> Asked:
    """Return the cell that sums up those that are measured together with one."""
    return replace(asked.shape, target=SUM)


def _cell(asked: Asked, measured: Sequence[_Measured]) -> Cell:
    """Return the cell of a target, or of the sum of several; CPU shares are of all their hosts."""
    total = Done()
    for each in measured:
        total.merge(each.done)
    num, latencies, moved = total.latencies.num, total.latencies, total.path_bytes
    cpu = total.user_seconds + total.system_seconds
    iops = sum(each.done.latencies.num / each.done.seconds for each in measured)
    hosts = {each.place.host: each for each in measured}.values()
    all_cpus = sum(each.done.seconds * each.use.cpus for each in hosts)
    part = asked.together and asked.target != SUM
    ceiling, ceiling_rate = _ceiling(asked, [each.place for each in measured])
    return Cell(
        **asdict(asked),
        elapsed=total.seconds,
        num_ios=num,
        gib_per_second=iops * asked.io_size / 2**30,
        iops=iops,
        latency_mean=latencies.mean(),
        latency_p50=latencies.percentile(50),
        latency_p99=latencies.percentile(99),
        latency_p999=latencies.percentile(99.9),
        cpu_user_percentage=100 * total.user_seconds / all_cpus,
        cpu_system_percentage=100 * total.system_seconds / all_cpus,
        host_user_percentage=fmean(each.use.user for each in hosts),
        host_system_percentage=fmean(each.use.system for each in hosts),
        cpu_seconds_per_gb=cpu / (num * asked.io_size / 1e9),
        cpu_watts=None if part else _sum([each.use.cpu_watts for each in hosts]),
        gpu_watts=None if part else _sum([each.use.gpu_watts for each in hosts]),
        mode=moved.mode,
        p2pdma_bytes=moved.p2pdma,
        nvidia_fs_bytes=moved.nvidia_fs,
        compat_bytes=moved.compat,
        host_bytes=moved.host,
        file_bytes=sum(each.work.file_bytes for each in measured) // len(measured),
        cpu_seconds_per_million_ios=cpu / (num / 1e6),
        ceiling=ceiling,
        ceiling_bytes_per_second=ceiling_rate,
    )


def _sum(values: Sequence[float | None]) -> float | None:
    """Return the sum; None if one of them is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


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
    known = [(rate, name) for name, rates in bounds.items() if (rate := _sum([*rates.values()]))]
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
    for domain in sorted(powercap.glob("intel-rapl:?")):
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
