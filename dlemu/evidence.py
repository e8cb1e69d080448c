"""Gathers what every host saw of a run, for the verdict and for summary.json."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dlemu.cufile import PathBytes
from dlemu.errors import RunError
from dlemu.files import Layout
from dlemu.loaders import Loader, TellsPaths
from dlemu.metrics import Metrics
from dlemu.observe import HostObserver, IntervalSummary, summarize
from dlemu.probe import probe_rate
from dlemu.records import Steps
from dlemu.verdict import Evidence, HostEvidence
from dlemu.workload import Workload
from dlemu.world import World

_PROBE_SECONDS = 2.0
_PROBE_FILES = 512


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """What rank 0 knows of all hosts; the metrics come later."""

    measured: dict[str, Any]
    page_cache_share: float | None
    notes: tuple[str, ...]
    _evidence: dict[str, Any]

    def with_metrics(self, metrics: Metrics) -> Evidence:
        """Return the evidence for the verdict."""
        return Evidence(metrics=metrics, **self._evidence)


@dataclass
class _HostReport:
    """What a host's first rank sends to rank 0."""

    host: str
    epochs: list[IntervalSummary]
    probe: float | None
    num_probe_readers: int
    num_workers: int
    notes: list[str] = field(default_factory=list)


class Observation:
    """Watches a run on this rank's host; the first rank of each host does the work."""

    def __init__(
        self,
        workload: Workload,
        layout: Layout,
        folder: Path,
        world: World,
        loader: Loader,
        accelerators: range,
    ) -> None:
        self._workload, self._layout, self._world, self._loader = workload, layout, world, loader
        self._num_accelerators = len(accelerators)
        ranks = world.all_gather((world.host_index, os.getpid(), self.num_workers))
        here = [(pid, num) for host, pid, num in ranks if host == world.host_index]
        self._pids = [pid for pid, _ in here]
        self._num_host_workers = sum(num for _, num in here)
        self._path = folder / f"host.{world.rank}.jsonl"
        self._observer: HostObserver | None = None
        if world.local_rank == 0:
            self._observer = HostObserver(workload.data_folder, lambda: self._pids, self._path)
        self._epochs: list[IntervalSummary] = []
        self._probe: float | None = None
        self._paths = PathBytes()

    def __enter__(self) -> Self:
        if self._observer is not None:
            with self._named():
                self._observer.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._observer is not None:
            with self._named():
                self._observer.__exit__(kind, error, trace)

    def begin(self, epoch: int) -> None:
        """Mark an epoch's start."""
        if self._observer is not None:
            with self._named():
                self._observer.mark(f"epoch {epoch} start")

    def end(self, epoch: int) -> None:
        """Mark an epoch's end."""
        if isinstance(self._loader, TellsPaths):
            self._paths = self._loader.path_bytes()
        if self._observer is not None:
            with self._named():
                self._observer.mark(f"epoch {epoch} end")
            between = self._observer.between(f"epoch {epoch} start", f"epoch {epoch} end")
            self._epochs.append(summarize(between))

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Say which file it is that cannot be written."""
        try:
            yield
        except OSError as error:
            raise RunError(
                f"{self._path} cannot be written ({error.strerror}); free space or set "
                "output.folder"
            ) from None

    @property
    def num_workers(self) -> int:
        """Readers of this rank."""
        return self._num_accelerators * max(1, self._workload.reader.read_threads)

    @property
    def _num_probe_readers(self) -> int:
        outstanding = self._num_host_workers * self._workload.reader.io_depth
        return min(64, max(16, 2 * outstanding))

    def probe(self, lost_share: float) -> None:
        """Read as fast as storage gives it, for comparison, if accelerators waited at all."""
        if self._observer is not None and lost_share > 0.02:
            step = max(1, self._layout.num_files // _PROBE_FILES)
            folder = self._workload.data_folder
            paths = [
                folder / self._layout.path(file) for file in range(0, self._layout.num_files, step)
            ]
            self._probe = probe_rate(
                paths, num_readers=self._num_probe_readers, seconds=_PROBE_SECONDS
            )

    def gather(self, steps: Sequence[Steps] | None) -> Gathered | None:
        """Return what all hosts saw, on rank 0; `steps` are those of all ranks there."""
        notes = []
        cpus, usable = os.cpu_count() or 1, len(os.sched_getaffinity(0))
        if usable < min(cpus, 1 + self.num_workers):
            notes.append(
                f"rank {self._world.rank} and its workers are bound to {usable} of {cpus} CPUs; "
                "mpirun --bind-to none gives them all"
            )
        if self._workload.reader.odirect == "auto" and not self._loader.direct:
            notes.append(
                f"reader.odirect=auto: {self._workload.data_folder} does not take O_DIRECT, "
                "reads went through the page cache"
            )
        if isinstance(self._loader, TellsPaths):
            notes += self._loader.notes
        report = _HostReport(
            self._world.host,
            self._epochs,
            self._probe,
            self._num_probe_readers,
            self._num_host_workers,
            notes,
        )
        hosts = self._world.gather(report if self._observer is not None else None)
        name = f"rank {self._world.rank} on host {self._world.host}"
        names = self._world.gather([name] * self._num_accelerators)
        paths = self._world.gather(self._paths)
        if hosts is None or names is None or steps is None or paths is None:
            return None
        reports = [host for host in hosts if host is not None]
        taken = sum(paths, PathBytes())
        return _combine(self._workload, reports, list(chain(*names)), steps, taken)


def _combine(
    workload: Workload,
    hosts: list[_HostReport],
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
    stored = [_total([_stored(host.epochs[e]) for host in hosts]) for e in range(num_epochs)]
    shares = [
        None if have is None or not num else max(0.0, 1 - have / num)
        for have, num in zip(stored, read, strict=True)
    ]
    known = [share for share in shares if share is not None]
    notes = tuple(dict.fromkeys(note for host in hosts for note in host.notes))
    if all(not host.epochs[0].devices for host in hosts) and not known:
        notes += ("no drive was seen under the data folder: the bytes may all come from memory",)
    # By bytes, not by epochs: epochs are equally large but for a rest.
    total = (
        _total([have for have in stored if have is not None]) if len(known) == num_epochs else None
    )
    share = None if total is None or not sum(read) else max(0.0, 1 - total / sum(read))
    evidence = [_host_evidence(host, everything, len(hosts)) for host in hosts]
    making = everything["read"] + everything["decode"] + everything["hand_over"]
    late = everything["compute"] - everything["computation_time"]
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
        _evidence={
            "hosts": evidence,
            "rank_names": names,
            "making_seconds": _by_accelerator(everything, making),
            "late_seconds": _by_accelerator(everything, late),
            "read_seconds": measured["read_seconds"],
            "decode_seconds": measured["decode_seconds"],
            "hand_over_seconds": measured["hand_over_seconds"],
            "worker_seconds": measured["worker_seconds"],
            "page_cache_share": share,
            "data_loader": workload.reader.data_loader,
            "read_threads": workload.reader.read_threads,
        },
    )


def _host_evidence(host: _HostReport, steps: Steps, num_hosts: int) -> HostEvidence:
    """Return one host's counters over all epochs."""
    seconds = sum(epoch.seconds for epoch in host.epochs)
    busiest: dict[str, float] = {}
    for epoch in host.epochs:
        for name, use in epoch.devices.items():
            busiest[name] = busiest.get(name, 0.0) + use.busy_share * epoch.seconds / seconds
    device = max(busiest, key=lambda name: busiest[name], default=None)
    stored = _total([_stored(epoch) for epoch in host.epochs])
    cpu = _total([epoch.process_cpu_seconds for epoch in host.epochs])
    usable = host.epochs[-1].usable_cpus
    return HostEvidence(
        host=host.host,
        seconds=seconds,
        device=device,
        device_busy_share=None if device is None else busiest[device],
        read_bytes_per_second=(stored if stored else int(steps["num_bytes"].sum()) / num_hosts)
        / seconds,
        probe_bytes_per_second=host.probe,
        num_probe_readers=host.num_probe_readers,
        cpu_share=None if cpu is None else cpu / (usable * seconds),
        host_cpu_share=_weighted(host.epochs, [e.host_cpu_share for e in host.epochs]),
        runqueue_seconds=_total([epoch.runqueue_seconds for epoch in host.epochs]),
        throttled_seconds=_total([epoch.throttled_seconds for epoch in host.epochs]),
        usable_cpus=usable,
        num_workers=host.num_workers,
    )


def _by_accelerator(steps: Steps, values: NDArray[np.float64]) -> list[float]:
    """Return the mean of the steps' values, accelerator by accelerator."""
    accelerators = steps["accelerator"]
    means: list[float] = (
        np.bincount(accelerators, weights=values) / np.bincount(accelerators)
    ).tolist()
    return means


def _stored(epoch: IntervalSummary) -> int | None:
    """Return what storage delivered: the least of the witnesses, for drives serve others too."""
    if not epoch.devices and epoch.network_read_bytes is None:
        return None
    witnesses = (epoch.storage_read_bytes, epoch.process_read_bytes)
    return min((num for num in witnesses if num is not None), default=None)


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
