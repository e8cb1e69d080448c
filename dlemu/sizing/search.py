"""Finds the most accelerators that a storage feeds, by measuring.

    history of runs  -->  next_run: which number next, and why  -->  measure  -->  history ...

The next run follows from the history alone. So an interrupted search continues from its saved
points as if nothing had happened.

The arithmetic: saturated storage moves the same bytes for any number of accelerators, so N x AU is
constant. One saturated run therefore tells at which N the AU meets the threshold. The search
measures the first number that should fail, then confirms the number below it. docs/prediction.md
describes the method and how well it did in simulation.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

from dlemu.findings import Finding, note
from dlemu.judge.capacity import Capacity, Observed, Phase, infer, phases_of, real_accelerators
from dlemu.judge.metrics import passes
from dlemu.judge.steady import CEILING, Level, trend_of

# Run-to-run sd of AU in the published MLPerf Storage v1.0 cells: median 0.18 points, 90th
# percentile 0.84. The prior weighs as much as two runs' worth of evidence.
_PRIOR_SD = 0.3
_PRIOR_WEIGHT = 2
# The very first run reads up to about this many points low: nothing is warm yet.
_FIRST_RUN_LOW = 1.0
# A run is disturbed if its AU is this many points below what other runs promise (noise is smaller),
# or if the host kept it below this share of what the storage gave to more accelerators. Of each
# number, at most this many disturbed runs are left out.
_MOST_DISTURBED = 2
_DISTURBED_POINTS = 3.0
_DISTURBED_SHARE = 0.95
# More than 1.5 times what a storage feeds can make its rate collapse; such a run tells nothing.
_OVERLOAD = 1.5
# Short runs differ by this share of their rate, one sd (benchmarks/truth.py).
_SHORT_NOISE = 0.015
# A storage has changed if it gives this share less, or more, than before.
_CHANGED = 0.15


Evidence = tuple[Finding, ...]
"""What a limit was concluded from."""


@dataclass(frozen=True)
class Point:
    """One run: the number of accelerators, what they reached, and what limited them."""

    num_accelerators: int
    au_percentage: float
    samples_per_second: float
    read_bytes_per_second: float
    limit: str | None = None
    """Name of the limit, as in summary.json; None: not determined."""
    seconds: float = 0.0
    """Duration of the run."""
    evidence: Evidence = ()
    """What the limit was concluded from."""
    page_cache_share: float | None = None
    """Share of the bytes that came from memory, 0 to 1; None: the kernel does not tell."""
    au_with_stalls_percentage: float | None = None
    """AU with all waiting for checkpoints counted; None: the run took none."""
    findings: tuple[Finding, ...] = ()
    """What the run's verdict says as well, such as how much came from memory."""
    whole_au_percentage: float | None = None
    """AU with the first step of each epoch."""
    noise: float = 0.0
    """Relative standard error of its AU, by parts of its steps."""
    levels: tuple[Level, ...] = ()
    """Of the storage's rate, if it was the limit and changed; in order."""
    agrees: bool = True
    """Whether five rounds of the rate are within the bounds of `judge.steady`."""

    @property
    def fell(self) -> bool:
        """Whether the storage's rate fell once, and stayed there."""
        return trend_of(self.levels) == "fell"

    @property
    def settled_percentage(self) -> float:
        """AU at the last level of a rate that fell; else the AU."""
        last = self.levels[-1].au_percentage if self.fell else None
        return self.au_percentage if last is None else last


