"""What some short runs say about the storage that they read: the answer of `dlemu try`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from dlemu.results.metrics import passes
from dlemu.sizing.search import Point

_NOISE = 0.03
"""Relative error of a rate from one short run to the next (`benchmarks.try_truth` shows it)."""
_NEAR = 10.0
"""Points of AU: runs that are so much further off the threshold than the nearest do not count."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """How many accelerators a storage feeds, by some short runs."""

    num_accelerators: int
    low: int
    high: int | None
    """None: something other than the storage held the runs back."""
    real_accelerators: float | None = None
    """Number at which AU meets the threshold; None: the storage was not the limit."""
    interval: tuple[float, float] | None = None
    """Of `real_accelerators`."""
    limit: str = "storage"
    evidence: str = ""

    @property
    def at_least(self) -> bool:
        """Whether the storage may feed more than `high`."""
        return self.high is None


def conclude(
    points: Sequence[Point], *, threshold: float, read_ahead_share: float, most: int
) -> Estimate:
    """Return what runs say whose AU may be too high by `read_ahead_share`.

    Storage that is the limit moves the same bytes for any number, so N x AU of such a run gives the
    number at which AU meets the threshold. `most`: the number that could be tried at all.
    """
    failed = [p for p in points if not passes(p.au_percentage, threshold)]
    fewest = min((p.num_accelerators for p in failed), default=most + 1)
    passed = [p.num_accelerators for p in points if p not in failed]
    most_passed = max((number for number in passed if number < fewest), default=0)
    off = {id(p): abs(p.au_percentage - threshold) for p in points if p.limit == "storage"}
    if not any(p.limit == "storage" for p in failed):
        moved = max((p.num_accelerators * p.au_percentage / threshold for p in points), default=0.0)
        surely = math.floor(moved * (1 - read_ahead_share) * (1 - _NOISE))
        return _held_back(failed, fewest, most_passed, threshold, surely)
    near = [p for p in points if off.get(id(p), math.inf) <= min(off.values()) + _NEAR]
    feeds = [p.num_accelerators * p.au_percentage / threshold for p in near]
    low = min(feeds) * (1 - read_ahead_share) * (1 - _NOISE)
    high = max([most_passed, *feeds]) * (1 + _NOISE)  # what passed may have done better
    real = max(most_passed, fmean(feeds) * (1 - read_ahead_share / 2))
    number = min(max(math.floor(real), most_passed), fewest - 1)
    return Estimate(
        num_accelerators=number,
        low=min(number, math.floor(low)),
        high=max(number, math.floor(high)),
        real_accelerators=real,
        interval=(low, high),
        evidence=near[-1].evidence,
    )


def _held_back(
    failed: Sequence[Point], fewest: int, most_passed: int, threshold: float, surely: int
) -> Estimate:
    """Return what runs say that something other than the storage held back, or nothing.

    `surely`: the number that they moved enough for, without what was read ahead.
    """
    number, limit, evidence = most_passed, "none", f"nothing failed up to {most_passed}"
    if failed:
        worst = next(p for p in failed if p.num_accelerators == fewest)
        moved = max(p.num_accelerators * p.au_percentage / threshold for p in failed)
        number = min(max(most_passed, math.floor(moved)), fewest - 1)
        limit, evidence = worst.limit or "unclear", worst.evidence
    return Estimate(
        num_accelerators=number, low=min(number, surely), high=None, limit=limit, evidence=evidence
    )
