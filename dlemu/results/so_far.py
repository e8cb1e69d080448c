"""The figures of an epoch while it runs, from the records that another thread fills."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from typing import Any, cast

import numpy as np

from dlemu.results.records import Steps
from dlemu.results.sums import credited_seconds, left_out, step_seconds
from dlemu.workload.sections import MetricSection

_RECENT_SECONDS = 5.0


@dataclass
class _Block:
    """Sums over the steps since a checkpoint."""

    start: int
    num_accelerators: InitVar[int]
    num_steps: int = 0
    counted: int = 0

    def __post_init__(self, num_accelerators: int) -> None:
        self.inside, self.credited = np.zeros((2, num_accelerators))


class StepsSoFar:
    """Sums over the steps of an epoch that have ended; `look` adds those that are new.

    `steps` are the (steps, accelerators) records of the whole epoch. A record is whole once its
    `start` is set. Only new records are read: an epoch may have millions.
    """

    def __init__(self, steps: Steps, metric: MetricSection) -> None:
        self.num_steps = len(steps)
        self.done = self.counted = 0
        """Steps that have ended, and those of them that AU counts."""
        self._steps, self._edition = steps, metric.edition
        # Only single values are taken, and those beyond `done` are not in memory yet.
        self._starts = cast(Sequence[float], steps["start"][:, 0])
        self._left_out, at_end = left_out(metric)
        self._stop = len(steps) - at_end
        self._num_bytes = 0
        self._blocks = [_Block(0, steps.shape[1])]

    def look(self) -> None:
        """Take in the steps that have ended since the last look."""
        begun, starts = self.done, self._starts
        rows = range(self.num_steps)
        self.done = bisect_left(rows, True, begun, key=lambda row: bool(starts[row] == 0))
        self._num_bytes += int(self._steps["num_bytes"][begun : self.done].sum())
        # A step's stall is known once the next one has ended.
        stalls = self._steps["stall"][max(0, begun - 1) : max(0, self.done - 1), :1]
        for row in np.flatnonzero(stalls) + max(0, begun - 1) + 1:
            self._add(begun, int(row))
            self._blocks.append(_Block(int(row), self._steps.shape[1]))
            begun = int(row)
        self._add(begun, self.done)

    def _add(self, begun: int, done: int) -> None:
        block = self._blocks[-1]
        block.num_steps += done - begun
        first, end = max(begun, block.start + self._left_out), min(done, self._stop)
        if first < end:
            inside = self._steps[first:end]
            block.inside += step_seconds(inside).sum(axis=0)
            block.credited += credited_seconds(inside, self._edition).sum(axis=0)
            block.counted += end - first
            self.counted += end - first

    @property
    def au_percentage(self) -> float | None:
        """AU of the steps so far, by the edition's rule; None before the first that counts."""
        if not self.counted:
            return None
        blocks = [block for block in self._blocks if block.counted]
        weights = np.array([block.num_steps for block in blocks]) / sum(b.num_steps for b in blocks)
        return float((weights @ [100 * block.credited / block.inside for block in blocks]).mean())

    @property
    def step_seconds(self) -> float | None:
        """Mean time of a step, the first left out; None before the second."""
        if self.done < 2:
            return None
        return (self._end - self._starts[1]) / (self.done - 1)

    def samples_per_second(self, now: float) -> float | None:
        """Return the rate of the last seconds; it falls while no step ends. None before the first.

        `now` is a time of the clock that the records use.
        """
        if not self.done:
            return None
        end, starts = self._end, self._starts
        first = min(bisect_left(starts, end - _RECENT_SECONDS, 0, self.done), self.done - 1)
        samples = int(self._steps["num_samples"][first : self.done].sum())
        return samples / max(end - starts[first], now - end, 1e-9)

    def bytes_until(self, moment: float) -> int:
        """Return the bytes read for the batches of the steps that had ended at a moment."""
        if self.done and moment >= self._end:
            return self._num_bytes
        ended = max(0, bisect_right(self._starts, moment, 0, self.done) - 1)
        return self._num_bytes - int(self._steps["num_bytes"][ended : self.done].sum())

    @property
    def _end(self) -> float:
        last: Any = self._steps[self.done - 1, :1]
        return float(last["start"][0] + step_seconds(last)[0])
