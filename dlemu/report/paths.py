"""`dlemu paths`: the cells of a sweep as tables and plots."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, groupby
from typing import Any

from dlemu.report import words
from dlemu.report.blocks import (
    Block,
    Column,
    Document,
    Lines,
    Look,
    Plot,
    Series,
    Table,
    Verdict,
    axis_from_zero,
    axis_of_names,
    table_of,
)
from dlemu.tools.paths.blocks import PROCESSES_BELOW
from dlemu.tools.paths.cells import SUM
from dlemu.units import counted, format_bytes, format_rate, format_seconds

Cell = Mapping[str, Any]
"""The fields of `paths.sweep.Cell`."""
_NAMES = {
    "cufile": "cuFile",
    "host_direct_gpu_copy": "O_DIRECT + copy to GPU",
    "host_io_uring": "io_uring",
    "host_direct": "O_DIRECT",
    "host_buffered": "page cache",
}
"""In the order in which they are shown."""
_PATTERNS = {
    "seq_read": "sequential reads",
    "random_read": "random reads",
    "seq_write": "sequential writes",
    "random_write": "random writes",
}
_MOST_SHARE = 0.9
"""With a larger share of a block's time, our code was measured and not the storage."""
_BUSY = 10
"""Percent of the host's CPU time that is user time of other programs: more is worth a line."""
_LOOKS: Sequence[Look] = ("first", "second", "third", "fourth")


def present_paths(document: Document) -> list[Block]:
    """Return the blocks of a sweep; `document` has `cells`."""
    cells = document["cells"]
    name = _namer(cells)
    best = max(cells, key=_rate)
    lines = []
    others = max(
        cell["host_user_percentage"] - cell["cpu_user_percentage"]
        for cell in cells
        if cell["target"] == SUM or not cell["together"]
    )
    if others > _BUSY:
        lines.append(
            f"other programs took up to {others:.0f} % of this host's CPU time: rates may be too "
            "low; stop them, or measure again"
        )
    if any(map(_own_code, cells)):
        lines.append(
            "own code: what dlemu itself takes of each block in io_uring; a program without this "
            "cost would show at most as many times the IOPS"
        )
    lines += [
        f"{name(cell)}, {_PATTERNS[cell['pattern']]} of {format_bytes(cell['io_size'])}, "
        f"{_load(cell)}: {line}"
        for cell in cells
        for line in words.changed_rate(cell)
    ]
    return [
        Verdict(
            f"fastest: {name(best)}, {format_rate(_rate(best))} by {_PATTERNS[best['pattern']]} "
            f"of {format_bytes(best['io_size'])}, {_load(best)}"
        ),
        _table(cells, name),
        *([Lines(lines)] if lines else []),
        *plots_of(cells),
    ]


def plots_of(cells: Sequence[Cell]) -> list[Plot]:
    """Return throughput and p99 over I/O size for each pattern, and IOPS over queue depth.

    Where several loads were measured, that with the highest rate is drawn.
    """
    plots = []
    for pattern in _PATTERNS:
        group = [cell for cell in cells if cell["pattern"] == pattern]
        small = [cell for cell in group if cell["io_size"] == group[0]["io_size"]]
        if group:
            plots += [
                _plot(group, "io_size", "throughput (GB/s)", lambda cell: _rate(cell) / 1e9),
                _plot(group, "io_size", "p99 latency (ms)", lambda cell: cell["latency_p99"] * 1e3),
            ]
        if _several(small, "queue_depth"):
            plots.append(
                _plot(small, "queue_depth", "thousand IOPS", lambda cell: cell["iops"] / 1e3)
            )
    return plots


def path_name(path: str, mode: str) -> str:
    """Return what a path is called. Only bytes that met no host memory are called GDS."""
    if path != "cufile":
        return _NAMES[path]
    return f"{'GDS' if mode in ('p2pdma', 'nvidia-fs') else 'cuFile'} ({mode})"


def _namer(cells: Sequence[Cell]) -> Callable[[Cell], str]:
    """Return what names a cell's path: with target, NVMe queues and GPU where they differ."""
    targets = {cell["target"] for cell in cells}
    drives = {(cell["target"], cell["queues"]) for cell in cells}
    by_queues = len(drives) > len(targets)
    gpus = {cell["gpu"] for cell in cells} - {None}
    mixed = len({not cell["together"] for cell in cells}) > 1

    def name(cell: Cell) -> str:
        parts = [path_name(cell["path"], cell["mode"])]
        if by_queues and cell["queues"] is not None:
            parts.append(counted(cell["queues"], "queue"))
        if cell["gpu"] is not None and len(gpus) > 1:
            parts.append(f"GPU {cell['gpu']}")
        if mixed and cell["together"] and cell["target"] != SUM:
            parts.append("together")
        own = ", ".join(parts)
        return own if len(targets) == 1 else f"{cell['target']} {own}"

    return name


def _rate(cell: Cell) -> float:
    return float(cell["gib_per_second"]) * 2**30


def _load(cell: Cell) -> str:
    depth = cell["queue_depth"]
    return counted(cell["workers"], "worker") + (f", queue depth {depth}" if depth > 1 else "")


