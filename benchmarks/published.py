"""How well predictions meet published figures (benchmarks/data): python -m benchmarks.published.

36 cells: 3 workloads x 3 drives x 1, 2, 4, 8 drives. Five numbers are fitted, none of them to a
cell of its own: what the host moves for each workload, one overhead as a share of the step, and one
gain of all drives over their datasheets (page cache and efficiency cannot be told apart in this
table). Each is the median over the cells that show it. The band that `dlemu predict` prints is
taken from cells whose drive is left out of the fit: the residuals of a fit say too little.

What is scored is the predicted number against the published one. That one is not always the most
that pass: where AU is above the threshold, N x AU / threshold says how many more there may be.
Results of other submitters, to which nothing is fitted, are compared with the printed range.
`python -m benchmarks.truth published` holds what the product has of all this to these figures.
"""

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.harness import Measured, all_of, at_most, named, within
from dlemu.config.compose import datasheet
from dlemu.config.model import Drive, Workload, load_workload
from dlemu.report.blocks import Column, Lines, Table, table_of
from dlemu.report.sizing import range_of
from dlemu.report.text import render_markdown
from dlemu.sizing import formula
from dlemu.sizing.formula import (
    DLIO_CORE_SECONDS,
    ERROR,
    UNMEASURED_OVERHEAD,
    Prediction,
    PredictionInput,
    Published,
    dlio_files,
)
from dlemu.sizing.formula import predict as by_datasheet
from dlemu.sizing.predict import predict, predict_cached

CORES = 104
"""Of the host of the 36 cells."""
SHARE = 0.9
"""Share of the cells that the printed band is to hold."""
CEILING = 98.0
"""AU in percent above which nothing waits for the storage."""


@dataclass(frozen=True)
class Result:
    """What DLIO reached on one host, as published."""

    system: str
    cores: int
    workload: Workload
    """With its drives, by their datasheet; without a drive where the storage is something else."""
    accelerators: int
    passing: int
    """Accelerators that pass: none in a cell marked invalid."""
    read_bytes_per_second: float
    au_percentage: float = math.nan
    """Mean of the five runs."""

    @property
    def drive(self) -> Drive:
        """One of the drives."""
        assert self.workload.drive is not None
        return self.workload.drive

    @property
    def name(self) -> str:
        return f"{self.workload.name} {self.drive.name} x{self.workload.drives}"

    @cached_property
    def job(self) -> PredictionInput:
        """The prediction's input without what is fitted."""
        return PredictionInput.of(self.workload, self.drive)

    @property
    def published(self) -> formula.Published:
        """What a published run on this host would show."""
        found = formula.published(self.workload, self.job, self.cores)
        assert found is not None, "the formats of all these results are known"
        return found

    @property
    def real_accelerators(self) -> float:
        """Where AU would meet the threshold if the storage or the host were the limit."""
        return self.accelerators * self.au_percentage / self.job.threshold

    @property
    def datasheet_bytes_per_second(self) -> float:
        return self.job.num_drives * self.job.drive_read_bytes_per_second


@dataclass(frozen=True)
class Fit:
    """The five numbers, with the cells that each comes from."""

    host_read_bytes_per_second: dict[str, float]
    overhead_share: float
    gain: float
    cells: frozenset[str]
    """That something is fitted to."""

    def predict(self, cell: Result, accelerators: int | None = None) -> Prediction:
        """Return the most accelerators that pass in a cell, or what so many do there."""
        calibration = formula.Calibration(
            workload=cell.workload.name,
            loader="dlio",
            odirect=False,
            overhead=self.overhead_share * cell.job.computation_time,
            host_read_bytes_per_second=self.host_read_bytes_per_second[cell.workload.name],
            drive_read_bytes_per_second=self.gain * cell.job.drive_read_bytes_per_second,
        )
        return formula.predict(replace(cell.job, accelerators=accelerators), calibration)


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a file in benchmarks/data; its comments say where they are from."""
    with Path(__file__).with_name("data").joinpath(f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def read_cells() -> list[Result]:
    """Return the table of 36 cells."""
    cells = []
    for row in rows("mlperf_storage_v1.0_published"):
        keys: dict[str, object] = {"drive": row["drive"], "drives": int(row["drives"])}
        job, number = load_workload(row["workload"], keys), int(row["simulated_h100"])
        au = fmean(float(row[f"AU_{run}"]) for run in range(1, 6))
        passing = 0 if row["throughput_MiBps"] == "invalid" else number
        cells.append(Result("", CORES, job, number, passing, number * au / 100 * job.demand, au))
    return cells


def read_one_host() -> list[Result]:
    """Return other submitters' results of one host."""
    results = []
    for row in rows("mlperf_storage_v1.0_one_host"):
        drive = {"name": row["drive"], "read_bandwidth": f"{row['drive_MBps']}MB"}
        job = load_workload(row["workload"], {"drive": drive} if row["drive"] else {})
        number, rate = int(row["simulated"]), float(row["throughput_MiBps"]) * 2**20
        system = f"{row['submitter']} {row['system']}"
        results.append(Result(system, int(row["host_cores"]), job, number, number, rate))
    return results


