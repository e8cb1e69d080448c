"""The cache of a run on this rank's host: made before the epochs, planned and counted in each.

All ranks call it. The first rank of each host holds the folder, plans, and counts. A forecast is
the plan of the first epochs, before a run begins; it writes nothing.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from dlemu.config.model import Workload
from dlemu.dataset.layout import Dataset, Samples, file_sizes
from dlemu.dataset.plan import EpochPlan, make_plan
from dlemu.dataset.rule import num_accelerators
from dlemu.errors import WorkloadError
from dlemu.findings import Finding, note
from dlemu.host.place import find_host
from dlemu.loaders.cache.folder import CacheFolder, entry_path, write_entry
from dlemu.loaders.cache.hits import (
    EpochHits,
    PlannedCache,
    Visits,
    find_visits,
    planning,
    policy_of,
)
from dlemu.loaders.cache.reader import (
    ASKED_BYTES,
    CACHE_BYTES,
    HIT_BYTES,
    ORIGIN_BYTES,
    WRITTEN_BYTES,
    Origin,
    SharedCacheState,
)
from dlemu.ranks.world import World
from dlemu.storage.extents import settle_direct
from dlemu.storage.pagecache import OnFile, drop
from dlemu.units import round_up

_MOST_COPYING = 64
_MOST_EPOCHS = 3
"""From the third epoch on, all are alike."""


@dataclass(frozen=True)
class EpochCounts:
    """What one host's readers did in an epoch, and what was planned; in bytes."""

    asked: int
    """Of the files that training read, whole."""
    hit: int
    """Of these, served by the cache."""
    planned_hit: int
    origin: int
    """Really read from the origin; the next two likewise."""
    cache_read: int
    cache_written: int
    settle_seconds: float
    """From the epoch's end until all that was written is in the cache, and on its drive."""


@dataclass(frozen=True)
class Preload:
    """What one host copied from the origin to the cache before the epochs."""

    num_files: int
    num_bytes: int
    seconds: float
    read_share: float
    """Share (0-1) of the copying threads' time in which they read the origin."""


@dataclass(frozen=True)
class HostCounts:
    """The cache of one host, and all that its readers did."""

    host: str
    capacity_bytes: int
    """0: there is no cache, only an emulated origin."""
    dataset_bytes: int
    preload: Preload | None
    epochs: list[EpochCounts]
    one_drive: bool
    """Whether the origin is on the cache's drive."""


def emulates(workload: Workload) -> Finding | None:
    """Return how the origin is emulated: its rate and the time of a file; None if it is not."""
    rate, latency = workload.origin.read_bandwidth, workload.origin.latency
    if rate is None and not latency:
        return None
    return note("emulated_at", bytes_per_second=rate, latency_seconds=latency)


def uses_cache(workload: Workload) -> bool:
    """Return whether files are opened through a cache, or from an emulated origin."""
    return workload.cache.folder is not None or emulates(workload) is not None


def check_cache(workload: Workload) -> None:
    """Refuse keys that contradict each other, before anything is written.

    Raises:
        WorkloadError: the loader opens its files itself, nothing can be preloaded, or the cache
            lies in the data folder.
    """
    cache = workload.cache
    if not uses_cache(workload):
        return
    policy_of(cache.policy)
    key = "origin.*" if cache.folder is None else "cache.folder"
    if not workload.place.has_paths:
        raise WorkloadError(
            f"{key} reads files, and {workload.data_folder} is {workload.place.word}; leave one of "
            "them out"
        )
    dataset, by_record = workload.dataset, workload.reader.access == "random"
    files = dataset.file_format
    if files.in_columns or (by_record and "stream" in files.ways):
        how = "by record" if by_record else "by parts"
        raise WorkloadError(
            f"{key} has no effect with dataset.format={dataset.format} read {how}: files go "
            "through it whole; remove it, or watch a mounted cache with cache.origin"
        )
    if workload.reader.loader.by_dali:
        raise WorkloadError(
            f"{key} has no effect with reader.data_loader=dali, which opens the files itself; set "
            "reader.data_loader=pytorch or threads"
        )
    if cache.folder is not None and Path(cache.folder).resolve().is_relative_to(
        workload.data_folder.resolve()
    ):
        raise WorkloadError(
            f"cache.folder {cache.folder} lies in the data folder {workload.data_folder}; name a "
            "folder on the cache's drive"
        )
    if cache.folder is not None and cache.policy == "none" and cache.warm is True:
        raise WorkloadError("cache.warm=true needs a cache.policy that caches, got none")


