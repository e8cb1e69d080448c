"""What the published workloads read, and which of them are limited by storage.

Arithmetic only: sizes and times beside the datasheets of workloads/drive/ (docs/workloads.md).
"""

from dataclasses import dataclass

from dlemu.config.compose import datasheet, known_workloads
from dlemu.config.model import Drive, Workload, load_workload
from dlemu.config.published import is_measured
from dlemu.sizing.formula import Reads
from dlemu.units import format_rate

_SLOWEST, _FASTEST = "d3_s4520", "d7_ps1010"
_BOUNDS = ("gnn_rgat_h100",)
"""Rows whose demand is only known to be no larger: the row's file says why."""
_NOT_FELT = 0.01
"""Share of the slowest drive that one accelerator may ask for without feeling any drive."""
_ACCELERATORS = 8
"""Of a host: a drive that feeds these is not felt either."""


@dataclass(frozen=True)
class Row:
    """One workload, and what an accelerator reads."""

    workload: Workload

    @property
    def bytes_per_second(self) -> float:
        """Bytes that storage must give: those that are read, not only those that are used."""
        return Reads.of(self.workload).num_bytes / self._step

    @property
    def reads_per_second(self) -> float:
        """Read calls that one accelerator causes."""
        return Reads.of(self.workload).num_calls / self._step

    @property
    def _step(self) -> float:
        return self.workload.train.computation_time.mean

    def drives(self, drive: Drive) -> float:
        """Return how many such drives one accelerator needs, by bandwidth or by IOPS."""
        return self.bytes_per_second / Reads.of(self.workload).rate_of(drive)

    @property
    def limited(self) -> str:
        """Whether storage matters, with the number that says so."""
        slow, fast = (Drive.model_validate(datasheet(name)) for name in (_SLOWEST, _FASTEST))
        if self.drives(slow) < _NOT_FELT:
            return f"no: {format_rate(self.bytes_per_second)}; any drive is fast enough"
        if self.drives(slow) * _ACCELERATORS < 1:
            return f"no: one {slow.name} feeds {1 / self.drives(slow):.0f}"
        if self.workload.name in _BOUNDS:
            return f"unknown: at most {self.drives(fast):.2g} {fast.name} for one"
        if self.drives(fast) < 1:
            return f"yes: one {fast.name} feeds {1 / self.drives(fast):.3g}"
        return f"yes: one needs {self.drives(fast):.2g} {fast.name}"

    @property
    def document(self) -> dict[str, object]:
        """The row for scripts; sizes in bytes, times in seconds."""
        workload = self.workload
        return {
            "workload": workload.name,
            "sample_bytes": workload.dataset.mean_bytes,
            "format": workload.dataset.format,
            "access": workload.reader.access or "stream",
            "batch_size": workload.reader.batch_size,
            "step_seconds": self._step,
            "step_measured": is_measured(workload.name),
            "bytes_per_second": self.bytes_per_second,
            "useful_bytes_per_second": workload.demand,
            "reads_per_second": self.reads_per_second,
            "threshold": workload.metric.au,
            "limited_by_storage": self.limited,
        }


def rows() -> list[Row]:
    """Return all published workloads, by name."""
    return [Row(load_workload(name)) for name in known_workloads()]
