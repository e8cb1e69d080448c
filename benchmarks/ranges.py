"""Whether the ranges of `dlemu try` and `dlemu size` hold the truth, on drives in virtual time.

    python -m benchmarks.ranges [each=25] [json=FILE]

So many drives of each kind of `tests.lab.changing_drives`, each with its truth: the most
accelerators that pass in a long run. What no run can have seen, such as credits that outlast it,
does not count: an answer holds for as long as was read. Seeded: the same table every time.
"""

import math
import sys
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import NamedTuple

from benchmarks.harness import Asked
from dlemu.sizing.search import Sizing
from tests.lab.changing_drives import KINDS, Drive, drives, sized, tried


class Outcome(NamedTuple):
    """An answer beside the truth."""

    truth: int
    number: int
    low: int
    high: int | None
    runs: int

    @property
    def holds(self) -> bool:
        """Whether the truth is in the range."""
        return self.low <= self.truth and (self.high is None or self.truth <= self.high)

    @property
    def width(self) -> float:
        """Of the range, as a share of the answer."""
        return math.inf if self.high is None else (self.high - self.low) / max(1, self.number)


def outcome(drive: Drive, find: Callable[[Drive], Sizing | None]) -> Outcome:
    """Return what a command finds on a drive, and the truth as far as it can have been seen."""
    own = drive.fresh()
    found = find(own)
    truth = own.feeds()
    if found is None:
        return Outcome(truth, 0, 0, 0, 0)
    number = found.num_accelerators
    return Outcome(truth, number, found.low, found.high, len(found.points))


def row(command: str, kind: str, found: Sequence[Outcome]) -> dict[str, str]:
    """Return how the answers on drives of a kind did."""
    width = median(each.width for each in found)
    return {
        "": f"{command}: {kind}",
        "truth in range": f"{fmean(each.holds for each in found):.0%}",
        "no upper end": f"{fmean(each.high is None for each in found):.0%}",
        "width, median": "-" if math.isinf(width) else f"{width:.0%}",
        "off by more than 1": f"{fmean(abs(each.number - each.truth) > 1 for each in found):.0%}",
        "runs": f"{fmean(each.runs for each in found):.1f}",
    }


def main(arguments: list[str]) -> None:
    """Print the table."""
    asked = Asked(arguments, "each")
    each = asked.value("each", 25)
    rows = []
    for command, find in (("try", tried), ("size", sized)):
        found: dict[str, list[Outcome]] = {kind: [] for kind in KINDS}
        for drive in drives(each):
            found[drive.kind].append(outcome(drive, find))
        rows += [row(command, kind, own) for kind, own in found.items()]
        rows.append(row(command, "all", [one for own in found.values() for one in own]))
    asked.show(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