@dataclass(frozen=True)
class EpochForecast:
    """An epoch of one host, in bytes."""

    hit_share: float
    """0 to 1, of the bytes that training asks for."""
    origin: int
    """Read from the origin; files that are admitted are read whole."""
    hit: int
    """Read from the cache."""
    written: int


class CacheContents:
    """The cache of one host: what it holds, and what each epoch will find and change."""

    def __init__(self, dataset: Dataset, sizes: Samples, folder: CacheFolder | None) -> None:
        """`sizes`: bytes of each file. `folder`: None where only an origin is emulated."""
        self._dataset, self._sizes, self._folder = dataset, sizes, folder
        cache = dataset.workload.cache
        self.found = [] if folder is None else folder.entries()
        self.planned = PlannedCache(
            "none" if folder is None else cache.policy,
            0 if folder is None else folder.capacity,
            round_up(sizes),  # capacity is counted in blocks of a drive
            content=[] if cache.warm is False else self.found,
        )
        self._num_kept = len(self.planned.content)
        self.copies = self.planned.fill_up() if cache.warm is True else []
        """File and generation of what is copied before the epochs."""

    def one_drive(self) -> list[Finding]:
        """Return a note if the origin and the cache are on the same drive."""
        if self._folder is None:
            return []
        folders = self._dataset.folder, self._folder.path
        drives = [{drive["name"] for drive in find_host(each)["drives"]} for each in folders]
        both = sorted(drives[0] & drives[1])
        if not both:
            return []
        slower = self._dataset.workload.origin.read_bandwidth is not None
        return [note("cache_on_data_drive", drives=both, misses_are_slower=slower)]

    def epoch(self, visits: Visits) -> tuple[EpochHits, EpochForecast]:
        """Return what the cache does in each visit of an epoch, and what that is in bytes."""
        workload, layout = self._dataset.workload, self._dataset.layout
        with planning(workload.cache.policy):
            hits = self.planned.epoch(visits.files.tolist(), fills=workload.cache.fill != "off")
        whole, admitted = self._sizes[visits.files], hits.admitted >= 0
        each = layout.samples_per_file if layout.counts is None else layout.counts[visits.files]
        asked = whole * visits.num_samples // each  # its samples' share
        hit = int(asked[hits.hits].sum())
        return hits, EpochForecast(
            hit_share=hit / max(int(asked.sum()), 1),
            origin=int(np.where(admitted, whole, asked)[~hits.hits].sum()),
            hit=hit,
            written=int(whole[admitted].sum()),
        )

    def describe(self) -> Finding:
        """Return the folder, its policy and its content, and how the origin is emulated."""
        cache, slow = self._dataset.workload.cache, emulates(self._dataset.workload)
        folder, copied = self._folder, None
        if self.copies:
            copied = sum(int(self._sizes[file]) for file, _ in self.copies)
        return note(
            "cache_opened",
            folder=None if folder is None else str(folder.path),
            capacity_bytes=None if folder is None else folder.capacity,
            files=None if folder is None else len(folder.blocks),
            dataset_bytes=None if folder is None else int(folder.blocks.sum()),
            free_bytes=None if folder is None else folder.free_bytes,
            policy=cache.policy,
            fill=cache.fill,
            kept=self._num_kept,
            origin=None if slow is None else slow.fields,
            copied_bytes=copied,
        )


def visits_of(dataset: Dataset, plan: EpochPlan, accelerators: Sequence[int]) -> Visits:
    """Return the visits of an epoch by the workers of one host's accelerators."""
    num_streams = dataset.workload.reader.num_streams
    return find_visits(plan, dataset.layout, accelerators, num_streams=num_streams)


