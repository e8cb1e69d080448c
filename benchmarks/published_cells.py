"""The published cells, and the fit of the closed form to them; benchmarks/published.py prints both.

36 cells: 3 workloads x 3 drives x 1, 2, 4, 8 drives (benchmarks/data). Five numbers are fitted,
none of them to a cell of its own: what the host moves for each workload, one overhead as a share of
the step, and one gain of all drives over their datasheets (page cache and efficiency cannot be told
apart in this table). Each is the median over the cells that show it.
"""

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from dlemu.config.compose import read_yaml
from dlemu.config.model import Drive, Workload, load_workload
from dlemu.sizing.formula import (
    DLIO_CORE_SECONDS,
    ERROR,
    Calibration,
    Prediction,
    PredictionInput,
    Published,
    host_with_dlio,
    predict,
    published,
)
from dlemu.sizing.predict import predict_cached

TABLE = Path(__file__).parent / "data" / "mlperf_storage_v1.0_published.csv"
ONE_HOST = Path(__file__).parent / "data" / "mlperf_storage_v1.0_one_host.csv"
ENDURANCE = Path(__file__).parent / "data" / "drive_endurance_published.csv"
CACHES = Path(__file__).parent / "data" / "cache_published.csv"
"""Alluxio's load and FUSE tests, as published by Solidigm."""
CORES = 104
"""Of the host that TABLE was measured on."""
SHARE = 0.9
"""Share of the cells that the printed band is to hold."""
CEILING = 98.0
"""AU in percent above which nothing waits for the storage."""
DRIVES = Path(__file__).parents[1] / "workloads" / "drive"
WORKLOADS = {"ResNet50": "resnet50_h100", "Unet3D": "unet3d_h100", "CosmoFlow": "cosmoflow_h100"}


@dataclass(frozen=True)
class Cell:
    """One published result, and the prediction's input without what is fitted."""

    workload: str
    drive: str
    job: PredictionInput
    accelerators: int
    au_percentage: float
    """Mean of the five runs."""
    throughput: float | None
    """Bytes per second as published, of nominal samples; None in a cell marked invalid."""

    @property
    def name(self) -> str:
        return f"{self.workload} {self.drive} x{self.job.num_drives}"

    @property
    def passing(self) -> int:
        """Accelerators that pass: as published, none in a cell marked invalid."""
        return 0 if self.throughput is None else self.accelerators

    @property
    def real_accelerators(self) -> float:
        """Where AU would meet the threshold if the storage or the host were the limit."""
        return self.accelerators * self.au_percentage / self.job.threshold

    @property
    def published(self) -> Published:
        """What a published run on this host would show."""
        return published_on(load_workload(WORKLOADS[self.workload]), self.job, CORES)

    @property
    def read_bytes_per_second(self) -> float:
        return self.accelerators * self.au_percentage / 100 * self.job.demand

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

    @property
    def num_parameters(self) -> int:
        return len(self.host_read_bytes_per_second) + 2

    def predict(self, cell: Cell, accelerators: int | None = None) -> Prediction:
        """Return the most accelerators that pass in a cell, or what so many do there."""
        calibration = Calibration(
            workload=cell.workload,
            loader="dlio",
            odirect=False,
            overhead=self.overhead_share * cell.job.computation_time,
            host_read_bytes_per_second=self.host_read_bytes_per_second[cell.workload],
            drive_read_bytes_per_second=self.gain * cell.job.drive_read_bytes_per_second,
        )
        return predict(replace(cell.job, accelerators=accelerators), calibration)


@dataclass(frozen=True)
class OneHost:
    """One published result of a host of known cores."""

    system: str
    cores: int
    workload: Workload
    drive: Drive | None
    """The one drive in the host, by its datasheet; None: the storage is something else."""
    accelerators: int
    read_bytes_per_second: float

    @property
    def core_seconds_per_gb(self) -> float:
        """What a GB takes of the host at most: other things than its cores may be the limit."""
        return self.cores / (self.read_bytes_per_second / 1e9)

    def predict(self) -> tuple[Prediction, Published]:
        """Return what the drive feeds by its datasheet, and what a published run would show."""
        assert self.drive is not None
        job = PredictionInput.of(self.workload, self.drive)
        return predict(job), published_on(self.workload, job, self.cores)


def published_on(workload: Workload, job: PredictionInput, cores: int) -> Published:
    """Return what a published run on a host of so many cores would show."""
    found = published(workload, job, cores)
    assert found is not None, "the formats of all these results are known"
    return found


