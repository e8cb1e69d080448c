"""One run: finds the dataset, replays the epochs, and writes the outcome into the run's folder.

The command line, the sizing and library users call it. All ranks call every function here; rank 0
alone makes the folder, writes the summary and shows progress.
"""

import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial, reduce
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import numpy as np

from dlemu.checkpoint.in_run import (
    OwnRank,
    RunCheckpoints,
    check_checkpoints,
    combine_checkpoints,
    due_after,
    num_due,
    open_checkpoints,
)
from dlemu.clock import Clock, WallClock, after_launch
from dlemu.config.model import Workload
from dlemu.datagen.survey import find_dataset
from dlemu.dataset.layout import Dataset, Layout
from dlemu.dataset.plan import EpochPlan, count_steps, make_plan
from dlemu.dataset.rule import accelerators_of, num_accelerators
from dlemu.errors import DatasetError, DlemuError, RunError, WorkloadError
from dlemu.host.processes import memory_bytes
from dlemu.judge.bottleneck import find_run_limit
from dlemu.judge.evidence import Evidence, cache_fields, combine
from dlemu.judge.folders import Record, begun, first_fields, keep_leftovers, make
from dlemu.judge.metrics import Metrics, measure_sums
from dlemu.judge.outcome import Outcome, with_metrics
from dlemu.judge.records import (
    Steps,
    append_steps,
    host_file,
    map_steps,
    named,
    steps_file,
    write_steps,
)
from dlemu.judge.series import SERIES, write_series
from dlemu.judge.summary import DatasetFields, Measured, Summary, header, hosts_of, time_of_day
from dlemu.judge.sums import Ends, Rule, Sums, both_ends, ends_of, sum_all, sum_up
from dlemu.loaders import Batch, Loader, check_loader, open_loader
from dlemu.loaders.cache.host import (
    HostCache,
    HostCounts,
    check_cache,
    emulates,
    file_sizes,
    uses_cache,
)
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import Alone, World
from dlemu.run.cold import ColdStart
from dlemu.run.live import Live, Reports, RunMonitor, StepsSoFar, watched_places
from dlemu.run.replay import (
    check_blocks,
    draw_computation_times,
    new_steps,
    replay_blocks,
    replay_epoch,
)
from dlemu.storage.files import count_linked, write_atomically
from dlemu.terminal import Say, say, silent
from dlemu.units import PAGE_BYTES, ceil_div, format_rate, round_up

_PORTION_BYTES = 1 << 28
"""Of records that rank 0 takes from other hosts at a time."""
_LOOKED_AT = 64
"""Files that are looked at, for links and for what a format adds to its samples."""
OnRun = Callable[[Path, Summary], None]
"""Is given a run's folder and its document."""


def check_job(workload: Workload, world: World) -> None:
    """Refuse what this rank's host cannot do, before anything is written, read or made cold.

    Raises:
        WorkloadError: a package or a GPU is missing, or too few files may be open.
    """
    check_cache(workload)
    watched_places(workload)
    total = num_accelerators(workload, world)
    own = accelerators_of(world.rank, world.num_ranks, total)
    if workload.workflow.checkpoint:
        check_checkpoints(workload, total)
    if own:
        check_loader(workload, len(own))
        if workload.train.compute == "gpu":
            _find_gpus(workload, own)


def run_job(
    workload: Workload,
    *,
    world: World | None = None,
    clock: Clock | None = None,
    say: Say = say,
    layout: Layout | None = None,
    live: Live | None = None,
    on_cut: OnRun | None = None,
) -> Outcome | None:
    """Replay a workload and return its outcome on rank 0, None on the others.

    Without a `world` there is one rank. With a `layout` its files are read, whatever else lies in
    the data folder. On rank 0 another thread may ask `live` what the run is doing. If the run fails
    after whole epochs, rank 0 calls `on_cut` with what they are worth.

    Raises:
        DlemuError: the workload, its dataset or the run failed; summary.json has the error, too.
    """
    world = world or Alone()
    with Watchdog(workload.output.stall_seconds, world) as watchdog:
        live = live or Live()
        with live.run(lambda: watchdog.doing):
            clock, say = clock or WallClock.calibrate(), say if world.rank == 0 else silent
            return _Run(workload, world, clock, say, watchdog, live).run(layout, on_cut)


