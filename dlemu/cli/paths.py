"""`dlemu paths`: words to a plan, and its cells as a table and files."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dlemu.cli.progress import Doing, show_progress
from dlemu.cli.scripts import Script, drive_models, short_hash
from dlemu.cli.values import (
    Read,
    list_of,
    number,
    on_or_off,
    one_folder,
    one_of,
    path_of,
    read_values,
    whole,
)
from dlemu.cli.words import FOR_SCRIPTS, Words, parse
from dlemu.errors import WorkloadError
from dlemu.host.place import find_system
from dlemu.paths.blocks import DATA_PATHS, PATTERNS
from dlemu.paths.sweep import CELLS, Cell, Sweep, run_paths
from dlemu.report.paths import plots_of, present_paths, title_of
from dlemu.report.table import Row
from dlemu.report.text import answer_of, render_text
from dlemu.results.records import write_text
from dlemu.results.summary import time_of_day
from dlemu.terminal import keep_stdout, say
from dlemu.units import parse_bytes

HELP = """\
dlemu paths FOLDER [key=value ...]

Measure the data paths of a folder side by side: page cache, O_DIRECT, O_DIRECT with a copy to the
GPU, and cuFile (GPUDirect Storage). Writes files named dlemu_paths.<n> into the folder and removes
them. The same command goes on where it was interrupted.

  target=/mnt/d1,/mnt/d2   folders, instead of FOLDER
  seconds=45               of each measurement
  io_sizes=4KiB,1MiB       4, 16, 64, 128, 512, 1024, 4096 KiB; 512B where the device allows it
  queue_depths=1,4,32,128  blocks that each worker has in flight (1); compares processes and
                           io_uring
  workers=8,32             8
  patterns=seq_read,...    seq_read,random_read; also seq_write,random_write
  paths=host_direct,...    all that work here, of host_buffered, host_direct,
                           host_direct_gpu_copy, cufile; also host_io_uring
  file_size=2GiB           of each worker's file; less where space is short
  output=outputs/paths     cells.jsonl, paths.csv, paths.json, paths.txt, paths.png, paths.svg;
                           wear.jsonl if 100 MB were written
  progress=on              off: do not show on stderr what is being measured
  --json                   print the content of paths.json, and nothing else
  --csv FILE               append a row for each cell; --label TEXT goes into a column
"""

_NEWER = ("queue_depth", "queues", "cpu_seconds_per_million_ios")
WORDS = FOR_SCRIPTS
COLUMNS = (
    *("time", "id", "label"),
    *(field.name for field in fields(Cell) if field.name not in _NEWER),
    *("host", "drive_model", "dlemu_version", "folder"),
    *_NEWER,
)
"""Of --csv; new ones come last."""


def main(arguments: Sequence[str]) -> int:
    """Run `dlemu paths` with its arguments; return the exit status."""
    words = parse(arguments, WORDS)
    plan = plan_of(words)
    script = Script.of(words, COLUMNS)
    wanted = words.values.get("progress") != "off"
    doing = Doing()
    with keep_stdout(script.as_json):
        with show_progress("paths", lambda: str(doing), on=wanted):
            cells = run_paths(plan, say, doing.begin)
        document = document_of(cells, plan.output)
        say(answer_of(present_paths(document), apart=True))
        _write(document, plan.output)
        say(f"\n{plan.output}/paths.csv, paths.json, paths.txt")
        script.tell(document["cells"], _rows(cells, plan.output))
    return 0


def plan_of(words: Words) -> Sweep:
    """Return the plan that words mean."""
    folder, values = one_folder(words.others), read_values(words.values, KEYS)
    values.pop("progress", None)
    targets = values.pop("target", () if folder is None else (folder,))
    if not targets:
        raise WorkloadError("no folder to measure; write dlemu paths FOLDER")
    return Sweep(targets=targets, **values)


def document_of(cells: Sequence[Cell], folder: Path) -> dict[str, Any]:
    """Return the document of a sweep, with the day of its last cell."""
    kept = folder / CELLS
    last = datetime.fromtimestamp(kept.stat().st_mtime, UTC) if kept.exists() else datetime.now(UTC)
    rows = [asdict(cell) for cell in cells]
    return {"kind": "paths", "measured": last.date().isoformat(), "cells": rows}


def _write(document: Mapping[str, Any], folder: Path) -> None:
    """Write the results in all forms; the picture needs matplotlib."""
    cells = document["cells"]
    write_text(folder / "paths.txt", render_text(present_paths(document)) + "\n")
    write_text(folder / "paths.csv", cells_csv(cells))
    write_text(folder / "paths.json", json.dumps(cells, indent=1) + "\n")
    try:
        from dlemu.report.png import save_pictures
    except ModuleNotFoundError:
        say("no plot: matplotlib is missing; pip install 'dlemu[plot]'")
        return
    save_pictures(plots_of(cells), folder / "paths", title=title_of(document))


def cells_csv(cells: Sequence[Row]) -> str:
    """Return all figures, a row each cell; times and latencies are in seconds."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Cell)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(cells)
    return text.getvalue()


def _rows(cells: Sequence[Cell], folder: Path) -> list[Row]:
    """Return the rows of measured cells, in the units of paths.csv."""
    here = {cell.target: asdict(find_system(Path(cell.target))) for cell in cells}
    return [
        {
            **asdict(cell),
            "time": time_of_day(),
            "id": short_hash(folder.resolve(), cell.asked),
            "host": here[cell.target]["host"],
            "drive_model": drive_models([here[cell.target]]),
            "folder": folder,
        }
        for cell in cells
    ]


KEYS: dict[str, Read] = {
    "target": list_of(path_of("target")),
    "output": path_of("output"),
    "seconds": number,
    "io_sizes": list_of(parse_bytes),
    "workers": list_of(whole),
    "queue_depths": list_of(whole),
    "patterns": list_of(one_of(*PATTERNS)),
    "paths": list_of(one_of(*DATA_PATHS)),
    "file_size": parse_bytes,
    "progress": on_or_off,
}
"""How each key's value is read."""
