"""The most accelerators that a storage feeds, found by measuring.

    history of runs  -->  next_run: which number now, and why  -->  measure  -->  history ...

The next run follows from the history alone, so that a search which was interrupted goes on from
its saved points as if nothing had happened. The arithmetic: storage that is the limit moves the
same bytes for any number of accelerators, so N x AU stays constant, and one saturated run says
where AU meets the threshold. The search measures the first number that should fail, then
confirms the one below it. docs/sizing.md has the method and how well it did in simulation.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from dlemu.errors import WorkloadError
from dlemu.results.metrics import passes

# Run-to-run sd of AU in the published MLPerf Storage v1.0 cells: median 0.18 points, 90th
# percentile 0.84. The prior weighs as much as two runs' worth of evidence.
_PRIOR_SD = 0.3
_PRIOR_WEIGHT = 2
# The first run of all reads up to about this many points low: nothing is warm yet.
_FIRST_RUN_LOW = 1.0
# AU with nothing to wait for: 98.7 to 98.8 in the published cells, less some noise.
_CEILING = 98.0
# So many runs of a number may be left out because they were disturbed: so many points under what
# other runs promise (no noise is as large), or held by the host to less than this share of what
# storage gave to more accelerators.
_MOST_DISTURBED = 2
_DISTURBED_POINTS = 3.0
_DISTURBED_SHARE = 0.95
# Runs that N* may rest on: what another resource held back says nothing about the storage. A run
# that passes loses too little for its limit to be sought.
_STORAGE = ("storage", "none")
# More than 1.5 times what a storage feeds can make it collapse, and tell nothing.
_OVERLOAD = 1.5


@dataclass(frozen=True)
class Point:
    """One run: so many accelerators, what they reached, and what held them back."""

    num_accelerators: int
    au_percentage: float
    samples_per_second: float
    read_bytes_per_second: float
    limit: str | None = None
    """As `verdict` names it; None: nobody looked."""
    seconds: float = 0.0
    """Time that the run took."""
    evidence: str = ""
    """What that is concluded from."""
    page_cache_share: float | None = None
    """Share of the bytes that came from memory; None: the kernel does not tell."""


@dataclass(frozen=True)
class Event:
    """What the search is about to do, for whoever prints or saves it."""

    point: Point | None
    """The run just made; None before the first."""
    next: int | None
    """Accelerators of the next run; None: the search is over."""
    reason: str


@dataclass(frozen=True)
class Sizing:
    """The answer of a search."""

    num_accelerators: int
    """The most that pass; 0 where one alone fails."""
    real_accelerators: float | None
    """Where AU meets the threshold, as a real number (N*). None: the storage was not the limit, or
    runs contradict each other."""
    at_least: bool
    """Nothing failed, or not for the storage's sake: the storage may feed more than this."""
    fewest_failed: int | None
    """The fewest accelerators that fail; None: nothing failed."""
    threshold: float
    """AU asked for, in percent."""
    points: tuple[Point, ...]
    """Every run, in order."""
    confirmations: tuple[Point, ...]
    """The last consecutive runs at `num_accelerators`; all pass."""
    interval: tuple[float, float] | None
    """About 95 % for `real_accelerators`, from the noise of the runs; None where that is None."""
    limit: str
    """What held back most of the runs that failed (`Point.limit`), or `none`, or `unclear`."""

    @property
    def seconds(self) -> float:
        """Time that all runs took."""
        return math.fsum(point.seconds for point in self.points)

    @property
    def failed_au_percentage(self) -> float | None:
        """Mean AU of the failing runs at `fewest_failed`, in percent; None: nothing failed."""
        failed = [
            point.au_percentage
            for point in self.points
            if point.num_accelerators == self.fewest_failed
            and not passes(point.au_percentage, self.threshold)
        ]
        return fmean(failed) if failed else None


def search(
    measure: Callable[[int], Point],
    *,
    threshold: float,
    max_accelerators: int,
    start: int = 1,
    confirm: int = 5,
    max_repeats: int = 0,
    ceiling: float | None = None,
    known: Sequence[Point] = (),
    on_event: Callable[[Event], None] = lambda event: None,
) -> Sizing:
    """Measure until the most accelerators whose AU meets the threshold are known.

    Args:
        measure: makes one run with so many accelerators.
        threshold: least AU that passes, in percent.
        max_accelerators: the search tries no more than these.
        start: first number to try; a prediction saves runs.
        confirm: consecutive passing runs that confirm the answer.
        max_repeats: near misses that a number may have before it counts as failed. A confirming
            run must pass anyway, so that repeats cost more runs than they mend (docs/sizing.md).
        ceiling: AU in percent where nothing waits for storage; None: found from the runs.
        known: points of a search that was interrupted, in order; they are not measured again.
        on_event: is told each point with what comes next, before that is measured.

    Raises:
        WorkloadError: the threshold or the range of numbers cannot be.
    """
    if not 0 < threshold <= 100:
        raise WorkloadError(f"metric.au must be above 0 and at most 1 (100 %), got {threshold:g} %")
    if not 1 <= start <= max_accelerators:
        raise WorkloadError(
            f"size.start must be from 1 to size.max_accelerators={max_accelerators}, got {start}"
        )
    points = list(known)
    measured: Point | None = None
    while True:
        history = _History(points, threshold, max_accelerators, max_repeats, ceiling)
        number, reason = history.next_run(start, confirm)
        on_event(Event(measured, number, reason))
        if number is None:
            return history.result(max(1, confirm))
        measured = measure(number)
        points.append(measured)


