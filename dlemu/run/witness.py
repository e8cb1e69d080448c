"""Watches a run on this rank's host, and sends what was seen to rank 0."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

from dlemu.dataset.layout import Layout
from dlemu.errors import DatasetError
from dlemu.host.devices import mount_under
from dlemu.host.intervals import IntervalSummary, summarize_interval
from dlemu.host.observer import HostObserver
from dlemu.loaders import Loader, TellsPaths
from dlemu.results.evidence import Gathered, HostReport, combine
from dlemu.results.records import Steps, host_file, named
from dlemu.run.watchdog import Watchdog
from dlemu.storage.pagecache import cached_share
from dlemu.storage.path_bytes import PathBytes
from dlemu.storage.probe import Probe, probe_readers
from dlemu.workload.model import Workload
from dlemu.world.world import World

_PROBE_SECONDS = 2.4
_FEWEST_READERS, _MOST_READERS = 16, 256
_SAMPLED_FILES = 512


class Witness:
    """Watches a run on this rank's host; the first rank of each host does the work."""

    def __init__(
        self,
        workload: Workload,
        layout: Layout,
        folder: Path,
        world: World,
        loader: Loader,
        accelerators: range,
        watchdog: Watchdog,
    ) -> None:
        self._workload, self._layout, self._world, self._loader = workload, layout, world, loader
        self._num_accelerators = len(accelerators)
        ranks = world.all_gather((world.host_index, os.getpid(), self.num_workers))
        here = [(pid, num) for host, pid, num in ranks if host == world.host_index]
        self._pids = [pid for pid, _ in here]
        self._num_host_workers = sum(num for _, num in here)
        self._path = host_file(folder, world.rank)
        self._watchdog = watchdog
        self._observer: HostObserver | None = None
        self._resident_before: float | None = None
        looking = "while looking at the data folder and its files"
        with watchdog.phase(looking, watchdog.longest_at):
            watchdog.at(str(workload.data_folder))
            mount = mount_under(workload.data_folder)
            if world.local_rank == 0:
                self._observer = HostObserver(workload.data_folder, lambda: self._pids, self._path)
                watchdog.at("")
                with suppress(OSError, DatasetError):  # the readers will say which file it is
                    self._resident_before = cached_share(self._some_files(), at=watchdog.at)
        self._file_system = "" if mount is None else mount.kind
        self._epochs: list[IntervalSummary] = []
        self._probe: Probe | None = None
        self._paths = PathBytes()

    def __enter__(self) -> Self:
        if self._observer is not None:
            with self._watched(), named(self._path):
                self._observer.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._observer is not None:
            with self._watched(), named(self._path):
                self._observer.__exit__(kind, error, trace)

    def begin(self, epoch: int) -> None:
        """Mark an epoch's start."""
        if self._observer is not None:
            with named(self._path):
                self._observer.mark(f"epoch {epoch} start")

    def end(self, epoch: int) -> None:
        """Mark an epoch's end."""
        if isinstance(self._loader, TellsPaths):
            self._paths = self._loader.path_bytes()
        if self._observer is not None:
            with named(self._path):
                self._observer.mark(f"epoch {epoch} end")
            between = self._observer.between(f"epoch {epoch} start", f"epoch {epoch} end")
            self._epochs.append(summarize_interval(between))

    def _watched(self) -> AbstractContextManager[None]:
        return self._watchdog.phase(f"while {self._path} was written")

    @property
    def num_workers(self) -> int:
        """Readers of this rank."""
        return self._num_accelerators * max(1, self._workload.reader.read_threads)

    def probe(self, lost_share: float) -> None:
        """Read as fast as storage gives it, for comparison, if accelerators waited at all."""
        if self._observer is None or lost_share <= 0.02:
            return
        outstanding = min(self._num_host_workers * self._workload.reader.io_depth, _MOST_READERS)
        self._probe = probe_readers(
            self._some_files(),
            few=outstanding,
            many=min(_MOST_READERS, max(_FEWEST_READERS, 2 * outstanding)),
            seconds=_PROBE_SECONDS,
        )

    def _some_files(self) -> list[Path]:
        step = max(1, self._layout.num_files // _SAMPLED_FILES)
        folder = self._workload.data_folder
        return [folder / self._layout.path(file) for file in range(0, self._layout.num_files, step)]

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
        report = HostReport(
            self._world.host,
            self._epochs,
            self._probe,
            self._num_host_workers,
            self._resident_before,
            self._loader.direct,
            notes,
            self._file_system,
        )
        hosts = self._world.gather(report if self._observer is not None else None)
        name = f"rank {self._world.rank} on host {self._world.host}"
        names = self._world.gather([name] * self._num_accelerators)
        paths = self._world.gather(self._paths)
        if hosts is None or names is None or steps is None or paths is None:
            return None
        reports = [host for host in hosts if host is not None]
        taken = sum(paths, PathBytes())
        return combine(self._workload, reports, list(chain(*names)), steps, taken)