def host_of(workload: Workload, cores: int) -> tuple[float, float]:
    """Return the least and the most bytes per second of a host of so many cores with DLIO."""
    host = host_with_dlio(workload, cores)
    assert host is not None, "the formats of all these results are known"
    return host


def read_cells() -> list[Cell]:
    """Return the published table."""
    return [_cell(row) for row in _rows(TABLE)]


@dataclass(frozen=True)
class Endurance:
    """A published write rate that uses up a drive in some years."""

    drive: str
    endurance_bytes: int
    years: float
    duty: float
    """Share of the time in which it writes."""
    published_MBps: int


def read_endurance() -> list[Endurance]:
    """Return the rows of the published cache test of drives (Alluxio on Solidigm drives)."""
    with ENDURANCE.open(newline="") as file:
        return [
            Endurance(
                drive=row["drive"],
                endurance_bytes=int(row["sequential_write_PBW"]) * 10**15,
                years=float(row["years"]),
                duty=int(row["average_use_percent"]) / 100,
                published_MBps=int(row["write_bandwidth_supported_MBps"]),
            )
            for row in csv.DictReader(file)
        ]


def read_one_host() -> list[OneHost]:
    """Return other submitters' results of one host."""
    return [
        OneHost(
            system=f"{row['submitter']} {row['system']}",
            cores=int(row["host_cores"]),
            workload=load_workload(row["workload"]),
            drive=Drive(name=row["drive"], read_bandwidth=int(row["drive_MBps"]) * 10**6)
            if row["drive"]
            else None,
            accelerators=int(row["simulated"]),
            read_bytes_per_second=float(row["throughput_MiBps"]) * 2**20,
        )
        for row in _rows(ONE_HOST)
    ]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def _cell(row: dict[str, str]) -> Cell:
    job = load_workload(WORKLOADS[row["workload"]], {"drives": int(row["drives"])})
    path = DRIVES / f"{row['drive'].lower().replace('-', '_')}.yaml"
    throughput = row["throughput_MiBps"]
    drive = Drive.model_validate(read_yaml(path))
    return Cell(
        workload=row["workload"],
        drive=row["drive"],
        job=PredictionInput.of(job, drive),
        accelerators=int(row["simulated_h100"]),
        au_percentage=fmean(float(row[f"AU_{run}"]) for run in range(1, 6)),
        throughput=None if throughput == "invalid" else float(throughput) * 2**20,
    )


def fit(cells: Sequence[Cell]) -> Fit:
    """Return the five numbers, each the median over the cells that show it."""
    hosts, shown = {}, {}
    for name in WORKLOADS:
        of_workload = [cell for cell in cells if cell.workload == name]
        most = max(cell.read_bytes_per_second for cell in of_workload)
        # Drives of twice the rate that any cell reached are not the limit: the host is.
        ample = [cell for cell in of_workload if cell.datasheet_bytes_per_second > 2 * most]
        hosts[name] = median(cell.read_bytes_per_second for cell in ample)
        shown[f"host rate, {name}"] = [cell.name for cell in ample]
    ceiling = [cell for cell in cells if cell.au_percentage > CEILING]
    # Under the ceiling, and the host could do more: the storage is the limit. NVMe alone decides,
    # so that the SATA cells are predicted from other drives than theirs.
    bound = [
        cell
        for cell in cells
        if cell.au_percentage < CEILING
        and cell.read_bytes_per_second < 0.98 * hosts[cell.workload]
        and cell.drive != "D3-S4520"
    ]
    shown["overhead"] = [cell.name for cell in ceiling]
    shown["gain of the drives"] = [cell.name for cell in bound]
    gains = [cell.read_bytes_per_second / cell.datasheet_bytes_per_second for cell in bound]
    overhead = median(100 / cell.au_percentage - 1 for cell in ceiling)
    return Fit(hosts, overhead, median(gains), shown)


def without_drive(cells: Sequence[Cell]) -> list[tuple[Cell, Fit]]:
    """Return each cell with a fit that knows nothing of its drive."""
    return [(cell, fit([other for other in cells if other.drive != cell.drive])) for cell in cells]


def off(cell: Cell, fitted: Fit) -> float:
    """Return how far the published rate lies from what is predicted at its number: 0.2 is above."""
    return cell.au_percentage / fitted.predict(cell, cell.accelerators).au_percentage - 1


