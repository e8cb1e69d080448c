"""Checkpoints inside a run: when they are due, and how long they hold up its steps.

Synchronous: the accelerators stand still until all files are written, as in DLIO. Asynchronous:
they stand still while they copy their state to memory, and it is written while steps go on. The
next checkpoint waits for the one before.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dlemu.checkpoint.crew import Crew, CrewRound
from dlemu.checkpoint.files import WriteTimes
from dlemu.checkpoint.folder import Opened, examine, folder_of, opened, step_folder
from dlemu.checkpoint.plan import ShardPlan, share_of
from dlemu.clock import Clock
from dlemu.config.checkpoint_sections import CheckpointSection
from dlemu.config.model import Workload
from dlemu.errors import RunError, WorkloadError
from dlemu.findings import Finding, Tell, note
from dlemu.host.devices import devices_under
from dlemu.judge.records import Steps
from dlemu.judge.summary import CheckpointFields
from dlemu.judge.sums import step_seconds
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import World


@dataclass(frozen=True)
class OwnRank:
    """A rank of a run, as its checkpoints see it."""

    world: World
    clock: Clock
    watch: Watchdog
    own: range
    """This rank's accelerators, of `num_accelerators`."""
    num_accelerators: int


@dataclass(kw_only=True)
class RankCheckpoints:
    """What a rank sends to rank 0; seconds, of each checkpoint in turn."""

    stalls: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    """For the one before it, a part of the stall."""
    durations: list[float] = field(default_factory=list)
    """From the start of its writing to its end; 0 where the rank has nothing to write."""
    times: WriteTimes = field(default_factory=WriteTimes)
    """Sums over the rank's accelerators and checkpoints."""
    remaining: float = 0.0
    devices: tuple[str, ...] = ()
    """Drives under the folder, on the first rank of each host that sees any."""
    read_bytes: int = 0
    """Of these drives in the epochs, and so the next."""
    written_bytes: int = 0


class InWriting(NamedTuple):
    """A checkpoint that is being written."""

    number: int
    """From 1 on."""
    share: float
    """That is written, 0 to 1."""


def due_after(section: CheckpointSection, *, epoch: int, num_steps: int) -> list[int]:
    """Return after how many steps of an epoch checkpoints are due, as in DLIO.

    `epoch` counts from 0. DLIO counts steps anew in each epoch.
    """
    if section.steps_between_checkpoints is not None:
        each = section.steps_between_checkpoints
        return list(range(each, num_steps + 1, each))
    since = epoch + 1 - section.checkpoint_after_epoch
    is_due = since >= 0 and since % section.epochs_between_checkpoints == 0
    return [num_steps] if is_due else []


def when_due(section: CheckpointSection) -> Finding:
    """Return when checkpoints are due."""
    if (steps := section.steps_between_checkpoints) is not None:
        return note("checkpoints_by_steps", every=steps)
    every, first = section.epochs_between_checkpoints, section.checkpoint_after_epoch
    return note("checkpoints_by_epochs", first=first, every=every)


def check_checkpoints(workload: Workload, num_accelerators: int) -> None:
    """Refuse a run whose checkpoints cannot be written.

    Raises:
        WorkloadError: a key is missing, or the accelerators do not fit the model.
    """
    folder_of(workload)
    _plan_of_all(workload, num_accelerators)
    if workload.checkpoint.writer != "dlemu":
        raise WorkloadError(
            f"checkpoint.writer={workload.checkpoint.writer} works in `dlemu checkpoint` only; "
            "leave it out"
        )


def planned_in_run(workload: Workload, num_accelerators: int, num_steps: int) -> Finding:
    """Return which checkpoints a run of so many steps an epoch would write."""
    return note(
        "checkpoints_planned",
        number=num_due(workload, [num_steps] * workload.train.epochs),
        num_bytes=_plan_of_all(workload, num_accelerators).num_bytes,
        due=when_due(workload.checkpoint).fields,
        folder=str(workload.checkpoint.checkpoint_folder),
    )


def examine_in_run(workload: Workload, num_accelerators: int, num_steps: int) -> None:
    """Raise what `open_checkpoints` would raise, without making the folder."""
    number = num_due(workload, [num_steps] * workload.train.epochs)
    if number:
        job = workload.with_keys({"checkpoint.num_checkpoints_write": number})
        examine(job, _plan_of_all(workload, num_accelerators))


