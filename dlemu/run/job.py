"""One run: finds the dataset, replays the epochs, and writes the outcome into the run's folder.

The command line, the sizing and library users call it. All ranks call every function here; rank 0
alone makes the folder, writes the summary and shows progress.
"""

import gc
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
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
from dlemu.datagen.counting import SURVEY
from dlemu.datagen.survey import SurveyedLayout, as_found, find_dataset
from dlemu.dataset.layout import Dataset, Layout, needed_ratio
from dlemu.dataset.plan import EpochPlan, count_steps, make_plan
from dlemu.dataset.rule import accelerators_of, num_accelerators, num_processes
from dlemu.errors import DlemuError, RunError
from dlemu.findings import Finding, note
from dlemu.host.processes import memory_bytes
from dlemu.judge.bottleneck import find_run_limit
from dlemu.judge.cache import cache_fields
from dlemu.judge.evidence import Evidence, combine
from dlemu.judge.folders import Record, begun, first_fields, keep_leftovers, make
from dlemu.judge.header import hosts_of
from dlemu.judge.metrics import Metrics, measure_sums
from dlemu.judge.outcome import Outcome, with_metrics
from dlemu.judge.records import Steps, append_steps, map_steps, write_json, write_steps
from dlemu.judge.series import SERIES, steady_rate, write_series
from dlemu.judge.steady import Steadiness
from dlemu.judge.summary import (
    CheckpointFields,
    DatasetFields,
    Measured,
    Summary,
    time_of_day,
)
from dlemu.judge.sums import RankName, Rule, Sums, sum_all
from dlemu.loaders import Batch, Loader, check_loader, check_workers_memory, open_loader
from dlemu.loaders.cache.host import (
    HostCache,
    HostCounts,
    check_cache,
    emulates,
    uses_cache,
)
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import Alone, World
from dlemu.report.words import cache_line, note_line, sentence, telling
from dlemu.report.words.places import facts_of, lines_of
from dlemu.run import replay
from dlemu.run.cold import ColdStart
from dlemu.run.compute import compute_on_gpus, find_compute_gpus
from dlemu.run.gather import collect_files, gather_sums
from dlemu.run.live import Live, Reports, RunMonitor, StepsSoFar, watched_places
from dlemu.run.replay import (
    check_blocks,
    draw_computation_times,
    new_steps,
    replay_blocks,
    replay_epoch,
    with_allreduce,
)
from dlemu.run.workers import is_long_enough, workers_of
from dlemu.storage.files import count_linked
from dlemu.terminal import Say, say, silent
from dlemu.units import ceil_div

_MANY_LEFT_OUT = 0.05
"""An epoch that leaves out at least this share of the samples says so."""
_LOOKED_AT = 64
"""Files that are looked at for links."""
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
    if (processes := num_processes(workload, world)) > 1:
        own = accelerators_of(0, processes, total)
    if workload.workflow.checkpoint:
        check_checkpoints(workload, total)
    if own:
        check_loader(workload, len(own))
        check_workers_memory(workload, ceil_div(total, world.num_hosts))
        if workload.train.compute == "gpu":
            find_compute_gpus(workload, own)


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
    if (num := num_processes(workload, world)) > 1:
        from dlemu.ranks.local import processes  # which loads multiprocessing

        workload = workload.with_keys({"num_accelerators": num_accelerators(workload, world)})
        with processes(num, f"{__name__}:{run_rank.__name__}", workload, layout) as world:
            return run_job(
                workload,
                world=world,
                clock=clock,
                say=say,
                layout=layout,
                live=live,
                on_cut=on_cut,
            )
    with Watchdog(workload.output.stall_seconds, world) as watchdog:
        live = live or Live()
        with live.run(lambda: watchdog.doing):
            clock, say = clock or WallClock.calibrate(), say if world.rank == 0 else silent
            started = first_fields("run", workload, world)
            dataset = _prepare(workload, world, watchdog, layout)
            run = _Run(dataset, world, clock, say, watchdog, live, looked=layout is None)
            return run.carry_out(run.introduce(started), on_cut)


def keep_survey(dataset: Dataset, path: Path) -> None:
    """Write what was found of a dataset without a manifest, beside results, never into its folder.

    Nothing is written of a dataset of dlemu's.
    """
    if isinstance(dataset.layout, SurveyedLayout):
        write_json(path, dataset.layout.described(dataset.folder))


