"""`dlemu report`: stored results shown again, as text, JSON, a page or a trace."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dlemu.cli.commands import COMMANDS
from dlemu.cli.show import blocks_of
from dlemu.cli.words import parse
from dlemu.errors import DAMAGE, DlemuError, RunError, WorkloadError, in_short
from dlemu.report.blocks import Block, Command
from dlemu.report.checkpoint import present_checkpoint
from dlemu.report.page import blocks_of_foreign, page_of
from dlemu.report.rows import present_rows
from dlemu.report.sizing import present_sizing
from dlemu.report.text import answer_of
from dlemu.reports.checkpoints import StoredCheckpoints
from dlemu.reports.foreign import Foreign
from dlemu.reports.sizings import ANSWER, StoredSizing
from dlemu.reports.stored import Result, find_results, read_result
from dlemu.results.records import SUMMARY, plain
from dlemu.terminal import Answer, complain, say, shown_line
from dlemu.units import counted
from dlemu.workload.compose import value_of_word

_OUTPUTS = Path("outputs")


def main(arguments: Sequence[str]) -> int:
    """Run `dlemu report` with its arguments; return the exit status."""
    words = parse(arguments, COMMANDS["report"].options)
    as_json, trace = "--json" in words.options, words.path("--trace")
    folders = list(map(Path, words.others))
    if trace is not None and len(folders) > 1:
        raise WorkloadError(f"--trace shows one result, got {len(folders)} folders; name one")
    return report_folders(
        folders or [_newest(as_json=as_json)],
        {key: _metric_value(key, text) for key, text in words.values.items()},
        html=words.path("--html"),
        trace=trace,
        as_json=as_json,
    )


def _newest(*, as_json: bool) -> Path:
    """Return the folder of the newest result below outputs/, and say which it is."""
    found = find_results(_OUTPUTS)
    if not found:
        raise WorkloadError(f"no result below {_OUTPUTS}/ here; name a folder: dlemu report FOLDER")
    say(f"newest of {counted(len(found), 'result')}: {found[-1]}", to_stderr=as_json)
    return found[-1]


def report_folders(
    folders: Sequence[Path],
    keys: Mapping[str, object],
    *,
    html: Path | None,
    trace: Path | None = None,
    as_json: bool,
) -> int:
    """Print the report of each folder; return the exit status of the worst.

    `keys` such as metric.edition apply another definition to the same records. `html` is the file
    of a page that is written as well, `trace` that of a trace.
    """
    statuses: set[int] = set()
    results: list[Result] = []
    for folder in folders:
        try:
            each, text = _read(folder, keys, as_json=as_json, apart=bool(results))
            if trace is not None:
                _write_trace(trace, each)
        except DlemuError as error:
            complain(str(error))
            statuses.add(1)
            continue
        say(text)
        results.append(each)
        statuses.add(each.status)
    rows = [row for each in results for row in each.rows]
    if len(results) > 1 and rows and not as_json:
        say(answer_of(present_rows(rows), apart=True))
    if html is not None and results:
        _write_page(html, results)
    return next(status for status in (1, 2, 0) if status in statuses)


def _read(
    folder: Path, keys: Mapping[str, object], *, as_json: bool, apart: bool
) -> tuple[Result, Answer]:
    """Return what a folder holds, and what is shown of it; as text `apart` from what is above."""
    with _sound(folder):
        each = read_result(folder, keys)
        if not as_json:
            return each, answer_of(_present(each), apart=apart)
        text = json.dumps({"folder": str(folder)} | plain(each.summary))
        return each, Answer(text.replace("\x7f", "\\u007f"))  # json leaves DEL as it is


def _present(result: Result) -> list[Block]:
    if isinstance(result, StoredSizing):
        return present_sizing(result.summary)
    if isinstance(result, StoredCheckpoints):
        return [*present_checkpoint(result.summary), Command("results", str(result.folder))]
    if isinstance(result, Foreign):
        return blocks_of_foreign(result)
    return blocks_of(result.folder, result.summary)


def _write_trace(path: Path, result: Result) -> None:
    from dlemu.reports.trace import traced, write_trace

    number = write_trace(path, traced(result))
    say(f"trace: {shown_line(str(path))}, {counted(number, 'event')}", to_stderr=True)


@contextmanager
def _sound(folder: Path) -> Iterator[None]:
    """Raise RunError where a file of the folder lacks a value, or holds one of a wrong type."""
    try:
        with np.errstate(all="ignore"):
            yield
    except DAMAGE as error:
        name = ANSWER if (folder / ANSWER).is_file() else SUMMARY
        raise RunError(
            f"{folder / name} or a file beside it is damaged: {in_short(error)}"
        ) from None


def _metric_value(key: str, text: str) -> object:
    if not key.startswith("metric."):
        raise WorkloadError(
            f"dlemu report computes with other metric.* keys only, got {key}: the rest was run"
        )
    return value_of_word(key, text)


def _write_page(path: Path, results: Sequence[Result]) -> None:
    with _sound(results[0].folder):
        page = page_of(results)
    try:
        path.write_text(page, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise WorkloadError(
            f"--html {path} cannot be written ({error.strerror}); name another file"
        ) from None
    say(f"page: {shown_line(str(path))}", to_stderr=True)