def fit(cells: Sequence[Result]) -> Fit:
    """Return the five numbers, each the median over the cells that show it."""
    hosts, used = {}, []
    for name in dict.fromkeys(cell.workload.name for cell in cells):
        own = [cell for cell in cells if cell.workload.name == name]
        most = max(cell.read_bytes_per_second for cell in own)
        # Drives of twice the rate that any cell reached are not the limit: the host is.
        ample = [cell for cell in own if cell.datasheet_bytes_per_second > 2 * most]
        hosts[name] = median(cell.read_bytes_per_second for cell in ample)
        used += ample
    ceiling = [cell for cell in cells if cell.au_percentage > CEILING]
    # Under the ceiling, and the host could do more: the storage is the limit. NVMe alone decides,
    # so that the SATA cells are predicted from other drives than theirs.
    bound = [
        cell
        for cell in cells
        if cell.au_percentage < CEILING
        and cell.read_bytes_per_second < 0.98 * hosts[cell.workload.name]
        and cell.drive.name != "D3-S4520"
    ]
    gains = [cell.read_bytes_per_second / cell.datasheet_bytes_per_second for cell in bound]
    overhead = median(100 / cell.au_percentage - 1 for cell in ceiling)
    return Fit(
        hosts, overhead, median(gains), frozenset(cell.name for cell in [*used, *ceiling, *bound])
    )


def without_drive(cells: Sequence[Result]) -> list[tuple[Result, Fit]]:
    """Return each cell with a fit that knows nothing of its drive."""
    return [(cell, fit([other for other in cells if other.drive != cell.drive])) for cell in cells]


def off(cell: Result, fitted: Fit) -> float:
    """Return how far the published rate lies from what is predicted at its number: 0.2 is above."""
    return cell.au_percentage / fitted.predict(cell, cell.accelerators).au_percentage - 1


def quantile(errors: Iterable[float]) -> float:
    """Return the error that SHARE of all such cells stay within, seen or not.

    The rank is that of so many cells and one more: a few cells say little about their extremes.
    """
    ranked = sorted(abs(error) for error in errors)
    return ranked[min(len(ranked), math.ceil((len(ranked) + 1) * SHARE)) - 1]


def core_seconds(
    cells: Sequence[Result], one_host: Sequence[Result]
) -> dict[tuple[str, bool], tuple[float, float]]:
    """Return, as DLIO_CORE_SECONDS, the host's core seconds that a GB takes with DLIO.

    The least over all results of one host, which other things than its cores may limit; the most
    over those that drives of ample rate fed.
    """
    hosts = fit(cells).host_read_bytes_per_second
    found = {}
    for files in DLIO_CORE_SECONDS:
        seen = [each for each in one_host if dlio_files(each.workload) == files]
        fed = [
            CORES / rate for job, rate in hosts.items() if dlio_files(load_workload(job)) == files
        ]
        least = min(each.cores / each.read_bytes_per_second for each in seen)
        found[files] = 1e9 * least, 1e9 * max(fed)
    return found


def drive_shares(results: Iterable[Result]) -> tuple[float, float, list[str]]:
    """Return between which shares of their datasheets drives must be taken to give.

    So that the range of a published run (`Published`) has each published number that the host does
    not limit: it is the least share with which one more would pass, and the most that is needed.
    And the results that are left out: they are outside the range of a datasheet (ERROR), too.
    """
    lows, highs, left_out = [], [], []
    for each in results:
        one, whole = each.job.threshold / 100 * each.job.demand, each.datasheet_bytes_per_second
        _, dearest = DLIO_CORE_SECONDS[dlio_files(each.workload)]
        highs.append(each.passing * one / whole)
        if 1e9 * each.cores / dearest / one >= each.passing + 1:
            low = (each.passing + 1) * one / whole
            (left_out.append(each.name) if low < 1 - ERROR else lows.append(low))
    return min(lows), max(highs), left_out


def read_caches() -> list[dict[str, Any]]:
    """Return published tests of a cache before a D5-P5336, with `rate` and `limit` by datasheet.

    `published` is the cache's: written in a load, read in a read. Rates are bytes per second.
    """
    origin, found = datasheet("d5_p5336")["read_bandwidth"], []
    for row in rows("cache_published"):
        keys = {"drive": row["cache_drive"], "origin.read_bandwidth": origin, "cache.capacity": 1.0}
        job = predict_cached(load_workload("unet3d_h100", keys)).document
        epoch, done = ("warm", "read") if float(row["hits"]) else ("cold", "write")
        own = {
            "rate": job[f"{epoch}_supply_bytes_per_second"],
            "limit": job[f"{epoch}_supply_limit"],
            "published": 1e6 * float(row[f"cache_{done}_MBps"]),
            "published_limit": row["limit"],
        }
        found.append(row | own)
    return found


