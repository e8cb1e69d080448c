"""Requests to a bucket: their number, latency, retries and bytes. Durations are counted in bins."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

_STEPS = 16
"""Bins of each doubling of the duration: a quantile is right to 4 %."""
_LEAST = 1e-6
NUM_BINS = 32 * _STEPS
"""From 1 us to more than an hour."""


def bin_of(seconds: float) -> int:
    """Return the number of the bin that counts a duration."""
    return min(int(_STEPS * math.log2(max(seconds, _LEAST) / _LEAST)), NUM_BINS - 1)


def quantile_of(bins: Mapping[int, float], share: float) -> float | None:
    """Return the seconds that this share (0-1) did not exceed; `bins` has the count of each bin."""
    left = share * sum(bins.values())
    for number, count in sorted(bins.items()):
        left -= count
        if count and left <= 1e-9:
            return float(_LEAST * 2 ** ((number + 0.5) / _STEPS))
    return None


@dataclass(slots=True)
class GetCounts:
    """Requests for bytes (GET), of a reader or of many. Not thread-safe."""

    gets: int = 0
    """Requests that were answered; with retries and failures it is all that a server has seen."""
    retries: int = 0
    """Requests that were sent again, for whatever reason."""
    slow_downs: int = 0
    """Answers 503 or 429: the server asks for fewer requests."""
    received_bytes: int = 0
    needed_bytes: int = 0
    """Bytes that training asked for; more are received where ranges end behind them."""
    seconds: float = 0.0
    """Of all requests, each from its start to its last byte; retries and pauses are not in it."""
    _bins: dict[int, int] = field(default_factory=dict)

    def add(self, seconds: float, num_bytes: int) -> None:
        """Count an answered request."""
        self.gets += 1
        self.seconds += seconds
        self.received_bytes += num_bytes
        number = bin_of(seconds)
        self._bins[number] = self._bins.get(number, 0) + 1

    def quantile(self, share: float) -> float | None:
        """Return the seconds that this share (0-1) of the requests did not exceed."""
        return quantile_of(self._bins, share)

    def __add__(self, other: "GetCounts") -> "GetCounts":
        bins = dict(self._bins)
        for number, count in other._bins.items():
            bins[number] = bins.get(number, 0) + count
        return GetCounts(
            self.gets + other.gets,
            self.retries + other.retries,
            self.slow_downs + other.slow_downs,
            self.received_bytes + other.received_bytes,
            self.needed_bytes + other.needed_bytes,
            self.seconds + other.seconds,
            bins,
        )