def num_due(workload: Workload, num_steps: Sequence[int]) -> int:
    """Return the checkpoints of a run, from the steps of each epoch."""
    due = (
        due_after(workload.checkpoint, epoch=epoch, num_steps=steps)
        for epoch, steps in enumerate(num_steps)
    )
    return sum(map(len, due))


def _plan_of_all(workload: Workload, num_accelerators: int) -> ShardPlan:
    """Return the plan of one process that plays all accelerators. Raises as `share_of` does."""
    everyone = range(num_accelerators)
    share = share_of(workload.model, num_accelerators, workload.checkpoint.mode)
    return ShardPlan.over(workload, share, [(0, everyone)], everyone)


@contextmanager
def open_checkpoints(
    workload: Workload, rank: OwnRank, num_steps: Sequence[int], tell: Tell
) -> Iterator["RunCheckpoints"]:
    """Yield the checkpoints of a run, whose folder is held and has room; all ranks call it.

    `num_steps` has the steps of each epoch.

    Raises:
        WorkloadError: the folder cannot be used, or holds what dlemu has not written.
        RunError: there is too little room.
    """
    world = rank.world
    parts = world.all_gather((world.host_index, rank.own))
    share = share_of(workload.model, rank.num_accelerators, workload.checkpoint.mode)
    plan = ShardPlan.over(workload, share, parts, rank.own)
    # As in a command that writes so many.
    number = num_due(workload, num_steps)
    job = workload.with_keys({"checkpoint.num_checkpoints_write": number})
    own = [each for each in plan.accelerators if plan.written_by(each, 0)]
    with (
        opened(job, plan, world, tell) as folder,
        folder.crew(
            folder.place.writer, folder.content, own, world, rank.watch, rank.clock.now
        ) as crew,
    ):
        yield RunCheckpoints(workload.checkpoint, rank, plan, folder, own, crew)


@dataclass
class RunCheckpoints:
    """The checkpoints of a run on one rank; all ranks call `take` after the same steps.

    The crew has a writer for each accelerator of this rank that has files to write, `own`.
    """

    _section: CheckpointSection
    _rank: OwnRank
    _plan: ShardPlan
    _folder: Opened
    _own: Sequence[int]
    _crew: Crew[WriteTimes]
    _under_way: tuple[Path, CrewRound[WriteTimes]] | None = None
    _spans: list[tuple[float, float]] = field(default_factory=list)
    _ended: list[Path] = field(default_factory=list)
    _number: int = 0

    def __post_init__(self) -> None:
        self._clock, self._watch = self._rank.clock, self._rank.watch
        observes = self._rank.world.local_rank == 0
        self._devices = devices_under(self._folder.path) if observes else []
        self._report = RankCheckpoints(devices=tuple(each.name for each in self._devices))

    def take(self, epoch: int, step: int) -> float:
        """Take the checkpoint that is due; return for how long the accelerators stood still.

        It is named by its epoch, which counts from 0, and by the number of steps that have ended.

        Raises:
            RunError: it cannot be written, or the one before could not.
        """
        clock, section = self._clock, self._section
        begin = clock.now()
        self._end_write()
        self._report.waits.append(clock.now() - begin)
        if section.asynchronous:
            # Until the accelerator with the most has copied its state to memory.
            seconds = max(self._sizes, default=0) / section.staging_bandwidth
            self._watch.computing(clock.sleep_until, clock)(clock.now() + seconds)
        path = step_folder(self._folder.path, step, epoch + 1)
        with self._watch.phase("writing a checkpoint", lambda: str(path)):
            self._begin_write(path)
            if not section.asynchronous:
                self._end_write()
            self._watch.barrier(patient=True)
            stall = clock.now() - begin
            self._report.stalls.append(stall)
            self._delete_old()
        return stall

    @contextmanager
    def epoch(self, steps: Steps) -> Iterator[None]:
        """Count what the drives do in an epoch; mark in its records which steps met a write."""
        before = [device.counters() for device in self._devices]
        yield
        for device, first in zip(self._devices, before, strict=True):
            last = device.counters()
            if first is not None and last is not None:
                self._report.read_bytes += last.read_bytes - first.read_bytes
                self._report.written_bytes += last.written_bytes - first.written_bytes
        if self._section.asynchronous:
            newest = [] if self._under_way is None else [self._under_way[1].span]
            mark_writing(steps, [*self._spans, *newest])

    def finish(self) -> RankCheckpoints:
        """Wait for the last one; return what this rank has to tell. All ranks call it."""
        begin = self._clock.now()
        self._end_write()
        self._report.remaining = self._clock.now() - begin
        self._watch.barrier(patient=True)
        self._delete_old()
        return self._report

    @property
    def in_writing(self) -> InWriting | None:
        """What is being written, for another thread; None for nothing."""
        if self._under_way is None or self._under_way[1].span[1] < math.inf:
            return None
        share = self._under_way[1].bytes_done / max(1, sum(self._sizes))
        return InWriting(self._number, share)

    @property
    def _sizes(self) -> list[int]:
        """Bytes of a checkpoint that each accelerator of this rank writes."""
        shares = (self._plan.written_by(accelerator, 0) for accelerator in self._own)
        return [sum(size for _, size, _ in files) for files in shares]

    def _begin_write(self, path: Path) -> None:
        self._number += 1
        try:
            self._folder.place.make(path, sync=False)
        except OSError as error:
            raise _unwritable(path, error) from None
        files = [self._plan.written_by(a, self._number) for a in self._own]
        crew_round = self._crew.begin(lambda n: self._crew.tools[n].work(path, files[n]))
        self._under_way = path, crew_round

    def _end_write(self) -> None:
        """Wait for what is being written."""
        if self._under_way is None:
            return
        path, crew_round = self._under_way
        with self._watch.phase("writing a checkpoint", lambda: str(path)):
            try:
                while not self._crew.wait(crew_round):
                    pass
            except OSError as error:
                raise _unwritable(path, error) from None
        self._report.times = sum(crew_round.results(), self._report.times)
        begin, end = crew_round.span
        self._report.durations.append(end - begin)
        self._spans.append(crew_round.span)
        self._ended.append(path)
        self._under_way = None

    def _delete_old(self) -> None:
        """Delete this run's oldest checkpoints; if there are any, the ranks wait for each other."""
        keep = self._section.keep or len(self._ended)
        old = self._ended[: max(0, len(self._ended) - keep)]
        if not old:
            return
        del self._ended[: len(old)]
        for path in old if self._folder.keeps else ():
            self._folder.place.remove(f"{path.name}/")
        self._watch.barrier(patient=True)


