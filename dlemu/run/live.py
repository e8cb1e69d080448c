"""Watches a run while it goes on.

`RunMonitor` watches it on this rank's host, and sends what was seen to rank 0. `Live` shows what it
is doing now to another thread that asks; nothing of it is called in a step.
"""

import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from dlemu.checkpoint.in_run import InWriting
from dlemu.config.model import Workload
from dlemu.config.sections import MetricSection
from dlemu.dataset.layout import Dataset
from dlemu.errors import DatasetError, WorkloadError
from dlemu.findings import Finding, note
from dlemu.host.devices import growth, mount_under
from dlemu.host.intervals import (
    HostObserver,
    PlaceCounts,
    WatchedPlaces,
    end_of,
    of_epoch,
    start_of,
    summarize_interval,
)
from dlemu.host.network import machine_name, network_name
from dlemu.host.processes import process_age
from dlemu.host.wear import WearWatch
from dlemu.judge.evidence import HostReport, may_use_memory, stored_bytes
from dlemu.judge.records import Steps, host_file, named
from dlemu.judge.sums import au_of_each, credited_seconds, left_out, step_seconds
from dlemu.loaders import Loader
from dlemu.plugins import is_url
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import World
from dlemu.storage.counted import NUM_BINS, GetCounts, PathBytes
from dlemu.storage.folder import local_place
from dlemu.storage.pagecache import cached_share
from dlemu.storage.probe import probe_readers

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
        if not local_place(place).is_there():
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
        self._place = dataset.place
        cache, saves = self._workload.cache, self._workload.workflow.checkpoint
        saved = self._workload.checkpoint.checkpoint_folder if saves else None
        used = (str(self._workload.data_folder), cache.folder, *cache.devices, saved)
        self._wear = WearWatch(*(Path(each) for each in used if each and not is_url(each)))
        near = map(Path, filter(None, (cache.folder, cache.origin, *cache.devices)))
        self._also = [path for path in near if path.is_dir()]
        self._places: WatchedPlaces | None = None
        self._counts = PlaceCounts()

    def __enter__(self) -> Self:
        world, watchdog, folder = self._world, self._watchdog, self._workload.data_folder
        ranks = world.all_gather((world.host_index, os.getpid(), self.num_workers))
        here = [(pid, num) for host, pid, num in ranks if host == world.host_index]
        self._pids = [pid for pid, _ in here]
        self._seen.direct = self._loader.direct
        self._seen.num_workers = sum(num for _, num in here)
        with watchdog.phase("looking at the data folder and its files", watchdog.longest_at):
            watchdog.at(str(folder))
            mount = mount_under(folder)
            self._seen.file_system = "" if mount is None else mount.kind
            self._seen.file_system = self._place.kind or self._seen.file_system
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
                self._observer.mark(start_of(of_epoch(epoch)))
            if self._places is not None:
                self._counts = self._places.counts()
            self._begun = len(self._observer.observations) - 1

    def end(self, epoch: int) -> None:
        """Mark an epoch's end."""
        self._paths, self._gets = self._loader.path_bytes(), self._loader.gets()
        self._reads.append(self._loader.read_counts())
        if self._observer is not None:
            with named(self._path):
                self._observer.mark(end_of(of_epoch(epoch)))
            self._seen.epochs.append(summarize_interval(self._observer.during(of_epoch(epoch))))
            if self._places is not None:
                with self._watchdog.phase("waiting for the cache's writes to reach its drive"):
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
        if stored is None or not read or not may_use_memory(self._seen):
            return rate, None
        return rate, max(0.0, 1 - stored / read)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._watchdog.phase(f"writing to {self._path}"), named(self._path):
            yield

    @property
    def _sends_requests(self) -> bool:
        return self._place.witness == "requests"

    @property
    def num_workers(self) -> int:
        """Readers of this rank."""
        return self._num_accelerators * max(1, self._workload.reader.read_threads)

    def probe(self, lost_share: float) -> None:
        """Read as fast as storage gives it, for comparison, if accelerators waited at all."""
        if self._observer is None:
            return
        # Where O_DIRECT is really taken, no page comes.
        if self._loader.direct and self._place.has_page_cache:
            with suppress(OSError, DatasetError):
                self._seen.resident_after = cached_share(self._some_files())
        if lost_share <= 0.02:
            return
        if self._has_cache or self._places or not self._place.has_paths:
            return  # files of the origin say nothing about what readers got
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
        with self._watchdog.phase("reading the drives' counters"):
            if self._observer is not None:
                seen.wear = self._wear.finish(file_bytes=written)
                seen.links, seen.notes = self._observer.links, list(self._notes())
        hosts = self._world.gather(seen if self._observer is not None else None)
        paths = self._world.reduce(self._paths, PathBytes.__add__)
        reads = self._world.reduce(np.diff(self._reads, axis=0), np.add)
        gets = self._world.reduce(self._gets, GetCounts.__add__) if self._sends_requests else None
        if hosts is None or paths is None or reads is None:
            return None
        return [host for host in hosts if host is not None], paths, reads, gets

    def _notes(self) -> Iterator[str | Finding]:
        if self._places is not None:
            yield from self._places.notes()
        cpus, usable = os.cpu_count() or 1, len(os.sched_getaffinity(0))
        if usable < min(cpus, 1 + self.num_workers):
            yield note("bound_to_cpus", rank=self._world.rank, usable_cpus=usable, cpus=cpus)
        if (
            self._workload.reader.odirect == "auto"
            and not self._loader.direct
            and self._place.has_paths
        ):
            yield note("no_odirect", folder=str(self._workload.data_folder))
        yield from self._loader.notes


