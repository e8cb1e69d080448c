"""Cells as table, CSV, JSON and plot."""

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlemu.paths.blocks import DATA_PATHS, PROCESSES_BELOW, Pattern
from dlemu.paths.sweep import CELLS, Cell
from dlemu.results.records import write_text
from dlemu.storage.atomic import write_atomically
from dlemu.units import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_report(cells: Sequence[Cell], folder: Path) -> bool:
    """Write the results in all forms; return False if there is no plot: matplotlib is missing."""
    write_text(folder / "paths.txt", render_tables(cells) + "\n")
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
        "host_io_uring": "io_uring",
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


def render_tables(cells: Sequence[Cell]) -> str:
    """Return all tables: by block size or by queue depth, then the targets side by side."""
    deep = [cell for cell in cells if cell.queue_depth > 1]
    tables = [render_depths(cells) if deep else render_table(cells)]
    if has_several_places(cells):
        tables.append(render_targets(cells))
    return "\n\n".join(tables)


def render_table(cells: Sequence[Cell]) -> str:
    """Return a table for each pattern and number of workers, laid out like the published ones."""
    tables = []
    for (pattern, workers), group in _grouped(cells, "pattern", "workers").items():
        sizes = sorted({cell.io_size for cell in group})
        blocks = [["I/O size", "KiB", *map(_in_kib, sizes)]]
        for place, name in _columns(group).items():
            found = {cell.io_size: cell for cell in group if (cell.target, cell.path) == place}
            rows = [_figures(found.get(size)) for size in sizes]
            blocks.append([name, " GB/s  CPU_USR %    p99 us", *rows])
        tables.append(f"{pattern}, {counted(workers, 'worker')}\n{_side_by_side(blocks)}")
    return "\n\n".join(tables)


def render_depths(cells: Sequence[Cell]) -> str:
    """Return a table for each pattern, number of workers and block size: a row for each depth."""
    tables = []
    for shape, group in _grouped(cells, "pattern", "workers", "io_size").items():
        pattern, workers, io_size = shape
        depths = sorted({cell.queue_depth for cell in group})
        blocks = [["queue", "depth", *map(str, depths)]]
        for place, name in _columns(group).items():
            found = {cell.queue_depth: cell for cell in group if (cell.target, cell.path) == place}
            rows = [_cost(found.get(depth)) for depth in depths]
            blocks.append([_by_what(name, place[1], io_size), _COST_HEAD, *rows])
        head = f"{pattern}, {counted(workers, 'worker')}, blocks of {_in_kib(io_size)} KiB"
        tables.append("\n".join([head, _side_by_side(blocks), *_loop_lines(group)]))
    return "\n\n".join(tables)


def _grouped(cells: Sequence[Cell], *names: str) -> dict[tuple[Any, ...], list[Cell]]:
    """Return the cells that are alike in these fields, by the fields' values."""
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(getattr(cell, name) for name in names), []).append(cell)
    return groups


def _loop_lines(cells: Sequence[Cell]) -> list[str]:
    """Return what dlemu's own code takes of a block's time in io_uring, a line for each target."""
    parts: dict[str, list[str]] = {}
    for cell in sorted(cells, key=lambda cell: cell.queue_depth):
        if cell.path != "host_io_uring" or cell.cpu_seconds_per_million_ios is None:
            continue
        cpu = cell.cpu_user_percentage + cell.cpu_system_percentage
        own = cell.cpu_seconds_per_million_ios * cell.cpu_user_percentage / max(cpu, 1e-9)  # us
        share = own / 1e6 * cell.iops / cell.workers
        most = f"{1 / (1 - share):.2f}" if share < _MOST_SHARE else f"{1 / (1 - _MOST_SHARE):.0f}"
        told = f"{own:.1f} us at depth {cell.queue_depth} ({most} x)"
        parts.setdefault(cell.target, []).append(told)
    return [
        f"{target}: of each block in io_uring, dlemu's own code takes {', '.join(told)}; a program "
        "without such a cost would show at most as many times the IOPS"
        for target, told in parts.items()
    ]


_MOST_SHARE = 0.9
"""With a larger share of a block's time, our code was measured and not the storage."""
_COST_HEAD = "  kIOPS  CPU-s/M I/O    p99 us"