@dataclass
class _Run:
    """A run on this rank: its stages are methods, in the order in which `run` calls them."""

    _workload: Workload
    _world: World
    _clock: Clock
    _say: Say
    _watchdog: Watchdog
    _live: Live
    _checkpoints: RunCheckpoints | None = None
    _cache: HostCache | None = None
    """The cache, if there is one."""
    _cached: Sequence[HostCounts] | None = None
    """What the caches of all hosts counted, on rank 0."""
    _is_first = True
    """Whether this is the first run of this process."""
    _folder: Path | None = None
    """Of the results, once it is there."""
    _dataset: Dataset = field(init=False)
    _record: Record = field(init=False)
    _summary: Summary = field(init=False)

    def __post_init__(self) -> None:
        world = self._world
        self._num_accelerators = num_accelerators(self._workload, world)
        self._own = accelerators_of(world.rank, world.num_ranks, self._num_accelerators)

    def run(self, layout: Layout | None, on_cut: OnRun | None) -> Outcome | None:
        """Do all stages; return the outcome on rank 0, None on the others."""
        self._prepare(layout)
        try:
            with self._recorded() as self._record:
                self._folder = self._record.folder
                self._live.folder = self._live.folder or self._folder
                self._is_first = not self._live.introduced
                if self._is_first:  # of several runs
                    self._live.introduced = True
                    self._say(header(self._summary))
                self._record.write()
                found = self._replay_and_gather()
                return None if found is None else self._judge(*found)
        except BaseException:
            if on_cut is not None and self._world.rank == 0 and self._folder is not None:
                self._show_ended_epochs(self._folder, on_cut)
            raise

    def _prepare(self, layout: Layout | None) -> None:
        """Find the dataset, and refuse what cannot be run before anything is written."""
        world, watchdog = self._world, self._watchdog
        started = first_fields("run", self._workload, world)
        check_job(self._workload, world)
        workload, reader = self._workload, self._workload.reader
        if "random" in (reader.file_shuffle, reader.sample_shuffle):  # a seed of this run's own
            workload = workload.with_keys({"train.seed": world.broadcast(secrets.randbits(31))})
        if layout is None:
            self._dataset = find_dataset(workload, world, watch=watchdog.phase, at=watchdog.at)
        else:
            access = world.on_first(lambda: workload.access)
            self._dataset = Dataset(workload, layout, access=access)
        self._workload = self._dataset.workload
        if world.rank == 0:  # refuses what cannot be planned
            num_steps = self._count_steps()
            if self._workload.workflow.checkpoint:
                check_blocks(self._workload, num_steps)
        self._introduce(started)

    def _introduce(self, fields: Mapping[str, Any]) -> None:
        """Make the summary as it is before the first step, from the `fields` that all jobs have."""
        workload, world, dataset = self._workload, self._world, self._dataset
        folder, found = workload.data_folder, dataset.layout
        notes = [*fields["notes"], *dataset.notes]
        loader = workload.reader.data_loader
        if loader == "tensorflow":
            notes.append(f"reader.data_loader {loader}: read by dlemu's threads in tf.data's order")
        size = found.num_samples * found.mean_bytes
        read = DatasetFields(
            folder=str(folder), format=found.format, num_files=found.num_files, num_bytes=size
        )
        if world.rank == 0 and dataset.access is None:
            few = range(0, found.num_files, ceil_div(found.num_files, _LOOKED_AT))
            with self._watchdog.phase("while looking at some files"):
                read["num_links"] = count_linked(f"{folder}/{found.path(file)}" for file in few)
        system = hosts_of(folder, dataset.access, world, self._watchdog)
        sizes = dict(world.all_gather((world.host_index, (memory_bytes(), os.cpu_count() or 1))))
        own = Summary(
            data_loader=loader,
            decode=workload.reader.decode,
            loop=workload.train.loop,
            hand_over="batch" if workload.hands_over else "none",
            num_accelerators=self._num_accelerators,
            measured={},
            limit=None,
            ignored=list(workload.ignored),
            notes=notes,
            dataset=read,
            system=system,
            # What DLIO's users look for.
            num_files_train=found.num_files,
            num_files_eval=0,
            num_samples_per_file=found.samples_per_file,
            data_size_per_host_GB=size / len(sizes) / 2**30,
            host_memory_GB=[memory / 2**30 for memory, _ in sizes.values()],
            host_cpu_count=[cpus for _, cpus in sizes.values()],
            potential_caching=[int(mem > size / len(sizes)) for mem, _ in sizes.values()],
            epochs=0,
        )
        self._summary = cast(Summary, {**fields, **own})

    @contextmanager
    def _recorded(self) -> Iterator[Record]:
        """Yield the run's record, in a folder that is there on all hosts."""
        world, watch = self._world, self._watchdog
        with (
            begun(self._workload, world, self._summary, self._say, watch=watch) as record,
            ExitStack() as stack,
        ):
            # Hosts that do not share the folder keep their own records until rank 0 gathers them.
            if world.local_rank == 0 and world.rank != 0:
                with watch.phase("while making the output folder"):
                    keep_leftovers(record.folder)
                    stack.enter_context(make(record.folder))
            world.barrier()
            yield record

    def _replay_and_gather(self) -> tuple[Sums, Reports] | None:
        """Run the epochs; return the sums over all steps and what hosts saw, on rank 0."""
        monitor, parts = self._replay()
        sums = gather_sums(self._workload, self._world, parts)
        collect_files(self._world, self._record.folder)
        # Those of all ranks' checkpoints are on rank 0's account, those of a host's cache on its
        # first rank's.
        checkpoints = self._summary.get("checkpoints")
        written = 0 if checkpoints is None else checkpoints["written_bytes"]
        reports = monitor.gather(
            written + (0 if self._cache is None else self._cache.written_bytes)
        )
        if self._cache is not None:
            self._cached = self._cache.gather()
        return None if sums is None or reports is None else (sums, reports)

    def _replay(self) -> tuple[RunMonitor, list[Steps]]:
        """Start cold and run the epochs; return what was seen, and each epoch's own steps."""
        workload, world = self._workload, self._world
        clock, watchdog = self._clock, self._watchdog
        on_gpu = _compute_on_gpu(workload, self._own, clock)
        wait_until = after_launch(
            workload.train.launch_time, on_gpu or clock.sleep_until, clock.now
        )
        compute = watchdog.computing(wait_until, clock)
        parts: list[Steps] = []
        with (
            self._opened_cache(),
            self._open_checkpoints() as self._checkpoints,
            closing(self._open_loader()) as loader,
        ):
            layout, direct = self._dataset.layout, loader.direct
            cold = ColdStart(workload, layout, world, watchdog, self._say, direct)
            cold.make()
            self._say(demand_line(workload, self._num_accelerators))
            with RunMonitor(
                self._dataset, self._record.folder, world, loader, len(self._own), watchdog
            ) as monitor:
                world.barrier()  # the slow starts are over; from now on ranks must come in time
                if self._is_first:
                    monitor.started()
                watchdog.expect(
                    compute=max(
                        workload.train.computation_time.longest, workload.train.launch_time
                    ),
                    prepare=workload.reader.batch_size * workload.reader.preprocess_time.longest,
                )
                for epoch in range(workload.train.epochs):
                    if epoch and workload.drops_each_epoch:
                        replace(cold, say=silent).make()
                    steps = self._replay_epoch(epoch, loader, monitor, compute)
                    parts.append(steps)
                    with self._record.writing():
                        write = append_steps if epoch else write_steps
                        write(self._record.folder, world.rank, steps)
                    if world.rank == 0:  # other ranks may have no accelerator
                        self._say(_epoch_line(epoch, steps, workload))
                if workload.workflow.checkpoint:
                    self._live.does("waiting for the last checkpoint")
                    own = self._checkpoints
                    ended = world.gather(None if own is None else own.finish())
                    if ended is not None:
                        wrote = [each for each in ended if each is not None]
                        found = combine_checkpoints(workload, self._num_accelerators, wrote)
                        self._summary["checkpoints"] = found
                self._live.does("gathering the results")
                most_lost = max(world.all_gather(_lost_share(parts)))
                with watchdog.phase("while probing the drive"):
                    monitor.probe(most_lost)
        return monitor, parts

    @contextmanager
    def _opened_cache(self) -> Iterator[None]:
        """Make the cache, and fill it if it is to be warm; without one do nothing."""
        if not uses_cache(self._workload):
            yield
            return
        with self._watchdog.phase("while preparing the cache"):
            self._cache = HostCache(self._dataset, self._world, self._own)
        with closing(self._cache) as cache:
            self._dataset = cache.dataset
            by_rank = self._world.all_gather(cache.notes)
            notes = list(dict.fromkeys(note for notes in by_rank for note in notes))
            self._summary["notes"] = [*self._summary["notes"], *notes]
            self._say("\n".join([cache.describe(), *(f"note: {note}" for note in notes)]))
            if self._workload.cache.warm is True:
                self._preload(cache)
            yield

    def _preload(self, cache: HostCache) -> None:
        """Fill the caches of all hosts, timed."""
        world, watchdog = self._world, self._watchdog
        world.barrier()
        begin = perf_counter()
        with watchdog.phase("while filling the cache", watchdog.longest_at):
            cache.copy(watchdog.at)
        world.barrier()
        seconds = perf_counter() - begin
        with watchdog.phase("while the last files are written to the cache", lambda: ""):
            cache.copied(seconds, watchdog.at)

    def _open_loader(self) -> Loader:
        if not self._own:
            return _Idle()
        with self._watchdog.phase("while opening the loader"):
            keep = int(self._workload.hands_over)
            loader = open_loader(self._dataset, accelerators=self._own, keep=keep)
        self._watchdog.pids = loader.pids
        return loader

    @contextmanager
    def _open_checkpoints(self) -> Iterator[RunCheckpoints | None]:
        """Yield the checkpoints of the run, None if it writes none."""
        workload = self._workload
        steps = [self._count_steps()] * workload.train.epochs
        if not (workload.workflow.checkpoint and num_due(workload, steps)):
            yield None
            return
        rank = OwnRank(self._world, self._clock, self._watchdog, self._own, self._num_accelerators)
        with open_checkpoints(workload, rank, steps, self._say) as checkpoints:
            self._live.checkpoint = lambda: checkpoints.doing
            try:
                yield checkpoints
            finally:
                self._live.checkpoint = lambda: ""

    def _replay_epoch(
        self,
        epoch: int,
        loader: Loader,
        monitor: RunMonitor,
        compute: Callable[[float], None],
    ) -> Steps:
        """Return the (steps, accelerators) records of an epoch."""
        plan = self._plan(epoch)
        times = draw_computation_times(
            self._workload.train.computation_time,
            num_steps=plan.num_steps,
            accelerators=self._own,
            epoch=epoch,
            seed=self._workload.train.seed,
        )
        records = new_steps(epoch, times)
        watchdog = self._watchdog
        if self._cache is not None:
            plan = self._cache.begin(plan)
        watchdog.barrier()  # a rank that is late is not in the counts
        with ExitStack() as counting:
            own = self._checkpoints
            with watchdog.phase("while reading the drives' counters"):
                monitor.begin(epoch)
                if own is not None:
                    counting.enter_context(own.epoch(records))
            watchdog.barrier()  # no rank reads before every host has its counts
            with watchdog.phase(f"in epoch {epoch + 1}", loader.waiting_for):
                others = 1 if len(self._own) == self._num_accelerators else self._world.num_ranks
                replay = partial(
                    replay_epoch, barrier=watchdog.barrier, clock=self._clock, compute=compute
                )
                batches = loader.epoch(epoch, plan)
                with self._live.epoch(records, self._workload, monitor, others):
                    if own is None:
                        steps = replay(batches, records)
                    else:
                        key = self._workload.checkpoint
                        due = due_after(key, epoch=epoch, num_steps=plan.num_steps)
                        take = partial(own.take, epoch)
                        steps = replay_blocks(batches, records, due, take, replay)
                monitor.end(epoch)
        if self._cache is not None:
            with watchdog.phase("while the last files are written to the cache", lambda: ""):
                self._cache.end(watchdog.at)
        return steps

    def _judge(self, sums: Sums, reports: Reports) -> Outcome:
        """Write and return the outcome, on rank 0."""
        metrics = measure_sums(sums)
        hosts, paths, reads, gets = reports
        needed = needed_ratio(self._dataset)
        seen = combine(
            self._workload, hosts, sums, paths, gets, reads=reads.tolist(), needed=needed
        )
        summary = complete_summary(self._summary, seen, metrics)
        if self._cached:
            emulated = emulates(self._workload)
            cached = cache_fields(self._workload, emulated, self._cached, metrics)
            summary["measured"]["cache"] = cached
        self._summary.update(with_metrics(summary, self._workload, metrics))
        self._write_series()
        self._summary["end"] = time_of_day()
        self._record.write()
        return Outcome(self._record.folder, metrics, self._summary)

    def _write_series(self) -> None:
        """Write series.csv; a run is not lost because of it."""
        try:
            with self._record.writing():
                write_series(self._record.folder, self._record.folder / SERIES)
        except RunError as error:
            self._summary["notes"] = [*self._summary["notes"], f"no {SERIES}: {error}"]

    def _show_ended_epochs(self, folder: Path, on_cut: OnRun) -> None:
        """Show the epochs that all ranks had ended before the run failed, if there are any."""
        with suppress(DlemuError):
            parts = ((str(rank), steps) for rank, steps in map_steps(folder))
            sums = sum_all(parts, Rule.of(self._workload))
            metrics = measure_sums(sums.of_all(self._summary["num_accelerators"]))
            on_cut(folder, with_metrics(self._summary, self._workload, metrics))

    def _plan(self, epoch: int) -> EpochPlan:
        return make_plan(
            self._workload,
            self._dataset.layout,
            num_accelerators=self._num_accelerators,
            epoch=epoch,
            own=self._own if self._cache is None else None,  # a cache needs what its host reads
        )

    def _count_steps(self) -> int:
        return count_steps(
            self._workload, self._dataset.layout, num_accelerators=self._num_accelerators
        )


