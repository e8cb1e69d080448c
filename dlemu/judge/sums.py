"""Sums over records: all that metrics, losses and evidence need of them.

A rank sums up its own records, and the sums of two ranks are joined to sums of both. So rank 0 of a
large job holds a row for each accelerator and a row for each step, but not a record for each step
of each accelerator. Nothing is sampled or rounded: results are those of all records.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dlemu.config.model import Workload
from dlemu.config.sections import MetricSection
from dlemu.judge.records import Steps

Edition = Literal["v1.0", "v2.0", "v3.0"]
Ends = dict[int, frozenset[int]]
"""For each epoch the numbers of steps after which a checkpoint was taken."""
_Values = NDArray[np.float64]
_UNCOUNTED_STEPS = 2
"""Steps whose samples edition v2.0 leaves out of samples/s (DLIO 2.0, compute_metrics_train)."""

_ACCELERATOR = np.dtype(
    [
        ("accelerator", np.int32),
        ("num_samples", np.int64),
        ("num_bytes", np.int64),
        ("num_reads", np.int64),
        ("au", np.float64),  # percent, by the edition's rule
        ("samples_per_second", np.float64),  # by the edition's rule
        ("seconds", np.float64),  # of all steps
        ("asked", np.float64),  # compute asked for, all steps
        ("first_step", np.float64),  # seconds
        # Of the steps inside the rule's window:
        ("inside", np.float64),
        ("wait", np.float64),
        ("overhead", np.float64),
        ("barrier", np.float64),
    ]
)
_LATEST = ("wait", "compute", "computation_time", "barrier", "read", "decode", "hand_over")
_STEP = np.dtype(
    [
        # Sums over accelerators:
        ("seconds", np.float64),
        ("overhead", np.float64),
        ("asked", np.float64),
        ("credited", np.float64),
        # Of any accelerator:
        ("stall", np.float64),
        ("writing", np.bool_),
        ("ready", np.float64),  # the latest to end its compute, seconds after the step's start
        ("ready_else", np.float64),  # the latest of the other ranks
        ("rank", np.int32),  # of the latest, as a number of EpochSums.ranks
        # The record of the latest:
        ("num_samples", np.int32),
        *((name, np.float64) for name in _LATEST),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The keys that decide how steps are summed up."""

    edition: Edition = "v1.0"
    start: int = 1
    """Steps that do not count at the start of each block."""
    end: int = 0
    """Steps that do not count at the end of each epoch."""
    preprocess_seconds: float = 0.0
    """That a worker sleeps for each sample. What it computes is in its record, as `decode`."""
    allreduce_seconds: float = 0.0
    """That the job's all-reduce takes in each step; they are in its record, as `barrier`."""
    reads_where_it_computes: bool = False
    """Whether the GPU that computes also gets the batches, and may decode them."""

    @classmethod
    def of(cls, workload: Workload) -> Self:
        """Return the rule that a workload asks for."""
        start, end = left_out(workload.metric)
        return cls(
            edition=workload.metric.edition,
            start=start,
            end=end,
            preprocess_seconds=(
                workload.reader.preprocess_time.mean
                if workload.reader.preprocess == "sleep"
                else 0.0
            ),
            allreduce_seconds=workload.train.allreduce_time,
            reads_where_it_computes=(
                workload.train.compute == "gpu" and workload.dali.device == "gpu"
            ),
        )


class RankName(NamedTuple):
    """Whose records these are."""

    rank: int = 0
    host: str | None = None
    """None: not known, and of no use where nothing is said about a rank."""


class RankSums(NamedTuple):
    """One rank's steps inside the window; seconds are sums over steps and accelerators."""

    name: RankName
    num_steps: int
    wait: float
    late: float
    making: float


