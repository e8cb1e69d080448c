"""`dlemu workloads`: what each published workload reads, and whether storage limits it."""

from collections.abc import Mapping, Sequence
from typing import Any

from dlemu.report.blocks import Block, Table
from dlemu.units import format_bytes, format_rate, format_seconds

Row = Mapping[str, Any]
"""The fields of `sizing.rows.Row.document`."""
HEADS = (
    *("workload", "sample", "format", "batch", "step", "read by one accelerator", "reads/s"),
    *("threshold", "limited by storage?"),
)


def present_workloads(rows: Sequence[Row]) -> list[Block]:
    """Return the table of these workloads."""
    texts = ("format", "limited by storage?")
    spare = ("format", "batch", "step", "sample", "threshold", "reads/s")
    return [Table(heads=HEADS, rows=list(map(cells_of, rows)), texts=texts, spare=spare)]


def cells_of(row: Row) -> list[str]:
    """Return a workload's cells, in the order of HEADS."""
    reads = row["reads_per_second"]
    return [
        row["workload"],
        format_bytes(row["sample_bytes"]),
        row["format"] + (", random" if row["access"] == "random" else ""),
        f"{row['batch_size']:,}",
        format_seconds(row["step_seconds"]) + (", measured" if row["step_measured"] else ""),
        format_rate(row["bytes_per_second"]),
        f"{reads:.3g}" if reads < 100 else f"{reads:,.0f}",
        f"{row['threshold']:.0%}",
        row["feels_the_drive"],
    ]
