"""What requests to a bucket came to: their number, latency, retries and bytes."""

import math
from dataclasses import dataclass, field

_STEPS = 16
"""Bins of each doubling of the latency: a quantile is right to 4 %."""
_LEAST = 1e-6
_NUM_BINS = 32 * _STEPS
"""From 1 us to more than an hour."""


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
        number = int(_STEPS * math.log2(max(seconds, _LEAST) / _LEAST))
        number = min(number, _NUM_BINS - 1)
        self._bins[number] = self._bins.get(number, 0) + 1

    def quantile(self, share: float) -> float | None:
        """Return the seconds that this share (0-1) of the requests did not exceed."""
        left = share * self.gets
        for number, count in sorted(self._bins.items()):
            left -= count
            if left <= 1e-9:
                return float(_LEAST * 2 ** ((number + 0.5) / _STEPS))
        return None

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