def _cost(cell: Cell | None) -> str:
    if cell is None:
        return ""
    cpu = cell.cpu_seconds_per_million_ios or math.nan
    p99 = 1e6 * cell.latency_p99
    return f"{cell.iops / 1e3:7.1f}  {cpu:11.2f}  {p99:8.0f}"


def _by_what(name: str, path: str, io_size: int) -> str:
    """Return a path's heading with what has its blocks in flight."""
    small = path == "host_direct" and io_size < PROCESSES_BELOW
    return f"{name}, processes" if small else name


def has_several_places(cells: Sequence[Cell]) -> bool:
    """Return whether targets, or one with other numbers of NVMe queues, can be compared."""
    return len({(cell.target, cell.queues) for cell in cells}) > 1


def _places(cells: Sequence[Cell]) -> dict[tuple[str, int | None], str]:
    """Return the heading of each target: with its number of queues where it had several."""
    places = dict.fromkeys((cell.target, cell.queues) for cell in cells)
    targets = [target for target, _ in places]
    return {
        (target, queues): f"{target} {counted(queues, 'queue')}"
        if queues is not None and targets.count(target) > 1
        else target
        for target, queues in places
    }


def render_targets(cells: Sequence[Cell]) -> str:
    """Return GB/s by block size with a column for each target, a table for each path."""
    tables = []
    places = _places(cells)
    for (pattern, _, depth, path), group in _grouped(
        cells, "pattern", "workers", "queue_depth", "path"
    ).items():
        found = {(cell.target, cell.queues, cell.io_size): cell for cell in group}
        sizes = sorted({cell.io_size for cell in group})
        blocks = [["I/O size", "KiB", *map(_in_kib, sizes)]]
        for place, name in places.items():
            rates = [found.get((*place, size)) for size in sizes]
            shown = ["" if cell is None else f"{cell.bytes_per_second / 1e9:.2f}" for cell in rates]
            blocks.append([name, "GB/s", *shown])
        name = path_name(str(path), {cell.mode for cell in group})
        head = f"{name}: {pattern}, {counted(group[0].workers, 'worker')}, queue depth {depth}"
        tables.append(f"{head}\n{_side_by_side(blocks)}")
    return "\n\n".join(tables)


def _in_kib(num_bytes: int) -> str:
    return f"{num_bytes / 1024:g}"


def _side_by_side(blocks: Sequence[Sequence[str]]) -> str:
    """Return columns as lines of one width."""
    widths = [max(map(len, block)) for block in blocks]
    return "\n".join(
        " | ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
        for line in zip(*blocks, strict=True)
    )


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

    groups = _grouped(cells, "pattern", "workers", "queue_depth")
    figure = Figure(figsize=(10, 1 + 3.5 * len(groups)), layout="constrained")
    rows = figure.subplots(len(groups), 2, squeeze=False)
    for row, ((pattern, workers, depth), members) in zip(rows, groups.items(), strict=True):
        sizes = sorted({cell.io_size for cell in members})
        for axes, (label, value) in zip(row, _FIGURES, strict=True):
            _draw_lines(axes, members, sizes, value)
            axes.set(xlabel="I/O size (KiB)", ylabel=label, ylim=(0, None))
            axes.set_xscale("log", base=2)
            axes.set_xticks([size / 1024 for size in sizes], [_in_kib(size) for size in sizes])
            axes.minorticks_off()
            deep = f", queue depth {depth}" if depth > 1 else ""
            axes.set_title(f"{_PATTERNS[pattern]}, {counted(workers, 'worker')}{deep}")
            axes.grid(alpha=0.3)
        row[0].legend(fontsize="small")
    targets = ", ".join(dict.fromkeys(cell.target for cell in cells))
    figure.suptitle(f"data paths of {targets}, {_day_of(path.with_name(CELLS))}")
    for kind in ("png", "svg"):
        picture = io.BytesIO()
        figure.savefig(picture, format=kind)
        write_atomically(path.with_suffix(f".{kind}"), picture.getvalue())


_FIGURES: tuple[tuple[str, Callable[[Cell], float]], ...] = (
    ("throughput (GB/s)", lambda cell: cell.bytes_per_second / 1e9),
    ("CPU seconds for each GB", lambda cell: cell.cpu_seconds_per_gb),
)
_PATTERNS: Mapping[Pattern, str] = {
    "seq_read": "sequential reads",
    "random_read": "random reads",
    "seq_write": "sequential writes",
    "random_write": "random writes",
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