@dataclass(frozen=True, kw_only=True)
class EpochSums:
    """One epoch, over some accelerators."""

    epoch: int
    num_steps: int
    blocks: tuple[slice, ...]
    """Of steps: a checkpoint ends one."""
    window: NDArray[np.bool_]
    """(steps,) whether a step counts by the rule."""
    whole: bool
    """Whether each accelerator has each step once; if not, nothing else is known."""
    accelerators: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, _ACCELERATOR))
    """(accelerators,) in no order."""
    steps: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, _STEP))
    """(steps,)"""
    ranks: tuple[RankSums, ...] = ()
    read: float = 0.0
    """Seconds of workers in read calls, over all steps and accelerators."""
    making: float = 0.0
    """Seconds in which batches were made or waited for, whichever is longer, each summed."""

    def joined(self, other: "EpochSums") -> "EpochSums":
        """Return the sums over both's accelerators, which follow ours."""
        a, b = self.steps, other.steps
        if not (self.whole and other.whole and len(a) == len(b)):
            return replace(self if len(a) >= len(b) else other, whole=False)
        later = b["ready"] > a["ready"]
        steps = np.where(later, b, a)
        steps["rank"] += later * np.int32(len(self.ranks))
        for name in ("seconds", "overhead", "asked", "credited"):
            steps[name] = a[name] + b[name]
        for name in ("stall", "writing"):
            steps[name] = np.maximum(a[name], b[name])
        first = np.minimum(a["ready"], b["ready"])
        steps["ready_else"] = np.maximum(first, np.maximum(a["ready_else"], b["ready_else"]))
        return replace(
            self,
            accelerators=np.concatenate([self.accelerators, other.accelerators]),
            steps=steps,
            ranks=(*self.ranks, *other.ranks),
            read=self.read + other.read,
            making=self.making + other.making,
        )


@dataclass(frozen=True)
class Sums:
    """A run, over some accelerators."""

    rule: Rule
    epochs: tuple[EpochSums, ...]
    """In order."""

    def joined(self, other: "Sums") -> "Sums":
        """Return the sums over both's accelerators; those of `other` follow ours."""
        found = {each.epoch: each for each in self.epochs}
        for each in other.epochs:
            found[each.epoch] = found[each.epoch].joined(each) if each.epoch in found else each
        return Sums(self.rule, tuple(found[epoch] for epoch in sorted(found)))

    def of_all(self, num_accelerators: int) -> "Sums":
        """Return the epochs that all accelerators have ended.

        A rank writes whole epochs only. Where a run did not end, some ranks may have ended more.
        """
        ended = (each for each in self.epochs if len(each.accelerators) == num_accelerators)
        return replace(self, epochs=tuple(ended))


def left_out(metric: MetricSection) -> tuple[int, int]:
    """Return how many steps the edition leaves out at each block's start, and each epoch's end."""
    if metric.edition == "v1.0":
        return 1, 0
    return metric.exclude_start_steps, metric.exclude_end_steps


def step_seconds(steps: Steps) -> _Values:
    """Return the time of each step; they add up to the epoch's."""
    seconds: _Values = steps["wait"] + steps["overhead"] + steps["compute"] + steps["barrier"]
    return seconds


def epoch_spans(steps: Steps) -> dict[int, tuple[float, float]]:
    """Return when each epoch of a rank's records began and ended, on the rank's clock."""
    flat = steps.ravel()
    ends = flat["start"] + step_seconds(flat)
    spans = {}
    for epoch in np.unique(flat["epoch"]).tolist():
        own = flat["epoch"] == epoch
        spans[epoch] = float(flat["start"][own].min()), float(ends[own].max())
    return spans


def counted_spans(steps: Steps) -> list[tuple[float, float]]:
    """Return when the first step and the last one of each epoch of a rank's records ended."""
    flat = steps.ravel()
    ends = flat["start"] + step_seconds(flat)
    spans: list[tuple[float, float]] = []
    for epoch in np.unique(flat["epoch"]).tolist():
        own = flat["epoch"] == epoch
        first = own & (flat["step"] == flat["step"][own].min())
        spans.append((float(ends[first].max()), float(ends[own].max())))
    return spans


def credited_seconds(steps: Steps, edition: Edition) -> _Values:
    """Return the part of each step that counts as utilised."""
    seconds: _Values = steps["computation_time" if edition == "v1.0" else "compute"]
    return seconds


