"""The time that accelerators lost in each step, and why.

A step lasts until its latest accelerator has finished; the others wait for it at the barrier. So
the latest accelerator shows why a step was long: it waited for its batch, or its compute took
longer than asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from dlemu.results.blocks import counted
from dlemu.results.records import Steps

_Values = NDArray[np.float64]


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


def find_losses(
    steps: Steps, rank_names: Sequence[str], *, window: tuple[int, int], preprocess_seconds: float
) -> Losses:
    """Return the losses in the steps that count; `window` is as in `blocks.left_out`.

    `steps` must be whole: each accelerator has each step once. `rank_names` has the rank of each
    accelerator; a worker sleeps `preprocess_seconds` for each sample.
    """
    steps = steps.ravel()
    steps = steps[np.lexsort((steps["step"], steps["accelerator"], steps["epoch"]))]
    epochs = [
        steps[steps["epoch"] == epoch].reshape(len(rank_names), -1)
        for epoch in np.unique(steps["epoch"])
    ]
    inside = np.concatenate([each[:, counted(each, *window)] for each in epochs], axis=1)
    return Losses(
        parts=_parts(inside, preprocess_seconds),
        ranks=_ranks(inside, np.asarray(rank_names)),
        making_seconds=float(_making(steps, preprocess_seconds).sum()),
    )


def _parts(steps: Steps, preprocess_seconds: float) -> Parts:
    """Return the parts of (accelerators, steps) records."""
    seconds = (steps["wait"] + steps["compute"] + steps["barrier"]).mean(axis=0)
    latest = (steps["wait"] + steps["compute"]).argmax(axis=0)
    last = steps[latest, np.arange(steps.shape[1])]
    # A worker may begin with a batch before it is waited for. The wait is divided as all of the
    # time in which the batch was made.
    of_wait = last["wait"] / np.maximum(_making(last, preprocess_seconds), 1e-9)
    asked = steps["computation_time"].mean(axis=0)
    lost = {
        "read": of_wait * last["read"],
        "decode": of_wait * last["decode"],
        "hand_over": of_wait * last["hand_over"],
        "preprocess": of_wait * preprocess_seconds * last["num_samples"],
        "oversleep": last["compute"] - last["computation_time"],
        "uneven": last["computation_time"] - asked,
        "meeting": last["barrier"],
    }
    total = max(float(seconds.sum()), 1e-9)
    shares = {name: float(part.sum()) / total for name, part in lost.items()}
    waited = float(last["wait"].sum()) / total
    known = sum(shares[name] for name in ("read", "decode", "hand_over", "preprocess"))
    return Parts(**shares, elsewhere=max(0.0, waited - known))


def _making(steps: Steps, preprocess_seconds: float) -> _Values:
    """Return how long each batch was made or waited for, whichever is longer."""
    known = steps["read"] + steps["decode"] + steps["hand_over"]
    known = known + preprocess_seconds * steps["num_samples"]
    longest: _Values = np.maximum(known, steps["wait"])
    return longest


def _ranks(steps: Steps, names: NDArray[np.str_]) -> tuple[RankLosses, ...]:
    """Return each rank's losses in (accelerators, steps) records."""
    ranks = list(dict.fromkeys(names.tolist()))
    ready = steps["wait"] + steps["compute"]
    ends = np.array([ready[names == rank].max(axis=0) for rank in ranks])
    seconds = max(float((ready + steps["barrier"]).mean(axis=0).sum()), 1e-9)
    saved = np.zeros(len(ranks))
    if len(ranks) > 1:
        second, first = np.sort(ends, axis=0)[-2:]
        np.add.at(saved, ends.argmax(axis=0), (first - second) / seconds)
    late = steps["compute"] - steps["computation_time"]
    making = steps["read"] + steps["decode"] + steps["hand_over"]
    return tuple(
        RankLosses(
            name=rank,
            saved=float(saved[number]),
            wait_seconds=float(steps["wait"][names == rank].mean()),
            late_seconds=float(late[names == rank].mean()),
            making_seconds=float(making[names == rank].mean()),
        )
        for number, rank in enumerate(ranks)
    )


def told(parts: Parts) -> str:
    """Return the parts as text, the largest first, without those below 0.1 %."""
    words = {
        "read": "waiting for reads",
        "decode": "waiting for decoding",
        "hand_over": "waiting for the hand-over",
        "preprocess": "waiting for preprocessing",
        "elsewhere": "waiting for batches that no worker was at",
        "oversleep": "compute ended late",
        "uneven": "compute times differ as asked",
        "meeting": "the barrier itself",
    }
    shares = {field.name: getattr(parts, field.name) for field in fields(parts)}
    largest = sorted(shares, key=lambda name: -shares[name])
    return ", ".join(
        f"{100 * shares[name]:.1f}% {words[name]}" for name in largest if shares[name] >= 0.001
    )
