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

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from dlemu.sizing.formula import (
    ERROR,
    Calibration,
    Prediction,
    PredictionInput,
    PublishedHost,
    predict,
)
from dlemu.workload.model import Drive, Workload, load_workload
from dlemu.workload.yaml_file import read_yaml

TABLE = Path(__file__).parent / "data" / "mlperf_storage_v1.0_published.csv"
ONE_HOST = Path(__file__).parent / "data" / "mlperf_storage_v1.0_one_host.csv"
CORES = 104
"""Of the host that TABLE was measured on."""
SHARE = 0.9
"""Share of the cells that the printed band is to hold."""
_CEILING = 98.0
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

    def predict(self, *, dlio: bool) -> Prediction:
        """Return the prediction from the datasheet alone, or with this host's cores as well."""
        assert self.drive is not None
        job = PredictionInput.of(self.workload, self.drive)
        host = PublishedHost.of(self.workload.dataset.format, self.cores) if dlio else None
        return predict(replace(job, published_host=host))


def read_cells() -> list[Cell]:
    """Return the published table."""
    return [_cell(row) for row in _rows(TABLE)]


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
    ceiling = [cell for cell in cells if cell.au_percentage > _CEILING]
    # Under the ceiling, and the host could do more: the storage is the limit. NVMe alone decides,
    # so that the SATA cells are predicted from other drives than theirs.
    bound = [
        cell
        for cell in cells
        if cell.au_percentage < _CEILING
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
    return max(100 / cell.au_percentage - 1 for cell in cells if cell.au_percentage > _CEILING)


def core_seconds(
    cells: Sequence[Cell], one_host: Sequence[OneHost]
) -> dict[str, tuple[float, float]]:
    """Return, by format, the host's core seconds that a GB takes with DLIO.

    The least over all results of one host; the most over those that drives of ample rate fed.
    """
    hosts = fit(cells).host_read_bytes_per_second
    found: dict[str, tuple[float, float]] = {}
    for name in ("npz", "tfrecord"):
        fed = [
            CORES / (rate / 1e9)
            for published, rate in hosts.items()
            if load_workload(WORKLOADS[published]).dataset.format == name
        ]
        seen = [
            host.core_seconds_per_gb for host in one_host if host.workload.dataset.format == name
        ]
        found[name] = min(seen), max(fed)
    return found


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


def _holds(prediction: Prediction, number: int) -> bool:
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
    print("\n| drive | cores | workload | N | predicted | range | | with the host's cores |")
    print("|---|--:|---|--:|--:|---|---|---|")
    hits = 0
    held_out = [result for result in results if result.drive is not None]
    for result in held_out:
        alone, hosted = result.predict(dlio=False), result.predict(dlio=True)
        cores = f"{hosted.low} to {hosted.high}, {hosted.published_figure}"
        hit = _holds(alone, result.accelerators)
        hits += hit
        assert result.drive is not None
        print(
            f"| {result.drive.name} | {result.cores} | {result.workload.name} | "
            f"{result.accelerators} | {alone.num_accelerators} | {alone.low} to {alone.high} | "
            f"{'' if hit else 'missed'} | {cores} |"
        )
    print(f"\nIn the printed range: {hits} of {len(held_out)} results on drives never fitted to.")


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
        if cell.au_percentage < _CEILING
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


if __name__ == "__main__":
    main()
