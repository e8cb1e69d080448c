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
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from dlemu.judge.findings import Finding, note
from dlemu.judge.metrics import passes
from dlemu.units import counted

# Run-to-run sd of AU in the published MLPerf Storage v1.0 cells: median 0.18 points, 90th
# percentile 0.84. The prior weighs as much as two runs' worth of evidence.
_PRIOR_SD = 0.3
_PRIOR_WEIGHT = 2
# The very first run reads up to about this many points low: nothing is warm yet.
_FIRST_RUN_LOW = 1.0
# AU where nothing waits for storage: 98.7 to 98.8 in the published cells, less some noise.
_CEILING = 98.0
# A run is disturbed if its AU is this many points below what other runs promise (noise is smaller),
# or if the host kept it below this share of what the storage gave to more accelerators. Of each
# number, at most this many disturbed runs are left out.
_MOST_DISTURBED = 2
_DISTURBED_POINTS = 3.0
_DISTURBED_SHARE = 0.95
# N* rests on runs with these limits: a run that another resource limited says nothing about the
# storage. "none" is the limit of a run that loses too little time to look for one.
_STORAGE = ("storage", "none")
# More than 1.5 times what a storage feeds can make its rate collapse; such a run tells nothing.
_OVERLOAD = 1.5
# One short run differs from the next by this share of its rate (benchmarks/truth.py).
_NOISE = 0.03
# Short runs whose AU is so many points further off the threshold than the nearest do not count.
_NEAR = 10.0


Evidence = str | tuple[Finding, ...]
"""What a limit was concluded from; a text in a search that was begun before November 2026."""


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


@dataclass(frozen=True)
class Event:
    """A run that was made, and what the search does next."""

    point: Point | None
    """The run just made; None before the first."""
    next: int | None
    """Accelerators of the next run; None: the search has ended."""
    reason: str


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
    """95 % interval of `real_accelerators`, from the noise of the runs; None where that is None."""
    limit: str
    """Limit of most of the failing runs (`Point.limit`); `none` or `unclear`: there is none."""

    @property
    def seconds(self) -> float:
        """Duration of all runs together."""
        return math.fsum(point.seconds for point in self.points)


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
            return history.result()
        measured = measure(number)
        points.append(measured)


def about_runs(confirm: int, made: int = 0) -> int:
    """Return about how many runs a search takes: one that fails, one near it, those that confirm.

    `made`: so many have not been enough.
    """
    return max(2 + max(1, confirm), made + 1)


class _History:
    """The runs so far, and what they say about each number of accelerators."""

    def __init__(self, points: Sequence[Point], goal: Goal) -> None:
        self.points, self.goal, self.threshold = points, goal, goal.threshold
        self.confirm = max(1, goal.confirm)
        self.counted = _undisturbed(points, self.threshold)
        self.runs: dict[int, list[float]] = {}
        """AU of the counted runs, by number of accelerators."""
        for point in self.counted:
            self.runs.setdefault(point.num_accelerators, []).append(point.au_percentage)
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

    def next_run(self) -> tuple[int | None, str]:
        """Return the number of accelerators to try next, and why; None: enough is known."""
        if not self.points:
            return self.goal.start, "start"
        last = self.points[-1].num_accelerators
        if self.points[-1] is not self.counted[-1]:
            return last, "disturbed, for more accelerators did better: once more"
        if self.fewest_failed == 1:
            return None, "one accelerator alone is under the threshold"
        passed = len(self._confirmations())
        if last < self.fewest_failed and passed == 0:
            return last, "within the noise of the threshold: once more"
        if last < self.fewest_failed <= last + self._resolution(last):
            if passed < self.confirm:
                return last, f"confirming run {passed + 1} of {self.confirm}"
            return None, f"{counted(passed, 'consecutive run')} passed"
        feeds = self._feeds(self._near(self.counted))
        if feeds is None and self.fewest_failed - self.most_passed > 1:
            return self._grown(), f"{self.most_passed} are not held back: more"
        fits = min(max(math.floor(feeds or 0), self.most_passed), self.fewest_failed - 1)
        resolution = self._resolution(fits)
        if fits > 0 and fits + resolution >= self.fewest_failed:
            return fits, f"confirming run 1 of {self.confirm}"
        return fits + resolution, f"the estimate is {feeds:.2f} accelerators: expected to fail"

    def result(self) -> Sizing:
        """Return the answer, once `next_run` says that enough is known."""
        number = self.most_passed
        confirmations = self._confirmations()[-self.confirm :] if number else ()
        failing = [p for p in self.counted if not passes(p.au_percentage, self.threshold)]
        limit = _limit_of(failing or self.points[-1:])
        nothing_failed = self.fewest_failed > self.goal.max_accelerators
        real, interval = None, None
        if limit == "storage" and not nothing_failed:
            real, interval = self._real(number)
            if real is None:  # then only the runs that decided the answer count
                limit = _limit_of([p for p in failing if p.num_accelerators == self.fewest_failed])
        return Sizing(
            num_accelerators=number,
            real_accelerators=real,
            at_least=nothing_failed or limit != "storage",
            fewest_failed=None if nothing_failed else self.fewest_failed,
            threshold=self.threshold,
            points=tuple(self.points),
            confirmations=tuple(confirmations),
            interval=interval,
            limit=limit,
        )

    def _real(self, number: int) -> tuple[float | None, tuple[float, float] | None]:
        """Return N* and its interval; None where the storage's runs contradict what passed."""
        near = self._near([p for p in self.counted if p.limit in _STORAGE])
        feeds = self._feeds(near)
        if feeds is None or self._contradicted(feeds, number):
            return None, None
        # 2 sd of one run is 95 %; a little more, because sd is itself an estimate.
        noise = 2.5 * self.sd / math.sqrt(len(near))
        if near == [self.points[0]]:
            noise += _FIRST_RUN_LOW
        spread = feeds * noise / self.threshold
        return feeds, (max(0.0, feeds - spread), feeds + spread)

    def _contradicted(self, feeds: float, number: int) -> bool:
        """Return whether N* = `feeds` is off the AU at the answer or above it, beyond the noise."""
        ceiling = max(self.means.values())  # where AU is lower than N* alone promises
        promised = min(ceiling, self.threshold * feeds / self.fewest_failed)
        if self.means[self.fewest_failed] < promised - _DISTURBED_POINTS:
            return True
        return number > 0 and self.means[number] > (
            self.threshold * feeds / number + _DISTURBED_POINTS
        )

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
            if not same or not passes(point.au_percentage, self.threshold):
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
        reference = _CEILING if fewer is None else self.means[fewer]
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


