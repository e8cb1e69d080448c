"""Stored results of `dlemu checkpoint`, read back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlemu.errors import RunError
from dlemu.reports.rows import ResultRow
from dlemu.results.judgement import EXIT_STATUS
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
    def status(self) -> int:
        """As `dlemu checkpoint` exits: 2 where checkpoint.max_seconds was exceeded."""
        return EXIT_STATUS.get(self.summary["verdict"], 0)


def is_checkpoint(summary: Mapping[str, Any]) -> bool:
    """Return whether a summary is one of `dlemu checkpoint`."""
    return summary.get("kind") == "checkpoint"


def read_checkpoints(folder: Path, summary: Mapping[str, Any]) -> StoredCheckpoints:
    """Return what a folder holds.

    Raises:
        RunError: the command did not end.
    """
    if summary["status"] in UNFINISHED:
        error = summary.get("error", "the command did not end")
        raise RunError(f"{folder}: no result ({summary['status']}): {error}")
    return StoredCheckpoints(folder, summary)