def gather_sums(workload: Workload, world: World, parts: Sequence[Steps]) -> Sums | None:
    """Return the sums over the steps of all ranks on rank 0, None on the others.

    `parts` are this rank's records. The records of others stay where they are.
    """
    ends: Ends = {}
    if workload.workflow.checkpoint:
        own = reduce(both_ends, map(ends_of, parts), ends)
        ends = world.broadcast(world.reduce(own, both_ends) or own)
    name, rule = f"rank {world.rank} on host {world.host}", Rule.of(workload)
    sums = (sum_up(part, rule, ends, name) for part in parts)
    return world.reduce(reduce(Sums.joined, sums, Sums(rule, ())), Sums.joined)


def collect_files(world: World, folder: Path) -> None:
    """Write into rank 0's folder the records of hosts that do not share it."""
    if world.num_hosts == 1:
        return
    seen = world.on_first(lambda: {path.name for path in folder.iterdir()})
    own = [steps_file(folder, world.rank)]
    if world.local_rank == 0:
        own.append(host_file(folder, world.rank))
    own = [path for path in own if path.name not in seen]
    sizes = world.all_gather(sum(path.stat().st_size for path in own))
    for ranks in portions(sizes, _PORTION_BYTES):
        sent = {path.name: path.read_bytes() for path in own if world.rank in ranks}
        for files in world.gather(sent) or ():
            for name, content in files.items():
                with named(folder / name):
                    write_atomically(folder / name, content, sync=False)


