"""How long a checkpoint takes by arithmetic: from the rates of drives, without any storage."""

from dataclasses import asdict, dataclass
from typing import Any

from dlemu.checkpoint.plan import Plan, planned
from dlemu.errors import WorkloadError
from dlemu.workload.model import Workload
from dlemu.world.world import Alone

ERROR = 0.36
"""Relative error of a drive's rate. It is that of reads in published results (docs/prediction.md);
writes were not compared with published ones."""


@dataclass(frozen=True)
class Duration:
    """The seconds of writing or reading one checkpoint, and their range."""

    seconds: float
    low: float
    high: float
    bytes_per_second: float

    @classmethod
    def of(cls, num_bytes: int, rate: float) -> "Duration":
        """Return the duration at a rate whose relative error is ERROR."""
        seconds = num_bytes / rate
        return cls(seconds, seconds / (1 + ERROR), seconds / (1 - ERROR), rate)


def predict_checkpoint(workload: Workload) -> dict[str, Any]:
    """Return the document of a prediction: `save` and `load` have the fields of Duration.

    They follow from `drive` and `drives`; `save` is None where the write rate is not known.

    Raises:
        WorkloadError: no drive is given, or the accelerators do not fit the model.
    """
    drive, plan = workload.drive, Plan.of(workload, Alone())
    if drive is None or drive.read_bandwidth is None:
        raise WorkloadError(
            f"{'drive' if drive is None else 'drive.read_bandwidth'} is not set; name a datasheet "
            "(drive=d7_ps1010) or give its rates "
            "(drive.read_bandwidth=7GB drive.write_bandwidth=3GB)"
        )
    num, write = workload.drives, drive.write_bandwidth
    return {
        "kind": "checkpoint prediction",
        **planned(workload, plan),
        "drive": drive.name,
        "drives": num,
        "relative_error": ERROR,
        "save": asdict(Duration.of(plan.num_bytes, num * write)) if write else None,
        "load": asdict(Duration.of(plan.num_bytes, num * drive.read_bandwidth)),
    }
