"""`dlemu paths`: the cells of a sweep as tables and plots."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from dlemu.report.blocks import Block, Column, Document, Lines, Table, Verdict, table_of
from dlemu.report.plot import Look, Plot, Series, axis_from_zero, axis_of_names
from dlemu.tools.paths.blocks import PROCESSES_BELOW
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
        )
    ]
    by_depth = any(cell["queue_depth"] > 1 for cell in cells)
    fields = ("pattern", "workers", *(("io_size",) if by_depth else ()))
    for group in _grouped(cells, *fields):
        blocks.append(_table(group, name, by_depth=by_depth))
        if lines := list(_own_code(group)):
            blocks.append(Lines(lines))
    return [*blocks, *plots_of(cells)]


def title_of(document: Document) -> str:
    """Return the title of the picture: targets and day."""
    targets = ", ".join(dict.fromkeys(cell["target"] for cell in document["cells"]))
    return f"data paths of {targets}, {document['measured']}"


def plots_of(cells: Sequence[Cell]) -> list[Plot]:
    """Return throughput and CPU time over I/O size, a pair for each pattern and load."""
    return [
        _plot(group, what, value)
        for group in _grouped(cells, "pattern", "workers", "queue_depth")
        for what, value in (
            ("throughput (GB/s)", lambda cell: _rate(cell) / 1e9),
            ("CPU seconds per GB", lambda cell: cell["cpu_seconds_per_gb"]),
        )
    ]


def path_name(path: str, mode: str) -> str:
    """Return what a path is called. Only bytes that met no host memory are called GDS."""
    if path != "cufile":
        return _NAMES[path]
    return f"{'GDS' if mode in ('p2pdma', 'nvidia-fs') else 'cuFile'} ({mode})"


def _namer(cells: Sequence[Cell]) -> Callable[[Cell], str]:
    """Return what names a cell's path, with target and its NVMe queues where they differ."""
    places = dict.fromkeys((cell["target"], cell["queues"]) for cell in cells)
    targets = [target for target, _ in places]

    def name(cell: Cell) -> str:
        own, queues = path_name(cell["path"], cell["mode"]), cell["queues"]
        if queues is not None and targets.count(cell["target"]) > 1:
            own = f"{own}, {counted(queues, 'queue')}"
        return own if len(set(targets)) == 1 else f"{cell['target']} {own}"

    return name


def _rate(cell: Cell) -> float:
    return float(cell["gib_per_second"]) * 2**30


def _load(cell: Cell) -> str:
    depth = cell["queue_depth"]
    return counted(cell["workers"], "worker") + (f", queue depth {depth}" if depth > 1 else "")


def _table(cells: Sequence[Cell], name: Callable[[Cell], str], *, by_depth: bool) -> Table:
    """Return the cells of one pattern and number of workers, by I/O size or by queue depth."""

    def path(cell: Cell) -> str:
        small = cell["path"] == "host_direct" and cell["io_size"] < PROCESSES_BELOW
        return f"{name(cell)}, processes" if by_depth and small else name(cell)

    cpu = Column("CPU user", lambda cell: cell["cpu_user_percentage"] / 100, ".2%")
    first = Column("I/O size", "io_size", format_bytes)
    load = counted(cells[0]["workers"], "worker")
    if by_depth:
        cpu = Column("CPU-s per million I/Os", "cpu_seconds_per_million_ios", ".2f", spare=1)
        first = Column("queue depth", "queue_depth")
        load += f", blocks of {format_bytes(cells[0]['io_size'])}"
    return table_of(
        _sorted(cells, "queue_depth" if by_depth else "io_size"),
        first,
        Column("path", path, text=True),
        Column("IOPS", "iops", ",.0f"),
        Column("rate", _rate, format_rate),
        cpu,
        Column("p99 latency", "latency_p99", format_seconds),
        title=f"{_PATTERNS[cells[0]['pattern']]}, {load}",
    )


def _sorted(cells: Sequence[Cell], field: str) -> list[Cell]:
    """Return cells by a field; among equals, targets as asked and paths in their order."""
    paths, targets = list(_NAMES), [cell["target"] for cell in cells]

    def order(cell: Cell) -> tuple[int, ...]:
        place = targets.index(cell["target"]), paths.index(cell["path"]), cell["queues"] or 0
        return cell[field], cell["io_size"], *place

    return sorted(cells, key=order)


def _grouped(cells: Sequence[Cell], *fields: str) -> list[list[Cell]]:
    """Return the cells that are alike in these fields."""
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell[field] for field in fields), []).append(cell)
    return list(groups.values())


def _own_code(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield what dlemu's own code takes of a block's time in io_uring, a line for each target."""
    parts: dict[str, list[str]] = {}
    for cell in _sorted(cells, "queue_depth"):
        per_million = cell["cpu_seconds_per_million_ios"]
        if cell["path"] != "host_io_uring" or per_million is None:
            continue
        cpu = cell["cpu_user_percentage"] + cell["cpu_system_percentage"]
        own = per_million * cell["cpu_user_percentage"] / max(cpu, 1e-9) / 1e6
        share = min(_MOST_SHARE, own * cell["iops"] / cell["workers"])
        most = f"{1 / (1 - share):.2f}" if share < _MOST_SHARE else f"{1 / (1 - share):.0f}"
        told = f"{format_seconds(own)} at depth {cell['queue_depth']} ({most} x)"
        parts.setdefault(cell["target"], []).append(told)
    for target, each in parts.items():
        yield (
            f"{target}: dlemu's own code takes {', '.join(each)} of each block in io_uring; a "
            "program without this cost would show at most as many times the IOPS"
        )


def _plot(cells: Sequence[Cell], what: str, value: Callable[[Cell], float]) -> Plot:
    """Return a line a path over I/O size, with a gap where a size was not measured."""
    sizes = sorted({cell["io_size"] for cell in cells})
    name = _namer(cells)
    lines: dict[str, dict[int, float]] = {}
    for cell in _sorted(cells, "io_size"):
        lines.setdefault(name(cell), {})[cell["io_size"]] = value(cell)
    series = []
    for number, (label, found) in enumerate(lines.items()):
        known = groupby(enumerate(sizes), key=lambda each: each[1] in found)  # a gap ends a piece
        pieces = [
            [(place, found[size]) for place, size in each] for is_known, each in known if is_known
        ]
        series.append(Series(label, _LOOKS[number % len(_LOOKS)], pieces, marked=True))
    x, y = axis_of_names("I/O size", list(map(format_bytes, sizes))), axis_from_zero(what, series)
    return Plot(f"{_PATTERNS[cells[0]['pattern']]}, {_load(cells[0])}", x, y, series)
