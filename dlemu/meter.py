"""Measures a training loop of one's own, with the records and metrics of a replayed job.

Beside the steps: what the loop read from a folder that is watched, and a workload file of it.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from statistics import fmean, median
from time import thread_time
from typing import Any, TypeVar

import numpy as np

from dlemu.clock import Clock, WallClock
from dlemu.config.model import Workload
from dlemu.config.published import derived_yaml, normal
from dlemu.errors import WorkloadError
from dlemu.host.devices import mount_under
from dlemu.host.intervals import HostObserver, IntervalSummary, summarize_interval
from dlemu.host.network import machine_name, network_name
from dlemu.host.place import find_host
from dlemu.judge.evidence import HostReport, combine
from dlemu.judge.metrics import Metrics, measure_sums
from dlemu.judge.outcome import with_metrics
from dlemu.judge.records import STEP, Steps
from dlemu.judge.summary import Summary
from dlemu.judge.sums import Rule, Sums, sum_all
from dlemu.ranks.world import Alone, World
from dlemu.report.run import present_run
from dlemu.report.text import render_text
from dlemu.run.compute import CudaStream, HostStream, StreamClock
from dlemu.storage.counted import PathBytes

B = TypeVar("B")
_NO_CHECKPOINT = 0.0, False
"""`stall` and `writing`: a loop of one's own writes its checkpoints itself, as a part of a step."""


