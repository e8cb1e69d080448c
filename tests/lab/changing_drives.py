"""Drives in virtual time whose answer is known, also of those whose rate changes.

Data is counted in accelerator-seconds: one accelerator takes 1 of it in a second at AU 100 %. A
drive serves what is wanted of it in ticks; workers read ahead as far as the loader does, and
accelerators take what was read. So a run has an AU by the rule, one with the first step, and a
series, all without a clock.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any

from dlemu.judge import metrics
from dlemu.judge.steady import Piece, steadiness
from dlemu.sizing import first
from dlemu.sizing.search import Goal, Point, Sizing, answer, by_first_reads, search

TICK = 0.1
THRESHOLD = 90.0
WORKERS = 4
"""Readers of an accelerator."""
AHEAD = 8
"""Batches of an accelerator that are in flight."""
CEILING = 0.988
"""AU where nothing waits for storage."""
MOST = 512
PROBE_READERS = 64


@dataclass
class Drive:
    """A drive: its rate, and what changes it. Without more it is constant."""

    kind: str
    rate: float
    """Accelerators that it feeds at AU 100 % when nothing lowers it."""
    generator: random.Random = field(default_factory=lambda: random.Random(0))
    noise: float = 0.0
    """Relative sd of the rate."""
    memory: float = 1.0
    """Seconds over which the noise is the same."""
    slower: float = 0.0
    """Exponent by which the rate falls with the readers beyond `few`."""
    few: float = 0.0
    half: float = 0.0
    """Accelerators with which half of the rate is reached: a queue depth."""
    latency: float = math.inf
    """What one accelerator's readers get at most."""
    credit: float = math.inf
    """Seconds at full rate, refilled below `base`."""
    base: float = 1.0
    """Share of the rate without credits, or beside the neighbour."""
    away: float = 0.0
    """Mean seconds between two visits of a neighbour; 0: none."""
    stays: float = 0.0
    """Mean seconds of a visit."""
    heats: tuple[tuple[float, float], ...] = ()
    """After so many seconds of load, this share of the rate."""
    cached: float = 1.0
    """How many times as fast a second read is."""
    fast_files: float = 0.0
    """Share of the files with three times the rate."""
    slow_start: float = 0.0
    """Seconds at half the rate."""
    bucket: float = 0.0
    """Data that comes at three times the rate after a pause: a cap above the drive."""
    files: float = math.inf
    """Data of the dataset: what was read of it before comes from the cache."""
    time: float = 0.0
    touched: float = 0.0
    levels: dict[float, float] = field(default_factory=dict)
    """Seconds under load, by share of the rate."""

    def __post_init__(self) -> None:
        self._counts = False
        self._credit, self._tokens, self._heat, self._wave = self.credit, self.bucket, 0.0, 0.0
        self._visit, self._until = False, self._drawn(self.away) if self.away else math.inf
        if self.away and self.generator.random() < self.stays / (self.stays + self.away):
            self._visit, self._until = True, self._drawn(self.stays)

    def _drawn(self, mean: float) -> float:
        return self.time + self.generator.uniform(0.6, 1.4) * mean

    @property
    def share(self) -> float:
        """The share of the rate that is there now."""
        share = self.base if self._credit <= 0 or self._visit else 1.0
        for seconds, cooler in self.heats:
            share = cooler if self._heat > seconds else share
        return 0.5 if self.time < self.slow_start else share

    def serve(self, accelerators: float, wanted: float) -> float:
        """Return the data of one tick."""
        share, again = self.share, min(1.0, self.touched / self.files)
        rate = self.rate * share
        if self.slower and accelerators > self.few:
            rate *= (accelerators / self.few) ** -self.slower
        rate *= accelerators / (accelerators + self.half)
        rate = min(rate, accelerators * self.latency)
        if self.noise:
            kept = math.exp(-TICK / self.memory)
            self._wave = kept * self._wave + self.generator.gauss(0, math.sqrt(1 - kept * kept))
            rate *= max(0.1, 1 + self.noise * self._wave)
        if self.fast_files:  # of the time, most goes into the slow ones
            fast = min(1.0, max(0.0, self.generator.gauss(self.fast_files, 0.1)))
            rate /= (1 - fast) + fast / 3
        rate /= (1 - again) + again / self.cached
        given = min(wanted, rate * TICK)
        if self.bucket:
            given = min(wanted, rate * TICK + max(0.0, min(self._tokens, 2 * rate * TICK)))
            self._tokens = min(self.bucket, self._tokens + rate * TICK - given)
        if self._counts and given > 0.3 * rate * TICK:
            self.levels[share] = self.levels.get(share, 0.0) + TICK
        self.touched += given * (1 - again)
        self._pass(given)
        return given

    def _pass(self, given: float) -> None:
        self.time += TICK
        if self.credit < math.inf:
            base = self.base * self.rate
            used = (given - base * TICK) / (self.rate - base)
            self._credit = min(self.credit, self._credit - used)
        if self.heats:
            self._heat += TICK if given > 0.5 * self.rate * self.share * TICK else -TICK
            self._heat = max(0.0, self._heat)
        if self.time > self._until:
            self._visit = not self._visit
            self._until = self._drawn(self.stays if self._visit else self.away)

    def rest(self, seconds: float) -> None:
        """Let time pass without a read."""
        for _ in range(round(seconds / TICK)):
            self._pass(0.0)

    def known(self) -> "Drive":
        """Return the drive without changes that no run has seen: nobody can know of them."""
        seen = {share for share, seconds in self.levels.items() if seconds >= 3}
        own: dict[str, object] = {"slow_start": 0.0}
        if self.heats:
            own["heats"] = tuple(heat for heat in self.heats if heat[1] in seen)
        elif not seen >= {1.0, self.base}:
            most = max(self.levels, key=lambda share: self.levels[share], default=1.0)
            own |= {"rate": self.rate * most, "credit": math.inf, "away": 0.0, "base": 1.0}
        return replace(self.fresh(), **own)  # type: ignore[arg-type]

    def fresh(self) -> "Drive":
        """Return the drive as it was in the beginning, with other random numbers."""
        own = random.Random(self.generator.random())
        return replace(self, time=0.0, touched=0.0, files=math.inf, levels={}, generator=own)

    def feeds(self) -> int:
        """Return the most accelerators that pass in a long run by the rule."""
        drive = self.known()
        low, high = 0, max(2, math.ceil(3.3 * self.rate))
        while high - low > 1:
            middle = (low + high) // 2
            long = 900.0 if self.away or self.noise else 300.0
            long_used = drive.fresh()
            long_used._credit = 0.0 if drive.credit < math.inf else math.inf
            run = long_used.run(middle, seconds=long, step=0.3)
            if metrics.passes(run.au_percentage, THRESHOLD):
                low = middle
            else:
                high = middle
        return low

    def run(self, number: int, *, seconds: float, step: float) -> "Run":
        """Return a run whose accelerators compute for so long in all, in steps of so long."""
        need, ahead = number * seconds, AHEAD * step * number
        batch, begin = number * step, self.time
        read = taken = computed = 0.0
        start: float | None = None
        series: list[tuple[float, float]] = []
        self._counts = True
        moved = worked = 0.0
        while taken < need - 1e-9:
            wanted = min(need - read, ahead + taken - read)
            given = self.serve(number, max(0.0, wanted))
            read, moved = read + given, moved + given
            if taken > 0 or read >= batch:
                done = min(read - taken, CEILING * number * TICK)
                taken, worked = taken + done, worked + done
                if start is None and taken >= batch:
                    start, computed = self.time, taken
            if self.time - begin >= len(series) + 1:
                series.append((moved, worked / number))
                moved = worked = 0.0
        self._counts = False
        whole = min(100.0, 100 * taken / number / (self.time - begin))
        au = whole
        if start is not None and self.time > start:
            au = 100 * (taken - computed) / number / (self.time - start)
        return Run(number, au, whole, self.time - begin, read / (self.time - begin), series)

    def probe(self, readers: float, seconds: float, *, once: bool = False) -> float:
        """Return the rate that so many readers get; `once`: each part of the files is read once."""
        given, ticks, before = 0.0, 0, self.touched
        while ticks < round(seconds / TICK) and (not once or given < self.files):
            if once:
                self.touched = 0.0
            given += self.serve(readers / WORKERS, math.inf)
            ticks += 1
        self.touched = min(self.files, given) if once else max(before, self.touched)
        return given / (ticks * TICK)