class HostCache:
    """The cache of this rank's host."""

    def __init__(self, dataset: Dataset, world: World, own: range) -> None:
        """`own`: the accelerators of this rank. The ranks of a host wait for its first one.

        Raises:
            WorkloadError: cache.folder or cache.capacity is refused.
            DatasetError: a file of the dataset is missing.
            RunError: the folder cannot be written.
        """
        self._world = world
        self._folder: CacheFolder | None = None
        self._contents: CacheContents
        self._copies: list[tuple[int, int]] = []
        self.notes: list[Finding] = []
        self._sizes = file_sizes(dataset)
        self._state: SharedCacheState | None = None
        try:
            if world.local_rank == 0:
                self._prepare(dataset)
            path = "" if self._state is None else self._state.path
            everyone = world.all_gather((world.host_index, own, path, self._copies))
        except BaseException:
            self.close()
            raise
        here = [each for each in everyone if each[0] == world.host_index]
        self._accelerators = [number for _, owned, *_ in here for number in owned]
        [(path, self._copies)] = [(path, copies) for *_, path, copies in here if path]
        self.dataset = replace(dataset, cache_state=path)
        self._begun: Samples = np.zeros(8, np.int64)
        self._planned: EpochForecast
        self._copied = 0.0, 0.0
        self._is_settled = False
        """Whether all entries of the folder are noted as being on the drive."""
        self._first_new = 0
        """The first generation whose entries may still have pages in the page cache."""
        self.epochs: list[EpochCounts] = []
        self.preload: Preload | None = None
        self._one_drive = False

    def _prepare(self, dataset: Dataset) -> None:
        """Claim and clean the folder, decide what is copied before the epochs, make the memory."""
        workload = dataset.workload
        if workload.cache.folder is not None:
            self._folder = CacheFolder(workload, dataset.layout, self._sizes)
        self._contents = CacheContents(dataset, self._sizes, self._folder)
        self.notes += self._contents.one_drive()
        self._one_drive = bool(self.notes)
        self._copies = self._contents.copies
        if self._folder is not None:
            if self._folder.is_lost and workload.cache.warm is not False:
                self.notes.append(note("cache_emptied", folder=str(self._folder.path)))
            for entry in {*self._contents.found} - {*self._contents.planned.content}:
                self._folder.remove(*entry)
        num_rows = num_accelerators(workload, self._world) * workload.reader.num_streams
        self._state = SharedCacheState.make(num_rows)

    def copy(self, at: OnFile) -> None:
        """Copy this rank's share of what is to be there before the epochs (cache.warm=true).

        `at` is called with each file before it is read.
        """
        mine = self._copies[self._world.local_rank :: self._world.num_local_ranks]
        self._copied = _copy(self.dataset, mine, at)

    def copied(self, seconds: float, at: OnFile) -> None:
        """Note that all ranks have copied their shares, in so many seconds."""
        self._settle(at)
        world = self._world
        copied = world.all_gather((world.host_index, *self._copied))
        reading = sum(read for host, read, _ in copied if host == world.host_index)
        writing = sum(write for host, _, write in copied if host == world.host_index)
        if world.local_rank == 0:
            self.preload = Preload(
                num_files=len(self._copies),
                num_bytes=sum(int(self._sizes[file]) for file, _ in self._copies),
                seconds=seconds,
                read_share=reading / max(reading + writing, 1e-9),
            )

    def begin(self, plan: EpochPlan) -> EpochPlan:
        """Plan an epoch; return its plan with the visits. A barrier must follow."""
        visits = visits_of(self.dataset, plan, self._accelerators)
        if self._state is not None:
            hits, self._planned = self._contents.epoch(visits)
            if self._folder is not None and self._is_settled and self._planned.written:
                self._folder.unsettle()
                self._is_settled = False
            self._begun = self._state.counters.sum(axis=0)
            self._state.begin(hits, visits.num_samples)
        return visits.plan

    def end(self, at: OnFile) -> None:
        """Wait until all files are in the cache, and count the epoch.

        `at` is called each time another file is there.

        Raises:
            RunError: a file could not be written.
        """
        if self._state is None:
            return
        begin = perf_counter()
        self._state.wait_for_fills(at)
        self._settle(at)
        settled = perf_counter() - begin
        counts = (self._state.counters.sum(axis=0) - self._begun).tolist()
        self.epochs.append(
            EpochCounts(
                asked=counts[ASKED_BYTES],
                hit=counts[HIT_BYTES],
                planned_hit=self._planned.hit,
                origin=counts[ORIGIN_BYTES],
                cache_read=counts[CACHE_BYTES],
                cache_written=counts[WRITTEN_BYTES],
                settle_seconds=settled,
            )
        )

    def _settle(self, at: OnFile) -> None:
        """Bring what was written to the drive, and none of it stays in the page cache.

        A file is written past it, but cut to its size there: so its last page is in memory.
        """
        if self._folder is None or self._is_settled:
            return
        self._folder.settle()
        folder, first = str(self._folder.path), self._first_new
        new = [entry for entry in self._contents.planned.content if entry[1] >= first]
        drop([entry_path(folder, *entry) for entry in new], at=at)
        self._is_settled, self._first_new = True, self._contents.planned.next_generation

    @property
    def written_bytes(self) -> int:
        """Bytes that were written to this host's cache during the epochs; 0 on its other ranks."""
        return sum(epoch.cache_written for epoch in self.epochs)

    def gather(self) -> list[HostCounts] | None:
        """Return on rank 0 what the readers of all hosts did, None on the others."""
        capacity = 0 if self._folder is None else self._folder.capacity
        dataset_bytes = int(self._sizes.sum())
        counts = HostCounts(
            self._world.host, capacity, dataset_bytes, self.preload, self.epochs, self._one_drive
        )
        hosts = self._world.gather(None if self._state is None else counts)
        return None if hosts is None else [host for host in hosts if host is not None]

    def describe(self) -> Finding | None:
        """Return what the cache is; None on all but the first rank of a host."""
        return None if self._state is None else self._contents.describe()

    def close(self) -> None:
        """Give the folder and the memory back."""
        if self._folder is not None:
            self._folder.close()
        if self._state is not None:
            self._state.close()


