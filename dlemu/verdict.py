"""Which resource bound a run, by what evidence, and what to change.

A FAIL whose limit is not storage must never read as the storage's fault: storage is named only if
readers waited in reads while CPUs were free, and more readers would not have got more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dlemu.metrics import Metrics
from dlemu.units import format_rate, format_seconds

_Values = NDArray[np.float64]
LimitName = Literal["storage", "host cpu", "loader", "barrier", "oversleep", "none", "unclear"]

_CEILING = 0.02
"""Losses below this share of the window are nothing to look for."""
_CPU_FULL = 0.85
"""Share of the usable CPUs above which they are full: the kernel's own work is not seen here."""
_STARVED = 0.15
"""Share of the workers' time in which they stood ready and had no CPU."""
_THROTTLED = 0.1
"""Seconds of each second in which the CPU quota had stopped them."""
_CACHED = 0.5
"""Share of the bytes from memory from which on nothing can be said about storage."""
_READING = 0.6
"""Share of the workers' time in reads from which on they are waiting for storage."""
_MORE = 1.15
"""A device that gives this much more to more readers was not the limit."""
_LATER = 3.0
"""A rank this many times as late as the others is what they wait for, ..."""
_SLOWER = 1.5
"""... if its batches take this many times as long to make, or it computes as much longer."""


@dataclass(frozen=True)
class Limit:
    """The binding resource."""

    name: LimitName
    evidence: str
    advice: str = ""


@dataclass(frozen=True, kw_only=True)
class HostEvidence:
    """What one host's counters said over the epochs; None where the kernel does not tell."""

    host: str
    seconds: float
    device: str | None
    """Name of the busiest drive under the data folder."""
    device_busy_share: float | None
    read_bytes_per_second: float
    """Delivered by storage, or, where that cannot be seen, taken by the loaders."""
    probe_bytes_per_second: float | None
    """What many readers at once got from the same files after the run."""
    num_probe_readers: int
    cpu_share: float | None
    """CPU time of ranks and workers / usable CPUs."""
    host_cpu_share: float | None
    runqueue_seconds: float | None
    throttled_seconds: float | None
    usable_cpus: float
    num_workers: int


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that the verdict looks at."""

    metrics: Metrics
    hosts: Sequence[HostEvidence]
    rank_names: Sequence[str]
    """(accelerators,) "rank 3 on host a" of each accelerator."""
    making_seconds: Sequence[float]
    """(accelerators,) mean time that workers took for a batch: reads, decode, hand-over."""
    late_seconds: Sequence[float]
    """(accelerators,) mean time by which compute took longer than asked."""
    read_seconds: float
    """Of all workers, in read calls."""
    decode_seconds: float
    hand_over_seconds: float
    worker_seconds: float
    """Of all workers, from the epochs' starts to their ends."""
    page_cache_share: float | None
    data_loader: str
    read_threads: int


def find_limit(evidence: Evidence) -> Limit:
    """Return the resource that kept the AU down, or `none`, or `unclear` with the reason."""
    epochs = evidence.metrics.epochs
    wait = float(np.mean([epoch.wait_share for epoch in epochs]))
    barrier = float(np.mean([epoch.barrier_share for epoch in epochs]))
    over = float(np.mean([epoch.oversleep_share for epoch in epochs]))
    if wait + barrier + over < _CEILING:
        lost = 100 * (wait + barrier + over)
        return Limit("none", f"accelerators lost {lost:.1f}% of their time; this is the ceiling")
    if over > max(wait, barrier):
        late = (
            f"compute took {100 * over:.1f}% longer than asked, more than waiting for data "
            f"({100 * wait:.1f}%)"
        )
        return _cpu_limit(evidence, late) or Limit(
            "oversleep",
            f"{late}: this host could not wake its accelerators in time",
            "use fewer accelerators a host, or leave cores to the ranks",
        )
    slow = _slow_rank(evidence, barrier)
    if slow is not None:
        return slow
    # Time at the barrier without a slow rank is others' waiting: it has the same cause.
    waited = f"accelerators waited {100 * (wait + barrier):.0f}% of the time"
    return _cpu_limit(evidence, waited) or _limit_of_waiting(evidence, waited)