@dataclass
class Run:
    """A run in virtual time."""

    number: int
    au_percentage: float
    whole_percentage: float
    seconds: float
    rate: float
    series: list[tuple[float, float]]
    """Of each second the data that was read, and the AU (0-1)."""


Draw = Callable[[random.Random], Any]


def _between(low: float, high: float) -> Draw:
    """Draw evenly on a logarithmic scale."""
    return lambda generator: math.exp(generator.uniform(math.log(low), math.log(high)))


def _evenly(low: float, high: float) -> Draw:
    return lambda generator: generator.uniform(low, high)


def _heats(generator: random.Random) -> tuple[tuple[float, float], ...]:
    first_step = generator.uniform(15, 200)
    return ((first_step, 0.7), (2 * first_step, 0.5))


KINDS: dict[str, dict[str, Draw]] = {
    "constant": {},
    "noise of 1 to 10 %": {"noise": _between(0.01, 0.1), "memory": _between(0.5, 5)},
    "slower with more readers": {"slower": _evenly(0.05, 0.4), "few": _between(1, 8)},
    "knee at a queue depth": {"half": _between(0.2, 4)},
    "burst credits": {"credit": _between(10, 600), "base": _evenly(0.2, 0.7)},
    "cache of second reads": {"cached": _evenly(1.5, 5)},
    "neighbour takes half": {
        "base": lambda generator: 0.5,
        "away": _between(10, 120),
        "stays": _between(10, 60),
    },
    "heat": {"heats": _heats},
    "two rates by file": {"fast_files": _evenly(0.2, 0.8)},
    "slow start": {"slow_start": _between(2, 20)},
    "cap above the drive": {"bucket": _evenly(0.1, 4)},
    "objects, latency-bound": {"latency": _evenly(0.5, 2)},
}
"""What changes the rate of each kind of drive, and how it is drawn."""


