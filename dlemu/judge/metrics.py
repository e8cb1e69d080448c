"""Steps of all accelerators to accelerator utilisation and samples/s, and the time they lost.

Source: MLPerf Storage rules and DLIO's statistics code, v1.0 and v2.0; v3.0 has v2.0's formulas.
docs/rules.md has them in full, and what is wrong in them. In both, an epoch's AU is the mean over
accelerators and its samples/s the sum; the job's value is the mean over epochs.

A step lasts until its latest accelerator has finished; the others wait for it at the barrier. So
the latest accelerator shows why a step was long: it waited for its batch, or its compute took
longer than asked.

All AUs are 100 x credited compute / time (`au_of_each`). They differ in their steps:

    au_percentage               the rule's: the edition's counted steps, of each block between
                                checkpoints, weighted by its steps (sums._by_rule); it decides
    accelerator_au              the same of each accelerator, before the mean over them
    whole_epoch_au_percentage   all steps of an epoch, the first included, without stalls: what is
                                much lower than the rule's shows that reading hides in first steps
    au_with_stalls_percentage   as before, and the time of all stalls for checkpoints
    delivered_au_percentage     with stalls if there were checkpoints, else of the whole epoch; a
                                PASS that it meets as well is proven
    au_parts                    the rule's credit in about ten parts of the counted steps, of which
                                `au_interval` is the interval of the mean: the noise within the run
    au_while_writing_percentage, au_otherwise_percentage
                                steps during writes of checkpoints, and the others

While a run goes on, `run.live.StepsSoFar` has the rule's over the steps that have ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlemu.config.model import Workload
from dlemu.errors import RunError, WorkloadError
from dlemu.judge.records import Steps
from dlemu.judge.summary import CheckpointCost
from dlemu.judge.sums import (
    Edition,
    EpochSums,
    RankName,
    RankSums,
    Rule,
    Sums,
    au_of,
    au_of_each,
    is_long_enough,
    making_seconds,
    sum_all,
)


@dataclass(frozen=True, kw_only=True)
class LostShares:
    """Shares (0-1) of the running time that were lost, by what the latest accelerator did."""

    read: float = 0.0
    """It waited for a batch while the batch's worker was in read calls."""
    decode: float = 0.0
    hand_over: float = 0.0
    preprocess: float = 0.0
    """The worker slept for `reader.preprocess_time`."""
    elsewhere: float = 0.0
    """The worker did none of these: it had no CPU, or the batch was in a queue."""
    oversleep: float = 0.0
    """Compute took longer than asked, and its GPU did not decode meanwhile."""
    uneven: float = 0.0
    """Its compute was asked to take longer than the accelerators' mean."""
    allreduce: float = 0.0
    """All accelerators were at the barrier, and the job's all-reduce (`train.allreduce_time`) was
    not over: a part of the job that neither the storage nor dlemu costs."""
    meeting: float = 0.0
    """All accelerators were at the barrier, the all-reduce was over, and it had not opened yet."""

    @property
    def waited(self) -> float:
        """All waiting for batches."""
        return self.read + self.decode + self.hand_over + self.preprocess + self.elsewhere

    @property
    def total(self) -> float:
        """All that was lost."""
        return self.waited + self.oversleep + self.uneven + self.allreduce + self.meeting