def _slow_rank(evidence: Evidence, barrier: float) -> Limit | None:
    """Return `barrier` if one rank made the others wait."""
    names = list(dict.fromkeys(evidence.rank_names))
    if len(names) < 2 or barrier < _CEILING:
        return None
    waits = np.mean([epoch.accelerator_wait for epoch in evidence.metrics.epochs], axis=0)
    waited = _by_rank(evidence, waits)
    computed = _by_rank(evidence, evidence.late_seconds)
    made = _by_rank(evidence, evidence.making_seconds)
    late = waited + computed
    slowest = int(late.argmax())
    others = np.arange(len(names)) != slowest
    if late[slowest] < _LATER * np.median(late[others]):
        return None
    rest = f"the others {{}}, and then {100 * barrier:.0f}% of the time for it"
    if computed[slowest] > waited[slowest]:
        return Limit(
            "barrier",
            f"{names[slowest]} computed {format_seconds(computed[slowest])} a step longer than "
            f"asked, {rest.format(format_seconds(float(np.median(computed[others]))))}",
            f"look at what else runs on the CPUs of {names[slowest]}",
        )
    # Of ranks that share a slow drive, one may always be served last: its reads take no longer
    # than the others', who wait as much, but at the barrier.
    if made[slowest] < _SLOWER * np.median(made[others]):
        return None
    return Limit(
        "barrier",
        f"{names[slowest]} waited {format_seconds(waited[slowest])} a step for its batches, "
        f"{rest.format(format_seconds(float(np.median(waited[others]))))}",
        f"look at what is different about {names[slowest]}: its storage path, its CPUs, its "
        "neighbours",
    )


def _by_rank(evidence: Evidence, values: Sequence[float] | _Values) -> _Values:
    """Return the mean over each rank's accelerators."""
    names = np.array(evidence.rank_names)
    ranks = dict.fromkeys(evidence.rank_names)
    return np.array([np.asarray(values)[names == rank].mean() for rank in ranks])


def _cpu_limit(evidence: Evidence, lost: str) -> Limit | None:
    """Return `host cpu` if a host's CPUs were used up."""
    host = max(evidence.hosts, key=_cpu_pressure)
    if _cpu_pressure(host) <= 1:
        return None
    starved = _share(host.runqueue_seconds, host)
    throttled = _throttled_share(host)
    parts = [f"{lost}; on host {host.host}"]
    if host.cpu_share is not None:
        parts.append(
            f"ranks and workers used {100 * host.cpu_share:.0f}% of {host.usable_cpus:g} CPUs,"
        )
    if starved is not None:
        parts.append(f"stood ready without a CPU for {100 * min(starved, 1):.0f}% of their time")
    if throttled > _THROTTLED:
        parts.append(f"and were stopped by the CPU quota for {throttled:.2f} s each second")
    return Limit(
        "host cpu",
        " ".join(parts) + _storage_aside(host),
        "use more cores or hosts, reader.data_loader=threads, or reader.odirect=true; "
        "nothing is said about the storage",
    )


