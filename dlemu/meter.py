"""Measures a training loop of one's own, with the records and metrics of a replayed job.

Beside the steps: what the loop read from a folder that is watched, and a workload file of it.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from math import sqrt
from pathlib import Path
from statistics import fmean, median
from time import process_time, thread_time
from typing import Any, Literal, TypeVar

import numpy as np

from dlemu.clock import Clock, WallClock
from dlemu.config.model import Workload, check_workload
from dlemu.config.published import derived_yaml, normal
from dlemu.errors import RunError, WorkloadError
from dlemu.findings import note
from dlemu.host.devices import mount_under, total
from dlemu.host.faults import WorkerFaults, WorkerMemory, memory_of
from dlemu.host.intervals import (
    HostObserver,
    IntervalSummary,
    end_of,
    start_of,
    summarize_interval,
    whole_of,
)
from dlemu.host.network import machine_name, network_name
from dlemu.host.place import find_host
from dlemu.judge.bottleneck import find_run_limit
from dlemu.judge.evidence import Evidence, HostReport, combine
from dlemu.judge.metrics import Metrics, measure_sums
from dlemu.judge.outcome import with_metrics, without_threshold
from dlemu.judge.own_advice import advice_for
from dlemu.judge.records import STEP, Steps
from dlemu.judge.summary import Summary
from dlemu.judge.sums import RankName, Rule, Sums, step_seconds, sum_all
from dlemu.ranks.world import Alone, World
from dlemu.report.run import present_run
from dlemu.report.text import render_text
from dlemu.report.words import told
from dlemu.run.compute import CudaStream, HostStream, StreamClock
from dlemu.run.replay import with_allreduce
from dlemu.storage.counted import PathBytes
from dlemu.storage.gpu.cuda import page_lock_time

B = TypeVar("B")
_NO_CHECKPOINT = 0.0, False
"""`stall` and `writing`: a loop of one's own writes its checkpoints itself, as a part of a step."""


@dataclass(kw_only=True)
class _Step:
    """A step that the device may not have finished: marks on its stream, in their order."""

    stream: StreamClock
    begun: tuple[float, Any]
    """The epoch's start: time on the host's clock, and the mark on the stream."""
    asked: Any
    taken: Any
    step_number: int
    computed: Any = None
    met: Any = None
    spans: list[tuple[Any, Any]] = field(default_factory=list)
    """Start and end of each `computing`; empty: all from `taken` to `computed` is compute."""
    pauses: list[tuple[Any, Any]] = field(default_factory=list)
    """Start and end of each `pause` in this step."""
    pauses_before: list[tuple[Any, Any]] = field(default_factory=list)
    """Of each `pause` between the question for the batch and the batch."""
    paused_before: float = 0.0
    """Seconds of the epoch's pauses before this step."""
    is_open: bool = False
    """Whether the loop asked for no batch after this one, so that the step's end was not seen."""
    batch: Any = None
    """The batch, until it is counted."""
    asked_compute: float | None = None
    """Seconds of emulated compute that were asked for; None: compute is real."""
    counted: tuple[Any, ...] = ()
    """epoch, step, rank, num_samples, num_bytes, num_reads; seconds of read, decode, hand-over."""

    def _paused(self, pauses: Sequence[tuple[Any, Any]]) -> float:
        return sum(self.stream.seconds(*pause) for pause in pauses)

    @property
    def paused(self) -> float:
        """Seconds of all pauses of this step."""
        return self._paused(self.pauses_before) + self._paused(self.pauses)

    def row(self) -> tuple[Any, ...]:
        """Return the record (`records.STEP`); the device must have finished the step."""
        seconds = self.stream.seconds
        moment, mark = self.begun
        body = max(0.0, seconds(self.taken, self.computed) - self._paused(self.pauses))
        wait = max(0.0, seconds(self.asked, self.taken) - self._paused(self.pauses_before))
        compute = sum(seconds(*span) for span in self.spans) if self.spans else body
        return (
            *self.counted[:6],
            moment + seconds(mark, self.asked) - self.paused_before,
            wait,
            body - compute,
            compute,
            seconds(self.computed, self.met),
            compute if self.asked_compute is None else self.asked_compute,
            *self.counted[6:],
            *_NO_CHECKPOINT,
        )