def run_rank(world: World, workload: Workload, layout: Layout | None) -> None:
    """Be one of the other ranks of `run_job`."""
    run_job(workload, world=world, layout=layout)


def _prepare(
    workload: Workload, world: World, watchdog: Watchdog, layout: Layout | None
) -> Dataset:
    """Return the dataset; refuse what cannot be run before anything is written."""
    check_job(workload, world)
    reader = workload.reader
    if "random" in (reader.file_shuffle, reader.sample_shuffle):  # a seed of this run's own
        workload = workload.with_keys({"train.seed": world.broadcast(secrets.randbits(31))})
    if layout is None:
        dataset = find_dataset(workload, world, watch=watchdog.phase, at=watchdog.at)
    else:
        access = world.on_first(lambda: workload.access)
        dataset = as_found(workload, layout, access)
    if world.rank == 0:  # refuses what cannot be planned
        num_steps = _count_steps(dataset, num_accelerators(dataset.workload, world))
        if workload.workflow.checkpoint:
            check_blocks(dataset.workload, num_steps)
    return dataset


@dataclass(frozen=True)
class _Run:
    """A run on this rank, once its dataset is known. Each step hands on what it found."""

    dataset: Dataset
    world: World
    clock: Clock
    say: Say
    watchdog: Watchdog
    live: Live
    looked: bool
    """Whether the run itself has looked at the dataset."""

    @property
    def workload(self) -> Workload:
        return self.dataset.workload

    @cached_property
    def num_accelerators(self) -> int:
        """Of all ranks."""
        return num_accelerators(self.workload, self.world)

    @cached_property
    def own(self) -> range:
        """The accelerators of this rank."""
        return accelerators_of(self.world.rank, self.world.num_ranks, self.num_accelerators)

    def introduce(self, started: Mapping[str, Any]) -> Summary:
        """Return the summary as it is before the first step; all jobs have the fields `started`."""
        workload, world, dataset = self.workload, self.world, self.dataset
        folder, found = workload.data_folder, dataset.layout
        notes = [*started["notes"], *dataset.notes]
        loader = workload.reader.data_loader
        if workload.by_tf_data:
            notes.append(note("read_in_tf_data_order", data_loader=loader).fields)
        if world.rank == 0 and (left := self._left_out()) is not None:
            notes.append(left.fields)
        size = found.num_samples * found.mean_bytes
        read = DatasetFields(
            folder=str(folder), format=found.format, num_files=found.num_files, num_bytes=size
        )
        if world.rank == 0 and dataset.place.has_paths:
            few = range(0, found.num_files, ceil_div(found.num_files, _LOOKED_AT))
            with self.watchdog.phase("looking at some files"):
                read["num_links"] = count_linked(f"{folder}/{found.path(file)}" for file in few)
        system = hosts_of(dataset.place, world, self.watchdog)
        sizes = dict(world.all_gather((world.host_index, (memory_bytes(), os.cpu_count() or 1))))
        own = Summary(
            workers=world.on_first(self._workers),
            data_loader=loader,
            decode=workload.reader.decode,
            loop=workload.train.loop,
            hand_over="batch" if workload.hands_over else "none",
            worker_cost=workload.reader.cost if workload.reader.loader.is_dataloader else "",
            num_accelerators=self.num_accelerators,
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
        return cast(Summary, {**started, **own})

    def _left_out(self) -> Finding | None:
        """Return a note if many samples do not fill the last step of an epoch."""
        workload, samples = self.workload, self.dataset.layout.num_samples
        if workload.train.total_training_steps != -1:
            return None
        step = workload.reader.batch_size * self.num_accelerators
        left = samples - step * _count_steps(self.dataset, self.num_accelerators)
        if left < _MANY_LEFT_OUT * samples:
            return None
        return note("samples_left_out", left=left, num_samples=samples, step=step)

    def _workers(self) -> dict[str, Any]:
        """Return what a plain DataLoader's workers make on this host."""
        each = ceil_div(self.num_accelerators, self.world.num_hosts)
        timed = is_long_enough(self.workload, _count_steps(self.dataset, self.num_accelerators))
        with self.watchdog.phase("timing the workers of a DataLoader"):
            return workers_of(self.workload, each, timed=timed)

    def carry_out(self, summary: Summary, on_cut: OnRun | None) -> Outcome | None:
        """Do the run, of which rank 0 keeps `summary`; return its outcome there, else None."""
        live, folder = self.live, None
        try:
            with self._recorded(summary) as record:
                folder = record.folder
                live.folder = live.folder or folder
                is_first, live.introduced = not live.introduced, True  # of several runs
                if is_first:
                    self.say(lines_of(facts_of(summary)))
                record.write()
                self._keep_survey(folder / SURVEY)
                with self.dataset.remedies():
                    replayed = self._replay(record, is_first=is_first)
                gathered = self._gather(folder, replayed)
                return None if gathered is None else self._judge(record, gathered)
        except BaseException:
            if on_cut is not None and self.world.rank == 0 and folder is not None:
                _show_ended_epochs(self.workload, folder, summary, on_cut)
            raise

    def _keep_survey(self, path: Path) -> None:
        """Write what was found of a dataset without a manifest; a search keeps it for its runs."""
        if self.world.rank == 0 and self.looked:
            with self.watchdog.phase(f"writing to {path.parent}"):
                keep_survey(self.dataset, path)

    @contextmanager
    def _recorded(self, summary: Summary) -> Iterator[Record]:
        """Yield the run's record, in a folder that is there on all hosts."""
        world, watch = self.world, self.watchdog
        with (
            begun(self.workload, world, summary, telling(self.say), watch=watch) as record,
            ExitStack() as stack,
        ):
            # Hosts that do not share the folder keep their own records until rank 0 gathers them.
            if world.local_rank == 0 and world.rank != 0:
                with watch.phase("making the output folder"):
                    keep_leftovers(record.folder)
                    stack.enter_context(make(record.folder))
            world.barrier()
            yield record

    def _replay(self, record: Record, *, is_first: bool) -> "_Replayed":
        """Open all that the epochs need, start cold, and run them."""
        workload, watchdog, clock = self.workload, self.watchdog, self.clock
        on_gpu = compute_on_gpus(workload, self.own, clock)
        launch = 0.0 if on_gpu and workload.train.network else workload.train.launch_time
        wait_until = after_launch(launch, on_gpu or clock.sleep_until, clock.now)
        compute = watchdog.computing(wait_until, clock)
        with (
            _collected_no_more(),
            self._opened_cache(record.summary) as (dataset, cache),
            self._open_checkpoints() as checkpoints,
            closing(self._open_loader(dataset)) as loader,
        ):
            cold = ColdStart(
                workload, dataset.layout, self.world, watchdog, self.say, loader.direct
            )
            cold.make()
            self.say(demand_line(workload, self.num_accelerators))
            with RunMonitor(
                dataset, record.folder, self.world, loader, len(self.own), watchdog
            ) as monitor:
                self.world.barrier()  # slow starts are over; from now on ranks must come in time
                if is_first:
                    monitor.started()
                watchdog.expect(
                    compute=workload.train.longest_step,
                    prepare=workload.reader.batch_size * workload.reader.preprocess_time.longest,
                )
                barrier = with_allreduce(
                    workload.train.allreduce_time,
                    watchdog.barrier,
                    lambda: self.world.opened,
                    clock,
                )
                epochs = _Epochs(self, loader, monitor, compute, barrier, cache, checkpoints)
                parts = epochs.replay(record, cold)
                self._measure_ceiling(record.summary, compute, barrier)
                if workload.workflow.checkpoint:
                    self._finish_checkpoints(checkpoints, record.summary)
                self.live.does("gathering the results")
                lost = _lost_share(parts, workload.train.allreduce_time)
                most_lost = max(self.world.all_gather(lost))
                with watchdog.phase("probing the drive"):
                    monitor.probe(most_lost)
        return _Replayed(parts, monitor, cache, record.summary.get("checkpoints"))

    def _measure_ceiling(
        self,
        summary: Summary,
        compute: Callable[[float], None],
        barrier: Callable[[], None],
    ) -> None:
        """Note the AU that steps as short as these reach here without any reads."""
        seconds = self.workload.train.computation_time.mean
        if not 0 < seconds < replay.SHORT_STEP_SECONDS:
            return
        num_steps = self.world.broadcast(round(replay.ceiling_seconds / seconds))
        if num_steps > 1:
            if allreduce := self.workload.train.allreduce_time:
                summary["allreduce_seconds"] = allreduce
            summary["ceiling_au_percentage"] = replay.find_ceiling(
                self.own,
                seconds,
                num_steps,
                barrier=barrier,
                clock=self.clock,
                compute=compute,
            )

    @contextmanager
    def _opened_cache(self, summary: Summary) -> Iterator[tuple[Dataset, HostCache | None]]:
        """Yield the dataset as it is read, and the cache before it, filled if it is to be warm."""
        if not uses_cache(self.workload):
            yield self.dataset, None
            return
        with self.watchdog.phase("preparing the cache"):
            made = HostCache(self.dataset, self.world, self.own)
        with closing(made) as cache:
            by_rank = self.world.all_gather(cache.notes)
            notes = list[Mapping[str, Any]]()
            for each in (found.fields for of_rank in by_rank for found in of_rank):
                notes += [] if each in notes else [each]
            summary["notes"] = [*summary["notes"], *notes]
            opened = cache.describe()
            first = [] if opened is None else [cache_line(opened)]
            self.say("\n".join([*first, *map(note_line, notes)]))
            if self.workload.cache.warm is True:
                self._preload(cache)
            yield cache.dataset, cache

    def _preload(self, cache: HostCache) -> None:
        """Fill the caches of all hosts, timed."""
        world, watchdog = self.world, self.watchdog
        world.barrier()
        begin = perf_counter()
        with watchdog.phase("filling the cache", watchdog.longest_at):
            cache.copy(watchdog.at)
        world.barrier()
        seconds = perf_counter() - begin
        with watchdog.phase("writing the last files to the cache", lambda: ""):
            cache.copied(seconds, watchdog.at)

    def _open_loader(self, dataset: Dataset) -> Loader:
        if not self.own:
            return _Idle()
        with self.watchdog.phase("opening the loader"):
            keep = int(self.workload.hands_over)
            loader = open_loader(dataset, accelerators=self.own, keep=keep)
        self.watchdog.pids = loader.pids
        return loader

    @contextmanager
    def _open_checkpoints(self) -> Iterator[RunCheckpoints | None]:
        """Yield the checkpoints of the run, None if it writes none."""
        workload = self.workload
        steps = [_count_steps(self.dataset, self.num_accelerators)] * workload.train.epochs
        if not (workload.workflow.checkpoint and num_due(workload, steps)):
            yield None
            return
        rank = OwnRank(self.world, self.clock, self.watchdog, self.own, self.num_accelerators)
        with open_checkpoints(workload, rank, steps, telling(self.say)) as checkpoints:
            self.live.checkpoint = lambda: checkpoints.in_writing
            try:
                yield checkpoints
            finally:
                self.live.checkpoint = lambda: None

    def _finish_checkpoints(self, own: RunCheckpoints | None, summary: Summary) -> None:
        """Wait for the last checkpoint; rank 0's summary has those of all ranks then."""
        self.live.does("waiting for the last checkpoint")
        ended = self.world.gather(None if own is None else own.finish())
        if ended is not None:
            wrote = [each for each in ended if each is not None]
            found = combine_checkpoints(self.workload, self.num_accelerators, wrote)
            summary["checkpoints"] = found

    def _gather(self, folder: Path, replayed: "_Replayed") -> "_Gathered | None":
        """Return on rank 0 what all ranks measured and all hosts saw, None on the others."""
        sums = gather_sums(self.workload, self.world, replayed.parts)
        collect_files(self.world, folder)
        # Those of all ranks' checkpoints are on rank 0's account, those of a host's cache on its
        # first rank's.
        cache, checkpoints = replayed.cache, replayed.checkpoints
        written = 0 if checkpoints is None else checkpoints["written_bytes"]
        reports = replayed.monitor.gather(written + (0 if cache is None else cache.written_bytes))
        cached = None if cache is None else cache.gather()
        return None if sums is None or reports is None else _Gathered(sums, reports, cached)

    def _judge(self, record: Record, gathered: "_Gathered") -> Outcome:
        """Write and return the outcome, on rank 0."""
        workload, sums, summary = self.workload, gathered.sums, record.summary
        metrics = measure_sums(sums)
        hosts, paths, reads, gets = gathered.reports
        needed = needed_ratio(self.dataset)
        seen = combine(workload, hosts, sums, paths, gets, reads=reads.tolist(), needed=needed)
        direct = all(host.direct for host in hosts)
        seen = replace(seen, steady=self._steady_rate(record.folder, direct=direct))
        complete = complete_summary(summary, seen, metrics)
        if gathered.cached:
            cached = cache_fields(workload, emulates(workload), gathered.cached, metrics)
            complete["measured"]["cache"] = cached
        summary.update(with_metrics(complete, workload, metrics))
        try:
            with record.writing():
                write_series(record.folder, record.folder / SERIES)
        except RunError as error:  # a run is not lost because of it
            failed = note("no_series", file=SERIES, error=str(error))
            summary["notes"] = [*summary["notes"], failed.fields]
        summary["end"] = time_of_day()
        record.write()
        return Outcome(record.folder, metrics, summary)

    def _steady_rate(self, folder: Path, *, direct: bool) -> Steadiness | None:
        """Return how steadily the storage gave, if the hosts' files tell."""
        with suppress(RunError):
            received = self.dataset.place.witness == "requests"
            return steady_rate(folder, received=received, direct=direct)
        return None


@dataclass(frozen=True)
class _Epochs:
    """The epochs of a run on this rank, and all that is open while they are replayed."""

    run: _Run
    loader: Loader
    monitor: RunMonitor
    compute: Callable[[float], None]
    """Is busy until a moment of the clock."""
    barrier: Callable[[], None]
    """Ends a step: all ranks are there, and the job's all-reduce is over."""
    cache: HostCache | None
    checkpoints: RunCheckpoints | None

    def replay(self, record: Record, cold: ColdStart) -> list[Steps]:
        """Replay all epochs; return the (steps, accelerators) records of each, now in files."""
        run, parts = self.run, list[Steps]()
        for epoch in range(run.workload.train.epochs):
            if epoch and run.workload.drops_each_epoch:
                replace(cold, say=silent).make()
            steps = self._replay(epoch)
            parts.append(steps)
            with record.writing():
                write = append_steps if epoch else write_steps
                write(record.folder, run.world.rank, steps)
            if run.world.rank == 0:  # other ranks may have no accelerator
                run.say(_epoch_line(epoch, steps, run.workload))
        return parts

    def _replay(self, epoch: int) -> Steps:
        run, plan = self.run, self._plan(epoch)
        workload, watchdog = run.workload, run.watchdog
        times = draw_computation_times(
            workload.train.computation_time,
            num_steps=plan.num_steps,
            accelerators=run.own,
            epoch=epoch,
            seed=workload.train.seed,
            shared=workload.train.shared_spread,
        )
        if epoch == 0 and workload.train.first_step_time is not None:
            times[:1] = workload.train.first_step_time
        records = new_steps(epoch, times)
        if self.cache is not None:
            plan = self.cache.begin(plan)
        watchdog.barrier()  # a rank that is late is not in the counts
        with ExitStack() as counting:
            own = self.checkpoints
            with watchdog.phase("reading the drives' counters"):
                self.monitor.begin(epoch)
                if own is not None:
                    counting.enter_context(own.epoch(records))
            watchdog.barrier()  # no rank reads before every host has its counts
            with watchdog.phase(f"replaying epoch {epoch + 1}", self.loader.waiting_for):
                others = 1 if len(run.own) == run.num_accelerators else run.world.num_ranks
                replay = partial(
                    replay_epoch, barrier=self.barrier, clock=run.clock, compute=self.compute
                )
                batches = self.loader.epoch(epoch, plan)
                with run.live.epoch(records, workload, self.monitor, others):
                    if own is None:
                        steps = replay(batches, records)
                    else:
                        due = due_after(workload.checkpoint, epoch=epoch, num_steps=plan.num_steps)
                        take = partial(own.take, epoch)
                        steps = replay_blocks(batches, records, due, take, replay)
                self.monitor.end(epoch)
        if self.cache is not None:
            with watchdog.phase("writing the last files to the cache", lambda: ""):
                self.cache.end(watchdog.at)
        return steps

    def _plan(self, epoch: int) -> EpochPlan:
        return make_plan(
            self.run.workload,
            self.run.dataset.layout,
            num_accelerators=self.run.num_accelerators,
            epoch=epoch,
            own=self.run.own if self.cache is None else None,  # it needs what its host reads
        )


@dataclass(frozen=True)
class _Replayed:
    """What the epochs left on this rank."""

    parts: Sequence[Steps]
    """Its records of each epoch."""
    monitor: RunMonitor
    cache: HostCache | None
    checkpoints: CheckpointFields | None
    """Of all ranks, on rank 0; None: the run wrote none."""


@dataclass(frozen=True)
class _Gathered:
    """What all ranks measured and all hosts saw, on rank 0."""

    sums: Sums
    reports: Reports
    cached: Sequence[HostCounts] | None
    """What the caches of all hosts counted."""


def complete_summary(summary: Summary, seen: Evidence, metrics: Metrics) -> Summary:
    """Return the summary with what was measured and what the limit was."""
    measured: Measured = {
        **seen.measured,
        "read_bytes": metrics.read_bytes,
        "read_bytes_per_second": metrics.read_bytes_per_second,
    }
    limit = find_run_limit(seen)
    if limit.name == "storage" and seen.steady is not None:
        measured["steady"] = seen.steady.fields
    return {
        **summary,
        "status": "complete",
        "measured": measured,
        "limit": asdict(limit),
        "notes": [*summary["notes"], *seen.notes],
    }


def demand_line(workload: Workload, num_accelerators: int) -> str:
    """Return what the accelerators ask of the storage at AU 100 %."""
    one = workload.demand
    if one == float("inf"):
        return sentence(note("demand_without_bound"))
    whole = one * num_accelerators
    return sentence(note("demand", bytes_per_second=one, whole_bytes_per_second=whole))


@contextmanager
def _collected_no_more() -> Iterator[None]:
    """Let Python's garbage collector leave alone what is there already.

    Imported modules have tens of thousands of objects. A full collection looks at all of them, and
    no thread of the process runs meanwhile: for 20 to 40 ms, ten steps of CosmoFlow.
    """
    was_frozen = gc.get_freeze_count() > 0
    gc.freeze()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()


def _show_ended_epochs(workload: Workload, folder: Path, summary: Summary, on_cut: OnRun) -> None:
    """Show the epochs that all ranks had ended before the run failed, if there are any."""
    with suppress(DlemuError):
        parts = ((RankName(rank), steps) for rank, steps in map_steps(folder))
        sums = sum_all(parts, Rule.of(workload))
        metrics = measure_sums(sums.of_all(summary["num_accelerators"]))
        on_cut(folder, with_metrics(summary, workload, metrics))


def _count_steps(dataset: Dataset, num_accelerators: int) -> int:
    return count_steps(dataset.workload, dataset.layout, num_accelerators=num_accelerators)


def _lost_share(parts: Sequence[Steps], allreduce_time: float) -> float:
    """Return the share (0-1) of the time of this rank's accelerators in which they waited.

    What the job's all-reduce takes is none of it.
    """
    lost = sum(
        float(steps["wait"].sum() + np.maximum(steps["barrier"] - allreduce_time, 0.0).sum())
        for steps in parts
    )
    computed = sum(float(steps["compute"].sum()) for steps in parts)
    return lost / max(lost + computed, 1e-9)


def _epoch_line(epoch: int, steps: Steps, workload: Workload) -> str:
    seconds = steps["wait"] + steps["compute"] + steps["barrier"]
    samples = steps["num_samples"].sum() / max(seconds.sum(axis=0).max(), 1e-9)
    counted = StepsSoFar(steps, workload.metric)
    counted.look()
    found = note(
        "epoch_ended",
        epoch=epoch + 1,
        epochs=workload.train.epochs,
        num_steps=len(steps),
        au_percentage=counted.au_percentage or 0.0,
        samples_per_second=samples,
        emulated_origin=origin.fields if (origin := emulates(workload)) else "",
    )
    return sentence(found)


class _Idle(Loader):
    """The loader of a rank that emulates no accelerator: there are more ranks than those."""

    direct = True

    def epoch(self, epoch: int, plan: EpochPlan) -> Iterator[list[Batch]]:
        return iter([[] for _ in range(plan.num_steps)])

    def waiting_for(self) -> str:
        return "has no accelerator to read for"

    def close(self) -> None:
        pass