def _limit_of_waiting(evidence: Evidence, waited: str) -> Limit:
    """Return why batches came late though CPUs were free: slow storage, or too few readers."""
    host = max(evidence.hosts, key=_cpu_pressure)
    reading = evidence.read_seconds / max(evidence.worker_seconds, 1e-9)
    cpu = host.cpu_share
    # Hosts may share the storage: what counts is what it gave to all, and would give to all.
    given = sum(each.read_bytes_per_second for each in evidence.hosts)
    probes = [each.probe_bytes_per_second for each in evidence.hosts]
    known = [probe for probe in probes if probe is not None]
    probed = sum(known) if len(known) == len(probes) else None
    num_readers = sum(each.num_probe_readers for each in evidence.hosts)
    more = None if probed is None else probed / max(given, 1.0)
    got = f"{host.device or 'the storage'} gave {format_rate(given)}"
    if len(evidence.hosts) > 1:
        got += f" to {len(evidence.hosts)} hosts"
    if host.device_busy_share is not None:
        got += f" and was busy {100 * host.device_busy_share:.0f}% of the time"
    cpus = "" if cpu is None else f"; CPUs {100 * cpu:.0f}%"
    if evidence.page_cache_share is not None and evidence.page_cache_share > 0.05:
        cpus += f"; page cache served {100 * evidence.page_cache_share:.1f}%"
    if more is not None and more > _MORE:
        return Limit(
            "loader",
            f"{waited}, workers {100 * reading:.0f}% of theirs in reads; {got}, but gives "
            f"{format_rate(probed or 0)} to {num_readers} readers{cpus}",
            f"raise reader.read_threads (now {evidence.read_threads}) or reader.io_depth",
        )
    hidden = _storage_hidden(evidence)
    if reading > _READING and hidden:
        return Limit(
            "unclear", f"{waited}, workers {100 * reading:.0f}% of theirs in reads; {hidden}"
        )
    if reading > _READING:
        seen = "" if more is None else f", and no more to {num_readers} readers"
        return Limit(
            "storage",
            f"{got}{seen}; workers waited in reads {100 * reading:.0f}% of the time{cpus}",
            "use more or faster drives, or fewer accelerators",
        )
    if reading < 1 - _READING:
        return Limit(
            "loader",
            f"{waited}, but workers only {100 * reading:.0f}% of theirs in reads{cpus}: "
            f"{_elsewhere(evidence)}",
            f"raise reader.read_threads (now {evidence.read_threads})",
        )
    return Limit(
        "unclear",
        f"{waited}; {got}; workers spent {100 * reading:.0f}% of their time in reads, too little "
        f"to call it storage and too much to call it the loader{cpus}",
        "run again with more reader.read_threads: if nothing changes, it is the storage",
    )


def _cpu_pressure(host: HostEvidence) -> float:
    """Return how far a host's CPUs are used up: above 1 they are what readers wait for."""
    return max(
        (host.cpu_share or 0.0) / _CPU_FULL,
        (_share(host.runqueue_seconds, host) or 0.0) / _STARVED,
        _throttled_share(host) / _THROTTLED,
    )


def _throttled_share(host: HostEvidence) -> float:
    return (host.throttled_seconds or 0.0) / max(host.seconds, 1e-9)


def _storage_hidden(evidence: Evidence) -> str:
    """Return why slow reads need not be the storage's doing; empty if nothing says so."""
    for host in evidence.hosts:
        if host.cpu_share is None and host.runqueue_seconds is None:
            return f"whether host {host.host} had CPUs to spare, its kernel does not tell"
    cached = evidence.page_cache_share
    if cached is not None and cached > _CACHED:
        return f"{100 * cached:.0f}% of the bytes came from memory, not from storage"
    return ""


def _share(seconds: float | None, host: HostEvidence) -> float | None:
    if seconds is None:
        return None
    return seconds / max(host.seconds * max(host.num_workers, 1), 1e-9)


def _storage_aside(host: HostEvidence) -> str:
    if host.device is None or host.device_busy_share is None:
        return ""
    return f"; {host.device} was busy {100 * host.device_busy_share:.0f}% of the time"


def _elsewhere(evidence: Evidence) -> str:
    """Return where the workers' time went instead."""
    parts = {
        "decoding": evidence.decode_seconds,
        "handing over": evidence.hand_over_seconds,
    }
    rest = evidence.worker_seconds - evidence.read_seconds - sum(parts.values())
    parts["waiting for work or sleeping (reader.preprocess_time)"] = rest
    name = max(parts, key=lambda part: parts[part])
    return f"{100 * parts[name] / max(evidence.worker_seconds, 1e-9):.0f}% went into {name}"