@dataclass(frozen=True, kw_only=True)
class RankLosses:
    """The losses of one rank; seconds are means over its steps."""

    name: RankName
    saved: float
    """Share (0-1) of the running time that would not have been lost without this rank."""
    wait_seconds: float
    late_seconds: float
    """By which compute took longer than asked."""
    making_seconds: float
    """Of a batch: reads, decode, hand-over."""


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Shares of the time that a run lost, by cause."""

    parts: LostShares
    ranks: tuple[RankLosses, ...]
    making_seconds: float
    """Sum over all batches of the seconds in which a batch was made or waited for."""


def find_losses(sums: Sums) -> Losses:
    """Return the losses in the steps that count; the sums are whole, as `measure_sums` checks."""
    return Losses(
        parts=find_parts(sums.epochs, sums.rule),
        ranks=_ranks(sums, _seconds(sums.epochs)),
        making_seconds=sum(each.making for each in sums.epochs),
    )


def _seconds(epochs: Sequence[EpochSums]) -> float:
    """Return the mean over accelerators of the time of the steps that count."""
    inside = np.concatenate([each.steps[each.window] for each in epochs])
    return float((inside["seconds"] - inside["overhead"]).sum()) / len(epochs[0].accelerators)


def find_parts(epochs: Sequence[EpochSums], rule: Rule) -> LostShares:
    """Return the shares lost in some epochs."""
    # The latest accelerator of each step.
    last = np.concatenate([each.steps[each.window] for each in epochs])
    accelerators = len(epochs[0].accelerators)
    # A worker may begin with a batch before it is waited for. The wait is divided as all of the
    # time in which the batch was made.
    of_wait = last["wait"] / np.maximum(making_seconds(last, rule.preprocess_seconds), 1e-9)
    own = last["wait"] + last["compute"] + last["barrier"]
    allreduce = np.minimum(last["barrier"], rule.allreduce_seconds)
    lost = {
        "read": of_wait * last["read"],
        "decode": of_wait * last["decode"],
        "hand_over": of_wait * last["hand_over"],
        "preprocess": of_wait * rule.preprocess_seconds * last["num_samples"],
        "oversleep": last["compute"] - last["computation_time"],
        "uneven": last["computation_time"] - last["asked"] / accelerators,
        # Ranks leave a barrier at different moments. A step of all takes as long as the mean of
        # theirs: what the latest one's own lasts longer or shorter was lost, or won, in meeting.
        "meeting": last["barrier"]
        - allreduce
        + (last["seconds"] - last["overhead"]) / accelerators
        - own,
        "allreduce": allreduce,
    }
    total = max(_seconds(epochs), 1e-9)
    shares = {name: float(part.sum()) / total for name, part in lost.items()}
    waited = float(last["wait"].sum()) / total
    known = sum(shares[name] for name in ("read", "decode", "hand_over", "preprocess"))
    if rule.reads_where_it_computes and last["decode"].any():  # its steps waited for that
        shares["decode"] += shares["oversleep"]
        shares["oversleep"] = 0.0
    return LostShares(**shares, elsewhere=max(0.0, waited - known))


def _ranks(sums: Sums, seconds: float) -> tuple[RankLosses, ...]:
    """Return each rank's losses."""
    found: dict[RankName, list[RankSums]] = {}
    for each in sums.epochs:
        for rank in each.ranks:
            found.setdefault(rank.name, []).append(rank)
    saved = dict.fromkeys(found, 0.0)
    if len(found) > 1:
        for each in sums.epochs:
            steps = each.steps[each.window]
            sooner = (steps["ready"] - steps["ready_else"]) / max(seconds, 1e-9)
            sooner = np.bincount(steps["rank"], sooner, len(each.ranks))
            for rank, share in zip(each.ranks, sooner.tolist(), strict=True):
                saved[rank.name] += share
    return tuple(
        RankLosses(
            name=name,
            saved=saved[name],
            wait_seconds=sum(rank.wait for rank in ranks) / count,
            late_seconds=sum(rank.late for rank in ranks) / count,
            making_seconds=sum(rank.making for rank in ranks) / count,
        )
        for name, ranks in found.items()
        if (count := sum(rank.num_steps for rank in ranks))
    )


_Values = NDArray[np.float64]
_PARTS = 10
"""Of an epoch's steps. Longer parts are nearly independent of each other."""
_FEWEST_PARTS = 5
"""Parts below which a spread says nothing."""
# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def passes(au_percentage: float, threshold: float) -> bool:
    """Return whether an AU meets a threshold, both in percent.

    Every command uses this rule: both are rounded to two decimals, as in published results.
    """
    return round(au_percentage, 2) >= round(threshold, 2)


