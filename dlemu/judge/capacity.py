"""How many accelerators a storage feeds: the one inference from runs to N, N* and an interval.

A storage that is the limit moves the same bytes for any number of accelerators: such a run tells
its rate, N x AU / threshold in accelerators (N*). A run that nothing held back tells that the
storage gives at least so much. One that something else held back says nothing from above.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from dlemu.judge.metrics import passes, t95
from dlemu.judge.steady import Level

# Runs whose AU is so many points further off the threshold than the nearest do not count.
_NEAR = 8.0
# How much the rate may change with the number of accelerators: exponent of their ratio.
_BY_NUMBER = 0.1
# AU has two decimals.
_ROUNDING = 5e-4
_SURE = 2.5
"""Standard errors to either side: 95 %, and a little more, as they are themselves estimates."""


@dataclass(frozen=True)
class Observed:
    """A run, or the part of one over which the storage was steady."""

    num_accelerators: int
    au_percentage: float
    """By the rule."""
    least_au_percentage: float
    """With the first step, in which workers read ahead."""
    held: bool | None
    """Whether the storage held it back; None: something else did."""
    noise: float
    """Relative standard error of its rate."""
    bytes_per_second: float = 0.0
    between: tuple[float, float] | None = None
    """Of a storage whose rate went up and down: the least and the most that it fed meanwhile."""

    def feeds(self, threshold: float) -> float:
        """Return N* by this run alone; where the storage was not its limit, it feeds more."""
        return real_accelerators(self.num_accelerators, self._au, threshold)

    @property
    def _au(self) -> float:
        return (self.au_percentage + self.least_au_percentage) / 2

    def ends(self, threshold: float, *, far: float = 0.0) -> tuple[float, float]:
        """Return the least and the most of `feeds`, for reads ahead and noise.

        `far` counts that the rate may differ with the number at which AU meets the threshold.
        """
        both = sorted((self.least_au_percentage, self.au_percentage))
        low, high = (real_accelerators(self.num_accelerators, au, threshold) for au in both)
        share = _SURE * self.noise + far * abs(math.log(max(self._au, 1.0) / threshold))
        low, high = low * (1 - min(1.0, share)), high * (1 + share)
        if self.between is not None:
            return min(low, self.between[0]), max(high, self.between[1])
        return low, high


@dataclass(frozen=True)
class Phase:
    """A time over which a storage fed about the same."""

    seconds: float
    """Of runs, or of reading in one, until the next."""
    feeds: float
    """Accelerators, as a real number; at least so many if the storage was not the limit."""
    bytes_per_second: float
    at_least: bool


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """How many accelerators a storage feeds."""

    real_accelerators: float | None
    """N*. None: the storage was not the limit, or the runs disagree."""
    interval: tuple[float, float] | None
    """95 % interval of N*; None: nothing bounds it from above."""
    low: int
    """The number of accelerators lies between this and `high`, 95 %."""
    high: int | None
    """None: nothing bounds it from above."""
    disagree: tuple[Observed, Observed] | None = None
    """Two runs whose rates differ by more than their noise: the one with more first."""


def real_accelerators(num_accelerators: int, au_percentage: float, threshold: float) -> float:
    """Return N*: where AU meets the threshold, if the storage moves the same for any number."""
    wanted = round(threshold, 2) or threshold  # a threshold of nearly nothing is no zero
    return num_accelerators * round(au_percentage, 2) / wanted


def phases_of(
    num_accelerators: int, au_percentage: float, levels: Sequence[Level], threshold: float
) -> list[Phase]:
    """Return what a storage that was the limit of a run fed at each level of its rate.

    By its bytes, not by the AU of that time: what is read ahead keeps accelerators busy later. For
    the same reason `au_percentage` is that with the first steps, of all time together.
    """
    whole = real_accelerators(num_accelerators, au_percentage, threshold)
    later = [level.begin for level in levels[1:]]
    begins, ends = [0.0, *later], [*later, levels[-1].begin + levels[-1].seconds]
    return [
        Phase(end - begin, whole * each.share, each.bytes_per_second, each.is_free)
        for each, begin, end in zip(levels, begins, ends, strict=True)
    ]


def infer(
    runs: Sequence[Observed], *, threshold: float, passed: int, failed: int | None
) -> Capacity:
    """Return what runs say.

    `passed` is the most accelerators that pass, 0 for none; `failed` the fewest that fail, None
    where nothing does.
    """
    held = [run for run in runs if run.held]
    free = [run for run in runs if not run.held]
    surely = max((run.ends(threshold)[0] for run in free), default=0.0)
    surely = max(surely, passed if any(r.num_accelerators == passed for r in free) else 0.0)
    if not held:
        return Capacity(real_accelerators=None, interval=None, low=passed, high=None)
    near = _near(held, threshold)
    feeds = [run.feeds(threshold) for run in near]
    low, high = _interval(near, feeds, threshold)
    real: float | None = fmean(feeds)
    disagree = None
    if surely > max(
        run.ends(threshold)[1] for run in near
    ):  # fewer accelerators got more than the storage gave to more
        best = max(free, key=lambda run: run.feeds(threshold))
        disagree = near[0], best
        above = [run.num_accelerators for run in held if run.num_accelerators > surely]
        high = min(above, default=failed or math.inf)
        low, real = min(low, surely), None
        high = max(high - 1e-6, surely)
    elif apart := _apart(near, threshold):
        disagree = apart
    if math.isinf(high):
        return Capacity(
            real_accelerators=None, interval=None, low=passed, high=None, disagree=disagree
        )
    # What passed by more than its noise passes, what failed so fails.
    whole = max(math.floor(low + 1e-9), _clear(runs, passed, threshold))
    most = math.floor(high + 1e-9)
    if failed is not None and _fails(held, failed, threshold):
        most = min(most, failed - 1)
    most = max(most, whole, passed)
    whole = min(whole, most)
    if real is not None:
        real = _consistent(real, held, passed, failed, threshold)
    if real is not None:
        low, high = min(low, real), max(high, real)
    return Capacity(
        real_accelerators=real,
        interval=(max(0.0, low), high),
        low=whole,
        high=most,
        disagree=disagree,
    )


def expect(real: float, *, between: tuple[float, float], passes: int) -> Capacity:
    """Return what a prediction says: N*, from the worst to the best of its figures.

    `passes` is the most accelerators whose predicted AU passes. As AU has two decimals, that may be
    a little above `real`; N* is then that number. An infinite end is no bound.
    """
    low, high = between
    real = max(real, float(passes))
    return Capacity(
        real_accelerators=real,
        interval=(min(low, real), max(high, real)),
        low=min(passes, math.floor(low + 1e-9)),
        high=None if math.isinf(high) else max(passes, math.floor(high + 1e-9)),
    )


def _near(held: Sequence[Observed], threshold: float) -> list[Observed]:
    """Return the runs whose AU is nearest to the threshold: they say most about it."""
    off = [abs(run.au_percentage - threshold) for run in held]
    return [run for run, o in zip(held, off, strict=True) if o <= min(off) + _NEAR]


def _interval(
    near: Sequence[Observed], feeds: Sequence[float], threshold: float
) -> tuple[float, float]:
    """Return the interval of the mean of runs; of all where they differ by more than noise."""
    ends = [run.ends(threshold, far=_BY_NUMBER) for run in near]
    mean, number = fmean(feeds), len(feeds)
    low, high = (fmean(each) for each in zip(*ends, strict=True))
    half = [(mean - low) / math.sqrt(number), (high - mean) / math.sqrt(number)]
    if number > 1:
        spread = t95(number - 1) / _SURE * stdev(feeds) / math.sqrt(number)
        half = [max(each, spread) for each in half]
    if _apart(near, threshold):
        return min(low for low, _ in ends), max(high for _, high in ends)
    return mean - half[0], mean + half[1]


def _apart(runs: Sequence[Observed], threshold: float) -> tuple[Observed, Observed] | None:
    """Return the two runs that differ most, if that is more than their noise."""
    least = min(runs, key=lambda run: run.feeds(threshold))
    most = max(runs, key=lambda run: run.feeds(threshold))
    if least.ends(threshold)[1] >= most.ends(threshold)[0]:
        return None
    more, fewer = sorted((least, most), key=lambda run: -run.num_accelerators)
    return more, fewer


def _clear(runs: Sequence[Observed], passed: int, threshold: float) -> int:
    """Return the most accelerators that pass by more than noise, at most `passed`."""
    sure = [
        run.num_accelerators
        for run in runs
        if run.num_accelerators <= passed
        and passes(run.au_percentage, threshold)
        and (not run.held or run.ends(threshold)[0] >= run.num_accelerators)
    ]
    return max(sure, default=0)


def _fails(held: Sequence[Observed], failed: int, threshold: float) -> bool:
    """Return whether so many fail by more than noise, and the storage held them back."""
    return any(run.num_accelerators == failed and run.ends(threshold)[1] < failed for run in held)


def _consistent(
    real: float, held: Sequence[Observed], passed: int, failed: int | None, threshold: float
) -> float | None:
    """Return N* such that what passed passes by it, and what failed fails; None: there is none."""

    def fits(number: float) -> bool:
        return passed <= number + 1e-9 and (failed is None or number < failed)

    if fits(real):
        return real
    if passed > real > passed * (1 - _ROUNDING):
        return float(passed)
    deciding = [run for run in held if run.num_accelerators in (passed, failed)]
    if not deciding:
        return None
    nearest = fmean(run.feeds(threshold) for run in deciding)
    return nearest if fits(nearest) else None