def portions(sizes: Sequence[int], most: int) -> Iterator[range]:
    """Yield the ranks in portions of at most so many bytes, or of one rank.

    `sizes` has the bytes of each rank. Ranks without any may be in none.
    """
    first, taken = 0, 0
    for rank, size in enumerate([*sizes, 0]):
        last = rank == len(sizes)
        if taken and (last or taken + size > most):
            yield range(first, rank)
            first, taken = rank, 0
        taken += size


def complete_summary(summary: Summary, seen: Evidence, metrics: Metrics) -> Summary:
    """Return the summary with what was measured and what the limit was."""
    measured: Measured = {
        **seen.measured,
        "read_bytes": metrics.read_bytes,
        "read_bytes_per_second": metrics.read_bytes_per_second,
    }
    return {
        **summary,
        "status": "complete",
        "measured": measured,
        "limit": asdict(find_run_limit(seen)),
        "notes": [*summary["notes"], *seen.notes],
    }


def needed_ratio(dataset: Dataset) -> float:
    """Return the bytes that reading needs at most for a byte of samples; inf: that is not known.

    Headers count, and whole pages: of files that are read from end to end, else of each sample
    with its file's head, and in parquet of each column of a row group.
    """
    workload, each = dataset.workload, dataset.layout.samples_per_file
    layout = replace(dataset.layout, num_files=min(dataset.layout.num_files, _LOOKED_AT))
    if each > 1 and not (workload.streamed or workload.by_tf_data or layout.columns):
        return (layout.mean_bytes + 3 * PAGE_BYTES) / layout.mean_bytes
    try:
        files = file_sizes(replace(dataset, layout=layout))
    except DatasetError:  # a bucket, or a file that is gone
        return math.inf
    samples = float(layout.sizes(np.arange(layout.num_samples)).sum())
    needed = float(round_up(files).sum())
    if layout.columns:
        chunks = len(workload.dataset.read_columns) * ceil_div(each, layout.row_group_size)
        unread = each * (workload.dataset.stored_bytes - layout.mean_bytes)
        needed += layout.num_files * (2 * PAGE_BYTES * chunks - unread)
    return needed / samples