def t95(freedom: float) -> float:
    """Return Student's two-sided 95 % quantile, for whole degrees of freedom below."""
    return _T95[max(1, int(min(freedom, len(_T95)))) - 1]


@dataclass(frozen=True, kw_only=True)
class EpochMetrics:
    """One epoch over all accelerators. Percentages are 0 to 100."""

    epoch: int
    num_steps: int
    au_percentage: float
    """By the edition's rule."""
    samples_per_second: float
    """By the edition's rule."""
    whole_epoch_au_percentage: float
    """Nominal compute over all steps, the first included, without stalls for checkpoints."""
    true_samples_per_second: float
    """Samples over the whole epoch's time."""
    first_step_seconds: float
    """Mean over accelerators; it is outside the rule's window."""
    num_blocks: int
    """Parts that checkpoints cut the epoch into; 1 without."""
    num_counted: int
    """Steps inside the rule's window."""
    seconds: float
    """Longest time of an accelerator, with its stalls."""
    num_samples: int
    read_bytes: int
    """Really read by the loaders."""
    num_reads: int
    """Calls that read them; 0 where they are not counted."""
    wait_mean_seconds: float
    """Mean wait for a batch, first steps left out."""
    wait_p50_seconds: float
    """Over the window's steps, of the wait of each step's latest accelerator; p99 likewise."""
    wait_p99_seconds: float
    lost: LostShares
    """Shares of the window that were lost, by cause."""
    wait_share: float
    """Share of the window, 0 to 1, in which accelerators waited for batches."""
    overhead_share: float
    """Share of the window in which a real loop worked on its batch while its device was idle."""
    barrier_share: float
    """Share of the window in which they waited for other accelerators."""
    au_parts: Sequence[float]
    """AU of parts of the counted steps, about ten of the epoch: how far it varies."""
    accelerator_au: _Values
    """(accelerators,) AU of each by the edition's rule."""

    @property
    def read_bytes_per_second(self) -> float:
        """Bytes really read over the epoch's time."""
        return self.read_bytes / self.seconds

    @property
    def reads_per_second(self) -> float:
        """Read calls over the epoch's time."""
        return self.num_reads / self.seconds


@dataclass(frozen=True)
class Metrics:
    """A run."""

    edition: Edition
    num_accelerators: int
    epochs: tuple[EpochMetrics, ...]
    left_out: int
    """Steps of each epoch outside the edition's window, without checkpoints."""
    checkpoints: CheckpointCost | None = None
    """What they cost; None without any."""

    def mean(self, name: str) -> float:
        """Return the mean over epochs of a field of EpochMetrics."""
        return float(np.mean([getattr(epoch, name) for epoch in self.epochs]))

    @property
    def au_percentage(self) -> float:
        """The job's AU: mean over epochs."""
        return self.mean("au_percentage")

    @property
    def au_interval(self) -> list[float] | None:
        """The 95 % interval of the AU by parts of its steps; None of fewer than five parts.

        It knows the noise within the run alone: another run may differ by more.
        """
        parts = [part for epoch in self.epochs for part in epoch.au_parts]
        if len(parts) < _FEWEST_PARTS:
            return None
        half = t95(len(parts) - 1) * self.au_percentage * self.au_noise
        return [max(0.0, self.au_percentage - half), min(100.0, self.au_percentage + half)]

    @property
    def au_noise(self) -> float:
        """Relative standard error of the AU, by parts of its steps; 0 of fewer than five parts."""
        parts = [part for epoch in self.epochs for part in epoch.au_parts]
        if len(parts) < _FEWEST_PARTS:
            return 0.0
        error = float(np.std(parts, ddof=1) / np.sqrt(len(parts)))
        return error / max(self.au_percentage, 1e-9)

    @property
    def samples_per_second(self) -> float:
        """The job's samples/s: mean over epochs."""
        return self.mean("samples_per_second")

    @property
    def whole_epoch_au_percentage(self) -> float:
        """Mean over epochs of the AU with the first step left in."""
        return self.mean("whole_epoch_au_percentage")

    @property
    def whole_run_au_percentage(self) -> float:
        """Of the time of all epochs together: a slow epoch counts for as long as it took."""
        of_each = [each.whole_epoch_au_percentage for each in self.epochs]
        return float(np.average(of_each, weights=[each.seconds for each in self.epochs]))

    @property
    def read_bytes(self) -> int:
        """Bytes really read by the loaders, all epochs."""
        return sum(epoch.read_bytes for epoch in self.epochs)

    @property
    def read_bytes_per_second(self) -> float:
        """Bytes really read over the time of all epochs."""
        return self.read_bytes / sum(epoch.seconds for epoch in self.epochs)

    @property
    def delivered_au_percentage(self) -> float:
        """AU of the whole time: with the first steps, and with the stalls for checkpoints."""
        if self.checkpoints is None:
            return self.whole_epoch_au_percentage
        return self.checkpoints["au_with_stalls_percentage"]


