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
    nominal_bytes_per_second: float | None
    """samples/s x record_length_bytes."""
    first_step_seconds: float | None
    verdict: str


_COLUMNS = (
    ("result", ""),
    ("tool", ""),
    ("workload", ""),
    ("accelerators", ""),
    ("AU (%)", ".2f"),
    ("with first step (%)", ".2f"),
    ("as told (%)", ".2f"),
    ("samples/s", ".2f"),
    ("MB/s", ".1f"),
    ("first step (s)", ".3f"),
    ("verdict", ""),
)
_TEXT = ("result", "tool", "workload", "verdict")


def cells_of(row: ResultRow) -> tuple[str, ...]:
    """Return a row's cells, by the columns of `heads`."""
    rate = row.nominal_bytes_per_second
    values = (
        row.name,
        row.tool,
        row.workload,
        row.num_accelerators,
        row.au_percentage,
        row.whole_au_percentage,
        row.told_au_percentage,
        row.samples_per_second,
        None if rate is None else rate / 1e6,
        row.first_step_seconds,
        row.verdict,
    )
    pairs = zip(values, _COLUMNS, strict=True)
    return tuple("-" if value is None else format(value, form) for value, (_, form) in pairs)


def heads() -> tuple[str, ...]:
    """Return the titles of the columns, with their units."""
    return tuple(title for title, _ in _COLUMNS)


def render_rows(rows: Sequence[ResultRow]) -> str:
    """Return the table of results as text."""
    left = {column for column, title in enumerate(heads()) if title in _TEXT}
    table = text_table([heads(), *map(cells_of, rows)], left=left, ruled=True)
    return (
        f"{table}\nAU by dlemu's formula, without the first step; as told: by the tool itself; "
        "MB/s: samples/s x size of a sample"
    )