def au_of_each(credited: _Values, seconds: _Values) -> _Values:
    """Return the AU in percent of each accelerator; the benchmark's AU of a job is their mean."""
    return 100 * credited / seconds


def au_of(credited: _Values | np.float64, seconds: _Values | np.float64) -> float | None:
    """Return the AU in percent of a part of a run, over all its accelerators; None without time."""
    whole = seconds.sum()
    return float(au_of_each(credited.sum(), whole)) if whole > 1e-9 else None


def making_seconds(steps: Steps, preprocess_seconds: float) -> _Values:
    """Return how long each batch was made or waited for, whichever is longer."""
    known = steps["read"] + steps["decode"] + steps["hand_over"]
    known = known + preprocess_seconds * steps["num_samples"]
    longest: _Values = np.maximum(known, steps["wait"])
    return longest


def ends_of(steps: Steps) -> Ends:
    """Return after which steps of some records checkpoints were taken."""
    flat = steps.ravel()
    stalled = flat[flat["stall"] > 0]
    return {
        int(epoch): frozenset((stalled["step"][stalled["epoch"] == epoch] + 1).tolist())
        for epoch in np.unique(stalled["epoch"])
    }


def both_ends(a: Ends, b: Ends) -> Ends:
    """Return the ends of both."""
    return {epoch: a.get(epoch, frozenset()) | b.get(epoch, frozenset()) for epoch in {*a, *b}}


def sum_all(parts: Iterable[tuple[RankName, Steps]], rule: Rule) -> Sums:
    """Return the sums of the records of all ranks, each with its name.

    A part has whole accelerators; it is looked at twice, and only one at a time.
    """
    parts = list(parts)
    ends: Ends = reduce(both_ends, (ends_of(steps) for _, steps in parts), {})
    each = (sum_up(steps, rule, ends, name) for name, steps in parts)
    return reduce(Sums.joined, each, Sums(rule, ()))


def sum_up(steps: Steps, rule: Rule, ends: Ends, name: RankName) -> Sums:
    """Return the sums of one rank's records; `ends` are those of all ranks."""
    flat = steps.ravel()
    # Several times as fast as np.sort(order=…), which compares records field by field.
    flat = flat[np.lexsort((flat["step"], flat["accelerator"], flat["epoch"]))]
    epochs = np.split(flat, np.flatnonzero(np.diff(flat["epoch"])) + 1)
    return Sums(rule, tuple(_sum_epoch(each, rule, ends, name) for each in epochs if len(each)))


def _sum_epoch(flat: Steps, rule: Rule, ends: Ends, name: RankName) -> EpochSums:
    """Return the sums of one epoch's sorted records."""
    epoch, num_steps = int(flat["epoch"][0]), int(flat["step"].max()) + 1
    numbers = flat["accelerator"][flat["step"] == 0]
    bounds = [0, *sorted(end for end in ends.get(epoch, ()) if end < num_steps), num_steps]
    blocks = tuple(slice(begin, end) for begin, end in pairwise(bounds))
    window = _window(blocks, num_steps, rule)
    whole = len(flat) == len(numbers) * num_steps
    if whole:
        steps = flat.reshape(len(numbers), num_steps)
        whole = bool(
            (steps["step"] == np.arange(num_steps)).all()
            and (steps["accelerator"] == numbers[:, None]).all()
        )
    known = EpochSums(epoch=epoch, num_steps=num_steps, blocks=blocks, window=window, whole=whole)
    if not whole:
        return known
    making = making_seconds(steps, rule.preprocess_seconds)
    inside = steps[:, window]
    rank = RankSums(
        name,
        inside.size,
        float(inside["wait"].sum()),
        float((inside["compute"] - inside["computation_time"]).sum()),
        float((inside["read"] + inside["decode"] + inside["hand_over"]).sum()),
    )
    return replace(
        known,
        accelerators=_of_accelerators(steps, blocks, window, rule.edition),
        steps=_of_steps(steps, rule.edition),
        ranks=(rank,),
        read=float(steps["read"].sum()),
        making=float(making.sum()),
    )