def demand_line(workload: Workload, num_accelerators: int) -> str:
    """Return what the accelerators ask of the storage at AU 100 %."""
    one = workload.demand
    if one == float("inf"):
        return "demand: no computation time, so as much as the storage gives"
    return (
        f"demand: {format_rate(one)} an accelerator, {format_rate(one * num_accelerators)} in all "
        "at AU 100%"
    )


def _compute_on_gpu(workload: Workload, own: range, clock: Clock) -> Callable[[float], None] | None:
    """Return what keeps this rank's GPUs busy until a deadline, None where compute is a sleep."""
    if workload.train.compute == "sleep" or not own:
        return None
    from dlemu.run.compute import gpu_compute

    return gpu_compute(_find_gpus(workload, own), clock)


def _find_gpus(workload: Workload, own: range) -> list[int]:
    """Return the GPUs that compute for a rank's accelerators: dealt out in turn, as DALI's are."""
    from dlemu.run.compute import find_torch
    from dlemu.storage.gpu.cuda import num_gpus

    try:
        num = workload.dali.gpus_per_host or num_gpus()
    except RunError as error:
        raise WorkloadError(f"train.compute=gpu: {error}; or set train.compute=sleep") from None
    gpus = sorted({accelerator % max(1, num) for accelerator in own})
    find_torch(gpus)
    return gpus


