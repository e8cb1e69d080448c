"""Writes into summary.json that a run, or several runs, did not end well."""

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from dlemu.errors import DlemuError, RunError
from dlemu.results.records import write_summary
from dlemu.results.summary import RunsSummary, Summary, time_of_day
from dlemu.terminal import complain

S = TypeVar("S", Summary, RunsSummary)


def write_failure(folder: Path, summary: S, error: BaseException) -> S:
    """Write the summary with its error, if the disk still takes it; return it."""
    interrupted = isinstance(error, (KeyboardInterrupt, SystemExit))
    text = str(error) if isinstance(error, DlemuError) else repr(error)
    summary = replace(
        summary,
        status="incomplete" if interrupted else "failed",
        error="interrupted" if interrupted else text,
        end=time_of_day(),
    )
    try:
        write_summary(folder, summary.as_json())
    except RunError as second:
        if str(folder) not in text:  # else this error is about the same disk
            complain(str(second))
    return summary
