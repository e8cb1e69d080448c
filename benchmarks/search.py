"""What a sizing costs and how exact it is, in simulated time.

    python -m benchmarks.search [trials=1000] [json=FILE]

Every run is a draw: AU = min(ceiling, threshold x N* / N) and Gaussian noise, for a storage that
feeds N* accelerators, N* drawn evenly between N and N + 1. More than 1.5 x N* make the storage
collapse by 15 %. The search starts from a prediction that is off by up to 30 %, from 1, or from
what a probe says. Seeded: the same table every time.
"""

import itertools
import math
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

from benchmarks.harness import Asked
from tests.lab.noisy_storage import Storage, sized

STARTS: dict[str, Callable[[Storage], int]] = {
    "±30 %": lambda storage: max(1, round(storage.feeds * storage.generator.uniform(0.7, 1.3))),
    "1": lambda storage: 1,
    # A cold read by many gets up to an eighth more than a loader does.
    "a probe": lambda storage: (
        math.floor(storage.feeds * storage.generator.uniform(0.97, 1.12)) + 1
    ),
}


def row(
    name: str,
    trials: int,
    numbers: tuple[float, float],
    noise: float,
    change: Callable[[Storage], Storage] = lambda storage: storage,
) -> dict[str, str]:
    """Return how many runs the search takes, and how near it comes, for numbers between two."""
    generator = random.Random(f"{name}: search")
    runs, off = [], []
    for _ in range(trials):
        storage = change(Storage(generator.uniform(*numbers), noise, generator))
        off.append(sized(storage, STARTS[name.rpartition("from ")[2]](storage)) - storage.most)
        runs.append(storage.num_runs)
    runs.sort()
    shares = {
        "in 12": fmean(num <= 12 for num in runs),
        "exact": fmean(miss == 0 for miss in off),
        "within 1": fmean(abs(miss) <= 1 for miss in off),
    }
    return {
        "": name,
        "runs, mean": f"{fmean(runs):.1f}",
        "95 % under": str(runs[int(0.95 * trials)]),
        **{head: f"{share:.1%}" for head, share in shares.items()},
        "off by": f"{min(off):+d} to {max(off):+d}",
    }


def as_throttled(storage: Storage) -> Storage:
    """Return a storage with what was seen of drives that are held to a rate."""
    return replace(storage, low={0: 1.0}, prefetched=0.02, knee=3.0)


def main(arguments: list[str]) -> None:
    """Print the table; five confirming runs are included."""
    asked = Asked(arguments, "trials")
    trials = asked.value("trials", 1000)
    rows = [
        row(f"N {number}, noise {noise}, from {start}", trials, (number, number + 1), noise)
        for number, noise in itertools.product((8, 28, 111, 512), (0.2, 0.8))
        for start in ("±30 %", "1")
    ]
    rows.append(row("N 3 to 12, throttled, from a probe", trials, (3, 13), 0.3, as_throttled))
    asked.show(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
