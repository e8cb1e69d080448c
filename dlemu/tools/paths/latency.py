"""Percentiles of any number of latencies in 22 KiB of memory, with an error of at most 0.8 %."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_PER_POWER = 64
"""Buckets of equal width per power of two: a bucket's middle is off by at most 1/128."""
_NUM_POWERS = 44
"""Powers of two covered: up to 2^43 ns, 2.4 hours."""


class Latencies:
    """A histogram with logarithmic buckets, after Gil Tene's HdrHistogram; times are in ns."""

    def __init__(self) -> None:
        self.counts: npt.NDArray[np.int64] = np.zeros(_NUM_POWERS * _PER_POWER, np.int64)
        self.total = 0
        """Exact sum of all latencies."""

    @property
    def num(self) -> int:
        return int(self.counts.sum())

    def add(self, times: Sequence[int] | npt.NDArray[np.int64]) -> None:
        """Count latencies, each at least 0 ns."""
        values = np.asarray(times, np.int64)
        fractions, powers = np.frexp(values)  # value = fraction x 2^power, 0.5 <= fraction < 1
        places = ((fractions - 0.5) * 2 * _PER_POWER).clip(0).astype(np.int64)
        self.counts += np.bincount(powers * _PER_POWER + places, minlength=len(self.counts))
        self.total += int(values.sum())

    def merge(self, other: "Latencies") -> None:
        self.counts += other.counts
        self.total += other.total

    def mean(self) -> float:
        """Return the exact mean in seconds."""
        return self.total / self.num / 1e9

    def percentile(self, percent: float) -> float:
        """Return the percentile in seconds, by nearest rank (NumPy: "inverted_cdf")."""
        rank = max(1, int(np.ceil(self.num * percent / 100)))
        place = int(np.searchsorted(self.counts.cumsum(), rank))
        power, step = divmod(place, _PER_POWER)
        return float(np.ldexp(0.5 + (step + 0.5) / (2 * _PER_POWER), power)) / 1e9
