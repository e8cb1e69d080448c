"""What the published workloads read, and which of them are limited by storage.

Arithmetic only: sizes and times beside the datasheets of workloads/drive/ (docs/workloads.md).
"""

from collections.abc import Sequence

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


def rows(begins: Sequence[str] = ("",)) -> list[dict[str, object]]:
    """Return what an accelerator reads of each published workload whose name begins so."""
    names = (name for name in known_workloads() if name.startswith(tuple(begins)))
    return [row_of(load_workload(name)) for name in names]


def row_of(workload: Workload) -> dict[str, object]:
    """Return what an accelerator reads of a workload; sizes in bytes, times in seconds."""
    reads, step = Reads.of(workload), workload.train.computation_time.mean
    return {
        "workload": workload.name,
        "sample_bytes": workload.dataset.mean_bytes,
        "format": workload.dataset.format,
        "access": workload.reader.access or "stream",
        "batch_size": workload.reader.batch_size,
        "step_seconds": step,
        "step_measured": is_measured(workload.name),
        "bytes_per_second": reads.num_bytes / step,
        "useful_bytes_per_second": workload.demand,
        "reads_per_second": reads.num_calls / step,
        "threshold": workload.metric.au,
        "limited_by_storage": limited(workload),
    }


def drives_for_one(workload: Workload, drive: Drive) -> float:
    """Return how many such drives one accelerator needs at AU 100 %."""
    reads = Reads.of(workload)
    return reads.num_bytes / workload.train.computation_time.mean / reads.rate_of(drive)


def limited(workload: Workload) -> str:
    """Return whether storage matters, with the number that says so."""
    slow, fast = (Drive.model_validate(datasheet(name)) for name in (_SLOWEST, _FASTEST))
    slow_ones, fast_ones = (drives_for_one(workload, drive) for drive in (slow, fast))
    if slow_ones < _NOT_FELT:
        rate = slow_ones * Reads.of(workload).rate_of(slow)
        return f"no: {format_rate(rate)}; any drive is fast enough"
    if slow_ones * _ACCELERATORS < 1:
        return f"no: one {slow.name} feeds {1 / slow_ones:.0f}"
    if workload.name in _BOUNDS:
        return f"unknown: at most {fast_ones:.2g} {fast.name} for one"
    if fast_ones < 1:
        return f"yes: one {fast.name} feeds {1 / fast_ones:.3g}"
    return f"yes: one needs {fast_ones:.2g} {fast.name}"
