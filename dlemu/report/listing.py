"""What lies below a folder of folders: one line a result, and which of two such folders belong
together."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dlemu.errors import DAMAGE, DlemuError, WorkloadError, in_short
from dlemu.judge.records import holds_result
from dlemu.report.blocks import Block, Column, CommandLine, Document, Lines, table_of
from dlemu.report.page import section
from dlemu.report.stored import find_results, read_result, written_at
from dlemu.units import counted

_MOST_SHOWN = 3
"""Names of an error's line."""
_COMPARED = ("run", "runs", "sizing", "try", "checkpoint")
"""Kinds that `dlemu compare` takes."""


def results_below(folder: Path) -> list[Path]:
    """Return the results below a folder that is none itself, the newest first."""
    if folder.is_dir() and holds_result(os.listdir(folder)):
        return []
    return find_results(folder)[::-1]


def listed(folder: Path, keys: Mapping[str, object]) -> dict[str, Any]:
    """Return the document of what lies below a folder; `keys` are those of `read_result`."""
    rows = [_row(path, keys) for path in results_below(folder)]
    return {"kind": "results", "folder": str(folder), "results": rows}


def _row(folder: Path, keys: Mapping[str, object]) -> dict[str, Any]:
    """Return a result in short; one that is damaged or did not end says so in its verdict."""
    row = {"folder": str(folder), "written": written_at(folder)}
    try:
        stored = read_result(folder, keys)
        found = section(stored)
    except DlemuError as error:
        why = f"no result: {str(error).removeprefix(f'{folder}: ')}"
        return row | {"kind": "", "name": "", "verdict": why}
    except DAMAGE as error:
        return row | {"kind": "", "name": "", "verdict": f"cannot be read: {in_short(error)}"}
    kind = "try" if stored.document.get("tried") else stored.kind
    return row | {"kind": kind, "name": found.title, "verdict": _verdict(found.rows)}


def _verdict(rows: Sequence[Mapping[str, str]]) -> str:
    return "; ".join(dict.fromkeys(filter(None, (row.get("verdict", "") for row in rows))))


def present_listing(document: Document) -> Iterator[Block]:
    """Yield the table of what lies below a folder, and the command that shows the newest."""
    rows = document["results"]
    yield Lines([f"{counted(len(rows), 'result')} below {document['folder']}, newest first"])
    yield table_of(
        rows,
        Column("date", "written", _date, text=True),
        Column("kind", "kind", text=True),
        Column("workload", "name", text=True, spare=1),
        Column("verdict", "verdict", text=True),
        Column("shown by", "folder", _command, text=True),
    )
    for place, one in enumerate(rows):
        alike = (
            o for o in rows[place + 1 :] if (o["kind"], o["name"]) == (one["kind"], one["name"])
        )
        if one["kind"] in _COMPARED and (other := next(alike, None)):
            words = ["dlemu", "compare", other["folder"], one["folder"]]
            yield CommandLine("the newest and the one before", shlex.join(words))
            return


def _date(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def _command(folder: str) -> str:
    return shlex.join(["dlemu", "report", folder])


def paired(folders: Sequence[Path]) -> list[list[Path]]:
    """Return the results that belong together in folders of folders: those of the same name.

    A name is the path below the folder, else the first part of it, such as the workload's: of
    several the newest. Where one of them is a result itself, all are taken as they are.

    Raises:
        WorkloadError: no name is in all of them.
    """
    below = {folder: results_below(folder) for folder in folders}
    if not all(below.values()):
        return [list(folders)]
    for name_of in (lambda path: str(path), lambda path: path.parts[0]):
        named = [
            {name_of(each.relative_to(folder)): each for each in reversed(below[folder])}
            for folder in folders
        ]
        if common := [name for name in named[0] if all(name in each for each in named)]:
            return [[each[name] for each in named] for name in common]
    told = (f"{folder} has {_shown(below[folder], folder)}" for folder in folders)
    raise WorkloadError(
        f"no result of the same name lies below all of them: {'; '.join(told)}; name two results"
    )


def _shown(paths: Sequence[Path], folder: Path) -> str:
    names = [str(path.relative_to(folder)) for path in paths[:_MOST_SHOWN]]
    more = [f"{len(paths) - len(names)} more"] if len(paths) > len(names) else []
    return ", ".join([*names, *more])
