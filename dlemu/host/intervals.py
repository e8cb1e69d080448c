"""Observes a host while a job runs: its counters at a moment, and what it did between two.

Where a cache product (a FUSE mount, dm-cache, a network mount with a local cache) reads from an
origin and keeps copies on drives of its own, the counters of both tell what a reader of the mount
cannot see: where its bytes came from.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from io import FileIO
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter

from dlemu.findings import Finding, note
from dlemu.host.devices import (
    PROC,
    SYS,
    BlockDevice,
    DeviceCounters,
    Mount,
    counted_devices,
    devices_under,
    growth,
    listed,
    mount_under,
    network_read_bytes,
    read_text,
    total,
)
from dlemu.host.network import NetworkCounters, find_links, read_network
from dlemu.host.processes import (
    HostCpu,
    ProcessCounters,
    ProcessTree,
    cgroup_folders,
    page_cache_bytes,
    read_host_cpu,
    throttled_seconds,
    usable_cpus,
)
from dlemu.host.wear import flush


def of_epoch(number: int) -> str:
    """Return what the observations of an epoch are called by; it counts from 0."""
    name = f"epoch {number}"
    return name


def start_of(what: str) -> str:
    """Return the label where something starts: "epoch 0 start"."""
    name = f"{what} start"
    return name


def end_of(what: str) -> str:
    """Return the label where something ends."""
    name = f"{what} end"
    return name


@dataclass(frozen=True, slots=True)
class Observation:
    """All counters at one moment; None where the kernel does not provide them."""

    time: float
    """Seconds on the clock of time.perf_counter, like the times of steps."""
    label: str | None
    """What begins or ends here: "epoch 0 start"; None for the observations between."""
    devices: dict[str, DeviceCounters]
    """By name of the drive."""
    network_read_bytes: int | None
    """Bytes that the folder's network mount has read from its server."""
    host: HostCpu | None
    usable_cpus: float
    """CPUs that the processes may use, by affinity and cgroup quota."""
    processes: ProcessCounters
    pss_bytes: int | None
    """Memory of the processes; None in most observations, because measuring it is slow."""
    page_cache_bytes: int | None
    """Memory of the host that holds files, tmpfs included."""
    network: NetworkCounters | None
    """Of the interfaces that `network.find_links` names."""
    throttled_seconds: float | None = None
    """Time for which CPU quotas stopped the processes, summed over CPUs; None in files of
    November 22, 2026 as well."""


@dataclass(frozen=True, slots=True)
class IntervalSummary:
    """What a host did between two observations; None where the kernel does not count it.

    "The processes" are the ranks of the host with all their descendants. What has no text here is
    the growth of a counter of Observation or ProcessCounters.
    """

    seconds: float
    devices: dict[str, float]
    """By name of the drive, the share (0-1) of the time with at least one request in flight."""
    device_read_bytes: int | None
    """Bytes read from all drives under the folder, by any process; None if no drive is visible."""
    network_read_bytes: int | None
    process_read_bytes: int | None
    process_rchar: int | None
    host_cpu_share: float | None
    """Share (0-1) of the time of all the host's CPUs that was busy, for any process."""
    host_steal_share: float | None
    """Share (0-1) of the same time that the hypervisor gave to other virtual machines."""
    usable_cpus: float
    process_cpu_seconds: float | None
    runqueue_seconds: float | None
    throttled_seconds: float | None
    max_pss_bytes: int | None
    """Most memory at one observation (proportional set size); None if it was never measured."""
    device_reads: dict[str, int] = field(default_factory=dict)
    """By name of the drive, the bytes of `device_read_bytes`."""
    network: NetworkCounters | None = None
    """What the network interfaces and TCP counted meanwhile, for any process."""

    @property
    def process_cpu_share(self) -> float | None:
        """Share (0-1) of the usable CPUs' time that the processes used."""
        if self.process_cpu_seconds is None:
            return None
        return self.process_cpu_seconds / (self.seconds * self.usable_cpus)

    @property
    def lacked_seconds(self) -> float | None:
        """Seconds in which the processes waited for a CPU, summed over them."""
        waited = [s for s in (self.runqueue_seconds, self.throttled_seconds) if s is not None]
        return max(waited) + self.stolen_seconds if waited else None

    @property
    def stolen_seconds(self) -> float:
        """CPU time that other guests took from the processes, by their part of all that ran."""
        if not self.host_steal_share or not self.host_cpu_share:
            return 0.0
        return (self.process_cpu_seconds or 0.0) * self.host_steal_share / self.host_cpu_share

    @property
    def others_cpu_share(self) -> float | None:
        """CPU time of other programs / that of all CPUs, at least."""
        if self.host_cpu_share is None or self.process_cpu_share is None:
            return None
        return self.host_cpu_share - self.process_cpu_share

    @property
    def storage_read_bytes(self) -> int | None:
        """Bytes that storage delivered, by the best counter: drives, network mount, processes."""
        for num_bytes in (self.device_read_bytes, self.network_read_bytes):
            if num_bytes is not None:
                return num_bytes
        return self.process_read_bytes


