"""The counters of a host at one moment, and what it did between two of them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from dlemu.host.devices import DeviceCounters
from dlemu.host.network import NetworkCounters
from dlemu.host.processes import HostCpu, ProcessCounters

N = TypeVar("N", int, float)


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
    throttled_seconds: float | None
    """Time for which CPU quotas stopped them, summed over CPUs."""
    pss_bytes: int | None
    """Memory of the processes; None in most observations, because measuring it is slow."""
    page_cache_bytes: int | None
    """Memory of the host that holds files, tmpfs included."""
    network: NetworkCounters | None
    """Of the interfaces that `network.find_links` names."""


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
    begun, ended = first.network, last.network
    before, after = first.processes, last.processes
    host = _host_shares(first.host, last.host)
    return IntervalSummary(
        seconds=seconds,
        devices={name: _busy_share(*pair, seconds) for name, pair in devices.items()},
        device_read_bytes=sum(reads.values()) if reads else None,
        network_read_bytes=_growth(first.network_read_bytes, last.network_read_bytes),
        process_read_bytes=_growth(before.read_bytes, after.read_bytes),
        process_rchar=_growth(before.rchar, after.rchar),
        host_cpu_share=host.busy if host else None,
        host_steal_share=host.steal if host else None,
        usable_cpus=last.usable_cpus,
        process_cpu_seconds=_growth(before.cpu_seconds, after.cpu_seconds),
        runqueue_seconds=_growth(before.runqueue_seconds, after.runqueue_seconds),
        throttled_seconds=_growth(first.throttled_seconds, last.throttled_seconds),
        max_pss_bytes=max(
            (o.pss_bytes for o in observations if o.pss_bytes is not None), default=None
        ),
        device_reads=reads,
        network=None if begun is None or ended is None else ended.since(begun),
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


def _growth(first: N | None, last: N | None) -> N | None:
    """Return how much a counter grew; None if it is not known, or has begun anew meanwhile.

    A file system that is mounted again, or a cgroup that has gone, starts a counter at 0.
    """
    return None if first is None or last is None or last < first else last - first
