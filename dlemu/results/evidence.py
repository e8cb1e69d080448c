"""Puts together what the hosts saw of a run, for the verdict and for summary.json."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dlemu.host.intervals import IntervalSummary
from dlemu.results.cached import describe, stored_bytes, vouched_bytes
from dlemu.results.losses import find_losses
from dlemu.results.records import Steps
from dlemu.results.verdict import Evidence, HostEvidence
from dlemu.storage.path_bytes import PathBytes
from dlemu.storage.probe import Probe
from dlemu.workload.model import Workload

_CONTRADICTION = 0.1
"""Difference of two shares of cached bytes that is worth a note."""


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """What rank 0 knows of all hosts; the metrics come later."""

    measured: dict[str, Any]
    page_cache_share: float | None
    notes: tuple[str, ...]
    _hosts: Sequence[HostEvidence]
    _workload: Workload
    _names: Sequence[str]
    _steps: Steps
    _direct: bool

    def evidence(self) -> Evidence:
        """Return the evidence for the verdict; the steps must be whole, as `measure` checks."""
        reader, metric = self._workload.reader, self._workload.metric
        window = slice(1, None)
        if metric.edition == "v2.0":
            window = slice(metric.exclude_start_steps, -metric.exclude_end_steps or None)
        return Evidence(
            losses=find_losses(
                self._steps,
                self._names,
                window=window,
                preprocess_seconds=reader.preprocess_time.mean,
            ),
            hosts=self._hosts,
            read_seconds=self.measured["read_seconds"],
            worker_seconds=self.measured["worker_seconds"],
            page_cache_share=self.page_cache_share,
            reader=reader,
            direct=self._direct,
        )


@dataclass
class HostReport:
    """What a host's first rank sends to rank 0."""

    host: str
    epochs: list[IntervalSummary]
    probe: Probe | None
    num_workers: int
    resident_before: float | None
    """Share of the dataset's pages that were in memory when the run began."""
    direct: bool
    notes: list[str] = field(default_factory=list)
    file_system: str = ""
    """Of the data folder, as mountinfo names it."""


def combine(
    workload: Workload,
    hosts: list[HostReport],
    names: list[str],
    steps: Sequence[Steps],
    paths: PathBytes,
) -> Gathered:
    """Return what the hosts saw together."""
    everything = np.concatenate(steps)
    num_epochs = len(hosts[0].epochs)
    read = [
        int(everything["num_bytes"][everything["epoch"] == epoch].sum())
        for epoch in range(num_epochs)
    ]
    stored = [_stored(hosts, epoch, read[epoch]) for epoch in range(num_epochs)]
    shares = [
        None if have is None or not num else max(0.0, 1 - have / num)
        for have, num in zip(stored, read, strict=True)
    ]
    known = [share for share in shares if share is not None]
    notes = tuple(dict.fromkeys(note for host in hosts for note in host.notes))
    resident = _total([host.resident_before for host in hosts])
    before = None if resident is None else resident / len(hosts)
    notes += _doubts(hosts, shares, before)
    # By bytes, not by epochs: epochs are equally large but for a rest.
    total = (
        _total([have for have in stored if have is not None]) if len(known) == num_epochs else None
    )
    share = None if total is None or not sum(read) else max(0.0, 1 - total / sum(read))
    evidence = [_host_evidence(host, everything, len(hosts)) for host in hosts]
    workers = sum(host.num_workers for host in hosts)
    seconds = float(np.mean([each.seconds for each in evidence]))
    if paths.mode == "none":  # no loader that knows another way than through the host
        paths = PathBytes(host=sum(read))
    measured = {
        "storage_read_bytes": total,
        "path": paths.mode,
        "path_bytes": asdict(paths),
        "device_read_bytes": _total(
            [epoch.device_read_bytes for host in hosts for epoch in host.epochs]
        ),
        "page_cache_share": share,
        "page_cache_share_per_epoch": shares,
        "resident_share_before": before,
        "host_cpu_percentage": _percentage([each.host_cpu_share for each in evidence]),
        "hosts": [
            {
                **asdict(each),
                "max_pss_bytes": max((e.max_pss_bytes or 0 for e in host.epochs), default=0),
            }
            for each, host in zip(evidence, hosts, strict=True)
        ],
        "read_seconds": float(everything["read"].sum()),
        "decode_seconds": float(everything["decode"].sum()),
        "hand_over_seconds": float(everything["hand_over"].sum()),
        "worker_seconds": workers * seconds,
    }
    return Gathered(
        measured=measured,
        page_cache_share=share,
        notes=notes,
        _hosts=evidence,
        _workload=workload,
        _names=names,
        _steps=everything,
        _direct=all(host.direct for host in hosts),
    )