def summarize_interval(observations: Sequence[Observation]) -> IntervalSummary:
    """Return what happened between the first and the last of at least two observations."""
    first, last = observations[0], observations[-1]
    seconds = last.time - first.time
    assert seconds > 0, "needs two observations, in order of time"
    devices = {
        name: (first.devices[name], now)
        for name, now in last.devices.items()
        if name in first.devices and now.read_bytes >= first.devices[name].read_bytes
    }
    reads = {name: now.read_bytes - then.read_bytes for name, (then, now) in devices.items()}
    processes = growth(last.processes, first.processes)
    host = _host_shares(first.host, last.host)
    return IntervalSummary(
        seconds=seconds,
        devices={name: _busy_share(*pair, seconds) for name, pair in devices.items()},
        device_read_bytes=sum(reads.values()) if reads else None,
        network_read_bytes=growth(last.network_read_bytes, first.network_read_bytes),
        process_read_bytes=processes.read_bytes,
        process_rchar=processes.rchar,
        host_cpu_share=host.busy if host else None,
        host_steal_share=host.steal if host else None,
        usable_cpus=last.usable_cpus,
        process_cpu_seconds=processes.cpu_seconds,
        runqueue_seconds=processes.runqueue_seconds,
        throttled_seconds=growth(last.throttled_seconds, first.throttled_seconds),
        max_pss_bytes=max(
            (o.pss_bytes for o in observations if o.pss_bytes is not None), default=None
        ),
        device_reads=reads,
        network=growth(last.network, first.network),
    )


def whole_of(parts: Sequence[IntervalSummary]) -> IntervalSummary:
    """Return what a host did in all of these intervals together; shares are by their seconds."""
    whole = total(parts)

    def mean(shares: Iterable[float | None]) -> float | None:
        pairs = zip(shares, parts, strict=True)
        weighted = total([None if share is None else share * p.seconds for share, p in pairs])
        return None if weighted is None else weighted / whole.seconds

    return replace(
        whole,
        devices={
            name: sum(p.devices.get(name, 0.0) * p.seconds for p in parts) / whole.seconds
            for name in whole.devices
        },
        host_cpu_share=mean(p.host_cpu_share for p in parts),
        host_steal_share=mean(p.host_steal_share for p in parts),
        usable_cpus=parts[-1].usable_cpus,
        max_pss_bytes=max((n for p in parts if (n := p.max_pss_bytes) is not None), default=None),
    )


def read_observations(path: Path) -> list[Observation]:
    """Return the observations that a HostObserver wrote; an incomplete last line is left out.

    Raises:
        ValueError: a line is not an observation.
    """
    lines = path.read_bytes().splitlines(keepends=True)[1:]
    return [_OBSERVATION.validate_json(line) for line in lines if line.endswith(b"\n")]