Phase = Callable[[], tuple[str, float]]
"""Returns a phase of `Watchdog`, "" between phases, and how long it has lasted."""
_Epoch = tuple[Sequence["StepsSoFar"], int, RunMonitor, int]
"""The sums of each epoch so far, of how many, what watches them, and how many ranks there are."""


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """What is known of a run at one moment; None: not known yet, or not at all.

    The figures of steps are those of rank 0's accelerators, those of the drive those of its host.
    """

    job: str = ""
    """What the run is a part of: "run 3 of about 8 …"; "" if it stands alone."""
    doing: str = ""
    """What it does outside its epochs: "opening the loader"; "" in an epoch."""
    seconds: float = 0.0
    """Time since it began with that."""
    epoch: int = 0
    """From 1 on; 0 outside an epoch."""
    epochs: int = 0
    step: int = 0
    """Steps of this epoch that have ended, of `steps`."""
    steps: int = 0
    au_percentage: float | None = None
    """Of the whole run so far, 0 to 100. At an epoch's end it is what the run's metrics have, but
    for checkpoints inside the epoch: see `StepsSoFar`."""
    samples_per_second: float | None = None
    """Over the last seconds."""
    drive_bytes_per_second: float | None = None
    """Bytes per second that storage delivered lately."""
    cached_share: float | None = None
    """Share (0-1) of this epoch's bytes that came from memory."""
    checkpoint: InWriting | None = None
    """While it is being written."""
    seconds_left: float | None = None
    """Until the last epoch ends."""
    num_ranks: int = 1
    """Above 1: there are so many ranks, and the figures are those of rank 0 alone."""

    @property
    def share(self) -> float | None:
        """Share (0-1) of the run's steps that have ended; None outside an epoch."""
        if not self.steps:
            return None
        return (self.epoch - 1 + self.step / self.steps) / self.epochs


class Live:
    """Tells what a run is doing: give it to `run_job`, and call `now` from another thread.

        live = Live()
        threading.Thread(target=lambda: print(live.now())).start()
        dlemu.run_job(workload, world=world, live=live)

    The run tells it when a phase or an epoch begins. All figures are computed in `now`.
    """

    def __init__(self) -> None:
        self.job = ""
        """The job that the next runs are a part of."""
        self.folder: Path | None = None
        """Of the run, or of several; None: not known yet."""
        self.introduced = False
        """Whether workload, dataset, storage and host have been printed."""
        self.checkpoint: Callable[[], InWriting | None] = lambda: None
        """Returns which checkpoint is being written, None if none is."""
        self._doing, self._since = "starting", time.perf_counter()
        self._phase: Phase = lambda: ("", 0.0)
        self._epoch: _Epoch | None = None
        self._sums: list[StepsSoFar] = []
        """Of each epoch so far."""
        self._lock = threading.Lock()

    @contextmanager
    def doing(self, text: str) -> Iterator[None]:
        """Show this text until the `with` ends, except in epochs and in a watchdog's phases."""
        before = self._doing, self._since
        self.does(text)
        try:
            yield
        finally:
            self._doing, self._since = before

    def does(self, text: str) -> None:
        """Show this text from now on."""
        self._doing, self._since = text, time.perf_counter()

    @contextmanager
    def run(self, phase: Phase) -> Iterator[None]:
        """Follow one run, whose watchdog has these phases."""
        self._sums, self._phase = [], phase
        try:
            with self.doing("starting"):
                yield
        finally:
            self._epoch, self._sums, self._phase = None, [], lambda: ("", 0.0)

    @contextmanager
    def epoch(
        self, steps: Steps, workload: Workload, monitor: RunMonitor, num_ranks: int
    ) -> Iterator[None]:
        """Follow the next epoch: `steps` are the records that its replay fills.

        `num_ranks` is above 1 if other ranks have accelerators as well. A rank without any is not
        followed.
        """
        if not steps.shape[1]:
            yield
            return
        self._sums = [*self._sums, StepsSoFar(steps, workload.metric)]
        self._epoch = self._sums, workload.train.epochs, monitor, num_ranks
        try:
            yield
        finally:
            self._epoch = None

    def now(self) -> RunProgress:
        """Return what is known now."""
        with self._lock:
            if (epoch := self._epoch) is not None:
                return self._in_epoch(*epoch)
        text, seconds = self._phase()
        if not text:
            text, seconds = self._doing, time.perf_counter() - self._since
        return RunProgress(job=self.job, doing=text, seconds=seconds)

    def _in_epoch(
        self, sums: Sequence["StepsSoFar"], epochs: int, monitor: RunMonitor, num_ranks: int
    ) -> RunProgress:
        """Return the figures of the last epoch, and the AU of all."""
        for each in sums:
            each.look()
        steps = sums[-1]
        rate, share = monitor.delivered(steps.bytes_until)
        left = steps.num_steps * (1 + epochs - len(sums)) - steps.done
        return RunProgress(
            job=self.job,
            epoch=len(sums),
            epochs=epochs,
            step=steps.done,
            steps=steps.num_steps,
            au_percentage=_mean_au(sums),
            samples_per_second=steps.samples_per_second(time.perf_counter()),
            drive_bytes_per_second=rate,
            cached_share=share,
            checkpoint=self.checkpoint(),
            seconds_left=None if steps.step_seconds is None else left * steps.step_seconds,
            num_ranks=num_ranks,
        )


