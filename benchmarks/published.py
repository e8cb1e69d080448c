"""How well predictions meet the published cells: python -m benchmarks.published.

36 cells: 3 workloads x 3 drives x 1, 2, 4, 8 drives (benchmarks/data). Five numbers are fitted,
none of them to a cell of its own: what the host moves for each workload, one overhead as a share
of the step, and one gain of all drives over their datasheets (page cache and efficiency are not
to be told apart in this table). Each is the median over the cells that show it.

The band that `dlemu predict` prints is taken from cells whose drive is left out of the fit: the
residuals of a fit say too little. Results of other submitters, to which nothing is fitted, are
compared with the printed range. What DLIO takes of a host's cores is computed from both tables.

What is scored is the predicted number against the published one. That one is not always the most
that pass: where AU is above the threshold, N x AU / threshold says how many more there may be.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from benchmarks.published_cells import (
    CEILING,
    CORES,
    SHARE,
    Cell,
    Fit,
    OneHost,
    core_seconds,
    drive_shares,
    fit,
    largest_overhead,
    off,
    quantile,
    read_caches,
    read_cells,
    read_endurance,
    read_one_host,
    without_drive,
)
from benchmarks.published_training import Minutes, fit_efficiency, read_minutes
from dlemu.host.wear import sustained
from dlemu.sizing.formula import ERROR, Prediction, Published, predict


def close(predicted: int, published: int) -> bool:
    """Say whether a number is within max(1, 5 %)."""
    return abs(predicted - published) <= max(1, 0.05 * published)


@dataclass(frozen=True)
class Score:
    """How many of so many cells, and the error of the rate at the published number."""

    exact: int
    close: int
    errors: list[float]

    def __str__(self) -> str:
        ranked = sorted(abs(error) for error in self.errors)
        num = len(ranked)
        return (
            f"N exact {self.exact} of {num}; N within max(1, 5 %) {self.close} of {num}; bandwidth "
            f"error median {median(ranked):.1%}, 90 % of cells under {ranked[int(0.9 * num)]:.1%}"
        )


def score(fits: Iterable[tuple[Cell, Fit]]) -> Score:
    """Return how near each cell's prediction by its fit comes."""
    pairs = list(fits)
    numbers = [(fitted.predict(cell).num_accelerators, cell.passing) for cell, fitted in pairs]
    return Score(
        exact=sum(predicted == published for predicted, published in numbers),
        close=sum(close(*pair) for pair in numbers),
        errors=[
            fitted.predict(cell, cell.accelerators).au_percentage / cell.au_percentage - 1
            for cell, fitted in pairs
        ],
    )


def print_cells(cells: Sequence[Cell], fitted: Fit) -> None:
    """Print a row of each cell."""
    print("| cell | N | N x AU / threshold | predicted (real) | | AU % | predicted | off | limit |")
    print("|---|--:|--:|--:|---|--:|--:|--:|---|")
    for cell in cells:
        most, there = fitted.predict(cell), fitted.predict(cell, cell.accelerators)
        exact = most.num_accelerators == cell.passing
        mark = (
            "exact" if exact else "close" if close(most.num_accelerators, cell.passing) else "off"
        )
        print(
            f"| {cell.name} | {cell.passing} | {cell.real_accelerators:.2f} | "
            f"{most.num_accelerators} ({most.real_accelerators:.2f}) | {mark} | "
            f"{cell.au_percentage:.2f} | {there.au_percentage:.2f} | "
            f"{there.au_percentage / cell.au_percentage - 1:+.1%} | {there.limit} |"
        )


def print_fit(fitted: Fit) -> None:
    """Print the fitted numbers and the cells that they come from."""
    print(f"\n{fitted.num_parameters} fitted parameters:")
    for name, rate in fitted.host_read_bytes_per_second.items():
        print(f"- host rate, {name}: {rate / 1e9:.2f} GB/s")
    print(f"- overhead: {fitted.overhead_share:.2%} of computation_time")
    print(f"- gain of the drives over their datasheets: {fitted.gain:.3f}")
    print("\nFitted cells (a number is the median over its cells):")
    for name, of_cells in fitted.cells.items():
        print(f"- {name}: {', '.join(of_cells)}")