def _copy(dataset: Dataset, entries: Sequence[tuple[int, int]], at: OnFile) -> tuple[float, float]:
    """Copy files into the cache; return the seconds that threads spent reading and writing."""
    workload, folder = dataset.workload, dataset.workload.cache.folder
    assert folder is not None
    odirect = False if workload.reader.decode == "library" else workload.reader.odirect
    direct = settle_direct(dataset.folder / dataset.layout.path(0), odirect)
    left, lock, errors = iter(entries), threading.Lock(), list[Exception]()
    stopped, seconds = threading.Event(), [0.0, 0.0]

    def work() -> None:
        state = SharedCacheState(dataset.cache_state)
        origin = Origin(workload, state, direct=direct)
        try:
            while not stopped.is_set():
                with lock:
                    entry = next(left, None)
                if entry is None:
                    return
                path = f"{dataset.folder}/{dataset.layout.path(entry[0])}"
                at(path)
                begin = perf_counter()
                fetched = origin.fetch(path)
                middle = perf_counter()
                try:
                    write_entry(entry_path(folder, *entry), fetched.memory, fetched.num_bytes)
                finally:
                    fetched.close()
                written = perf_counter()
                with lock:
                    seconds[0] += middle - begin
                    seconds[1] += written - middle
        except Exception as error:
            errors.append(error)
            stopped.set()
        finally:
            at("")
            origin.close()
            state.close()

    num = min(_MOST_COPYING, len(entries), 8 * workload.reader.num_streams)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(num)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        stopped.set()  # after an interrupt nobody holds the folder
    if errors:
        raise errors[0]
    return seconds[0], seconds[1]


@dataclass(frozen=True)
class CacheForecast:
    """The cache of rank 0's host, and what it will do."""

    introduction: Finding
    num_epochs: int
    """Of a run."""
    epochs: list[EpochForecast]
    """The first ones; those behind the last are taken to be like it."""
    notes: list[Finding]

    def origin_bytes(self, epoch: int) -> int:
        """Return what an epoch reads from the origin."""
        return self.epochs[min(epoch, len(self.epochs) - 1)].origin


def forecast_cache(dataset: Dataset, world: World, own: range, total: int) -> CacheForecast:
    """Return what the cache of rank 0's host will do; all ranks call it.

    `own`: the accelerators of this rank, of `total`.

    Raises:
        WorkloadError: cache.folder or cache.capacity is refused.
        DatasetError: a file of the dataset is missing.
    """
    everyone = world.all_gather((world.host_index, own))
    here = [number for host, owned in everyone if host == 0 for number in owned]
    return world.on_first(lambda: _forecast(dataset, here, total))


def _forecast(dataset: Dataset, accelerators: list[int], total: int) -> CacheForecast:
    workload, layout, sizes = dataset.workload, dataset.layout, file_sizes(dataset)
    folder = None
    if workload.cache.folder is not None:
        folder = CacheFolder(workload, layout, sizes, claim=False)
    cache, epochs = CacheContents(dataset, sizes, folder), []
    introduction = cache.describe()
    for epoch in range(min(workload.train.epochs, _MOST_EPOCHS)):
        plan = make_plan(workload, layout, num_accelerators=total, epoch=epoch)
        epochs.append(cache.epoch(visits_of(dataset, plan, accelerators))[1])
    return CacheForecast(introduction, workload.train.epochs, epochs, cache.one_drive())
