"""Results of all kinds side by side: one row each, whichever tool made it."""

from collections.abc import Sequence
from dataclasses import dataclass

from dlemu.units import text_table


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """One run, or the answer of one sizing. A value is None where nobody can tell."""

    name: str
    """The folder, and within it the run."""
    tool: str
    """"dlemu", "DLIO" or "mlpstorage"."""
    workload: str
    num_accelerators: int
    au_percentage: float | None
    """By dlemu's formula, 0 to 100."""
    told_au_percentage: float | None
    """As the tool itself wrote it."""
    whole_au_percentage: float | None
    """By dlemu's formula, with the first step."""
    samples_per_second: float | None
    """Over the whole epoch where steps are there, else as the tool wrote it."""
    nominal_MB_per_second: float | None
    """samples/s x record_length_bytes, in 10^6 bytes."""
    first_step_seconds: float | None
    verdict: str


_COLUMNS = (
    ("result", "name", ""),
    ("tool", "tool", ""),
    ("workload", "workload", ""),
    ("accelerators", "num_accelerators", ""),
    ("AU (%)", "au_percentage", ".2f"),
    ("with first step (%)", "whole_au_percentage", ".2f"),
    ("as told (%)", "told_au_percentage", ".2f"),
    ("samples/s", "samples_per_second", ".2f"),
    ("MB/s", "nominal_MB_per_second", ".1f"),
    ("first step (s)", "first_step_seconds", ".3f"),
    ("verdict", "verdict", ""),
)
"""Of each column its head, the field of ResultRow, and the form of its numbers."""
_TEXT = ("result", "tool", "workload", "verdict")


def render_rows(rows: Sequence[ResultRow]) -> str:
    """Return the table of results as text."""
    heads = [head for head, _, _ in _COLUMNS]
    cells = [[_cell(getattr(row, name), form) for _, name, form in _COLUMNS] for row in rows]
    left = {column for column, head in enumerate(heads) if head in _TEXT}
    table = text_table([heads, *cells], left=left, ruled=True)
    return (
        f"{table}\nAU by dlemu's formula, without the first step; as told: by the tool itself; "
        "MB/s: samples/s x size of a sample"
    )


def _cell(value: object, form: str) -> str:
    return "-" if value is None else format(value, form)