def measure(
    steps: Steps | Sequence[Steps],
    *,
    edition: Edition = "v1.0",
    exclude_start_steps: int = 1,
    exclude_end_steps: int = 0,
) -> Metrics:
    """Return the metrics of a run from the records of all its accelerators.

    Of several arrays each has whole accelerators. The `exclude_` numbers count in edition v2.0
    only; v1.0 always leaves out the first step.

    Raises:
        RunError: a step of an accelerator is missing or there twice.
        WorkloadError: an epoch has too few steps for the window.
    """
    if edition == "v1.0":
        exclude_start_steps, exclude_end_steps = 1, 0
    rule = Rule(edition=edition, start=exclude_start_steps, end=exclude_end_steps)
    return _measure_steps(steps, rule)


def measure_sums(sums: Sums) -> Metrics:
    """Return the metrics of a run from the sums over all its accelerators; raises as `measure`."""
    if not sums.epochs:
        raise WorkloadError(
            "no step was run, so there is nothing to measure; raise train.epochs or "
            "dataset.num_files_train"
        )
    numbers = [each.accelerators["accelerator"] for each in sums.epochs]
    num_accelerators = max((int(each.max()) + 1 for each in numbers if len(each)), default=0)
    for each, found in zip(sums.epochs, numbers, strict=True):
        if not each.whole or not np.array_equal(np.sort(found), np.arange(num_accelerators)):
            raise RunError(
                f"epoch {each.epoch}: not every accelerator has the steps 0 to "
                f"{each.num_steps - 1}, each once; the run did not end, or a steps.<rank>.npy is "
                "missing"
            )
        if not np.isfinite(each.accelerators["seconds"]).all():
            raise RunError(
                f"epoch {each.epoch}: a step's time is no number; a steps.<rank>.npy is damaged: "
                "restore it from a copy, or run again"
            )
    epochs = tuple(_measure_epoch(each, sums.rule) for each in sums.epochs)
    num_out = sums.rule.start + sums.rule.end
    cost = checkpoint_cost(sums.epochs)
    return Metrics(sums.rule.edition, num_accelerators, epochs, num_out, cost)


def measure_run(workload: Workload, steps: Steps | Sequence[Steps]) -> Metrics:
    """Return a run's metrics by the edition that its workload asks for; raises as `measure`."""
    return _measure_steps(steps, Rule.of(workload))


def _measure_steps(steps: Steps | Sequence[Steps], rule: Rule) -> Metrics:
    parts = [steps] if isinstance(steps, np.ndarray) else steps
    return measure_sums(sum_all(((RankName(), part) for part in parts), rule))


