"""How long a checkpoint takes by arithmetic: from the rates of drives, without any storage."""

from dataclasses import dataclass

from dlemu.checkpoint.plan import Plan, planned
from dlemu.checkpoint.text import both_units, cost_lines, describe_part
from dlemu.errors import WorkloadError
from dlemu.units import format_rate, format_seconds
from dlemu.workload.model import Workload
from dlemu.world.world import Alone

ERROR = 0.36
"""Relative error of a drive's rate. It is that of reads in published results (docs/sizing.md);
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


@dataclass(frozen=True)
class PredictedCheckpoint:
    """The prediction; `str` is what `dlemu predict` shows."""

    workload: Workload
    num_bytes: int
    save: Duration | None
    """None: the drive's write rate is not known."""
    load: Duration
    plan: Plan

    @property
    def fields(self) -> dict[str, object]:
        """What --json prints."""
        drive = self.workload.drive
        return {
            "model": self.workload.model.name,
            "num_bytes": self.num_bytes,
            "num_accelerators": self.plan.share.written,
            "drive": drive.name if drive else None,
            "drives": self.workload.drives,
            "save": vars(self.save) if self.save else None,
            "load": vars(self.load),
        }

    def __str__(self) -> str:
        """Return size, durations with their ranges, and what a checkpoint costs."""
        drive, told = self.workload.drive, planned(self.workload, self.plan)
        assert drive is not None
        lines = [
            f"{describe_part(told)}: {both_units(self.num_bytes)} on {self.workload.drives} x "
            f"{drive.name}, from the datasheet alone",
            "",
            f"{'':<10}{'predicted':>12}   range",
        ]
        for name, found in (("save", self.save), ("load", self.load)):
            lines.append(f"{name:<10}{_cells(found)}")
        lines.append("")
        if self.save is not None:
            lines += cost_lines(self.save.seconds, self.workload.checkpoint.mtbf)
        lines.append(
            f"the accelerators share the drives; a rate may be off by {100 * ERROR:.0f}%, as "
            "those of reads in published results (writes were not compared)"
        )
        return "\n".join(lines)


def _cells(found: Duration | None) -> str:
    if found is None:
        return f"{'unknown':>12}   set drive.write_bandwidth"
    return (
        f"{format_seconds(found.seconds):>12}   {format_seconds(found.low)} to "
        f"{format_seconds(found.high)}, at {format_rate(found.bytes_per_second)}"
    )


def predict_checkpoint(workload: Workload) -> PredictedCheckpoint:
    """Predict the durations of writing and reading a checkpoint from `drive` and `drives`.

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
    num_bytes, drives = plan.num_bytes, workload.drives
    save = drive.write_bandwidth and Duration.of(num_bytes, drives * drive.write_bandwidth)
    load = Duration.of(num_bytes, drives * drive.read_bandwidth)
    return PredictedCheckpoint(workload, num_bytes, save or None, load, plan)