def _lost_share(parts: Sequence[Steps]) -> float:
    """Return the share (0-1) of the time of this rank's accelerators in which they waited."""
    lost = sum(float(steps["wait"].sum() + steps["barrier"].sum()) for steps in parts)
    computed = sum(float(steps["compute"].sum()) for steps in parts)
    return lost / max(lost + computed, 1e-9)


def _epoch_line(epoch: int, steps: Steps, workload: Workload) -> str:
    seconds = steps["wait"] + steps["compute"] + steps["barrier"]
    samples = steps["num_samples"].sum() / max(seconds.sum(axis=0).max(), 1e-9)
    counted = StepsSoFar(steps, workload.metric)
    counted.look()
    return (
        f"epoch {epoch + 1} of {workload.train.epochs}: {len(steps)} steps, AU "
        f"{counted.au_percentage or 0.0:.2f}% on rank 0, {samples:.2f} samples/s there"
        f"{f' (origin emulated {slow})' if (slow := emulates(workload)) else ''}"
    )


class _Idle(Loader):
    """The loader of a rank that emulates no accelerator: there are more ranks than those."""

    direct = True

    def epoch(self, epoch: int, plan: EpochPlan) -> Iterator[list[Batch]]:
        return iter([[] for _ in range(plan.num_steps)])

    def waiting_for(self) -> str:
        return "has no accelerator to read for"

    def close(self) -> None:
        pass