def _measure_epoch(sums: EpochSums, rule: Rule) -> EpochMetrics:
    blocks, window = sums.blocks, sums.window
    if not any(is_long_enough(window[block], rule.edition) for block in blocks):
        raise _too_short(sums, rule.edition)
    rows = sums.accelerators[np.argsort(sums.accelerators["accelerator"])]
    seconds, num_samples = rows["seconds"], rows["num_samples"]
    stall = float(sums.steps["stall"].sum())
    num_counted = int(window.sum())
    half, most = np.quantile(sums.steps["wait"][window], (0.5, 0.99))

    def share(name: str) -> float:
        return float(rows[name].sum() / rows["inside"].sum())

    return EpochMetrics(
        epoch=sums.epoch,
        num_steps=sums.num_steps,
        num_blocks=len(blocks),
        num_counted=num_counted,
        au_percentage=float(rows["au"].mean()),
        samples_per_second=float(rows["samples_per_second"].sum()),
        whole_epoch_au_percentage=float(au_of_each(rows["asked"], seconds).mean()),
        true_samples_per_second=float((num_samples / (seconds + stall)).sum()),
        first_step_seconds=float(rows["first_step"].mean()),
        seconds=float(seconds.max()) + stall,
        num_samples=int(num_samples.sum()),
        read_bytes=int(rows["num_bytes"].sum()),
        num_reads=int(rows["num_reads"].sum()),
        wait_mean_seconds=float(rows["wait"].mean() / num_counted),
        wait_p50_seconds=float(half),
        wait_p99_seconds=float(most),
        lost=find_parts([sums], rule),
        wait_share=share("wait"),
        overhead_share=share("overhead"),
        barrier_share=share("barrier"),
        au_parts=_au_parts(sums),
        accelerator_au=rows["au"],
    )


def checkpoint_cost(epochs: Sequence[EpochSums]) -> CheckpointCost | None:
    """Return what checkpoints cost; None if the run wrote none.

    DLIO measures each block of steps between two checkpoints as it would measure an epoch without
    any. The time of a checkpoint lies between two blocks, so its rule leaves it out.
    """
    stalls = [epoch.steps["stall"] for epoch in epochs]
    number = sum(int((stall > 0).sum()) for stall in stalls)
    if not number:
        return None
    # (steps,) means over accelerators.
    all_seconds = [epoch.steps["seconds"] / len(epoch.accelerators) for epoch in epochs]
    all_asked = [epoch.steps["asked"] / len(epoch.accelerators) for epoch in epochs]
    with_stalls = [
        au_of_each(asked.sum(), seconds.sum() + stall.sum())
        for asked, seconds, stall in zip(all_asked, all_seconds, stalls, strict=True)
    ]
    seconds = np.concatenate([each[1:] for each in all_seconds])
    asked = np.concatenate([each[1:] for each in all_asked])
    during = np.concatenate([epoch.steps["writing"][1:] for epoch in epochs])
    lost = seconds - asked
    # Expected loss of these steps at the loss rate of the other steps.
    usual = lost[~during].sum() / max(asked[~during].sum(), 1e-9) * asked[during].sum()
    more = lost[during].sum() - usual if during.any() and not during.all() else 0.0
    return CheckpointCost(
        number=number,
        total_stall_seconds=float(sum(stall.sum() for stall in stalls)),
        au_with_stalls_percentage=float(np.mean(with_stalls)),
        steps_while_writing=int(during.sum()),
        au_while_writing_percentage=au_of(asked[during], seconds[during]),
        au_otherwise_percentage=au_of(asked[~during], seconds[~during]),
        lost_share=float(min(1.0, max(0.0, more / max(lost.sum(), 1e-9)))),
    )


def _au_parts(sums: EpochSums) -> list[float]:
    """Return the AU of parts of an epoch's counted steps, each of two steps or more."""
    inside = sums.steps[sums.window]
    parts = np.array_split(inside, max(1, min(_PARTS, len(inside) // 2)))
    return [float(au_of_each(part["credited"].sum(), part["seconds"].sum())) for part in parts]


def _too_short(sums: EpochSums, edition: Edition) -> WorkloadError:
    has, remedy = f"{sums.num_steps} steps", "dataset.num_files_train"
    if len(sums.blocks) > 1:
        has += f" in {len(sums.blocks)} blocks between checkpoints"
        remedy = "checkpoint.steps_between_checkpoints"
    return WorkloadError(
        f"epoch {sums.epoch} has {has}, too few for edition {edition}, which leaves out "
        f"{(~sums.window).sum()}; raise {remedy}"
    )
