"""Stored results of `dlemu checkpoint`, read back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlemu.checkpoint.text import exit_status, render
from dlemu.errors import RunError
from dlemu.reports.rows import ResultRow
from dlemu.results.records import UNFINISHED


@dataclass(frozen=True)
class StoredCheckpoints:
    """What a folder holds: the checkpoints of one command."""

    folder: Path
    summary: Mapping[str, Any]
    """The fields of summary.json."""
    rows: Sequence[ResultRow] = ()
    """None: a table of AU and samples/s has no place for it."""

    @property
    def text(self) -> str:
        """The report as the terminal shows it."""
        return f"{self.folder}: {self.summary['status']}\n{render(self.summary)}"

    @property
    def where(self) -> str:
        """The folder's name on the storage."""
        return Path(self.summary["checkpoint"]["folder"]).name

    @property
    def status(self) -> int:
        """As `dlemu checkpoint` exits."""
        return exit_status(self.summary)


def is_checkpoint(summary: Mapping[str, Any]) -> bool:
    """Return whether a summary is one of `dlemu checkpoint`."""
    return summary.get("command") == "checkpoint"


def read_checkpoints(folder: Path, summary: Mapping[str, Any]) -> StoredCheckpoints:
    """Return what a folder holds.

    Raises:
        RunError: the command did not end.
    """
    if summary["status"] in UNFINISHED:
        error = summary.get("error", "the command did not end")
        raise RunError(f"{folder}: no result ({summary['status']}): {error}")
    return StoredCheckpoints(folder, summary)
