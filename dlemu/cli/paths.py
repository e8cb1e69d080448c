"""`dlemu paths`: words to a plan, and its cells as a table and files."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from dlemu.cli.output import CommandResult
from dlemu.cli.progress import Doing, show_progress
from dlemu.cli.words import DRY_RUN, Words
from dlemu.judge.records import read_summary, write_text
from dlemu.ranks.world import World
from dlemu.report.blocks import Document
from dlemu.report.in_run import wear_line
from dlemu.report.paths import plots_of
from dlemu.report.words import telling
from dlemu.terminal import detail, say
from dlemu.tools.paths.cells import Cell
from dlemu.tools.paths.sweep import Sweep, run_paths

_NEWER = (
    *("queue_depth", "queues", "cpu_seconds_per_million_ios", "gpu", "together", "ceiling"),
    *("ceiling_bytes_per_second", "steady"),
)
COLUMNS = (
    *("time", "id", "label"),
    *(field.name for field in fields(Cell) if field.name not in _NEWER),
    *("host", "drive_model", "dlemu_version", "folder"),
    *_NEWER,
)
"""Of --csv; new ones come last."""


def main(words: Words, world: World) -> CommandResult | Iterator[CommandResult] | None:
    """Return what `dlemu paths` finds, on rank 0. All ranks call it."""
    plan = world.on_first(lambda: plan_of(words))
    if DRY_RUN in words.options:
        from dlemu.cli.dry import dry_run

        return dry_run("paths", plan, world)
    doing = Doing()
    with show_progress("paths", lambda: str(doing), on=plan.progress == "on" and world.rank == 0):
        run_paths(
            plan, telling(say), doing.begin, lambda wear: detail(wear_line(wear)), world=world
        )
    if world.rank != 0:
        return None
    document = {"folder": str(plan.output), **read_summary(plan.output)}
    _write(document, plan.output)
    return CommandResult(document)


def plan_of(words: Words) -> Sweep:
    """Return the plan that words mean."""
    values = words.tree("paths")
    if words.folder is not None:
        values = {"target": tuple(words.others[0].split(",")), **values}
    return Sweep(**values)


def _write(document: Mapping[str, Any], folder: Path) -> None:
    """Write the results as a table and as pictures, which need matplotlib."""
    cells = document["cells"]
    write_text(folder / "paths.csv", cells_csv(cells))
    try:
        from dlemu.report.png import save_pictures
    except ModuleNotFoundError:
        say("no plot: matplotlib is missing; pip install 'dlemu[plot]'")
        return
    targets = ", ".join(dict.fromkeys(cell["target"] for cell in cells))
    title = f"data paths of {targets}, {document['day']}"
    save_pictures(plots_of(cells), folder / "paths", title=title)


def cells_csv(cells: Sequence[Document]) -> str:
    """Return all figures, a row each cell; times and latencies are in seconds."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Cell)], lineterminator="\n")
    writer.writeheader()
    for cell in cells:
        trend = (cell.get("steady") or {}).get("trend")
        writer.writerow({**cell, "together": ",".join(cell["together"]), "steady": trend})
    return text.getvalue()