_OBSERVATION = TypeAdapter(Observation)


def apart(observations: Sequence[Observation], least_seconds: float) -> list[Observation]:
    """Return the observations that are far enough from each other for rates."""
    kept = list(observations[:1])
    for each in observations[1:]:
        if each.time - kept[-1].time >= least_seconds:
            kept.append(each)
    return kept


def _host_shares(before: HostCpu | None, after: HostCpu | None) -> HostCpu | None:
    if before is None or after is None:
        return None
    # iowait may decrease: proc(5) says that it is not reliable.
    pairs = zip(asdict(before).values(), asdict(after).values(), strict=True)
    growths = [max(0.0, last - first) for first, last in pairs]
    total = sum(growths)
    return HostCpu(*(growth / total for growth in growths)) if total else None


def _busy_share(before: DeviceCounters, after: DeviceCounters, seconds: float) -> float:
    busy_ms = (after.busy_ms - before.busy_ms) % (1 << 32)  # it wraps around
    return min(1.0, busy_ms / 1000 / seconds)  # counted in whole clock ticks


# --- the observer ---------------------------------------------------------------------------------


T = TypeVar("T")

# Shares of one core that reading the counters, looking for new processes, and measuring memory may
# take: together below 1 %. What would cost more is done less often.
_COUNTERS, _SEARCH, _MEMORY = 0.004, 0.002, 0.001


