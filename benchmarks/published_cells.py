"""Published figures (benchmarks/data), and what is computed from them; published.py prints both.

36 cells: 3 workloads x 3 drives x 1, 2, 4, 8 drives. Five numbers are fitted, none of them to a
cell of its own: what the host moves for each workload, one overhead as a share of the step, and one
gain of all drives over their datasheets (page cache and efficiency cannot be told apart in this
table). Each is the median over the cells that show it.
"""

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any

from dlemu.config.compose import datasheet
from dlemu.config.model import Drive, Workload, load_workload
from dlemu.sizing import formula
from dlemu.sizing.formula import DLIO_CORE_SECONDS, ERROR, Prediction, PredictionInput, dlio_files
from dlemu.sizing.predict import predict_cached

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
    cells: dict[str, list[str]]

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
    hosts, shown = {}, {}
    for name in dict.fromkeys(cell.workload.name for cell in cells):
        own = [cell for cell in cells if cell.workload.name == name]
        most = max(cell.read_bytes_per_second for cell in own)
        # Drives of twice the rate that any cell reached are not the limit: the host is.
        ample = [cell for cell in own if cell.datasheet_bytes_per_second > 2 * most]
        hosts[name] = median(cell.read_bytes_per_second for cell in ample)
        shown[f"host rate, {name}"] = [cell.name for cell in ample]
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
    shown["overhead"] = [cell.name for cell in ceiling]
    shown["gain of the drives"] = [cell.name for cell in bound]
    gains = [cell.read_bytes_per_second / cell.datasheet_bytes_per_second for cell in bound]
    overhead = median(100 / cell.au_percentage - 1 for cell in ceiling)
    return Fit(hosts, overhead, median(gains), shown)


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


def largest_overhead(cells: Sequence[Result]) -> float:
    """Return the most that a step takes beyond computing where nothing waits for the storage."""
    return max(100 / cell.au_percentage - 1 for cell in cells if cell.au_percentage > CEILING)


def core_seconds(
    cells: Sequence[Result], one_host: Sequence[Result]
) -> dict[str, tuple[float, float]]:
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
