"""`dlemu paths` on the command line: arguments, and results as table, CSV, JSON and plot."""

import csv
import difflib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from dlemu.errors import WorkloadError
from dlemu.paths.blocks import DATA_PATHS, PATTERNS
from dlemu.paths.sweep import Cell, Sweep, run_paths
from dlemu.results.records import write_text
from dlemu.terminal import is_key_value, refuse_tilde, say
from dlemu.units import parse_bytes

HELP = """\
dlemu paths FOLDER [key=value ...]

Measure the data paths of a folder side by side: page cache, O_DIRECT, O_DIRECT with a copy to the
GPU, and cuFile (GPUDirect Storage). Writes files named dlemu_paths.<n> into the folder and removes
them. The same command goes on where it was interrupted.

  target=/mnt/d1,/mnt/d2   folders, instead of FOLDER
  seconds=45               of each measurement
  io_sizes=4KiB,1MiB       4, 16, 64, 128, 512, 1024, 4096 KiB
  workers=8,32             8
  patterns=seq_read,...    seq_read,random_read; also {seq,random}_write and, half each, _mix
  paths=host_direct,...    all that work here, of host_buffered, host_direct,
                           host_direct_gpu_copy, cufile
  file_size=2GiB           of each worker's file; less where space is short
  output=outputs/paths     cells.jsonl, paths.csv, paths.json, paths.txt, paths.png, paths.svg
"""


def main(arguments: Sequence[str]) -> int:
    """Run `dlemu paths` with its arguments; return the exit status.

    Raises:
        WorkloadError: an argument is wrong.
        RunError: a path does not work, space is short, or a worker failed.
    """
    if "--help" in arguments:
        say(HELP.rstrip())
        return 0
    plan = parse_plan(arguments)
    cells = run_paths(plan, say)
    say(f"\n{render_table(cells)}")
    write_report(cells, plan.output)
    say(f"\n{plan.output}/paths.csv, paths.json, paths.txt")
    return 0


def parse_plan(arguments: Sequence[str]) -> Sweep:
    """Return the plan that command-line arguments mean.

    Raises:
        WorkloadError: a key is unknown, or a value is none of its kind.
    """
    values: dict[str, Any] = {}
    for argument in arguments:
        if not is_key_value(argument):
            values["targets"] = (Path(argument),)
            continue
        key, _, text = argument.partition("=")
        if key not in _PARSERS:
            close = difflib.get_close_matches(key, _PARSERS, 1)
            hint = f"; did you mean {close[0]}?" if close else f"; there is {', '.join(_PARSERS)}"
            raise WorkloadError(f"unknown key {key}{hint}")
        name, parse = _PARSERS[key]
        try:
            values[name] = parse(text)
        except ValueError as error:
            raise WorkloadError(f"{key}={text}: {error}") from None
    if "targets" not in values:
        raise WorkloadError("no folder to measure; write dlemu paths FOLDER")
    return Sweep(**values)


def _list_of(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    return lambda text: tuple(parse(item) for item in text.split(",") if item)


def _one_of(choices: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text} is none of {', '.join(choices)}")
        return text

    return parse


def _path_of(key: str) -> Callable[[str], Path]:
    def parse(text: str) -> Path:
        refuse_tilde(key, text)
        return Path(text)

    return parse


_PARSERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "target": ("targets", _list_of(_path_of("target"))),
    "output": ("output", _path_of("output")),
    "seconds": ("seconds", float),
    "io_sizes": ("io_sizes", _list_of(parse_bytes)),
    "workers": ("workers", _list_of(int)),
    "patterns": ("patterns", _list_of(_one_of(PATTERNS))),
    "paths": ("paths", _list_of(_one_of(DATA_PATHS))),
    "file_size": ("file_size", parse_bytes),
}


def write_report(cells: Sequence[Cell], folder: Path) -> None:
    """Write the results in all forms; the plot only where matplotlib is installed.

    Raises:
        RunError: the disk is full or read-only.
    """
    write_text(folder / "paths.txt", render_table(cells) + "\n")
    write_text(folder / "paths.csv", render_csv(cells))
    write_text(folder / "paths.json", render_json(cells))
    try:
        render_plot(cells, folder / "paths")
    except ModuleNotFoundError:
        say("no plot: matplotlib is missing; pip install 'dlemu[plot]'")


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
        found: dict[tuple[str, str, int], Cell] = {
            (cell.target, cell.path, cell.io_size): cell for cell in group
        }
        sizes = sorted({cell.io_size for cell in group})
        blocks = [["I/O size", "KiB", *(str(size >> 10) for size in sizes)]]
        for (target, path), name in _columns(group).items():
            rows = [found.get((target, path, size)) for size in sizes]
            blocks.append([name, "GiB/s  CPU_USR %    p99 us", *map(_figures, rows)])
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
    return f"{cell.gib_per_second:.2f}  {cell.cpu_user_percentage:9.2f}  {p99:8.0f}"


def render_csv(cells: Sequence[Cell]) -> str:
    """Return all figures, a row each cell; times and latencies are in seconds."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Cell)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(cell) for cell in cells)
    return text.getvalue()


def render_json(cells: Sequence[Cell]) -> str:
    return json.dumps([asdict(cell) for cell in cells], indent=1) + "\n"


def render_plot(cells: Sequence[Cell], path: Path) -> None:
    """Draw throughput and CPU time over I/O size, to `path`.png and .svg.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    groups = list(dict.fromkeys((cell.pattern, cell.workers) for cell in cells))
    figure = Figure(figsize=(10, 3.5 * len(groups)), layout="constrained")
    for row, group in zip(figure.subplots(len(groups), 2, squeeze=False), groups, strict=True):
        members = [cell for cell in cells if (cell.pattern, cell.workers) == group]
        for (target, data_path), name in _columns(members).items():
            line = sorted(
                (c for c in members if (c.target, c.path) == (target, data_path)),
                key=lambda cell: cell.io_size,
            )
            sizes = [cell.io_size / 1024 for cell in line]
            row[0].plot(sizes, [cell.gib_per_second for cell in line], "o-", label=name)
            row[1].plot(sizes, [cell.cpu_seconds_per_gb for cell in line], "o-", label=name)
        every = sorted({cell.io_size // 1024 for cell in members})
        for axes, label in zip(row, ("GiB/s", "CPU-s/GB"), strict=True):
            axes.set(xlabel="I/O size (KiB)", ylabel=label, ylim=(0, None))
            axes.set_xscale("log", base=2)
            axes.set_xticks(every, [str(size) for size in every])
            axes.minorticks_off()
            axes.set_title(f"{group[0]}, {group[1]} workers")
            axes.grid(alpha=0.3)
        row[0].legend(fontsize="small")
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix))
