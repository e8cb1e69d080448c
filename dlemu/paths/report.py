"""Cells as table, CSV, JSON and plot."""

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dlemu.paths.blocks import DATA_PATHS, Pattern
from dlemu.paths.sweep import CELLS, Cell
from dlemu.results.records import write_text
from dlemu.units import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_report(cells: Sequence[Cell], folder: Path) -> bool:
    """Write the results in all forms; return False if there is no plot: matplotlib is missing."""
    write_text(folder / "paths.txt", render_table(cells) + "\n")
    write_text(folder / "paths.csv", render_csv(cells))
    rows = [asdict(cell) for cell in cells]
    write_text(folder / "paths.json", json.dumps(rows, indent=1) + "\n")
    try:
        _plot(cells, folder / "paths")
    except ModuleNotFoundError:
        return False
    return True


def path_name(path: str, modes: set[str]) -> str:
    """Return a path's heading. Only bytes that met no host memory are called GDS."""
    if path == "cufile":
        direct = modes <= {"p2pdma", "nvidia-fs"}
        return f"{'GDS' if direct else 'cuFile'} ({', '.join(sorted(modes))})"
    return {
        "host_buffered": "page cache",
        "host_direct": "O_DIRECT",
        "host_direct_gpu_copy": "CPU path (O_DIRECT + copy to GPU)",
    }[path]


def _columns(cells: Sequence[Cell]) -> dict[tuple[str, str], str]:
    """Return the heading of each (target, path), targets as asked, cuFile first."""
    targets = list(dict.fromkeys(cell.target for cell in cells))
    columns: dict[tuple[str, str], str] = {}
    for target in targets:
        for path in reversed(DATA_PATHS):
            modes = {cell.mode for cell in cells if (cell.target, cell.path) == (target, path)}
            if modes:
                place = f"{target} " if len(targets) > 1 else ""
                columns[target, path] = place + path_name(path, modes)
    return columns


def render_table(cells: Sequence[Cell]) -> str:
    """Return a table for each pattern and number of workers, laid out like the published ones."""
    tables = []
    for pattern, workers in dict.fromkeys((cell.pattern, cell.workers) for cell in cells):
        group = [cell for cell in cells if (cell.pattern, cell.workers) == (pattern, workers)]
        found = {(cell.target, str(cell.path), cell.io_size): cell for cell in group}
        sizes = sorted({cell.io_size for cell in group})
        blocks = [["I/O size", "KiB", *(str(size >> 10) for size in sizes)]]
        for (target, path), name in _columns(group).items():
            rows = [found.get((target, path, size)) for size in sizes]
            blocks.append([name, " GB/s  CPU_USR %    p99 us", *map(_figures, rows)])
        widths = [max(map(len, block)) for block in blocks]
        lines = [
            " | ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
            for line in zip(*blocks, strict=True)
        ]
        tables.append("\n".join([f"{pattern}, {workers} workers", *lines]))
    return "\n\n".join(tables)


def _figures(cell: Cell | None) -> str:
    if cell is None:
        return ""
    p99 = cell.latency_p99 * 1e6
    return f"{cell.bytes_per_second / 1e9:.2f}  {cell.cpu_user_percentage:9.2f}  {p99:8.0f}"


def render_csv(cells: Sequence[Cell]) -> str:
    """Return all figures, a row each cell; times and latencies are in seconds."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Cell)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(cell) for cell in cells)
    return text.getvalue()


_LOOKS = (("o", "-"), ("s", "--"), ("^", "-."), ("D", ":"), ("v", "-"), ("P", "--"))
"""Marker and line of each path, which are told apart in grey."""


def _plot(cells: Sequence[Cell], path: Path) -> None:
    """Draw throughput and CPU time over I/O size, to `path`.png and .svg."""
    from matplotlib.figure import Figure

    groups = list(dict.fromkeys((cell.pattern, cell.workers) for cell in cells))
    figure = Figure(figsize=(10, 1 + 3.5 * len(groups)), layout="constrained")
    for row, group in zip(figure.subplots(len(groups), 2, squeeze=False), groups, strict=True):
        members = [cell for cell in cells if (cell.pattern, cell.workers) == group]
        sizes = sorted({cell.io_size for cell in members})
        for axes, (label, value) in zip(row, _FIGURES, strict=True):
            _draw_lines(axes, members, sizes, value)
            axes.set(xlabel="I/O size (KiB)", ylabel=label, ylim=(0, None))
            axes.set_xscale("log", base=2)
            axes.set_xticks([size / 1024 for size in sizes], [str(size >> 10) for size in sizes])
            axes.minorticks_off()
            axes.set_title(f"{_PATTERNS[group[0]]}, {counted(group[1], 'worker')}")
            axes.grid(alpha=0.3)
        row[0].legend(fontsize="small")
    targets = ", ".join(dict.fromkeys(cell.target for cell in cells))
    figure.suptitle(f"data paths of {targets}, {_day_of(path.with_name(CELLS))}")
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix))


_FIGURES: tuple[tuple[str, Callable[[Cell], float]], ...] = (
    ("throughput (GB/s)", lambda cell: cell.bytes_per_second / 1e9),
    ("CPU seconds for each GB", lambda cell: cell.cpu_seconds_per_gb),
)
_PATTERNS: Mapping[Pattern, str] = {
    "seq_read": "sequential reads",
    "random_read": "random reads",
    "seq_write": "sequential writes",
    "random_write": "random writes",
    "seq_mix": "sequential reads and writes",
    "random_mix": "random reads and writes",
}


def _draw_lines(
    axes: "Axes", members: Sequence[Cell], sizes: Sequence[int], value: Callable[[Cell], float]
) -> None:
    """Draw a line a path, with a gap where a size was not measured."""
    for (target, path), name in _columns(members).items():
        found = {c.io_size: value(c) for c in members if (c.target, c.path) == (target, path)}
        marker, line = _LOOKS[len(axes.lines) % len(_LOOKS)]
        axes.plot(
            [size / 1024 for size in sizes],
            [found.get(size, math.nan) for size in sizes],
            marker=marker,
            linestyle=line,
            label=name.replace("GDS", "GPUDirect Storage"),
        )


def _day_of(path: Path) -> str:
    """Return the day on which the last cell was measured; today without a file of cells."""
    time = path.stat().st_mtime if path.exists() else None
    when = datetime.now(UTC) if time is None else datetime.fromtimestamp(time, UTC)
    return when.date().isoformat()
