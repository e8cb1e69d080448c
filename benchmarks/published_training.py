"""Published minutes of DLRM training by drive.

Solidigm's tables of MLPerf Training on QuantaGrid D74H-7U (8 x H100 SXM) and D54U-3U (4 x H100
PCIe) with 1 to 8 drives. The minutes of 2 drives, and of 4 D3-S4520, were shown as bars only.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlemu.config.model import Workload, load_workload
from dlemu.sizing.predict import predict

_DATA = Path(__file__).with_name("data")
_DLRM = "dlrm_dcnv2_h100"
_FELT = 1.1
"""A drive limits a cell if that takes so many times the minutes of the accelerators alone."""


@dataclass(frozen=True)
class Minutes:
    """One system, drive and number of drives."""

    system: str
    accelerators: int
    plateau: float | None
    """Minutes where no drive limits, as published; None: those of the workload's own row."""
    drive: str
    drives: int
    published: float | None

    @property
    def name(self) -> str:
        return f"{self.drives} x {self.drive}"

    def predict(self, efficiency: float = 1.0) -> float:
        """Return the minutes if the drives give this share of their datasheets."""
        minutes = predict(self._workload(efficiency)).minutes
        assert minutes is not None
        return minutes

    @property
    def own_minutes(self) -> float:
        """Minutes of the accelerators alone."""
        return self.plateau or self.predict(1e3)

    @property
    def is_limited(self) -> bool:
        """Whether the published minutes are the drive's."""
        return self.published is not None and self.published > _FELT * self.own_minutes

    def _workload(self, efficiency: float) -> Workload:
        keys: dict[str, object] = {"drive": self.drive, "drives": self.drives}
        keys |= {"predict.minutes": True, "predict.accelerators": self.accelerators}
        workload = load_workload(_DLRM, keys)
        assert workload.drive is not None
        rate = round(efficiency * workload.drive.read_rate)
        changed: dict[str, object] = {"drive.read_bandwidth": rate}
        if self.plateau is not None:
            slices = workload.num_files * workload.dataset.num_samples_per_file
            steps = slices / self.accelerators / workload.reader.batch_size
            changed["train.computation_time"] = 60 * self.plateau / steps
        return workload.with_keys(changed)


def read_minutes() -> list[Minutes]:
    """Return the published minutes."""
    return [
        Minutes(
            system=row["system"],
            accelerators=int(row["accelerators"]),
            plateau=float(row["plateau_minutes"]) if row["plateau_minutes"] else None,
            drive=row["drive"],
            drives=int(row["drives"]),
            published=float(row["minutes"]) if row["minutes"] else None,
        )
        for row in _rows("mlperf_training_dlrm_minutes.csv")
    ]


def fit_efficiency(cells: Sequence[Minutes]) -> float:
    """Return the share of their datasheets that the drives give: the one fitted number.

    It makes the largest error of the cells that a drive limits as small as one number can.
    """
    limited = [cell for cell in cells if cell.is_limited]
    # At a hundredth of its rate the drive alone decides.
    shares = [cell.predict(1e-2) / 1e2 / (cell.published or 0) for cell in limited]
    return (min(shares) + max(shares)) / 2


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (_DATA / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
