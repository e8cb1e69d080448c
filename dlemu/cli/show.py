"""A result on the terminal: at the end of its command and by `dlemu report`, the same text."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlemu.report.blocks import Block, Command, Lines
from dlemu.report.run import present_run
from dlemu.report.runs import present_runs
from dlemu.report.text import answer_of
from dlemu.reports.stored import attempts_of, cut_runs
from dlemu.terminal import Answer, say


def blocks_of(folder: Path, document: Mapping[str, Any]) -> list[Block]:
    """Return the blocks of a run or of several, and what else their folder holds."""
    several = document["kind"] == "runs"
    blocks = present_runs(document) if several else present_run(document)
    if several:
        cut = cut_runs(folder, document["runs"])
        blocks += [
            Command(f"{path.name} did not end", shlex.join(["dlemu", "report", str(path)]))
            for path in cut
        ]
    if attempts := attempts_of(folder):
        names = ", ".join(map(str, attempts))
        blocks.append(Lines([f"earlier attempts, which did not end: {names}"]))
    return [*blocks, Command("results", str(folder))]


def show(folder: Path, document: Mapping[str, Any]) -> None:
    """Print a command's result, with an empty line above it."""
    say(answer_of(blocks_of(folder, document), apart=True))


def show_on_the_way(folder: Path, document: Mapping[str, Any]) -> None:
    """Print one run of several, or of one that fails; nothing in the quiet mode."""
    found = answer_of(blocks_of(folder, document), apart=True)
    say(Answer(found, "", found.fitted))
