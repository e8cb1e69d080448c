"""How well predictions meet published figures: python -m benchmarks.published.

The band that `dlemu predict` prints is taken from cells whose drive is left out of the fit: the
residuals of a fit say too little. Results of other submitters, to which nothing is fitted, are
compared with the printed range. What DLIO takes of a host's cores is computed from both tables.

What is scored is the predicted number against the published one. That one is not always the most
that pass: where AU is above the threshold, N x AU / threshold says how many more there may be.
"""

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, median

from benchmarks import published_cells as published
from benchmarks.published_cells import SHARE, Fit, Result, off, rows
from dlemu.config.model import load_workload
from dlemu.host.wear import sustained
from dlemu.report.blocks import Column, Lines, Table, table_of
from dlemu.report.sizing import range_of
from dlemu.report.text import render_markdown
from dlemu.sizing.formula import ERROR, Prediction, Published
from dlemu.sizing.formula import predict as by_datasheet
from dlemu.sizing.predict import predict

_FELT = 1.1
"""A drive limits a training if that takes so many times the minutes of the accelerators alone."""
_Fits = Sequence[tuple[Result, Fit]]


def _is_close(predicted: int, published: int) -> bool:
    return abs(predicted - published) <= max(1, 0.05 * published)


def _score(pairs: _Fits) -> str:
    """Return how near each cell's prediction by its fit comes."""
    numbers = [(fitted.predict(cell).num_accelerators, cell.passing) for cell, fitted in pairs]
    errors = sorted(abs(1 / (1 + off(*pair)) - 1) for pair in pairs)
    return (
        f"N exact {sum(a == b for a, b in numbers)} of {len(pairs)}; within max(1, 5 %) "
        f"{sum(_is_close(*pair) for pair in numbers)}; bandwidth error median {median(errors):.1%},"
        f" 90 % of cells under {errors[int(0.9 * len(errors))]:.1%}"
    )


def _holds(prediction: Prediction | Published, number: int) -> bool:
    return prediction.low <= number and (prediction.high is None or number <= prediction.high)


def _in_range(found: Sequence[Prediction | Published], results: Iterable[Result]) -> str:
    """Return how many of the numbers are in their ranges, and how wide these are."""
    hits = sum(_holds(each, result.passing) for each, result in zip(found, results, strict=True))
    width = fmean(each.high - each.low for each in found if each.high is not None)
    return f"{hits} of {len(found)} in range, ranges {width:.1f} wide in the mean"


def cells(results: Sequence[Result], fitted: Fit) -> Table:
    """Return each cell beside what the fit predicts."""
    return table_of(
        [(each, fitted.predict(each), fitted.predict(each, each.accelerators)) for each in results],
        Column("cell", lambda row: row[0].name),
        Column("N", lambda row: row[0].passing),
        Column("N x AU / threshold", lambda row: row[0].real_accelerators, ".2f"),
        Column("predicted", lambda row: row[1].num_accelerators),
        Column("real", lambda row: row[1].real_accelerators, ".2f"),
        Column("AU (%)", lambda row: row[0].au_percentage, ".2f"),
        Column("predicted AU", lambda row: row[2].au_percentage, ".2f"),
        Column("off", lambda row: row[2].au_percentage / row[0].au_percentage - 1, "+.1%"),
        Column("limit", lambda row: row[2].limit),
    )


def scores(results: Sequence[Result], fitted: Fit) -> Iterator[str]:
    """Yield the fitted numbers, how near they come, and the bands that predictions have."""
    for name, rate in fitted.host_read_bytes_per_second.items():
        yield f"host rate, {name}: {rate / 1e9:.2f} GB/s"
    yield f"overhead: {fitted.overhead_share:.2%} of computation_time"
    yield f"gain of the drives over their datasheets: {fitted.gain:.3f}"
    yield from (f"{name}, the median of: {', '.join(own)}" for name, own in fitted.cells.items())
    own = [(each, fitted) for each in results]
    used = {name for each in fitted.cells.values() for name in each}
    cold = [
        (each, published.fit([other for other in results if other is not each])) for each in results
    ]
    left_out = published.without_drive(results)
    yield "\nscored against the published N (0 in cells marked invalid):"
    yield f"- all cells: {_score(own)}"
    yield f"- that nothing is fitted to: {_score([p for p in own if p[0].name not in used])}"
    yield f"- of 10 and more, where 1 is little: {_score([p for p in own if p[0].passing >= 10])}"
    yield f"- each left out of its fit: {_score(cold)}"
    yield f"- each drive left out of its fit: {_score(left_out)}"
    for name, among in (
        ("storage limits", [cell for cell in results if fitted.predict(cell).limit == "storage"]),
        ("table has", results),
    ):
        hits = sum(_holds(by_datasheet(cell.job), cell.passing) for cell in among)
        yield f"- datasheets alone: N in the range in {hits} of the {len(among)} that the {name}"
    yield f"\nwithin which {SHARE:.0%} of such cells lie (published rate / predicted - 1):"
    bound = [pair for pair in left_out if pair[1].predict(pair[0]).limit == "storage"]
    for name, pairs in (("fitted", own), ("left out", left_out), ("by storage limited", bound)):
        errors = [off(*pair) for pair in pairs]
        held, band = sum(abs(error) <= ERROR for error in errors), published.quantile(errors)
        yield f"- {name}: ±{band:.1%}; ±{ERROR:.0%} holds {held} of {len(errors)}"
    largest = published.largest_overhead(results)
    yield f"- largest overhead at the ceiling: {largest:.2%} of computation_time"