def mark_writing(steps: Steps, spans: Sequence[tuple[float, float]]) -> None:
    """Mark the steps of which most lies in one of the spans of time; (steps, accelerators)."""
    if not steps.size:
        return
    begin = steps["start"][:, 0]
    end = begin + step_seconds(steps[:, 0])
    inside = np.zeros(len(steps))
    for first, last in spans:
        inside += np.clip(np.minimum(end, last) - np.maximum(begin, first), 0, None)
    steps["writing"] = (inside > (end - begin) / 2)[:, None]


def combine_checkpoints(
    workload: Workload, num_accelerators: int, reports: Sequence[RankCheckpoints]
) -> CheckpointFields:
    """Return what all ranks tell together; none does where none was due."""
    times = sum((report.times for report in reports), WriteTimes())
    parts = {name: value for name, value in asdict(times).items() if name != "num_bytes"}
    devices = [name for report in reports for name in report.devices]

    def slowest(name: str) -> list[float]:
        return [max(each) for each in zip(*(getattr(r, name) for r in reports), strict=True)]

    return CheckpointFields(
        folder=str(workload.checkpoint.checkpoint_folder),
        asynchronous=workload.checkpoint.asynchronous,
        due=when_due(workload.checkpoint).fields,
        num_bytes=_plan_of_all(workload, num_accelerators).num_bytes,
        written_bytes=times.num_bytes,
        duration_seconds=slowest("durations"),
        stall_seconds=slowest("stalls"),
        waited_seconds=slowest("waits"),
        remaining_seconds=max((report.remaining for report in reports), default=0.0),
        parts_seconds=parts,
        devices=list(dict.fromkeys(devices)),
        device_read_bytes=sum(r.read_bytes for r in reports) if devices else None,
        device_written_bytes=sum(r.written_bytes for r in reports) if devices else None,
    )


def _unwritable(path: Path, error: OSError) -> RunError:
    return RunError.of_system(
        error,
        f"checkpoint {path}",
        "cannot be written",
        "free space, or name another checkpoint.checkpoint_folder",
    )