def _limit_of(points: Sequence[Point]) -> str:
    """Return the limit of most runs; on a tie that of the later run, nearer to the answer."""
    limits = Counter(point.limit or "unclear" for point in reversed(points))
    return limits.most_common(1)[0][0]


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


@dataclass(frozen=True, kw_only=True)
class Range:
    """Between which numbers the answer of some short runs lies."""

    low: int
    high: int | None
    """None: something other than the storage held the runs back."""
    evidence: Evidence
    """What the limit was concluded from."""


def conclude(
    points: Sequence[Point], *, threshold: float, read_ahead_share: float, most: int
) -> tuple[Sizing, Range]:
    """Return what runs say whose AU may be too high by `read_ahead_share`.

    Storage that is the limit moves the same bytes for any number, so N x AU of such a run gives the
    number at which AU meets the threshold. `most`: the number that could be tried at all.
    """
    failed = [p for p in points if not passes(p.au_percentage, threshold)]
    passed = [p for p in points if p not in failed]
    fewest = min((p.num_accelerators for p in failed), default=most + 1)
    below = [p.num_accelerators for p in passed if p.num_accelerators < fewest]
    number, limit, real, interval = max(below, default=0), "storage", None, None
    if any(p.limit == "storage" for p in failed):
        off = {id(p): abs(p.au_percentage - threshold) for p in points if p.limit == "storage"}
        near = [p for p in points if off.get(id(p), math.inf) <= min(off.values()) + _NEAR]
        feeds = [p.num_accelerators * p.au_percentage / threshold for p in near]
        low = min(feeds) * (1 - read_ahead_share) * (1 - _NOISE)
        high = max([number, *feeds]) * (1 + _NOISE)  # what passed may have done better
        real, interval = max(number, fmean(feeds) * (1 - read_ahead_share / 2)), (low, high)
        number = min(max(math.floor(real), number), fewest - 1)
        between = Range(
            low=min(number, math.floor(low)),
            high=max(number, math.floor(high)),
            evidence=near[-1].evidence,
        )
    else:
        moved = max((p.num_accelerators * p.au_percentage / threshold for p in points), default=0.0)
        surely = math.floor(moved * (1 - read_ahead_share) * (1 - _NOISE))
        limit = "none"
        evidence: Evidence = (note("nothing_failed", num_accelerators=number),)
        if failed:
            worst = next(p for p in failed if p.num_accelerators == fewest)
            moved = max(p.num_accelerators * p.au_percentage / threshold for p in failed)
            number = min(max(number, math.floor(moved)), fewest - 1)
            limit, evidence = worst.limit or "unclear", worst.evidence
        between = Range(low=min(number, surely), high=None, evidence=evidence)
    found = Sizing(
        num_accelerators=number,
        real_accelerators=real,
        at_least=between.high is None,
        fewest_failed=fewest if failed else None,
        threshold=threshold,
        points=tuple(points),
        confirmations=tuple(p for p in passed if p.num_accelerators == number),
        interval=interval,
        limit=limit,
    )
    return found, between