class Meter:
    """Times the steps of one accelerator's loop.

        for epoch in range(2):
            for batch in meter.epoch(loader, epoch, device="cuda"):
                inputs = to_gpu(batch)  # copies, as the loop makes them
                with meter.computing():
                    ...  # the model, its data on the device; or meter.compute(batch), a sleep
            with meter.pause():
                ...  # evaluation, a checkpoint: no part of a step
        print(meter.report())

    With a `world` of several ranks a barrier ends every step, as the exchange of gradients does.
    docs/training_loops.md says what is measured where.
    """

    def __init__(
        self,
        workload: Workload | str = "own_loop",
        *,
        au: float | None = None,
        batch_size: int | None = None,
        sample_bytes: float | None = None,
        folder: str | Path | None = None,
        world: World | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Only metric.au is taken from the workload; the loop itself shows the rest.

        Args:
            workload: the job's own name; then the report tells its AU, and no verdict. Or a
                workload, whose metric.au is to be reached; its dataset and batch are those of loops
                over `make_loader`.
            au: least accelerator utilisation (0-1) that passes, of a job with a name.
            batch_size: samples of a batch. None: a batch's own length.
            sample_bytes: mean bytes of a sample in the files. None: those that the batch tells
                (`num_bytes`), else those of its arrays.
            folder: where the files lie that the loop reads: the report then has what the drives
                gave, and the share of the bytes that came from memory. Each rank makes a meter.
            world: the ranks; None: this process alone.
            clock: the host's clock.

        Raises:
            WorkloadError: batch_size, sample_bytes or au is not above 0, the name is no name, or
                the folder is missing.
        """
        for name, given in (("batch_size", batch_size), ("sample_bytes", sample_bytes), ("au", au)):
            if given is not None and not given > 0:
                raise WorkloadError(f"Meter: {name} must be above 0, got {given}")
        self._is_own = isinstance(workload, str)
        self._has_threshold = not self._is_own or au is not None
        if isinstance(workload, str):
            workload = own_workload(workload, {} if au is None else {"metric": {"au": au}})
        elif au is not None:
            raise WorkloadError("Meter: au is for a job with a name; a workload has metric.au")
        self.workload = workload
        self._batch_size, self._sample_bytes = batch_size, sample_bytes
        self._launches: list[float] = []
        self._spread: str | float = "shared"
        self._world = world or Alone()
        self._folder = None if folder is None else WatchedFolder(Path(folder), self._world)
        self._clock = clock or WallClock.calibrate()
        self._rows: list[tuple[Any, ...]] = []
        self._spans: list[list[float]] = []
        """Of each row, the seconds of each `computing`."""
        self._open: list[bool] = []
        """Of each row, whether its end was not seen."""
        self._paused = 0.0
        """Seconds of pauses before the next row's step, within its epoch."""
        self._under_way: deque[_Step] = deque()
        self._step: _Step | None = None
        self._now: tuple[StreamClock, int, int] | None = None
        """Of the epoch that is measured: its clock, its number, and that of the next step."""
        self._begun: tuple[float, Any] | None = None
        self._asked: Any = None
        self._pauses: list[tuple[Any, Any]] = []
        self._watching = ExitStack()
        self._computing = False
        self._loaded = 0.0
        self._loader: dict[str, Any] = {}
        """What a DataLoader was made with."""
        self._starts: list[float] = []
        """Seconds that a DataLoader took to start a worker, of each epoch that began so."""
        self._faults = WorkerFaults()
        self._cpu: dict[int, float] = {}
        """Of each epoch, CPU seconds of this process, whose workers have their own."""
        self._cpu_in_waits = self._cpu_before = 0.0
        """CPU seconds of the loop's thread in all waits, and its CPU time when it asked."""
        self._timed_by: dict[str, None] = {}
        self._all_emulated = self._by_dlemu = self._of_files = True
        self._generator = np.random.default_rng((workload.train.seed, 0, self._world.rank))

    def epoch(
        self, batches: Iterable[B], epoch: int, *, device: str | StreamClock | None = None
    ) -> Iterator[B]:
        """Yield an epoch's batches and record each step.

        All time between two batches is compute, unless `computing` marks a part of it.

        Args:
            batches: any iterable; its `set_epoch(epoch)` is called first, if it has one.
            epoch: number of the epoch, from 0.
            device: what computes: "cuda", "cuda:1" or a StreamClock. A GPU is timed on the stream
                that is current in the loop, without waiting for it. None: the host's clock times
                the loop. That is right for a model on the CPU, and for one on a GPU only if every
                step waits for the GPU.

        Raises:
            WorkloadError: the epoch was recorded already, PyTorch is missing, or sees no such
                device.
        """
        return self._watched(batches, epoch, self._stream(epoch, device))

    def _stream(self, epoch: int, device: str | StreamClock | None) -> StreamClock:
        """Return the clock of a device for an epoch that has no records yet."""
        self._end_open()
        if any(row[0] == epoch for row in self._rows):
            raise WorkloadError(f"Meter: epoch {epoch} was recorded already; take another number")
        stream: StreamClock = HostStream(self._clock)
        if device is not None:
            stream = device if isinstance(device, StreamClock) else CudaStream(str(device))
        self._timed_by[stream.name] = None
        return stream

    def _watched(self, batches: Iterable[B], epoch: int, stream: StreamClock) -> Iterator[B]:
        set_epoch = getattr(batches, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        self._begin(epoch, stream, batches)
        try:
            before = self._clock.now()
            iterator = iter(batches)
            self._note_start(self._clock.now() - before)
            self._faults.begin(batches, iterator)
            for batch in iterator:
                self.take(batch)
                yield batch
                self.ask()
        finally:  # also where the loop has left: `break`, or an error in it
            if self._now is not None and self._now[1] == epoch:  # not where a later one runs
                self.end()

    def begin(
        self, epoch: int, *, device: str | StreamClock | None = None, loader: object = None
    ) -> None:
        """Begin an epoch of a loop that somebody else drives, as a trainer of a framework.

        `take(batch)` follows each batch, `ask()` each step, and `end()` the epoch. `epoch` and
        `device` are those of `Meter.epoch`, `loader` is what gives the batches, if that is known.

        Raises:
            WorkloadError: as `epoch` does.
        """
        self._begin(epoch, self._stream(epoch, device), loader)

    def _begin(self, epoch: int, stream: StreamClock, loader: object) -> None:
        self.end()
        self._loader = {name: getattr(loader, name) for name in _ARGUMENTS if hasattr(loader, name)}
        self._faults.begin(loader, None)
        self._cpu[epoch] = -process_time()
        self._cpu_before = thread_time()
        if self._folder is not None:
            self._watching.enter_context(self._folder.epoch(epoch))
        self._asked = stream.record()
        self._begun = self._clock.now(), self._asked
        self._now = stream, epoch, 0

    def take(self, batch: object) -> None:
        """Tell that the loop has its next batch: from now on it computes.

        Raises:
            WorkloadError: no epoch was begun.
        """
        stream, epoch, number = self._of_now("take")
        assert self._begun is not None
        self._end_open()
        if self._faults.is_due(number):
            self._look_at_workers(number, batch)
        step = _Step(
            stream=stream,
            begun=self._begun,
            asked=self._asked,
            taken=stream.record(),
            step_number=number,
            counted=(epoch, number, self._world.rank),
            batch=batch,
            pauses_before=self._pauses,
        )
        self._pauses = []
        self._cpu_in_waits += thread_time() - self._cpu_before
        self._now = stream, epoch, number + 1
        self._loaded = self._clock.now()
        self._step = step

    def ask(self) -> None:
        """Tell that the loop asks for its next batch: its step is over. All ranks call it.

        Raises:
            WorkloadError: no epoch was begun.
        """
        stream, _, _ = self._of_now("ask")
        step, self._step = self._step, None
        if step is None:  # a report has ended it
            self._asked, self._cpu_before = stream.record(), thread_time()
            return
        step.computed = stream.record()
        allreduce = 0.0 if step.asked_compute is None else self.workload.train.allreduce_time
        world = self._world
        with_allreduce(allreduce, world.barrier, lambda: world.opened, self._clock)()
        self._asked = step.met = stream.record()
        self._keep(step)
        self._cpu_before = thread_time()
        while self._under_way and self._under_way[0].stream.passed(self._under_way[0].met):
            self._store(self._under_way.popleft())

    def _of_now(self, name: str) -> tuple[StreamClock, int, int]:
        if self._now is None:
            raise WorkloadError(f"meter.{name} works only between meter.begin and meter.end")
        return self._now

    def end(self) -> None:
        """End an epoch that `begin` began; the last step ends if `ask` did not end it."""
        self._end_open()
        if self._now is not None:
            self._cpu[self._now[1]] += process_time()
        self._now = None
        self._watching.close()

    def _note_start(self, seconds: float) -> None:
        """Note how long a DataLoader took to start its workers, where it has started them."""
        workers = self._loader.get("num_workers") or 0
        if workers and not (self._starts and self._loader.get("persistent_workers")):
            self._starts.append(seconds / workers)

    def _look_at_workers(self, number: int, batch: object) -> None:
        """Look at a DataLoader's workers when it has given a batch: a few files of /proc."""
        are_tensors = all(hasattr(array, "is_shared") for array in _arrays(batch))
        self._faults.look(
            number,
            batch_bytes=_batch_bytes(batch) if are_tensors else 0,
            samples=_batch_length(batch) or 0,
            file_bytes=self._sample_bytes or 0.0,
        )

    def _keep(self, step: _Step) -> None:
        """Take a step that has ended on the host, with what its batch tells."""
        batch, step.batch = step.batch, None
        step.counted = (
            *step.counted,
            *self._counted(batch, step),
            getattr(batch, "num_reads", 0),
            getattr(batch, "read_seconds", 0.0),
            getattr(batch, "decode_seconds", 0.0),
            getattr(batch, "hand_over_seconds", 0.0),
        )
        self._all_emulated &= step.asked_compute is not None
        self._under_way.append(step)

    def _store(self, step: _Step) -> None:
        """Add the row of a step that the device has finished."""
        step.paused_before = self._paused if step.step_number else 0.0
        self._paused = step.paused_before + step.paused
        self._rows.append(step.row())
        self._spans.append([step.stream.seconds(*span) for span in step.spans])
        self._open.append(step.is_open)

    def _end_open(self) -> None:
        """End the step whose loop asks for no other batch: it left early, or keeps its iterator.

        It ends with the last `computing`. Without one its end is not seen, and it is taken to be
        no longer than the median of the epoch's others. Other ranks are not waited for.
        """
        step, self._step = self._step, None
        if step is None:
            return
        if step.spans:
            step.computed = step.spans[-1][1]
        else:
            step.computed = step.stream.record()
            step.is_open = True
        step.met = step.computed
        self._keep(step)

    def _counted(self, batch: object, step: _Step) -> tuple[int, int]:
        """Return a batch's samples and their bytes; 0 where that is not known."""
        samples = getattr(batch, "samples", None)
        self._by_dlemu &= samples is not None or step.asked_compute is not None
        length = _batch_length(batch) if samples is None else len(samples)
        if length is None and step.asked_compute is not None:  # the emulated job's batch
            length = self.workload.reader.batch_size
        length = self._batch_size or length or 0
        if self._sample_bytes is not None:
            return length, round(length * self._sample_bytes)
        of_files = getattr(batch, "num_bytes", None)
        self._of_files &= of_files is not None
        return length, _batch_bytes(batch) if of_files is None else of_files

    def compute(self, batch: object) -> None:
        """Emulate the accelerator: sleep until `train.computation_time` after the batch was taken.

        Raises:
            WorkloadError: no batch was taken.
        """
        step = self._current("compute")
        train = self.workload.train
        step.asked_compute = train.computation_time.draw(self._generator)
        if train.first_step_time is not None and step.counted[:2] == (0, 0):
            step.asked_compute = train.first_step_time
        self._clock.sleep_until(self._loaded + step.asked_compute)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Mark as compute what is queued inside: the model, with its data on the device.

        The other time between two batches (stacking, copies, logging) is the loop's own work. The
        thread's CPU time inside is that of the launch: what it waits for others is in the step.

        Raises:
            WorkloadError: no batch was taken, or another `computing` is still open.
        """
        step = self._current("computing")
        if self._computing:
            raise WorkloadError("meter.computing() is inside itself; leave one of the two out")
        begin, spent = step.stream.record(), thread_time()
        self._computing = True
        try:
            yield
            if step.step_number and not isinstance(step.stream, HostStream):
                self._launches.append(thread_time() - spent)
            step.spans.append((begin, step.stream.record()))
        finally:
            self._computing = False

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave out what is done inside: evaluation, a checkpoint. It is no part of any step.

        What is read inside counts for no epoch. Outside of an epoch nothing is measured anyway.

        Raises:
            WorkloadError: a `computing` is open.
        """
        if self._computing:
            raise WorkloadError("meter.pause() is inside meter.computing(); put it behind it")
        stream = None if self._now is None else self._now[0]
        begin = None if stream is None else stream.record()
        own, of_thread = process_time(), thread_time()
        with nullcontext() if self._folder is None else self._folder.paused():
            yield
        if stream is not None and self._now is not None:
            pauses = self._pauses if self._step is None else self._step.pauses
            pauses.append((begin, stream.record()))
            self._cpu[self._now[1]] -= process_time() - own
            self._cpu_before += thread_time() - of_thread

    def _current(self, name: str) -> _Step:
        if self._step is None:
            raise WorkloadError(
                f"meter.{name} works only inside the loop over meter.epoch(...): it times a step"
            )
        return self._step

    @property
    def steps(self) -> Steps:
        """The records so far, shape (steps,) of `records.STEP`; waits for the device."""
        while self._under_way:
            self._under_way[0].stream.wait(self._under_way[0].met)
            self._store(self._under_way.popleft())
        if self._step is not None and self._rows:
            self._end_open()  # a loop that keeps its iterator asks for no other batch
            return self.steps
        steps = np.array(self._rows, STEP)
        _share_spans(steps, self._spans)
        used = [_bound_last(steps, int(number)) for number in np.flatnonzero(self._open)]
        return np.delete(steps, np.flatnonzero(self._open)[~np.array(used, np.bool_)])

    def metrics(self) -> Metrics | None:
        """Return the metrics over all ranks on rank 0, None elsewhere. All ranks call it.

        Raises:
            WorkloadError: an epoch has fewer than two steps.
        """
        sums = self._sums()
        return None if sums is None else measure_sums(sums)

    def _are_marked(self) -> bool:
        """Return whether each step has a `computing`, or shares those of the batches around it."""
        return len(self._spans) == sum(map(len, self._spans)) or all(self._spans)

    def _sums(self) -> Sums | None:
        """Return the sums over the steps of all ranks on rank 0, None elsewhere."""
        parts = self._world.gather(self.steps)
        if parts is None:
            return None
        self._spread = spread_of(parts)
        return _sum_up(parts, self.workload)

    def workload_yaml(self, name: str = "") -> str:
        """Return a workload file of this rank's loop, for `dlemu run workload=FILE`.

        It has the batch size, the bytes of a sample and their deviation, and compute with its
        deviation, without each epoch's first step; a comment says which share of the time was
        waiting. Of several ranks train.step_spread is "shared"; on rank 0 behind `report` or
        `document`, which see all ranks, the share of the variance that they had in common. `name`
        is the workload's; "" takes the old one with `_measured`.

        Raises:
            WorkloadError: no epoch has two steps.
        """
        return own_workload_yaml(
            self.workload,
            self.steps,
            name=name,
            timed_by=[*self._timed_by],
            launch_seconds=median(self._launches) if self._launches else 0.0,
            spread=self._spread if self._world.num_ranks > 1 else "own",
            by_dlemu=self._by_dlemu,
            starts=self._starts,
            persistent=bool(self._loader.get("persistent_workers")),
            memory=memory_of(self._faults.found),
            page_lock=self._page_lock_time(),
        )

    def _page_lock_time(self) -> float | None:
        """Return the seconds in which CUDA locks 1 GB, of a loader that pins batches for a GPU."""
        if not self._loader.get("pin_memory") or set(self._timed_by) == {HostStream.name}:
            return None
        with suppress(RunError):
            return page_lock_time()
        return None

    def _as_counted(self) -> Workload:
        """Return the workload, of a loader not dlemu's with the batch and bytes that it showed."""
        if self._by_dlemu and self._batch_size is None and self._sample_bytes is None:
            return self.workload
        steps = self.steps
        samples, num_bytes = int(steps["num_samples"].sum()), int(steps["num_bytes"].sum())
        keys: dict[str, object] = {}
        if samples:
            keys["reader.batch_size"] = max(1, int(np.median(steps["num_samples"])))
        dataset = self.workload.dataset
        if samples and num_bytes and not (dataset.record_dims or dataset.columns):
            keys["dataset.record_length_bytes"] = max(1.0, num_bytes / samples)
            keys["dataset.record_length_bytes_stdev"] = 0
        return self.workload.with_keys(keys)

    def report(self) -> str:
        """Return the report on rank 0, an empty text elsewhere. All ranks call it.

        Raises:
            WorkloadError: an epoch has fewer than two steps.
        """
        document = self.document()
        return "" if document is None else render_text(present_run(document))

    def document(self) -> Summary | None:
        """Return the steps as a run's document on rank 0, None elsewhere. All ranks call it.

        Raises:
            WorkloadError: an epoch has fewer than two steps.
        """
        parts, seen = self._world.gather(self.steps), Summary()
        counted = self._as_counted()
        if self._folder is not None:
            seen = self._folder.summary(counted, parts, self._work(), in_files=self._of_files)
        if parts is None:
            return None
        self._spread = spread_of(parts)
        metrics = measure_sums(_sum_up(parts, self.workload))
        document = with_metrics(seen, counted, metrics)
        if not self._has_threshold:
            document = without_threshold(document)
        if not any(part["read"].any() for part in parts):
            # A loader not dlemu's does not tell why it was late.
            document["per_epoch"] = [{**row, "lost": {}} for row in document["per_epoch"]]
        if self._all_emulated:
            return document
        lost: dict[OwnLoss, float] = {
            "waiting for batches": fmean(epoch.wait_share for epoch in metrics.epochs),
            "the loop's own work": fmean(epoch.overhead_share for epoch in metrics.epochs),
            "barrier": fmean(epoch.barrier_share for epoch in metrics.epochs),
        }
        notes = list(seen.get("notes", ()))
        if not self._are_marked():
            notes.append(note("compute_between_batches").fields)
        if HostStream.name in self._timed_by:
            notes.append(note("compute_by_the_host").fields)
        return {
            **document,
            "accelerator": "accelerator",
            "time_shares": {"compute": 1 - sum(lost.values())} | lost,
            "timed_by": list(self._timed_by),
            "notes": notes,
        }

    def _work(self) -> "_Work":
        return _Work(self._loader, self._by_dlemu, dict(self._cpu), self._cpu_in_waits)


@dataclass(frozen=True)
class _Work:
    """Whose work this rank's batches were."""

    loader: Mapping[str, Any]
    """What a DataLoader was made with; empty: something else gave the batches."""
    by_dlemu: bool
    """Its batches tell how long they were read and decoded."""
    own_cpu: Mapping[int, float]
    """Of each epoch, CPU seconds of the rank's own process."""
    cpu_in_waits: float
    """CPU seconds of the loop's thread while it waited for batches."""


_ARGUMENTS = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")


def _sum_up(parts: Sequence[Steps], workload: Workload) -> Sums:
    return sum_all(((RankName(), part) for part in parts), Rule.of(workload))


def _divide_waits(parts: Sequence[Steps], works: Sequence[_Work], cpu: float | None) -> bool:
    """Tell how long batches were read, and how long made by a CPU; return whether that is known.

    Of a DataLoader without workers the loop's thread does both. Workers have the CPU time of the
    ranks and all of their children, `cpu` seconds, but for the ranks' own. A worker that the loop
    waits for makes a batch in as many steps as there are workers, or in the wait for the first one.

    `parts` are (steps,) of `records.STEP` of each rank; their `read` and `decode` are set.
    """
    num_workers = works[0].loader.get("num_workers")
    if num_workers is None:
        return False
    for part, work in zip(parts, works, strict=True):
        if num_workers == 0:
            of_cpu = min(1.0, work.cpu_in_waits / max(float(part["wait"].sum()), 1e-9))
            part["decode"] = of_cpu * part["wait"]
            part["read"] = part["wait"] - part["decode"]
        elif cpu is not None:
            own = sum(seconds for each in works for seconds in each.own_cpu.values())
            decode = max(0.0, cpu - own) / sum(map(len, parts))
            first = part["wait"][part["step"] == 0].mean()
            made = min(first, num_workers * step_seconds(part).mean())
            part["decode"], part["read"] = decode, max(0.0, made - decode)
    return num_workers == 0 or cpu is not None


def _share_spans(steps: Steps, spans: Sequence[Sequence[float]]) -> None:
    """Give each of several batches its own compute where a loop took them one after the other.

    Some loops that accumulate gradients take the batches of a whole step of the optimizer, and
    then compute them one by one: the last of them has all the spans.
    """
    for last, own in enumerate(spans):
        first = last - len(own) + 1
        if len(own) < 2 or first < 0 or any(spans[first:last]):
            continue
        group = steps[first : last + 1]
        if (group["epoch"] != group["epoch"][-1]).any():
            continue
        left = group["overhead"].sum() + group["compute"].sum() - sum(own)
        group["compute"] = group["computation_time"] = own
        group["overhead"] = max(0.0, left) / len(own)
        lasted = group["wait"] + group["overhead"] + group["compute"] + group["barrier"]
        group["start"] = group["start"][0] + np.concatenate([[0.0], np.cumsum(lasted)[:-1]])


OwnLoss = Literal["waiting for batches", "the loop's own work", "barrier"]
"""Why a loop of one's own lost time, by name."""
_LEAST_TO_TELL = 20
"""With fewer steps it is not known which part of their variance ranks share."""
_LEAST_SHARED = 0.05
"""A smaller part of it is none: so much is chance, in a few hundred steps."""
_WARM_UP = 1.5
"""A first step that is so many times as long as the mean of others, or shorter, is one of them."""
UNUSED = 0.02
"""A batch on which a loop spent a smaller share of its usual step before it left was not used."""


def _bound_last(steps: Steps, number: int) -> bool:
    """Bound a step whose end was not seen by the median of its epoch's others.

    Return whether the batch was used at all: a loop may take one more than it wants, and leave.
    """
    own = steps["epoch"] == steps["epoch"][number]
    own[number] = False
    row, others = steps[number], steps[own]
    body = float(row["overhead"] + row["compute"])
    if not len(others):
        return body > 0
    usual = float(np.median(others["overhead"] + others["compute"]))
    if body > usual > 0:
        for name in ("overhead", "compute"):
            row[name] *= usual / body
        row["computation_time"] = min(row["computation_time"], row["compute"])
    return body > UNUSED * usual


def own_workload(name: str, keys: Mapping[str, object]) -> Workload:
    """Return the workload of a loop of one's own, of which its name is known.

    Raises:
        WorkloadError: the name is refused, or a key.
    """
    dataset = {"format": "raw", "num_files_train": 1, "record_length_bytes": 1}
    return check_workload({"name": name, "dataset": dataset, **keys})


def _batch_length(batch: object) -> int | None:
    """Return the first axis of a batch's first array, or the length of a list; None: unknown."""
    for array in _arrays(batch):
        return int(array.shape[0]) if len(array.shape) else None
    is_list = isinstance(batch, Sequence) and not isinstance(batch, (str, bytes))
    return len(batch) if is_list and isinstance(batch, Sequence) else None


def _batch_bytes(batch: object) -> int:
    """Return the bytes of a batch's arrays, as they are in memory; 0 where there are none."""
    return sum(int(array.nbytes) for array in _arrays(batch))


def _arrays(batch: object) -> Iterator[Any]:
    if hasattr(batch, "shape") and hasattr(batch, "nbytes"):
        yield batch
    elif isinstance(batch, Mapping):
        for each in batch.values():
            yield from _arrays(each)
    elif isinstance(batch, (list, tuple)):
        for each in batch:
            yield from _arrays(each)


def own_workload_yaml(
    workload: Workload,
    steps: Steps,
    *,
    name: str,
    timed_by: Sequence[str],
    launch_seconds: float = 0.0,
    spread: str | float = "own",
    by_dlemu: bool = True,
    starts: Sequence[float] = (),
    persistent: bool = False,
    memory: WorkerMemory | None = None,
    page_lock: float | None = None,
) -> str:
    """Return a workload file with the batch, sample bytes and compute of these steps.

    `spread`: whose a step's time is, as train.step_spread tells it. `by_dlemu`: dlemu's loader
    read; another's workers cost what a DataLoader's cost. `starts`: seconds in which a DataLoader
    started a worker, where that was seen; `persistent`: its workers last for all epochs.
    `memory`: what they did with that of samples. `page_lock`: seconds in which CUDA locks 1 GB of
    memory, where the loader pins batches.

    `steps` is (steps,) of `records.STEP`. The first step of an epoch is left out: it starts the
    loader, and a GPU looks for its fastest kernels; train.first_step_time tells how long the job's
    first one took, where it was longer than all others. The loop's own work counts as compute: an
    emulation without it would be faster than the loop (docs/fidelity.md).

    Raises:
        WorkloadError: no epoch has two steps.
    """
    counted = steps[steps["step"] > 0]
    if not len(counted):
        raise WorkloadError(
            "meter.workload_yaml() needs an epoch of at least two steps; the first one is left out"
        )
    compute, samples = counted["compute"] + counted["overhead"], counted["num_samples"]
    batch = int(np.median(samples))
    keys: dict[str, object] = {"train.computation_time": normal(compute)}
    if batch:
        keys["reader.batch_size"] = batch
    if (first := first_step_of(steps)) is not None:
        keys["train.first_step_time"] = float(f"{first:.6g}")
    if spread != "own":
        keys["train.step_spread"] = spread
    if not by_dlemu and workload.reader.loader.is_dataloader:
        with suppress(WorkloadError):  # a way of reading that no Dataset has
            workload.with_keys({"reader.cost": "dataloader"})
            keys["reader.cost"] = "dataloader"
            keys |= keys_of_start(starts, persistent=persistent)
            keys |= {} if memory is None else {"reader.worker_memory": memory}
            if page_lock is not None:
                keys["reader.page_lock_time"] = float(f"{page_lock:.4g}")
    if launch_seconds:
        keys["train.launch_time"] = float(f"{min(launch_seconds, compute.mean()):.4g}")
    known = bool(batch and counted["num_bytes"].sum()) and not workload.dataset.record_dims
    of_sample = counted["num_bytes"] / np.maximum(samples, 1)
    if known:
        keys["dataset.record_length_bytes"] = float(f"{of_sample.mean():.10g}")
    # A stream counts what it read ahead with the batch at hand: that tells the mean of a sample,
    # not how samples deviate.
    deviates = known and not (workload.by_tf_data or workload.streamed)
    if deviates:
        # A batch's mean deviates by 1 / sqrt(batch) of what a sample deviates.
        keys["dataset.record_length_bytes_stdev"] = float(f"{of_sample.std() * sqrt(batch):.6g}")
    whole = sum(counted[part].sum() for part in ("wait", "overhead", "compute", "barrier"))
    waiting, own = (float(counted[part].sum() / whole) for part in ("wait", "overhead"))
    comment = [
        told("loop_measured", steps=len(counted), timed_by=timed_by),
        told("loop_shares", waiting_share=waiting, own_work_share=own),
    ]
    if not batch:
        comment.append(told("batch_is_the_workloads", workload=workload.name))
    if not known:
        comment.append(told("dataset_is_the_workloads", workload=workload.name))
    elif not deviates:
        comment.append(told("deviation_is_the_workloads", workload=workload.name))
    return derived_yaml(workload, name or f"{workload.name}_measured", keys, comment)


def keys_of_start(starts: Sequence[float], *, persistent: bool) -> dict[str, object]:
    """Return the keys of a job that started workers, each in so many seconds; the median counts."""
    if not starts:
        return {}
    keys: dict[str, object] = {"reader.worker_start_time": float(f"{median(starts):.4g}")}
    return {**keys, "reader.persistent_workers": True} if persistent else keys


def first_step_of(steps: Steps) -> float | None:
    """Return the seconds that a job worked on its first batch, the mean of its ranks.

    None where they are about those of other steps. `steps` is (steps,) of `records.STEP`.
    """
    if not len(steps):
        return None
    body = steps["compute"] + steps["overhead"]
    first = (steps["epoch"] == steps["epoch"].min()) & (steps["step"] == 0)
    others = body[steps["step"] > 0]
    if not (first.any() and len(others)):
        return None
    seconds = float(body[first].mean())
    return seconds if seconds > max(_WARM_UP * others.mean(), others.max()) else None


def spread_of(ranks: Sequence[Steps]) -> str | float:
    """Return train.step_spread of a job: which share of its steps' variance all ranks have.

    By an analysis of variance: what the mean of R ranks varies holds the shared part, and one R-th
    of each rank's own. Steps that ranks lack are left out, and the first one of each epoch.
    """
    bodies = [each["compute"] + each["overhead"] for each in ranks]
    num = min(map(len, bodies), default=0)
    kept = np.flatnonzero(ranks[0]["step"][:num] > 0) if num else np.array([], int)
    if len(ranks) < 2 or len(kept) < _LEAST_TO_TELL:
        return "shared" if len(ranks) > 1 else "own"
    times = np.array([each[kept] for each in bodies])  # (ranks, steps)
    each, together = times.var(axis=1).mean(), times.mean(axis=0).var()
    if each <= 0:
        return "shared"
    share = float((len(times) * together - each) / (len(times) - 1) / each)
    if share < _LEAST_SHARED:
        return "own"
    return "shared" if round(share, 2) >= 1 else round(share, 2)


class WatchedFolder:
    """Counts what the ranks of each host, with their workers, read in each epoch.

    The first rank of a host does the work. All ranks make one, and call `summary`.

    Raises:
        WorkloadError: the folder is missing.
    """

    def __init__(self, folder: Path, world: World) -> None:
        if not folder.is_dir():
            raise WorkloadError(
                f"Meter: folder {folder} is no folder; name the one with the files that the loop "
                "reads"
            )
        ranks = world.all_gather((world.host_index, os.getpid()))
        self._pids = [pid for host, pid in ranks if host == world.host_index]
        self._folder, self._world = folder, world
        self._epochs: dict[int, IntervalSummary] = {}
        self._observer: HostObserver | None = None
        self._parts: list[IntervalSummary] = []
        self._links: dict[str, int | None] = {}

    @contextmanager
    def epoch(self, number: int) -> Iterator[None]:
        """Count while an epoch runs."""
        if self._world.local_rank:
            yield
            return
        with HostObserver([self._folder], lambda: self._pids) as observer:
            self._observer, self._parts = observer, []
            observer.mark(start_of(self._part))
            try:
                yield
            finally:
                self._end_part()
                self._observer = None
                self._epochs[number] = whole_of(self._parts)
                self._links = observer.links

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what is read inside; other ranks go on."""
        if self._observer is not None:
            self._end_part()
        yield
        if self._observer is not None:
            self._observer.mark(start_of(self._part))

    def _end_part(self) -> None:
        """End a part of the epoch without pauses."""
        assert self._observer is not None
        part = self._part
        self._observer.mark(end_of(part))
        self._parts.append(summarize_interval(self._observer.during(part)))

    @property
    def _part(self) -> str:
        """What the observations of the part that goes on, or begins, are called by."""
        return str(len(self._parts))

    def summary(
        self, workload: Workload, parts: Sequence[Steps] | None, work: _Work, *, in_files: bool
    ) -> Summary:
        """Return `place`, `measured`, `notes` and perhaps `limit` of a run's summary on rank 0.

        All ranks call it. `parts` are the steps of each, None elsewhere; they get `read` and
        `decode` where these are known only now. `in_files`: the steps' bytes are those of the
        files, so that the share of them that came from memory is known.
        """
        numbers = None if parts is None else np.unique(np.concatenate(parts)["epoch"]).tolist()
        epochs: list[int] = self._world.broadcast(numbers or [])
        world, mount = self._world, mount_under(self._folder)
        own = HostReport(
            host=world.host,
            epochs=[self._epochs[number] for number in epochs if number in self._epochs],
            num_workers=max(1, work.loader.get("num_workers", 1)) * len(self._pids),
            direct=False,
            file_system="" if mount is None else mount.kind,
            links=self._links,
            network_name=network_name(),
            machine=machine_name(),
        )
        hosts, works = world.gather(None if world.local_rank else own), world.gather(work)
        if hosts is None or works is None or parts is None:
            return Summary()
        found = [host for host in hosts if host is not None]
        limit = self._limit(workload, parts, works, found, in_files=in_files)
        seen = _evidence(workload, parts, found)
        measured, notes = seen.measured, list(seen.notes)
        if not in_files:
            measured["page_cache_share"] = None
            measured["page_cache_share_per_epoch"] = [None] * len(epochs)
            del measured["read_amplification"]
            notes = [note("sample_bytes_unknown").fields]
        system = [find_host(self._folder, name=world.host)]
        summary = Summary(system=system, measured=measured, notes=notes)
        return summary if limit is None else {**summary, "limit": limit}

    def _limit(
        self,
        workload: Workload,
        parts: Sequence[Steps],
        works: Sequence[_Work],
        hosts: list[HostReport],
        *,
        in_files: bool,
    ) -> dict[str, Any] | None:
        """Return what lowered the AU, None where it is not known why batches came late.

        Where the steps do not have the bytes of the files, those of the ranks' read calls count.
        """
        counted = total([host.whole.process_cpu_seconds for host in hosts])
        told = any(part["read"].any() for part in parts)
        if not (told or _divide_waits(parts, works, counted)):
            return None
        if not in_files:
            calls = total([host.whole.process_rchar for host in hosts])
            if not calls:
                return None
            parts = [part.copy() for part in parts]
            for part in parts:
                part["num_bytes"] = calls / sum(map(len, parts))
        found = asdict(find_run_limit(_evidence(workload, parts, hosts)))
        return {**found, "advice": advice_for(found["advice"], works[0].loader)}


def _evidence(workload: Workload, parts: Sequence[Steps], hosts: list[HostReport]) -> Evidence:
    sums = _sum_up(parts, workload)
    each = tuple(replace(one, epoch=number) for number, one in enumerate(sums.epochs))
    return combine(workload, hosts, replace(sums, epochs=each), PathBytes())
