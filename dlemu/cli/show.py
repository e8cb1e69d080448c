"""A result on the terminal, at the end of its command: as `dlemu report` shows it later."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlemu.report.page import present_stored
from dlemu.report.stored import Stored
from dlemu.report.text import answer_of
from dlemu.terminal import Answer, say


def show(folder: Path, document: Mapping[str, Any], *, is_last: bool = True) -> None:
    """Print a command's result, with an empty line above it.

    In the quiet mode nothing is printed of one that is not the last: one run of several.
    """
    found = answer_of(present_stored(Stored(folder, document)), apart=True)
    say(found if is_last else Answer(found, "", found.fitted))


def show_on_the_way(folder: Path, document: Mapping[str, Any]) -> None:
    """Print one run of several, or of one that fails; nothing in the quiet mode."""
    show(folder, document, is_last=False)
