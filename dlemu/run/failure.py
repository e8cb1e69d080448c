"""Writes into summary.json that a run, or several runs, did not end well."""

from pathlib import Path

from dlemu.errors import DlemuError, RunError
from dlemu.results.records import write_summary
from dlemu.results.summary import RunsSummary, Summary, time_of_day
from dlemu.terminal import complain


def write_failure(folder: Path, summary: Summary | RunsSummary, error: BaseException) -> None:
    """Write the summary with its error, if the disk still takes it."""
    interrupted = isinstance(error, (KeyboardInterrupt, SystemExit))
    text = str(error) if isinstance(error, DlemuError) else repr(error)
    summary["status"] = "incomplete" if interrupted else "failed"
    summary["error"] = "interrupted" if interrupted else text
    summary["end"] = time_of_day()
    try:
        write_summary(folder, summary)
    except RunError as second:
        if str(folder) not in text:  # else this error is about the same disk
            complain(str(second))
