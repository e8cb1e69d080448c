"""What the published workloads ask of storage, and which of them feel the drive.

Arithmetic only: sizes and times beside the datasheets of workloads/drive/ (docs/workloads.md).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from dlemu.dataset.layout import layout_of
from dlemu.loaders.columns import amount_of
from dlemu.units import ceil_div, format_bytes, format_rate, format_seconds, text_table
from dlemu.workload.compose import known_workloads
from dlemu.workload.model import Drive, Workload, load_workload
from dlemu.workload.published import is_measured

_SLOWEST, _FASTEST = "d3_s4520", "d7_ps1010"
_BOUNDS = ("gnn_rgat_h100",)
"""Rows whose demand is only known to be no larger: the row's file says why."""
_NOT_FELT = 0.01
"""Share of the slowest drive that one accelerator may ask for without feeling any drive."""
_ACCELERATORS = 8
"""Of a host: a drive that feeds these is not felt either."""


@dataclass(frozen=True)
class Row:
    """One workload, and what an accelerator asks of storage."""

    workload: Workload

    @property
    def bytes_per_second(self) -> float:
        """Bytes that storage must give: those that are read, not only those that are used."""
        if not self.workload.dataset.columns:
            return self.workload.demand
        amount = amount_of(self.workload, layout_of(self.workload))
        return self.workload.demand * amount.read / amount.useful

    @property
    def reads_per_second(self) -> float:
        """Read calls that one accelerator causes."""
        workload, reader = self.workload, self.workload.reader
        dataset = workload.dataset
        samples = reader.batch_size / workload.train.computation_time.mean
        if dataset.columns:
            return samples * amount_of(workload, layout_of(workload)).reads
        if dataset.num_samples_per_file > 1 and workload.streamed:
            return self.bytes_per_second / reader.transfer_size
        return samples * ceil_div(math.ceil(dataset.mean_bytes), reader.piece_bytes)

    def drives(self, drive: Drive) -> float:
        """Return how many such drives one accelerator needs, by bandwidth or by IOPS."""
        by_bytes = self.bytes_per_second / drive.read_rate
        return max(by_bytes, self.reads_per_second / (drive.random_read_iops or math.inf))

    @property
    def feels(self) -> str:
        """Whether storage matters, with the number that says so."""
        slow, fast = (_drive(name) for name in (_SLOWEST, _FASTEST))
        if self.drives(slow) < _NOT_FELT:
            return f"no: {format_rate(self.bytes_per_second)}, no drive is felt"
        if self.drives(slow) * _ACCELERATORS < 1:
            return f"no: one {slow.name} feeds {1 / self.drives(slow):.0f}"
        if self.workload.name in _BOUNDS:
            return f"unknown: at most {self.drives(fast):.2g} {fast.name} for one"
        if self.drives(fast) < 1:
            return f"yes: one {fast.name} feeds {1 / self.drives(fast):.3g}"
        return f"yes: one needs {self.drives(fast):.2g} {fast.name}"

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of HEADINGS."""
        workload = self.workload
        dataset = workload.dataset
        return (
            workload.name,
            format_bytes(dataset.mean_bytes),
            dataset.format + (", random" if workload.reader.access == "random" else ""),
            f"{workload.reader.batch_size:,}",
            format_seconds(workload.train.computation_time.mean)
            + (", measured" if is_measured(workload.name) else ""),
            format_rate(self.bytes_per_second),
            f"{self.reads_per_second:.3g}"
            if self.reads_per_second < 100
            else f"{self.reads_per_second:,.0f}",
            f"{workload.metric.au:.0%}",
            self.feels,
        )

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
            "step_seconds": workload.train.computation_time.mean,
            "step_measured": is_measured(workload.name),
            "bytes_per_second": self.bytes_per_second,
            "useful_bytes_per_second": workload.demand,
            "reads_per_second": self.reads_per_second,
            "threshold": workload.metric.au,
            "feels_the_drive": self.feels,
        }


HEADINGS = (
    "workload",
    "sample",
    "format",
    "batch",
    "step",
    "one accelerator asks for",
    "reads/s",
    "threshold",
    "feels the drive?",
)


def rows() -> list[Row]:
    """Return all published workloads, by name."""
    return [Row(load_workload(name)) for name in known_workloads()]


def table(found: Iterable[Row], *, markdown: bool = False) -> str:
    """Return the rows as a table of text, or of Markdown."""
    lines = [HEADINGS, *(row.cells for row in found)]
    if markdown:
        lines.insert(1, ("---",) * len(HEADINGS))
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return text_table(lines)


def _drive(name: str) -> Drive:
    drive = load_workload("unet3d_h100", {"drive": name}).drive
    assert drive is not None
    return drive
