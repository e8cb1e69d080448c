"""`dlemu paths`: the cells of a sweep as tables and plots."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from dlemu.report.blocks import Block, Column, Document, Lines, Table, Verdict, table_of
from dlemu.report.plot import Look, Plot, Series, axis_from_zero, axis_of_names
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
    """Return the blocks of a sweep; `document` has `measured`, the day, and `cells`."""
    cells = document["cells"]
    name = _namer(cells)
    best = max(cells, key=_rate)
    blocks: list[Block] = [
        Verdict(
            f"fastest: {name(best)}, {format_rate(_rate(best))} by {_PATTERNS[best['pattern']]} "
            f"of {format_bytes(best['io_size'])}, {_load(best)}"
        ),
        _table(cells, name),
    ]
    if lines := [*_busy(cells), *_own_code(cells)]:
        blocks.append(Lines(lines))
    return [*blocks, *plots_of(cells)]


def title_of(document: Document) -> str:
    """Return the title of the picture: targets and day."""
    targets = ", ".join(dict.fromkeys(cell["target"] for cell in document["cells"]))
    return f"data paths of {targets}, {document['measured']}"


def plots_of(cells: Sequence[Cell]) -> list[Plot]:
    """Return throughput and p99 over I/O size for each pattern, and IOPS over queue depth.

    Where several loads were measured, that with the highest rate is drawn.
    """
    plots = []
    for group in _grouped(cells, "pattern"):
        small = [cell for cell in group if cell["io_size"] == group[0]["io_size"]]
        plots += [
            _plot(group, "io_size", "throughput (GB/s)", lambda cell: _rate(cell) / 1e9),
            _plot(group, "io_size", "p99 latency (ms)", lambda cell: cell["latency_p99"] * 1e3),
        ]
        if _several(small, "queue_depth"):
            plots.append(_plot(small, "queue_depth", "thousand IOPS", _thousand_iops))
    return plots


def path_name(path: str, mode: str) -> str:
    """Return what a path is called. Only bytes that met no host memory are called GDS."""
    if path != "cufile":
        return _NAMES[path]
    return f"{'GDS' if mode in ('p2pdma', 'nvidia-fs') else 'cuFile'} ({mode})"


def _namer(cells: Sequence[Cell]) -> Callable[[Cell], str]:
    """Return what names a cell's path: with target, NVMe queues and GPU where they differ."""
    targets = {cell["target"] for cell in cells}
    queues = {(cell["target"], cell["queues"]) for cell in cells}
    known = {target for target, number in queues if len([0 for t, _ in queues if t == target]) > 1}
    gpus = {cell["gpu"] for cell in cells} - {None}
    mixed = len({not cell["together"] for cell in cells}) > 1

    def name(cell: Cell) -> str:
        parts = [path_name(cell["path"], cell["mode"])]
        if cell["queues"] is not None and cell["target"] in known:
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
        Column("CPU user", lambda cell: cell["cpu_user_percentage"] / 100, ".2%", spare=2),
        Column("p99 latency", "latency_p99", format_seconds),
    ]
    if by_depth:
        per_million = "cpu_seconds_per_million_ios"
        columns.append(Column("CPU-s per million I/Os", per_million, ".2f", spare=1))
    if any(of_alone(cell) for cell in cells):
        columns.append(Column("of alone", of_alone, ".0%"))
    if any(of_ceiling(cell) for cell in cells):
        columns.append(Column("of the ceiling", of_ceiling, text=True, spare=3))
    title = "" if _several(cells, "pattern") else _PATTERNS[cells[0]["pattern"]]
    load = "" if _several(cells, "workers") else counted(cells[0]["workers"], "worker")
    ordered = _sorted(cells, "pattern", "workers", "io_size", "queue_depth")
    return table_of(ordered, *columns, title=", ".join(filter(None, (title, load))))


def _shape(cell: Cell, target: str = "") -> tuple[Any, ...]:
    """Return what is measured, and on which target; "" is the cell's own."""
    fields = ("path", "pattern", "io_size", "workers", "queue_depth")
    return target or cell["target"], *(cell[field] for field in fields)


