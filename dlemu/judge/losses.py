"""The time that accelerators lost in each step, and why.

A step lasts until its latest accelerator has finished; the others wait for it at the barrier. So
the latest accelerator shows why a step was long: it waited for its batch, or its compute took
longer than asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from dlemu.judge.sums import EpochSums, RankSums, Sums, making_seconds

LOSSES: Mapping[str, str] = {
    "read": "waiting for reads",
    "decode": "waiting for decoding",
    "hand_over": "waiting for the hand-over",
    "preprocess": "waiting for preprocessing",
    "elsewhere": "batches waiting in a queue",
    "oversleep": "compute overran its target",
    "uneven": "compute times drawn unequal",
    "meeting": "barrier",
}
"""The fields of Parts in words."""


@dataclass(frozen=True, kw_only=True)
class Parts:
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
    """Compute took longer than asked."""
    uneven: float = 0.0
    """Its compute was asked to take longer than the accelerators' mean."""
    meeting: float = 0.0
    """All accelerators were at the barrier, and it had not opened yet."""

    @property
    def waited(self) -> float:
        """All waiting for batches."""
        return self.read + self.decode + self.hand_over + self.preprocess + self.elsewhere

    @property
    def total(self) -> float:
        """All that was lost."""
        return self.waited + self.oversleep + self.uneven + self.meeting


@dataclass(frozen=True, kw_only=True)
class RankLosses:
    """The losses of one rank; seconds are means over its steps."""

    name: str
    saved: float
    """Share (0-1) of the running time that would not have been lost without this rank."""
    wait_seconds: float
    late_seconds: float
    """By which compute took longer than asked."""
    making_seconds: float
    """Of a batch: reads, decode, hand-over."""


@dataclass(frozen=True, kw_only=True)
class Losses:
    """What a run lost."""

    parts: Parts
    ranks: tuple[RankLosses, ...]
    making_seconds: float
    """Sum over all batches of the seconds in which a batch was made or waited for."""


def find_losses(sums: Sums) -> Losses:
    """Return the losses in the steps that count; the sums are whole, as `measure_sums` checks."""
    return Losses(
        parts=find_parts(sums.epochs, sums.rule.preprocess_seconds),
        ranks=_ranks(sums, _seconds(sums.epochs)),
        making_seconds=sum(each.making for each in sums.epochs),
    )


def _seconds(epochs: Sequence[EpochSums]) -> float:
    """Return the mean over accelerators of the time of the steps that count."""
    inside = np.concatenate([each.steps[each.window] for each in epochs])
    return float((inside["seconds"] - inside["overhead"]).sum()) / len(epochs[0].accelerators)


def find_parts(epochs: Sequence[EpochSums], preprocess_seconds: float) -> Parts:
    """Return the shares lost in some epochs; a worker sleeps `preprocess_seconds` a sample."""
    # The latest accelerator of each step.
    last = np.concatenate([each.steps[each.window] for each in epochs])
    accelerators = len(epochs[0].accelerators)
    # A worker may begin with a batch before it is waited for. The wait is divided as all of the
    # time in which the batch was made.
    of_wait = last["wait"] / np.maximum(making_seconds(last, preprocess_seconds), 1e-9)
    lost = {
        "read": of_wait * last["read"],
        "decode": of_wait * last["decode"],
        "hand_over": of_wait * last["hand_over"],
        "preprocess": of_wait * preprocess_seconds * last["num_samples"],
        "oversleep": last["compute"] - last["computation_time"],
        "uneven": last["computation_time"] - last["asked"] / accelerators,
        "meeting": last["barrier"],
    }
    total = max(_seconds(epochs), 1e-9)
    shares = {name: float(part.sum()) / total for name, part in lost.items()}
    waited = float(last["wait"].sum()) / total
    known = sum(shares[name] for name in ("read", "decode", "hand_over", "preprocess"))
    return Parts(**shares, elsewhere=max(0.0, waited - known))


def _ranks(sums: Sums, seconds: float) -> tuple[RankLosses, ...]:
    """Return each rank's losses."""
    found: dict[str, list[RankSums]] = {}
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


def name_losses(parts: Parts) -> str:
    """Return the parts as text, the largest first, without those below 0.1 %."""
    shares = asdict(parts)
    largest = sorted(shares, key=lambda name: -shares[name])
    return ", ".join(
        f"{100 * shares[name]:.1f}% {LOSSES[name]}" for name in largest if shares[name] >= 0.001
    )