@dataclass(frozen=True)
class Event:
    """A run that was made, and what the search does next."""

    point: Point | None
    """The run just made; None before the first."""
    next: int | None
    """Accelerators of the next run; None: the search has ended."""
    reason: Finding
    """Why."""


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """The answer of a search."""

    num_accelerators: int
    """The most accelerators that pass; 0: one alone fails."""
    real_accelerators: float | None
    """Number at which AU meets the threshold, as a real number (N*). None: the storage was not the
    limit, or the runs contradict each other."""
    at_least: bool
    """The storage may feed more: nothing failed, or something other than the storage failed."""
    fewest_failed: int | None = None
    """The fewest accelerators that fail; None: nothing failed."""
    threshold: float
    """Least AU that passes, in percent."""
    points: tuple[Point, ...] = ()
    """All runs, in order."""
    confirmations: tuple[Point, ...] = ()
    """The last consecutive runs with `num_accelerators`; all pass."""
    interval: tuple[float, float] | None
    """95 % interval of `real_accelerators`; None: nothing bounds it from above."""
    low: int
    """`num_accelerators` lies between this and `high`, 95 %."""
    high: int | None
    """None: nothing bounds it from above."""
    is_computed: bool = False
    """No run had `num_accelerators`: the number follows from the rate of others."""
    limit: str
    """What held back the run that decides (`Point.limit`); `none` or `unclear`: nothing did."""
    evidence: Evidence = ()
    """What that was concluded from."""
    disagree: tuple[tuple[int, float], ...] = ()
    """Of two runs whose rates differ by more than their noise: accelerators and bytes/s."""
    first_reads: float | None = None
    """Bytes/s of files that were read for the first time, if they are slower than second reads."""
    phases: tuple[Phase, ...] = ()
    """What the storage fed over time, if that changed, in order; the answer is of the last."""

    @property
    def seconds(self) -> float:
        """Duration of all runs together."""
        return math.fsum(point.seconds for point in self.points)

    @property
    def storage_seconds(self) -> float | None:
        """For so long at least the storage gave what the answer says; None: it was not the limit.

        What it can do only for longer than that, such as a volume with credits, no run has seen.
        """
        if self.limit != "storage" or self.at_least:
            return None
        held = (point.seconds for point in self.points if point.limit == "storage")
        return self.phases[-1].seconds if self.phases else math.fsum(held)


@dataclass(frozen=True)
class Goal:
    """What a search looks for, and what it may try."""

    threshold: float
    """Least AU that passes, in percent."""
    max_accelerators: int
    start: int = 1
    """The first number to try; a good prediction saves runs."""
    confirm: int = 5
    """Consecutive passing runs that confirm the answer; 0 counts as 1."""
    steady_seconds: float = 0.0
    """Seconds of runs for which the storage is measured on until its rate is steady."""
    is_short: bool = False
    """Epochs are short: much of them is read in the step left out, and the files once more."""


def search(
    measure: Callable[[int], Point],
    goal: Goal,
    *,
    known: Sequence[Point] = (),
    on_event: Callable[[Event], None] = lambda event: None,
) -> Sizing:
    """Measure until the most accelerators that meet the goal's threshold are known.

    `known` are the points of an interrupted search, in order. `on_event` gets each point and what
    comes next, before the next run.
    """
    points = list(known)
    measured: Point | None = None
    while True:
        history = _History(points, goal)
        number, reason = history.next_run()
        on_event(Event(measured, number, reason))
        if number is None:
            return history.result(ended=True)
        measured = measure(number)
        points.append(measured)


def about_runs(confirm: int, made: int = 0) -> int:
    """Return about how many runs a search takes: one that fails, one near it, those that confirm.

    `made`: so many have not been enough.
    """
    return max(2 + max(1, confirm), made + 1)


def answer(points: Sequence[Point], goal: Goal) -> Sizing:
    """Return what runs say when there is time for no more."""
    return _History(points, goal, is_last=True).result(ended=False)


def by_first_reads(found: Sizing, feeds: float, rate: float) -> Sizing:
    """Return the answer of a storage whose second reads are faster, from what first reads feed."""
    number = min(found.num_accelerators, math.floor(feeds))
    ends = ((1 - _CHANGED) * feeds, (1 + _CHANGED) * feeds)
    return replace(
        found,
        num_accelerators=number,
        real_accelerators=feeds,
        at_least=found.high is None,
        interval=ends,
        low=min(number, math.floor(ends[0])),
        high=found.high if found.high is None else max(found.high, math.floor(ends[1])),
        is_computed=True,
        confirmations=(),
        limit="storage",
        disagree=(),
        first_reads=rate,
    )