def drives(each: int) -> Iterator[Drive]:
    """Yield so many drives of each kind; the same every time."""
    for kind, draws in KINDS.items():
        generator = random.Random(f"{kind}: drives")
        for _ in range(each):
            rate = _between(1.2, 30)(generator)
            own = {name: draw(generator) for name, draw in draws.items()}
            yield Drive(kind, rate, random.Random(generator.random()), **own)


# --- what the commands make of them ---------------------------------------------------------------

STEP = 0.2
_TRY_SECONDS = 60.0
_SIZE_SECONDS = 60.0
_START = 3.0


class _TimeIsUp(Exception):
    pass


def _point(drive: Drive, number: int, seconds: float) -> Point:
    """Return a run as a search knows it: with the limit that a probe after it would tell."""
    run = drive.run(number, seconds=seconds, step=STEP)
    steady = steadiness([Piece(1.0, read, 100 * au) for read, au in run.series[1:]])
    levels = () if steady is None else steady.levels
    limit, readers = "none", run.number * WORKERS
    if run.au_percentage < 98:
        few, many = drive.probe(readers, 1.0), drive.probe(max(PROBE_READERS, readers), 1.0)
        best = max((level.bytes_per_second for level in levels), default=0.0)
        own = max(run.rate, min(few, 1.3 * run.rate), best)
        limit = "loader" if many > 1.15 * own else "storage"
    drive.rest(_START - 2)
    parts = [au for _, au in run.series[2:]]
    size = max(1, len(parts) // 10)
    parts = [fmean(parts[at : at + size]) for at in range(0, len(parts) - size + 1, size)]
    noise = stdev(parts) / math.sqrt(len(parts)) / max(fmean(parts), 1e-9) if parts[1:] else 0.0
    return Point(
        number,
        run.au_percentage,
        1.0,
        run.rate,
        limit,
        run.seconds + _START,
        whole_au_percentage=run.whole_percentage,
        noise=noise,
        levels=levels if limit == "storage" and len(levels) > 1 else (),
    )


def tried(drive: Drive) -> Sizing | None:
    """Return what `dlemu try` finds in a minute; None: it makes no run, the drive is too slow."""
    end, points = _TRY_SECONDS, list[Point]()
    drive.files = first._WRITE_SHARE * end * 0.5 * drive.rate
    drive.rest(first._WRITE_SHARE * end)
    fitting = math.floor(first._RUN_SHARE * (end - drive.time) * THRESHOLD / 100 / STEP)
    num_steps = max(first._LEAST_AHEAD * AHEAD, fitting)
    rate = drive.probe(PROBE_READERS, 3.0, once=True)
    expected = rate * 100 / THRESHOLD
    if expected < first._SURELY_NONE:
        return None

    def measure(number: int) -> Point:
        feeds = expected
        if points:
            feeds = points[-1].num_accelerators * points[-1].au_percentage / 100
        step = STEP * max(1.0, number / max(feeds, 0.1))
        left = math.floor((end - drive.time - _START) / step) if points else num_steps
        if left < first._SHORTEST * num_steps:
            raise _TimeIsUp
        points.append(_point(drive, number, min(left, num_steps) * STEP))
        return points[-1]

    start = max(1, min(math.floor(expected) + 1, MOST))
    goal = Goal(THRESHOLD, MOST, start, confirm=1, is_short=True)
    try:
        found = search(measure, goal)
    except _TimeIsUp:
        found = answer(points, goal)
    most = max(p.num_accelerators * p.au_percentage for p in points) / THRESHOLD
    is_faster = most > first._FASTER * expected and not points[0].levels
    if is_faster and drive.probe(PROBE_READERS, 1.0) > first._FASTER * rate:
        return by_first_reads(found, expected, rate)
    return found


def sized(drive: Drive) -> Sizing:
    """Return what `dlemu size` finds, in runs of a minute."""
    start = math.floor(drive.probe(PROBE_READERS, 3.0) * 100 / THRESHOLD) + 1
    goal = Goal(THRESHOLD, MOST, max(1, min(start, MOST)))
    return search(lambda number: _point(drive, number, _SIZE_SECONDS), goal)