def _sorted(cells: Sequence[Cell], *fields: str) -> list[Cell]:
    """Return cells by fields; among equals, targets as asked and paths in their order."""
    paths, patterns = list(_NAMES), list(_PATTERNS)
    targets = [cell["target"] for cell in cells if cell["target"] != SUM] + [SUM]

    def order(cell: Cell) -> tuple[Any, ...]:
        values = [patterns.index(cell[f]) if f == "pattern" else cell[f] for f in fields]
        place = targets.index(cell["target"]), paths.index(cell["path"]), cell["queues"] or 0
        return *values, *place, len(cell["together"])

    return sorted(cells, key=order)


def _grouped(cells: Sequence[Cell], *fields: str) -> list[list[Cell]]:
    """Return the cells that are alike in these fields."""
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell[field] for field in fields), []).append(cell)
    return list(groups.values())


def _busy(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield that the host did something else meanwhile, if it did."""
    others = max(
        cell["host_user_percentage"] - cell["cpu_user_percentage"]
        for cell in cells
        if cell["target"] == SUM or not cell["together"]
    )
    if others > _BUSY:
        yield (
            f"other programs took up to {others:.0f} % of this host's CPU time: rates may be too "
            "low; stop them, or measure again"
        )


def _own_code(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield what dlemu's own code takes of a block's time in io_uring, a line for each load."""
    for group in _grouped(cells, "target", "pattern", "workers", "io_size", "together"):
        parts = []
        for cell in _sorted(group, "queue_depth"):
            per_million = cell["cpu_seconds_per_million_ios"]
            if cell["path"] != "host_io_uring" or per_million is None:
                continue
            cpu = cell["cpu_user_percentage"] + cell["cpu_system_percentage"]
            own = per_million * cell["cpu_user_percentage"] / max(cpu, 1e-9) / 1e6
            share = min(_MOST_SHARE, own * cell["iops"] / cell["workers"])
            most = f"{1 / (1 - share):.2f}" if share < _MOST_SHARE else f"{1 / (1 - share):.0f}"
            parts.append(f"{format_seconds(own)} at depth {cell['queue_depth']} ({most} x)")
        if parts and group[0]["target"] != SUM:
            size = f", {format_bytes(group[0]['io_size'])}" if _several(cells, "io_size") else ""
            yield (
                f"{group[0]['target']}{size}: dlemu's own code takes {', '.join(parts)} of each "
                "block in io_uring; a program without this cost would show at most as many times "
                "the IOPS"
            )


def _thousand_iops(cell: Cell) -> float:
    return float(cell["iops"]) / 1e3


def _plot(cells: Sequence[Cell], field: str, what: str, value: Callable[[Cell], float]) -> Plot:
    """Return a line a path over a field, with a gap where a value of it was not measured."""
    places = sorted({cell[field] for cell in cells})
    name = _namer(cells)
    lines: dict[str, dict[int, Cell]] = {}
    for cell in _sorted(cells, field):
        line = lines.setdefault(name(cell), {})
        line[cell[field]] = max(line.get(cell[field], cell), cell, key=_rate)
    series = []
    for number, (label, found) in enumerate(lines.items()):
        known = groupby(enumerate(places), key=lambda each: each[1] in found)  # a gap ends a piece
        pieces = [
            [(at, value(found[place])) for at, place in each]
            for is_known, each in known
            if is_known
        ]
        series.append(Series(label, _LOOKS[number % len(_LOOKS)], pieces, marked=True))
    loads = _several(cells, "workers") or (field == "io_size" and _several(cells, "queue_depth"))
    load = "the fastest load" if loads else _load(cells[0])
    is_size = field == "io_size"
    shown = [format_bytes(place) if is_size else str(place) for place in places]
    x = axis_of_names("I/O size" if is_size else "queue depth", shown)
    size = "" if is_size else f" of {format_bytes(cells[0]['io_size'])}"
    title = f"{_PATTERNS[cells[0]['pattern']]}{size}, {load}"
    return Plot(title, x, axis_from_zero(what, series), series)