def _window(blocks: Sequence[slice], num_steps: int, rule: Rule) -> NDArray[np.bool_]:
    """Return which steps count."""
    counts = np.ones(num_steps, np.bool_)
    for block in blocks:
        counts[block.start : min(block.start + rule.start, block.stop)] = False
    counts[max(0, num_steps - rule.end) :] = False
    return counts


def is_long_enough(window: NDArray[np.bool_], edition: Edition) -> bool:
    """Return whether a block, of which these steps count, has an AU by the rule."""
    # Edition v2.0 leaves out the samples of two steps, whatever its window is.
    return bool(window.any()) and (edition == "v1.0" or len(window) > _UNCOUNTED_STEPS)


def _of_accelerators(
    steps: Steps, blocks: Sequence[slice], window: NDArray[np.bool_], edition: Edition
) -> NDArray[np.void]:
    """Return the row of each accelerator, of (accelerators, steps) records."""
    rows = np.zeros(len(steps), _ACCELERATOR)
    seconds = step_seconds(steps)
    rows["accelerator"] = steps["accelerator"][:, 0]
    rows["num_samples"] = steps["num_samples"].sum(axis=1)
    rows["num_bytes"] = steps["num_bytes"].sum(axis=1)
    rows["num_reads"] = steps["num_reads"].sum(axis=1)
    rows["seconds"] = seconds.sum(axis=1)
    rows["asked"] = steps["computation_time"].sum(axis=1)
    rows["first_step"] = seconds[:, 0]
    rows["inside"] = seconds[:, window].sum(axis=1)
    for name in ("wait", "overhead", "barrier"):
        rows[name] = steps[name][:, window].sum(axis=1)
    counted = [block for block in blocks if is_long_enough(window[block], edition)]
    # As the published code does: a block weighs as much as its steps, the first included.
    weights = np.array([block.stop - block.start for block in counted], np.float64)
    for block, weight in zip(counted, weights / weights.sum(), strict=True):
        au, samples_per_second = _by_rule(
            steps[:, block], seconds[:, block], window[block], edition
        )
        rows["au"] += weight * au
        rows["samples_per_second"] += weight * samples_per_second
    return rows


def _by_rule(
    steps: Steps, seconds: _Values, window: NDArray[np.bool_], edition: Edition
) -> tuple[_Values, _Values]:
    """Return (accelerators,) AU and samples/s of a block.

    `steps` are (accelerators, steps) records, `window` the (steps,) of them that count.
    """
    inside = seconds[:, window].sum(axis=1)
    if edition == "v1.0":
        samples_per_second = steps["num_samples"].sum(axis=1) / seconds.sum(axis=1)
    else:
        # With its defaults the published code counts n - 2 steps over the time of n - 1. We do the
        # same, so that results can be compared; `true_samples_per_second` is correct.
        num_samples = steps["num_samples"][:, _UNCOUNTED_STEPS:].sum(axis=1)
        samples_per_second = num_samples / inside
    credited = credited_seconds(steps, edition)[:, window].sum(axis=1)
    return au_of_each(credited, inside), samples_per_second


def _of_steps(steps: Steps, edition: Edition) -> NDArray[np.void]:
    """Return the row of each step, of (accelerators, steps) records."""
    rows = np.zeros(steps.shape[1], _STEP)
    rows["seconds"] = step_seconds(steps).sum(axis=0)
    rows["overhead"] = steps["overhead"].sum(axis=0)
    rows["asked"] = steps["computation_time"].sum(axis=0)
    rows["credited"] = credited_seconds(steps, edition).sum(axis=0)
    rows["stall"] = steps["stall"].max(axis=0)
    rows["writing"] = steps["writing"].max(axis=0)
    ready = steps["wait"] + steps["compute"]
    latest = ready.argmax(axis=0)
    last = steps[latest, np.arange(len(rows))]
    rows["ready"] = ready.max(axis=0)
    rows["ready_else"] = -np.inf
    for name in ("num_samples", *_LATEST):
        rows[name] = last[name]
    return rows