class HostObserver:
    """Reads a host's counters at the start and end of epochs, and about once a second between.

    Observes less often where so many processes run that it would take 1 % of a core. Keeps all
    observations, and writes them to `path` as JSON lines.

    Args:
        folders: the counters of the drives under them are read; of the first one, the data folder,
            those of its mount as well.
        pids: returns the processes to follow; their descendants are followed as well.
        path: where to write the observations; None writes nothing.
        period: seconds between two observations.
        memory: whether to measure the memory of the processes. The kernel keeps a process from
            mapping memory meanwhile, about 10 ms per GiB.

    Raises:
        OSError: on entering, `path` exists or cannot be created; on a later call, a write failed.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        pids: Callable[[], Iterable[int]],
        path: Path | None = None,
        *,
        period: float = 1.0,
        memory: bool = True,
        proc: Path = PROC,
        sys: Path = SYS,
    ) -> None:
        self.devices = devices_under(*folders, proc=proc, sys=sys)
        self.observations: list[Observation] = []
        self.cpu_seconds = 0.0
        """CPU time that the observing thread has used."""
        network = read_network(proc=proc)
        self.links = find_links(network.nics, sys=sys) if network else {}
        """The host's network interfaces, and their bits per second; None where unknown."""
        self._mount = mount_under(folders[0], proc=proc)
        self._pids, self._path, self._period, self._proc = pids, path, period, proc
        self._memory = memory
        self._tree = ProcessTree(proc)
        self._cgroups: list[Path] = []
        self._usable_cpus = 0.0
        self._file: FileIO | None = None
        self.failure: OSError | None = None
        """What ended the observing: a write that failed."""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._observe, name="host observer", daemon=True)

    def __enter__(self) -> Self:
        if self._path is not None:
            self._file = self._path.open("xb", buffering=0)
            # Both clocks, so that the observations can be compared with other logs.
            self._write({"time": time.perf_counter(), "unix_time": time.time()})
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._ending = True
        self._wake.set()
        self._thread.join()
        if self._file is not None:
            self._file.close()
        if self.failure is not None and error is None:
            raise self.failure

    def mark(self, label: str) -> Observation:
        """Observe now, under a label. Does not measure memory, which can take a second.

        Raises:
            OSError: an observation could not be written.
        """
        if self.failure is not None:
            raise self.failure
        with self._lock:
            self._refresh()
            observation = self._take(label, None)
        self._wake.set()
        return observation

    def during(self, what: str) -> list[Observation]:
        """Return the observations from the start of something to its end, both included."""
        return self.between(start_of(what), end_of(what))

    def between(self, first: str, last: str) -> list[Observation]:
        """Return the observations from one label to another, both included."""
        with self._lock:
            labels = [observation.label for observation in self.observations]
            start = labels.index(first)
            return self.observations[start : labels.index(last, start) + 1]

    def _observe(self) -> None:
        refresh = _paced(self._refresh, _SEARCH)
        tree = self._tree
        measure_memory = _paced(tree.pss_bytes if self._memory else lambda: None, _MEMORY)
        while not self._ending:
            start = time.thread_time()
            try:
                with self._lock:
                    refresh()
                pss_bytes = measure_memory()
                begun = time.thread_time()
                with self._lock:
                    self._take(None, pss_bytes)
            except OSError as error:
                self.failure = error
                return
            ended = time.thread_time()
            self.cpu_seconds += ended - start
            self._wake.wait(max(self._period, (ended - begun) / _COUNTERS))
            self._wake.clear()

    def _refresh(self) -> None:
        self._tree.refresh(self._pids())
        pids = self._tree.pids
        folders = cgroup_folders("cpu", pids=pids, proc=self._proc)
        self._cgroups = list(dict.fromkeys([*self._cgroups, *folders]))
        self._usable_cpus = usable_cpus(pids, proc=self._proc)

    def _take(self, label: str | None, pss_bytes: int | None) -> Observation:
        counters = {device.name: device.counters() for device in self.devices}
        network = read_network(proc=self._proc)
        observation = Observation(
            time=time.perf_counter(),
            label=label,
            devices={name: counts for name, counts in counters.items() if counts is not None},
            network_read_bytes=network_read_bytes(self._mount, proc=self._proc),
            host=read_host_cpu(proc=self._proc),
            usable_cpus=self._usable_cpus,
            processes=self._tree.counters(),
            throttled_seconds=throttled_seconds(self._cgroups),
            pss_bytes=pss_bytes,
            page_cache_bytes=page_cache_bytes(proc=self._proc),
            network=None if network is None else network.only(self.links),
        )
        self.observations.append(observation)
        self._write(asdict(observation))
        return observation

    def _write(self, record: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(record).encode() + b"\n")


def _paced(function: Callable[[], T], share: float) -> Callable[[], T | None]:
    """Return the function; it skips calls that would use more than this share of a core."""
    due = 0.0

    def call() -> T | None:
        nonlocal due
        if time.perf_counter() < due:
            return None
        start = time.thread_time()
        result = function()
        due = time.perf_counter() + (time.thread_time() - start) / share
        return result

    return call


@dataclass(frozen=True)
class PlaceCounts:
    """Counters, or their growth over an epoch; None where nobody counts."""

    origin_read_bytes: int | None = None
    """Read from the origin's drive, or by its network mount from the server."""
    cache_read_bytes: int | None = None
    """Read from the cache's drives."""
    cache_written_bytes: int | None = None
    daemon_cpu_seconds: float | None = None
    """CPU time of the FUSE mount's process and of those that it started."""