class _History:
    """The runs so far, and what they say about each number of accelerators."""

    def __init__(
        self,
        points: Sequence[Point],
        threshold: float,
        most: int,
        max_repeats: int,
        ceiling: float | None,
    ) -> None:
        self.points, self.threshold, self.most = points, threshold, most
        self.max_repeats = max_repeats
        self.counted = _undisturbed(points, threshold)
        self.runs: dict[int, list[float]] = {}
        for point in self.counted:
            self.runs.setdefault(point.num_accelerators, []).append(point.au_percentage)
        self.means = {number: fmean(runs) for number, runs in self.runs.items()}
        squares = [(au - self.means[n]) ** 2 for n, runs in self.runs.items() for au in runs]
        freedom = len(squares) - len(self.runs) + _PRIOR_WEIGHT
        self.sd = math.sqrt((math.fsum(squares) + _PRIOR_WEIGHT * _PRIOR_SD**2) / freedom)
        self.ceiling = _CEILING if ceiling is None else ceiling
        self.fails = min(filter(self._failed, self.runs), default=most + 1)
        """The fewest accelerators that fail; one beyond the range where none did."""
        passing = [n for n, runs in self.runs.items() if n < self.fails and self._passes(runs[-1])]
        self.passes = max(passing, default=0)
        """The most accelerators below those whose last run passed."""

    def next_run(self, start: int, confirm: int) -> tuple[int | None, str]:
        """Return how many accelerators to try next (None: enough is known), and why."""
        if not self.points:
            return start, "start"
        if self.points[-1] is not self.counted[-1]:
            last = self.points[-1].num_accelerators
            return last, "disturbed, for more accelerators did better: once more"
        if self.fails == 1:
            return None, "one accelerator alone is under the threshold"
        last = self.points[-1].num_accelerators
        passed = len(self._confirmations())
        if last < self.fails and passed == 0:
            return last, "within the noise of the threshold: once more"
        if last < self.fails <= last + self._resolution(last):
            if passed < max(1, confirm):
                return last, f"confirm: {passed} of {confirm} passed"
            return None, f"{passed} consecutive runs passed"
        feeds = self._feeds()
        if feeds is None and self.fails - self.passes > 1:
            return self._grown(), f"{self.passes} are not held back: more"
        fits = min(max(math.floor(feeds or 0), self.passes), self.fails - 1)
        resolution = self._resolution(fits)
        if fits > 0 and fits + resolution >= self.fails:
            return fits, f"confirm: 0 of {confirm} passed"
        return fits + resolution, f"the runs say {feeds:.2f}: this should be the first to fail"

    def result(self, confirm: int) -> Sizing:
        """Return what the runs say, now that there are enough."""
        number = self.passes if self.fails > 1 else 0
        confirmations = self._confirmations()[-confirm:] if number else ()
        failing = [p for p in self.counted if not self._passes(p.au_percentage)]
        limit = _limit_of(failing or self.points[-1:])
        nothing_failed = self.fails > self.most
        real, interval = None, None
        if limit == "storage" and not nothing_failed:
            real, interval = self._real(number)
            if real is None:  # then only what decided the answer counts
                limit = _limit_of([p for p in failing if p.num_accelerators == self.fails])
        return Sizing(
            num_accelerators=number,
            real_accelerators=real,
            at_least=nothing_failed or limit != "storage",
            fewest_failed=None if nothing_failed else self.fails,
            threshold=self.threshold,
            points=tuple(self.points),
            confirmations=tuple(confirmations),
            interval=interval,
            limit=limit,
        )

    def _real(self, number: int) -> tuple[float | None, tuple[float, float] | None]:
        """Return N* and its interval from the runs that the storage held back.

        None where these contradict what passed and what failed.
        """
        near = self._near([p for p in self.counted if p.limit in _STORAGE])
        if not near:
            return None, None
        feeds = self._mean_feeds(near)
        if self._contradicted(feeds, number):
            return None, None
        # Of one run each 2 sd is 95 %; some more because the sd is itself an estimate.
        noise = 2.5 * self.sd / math.sqrt(len(near))
        if near == [self.points[0]]:
            noise += _FIRST_RUN_LOW
        spread = feeds * noise / self.threshold
        return feeds, (feeds - spread, feeds + spread)

    def _contradicted(self, feeds: float, number: int) -> bool:
        """Say whether N* promises other AU than was measured at the answer, or where runs fail.

        By more than noise is. At its ceiling AU is lower than N* alone promises.
        """
        ceiling = max(self.means.values())
        promised = min(ceiling, self.threshold * feeds / self.fails)
        if self.means[self.fails] < promised - _DISTURBED_POINTS:
            return True
        return number > 0 and self.means[number] > (
            self.threshold * feeds / number + _DISTURBED_POINTS
        )

    def _passes(self, au_percentage: float) -> bool:
        return passes(au_percentage, self.threshold)

    def _failed(self, number: int) -> bool:
        """Say whether so many fail; a near miss is repeated if it may be, or was the first run."""
        misses = [au for au in self.runs[number] if not self._passes(au)]
        near, repeats = 2 * self.sd, self.max_repeats
        if self.points[0].num_accelerators == number and self.points[0].au_percentage in misses:
            near, repeats = near + _FIRST_RUN_LOW, max(repeats, 1)
        return len(misses) > repeats or any(au < self.threshold - near for au in misses)

    def _confirmations(self) -> list[Point]:
        """Return the passing runs at the end of the history, all at the last number."""
        confirming: list[Point] = []
        for point in reversed(self.points):
            same = point.num_accelerators == self.points[-1].num_accelerators
            if not same or not self._passes(point.au_percentage):
                break
            confirming.insert(0, point)
        return confirming

    def _resolution(self, number: int) -> int:
        """Return how many accelerators the noise of a run is worth, at least one."""
        return max(1, round(number * self.sd / self.threshold))

    def _saturated(self, number: int) -> bool:
        """Say whether AU at this number is bounded by what the storage, or the host, can move.

        It is not where AU is as good as with a tenth fewer, at its ceiling, or where more
        accelerators moved more. And where fewer moved more, overload made the storage collapse.
        """
        mean = self.means[number]
        fewer = max((n for n in self.means if n * 1.1 <= number), default=None)
        reference = self.ceiling if fewer is None else self.means[fewer]
        noise = min(3.0, max(1.0, 3 * self.sd))  # a host that is disturbed must not hide all
        if mean >= reference - max(noise, (reference - self.threshold) / 2):
            return False
        most = max(n * au for n, au in self.means.items())
        return number * mean >= most * (1 - max(0.02, noise / self.threshold))

    def _near(self, among: Sequence[Point]) -> list[Point]:
        """Return the saturated runs of these that tell best where AU meets the threshold."""
        saturated = {n for n in self.means if self._saturated(n)}
        points = [p for p in among if p.num_accelerators in saturated]
        if not points:
            return []
        off = [abs(p.au_percentage - self.threshold) for p in points]
        near = [p for p, o in zip(points, off, strict=True) if o <= max(5.0, min(off))]
        return [p for p in near if p is not self.points[0]] or near

    def _feeds(self) -> float | None:
        """Return the real number of accelerators at which AU is the threshold, if it shows."""
        near = self._near(self.counted)
        return self._mean_feeds(near) if near else None

    def _mean_feeds(self, near: Sequence[Point]) -> float:
        return fmean(p.num_accelerators * p.au_percentage for p in near) / self.threshold

    def _grown(self) -> int:
        """Return the next number where none so far was held back by what can be moved."""
        if self.passes == 0:
            return 1
        reached = self.passes * self.means[self.passes] / self.threshold
        # So few accelerators cannot make a drive collapse, and doubling saves a run.
        grown = max(min(2 * self.passes, 8), self.passes + 1, round(_OVERLOAD * reached))
        if self.fails <= self.most:
            grown = min(grown, (self.passes + self.fails) // 2)
        return min(grown, self.fails - 1)


def _limit_of(points: Sequence[Point]) -> str:
    """Return the limit of most runs; of equally many the later decides, nearer to the answer."""
    limits = Counter(point.limit or "unclear" for point in reversed(points))
    return limits.most_common(1)[0][0]


def _undisturbed(points: Sequence[Point], threshold: float) -> list[Point]:
    """Return the runs that say something about the storage, in order."""
    left_out: set[int] = set()
    more: list[Point] = []
    for number in sorted({point.num_accelerators for point in points}, reverse=True):
        runs = [point for point in points if point.num_accelerators == number]
        bad = [run for run in runs if _disturbed(run, runs, more, threshold)]
        left_out |= {id(run) for run in bad[:_MOST_DISTURBED]}
        more += [run for run in runs if id(run) not in left_out]
    return [point for point in points if id(point) not in left_out]


def _disturbed(run: Point, same: Sequence[Point], more: Sequence[Point], threshold: float) -> bool:
    """Say whether a run contradicts others with as many accelerators, and with more.

    Its AU should be at the ceiling, which is no lower than the others' AU, or else what it moves
    should be no less than more accelerators moved.
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
