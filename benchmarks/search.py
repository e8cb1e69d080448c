"""What a sizing costs and how exact it is, in simulated time.

    python -m benchmarks.search [trials=1000] [json=FILE]

Every run is a draw: AU = min(ceiling, threshold x N* / N) and Gaussian noise, for a storage that
feeds N* accelerators, N* drawn evenly between N and N + 1. More than 1.5 x N* make the storage
collapse by 15 %. The search starts from a prediction that is off by up to 30 %, or from what a
probe says. Seeded: the same table every time.
"""

import itertools
import math
import random
import sys
from dataclasses import replace
from statistics import fmean

from benchmarks.harness import Asked
from tests.lab.noisy_storage import Storage, sized


def row(
    name: str, trials: int, numbers: tuple[float, float], noise: float, *, throttled: bool = False
) -> dict[str, str]:
    """Return how many runs the search takes, and how near it comes, for numbers between two.

    `throttled`: as was seen of drives that are held to a rate, and begun at what a probe says.
    """
    generator = random.Random(f"{name}: search")
    runs, off = [], []
    for _ in range(trials):
        storage = Storage(generator.uniform(*numbers), noise, generator)
        off_by = generator.uniform(*((0.97, 1.12) if throttled else (0.7, 1.3)))
        start = max(1, round(storage.feeds * off_by))
        if throttled:  # a cold read by many gets up to an eighth more than a loader does
            storage = replace(storage, low={0: 1.0}, prefetched=0.02, knee=3.0)
            start = math.floor(storage.feeds * off_by) + 1
        off.append(sized(storage, start) - storage.most)
        runs.append(storage.num_runs)
    runs.sort()
    return {
        "": name,
        "runs, mean": f"{fmean(runs):.1f}",
        "95 % under": str(runs[int(0.95 * trials)]),
        "exact": f"{fmean(miss == 0 for miss in off):.1%}",
        "within 1": f"{fmean(abs(miss) <= 1 for miss in off):.1%}",
        "off by": f"{min(off):+d} to {max(off):+d}",
    }


def main(arguments: list[str]) -> None:
    """Print the table; five confirming runs are included."""
    asked = Asked(arguments, "trials")
    trials = asked.value("trials", 1000)
    rows = [
        row(f"N {number}, noise {noise}, from ±30 %", trials, (number, number + 1), noise)
        for number, noise in itertools.product((8, 28, 111), (0.2, 0.8))
    ]
    rows.append(row("N 3 to 12, throttled, from a probe", trials, (3, 13), 0.3, throttled=True))
    asked.show(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
