"""Results of all kinds side by side: one row each, whichever tool made it."""

from dataclasses import dataclass


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