class WatchedPlaces:
    """The places behind a data folder, on this host.

    Args:
        folder: the data folder, on the mount of the cache.
        origin: folder or block device of the origin; None: it is not watched.
        devices: folders or block devices of the cache.
    """

    def __init__(
        self,
        folder: Path,
        origin: Path | None,
        devices: Sequence[Path],
        *,
        proc: Path = PROC,
        sys: Path = SYS,
    ) -> None:
        self._proc, self._folders = proc, [path for path in devices if path.is_dir()]
        self._origin = [] if origin is None else counted_devices(origin, proc=proc, sys=sys)
        self._origin_mount = None if origin is None else mount_under(origin, proc=proc)
        found = [counted_devices(each, proc=proc, sys=sys) for each in devices]
        self._cache = list({each.name: each for some in found for each in some}.values())
        self._mount = mount_under(folder, proc=proc)
        self._daemon: ProcessTree | None = None
        self._pid = find_daemon(self._mount, proc=proc)
        if self._pid is not None:
            self._daemon = ProcessTree(proc)
        self._names = (origin, tuple(devices))

    @property
    def shared(self) -> list[str]:
        """Names of the devices that are origin and cache at once: their bytes are mixed."""
        cache = {device.name for device in self._cache}
        return [device.name for device in self._origin if device.name in cache]

    def notes(self) -> Iterator[Finding]:
        """Yield what cannot be told, each with its reason."""
        origin, devices = self._names
        if self.shared:
            yield note("origin_on_cache_drive", origin=str(origin), drives=self.shared)
        elif origin is not None and self.counts().origin_read_bytes is None:
            kind = self._origin_mount.kind if self._origin_mount else None
            yield note("origin_uncounted", origin=str(origin), file_system=kind)
        if devices and not self._cache:
            yield note("no_cache_drive", devices=list(map(str, devices)))
        if self._mount is not None and self._mount.kind.startswith("fuse") and not self._daemon:
            yield note("fuse_process_unseen", mount=self._mount.point)

    def counts(self) -> PlaceCounts:
        """Return the counters now; an origin that shares the cache's drive has none."""
        origin = None if self.shared else _total(self._origin, lambda each: each.read_bytes)
        if origin is None and not self._origin:
            origin = network_read_bytes(self._origin_mount, proc=self._proc)
        if self._daemon is not None and self._pid is not None:
            self._daemon.refresh([self._pid])
        return PlaceCounts(
            origin_read_bytes=origin,
            cache_read_bytes=_total(self._cache, lambda each: each.read_bytes),
            cache_written_bytes=_total(self._cache, lambda each: each.written_bytes),
            daemon_cpu_seconds=self._daemon.counters().cpu_seconds if self._daemon else None,
        )

    def settle(self) -> None:
        """Wait until what was written to the cache has reached its drives."""
        for folder in self._folders:
            flush(folder)


def find_daemon(mount: Mount | None, *, proc: Path = PROC) -> int | None:
    """Return the process that serves a FUSE mount, None if there is none or it is not seen.

    It has /dev/fuse open. Since Linux 6.16 the kernel tells of which mount; before, the process
    that was started with the folder's name is taken, or the only one.
    """
    if mount is None or not mount.kind.startswith("fuse"):
        return None
    connection = f"fuse_connection:\t{mount.number.partition(':')[2]}"
    others = []
    for pid in sorted(int(path.name) for path in listed(proc) if path.name.isdecimal()):
        texts = list(_fuse_files(proc / str(pid)))
        if any(connection in text.splitlines() for text in texts):
            return pid
        if texts and not any("fuse_connection:" in text for text in texts):
            others.append(pid)
    words = {pid: read_text(proc / str(pid) / "cmdline").split("\0") for pid in others}
    named = [pid for pid in others if mount.point in words[pid]]
    return next(iter(named or (others if len(others) == 1 else ())), None)


def _fuse_files(process: Path) -> Iterator[str]:
    """Yield what the kernel tells of each descriptor of /dev/fuse that a process has open."""
    with suppress(OSError):  # it has ended, or is another user's
        for link in (process / "fd").iterdir():
            with suppress(OSError):
                if os.readlink(link) == "/dev/fuse":
                    yield read_text(process / "fdinfo" / link.name)


def _total(
    devices: Sequence[BlockDevice], value: Callable[[DeviceCounters], int | None]
) -> int | None:
    """Return the sum over devices; None if there is none, or one does not count."""
    counters = [device.counters() for device in devices]
    return total([None if each is None else value(each) for each in counters])
