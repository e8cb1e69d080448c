"""Whether a storage gave the same rate all the time: rounds, and the levels of its rate.

A drive may be fast for a while only: credits of a cloud volume, an SLC cache, heat, neighbours. The
SNIA's performance test specification takes a figure only after five rounds in which the values lie
within 20 % of their mean, and a line through them changes by at most 10 % of it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

ROUNDS = 5
# From this AU on hardly anything waited in a second, whatever a busy host costs.
_FREE = 95.0
CEILING = 98.0
"""AU where nothing waits for storage: 98.7 to 98.8 in the published cells, less some noise."""
_EXCURSION = 0.2
_SLOPE = 0.1
APART = 0.2
"""Levels differ by this share of their mean, and by `_SURE` standard errors."""
_SURE = 5.0
# A level lasts so many seconds at least, and this share of the time: shorter ones are bursts, and
# the pauses between epochs.
_SHORTEST = 3.0
_SHORTEST_SHARE = 1 / 15
_MOST_PIECES = 400


Trend = Literal["steady", "fell", "rose", "varies"]


class Piece(NamedTuple):
    """A part of the time in which the storage was read, of about a second."""

    seconds: float
    bytes_per_second: float
    au_percentage: float | None = None
    """None: no step ran."""


@dataclass(frozen=True)
class Level:
    """A time over which the rate was about the same."""

    begin: float
    """Seconds of reading before it."""
    seconds: float
    bytes_per_second: float
    au_percentage: float | None = None
    share: float = 1.0
    """Its rate / the mean rate of the whole run."""

    @property
    def is_free(self) -> bool:
        """Whether accelerators never waited: the storage could have given more."""
        return self.au_percentage is not None and self.au_percentage >= _FREE


@dataclass(frozen=True)
class Steadiness:
    """How the rate went on."""

    rounds: tuple[float, ...]
    """Bytes per second in five parts of the time, equally long."""
    levels: tuple[Level, ...]
    """Several if the rate changed, in order."""

    @property
    def excursion(self) -> float:
        """Largest distance of two rounds / their mean."""
        return float(np.ptp(self.rounds) / max(float(np.mean(self.rounds)), 1e-9))

    @property
    def slope(self) -> float:
        """Change of a line through the rounds, from the first to the last / their mean."""
        line = np.polyfit(np.arange(ROUNDS), self.rounds, 1)
        return abs(float(line[0])) * (ROUNDS - 1) / max(float(np.mean(self.rounds)), 1e-9)

    @property
    def agrees(self) -> bool:
        """Whether the five rounds are within the bounds of the specification."""
        return self.excursion <= _EXCURSION and self.slope <= _SLOPE

    @property
    def trend(self) -> Trend:
        """How the levels follow each other."""
        return trend_of(self.levels)

    @property
    def fields(self) -> dict[str, Any]:
        """What a result has of it."""
        return {
            "trend": self.trend,
            "rounds_agree": self.agrees,
            "excursion": self.excursion,
            "slope": self.slope,
            "rounds": list(self.rounds),
            "levels": [asdict(level) for level in self.levels],
        }


def fields_of(found: Steadiness | None) -> dict[str, Any] | None:
    """Return what a result has of it; None where nothing is known."""
    return None if found is None else found.fields


def trend_of(levels: Sequence[Level]) -> Trend:
    """Return how levels follow each other."""
    if len(levels) != 2:
        return "varies" if levels[1:] else "steady"
    first, last = (level.bytes_per_second for level in levels)
    return "fell" if last < first else "rose"


def steadiness(pieces: Sequence[Piece], *, mean: float | None = None) -> Steadiness | None:
    """Return how steady the rate was; None of fewer than five pieces that tell something.

    `mean` is the rate of the whole run, with all that no piece is of; None: that of the rounds.
    """
    begins = np.concatenate([[0.0], np.cumsum([piece.seconds for piece in pieces])]).tolist()
    kept = (
        _informative(
            [Level(*each) for each in zip(begins, *zip(*pieces, strict=True), strict=False)]
        )
        if pieces
        else []
    )
    if len(kept) < ROUNDS:
        return None
    while len(kept) > _MOST_PIECES:  # of a long run two and two
        kept = [_mean(kept[at : at + 2]) for at in range(0, len(kept), 2)]
    seconds = np.array([piece.seconds for piece in kept])
    rates = np.array([piece.bytes_per_second for piece in kept])
    # Evenly between the borders of pieces.
    ends = np.concatenate([[0.0], np.cumsum(seconds)])
    moved = np.concatenate([[0.0], np.cumsum(seconds * rates)])
    borders = np.linspace(0.0, ends[-1], ROUNDS + 1)
    rounds = np.diff(np.interp(borders, ends, moved)) / (ends[-1] / ROUNDS)
    cuts = [0, len(kept)]
    if not all(piece.is_free for piece in kept):  # else nobody knows what it could give
        cuts[1:1] = _unlike(_cuts(seconds, rates), seconds, rates)
    mean = max(mean or float(np.mean(rounds)), 1e-9)
    levels: list[Level] = []
    for level in (_mean(kept[a:b]) for a, b in pairwise(cuts)):
        if levels and levels[-1].is_free and level.is_free:
            levels[-1] = _mean([levels[-1], level])
        else:
            levels.append(level)
    own = tuple(replace(level, share=level.bytes_per_second / mean) for level in levels)
    return Steadiness(tuple(map(float, rounds)), own)


def _informative(pieces: list[Level]) -> list[Level]:
    """Return the pieces that say something of the storage.

    Where accelerators never waited, it gave what was asked, and could give more: that counts only
    if it is above what it gave where it was the limit.
    """
    held = [piece for piece in pieces if not piece.is_free]
    most = _mean(held).bytes_per_second * (1 + APART) if held else 0.0
    return [piece for piece in pieces if not piece.is_free or piece.bytes_per_second > most]


def _apart(first: float, second: float) -> float:
    """Return how far two rates are apart, relative to their mean."""
    return abs(first - second) / max((first + second) / 2, 1e-9)


def mean_of(pieces: Sequence[Piece] | Sequence[Level]) -> Piece:
    """Return the means over pieces, by their seconds."""
    seconds = sum(piece.seconds for piece in pieces)
    rate = sum(piece.seconds * piece.bytes_per_second for piece in pieces) / seconds
    known = [(p.seconds, p.au_percentage) for p in pieces if p.au_percentage is not None]
    au = sum(s * share for s, share in known) / sum(s for s, _ in known) if known else None
    return Piece(seconds, rate, au)


def _mean(pieces: Sequence[Level]) -> Level:
    return Level(pieces[0].begin, *mean_of(pieces))


def _cuts(seconds: NDArray[np.float64], rates: NDArray[np.float64]) -> list[int]:
    """Return before which pieces the rate changes: the best division into levels.

    Each level must explain more than noise does: a division costs as much as that of a level that
    is `_SURE` standard errors off, by the noise from one piece to the next.
    """
    num, shortest = len(rates), max(_SHORTEST, _SHORTEST_SHARE * float(seconds.sum()))
    noise = max(1.05 * float(np.median(np.abs(np.diff(rates)))), 0.03 * float(rates.mean()))
    sums = [np.concatenate([[0.0], np.cumsum(seconds * rates**power)]) for power in (0, 1, 2)]
    cost, before = np.full(num + 1, np.inf), np.zeros(num + 1, int)
    cost[0] = 0.0
    penalty = _SURE**2 * noise**2 * float(seconds.mean())
    for end in range(1, num + 1):
        weight, first, second = (each[end] - each[:end] for each in sums)
        apart = second - first**2 / weight  # squares around the mean of each level that ends here
        apart[(weight < shortest) & (np.arange(end) > 0)] = np.inf
        apart[0] = apart[0] if weight[0] >= shortest or end == num else np.inf
        whole = cost[:end] + apart + penalty
        before[end] = int(whole.argmin())
        cost[end] = whole[before[end]]
    cuts: list[int] = []
    end = num
    while (end := int(before[end])) > 0:
        cuts.insert(0, end)
    return cuts


def _unlike(cuts: list[int], seconds: NDArray[np.float64], rates: NDArray[np.float64]) -> list[int]:
    """Return the cuts whose levels are clearly apart; the least are joined first."""
    while cuts:
        ends = [0, *cuts, len(rates)]
        means = [float(np.average(rates[a:b], weights=seconds[a:b])) for a, b in pairwise(ends)]
        steps = [_apart(a, b) for a, b in pairwise(means)]
        least = min(range(len(steps)), key=lambda number: steps[number])
        if steps[least] >= APART:
            break
        del cuts[least]
    return cuts
