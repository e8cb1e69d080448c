"""What workers do now, in memory that they share with whoever watches them."""

from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from dlemu.dataset.layout import Layout

IDLE, READING, DECODING, SLEEPING = range(4)
_DOES = ("waits", "reads", "decodes", "preprocesses")


class Progress:
    """What workers do now: one row each, (workers, 4) float64, written by them, read by others."""

    NUM_FIELDS = 4

    def __init__(self, rows: NDArray[np.float64]) -> None:
        self._rows = rows

    def note(self, worker: int, what: int, file: int = -1) -> None:
        """Say what a worker does from now on."""
        row = self._rows[worker]
        row[0] = what
        row[1] = file
        row[2] = perf_counter()

    def set_pid(self, worker: int, pid: int) -> None:
        """Say which process a worker is."""
        self._rows[worker, 3] = pid

    def pids(self) -> list[int]:
        """Return each worker's process; 0 where it has not begun."""
        return [int(pid) for pid in self._rows[:, 3]]

    def told(self, layout: Layout, accelerator: int) -> list[tuple[float, str]]:
        """Return since when each busy worker does what, in words."""
        lines = []
        now = perf_counter()
        for worker, (what, file, since, _) in enumerate(self._rows.tolist()):
            if what != IDLE:
                path = f" {layout.path(int(file))}" if file >= 0 else ""
                lines.append(
                    (
                        since,
                        f"worker {worker} of accelerator {accelerator} {_DOES[int(what)]}{path} "
                        f"for {now - since:.0f} s",
                    )
                )
        return lines


def tell(lines: list[tuple[float, str]], most: int = 8) -> str:
    """Return the longest waits first, in one line."""
    told = [text for _, text in sorted(lines)]
    more = [f"{len(told) - most} more"] if len(told) > most else []
    return ", ".join(told[:most] + more) or "no worker is busy"