class _History:
    """The runs so far, and what they say about each number of accelerators."""

    def __init__(self, points: Sequence[Point], goal: Goal, *, is_last: bool = False) -> None:
        self.all, self.goal, self.threshold = points, goal, goal.threshold
        self.confirm = max(1, goal.confirm)
        since, self.phases = _last_change(points, self.threshold, is_last=is_last)
        self.points = points[since:]
        """Those since the storage last changed."""
        self.counted = _undisturbed(self.points, self.threshold)
        if is_last and self.points and self.points[-1] not in self.counted:
            self.counted = list(self.points)  # it was not repeated: nobody knows
        self.runs: dict[int, list[float]] = {}
        """AU of the counted runs, by number of accelerators."""
        for point in self.counted:
            self.runs.setdefault(point.num_accelerators, []).append(point.settled_percentage)
        self.means = {number: fmean(runs) for number, runs in self.runs.items()}
        squares = [(au - self.means[n]) ** 2 for n, runs in self.runs.items() for au in runs]
        freedom = len(squares) - len(self.runs) + _PRIOR_WEIGHT
        self.sd = math.sqrt((math.fsum(squares) + _PRIOR_WEIGHT * _PRIOR_SD**2) / freedom)
        # An earlier search in this folder may have tried more than this one may try.
        allowed = [number for number in self.runs if number <= goal.max_accelerators]
        self.fewest_failed = min(filter(self._failed, allowed), default=goal.max_accelerators + 1)
        """The fewest accelerators that fail; max_accelerators + 1 if none fails."""
        passed = [number for number, au in self.runs.items() if passes(au[-1], self.threshold)]
        self.most_passed = max((n for n in passed if n < self.fewest_failed), default=0)
        """The most accelerators below `fewest_failed` whose last run passed."""

    def next_run(self) -> tuple[int | None, Finding]:
        """Return the number of accelerators to try next, and why; None: enough is known."""
        if not self.points:
            return self.goal.start, note("search_start")
        if (loads := self._loads()) is not None:
            return loads, note("not_steady_yet")
        last = self.points[-1].num_accelerators
        if self.points[-1] is not self.counted[-1]:
            return last, note("others_did_better")
        if self.fewest_failed == 1:
            return None, note("one_is_too_slow")
        passed = len(self._confirmations())
        if last < self.fewest_failed and passed == 0:
            return last, note("near_the_threshold")
        if last < self.fewest_failed <= last + self._resolution(last):
            if self._contradicted():
                return self.fewest_failed, note("others_did_better")
            if passed < self.confirm:
                return last, note("confirming", number=passed + 1, num_runs=self.confirm)
            return None, note("confirmed", num_runs=passed)
        feeds = self._feeds(self._near(self.counted))
        if feeds is None and self.fewest_failed - self.most_passed > 1:
            return self._grown(), note("not_held_back", num_accelerators=self.most_passed)
        fits = min(max(math.floor(feeds or 0), self.most_passed), self.fewest_failed - 1)
        resolution = self._resolution(fits)
        if fits > 0 and fits + resolution >= self.fewest_failed:
            return fits, note("confirming", number=1, num_runs=self.confirm)
        return fits + resolution, note("expected_to_fail", estimate=feeds)

    def _loads(self) -> int | None:
        """Return the number that loads the storage until it is steady; None: it is, or may be not.

        It is once two runs that it held back, one after the other, agree, each in itself as well.
        """
        held = [point for point in self.points if point.limit == "storage"]
        if not held or sum(point.seconds for point in self.all) >= self.goal.steady_seconds:
            return None
        feeds = [_phases(point, self.threshold)[-1].feeds for point in held]
        steady = [point.agrees and not point.levels for point in held]
        for a, b in pairwise(range(len(held))):
            if steady[a] and steady[b] and abs(feeds[a] - feeds[b]) < _CHANGED * feeds[b]:
                return None
        return held[-1].num_accelerators

    def result(self, *, ended: bool) -> Sizing:
        """Return the answer; `ended`: `next_run` says that enough is known."""
        passed, failed = self.most_passed, self.fewest_failed
        failing = [p for p in self.counted if p.num_accelerators == failed]
        nothing_failed = not failing
        decides = (failing or self.points)[-1]
        found = self._inferred(decides if failing else None)
        if ended and nothing_failed and (found.real_accelerators or 0) >= passed + 1:
            found = Capacity(real_accelerators=None, interval=None, low=passed, high=None)
        limit = "storage" if found.high is not None else decides.limit or "unclear"
        number = passed
        if not ended and found.real_accelerators is not None:
            number = max(passed, min(math.floor(found.real_accelerators + 1e-9), failed - 1))
        low, high = self._with_phases(min(found.low, number), found.high)
        near = [p for p in self.counted if p.limit == limit and p.evidence]
        return Sizing(
            num_accelerators=number,
            real_accelerators=found.real_accelerators,
            at_least=high is None,
            fewest_failed=None if nothing_failed else failed,
            threshold=self.threshold,
            points=tuple(self.all),
            confirmations=tuple(self._runs_of(number)),
            interval=found.interval,
            low=low,
            high=None if high is None else max(high, number),
            is_computed=self._is_computed(number) and (number > 0 or high is not None),
            limit=limit,
            evidence=near[-1].evidence if near else decides.evidence,
            disagree=tuple(
                (each.num_accelerators, each.bytes_per_second) for each in found.disagree or ()
            ),
            phases=self._with_real(found.real_accelerators),
        )

    def _inferred(self, failing: Point | None) -> Capacity:
        """Return what the runs say of the storage, if it explains the run that `failing` is."""
        seen = [self._observed(point) for point in self._settled_in]
        passed, failed = self.most_passed, None if failing is None else failing.num_accelerators
        found = infer(seen, threshold=self.threshold, passed=passed, failed=failed)
        if failing is None or failing.limit == "storage" or found.high is None:
            return found
        real, number = found.real_accelerators, failing.num_accelerators
        moved = number * failing.settled_percentage / self.threshold
        if real is not None and (1 - _CHANGED / 3) * real < moved < real < number:
            return found
        others = [run for run in seen if not run.held]
        return infer(others, threshold=self.threshold, passed=passed, failed=failed)

    @property
    def _settled_in(self) -> Sequence[Point]:
        """The counted runs; the first of all is low, and counts only if there is no other."""
        others = [point for point in self.counted if point is not self.all[0]]
        held = any(point.limit == "storage" for point in others)
        return others if held and not self.goal.is_short else self.counted

    def _observed(self, point: Point) -> Observed:
        settled, whole = point.settled_percentage, point.whole_au_percentage
        is_part = bool(point.levels) or whole is None or not self.goal.is_short
        phases = _phases(point, self.threshold)
        feeds = [phase.feeds for phase in phases]
        prior = _SHORT_NOISE if self.goal.is_short else self.sd / self.threshold
        return Observed(
            num_accelerators=point.num_accelerators,
            au_percentage=settled,
            least_au_percentage=settled if whole is None or is_part else min(settled, whole),
            held=True if point.limit == "storage" else False if point.limit == "none" else None,
            noise=math.hypot(prior, point.noise),
            bytes_per_second=phases[-1].bytes_per_second
            if point.fell
            else point.read_bytes_per_second,
            between=None if point.fell or len(feeds) == 1 else (min(feeds), max(feeds)),
        )

    def _with_real(self, real: float | None) -> tuple[Phase, ...]:
        """Return the phases, the last one with N*."""
        if real is None or not self.phases:
            return self.phases
        *before, last = self.phases
        return (*before, replace(last, feeds=real))

    def _is_computed(self, number: int) -> bool:
        """Return whether no run decides about a number; that 0 is the answer, a run with 1 does."""
        runs = self._runs_of(number) if number else self.all
        return not any(point.num_accelerators == max(1, number) for point in runs)

    def _with_phases(self, low: int, high: int | None) -> tuple[int, int | None]:
        """Return a range that has what the storage fed before it changed: that may come again."""
        for phase in () if self.goal.steady_seconds else self.phases[:-1]:
            low = min(low, math.floor(phase.feeds))
            if high is not None:
                high = max(high, math.floor(phase.feeds))
        return low, high

    def _runs_of(self, number: int) -> list[Point]:
        """Return the runs that confirm the number: the last passing ones with it."""
        if number == 0:
            return []
        confirming = self._confirmations()[-self.confirm :]
        if confirming and confirming[-1].num_accelerators == number:
            return confirming
        return [p for p in self.counted if p.num_accelerators == number and self._passed(p)]

    def _passed(self, point: Point) -> bool:
        return passes(point.settled_percentage, self.threshold)

    def _contradicted(self) -> bool:
        """Return whether the only run that failed got clearly less than fewer accelerators did."""
        runs = self.runs.get(self.fewest_failed, [])
        moved = self.most_passed * self.means[self.most_passed]
        return len(runs) == 1 and runs[0] * self.fewest_failed < (1 - _CHANGED / 2) * moved

    def _failed(self, number: int) -> bool:
        """Return whether this number fails: a near miss of the very first run is repeated."""
        misses = [au for au in self.runs[number] if not passes(au, self.threshold)]
        first = self.points[0]
        if first.num_accelerators == number and first.au_percentage in misses:
            near = 2 * self.sd + _FIRST_RUN_LOW
            return len(misses) > 1 or misses[0] < self.threshold - near
        return bool(misses)

    def _confirmations(self) -> list[Point]:
        """Return the passing runs at the end of the history, all with the last run's number."""
        confirming: list[Point] = []
        for point in reversed(self.points):
            same = point.num_accelerators == self.points[-1].num_accelerators
            if not same or not self._passed(point):
                break
            confirming.insert(0, point)
        return confirming

    def _resolution(self, number: int) -> int:
        """Return how many accelerators the noise of one run amounts to, at least 1."""
        return max(1, round(number * self.sd / self.threshold))

    def _saturated(self, number: int) -> bool:
        """Return whether the storage, or the host, moves all it can with this number.

        It does not where AU is at its ceiling (as good as with a tenth fewer accelerators). Where
        another number moved clearly more, this one is not saturated, or the storage is overloaded.
        """
        mean = self.means[number]
        fewer = max((n for n in self.means if n * 1.1 <= number), default=None)
        reference = CEILING if fewer is None else self.means[fewer]
        noise = min(3.0, max(1.0, 3 * self.sd))  # bounded: a noisy host must not hide saturation
        if mean >= reference - max(noise, (reference - self.threshold) / 2):
            return False
        most = max(n * au for n, au in self.means.items())
        return number * mean >= most * (1 - max(0.02, noise / self.threshold))

    def _near(self, among: Sequence[Point]) -> list[Point]:
        """Return the saturated runs of these whose AU is nearest to the threshold."""
        saturated = {n for n in self.means if self._saturated(n)}
        points = [p for p in among if p.num_accelerators in saturated]
        if not points:
            return []
        off = [abs(p.au_percentage - self.threshold) for p in points]
        near = [p for p, o in zip(points, off, strict=True) if o <= max(5.0, min(off))]
        return [p for p in near if p is not self.points[0]] or near

    def _feeds(self, near: Sequence[Point]) -> float | None:
        """Return the real number at which AU meets the threshold; None without saturated runs."""
        moved = [p.num_accelerators * p.au_percentage for p in near]
        return fmean(moved) / self.threshold if moved else None

    def _grown(self) -> int:
        """Return the next number to try while no run was saturated."""
        if self.most_passed == 0:
            return 1
        reached = self.most_passed * self.means[self.most_passed] / self.threshold
        # Up to 8 accelerators do not overload a drive, so doubling is safe and saves a run.
        doubled = min(2 * self.most_passed, 8)
        grown = max(doubled, self.most_passed + 1, round(_OVERLOAD * reached))
        if self.fewest_failed <= self.goal.max_accelerators:
            grown = min(grown, (self.most_passed + self.fewest_failed) // 2)
        return min(grown, self.fewest_failed - 1)


def _last_change(
    points: Sequence[Point], threshold: float, *, is_last: bool
) -> tuple[int, tuple[Phase, ...]]:
    """Return from which run on the storage gives what it gives last, and what it fed before.

    It has become slower if all that it held back since fed clearly less than an earlier run with as
    many accelerators or more. Two runs must show it, or one by the levels of its rate, or the last
    one that there is time for.
    """
    fewest = 1 if is_last else 2
    phases = [_phases(point, threshold) for point in points]
    for place, point in enumerate(points):
        if len(point.levels) > 2:  # it went up and down: its best may come again, and is no change
            mean = _phases(replace(point, levels=()), threshold)[0]
            phases[place] = [replace(mean, at_least=True)]
    for since, first in enumerate(points):
        earlier = [phase for each in phases[:since] for phase in each]
        earlier += phases[since][:1] if first.fell else []
        later = [each[-1] for each in phases[since:]]
        held = [phase for phase in later if not phase.at_least]
        if not earlier or later[0].at_least or (len(held) < fewest and not first.fell):
            continue
        most = max(point.num_accelerators for point in points[: since + first.fell])
        slower = (1 - _CHANGED) * max(phase.feeds for phase in earlier)
        if first.num_accelerators <= most and all(phase.feeds < slower for phase in later):
            return since, (_together(earlier), _together(held))
    return 0, ()


def _phases(point: Point, threshold: float) -> list[Phase]:
    """Return what the storage fed in a run; at least so much where it was not the limit."""
    number, au, rate = point.num_accelerators, point.au_percentage, point.read_bytes_per_second
    if point.levels:
        whole = au if point.whole_au_percentage is None else point.whole_au_percentage
        return phases_of(number, whole, point.levels, threshold)
    feeds = real_accelerators(number, au, threshold)
    is_free = point.limit != "storage" or au >= CEILING
    return [Phase(point.seconds, feeds, rate, is_free)]


def _together(phases: Sequence[Phase]) -> Phase:
    """Return phases as one: of those at which the storage was the limit, else the most that was."""
    best = max(phases, key=lambda phase: phase.feeds)
    seconds = math.fsum(phase.seconds for phase in phases)
    held = [phase for phase in phases if not phase.at_least]
    if best.at_least or not held:
        return replace(best, seconds=seconds)
    feeds, rate = (
        fmean(getattr(each, name) for each in held) for name in ("feeds", "bytes_per_second")
    )
    return Phase(seconds, feeds, rate, at_least=False)


def _undisturbed(points: Sequence[Point], threshold: float) -> list[Point]:
    """Return the runs without those that were disturbed, in order."""
    left_out: set[int] = set()
    more: list[Point] = []
    for number in sorted({point.num_accelerators for point in points}, reverse=True):
        runs = [point for point in points if point.num_accelerators == number]
        bad = [run for run in runs if _disturbed(run, runs, more, threshold)]
        left_out |= {id(run) for run in bad[:_MOST_DISTURBED]}
        more += [run for run in runs if id(run) not in left_out]
    return [point for point in points if id(point) not in left_out]


def _disturbed(run: Point, same: Sequence[Point], more: Sequence[Point], threshold: float) -> bool:
    """Return whether a run contradicts others with as many accelerators (`same`) and with `more`.

    It should be at the ceiling (at least the others' AU) or move no less than more accelerators.
    """
    if not more:
        return False
    ceiling = max(other.au_percentage for other in [*same, *more] if other is not run)
    reached = max(other.num_accelerators * other.au_percentage for other in more)
    promised = min(ceiling, reached / run.num_accelerators)
    if run.au_percentage < promised - _DISTURBED_POINTS:
        return True
    moved = run.num_accelerators * run.au_percentage
    hosts_fault = run.limit not in (None, "storage") and any(p.limit == "storage" for p in more)
    failed = not passes(run.au_percentage, threshold)
    return failed and hosts_fault and moved < _DISTURBED_SHARE * reached
