"""`dlemu report` and `dlemu compare`: stored results shown again, and side by side."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator

from dlemu.cli.output import CommandResult
from dlemu.cli.words import Words
from dlemu.config.compose import value_of_word
from dlemu.config.types import Arguments
from dlemu.errors import DAMAGE, DlemuError, RunError, WorkloadError, in_short
from dlemu.judge.records import SIZING, SUMMARY, damaged
from dlemu.report.blocks import Lines, ResultSection
from dlemu.report.compare import compare_folders, losses
from dlemu.report.listing import listed, paired, results_below
from dlemu.report.page import across, page_of, section
from dlemu.report.present import files_of, present
from dlemu.report.stored import Stored, find_results, read_result
from dlemu.report.text import answer_of
from dlemu.terminal import say, shown_line
from dlemu.units import counted

_OUTPUTS = Path("outputs")
_LEGEND = "AU by dlemu's formula, without the first step; as recorded: by the tool itself"


def main(words: Words) -> Iterator[CommandResult]:
    """Yield the results of `dlemu report`; then print one table of several, and write the page."""
    html, trace = words.path("--html"), words.path("--trace")
    folders = words.folders
    if rest := next((key for key in words.values if not key.startswith("metric.")), ""):
        raise WorkloadError(
            f"dlemu report computes with other metric.* keys only, got {rest}: the rest was run"
        )
    if trace is not None and len(folders) > 1:
        raise WorkloadError(f"--trace shows one result, got {len(folders)} folders; name one")
    keys = {key: value_of_word(key, text) for key, text in words.values.items()}
    sections: list[ResultSection] = []
    for folder in _expanded(folders, on_page=html is not None) if folders else [_newest()]:
        if below := results_below(folder):
            if trace is not None:
                raise WorkloadError(f"--trace shows one result; name one, such as {below[0]}")
            yield CommandResult(listed(folder, keys), apart=bool(sections))
            continue
        try:
            with _sound(folder):
                each = read_result(folder, keys)
                blocks = present(each.document)
                found = section(each, blocks, on_page=html is not None)
                blocks = [*blocks, *files_of(each.shown)]  # a page has the folder in its heads
            if trace is not None:
                _write_trace(trace, each)
        except DlemuError as error:
            yield CommandResult({"kind": "error", "error": str(error)})
            continue
        yield CommandResult(each.shown, blocks=blocks, apart=bool(sections))
        sections.append(found)
    if "--json" not in words.options:
        _show_table(sections)
    if html is not None and sections:
        try:
            html.write_text(page_of(sections), encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise WorkloadError.of_system(
                error, f"--html {html}", "cannot be written", "name another file"
            ) from None
        say(f"page: {shown_line(str(html))}", to_stderr=True)


def _expanded(folders: Sequence[Path], *, on_page: bool) -> Iterator[Path]:
    """Yield the folders; for a page those of the results below, as a page shows each whole."""
    for folder in folders:
        yield from (on_page and results_below(folder)) or [folder]


def _newest() -> Path:
    """Return the folder of the newest result below outputs/, and say which it is."""
    found = find_results(_OUTPUTS)
    if not found:
        raise WorkloadError(f"no result below {_OUTPUTS}/ here; name a folder: dlemu report FOLDER")
    say(f"newest of {counted(len(found), 'result')}: {found[-1]}")
    return found[-1]


def show_across(jobs: Mapping[Path, str]) -> None:
    """Print one table of jobs by folder: what each has found, or in one line why it failed."""
    sections = []
    for folder, failure in jobs.items():
        verdict = f"failed: {failure}"
        if not failure:
            try:
                sections.append(section(read_result(folder)))
                continue
            except RunError:
                verdict = "no result"
        sections.append(ResultSection("", str(folder), (), [{"verdict": verdict}]))
    _show_table(sections)


def _show_table(sections: Sequence[ResultSection]) -> None:
    """Print the table of several results."""
    if len(sections) > 1:
        table = across(sections)
        legend = [Lines([_LEGEND])] if any("AU" in head for head in table.heads) else []
        say(answer_of([table, *legend], apart=True))


def _write_trace(path: Path, result: Stored) -> None:
    from dlemu.report.trace import traced, write_trace

    number = write_trace(path, traced(result))
    say(f"trace: {shown_line(str(path))}, {counted(number, 'event')}", to_stderr=True)


@contextmanager
def _sound(folder: Path) -> Iterator[None]:
    """Raise RunError where a file of the folder lacks a value, or holds one of a wrong type."""
    try:
        with np.errstate(all="ignore"):
            yield
    except DAMAGE as error:
        name = SIZING if (folder / SIZING).is_file() else SUMMARY
        raise damaged(folder / name, in_short(error), " or a file beside it") from None


# --- dlemu compare --------------------------------------------------------------------------------

_PERCENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*%")


def _percent(text: object) -> float:
    found = _PERCENT.fullmatch(str(text).strip())
    if found is None or float(found[1]) > 100:
        raise ValueError(f"must be 0% to 100%, such as 5%, got {text}")
    return float(found[1])


class Allowed(Arguments):
    """What a result may have lost against the first one."""

    max_loss: Annotated[float, BeforeValidator(_percent)] | None = None
    """Exit with 2 where a result has lost more than that, as 5%: samples/s of runs, accelerators of
    sizings."""


def compare(words: Words) -> CommandResult:
    """Return the comparisons of `dlemu compare`."""
    percent = Allowed(**words.tree("compare")).max_loss
    if len(words.others) < 2:
        raise WorkloadError("dlemu compare needs two folders of results: dlemu compare A B")
    max_loss = None if percent is None else percent / 100
    pairs = paired(words.folders)
    documents = [each for pair in pairs for each in compare_folders(pair, max_loss)]
    lost = [line for document in documents for line in losses(document)]
    found = {"kind": "comparisons", "comparisons": documents, "losses": lost, "max_loss": max_loss}
    return CommandResult(found, apart=False)
