"""What each worker is doing now, and how long its reads took, in memory shared with others."""

from collections.abc import Callable
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from dlemu.dataset.layout import Layout
from dlemu.storage.counted import NUM_BINS, bin_of

IDLE, READING, PREPROCESSING = range(3)
Note = Callable[[int, int], None]
"""`note(what, file)`: a worker says what it does from now on; `file` is -1 if it reads none."""
_WORDS = {READING: "reads", PREPROCESSING: "preprocesses"}


class Activity:
    """One row for each worker, (workers, NUM_FIELDS) float64; it writes the row, others read it."""

    NUM_FIELDS = 4 + NUM_BINS

    def __init__(self, rows: NDArray[np.float64]) -> None:
        self._rows = rows

    def note(self, worker: int, what: int, file: int = -1) -> None:
        """Write down what a worker does from now on, and to which file; count a read that ends."""
        row, now = self._rows[worker], perf_counter()
        if row[0] == READING:
            row[4 + bin_of(now - row.item(2))] += 1
        row[0] = what
        row[1] = file
        row[2] = now

    def set_pid(self, worker: int, pid: int) -> None:
        """Write down a worker's process number."""
        self._rows[worker, 3] = pid

    def pids(self) -> list[int]:
        """Return each worker's process number; 0 where it has not started yet."""
        return [int(pid) for pid in self._rows[:, 3]]

    def read_counts(self) -> NDArray[np.float64]:
        """Return how many reads of all workers fell into each bin, (NUM_BINS,)."""
        counts: NDArray[np.float64] = self._rows[:, 4:].sum(axis=0)
        return counts

    def busy(self, layout: Layout, accelerator: int) -> list[tuple[float, str]]:
        """Return since when (perf_counter) each busy worker does what, and how to say it."""
        lines = []
        for worker, (what, file, since, _) in enumerate(self._rows[:, :4].tolist()):
            if what != IDLE:
                path = f" {layout.path(int(file))}" if file >= 0 else ""
                text = f"worker {worker} of accelerator {accelerator} {_WORDS[int(what)]}{path}"
                lines.append((since, text))
        return lines


def describe(busy: list[tuple[float, str]], most: int = 8) -> str:
    """Return the lines of `Activity.busy` as one, the longest wait first."""
    now = perf_counter()
    told = [f"{text} for {now - since:.0f} s" for since, text in sorted(busy)]
    more = [f"{len(told) - most} more"] if len(told) > most else []
    return ", ".join(told[:most] + more) or "no worker is busy"
