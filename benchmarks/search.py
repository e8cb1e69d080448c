"""What a sizing costs and how exact it is, in simulated time: python -m benchmarks.search [TRIALS].

Every run is a draw: AU = min(ceiling, threshold x N* / N) and Gaussian noise, for a storage that
feeds N* accelerators, N* drawn evenly between N and N + 1. More than 1.5 x N* make the storage
collapse by 15 %. `search` is beside the way people go about it: double until one fails, bisect,
confirm by 5 runs and step down when one fails. Seeded: the same tables every time.
"""

import itertools
import math
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

from dlemu.judge import metrics
from tests.lab.noisy_storage import CONFIRM, Storage, sized


def bisected(storage: Storage, start: int) -> int:
    """Return what doubling (or halving) and bisection find."""

    def passes(number: int) -> bool:
        return metrics.passes(storage.measure(number).au_percentage, storage.threshold)

    low, high = 0, start
    while passes(high):
        low, high = high, 2 * high
    while low == 0 and high > 1:
        if passes(high // 2):
            low = high // 2
        else:
            high //= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    while low > 0 and not all(passes(low) for _ in range(CONFIRM)):
        low -= 1
    return low


def predicted(storage: Storage) -> int:
    """Return a start that is off by up to 30 %, as a datasheet's prediction is."""
    return max(1, round(storage.feeds * storage.generator.uniform(0.7, 1.3)))


def one(storage: Storage) -> int:
    """Return the start of a search that knows nothing."""
    return 1


def probed(storage: Storage) -> int:
    """Return the first number that a probe says should fail, where `dlemu size` starts.

    A cold read by many gets up to an eighth more than a loader does.
    """
    return math.floor(storage.feeds * storage.generator.uniform(0.97, 1.12)) + 1


def header(title: str) -> None:
    """Print a table's head."""
    print(f"\n{title}\n\n| | runs, mean | 95 % under | in 12 | exact | within 1 | off by |")
    print("|---|--:|--:|--:|--:|--:|--:|")


def row(
    name: str,
    trials: int,
    draw: Callable[[random.Random], Storage],
    start: Callable[[Storage], int],
    find: Callable[[Storage, int], int],
) -> None:
    """Print how many runs a way of searching takes, and how near it comes."""
    generator = random.Random(name)
    runs, off = [], []
    for _ in range(trials):
        storage = draw(generator)
        off.append(find(storage, start(storage)) - storage.most)
        runs.append(storage.num_runs)
    runs.sort()
    print(
        f"| {name} | {fmean(runs):.1f} | {runs[int(0.95 * trials)]} | "
        f"{fmean(num <= 12 for num in runs):.1%} | {fmean(miss == 0 for miss in off):.1%} | "
        f"{fmean(abs(miss) <= 1 for miss in off):.1%} | {min(off):+d} to {max(off):+d} |",
        flush=True,
    )


def main() -> None:
    """Print the tables."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    header(f"{trials} searches each, 5 confirming runs included")
    for number, noise in itertools.product((8, 28, 111, 512), (0.2, 0.8)):

        def between(
            generator: random.Random, number: int = number, noise: float = noise
        ) -> Storage:
            return Storage(number + generator.random(), noise, generator)

        name = f"N {number}, noise {noise}"
        row(f"{name}, from ±30 %: search", trials, between, predicted, sized)
        row(f"{name}, from ±30 %: doubling, bisection", trials, between, predicted, bisected)
        row(f"{name}, from 1: search", trials, between, one, sized)
        row(f"{name}, from 1: doubling, bisection", trials, between, one, bisected)

    header("Throttled devices, N 3 to 12, noise 0.3")
    for name, change in CASES.items():

        def small(generator: random.Random, change: Change = change) -> Storage:
            return change(Storage(generator.uniform(3, 13), 0.3, generator))

        row(f"{name}: from ±30 %", trials, small, predicted, sized)
        row(f"{name}: from 1", trials, small, one, sized)
        row(f"{name}: from a probe", trials, small, probed, sized)


Change = Callable[[Storage], Storage]
CASES: dict[str, Change] = {
    "AU 90": lambda storage: storage,
    "AU 70, ceiling 88": lambda storage: replace(storage, threshold=70.0, ceiling=88.0),
    "first run 1 point low": lambda storage: replace(storage, low={0: 1.0}),
    "2 % read in the step left out": lambda storage: replace(storage, prefetched=0.02),
    "knee rounded by 3 points": lambda storage: replace(storage, knee=3.0),
    "the last three at once": lambda storage: replace(
        storage, low={0: 1.0}, prefetched=0.02, knee=3.0
    ),
    "N* within 0.05 of a whole number": lambda storage: replace(
        storage, feeds=round(storage.feeds) + storage.generator.uniform(-0.05, 0.05)
    ),
}


if __name__ == "__main__":
    main()
