"""Time that passes only when a test says so."""

from dataclasses import dataclass


@dataclass
class VirtualClock:
    """A Clock whose sleeps end at once, at their deadline."""

    time: float = 0.0

    def now(self) -> float:
        return self.time

    def sleep_until(self, deadline: float) -> None:
        self.time = max(self.time, deadline)