def _several(cells: Sequence[Cell], field: str) -> bool:
    return len({cell[field] for cell in cells}) > 1


def _own_code(cell: Cell) -> str | None:
    """Return what dlemu's own code takes of a block in io_uring, and how much that hides at most.

    None: another path, or not known.
    """
    per_million = cell["cpu_seconds_per_million_ios"]
    if cell["path"] != "host_io_uring" or per_million is None or cell["target"] == SUM:
        return None
    cpu = cell["cpu_user_percentage"] + cell["cpu_system_percentage"]
    own = per_million * cell["cpu_user_percentage"] / max(cpu, 1e-9) / 1e6
    share = min(_MOST_SHARE, own * cell["iops"] / cell["workers"])
    return f"{format_seconds(own)}, {1 / (1 - share):.3g} x"


def _table(cells: Sequence[Cell], name: Callable[[Cell], str]) -> Table:
    """Return a row for each cell; what is the same in all of them stands in the title."""
    by_depth = any(cell["queue_depth"] > 1 for cell in cells)
    alone = {_shape(cell): _rate(cell) for cell in cells if not cell["together"]}

    def path(cell: Cell) -> str:
        small = cell["path"] == "host_direct" and cell["io_size"] < PROCESSES_BELOW
        return f"{name(cell)}, processes" if by_depth and small else name(cell)

    def of_alone(cell: Cell) -> float | None:
        targets = cell["together"] if cell["target"] == SUM else (cell["target"],)
        rates = [alone.get(_shape(cell, target), math.nan) for target in targets]
        share = _rate(cell) / sum(rates) if cell["together"] else math.nan
        return None if math.isnan(share) else share

    def of_ceiling(cell: Cell) -> str | None:
        most = cell["ceiling_bytes_per_second"]
        return most and f"{_rate(cell) / most:.0%} of {cell['ceiling']}"

    columns = [Column("I/O size", "io_size", format_bytes)]
    if _several(cells, "pattern"):
        columns.append(Column("pattern", lambda cell: _PATTERNS[cell["pattern"]], text=True))
    if _several(cells, "workers"):
        columns.append(Column("workers", "workers"))
    if by_depth:
        columns.append(Column("queue depth", "queue_depth"))
    columns += [
        Column("path", path, text=True),
        Column("IOPS", "iops", ",.0f"),
        Column("rate", _rate, format_rate),
        Column("CPU user", lambda cell: cell["cpu_user_percentage"] / 100, ".2%", spare=3),
        Column("p99 latency", "latency_p99", format_seconds),
    ]
    if by_depth:
        per_million = "cpu_seconds_per_million_ios"
        columns.append(Column("CPU-s per million I/Os", per_million, ".2f", spare=1))
    columns += [
        column
        for column in (
            Column("own code", _own_code, spare=2),
            Column("of alone", of_alone, ".0%"),
            Column("of the ceiling", of_ceiling, text=True, spare=4),
        )
        if any(column.cell(cell) != "-" for cell in cells)
    ]
    title = "" if _several(cells, "pattern") else _PATTERNS[cells[0]["pattern"]]
    load = "" if _several(cells, "workers") else counted(cells[0]["workers"], "worker")
    patterns, paths = list(_PATTERNS), list(_NAMES)

    def order(cell: Cell) -> tuple[int, ...]:
        load = cell["workers"], cell["io_size"], cell["queue_depth"]
        return patterns.index(cell["pattern"]), *load, paths.index(cell["path"])

    return table_of(
        sorted(cells, key=order), *columns, title=", ".join(filter(None, (title, load)))
    )


def _shape(cell: Cell, target: str = "") -> tuple[Any, ...]:
    """Return what is measured, and on which target; "" is the cell's own."""
    fields = ("path", "pattern", "io_size", "workers", "queue_depth")
    return target or cell["target"], *(cell[field] for field in fields)


def _plot(cells: Sequence[Cell], field: str, what: str, value: Callable[[Cell], float]) -> Plot:
    """Return a line a path over a field, with a gap where a value of it was not measured."""
    places = sorted({cell[field] for cell in cells})
    name = _namer(cells)
    lines: dict[str, dict[int, Cell]] = {}
    for cell in cells:
        line = lines.setdefault(name(cell), {})
        line[cell[field]] = max(line.get(cell[field], cell), cell, key=_rate)
    series = []
    for (label, found), look in zip(lines.items(), cycle(_LOOKS), strict=False):
        known = groupby(enumerate(places), key=lambda each: each[1] in found)  # a gap ends a piece
        pieces = [
            [(at, value(found[place])) for at, place in each]
            for is_known, each in known
            if is_known
        ]
        series.append(Series(label, look, pieces, marked=True))
    loads = _several(cells, "workers") or (field == "io_size" and _several(cells, "queue_depth"))
    load = "the fastest load" if loads else _load(cells[0])
    shown, size, axis = (
        [*map(str, places)],
        f" of {format_bytes(cells[0]['io_size'])}",
        "queue depth",
    )
    if field == "io_size":
        shown, size, axis = [*map(format_bytes, places)], "", "I/O size"
    title = f"{_PATTERNS[cells[0]['pattern']]}{size}, {load}"
    return Plot(title, axis_of_names(axis, shown), axis_from_zero(what, series), series)