def _doubts(
    hosts: list[HostReport], shares: list[float | None], before: float | None
) -> tuple[str, ...]:
    """Return what is not sure about the epochs' shares of bytes from memory."""
    in_memory = "" if before is None else f"{100 * before:.0f}% of the pages were in memory before"
    unseen = [host for host in hosts if _unseen(host.epochs[0])]
    if unseen:
        note = describe(unseen[0].file_system, known=None not in shares)
        return (f"{note}; {in_memory}" if in_memory and None in shares else note,)
    share = shares[0]
    if share is None:
        return ()
    # O_DIRECT passes pages by, wherever they are.
    if any(host.direct for host in hosts) or before is None or abs(share - before) < _CONTRADICTION:
        return ()
    return (
        f"the drives' counters say that {100 * share:.0f}% of the first epoch came from memory, "
        f"but {in_memory}: something else reads these drives, or memory was short",
    )


def _host_evidence(host: HostReport, steps: Steps, num_hosts: int) -> HostEvidence:
    """Return one host's counters over all epochs."""
    seconds = sum(epoch.seconds for epoch in host.epochs)
    busiest: dict[str, float] = {}
    for epoch in host.epochs:
        for name, use in epoch.devices.items():
            busiest[name] = busiest.get(name, 0.0) + use.busy_share * epoch.seconds / seconds
    device = max(busiest, key=lambda name: busiest[name], default=None)
    stored = _total([stored_bytes(epoch, host.file_system) for epoch in host.epochs])
    cpu = _total([epoch.process_cpu_seconds for epoch in host.epochs])
    usable = host.epochs[-1].usable_cpus
    return HostEvidence(
        host=host.host,
        seconds=seconds,
        device=device,
        device_busy_share=None if device is None else busiest[device],
        read_bytes_per_second=(stored if stored else int(steps["num_bytes"].sum()) / num_hosts)
        / seconds,
        probe=host.probe,
        cpu_share=None if cpu is None else cpu / (usable * seconds),
        host_cpu_share=_weighted(host.epochs, [e.host_cpu_share for e in host.epochs]),
        host_steal_share=_weighted(host.epochs, [e.host_steal_share for e in host.epochs]),
        runqueue_seconds=_total([epoch.runqueue_seconds for epoch in host.epochs]),
        throttled_seconds=_total([epoch.throttled_seconds for epoch in host.epochs]),
        usable_cpus=usable,
        num_workers=host.num_workers,
    )


def _stored(hosts: list[HostReport], epoch: int, read: int) -> int | None:
    """Return what storage delivered to all hosts in an epoch, None where nobody can tell."""
    known: int | None = _total([stored_bytes(h.epochs[epoch], h.file_system) for h in hosts])
    if known is not None or len(hosts) > 1:  # which host read how much, no step tells
        return known
    return vouched_bytes(hosts[0].epochs[epoch], hosts[0].file_system, read=read)


def _unseen(epoch: IntervalSummary) -> bool:
    """Say whether neither a drive nor a network mount counted what it delivered."""
    return not epoch.devices and epoch.network_read_bytes is None


def _total(values: Sequence[float | int | None]) -> Any:
    """Return the sum, or None where one is unknown or none is there."""
    if not values or any(value is None for value in values):
        return None
    return sum(value for value in values if value is not None)


def _weighted(epochs: list[IntervalSummary], shares: list[float | None]) -> float | None:
    total = _total(
        [None if s is None else s * e.seconds for s, e in zip(shares, epochs, strict=True)]
    )
    return None if total is None else total / sum(epoch.seconds for epoch in epochs)


def _percentage(shares: list[float | None]) -> float | None:
    total = _total(shares)
    return None if total is None else 100 * total / len(shares)
