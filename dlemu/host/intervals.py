"""What a host did during an interval: the difference of two observations."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from dlemu.host.devices import DeviceCounters
from dlemu.host.limits import Throttling
from dlemu.host.processes import ProcessCounters

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class HostCpu:
    """Seconds since the host started, summed over its CPUs."""

    busy: float
    idle: float
    iowait: float
    """Idle, while a thread of that CPU waited for a drive."""
    steal: float
    """Taken by other guests of the machine below."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What was counted up to one moment; None where the kernel does not tell."""

    time: float
    """On perf_counter's clock, as the steps are."""
    label: str | None
    """Of a border, "epoch 0 start"; None between borders."""
    devices: dict[str, DeviceCounters]
    network_read_bytes: int | None
    host: HostCpu | None
    usable_cpus: float
    processes: ProcessCounters
    throttling: Throttling | None
    pss_bytes: int | None
    """Memory held; it costs too much to be asked for each time."""


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What one drive did during an interval."""

    reads: int
    read_bytes: int
    read_bytes_per_second: float
    busy_share: float
    """Share (0-1) of the time with a request in flight."""
    mean_in_flight: float


@dataclass(frozen=True, slots=True)
class IntervalSummary:
    """What a host did between two observations; None where the kernel does not tell."""

    seconds: float
    devices: dict[str, DeviceUse]
    device_read_bytes: int | None
    """Of all drives under the folder, whoever read; None where none can be seen."""
    network_read_bytes: int | None
    process_read_bytes: int | None
    """Fetched from storage for the processes observed."""
    process_rchar: int | None
    host_cpu_share: float | None
    """Share (0-1) of the host's CPU time that was busy, with whatever else ran there."""
    host_iowait_share: float | None
    host_steal_share: float | None
    usable_cpus: float
    process_cpu_seconds: float | None
    runqueue_seconds: float | None
    """Time that threads were ready to run and had no CPU, summed over them."""
    num_throttled: int | None
    throttled_seconds: float | None
    """Time that a cgroup's CPU quota stopped the processes, summed over CPUs."""
    voluntary_switches: int | None
    involuntary_switches: int | None
    max_processes: int
    max_pss_bytes: int | None

    @property
    def device_busy_share(self) -> float | None:
        """Of the busiest drive."""
        return max((use.busy_share for use in self.devices.values()), default=None)

    @property
    def process_cpu_share(self) -> float | None:
        """Share (0-1) of the CPUs that the processes may use."""
        if self.process_cpu_seconds is None or not self.seconds:
            return None
        return self.process_cpu_seconds / (self.seconds * self.usable_cpus)

    @property
    def storage_read_bytes(self) -> int | None:
        """What storage delivered, by the best witness: drives, the network mount, processes."""
        for num_bytes in (self.device_read_bytes, self.network_read_bytes):
            if num_bytes is not None:
                return num_bytes
        return self.process_read_bytes


def summarize(observations: Sequence[Observation]) -> IntervalSummary:
    """Return what was done between the first and the last of at least two observations."""
    first, last = observations[0], observations[-1]
    seconds = last.time - first.time
    assert seconds > 0, "an interval has two ends"
    devices = {
        name: _device_use(first.devices[name], after, seconds)
        for name, after in last.devices.items()
        if name in first.devices
    }
    before, after = first.processes, last.processes
    host = _host_shares(first.host, last.host)
    throttled = _throttled(first.throttling, last.throttling)
    return IntervalSummary(
        seconds=seconds,
        devices=devices,
        device_read_bytes=sum(use.read_bytes for use in devices.values()) if devices else None,
        network_read_bytes=_growth(first.network_read_bytes, last.network_read_bytes),
        process_read_bytes=_growth(before.read_bytes, after.read_bytes),
        process_rchar=_growth(before.rchar, after.rchar),
        host_cpu_share=host.busy if host else None,
        host_iowait_share=host.iowait if host else None,
        host_steal_share=host.steal if host else None,
        usable_cpus=last.usable_cpus,
        process_cpu_seconds=_growth(before.cpu_seconds, after.cpu_seconds),
        runqueue_seconds=_growth(before.runqueue_seconds, after.runqueue_seconds),
        num_throttled=throttled.num if throttled else None,
        throttled_seconds=throttled.seconds if throttled else None,
        voluntary_switches=_growth(before.voluntary_switches, after.voluntary_switches),
        involuntary_switches=_growth(before.involuntary_switches, after.involuntary_switches),
        max_processes=max(observation.processes.num for observation in observations),
        max_pss_bytes=max(
            (o.pss_bytes for o in observations if o.pss_bytes is not None), default=None
        ),
    )


def read_observations(path: Path) -> list[Observation]:
    """Return the observations that a HostObserver wrote; a line that was cut short is left out.

    Raises:
        ValueError: a line holds none.
    """
    lines = path.read_bytes().splitlines(keepends=True)[1:]
    return [_OBSERVATION.validate_json(line) for line in lines if line.endswith(b"\n")]


_OBSERVATION = TypeAdapter(Observation)


def _host_shares(before: HostCpu | None, after: HostCpu | None) -> HostCpu | None:
    if before is None or after is None:
        return None
    # iowait may shrink by a tick: proc(5) says that it is not reliable.
    pairs = zip(asdict(before).values(), asdict(after).values(), strict=True)
    growths = [max(0.0, last - first) for first, last in pairs]
    total = sum(growths)
    return HostCpu(*(growth / total for growth in growths)) if total else None


def _device_use(before: DeviceCounters, after: DeviceCounters, seconds: float) -> DeviceUse:
    read_bytes = after.read_bytes - before.read_bytes
    busy_ms, queue_ms = (
        (last - first) % (1 << 32)  # both wrap around there: the queue's within hours
        for first, last in ((before.busy_ms, after.busy_ms), (before.queue_ms, after.queue_ms))
    )
    return DeviceUse(
        reads=after.reads - before.reads,
        read_bytes=read_bytes,
        read_bytes_per_second=read_bytes / seconds,
        busy_share=min(1.0, busy_ms / 1000 / seconds),  # the kernel counts whole clock ticks
        mean_in_flight=queue_ms / 1000 / seconds,
    )


def _throttled(before: Throttling | None, after: Throttling | None) -> Throttling | None:
    if before is None or after is None:
        return None
    return Throttling(after.num - before.num, after.seconds - before.seconds)


def _growth(first: N | None, last: N | None) -> N | None:
    return None if first is None or last is None else last - first