class StepsSoFar:
    """Running sums over the steps of an epoch that have ended; `look` adds those that are new.

    `steps` are the (steps, accelerators) records of the whole epoch, which another thread fills. A
    record is whole once its `start` is set. Only new records are read: an epoch may have millions.
    """

    def __init__(self, steps: Steps, metric: MetricSection) -> None:
        self.num_steps = len(steps)
        self.done = self.counted = 0
        """Steps that have ended, and those of them that AU counts."""
        self._steps, self._edition = steps, metric.edition
        # Only single values are taken, and those beyond `done` are not in memory yet.
        self._starts = cast(Sequence[float], steps["start"][:, 0])
        self._left_out, at_end = left_out(metric)
        self._stop = len(steps) - at_end
        self._num_bytes = 0
        self._inside, self._credited = np.zeros((2, steps.shape[1]))

    def look(self) -> None:
        """Take in the steps that have ended since the last look."""
        begun, starts = self.done, self._starts
        rows = range(self.num_steps)
        self.done = bisect_left(rows, True, begun, key=lambda row: bool(starts[row] == 0))
        self._num_bytes += int(self._steps["num_bytes"][begun : self.done].sum())
        first, end = max(begun, self._left_out), min(self.done, self._stop)
        if first < end:
            inside = self._steps[first:end]
            self._inside += step_seconds(inside).sum(axis=0)
            self._credited += credited_seconds(inside, self._edition).sum(axis=0)
            self.counted += end - first

    @property
    def au_percentage(self) -> float | None:
        """AU of the steps so far, by the edition's rule; None before the first that counts.

        The steps behind a checkpoint count as well, which the AU of the run leaves out.
        """
        if not self.counted:
            return None
        return float(au_of_each(self._credited, self._inside).mean())

    @property
    def step_seconds(self) -> float | None:
        """Mean time of a step, the first left out; None before the second."""
        if self.done < 2:
            return None
        return (self._end - self._starts[1]) / (self.done - 1)

    def samples_per_second(self, now: float) -> float | None:
        """Return the rate of the last seconds; it falls while no step ends. None before the first.

        `now` is a time of the clock that the records use.
        """
        if not self.done:
            return None
        end, starts = self._end, self._starts
        first = min(bisect_left(starts, end - _RECENT_SECONDS, 0, self.done), self.done - 1)
        samples = int(self._steps["num_samples"][first : self.done].sum())
        return samples / max(end - starts[first], now - end, 1e-9)

    def bytes_until(self, moment: float) -> int:
        """Return the bytes read for the batches of the steps that had ended at a moment."""
        if self.done and moment >= self._end:
            return self._num_bytes
        ended = max(0, bisect_right(self._starts, moment, 0, self.done) - 1)
        return self._num_bytes - int(self._steps["num_bytes"][ended : self.done].sum())

    @property
    def _end(self) -> float:
        last: Any = self._steps[self.done - 1, :1]
        return float(last["start"][0] + step_seconds(last)[0])


def _mean_au(epochs: Sequence[StepsSoFar]) -> float | None:
    """Return the mean over epochs; one that has not ended weighs as much as its steps."""
    counted = [(each.au_percentage, each.counted) for each in epochs]
    steps = sum(num for _, num in counted)
    return sum(au * num for au, num in counted if au is not None) / steps if steps else None