@dataclass(kw_only=True)
class _Step:
    """A step that the device may not have finished: marks on its stream, in their order."""

    stream: StreamClock
    begun: tuple[float, Any]
    """The epoch's begin: time on the host's clock, and the mark on the stream."""
    asked: Any
    taken: Any
    step_number: int
    computed: Any = None
    met: Any = None
    spans: list[tuple[Any, Any]] = field(default_factory=list)
    """Begin and end of each `computing`; empty: all from `taken` to `computed` is compute."""
    asked_compute: float | None = None
    """Seconds of emulated compute that were asked for; None: compute is real."""
    counted: tuple[Any, ...] = ()
    """epoch, step, rank, num_samples, num_bytes, num_reads; seconds of read, decode, hand-over."""

    def row(self) -> tuple[Any, ...]:
        """Return the record (`records.STEP`); the device must have finished the step."""
        seconds = self.stream.seconds
        moment, mark = self.begun
        body = seconds(self.taken, self.computed)
        compute = sum(seconds(*span) for span in self.spans) if self.spans else body
        return (
            *self.counted[:6],
            moment + seconds(mark, self.asked),
            seconds(self.asked, self.taken),
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
        print(meter.report())

    With a `world` of several ranks a barrier ends every step, as the exchange of gradients does.
    docs/training_loops.md says what is measured where.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        batch_size: int | None = None,
        sample_bytes: float | None = None,
        folder: str | Path | None = None,
        world: World | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Of the workload a loop of one's own takes the threshold, and the rest as it is not known.

        Args:
            workload: names the job; its dataset and batch are those of loops over `make_loader`.
            batch_size: samples of a batch. None: a batch's own length.
            sample_bytes: mean bytes of a sample in the files. None: those that the batch tells
                (`num_bytes`), else those of its arrays.
            folder: where the files lie that the loop reads: the report then has what the drives
                gave, and the share of the bytes that came from memory. Each rank makes a meter.
            world: the ranks; None: this process alone.
            clock: the host's clock.

        Raises:
            WorkloadError: batch_size or sample_bytes is not above 0, or the folder is missing.
        """
        for name, given in (("batch_size", batch_size), ("sample_bytes", sample_bytes)):
            if given is not None and not given > 0:
                raise WorkloadError(f"Meter: {name} must be above 0, got {given}")
        self.workload = workload
        self._batch_size, self._sample_bytes = batch_size, sample_bytes
        self._launches: list[float] = []
        self._world = world or Alone()
        self._folder = None if folder is None else WatchedFolder(Path(folder), self._world)
        self._clock = clock or WallClock.calibrate()
        self._rows: list[tuple[Any, ...]] = []
        self._under_way: deque[_Step] = deque()
        self._step: _Step | None = None
        self._computing = False
        self._loaded = 0.0
        self._timed_by: dict[str, None] = {}
        self._all_emulated = self._all_marked = self._by_dlemu = self._of_files = True
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
        if any(row[0] == epoch for row in self._rows):
            raise WorkloadError(f"Meter: epoch {epoch} was recorded already; take another number")
        stream: StreamClock = HostStream(self._clock)
        if device is not None:
            stream = device if isinstance(device, StreamClock) else CudaStream(str(device))
        self._timed_by[stream.name] = None
        return self._watched(batches, epoch, stream)

    def _watched(self, batches: Iterable[B], epoch: int, stream: StreamClock) -> Iterator[B]:
        with nullcontext() if self._folder is None else self._folder.epoch(epoch):
            yield from self._steps_of(batches, epoch, stream)

    def _steps_of(self, batches: Iterable[B], epoch: int, stream: StreamClock) -> Iterator[B]:
        set_epoch = getattr(batches, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        asked = stream.record()
        begun = self._clock.now(), asked
        for step, batch in enumerate(batches):
            current = _Step(
                stream=stream, begun=begun, asked=asked, taken=stream.record(), step_number=step
            )
            self._loaded = self._clock.now()
            self._step = current
            try:
                yield batch
            finally:
                self._step = None
            current.computed = stream.record()
            self._world.barrier()
            asked = current.met = stream.record()
            num_samples, num_bytes = self._counted(batch, current)
            current.counted = (
                epoch,
                step,
                self._world.rank,
                num_samples,
                num_bytes,
                getattr(batch, "num_reads", 0),
                getattr(batch, "read_seconds", 0.0),
                getattr(batch, "decode_seconds", 0.0),
                getattr(batch, "hand_over_seconds", 0.0),
            )
            self._all_emulated &= current.asked_compute is not None
            self._all_marked &= bool(current.spans)
            self._under_way.append(current)
            while self._under_way and self._under_way[0].stream.passed(self._under_way[0].met):
                self._rows.append(self._under_way.popleft().row())

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
        step.asked_compute = self.workload.train.computation_time.draw(self._generator)
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
            self._rows.append(self._under_way.popleft().row())
        return np.array(self._rows, STEP)

    def metrics(self) -> Metrics | None:
        """Return the metrics over all ranks on rank 0, None elsewhere. All ranks call it.

        Raises:
            WorkloadError: an epoch has fewer than two steps.
        """
        sums = self._sums()
        return None if sums is None else measure_sums(sums)

    def _sums(self) -> Sums | None:
        """Return the sums over the steps of all ranks on rank 0, None elsewhere."""
        parts = self._world.gather(self.steps)
        rule = Rule.of(self.workload)
        return None if parts is None else sum_all((("", part) for part in parts), rule)

    def workload_yaml(self, name: str = "") -> str:
        """Return a workload file of this rank's loop, for `dlemu run workload=FILE`.

        It has the batch size, the bytes of a sample and their deviation, and compute with its
        deviation, without each epoch's first step; a comment says which share of the time was
        waiting. `name` is the workload's; "" takes the old one with `_measured`.

        Raises:
            WorkloadError: no epoch has two steps.
        """

        return own_workload_yaml(
            self.workload,
            self.steps,
            name=name,
            timed_by=" and ".join(self._timed_by),
            launch_seconds=median(self._launches) if self._launches else 0.0,
        )

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
        sums, seen = self._sums(), Summary()
        metrics = None if sums is None else measure_sums(sums)
        counted = self._as_counted()
        if self._folder is not None:
            epochs = np.unique(self.steps["epoch"]).tolist()
            seen = self._folder.summary(counted, sums, epochs, in_files=self._of_files)
        if metrics is None:
            return None
        document = with_metrics(seen, counted, metrics)
        if not self.steps["read"].any():  # a loader not dlemu's does not tell why it was late
            document["per_epoch"] = [{**row, "lost": {}} for row in document["per_epoch"]]
        if self._all_emulated:
            return document
        lost = {
            "waiting for batches": fmean(epoch.wait_share for epoch in metrics.epochs),
            "the loop's own work": fmean(epoch.overhead_share for epoch in metrics.epochs),
            "barrier": fmean(epoch.barrier_share for epoch in metrics.epochs),
        }
        notes = list(seen.get("notes", ()))
        if not self._all_marked:
            notes.append(
                "compute is all between two batches, stacking and copying included; put "
                "`with meter.computing():` around the model to tell them apart"
            )
        if HostStream.name in self._timed_by:
            notes.append(
                "compute is the host's view: what a GPU does after the launch is missed, and "
                'counted where the loop waits for it; with a GPU, meter.epoch(..., device="cuda")'
            )
        return {
            **document,
            "accelerator": "accelerator",
            "time_shares": {"compute": 1 - sum(lost.values())} | lost,
            "timed_by": list(self._timed_by),
            "notes": notes,
        }


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
    workload: Workload, steps: Steps, *, name: str, timed_by: str, launch_seconds: float = 0.0
) -> str:
    """Return a workload file with the batch, sample bytes and compute of these steps.

    `steps` is (steps,) of `records.STEP`. The first step of an epoch is left out: it starts the
    loader, and a GPU looks for its fastest kernels. The loop's own work counts as compute: an
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
    comment = [
        f"A training loop measured by dlemu.Meter, {len(counted):,} steps, timed by {timed_by}.",
        f"waiting for batches: {100 * counted['wait'].sum() / whole:.1f} % of the time; "
        f"the loop's own work, which computation_time includes: "
        f"{100 * counted['overhead'].sum() / whole:.1f} %",
    ]
    if not batch:
        comment.append(f"batch size: that of {workload.name}; Meter(batch_size=) gives the loop's")
    if not known:
        comment.append(
            f"dataset: that of {workload.name}; the loader does not tell its bytes, "
            "Meter(sample_bytes=) gives them"
        )
    elif not deviates:
        comment.append(
            f"deviation of the samples' bytes: that of {workload.name}; files are streams"
        )
    return derived_yaml(workload, name or f"{workload.name}_measured", keys, comment)


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
        self._links: dict[str, int | None] = {}

    @contextmanager
    def epoch(self, number: int) -> Iterator[None]:
        """Count while an epoch runs."""
        if self._world.local_rank:
            yield
            return
        with HostObserver([self._folder], lambda: self._pids) as observer:
            observer.mark("start")
            try:
                yield
            finally:
                observer.mark("end")
                self._epochs[number] = summarize_interval(observer.between("start", "end"))
                self._links = observer.links

    def summary(
        self, workload: Workload, sums: Sums | None, epochs: Sequence[int], *, in_files: bool
    ) -> Summary:
        """Return `place`, `measured` and `notes` of a run's summary on rank 0; all ranks call it.

        `epochs` are the numbers of those that have steps, `sums` their sums, None elsewhere.
        `in_files`: the steps' bytes are those of the files, so that the share of them that came
        from memory is known.
        """
        world, mount = self._world, mount_under(self._folder)
        own = HostReport(
            host=world.host,
            epochs=[self._epochs[number] for number in epochs if number in self._epochs],
            direct=False,
            file_system="" if mount is None else mount.kind,
            links=self._links,
            network_name=network_name(),
            machine=machine_name(),
        )
        hosts = world.gather(None if world.local_rank else own)
        if hosts is None or sums is None:
            return Summary()
        found = [host for host in hosts if host is not None]
        each = tuple(replace(one, epoch=number) for number, one in enumerate(sums.epochs))
        seen = combine(workload, found, replace(sums, epochs=each), PathBytes())
        measured, notes = seen.measured, list(seen.notes)
        if not in_files:
            measured["page_cache_share"] = None
            measured["page_cache_share_per_epoch"] = [None] * len(each)
            del measured["read_amplification"]
            notes = [
                "how many bytes came from memory is not known: a batch tells its bytes in memory; "
                "Meter(sample_bytes=) gives those of a sample in the files"
            ]
        system = [find_host(self._folder, name=world.host)]
        return Summary(system=system, measured=measured, notes=notes)