def _holds(prediction: Prediction | Published, number: int) -> bool:
    return prediction.low <= number and (prediction.high is None or number <= prediction.high)


def print_bands(cells: Sequence[Cell], left_out: Sequence[tuple[Cell, Fit]]) -> None:
    """Print the bands that predictions have, and the residuals that say too little."""
    fitted = fit(cells)
    bound = [pair for pair in left_out if pair[1].predict(pair[0]).limit == "storage"]
    print(f"\nWithin which {SHARE:.0%} of such cells lie (published rate / predicted - 1):")
    for name, errors in (
        ("residuals of the fit", [off(cell, fitted) for cell in cells]),
        ("each drive left out of its fit", [off(*pair) for pair in left_out]),
        ("of these, the cells that the storage limits", [off(*pair) for pair in bound]),
    ):
        held = sum(abs(error) <= ERROR for error in errors)
        print(
            f"- {name}: ±{quantile(errors):.1%}; the printed band of ±{ERROR:.0%} holds {held} of "
            f"{len(errors)}"
        )
    print(f"- largest overhead at the ceiling: {largest_overhead(cells):.2%} of computation_time")


def print_one_host(cells: Sequence[Cell], results: Sequence[OneHost]) -> None:
    """Print what DLIO takes of hosts, and other submitters' drives beside their predictions."""
    print("\nCore seconds of the host for a GB, DLIO, results of one host:")
    for name, (least, most) in core_seconds(cells, results).items():
        print(f"- {name}: from {least:.2f} to {most:.2f}")
    low, high, left_out = drive_shares(cells, results)
    print(
        f"\nShares of their datasheets that drives give to DLIO: {low:.2f} to {high:.2f}, without "
        f"{', '.join(left_out)}"
    )
    print("\n| drive | cores | workload | N | predicted | range | | published DLIO run |")
    print("|---|--:|---|--:|--:|---|---|---|")
    held_out = [result for result in results if result.drive is not None]
    alone, runs = zip(*(result.predict() for result in held_out), strict=True)
    for result, datasheet, run in zip(held_out, alone, runs, strict=True):
        assert result.drive is not None
        missed = "" if _holds(datasheet, result.accelerators) else "missed"
        print(
            f"| {result.drive.name} | {result.cores} | {result.workload.name} | "
            f"{result.accelerators} | {datasheet.num_accelerators} | {datasheet.low} to "
            f"{datasheet.high} | {missed} | {run.num_accelerators}, {run.low} to {run.high}, "
            f"{run.figure} |"
        )
    numbers = [result.accelerators for result in held_out]
    print(
        f"\nResults on drives never fitted to: datasheet {_in_range(alone, numbers)}; published "
        f"run {_in_range(runs, numbers)}"
    )
    cell_runs, passing = [cell.published for cell in cells], [cell.passing for cell in cells]
    print(
        f"The {len(cells)} cells on a host of {CORES} cores: published run "
        f"{_in_range(cell_runs, passing)}"
    )


def _in_range(ranges: Sequence[Prediction | Published], numbers: Sequence[int]) -> str:
    """Return how many of the numbers are in their ranges, and how wide these are."""
    hits = sum(map(_holds, ranges, numbers))
    widths = [found.high - found.low for found in ranges if found.high is not None]
    return f"{hits} of {len(numbers)} in range, ranges {fmean(widths):.1f} wide in the mean"


def print_endurance() -> None:
    """Print the write rates that published drives sustain, beside `dlemu doctor --wear`."""
    print("\nWrite rate that wears a drive out in its years (decimal: 1 PB = 10^15 bytes):")
    print("| drive | PBW | written | published | decimal, MB/s | binary, MiB/s |")
    print("|---|--:|--:|--:|--:|--:|")
    for row in read_endurance():
        rate = sustained(row.endurance_bytes, years=row.years, duty=row.duty)
        print(
            f"| {row.drive} | {row.endurance_bytes / 1e15:g} | {row.duty:.0%} | "
            f"{row.published_MBps:,} | {rate['bytes_per_second'] / 1e6:,.1f} | "
            f"{rate['binary_bytes_per_second'] / 2**20:,.1f} |"
        )