def quantile(errors: Iterable[float]) -> float:
    """Return the error that SHARE of all such cells stay within, seen or not.

    The rank is that of so many cells and one more: a few cells say little about their extremes.
    """
    ranked = sorted(abs(error) for error in errors)
    return ranked[min(len(ranked), math.ceil((len(ranked) + 1) * SHARE)) - 1]


def largest_overhead(cells: Sequence[Cell]) -> float:
    """Return the most that a step takes beyond computing where nothing waits for the storage."""
    return max(100 / cell.au_percentage - 1 for cell in cells if cell.au_percentage > CEILING)


def core_seconds(
    cells: Sequence[Cell], one_host: Sequence[OneHost]
) -> dict[str, tuple[float, float]]:
    """Return, as DLIO_CORE_SECONDS, the host's core seconds that a GB takes with DLIO.

    The least over all results of one host; the most over those that drives of ample rate fed.
    """
    hosts = fit(cells).host_read_bytes_per_second
    fed: dict[str, list[float]] = {kind: [] for kind in DLIO_CORE_SECONDS}
    seen: dict[str, list[float]] = {kind: [] for kind in DLIO_CORE_SECONDS}
    for name, rate in hosts.items():
        fed[_kind(load_workload(WORKLOADS[name]))].append(CORES / (rate / 1e9))
    for host in one_host:
        seen[_kind(host.workload)].append(host.core_seconds_per_gb)
    return {kind: (min(seen[kind]), max(fed[kind])) for kind in DLIO_CORE_SECONDS}


def _kind(workload: Workload) -> str:
    """Return the key of DLIO_CORE_SECONDS."""
    dataset = workload.dataset
    many = dataset.format == "tfrecord" and dataset.num_samples_per_file > 1
    return f"{dataset.format}, many" if many else dataset.format


def drive_shares(
    cells: Sequence[Cell], one_host: Sequence[OneHost]
) -> tuple[float, float, list[str]]:
    """Return between which shares of their datasheets drives must be taken to give.

    So that the range of a published run (`Published`) has each published number that the host does
    not limit: it is the least share with which one more would pass, and the most that is needed.
    And the results that are left out: they are outside the range of a datasheet (ERROR), too.
    """
    results = [
        (cell.name, cell.passing, cell.job, host_of(load_workload(WORKLOADS[cell.workload]), CORES))
        for cell in cells
    ]
    for result in one_host:
        if result.drive is not None:
            job = PredictionInput.of(result.workload, result.drive)
            name = f"{result.system} {result.workload.name}"
            results.append((name, result.accelerators, job, host_of(result.workload, result.cores)))
    lows, highs, left_out = [], [], []
    for name, number, job, (slowest, _) in results:
        one = job.threshold / 100 * job.demand
        whole = job.num_drives * job.drive_read_bytes_per_second
        highs.append(number * one / whole)
        if slowest / one >= number + 1:
            low = (number + 1) * one / whole
            (left_out.append(name) if low < 1 - ERROR else lows.append(low))
    return min(lows), max(highs), left_out


@dataclass(frozen=True)
class PublishedCache:
    """A published test of a cache before an origin, beside what datasheets say; bytes a second."""

    test: str
    drive: str
    """The cache's; the origin is a D5-P5336."""
    cache_rate: float
    """Published: written in a load, read in a read."""
    origin_rate: float
    """Published: read from the origin."""
    rate: float
    """What the datasheets allow."""
    limit: str
    published_limit: str


def read_caches() -> list[PublishedCache]:
    """Return the load and read tests of Alluxio on two drives, and what decides them."""
    with CACHES.open(encoding="utf-8") as file:
        return [_published_cache(row) for row in csv.DictReader(file)]


def _published_cache(row: dict[str, str]) -> PublishedCache:
    keys = {"drive": row["cache_drive"], "origin.read_bandwidth": _drive("d5_p5336").read_bandwidth}
    warm = float(row["hits"]) > 0
    found = predict_cached(load_workload("unet3d_h100", keys | {"cache.capacity": 1.0}))
    supply = (found.warm if warm else found.cold).drive.read_bandwidth
    assert supply is not None
    return PublishedCache(
        test=row["test"],
        drive=found.drive.name,
        cache_rate=1e6 * float(row["cache_read_MBps" if warm else "cache_write_MBps"]),
        origin_rate=1e6 * float(row["origin_read_MBps"]),
        rate=supply,
        limit=found.supply.warm_limit if warm else found.supply.cold_limit,
        published_limit=row["limit"],
    )


def _drive(name: str) -> Drive:
    return Drive.model_validate(read_yaml(DRIVES / f"{name}.yaml"))