def hosts(results: Sequence[Result], one_host: Sequence[Result]) -> list[Table | Lines]:
    """Return what DLIO takes of hosts, and other submitters' drives beside their predictions."""
    held = [each for each in one_host if each.workload.drive is not None]
    alone, runs = [by_datasheet(each.job) for each in held], [each.published for each in held]
    low, high, left_out = published.drive_shares([*results, *held])
    told = [
        f"core seconds of the host for a GB, DLIO, {name}: from {least:.2f} to {most:.2f}"
        for name, (least, most) in published.core_seconds(results, one_host).items()
    ]
    share = f"{low:.2f} to {high:.2f}, without {', '.join(left_out)}"
    ranges: list[tuple[str, Sequence[Prediction | Published], Sequence[Result]]] = [
        ("drives never fitted to, by datasheet", alone, held),
        ("drives never fitted to, published run", runs, held),
        ("the cells, published run", [each.published for each in results], results),
    ]
    return [
        Lines([*told, f"shares of their datasheets that drives give to DLIO: {share}"]),
        table_of(
            zip(held, alone, runs, strict=True),
            Column("host", lambda row: row[0].system),
            Column("cores", lambda row: row[0].cores),
            Column("workload", lambda row: row[0].workload.name),
            Column("N", lambda row: row[0].passing),
            Column("by datasheet", lambda row: row[1].num_accelerators),
            Column("range", lambda row: range_of(vars(row[1]))),
            Column("published run", lambda row: row[2].num_accelerators),
            Column("its range", lambda row: range_of(vars(row[2]))),
            Column("limit", lambda row: row[2].figure),
        ),
        Lines([f"{name}: {_in_range(found, of)}" for name, found, of in ranges]),
    ]


def _minutes(row: dict[str, str], share: float = 1.0) -> float:
    """Return the predicted minutes of a training whose drives give this share of a datasheet."""
    keys = {"drive": row["drive"], "drives": int(row["drives"]), "predict.minutes": True}
    job = load_workload(
        "dlrm_dcnv2_h100", keys | {"predict.accelerators": int(row["accelerators"])}
    )
    assert job.drive is not None
    changed: dict[str, object] = {"drive.read_bandwidth": round(share * job.drive.read_rate)}
    if row["plateau_minutes"]:
        slices = job.num_files * job.dataset.num_samples_per_file
        steps = slices / int(row["accelerators"]) / job.reader.batch_size
        changed["train.computation_time"] = 60 * float(row["plateau_minutes"]) / steps
    minutes = predict(job.with_keys(changed)).minutes
    assert minutes is not None
    return minutes


def _off(row: dict[str, str], share: float) -> float | None:
    return _minutes(row, share) / float(row["minutes"]) - 1 if row["minutes"] else None


def trainings() -> list[Table | Lines]:
    """Return DLRM's minutes beside their predictions, with one number fitted to all of them.

    It makes the largest error of the cells that a drive limits as small as one number can.
    """
    found = rows("mlperf_training_dlrm_minutes")
    alone = [float(row["plateau_minutes"] or _minutes(row, 1e3)) for row in found]
    limited = [
        row
        for row, own in zip(found, alone, strict=True)
        if float(row["minutes"] or 0) > _FELT * own
    ]
    # At a hundredth of its rate the drive alone decides.
    shares = [_minutes(row, 1e-2) / 1e2 / float(row["minutes"]) for row in limited]
    share = (min(shares) + max(shares)) / 2
    errors = [abs(_off(row, share) or 0) for row in limited]
    worst = f"largest error of the {len(errors)} that the drive limits: {max(errors):.1%}"
    return [
        table_of(
            found,
            Column("system", "system"),
            Column("drive", "drive"),
            Column("drives", "drives"),
            Column("published, min", lambda row: row["minutes"] or None),
            Column("predicted", lambda row: _minutes(row, share), ".2f"),
            Column("off", lambda row: _off(row, share), "+.1%"),
            Column("by datasheet", _minutes, ".2f"),
        ),
        Lines([f"the drives give {share:.3f} of their datasheets (fitted); {worst}"]),
    ]


def caches() -> Table:
    """Return the published tests of a cache before an origin, and the rate that decides them."""
    return table_of(
        published.read_caches(),
        Column("test", "test"),
        Column("cache before a D5-P5336", "cache_drive"),
        Column("limit, by datasheets", "limit"),
        Column("MB/s", lambda row: row["rate"] / 1e6, ",.0f"),
        Column("published, cache", lambda row: row["published"] / 1e6, ",.0f"),
        Column("origin", "origin_read_MBps"),
        Column("off", lambda row: row["published"] / row["rate"] - 1, "+.1%"),
    )


def wear() -> Iterator[str]:
    """Yield the write rates that published drives sustain, beside `dlemu doctor --wear`."""
    for row in rows("drive_endurance_published"):
        duty, endurance = int(row["average_use_percent"]) / 100, int(row["sequential_write_PBW"])
        found = sustained(endurance * 10**15, years=float(row["years"]), duty=duty)
        yield (
            f"{row['drive']}, {endurance} PBW, written {duty:.0%} of the time: "
            f"{row['write_bandwidth_supported_MBps']} published, "
            f"{found['bytes_per_second'] / 1e6:,.1f} MB/s, "
            f"{found['binary_bytes_per_second'] / 2**20:,.1f} MiB/s if a PB has 2^50 bytes"
        )


def main() -> None:
    """Print a row of each cell, the fit, and the scores."""
    results, one_host = published.read_cells(), published.read_one_host()
    fitted = published.fit(results)
    told, worn = Lines([*scores(results, fitted)]), Lines([*wear()])
    first, last = cells(results, fitted), [*trainings(), caches(), worn]
    print(render_markdown([first, told, *hosts(results, one_host), *last]))


if __name__ == "__main__":
    main()