def band_of_predictions() -> Measured:
    """Compare the printed band with that of cells whose drive was left out of the fit."""
    cells = read_cells()
    band = quantile(off(*pair) for pair in without_drive(cells))
    residuals = quantile(off(cell, fit(cells)) for cell in cells)
    overhead = max(100 / cell.au_percentage - 1 for cell in cells if cell.au_percentage > CEILING)
    return all_of(
        within("drive left out", 100 * band, 100 * ERROR - 1, 100 * ERROR),
        at_most("fitted", 100 * residuals, 50 * ERROR),
        at_most("largest overhead of a step", 100 * overhead, 100 * UNMEASURED_OVERHEAD),
    )


def cores_of_dlio() -> Measured:
    """Compare what DLIO's host needs for a GB with the published hosts, to a tenth outward."""
    found = core_seconds(read_cells(), read_one_host())
    parts = []
    for files, (low, high) in DLIO_CORE_SECONDS.items():
        name = f"{files[0]}{', many' * files[1]}"
        least, most = found[files]
        parts.append(within(f"{name}, least", least, low, low + 0.1 - 1e-9))
        parts.append(within(f"{name}, most", most, high - 0.1, high))
    return all_of(*parts)


def published_caches() -> Measured:
    """Compare what datasheets say of a cache before an origin with its published tests."""
    parts = []
    for row in read_caches():
        parts.append(within("share of the rate", row["published"] / row["rate"], 0.88, 1.12))
        parts.append(named("limit", row["limit"], row["published_limit"]))
    return all_of(*parts)


def _told(claim: Measured) -> Iterator[str]:
    """Yield a line for each part of a claim: its bound, and what was found."""
    parts = zip(claim.bound.split("; "), claim.found.split("; "), strict=True)
    return (f"- {bound}: {found}" for bound, found in parts)


_Fits = Sequence[tuple[Result, Fit]]


def _score(pairs: _Fits) -> str:
    """Return how near each cell's prediction by its fit comes."""
    found = [(fitted.predict(cell).num_accelerators, cell.passing) for cell, fitted in pairs]
    close = sum(abs(ours - true) <= max(1, 0.05 * true) for ours, true in found)
    errors = sorted(abs(1 / (1 + off(*pair)) - 1) for pair in pairs)
    return (
        f"N exact {sum(a == b for a, b in found)} of {len(pairs)}; within max(1, 5 %) {close}; "
        f"bandwidth error median {median(errors):.1%},"
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
    own = [(each, fitted) for each in results]
    left_out = without_drive(results)
    yield "\nscored against the published N (0 in cells marked invalid):"
    yield f"- all cells: {_score(own)}"
    unfitted = [pair for pair in own if pair[0].name not in fitted.cells]
    yield f"- that nothing is fitted to: {_score(unfitted)}"
    yield f"- of 10 and more, where 1 is little: {_score([p for p in own if p[0].passing >= 10])}"
    yield f"- each drive left out of its fit: {_score(left_out)}"
    limited = [cell for cell in results if fitted.predict(cell).limit == "storage"]
    hits = sum(_holds(by_datasheet(cell.job), cell.passing) for cell in limited)
    limits = f"{hits} of the {len(limited)} that the storage limits"
    yield f"- datasheets alone: N in the range in {limits}"
    yield f"\nwithin which {SHARE:.0%} of such cells lie (published rate / predicted - 1), in %:"
    yield from _told(band_of_predictions())


def hosts(results: Sequence[Result], one_host: Sequence[Result]) -> list[Table | Lines]:
    """Return what DLIO takes of hosts, and other submitters' drives beside their predictions."""
    held = [each for each in one_host if each.workload.drive is not None]
    alone, runs = [by_datasheet(each.job) for each in held], [each.published for each in held]
    low, high, left_out = drive_shares([*results, *held])
    told = ["core seconds of the host for a GB with DLIO:", *_told(cores_of_dlio())]
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


def _minutes(row: dict[str, str]) -> float:
    """Return the predicted minutes of a training, by its drives' datasheet."""
    job = load_workload("dlrm_dcnv2_h100", {"drive": row["drive"], "drives": int(row["drives"])})
    number = int(row["accelerators"])
    keys: dict[str, object] = {"predict.minutes": True, "predict.accelerators": number}
    if row["plateau_minutes"]:
        steps = job.num_files * job.dataset.num_samples_per_file / number / job.reader.batch_size
        keys["train.computation_time"] = 60 * float(row["plateau_minutes"]) / steps
    minutes = predict(job.with_keys(keys)).minutes
    assert minutes is not None
    return minutes


def trainings() -> Table:
    """Return DLRM's published minutes beside their predictions, to which nothing is fitted."""
    return table_of(
        [row for row in rows("mlperf_training_dlrm_minutes") if row["minutes"]],
        Column("system", "system"),
        Column("drive", "drive"),
        Column("drives", "drives"),
        Column("published, min", "minutes"),
        Column("by datasheet", _minutes, ".2f"),
        Column("off", lambda row: _minutes(row) / float(row["minutes"]) - 1, "+.1%"),
    )


def main() -> None:
    """Print a row of each cell, the fit, and the scores."""
    results, one_host = read_cells(), read_one_host()
    fitted = fit(results)
    first = cells(results, fitted), Lines([*scores(results, fitted)])
    print(render_markdown([*first, *hosts(results, one_host), trainings()]))


if __name__ == "__main__":
    main()