def print_caches() -> None:
    """Print the published tests of a cache before an origin, and the rate that decides them."""
    print("\nA cache before an origin of one D5-P5336 (load: cold, each byte is stored once):")
    print("| test | cache | limit, by datasheets | MB/s | published, cache | origin | off |")
    print("|---|---|---|--:|--:|--:|--:|")
    for row in read_caches():
        published = f"{row.cache_rate / 1e6:,.0f} | {row.origin_rate / 1e6:,.0f}"
        print(
            f"| {row.test} | {row.drive} | {row.limit} | {row.rate / 1e6:,.0f} | {published} | "
            f"{row.cache_rate / row.rate - 1:+.1%} |"
        )


def print_minutes(cells: Sequence[Minutes]) -> None:
    """Print DLRM's minutes beside their predictions, with one number fitted to all of them."""
    efficiency = fit_efficiency(cells)
    print(
        "\nDLRM-DCNv2, minutes of training (1 fitted number: the drives give "
        f"{efficiency:.3f} of their datasheets):"
    )
    print("\n| system | drives | published | predicted | off | by datasheet | limit |")
    print("|---|---|--:|--:|--:|--:|---|")
    errors = []
    for cell in cells:
        minutes = cell.predict(efficiency)
        off_by = ""
        if cell.published is not None:
            error = minutes / cell.published - 1
            off_by = f"{error:+.1%}"
            errors += [abs(error)] if cell.is_limited else []
        limit = "drive" if minutes > 1.001 * cell.own_minutes else "accelerators"
        print(
            f"| {cell.system} | {cell.name} | {cell.published or '-'} | {minutes:.2f} | {off_by} | "
            f"{cell.predict():.2f} | {limit} |"
        )
    within = sum(error <= 0.1 for error in errors)
    print(
        f"\nWithin 10 % in {within} of the {len(errors)} cells that the drive limits; largest "
        f"error there {max(errors):.1%}."
    )


def main() -> None:
    """Print a row of each cell, the fit, and the scores."""
    cells = read_cells()
    fitted = fit(cells)
    print_cells(cells, fitted)
    print_fit(fitted)

    used = {name for of_cells in fitted.cells.values() for name in of_cells}
    rest = [cell for cell in cells if cell.name not in used]
    without_cell = ((cell, fit([c for c in cells if c is not cell])) for cell in cells)
    left_out = without_drive(cells)
    print("\nScored against the published N (0 in cells marked invalid):")
    print(f"- all cells: {score((cell, fitted) for cell in cells)}")
    print(f"- cells that nothing is fitted to: {score((cell, fitted) for cell in rest)}")
    large = [cell for cell in cells if cell.passing >= 10]
    print(f"- cells of 10 and more, where 1 is little: {score((cell, fitted) for cell in large)}")
    print(f"- each cell left out of its fit: {score(without_cell)}")
    print(f"- each drive left out of its fit: {score(left_out)}")
    own = [
        (fitted.predict(cell).num_accelerators, int(cell.real_accelerators))
        for cell in cells
        if cell.au_percentage < CEILING
    ]
    print(
        f"- not scored: against N x AU / threshold where AU is below its ceiling, "
        f"exact {sum(a == b for a, b in own)} and within max(1, 5 %) "
        f"{sum(close(*pair) for pair in own)} of {len(own)}"
    )
    alone = [predict(cell.job) for cell in cells]
    ranges = [_holds(p, cell.passing) for p, cell in zip(alone, cells, strict=True)]
    storage = [cell for cell in cells if fitted.predict(cell).limit == "storage"]
    inside = sum(hit for hit, cell in zip(ranges, cells, strict=True) if cell in storage)
    print(
        f"- datasheets alone, nothing fitted: N in the range of ±{ERROR:.0%} in {inside} of the "
        f"{len(storage)} cells that the storage limits, in {sum(ranges)} of all "
        f"{len(cells)} (a datasheet knows no host)"
    )
    print_bands(cells, left_out)
    far = [
        f"{cell.name} ({error:+.0%})"
        for cell, error in zip(cells, score((c, fitted) for c in cells).errors, strict=True)
        if abs(error) > 0.05
    ]
    print(f"\nWhere the closed form is more than 5 % off in bandwidth: {', '.join(far)}")
    print_one_host(cells, read_one_host())
    print_endurance()
    print_caches()
    print_minutes(read_minutes())


if __name__ == "__main__":
    main()
