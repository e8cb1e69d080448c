"""Results of all kinds side by side, for the terminal."""

from collections.abc import Sequence

from dlemu.report.blocks import Block, Lines, Table
from dlemu.reports.rows import ResultRow

_COLUMNS = (
    ("result", "name", ""),
    ("tool", "tool", ""),
    ("workload", "workload", ""),
    ("accelerators", "num_accelerators", ""),
    ("AU (%)", "au_percentage", ".2f"),
    ("with first step (%)", "whole_au_percentage", ".2f"),
    ("as recorded (%)", "told_au_percentage", ".2f"),
    ("samples/s", "samples_per_second", ".2f"),
    ("MB/s", "nominal_MB_per_second", ".1f"),
    ("first step (s)", "first_step_seconds", ".3f"),
    ("verdict", "verdict", ""),
)
"""Of each column its head, the field of ResultRow, and the form of its numbers."""
_TEXT = ("result", "tool", "workload", "verdict")


def present_rows(rows: Sequence[ResultRow]) -> list[Block]:
    """Return the table of results."""
    return [
        Table(
            heads=[head for head, _, _ in _COLUMNS],
            rows=[[_cell(getattr(row, name), form) for _, name, form in _COLUMNS] for row in rows],
            texts=_TEXT,
            spare=("first step (s)", "with first step (%)", "as recorded (%)", "tool"),
        ),
        Lines(
            [
                "AU by dlemu's formula, without the first step; as recorded: by the tool itself; "
                "MB/s: samples/s x size of a sample"
            ]
        ),
    ]


def _cell(value: object, form: str) -> str:
    return "-" if value is None else format(value, form)
