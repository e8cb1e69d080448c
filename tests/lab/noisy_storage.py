"""A storage in simulated time, whose runs come out as its answer says, or with noise from a seed.

AU of a run = min(ceiling, threshold x N* / N) and Gaussian noise. More than 1.5 x N* accelerators
make the storage collapse by 15 %.
"""

import random
from dataclasses import dataclass, field

from dlemu.judge import metrics
from dlemu.sizing.search import Goal, Point, search

CONFIRM = 5
MOST = 4096


@dataclass
class Storage:
    """A storage that feeds so many accelerators, as runs on it come out."""

    feeds: float
    noise: float = 0.0
    """Run-to-run sd of AU, in points (published cells: median 0.18, 90th percentile 0.84)."""
    generator: random.Random = field(default_factory=random.Random)
    threshold: float = 90.0
    ceiling: float = 98.7
    low: dict[int, float] = field(default_factory=dict)
    """Points that runs read low, by their number; the first of all is run 0."""
    prefetched: float = 0.0
    """Share of an epoch's batches read inside the step that is left out, at N*."""
    knee: float = 0.0
    """Points that are lost where storage and accelerators are as fast; less around it."""
    limit: str = "storage"
    """What a run under the threshold names."""
    num_runs: int = 0

    @property
    def most(self) -> int:
        """The most accelerators whose mean AU passes."""
        number = int(self.feeds) + 2
        while number > 0 and not metrics.passes(self.mean(number), self.threshold):
            number -= 1
        return number

    def mean(self, number: int) -> float:
        """Return AU without noise."""
        rate = self.threshold * self.feeds / number
        if number > 1.5 * self.feeds:
            rate *= 0.85
        rate /= 1 - self.prefetched * number / self.feeds
        near = max(0.0, 1 - abs(rate - self.ceiling) / 20)
        return min(self.ceiling, rate) - self.knee * near

    def measure(self, number: int) -> Point:
        """Return one run."""
        au = self.mean(number) + self.generator.gauss(0, self.noise)
        au -= self.low.get(self.num_runs, 0.0)
        self.num_runs += 1
        limit = self.limit if au < self.threshold else "none"
        return Point(number, min(100.0, au), 1.0 * number, 1e9 * number, limit, 10.0)


def sized(storage: Storage, start: int) -> int:
    """Return what `search` finds."""
    goal = Goal(storage.threshold, MOST, start, CONFIRM)
    return search(storage.measure, goal).num_accelerators
