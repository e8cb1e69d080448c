"""Watches a run on this rank's host, and sends what was seen to rank 0."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dlemu.config.model import Workload
from dlemu.dataset.layout import Dataset
from dlemu.errors import DatasetError, WorkloadError
from dlemu.host.devices import growth, mount_under
from dlemu.host.intervals import HostObserver, PlaceCounts, WatchedPlaces, summarize_interval
from dlemu.host.network import machine_name, network_name
from dlemu.host.processes import process_age
from dlemu.host.wear import WearWatch
from dlemu.judge.evidence import HostReport, stored_bytes
from dlemu.judge.records import host_file, named
from dlemu.loaders import Loader
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import World
from dlemu.storage.counted import NUM_BINS, GetCounts, PathBytes
from dlemu.storage.pagecache import cached_share
from dlemu.storage.probe import probe_readers
from dlemu.storage.s3.location import in_bucket

_PROBE_SECONDS = 2.4
_FEWEST_READERS, _MOST_READERS = 16, 256
_SAMPLED_FILES = 512
_RECENT_SECONDS, _LEAST_SECONDS = 5.0, 0.5


Reports = tuple[list[HostReport], PathBytes, NDArray[np.float64], GetCounts | None]
"""Of all hosts; all ranks' bytes; (epochs, NUM_BINS) reads of files by their duration; requests,
None where the data folder is no bucket."""


def watched_places(workload: Workload) -> WatchedPlaces | None:
    """Return the places behind the data folder that are to be watched; None if none is named.

    Raises:
        WorkloadError: one of them is missing, or dlemu's own cache is asked for, too.
    """
    cache = workload.cache
    named = [("cache.origin", cache.origin), *(("cache.devices", each) for each in cache.devices)]
    places = [(key, Path(place)) for key, place in named if place is not None]
    for key, place in places:
        if cache.folder is not None:
            raise WorkloadError(
                f"{key} {place} is watched behind a cache that is mounted, and cache.folder is a "
                "cache of dlemu's own; leave one of them out"
            )
        if not (place.is_dir() or place.is_block_device()):
            raise WorkloadError(
                f"{key} {place} is no folder and no block device; name where the mounted cache "
                "reads from (cache.origin), and where it keeps its copies (cache.devices)"
            )
    if not places:
        return None
    origin = None if cache.origin is None else Path(cache.origin)
    return WatchedPlaces(workload.data_folder, origin, [Path(each) for each in cache.devices])


class RunMonitor:
    """Watches a run; the first rank of each host does the work.

    All ranks enter it and call `gather`, which wait for each other.
    """

    def __init__(
        self,
        dataset: Dataset,
        folder: Path,
        world: World,
        loader: Loader,
        num_accelerators: int,
        watchdog: Watchdog,
    ) -> None:
        self._workload, self._layout = dataset.workload, dataset.layout
        self._world, self._loader, self._watchdog = world, loader, watchdog
        self._has_cache = bool(dataset.cache_state)
        self._num_accelerators = num_accelerators
        self._path = host_file(folder, world.rank)
        self._pids: list[int] = []
        self._observer: HostObserver | None = None
        self._begun = 0
        self._seen = HostReport(
            host=world.host,
            network_name=network_name(),
            machine=machine_name(),
            direct=False,
        )
        self._paths, self._gets = PathBytes(), GetCounts()
        self._reads = [np.zeros(NUM_BINS)]  # so far, at the end of each epoch
        self._in_bucket = in_bucket(self._workload.data_folder)
        cache, saves = self._workload.cache, self._workload.workflow.checkpoint
        saved = self._workload.checkpoint.checkpoint_folder if saves else None
        used = (str(self._workload.data_folder), cache.folder, *cache.devices, saved)
        self._wear = WearWatch(*(Path(each) for each in used if each and "://" not in each))
        near = map(Path, filter(None, (cache.folder, cache.origin, *cache.devices)))
        self._also = [path for path in near if path.is_dir()]
        self._places: WatchedPlaces | None = None
        self._counts = PlaceCounts()

    def __enter__(self) -> Self:
        world, watchdog, folder = self._world, self._watchdog, self._workload.data_folder
        ranks = world.all_gather((world.host_index, os.getpid(), self.num_workers))
        here = [(pid, num) for host, pid, num in ranks if host == world.host_index]
        self._pids = [pid for pid, _ in here]
        self._seen.num_workers = sum(num for _, num in here)
        with watchdog.phase("while looking at the data folder and its files", watchdog.longest_at):
            watchdog.at(str(folder))
            mount = mount_under(folder)
            self._seen.file_system = "" if mount is None else mount.kind
            if self._in_bucket:
                self._seen.file_system = "s3"
            if world.local_rank != 0:
                return self
            observer = HostObserver([folder, *self._also], lambda: self._pids, self._path)
            self._wear.start()
            self._places = watched_places(self._workload)
            watchdog.at("")
            with suppress(OSError, DatasetError):  # the readers will name the file
                self._seen.resident_before = cached_share(self._some_files(), at=watchdog.at)
        with self._writing():
            self._observer = observer.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._observer is not None:
            with self._writing():
                self._observer.__exit__(*error)

    def started(self) -> None:
        """Note how long this process took until here, where the first step begins."""
        self._seen.start_seconds = process_age()

    def begin(self, epoch: int) -> None:
        """Mark an epoch's start."""
        if self._observer is not None:
            with named(self._path):
                self._observer.mark(f"epoch {epoch} start")
            if self._places is not None:
                self._counts = self._places.counts()
            self._begun = len(self._observer.observations) - 1

    def end(self, epoch: int) -> None:
        """Mark an epoch's end."""
        self._paths, self._gets = self._loader.path_bytes(), self._loader.gets()
        self._reads.append(self._loader.read_counts())
        if self._observer is not None:
            with named(self._path):
                self._observer.mark(f"epoch {epoch} end")
            between = self._observer.between(f"epoch {epoch} start", f"epoch {epoch} end")
            self._seen.epochs.append(summarize_interval(between))
            if self._places is not None:
                with self._watchdog.phase("while the cache's writes reach its drive"):
                    self._places.settle()
                self._seen.watched.append(growth(self._places.counts(), self._counts))

    def delivered(self, read_until: Callable[[float], int]) -> tuple[float | None, float | None]:
        """Return what storage delivered in this epoch so far; None: not known, or too soon to tell.

        That is bytes per second of the last seconds, and the share (0-1) of the bytes read that
        came from memory. `read_until` returns this rank's bytes until a time of
        time.perf_counter. Any thread may call it.
        """
        if self._observer is None:
            return None, None
        seen = self._observer.observations  # it only grows
        begun, last = self._begun, len(seen) - 1
        if last <= begun or seen[last].time - seen[begun].time < _LEAST_SECONDS:
            return None, None
        recent = last - 1
        while recent > begun and seen[last].time - seen[recent].time < _RECENT_SECONDS:
            recent -= 1
        lately = summarize_interval([seen[recent], seen[last]])
        given = stored_bytes(lately, self._seen.file_system)
        rate = None if given is None else given / lately.seconds
        epoch = summarize_interval([seen[begun], seen[last]])
        own_share = self.num_workers / max(1, self._seen.num_workers)
        read = round(read_until(seen[last].time) / own_share)
        stored = stored_bytes(epoch, self._seen.file_system, read)
        return rate, None if stored is None or not read else max(0.0, 1 - stored / read)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._watchdog.phase(f"while writing to {self._path}"), named(self._path):
            yield

    @property
    def num_workers(self) -> int:
        """Readers of this rank."""
        return self._num_accelerators * max(1, self._workload.reader.read_threads)

    def probe(self, lost_share: float) -> None:
        """Read as fast as storage gives it, for comparison, if accelerators waited at all."""
        if self._observer is None or lost_share <= 0.02:
            return
        if (
            self._has_cache or self._places or self._in_bucket
        ):  # files of the origin say nothing about what readers got
            return
        outstanding = min(self._seen.num_workers * self._workload.reader.io_depth, _MOST_READERS)
        self._seen.probe = probe_readers(
            self._some_files(),
            few=outstanding,
            many=min(_MOST_READERS, max(_FEWEST_READERS, 2 * outstanding)),
            seconds=_PROBE_SECONDS,
        )

    def _some_files(self) -> list[Path]:
        step = max(1, self._layout.num_files // _SAMPLED_FILES)
        folder = self._workload.data_folder
        return [folder / self._layout.path(file) for file in range(0, self._layout.num_files, step)]

    def gather(self, written: int = 0) -> Reports | None:
        """Return on rank 0 what all hosts saw, None on the others.

        `written` are the bytes of the files that were written on this rank's account.
        """
        seen = self._seen
        seen.direct = self._loader.direct
        with self._watchdog.phase("while reading the drives' counters"):
            if self._observer is not None:
                seen.wear = self._wear.finish(file_bytes=written)
                seen.links, seen.notes = self._observer.links, list(self._notes())
        hosts = self._world.gather(seen if self._observer is not None else None)
        paths = self._world.reduce(self._paths, PathBytes.__add__)
        reads = self._world.reduce(np.diff(self._reads, axis=0), np.add)
        gets = self._world.reduce(self._gets, GetCounts.__add__) if self._in_bucket else None
        if hosts is None or paths is None or reads is None:
            return None
        return [host for host in hosts if host is not None], paths, reads, gets

    def _notes(self) -> Iterator[str]:
        if self._places is not None:
            yield from self._places.notes()
        cpus, usable = os.cpu_count() or 1, len(os.sched_getaffinity(0))
        if usable < min(cpus, 1 + self.num_workers):
            yield (
                f"rank {self._world.rank} and its workers are bound to {usable} of {cpus} CPUs; "
                "mpirun --bind-to none gives them all"
            )
        if (
            self._workload.reader.odirect == "auto"
            and not self._loader.direct
            and not self._in_bucket
        ):
            yield (
                f"reader.odirect=auto: {self._workload.data_folder} does not take O_DIRECT, "
                "reads went through the page cache"
            )
        yield from self._loader.notes
