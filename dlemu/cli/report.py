"""`dlemu report` and `dlemu compare`: stored results shown again, and side by side."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator

from dlemu.cli.scripts import json_text
from dlemu.cli.words import Words
from dlemu.config.compose import value_of_word
from dlemu.config.sections import Arguments
from dlemu.errors import DAMAGE, DlemuError, WorkloadError, in_short
from dlemu.judge.records import SIZING, SUMMARY, damaged
from dlemu.report.blocks import Lines, Section
from dlemu.report.compare import compare_folders, losses, present_compare
from dlemu.report.page import across, page_of, present_stored, section
from dlemu.report.stored import Stored, find_results, read_result
from dlemu.report.text import answer_of
from dlemu.terminal import Answer, answer, complain, say, shown_line
from dlemu.units import counted

_OUTPUTS = Path("outputs")
_LEGEND = "AU by dlemu's formula, without the first step; as recorded: by the tool itself"


def main(words: Words) -> int:
    """Run `dlemu report`; return the exit status."""
    as_json, trace = "--json" in words.options, words.path("--trace")
    folders = list(map(Path, words.others))
    if rest := next((key for key in words.values if not key.startswith("metric.")), ""):
        raise WorkloadError(
            f"dlemu report computes with other metric.* keys only, got {rest}: the rest was run"
        )
    if trace is not None and len(folders) > 1:
        raise WorkloadError(f"--trace shows one result, got {len(folders)} folders; name one")
    return report_folders(
        folders or [_newest()],
        {key: value_of_word(key, text) for key, text in words.values.items()},
        html=words.path("--html"),
        trace=trace,
        as_json=as_json,
    )


def _newest() -> Path:
    """Return the folder of the newest result below outputs/, and say which it is."""
    found = find_results(_OUTPUTS)
    if not found:
        raise WorkloadError(f"no result below {_OUTPUTS}/ here; name a folder: dlemu report FOLDER")
    say(f"newest of {counted(len(found), 'result')}: {found[-1]}")
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
    sections: list[Section] = []
    for folder in folders:
        try:
            with _sound(folder):
                each = read_result(folder, keys)
                text = _text(each, as_json=as_json, apart=bool(sections))
                found = section(each)
            if trace is not None:
                _write_trace(trace, each)
        except DlemuError as error:
            complain(str(error))
            statuses.add(1)
            continue
        answer(text) if as_json else say(text)
        sections.append(found)
        statuses.add(each.status)
    if len(sections) > 1 and not as_json:
        _show_table(sections)
    if html is not None and sections:
        try:
            html.write_text(page_of(sections), encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise WorkloadError(
                f"--html {html} cannot be written ({error.strerror}); name another file"
            ) from None
        say(f"page: {shown_line(str(html))}", to_stderr=True)
    return next(status for status in (1, 2, 0) if status in statuses)


def show_across(folders: Sequence[Path]) -> None:
    """Print one table of the results in these folders."""
    _show_table([section(read_result(folder)) for folder in folders])


def _show_table(sections: Sequence[Section]) -> None:
    table = across(sections)
    legend = [Lines([_LEGEND])] if any("AU" in head for head in table.heads) else []
    say(answer_of([table, *legend], apart=True))


def _text(result: Stored, *, as_json: bool, apart: bool) -> Answer:
    """Return what is shown of a result; as text `apart` from what is above."""
    if not as_json:
        return answer_of(present_stored(result), apart=apart)
    return Answer(json_text({"folder": str(result.folder)} | dict(result.document), indent=None))


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


def show(folder: Path, document: Mapping[str, Any], *, is_last: bool = True) -> None:
    """Print a command's result at its end as `dlemu report` does later, an empty line above it.

    In the quiet mode nothing is printed of one that is not the last: one run of several.
    """
    found = answer_of(present_stored(Stored(folder, document)), apart=True)
    say(found if is_last else Answer(found, "", found.fitted))


def show_on_the_way(folder: Path, document: Mapping[str, Any]) -> None:
    """Print one run of several, or of one that fails; nothing in the quiet mode."""
    show(folder, document, is_last=False)


# --- dlemu compare --------------------------------------------------------------------------------

_MAX_LOSS = "compare.max_loss"
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


def compare(words: Words) -> int:
    """Run `dlemu compare`; return the exit status."""
    percent = Allowed(**words.tree("compare")).max_loss
    if len(words.others) < 2:
        raise WorkloadError("dlemu compare needs two folders of results: dlemu compare A B")
    max_loss = None if percent is None else percent / 100
    documents = compare_folders(list(map(Path, words.others)), max_loss)
    lost = [shown_line(line) for document in documents for line in losses(document)]
    if "--json" in words.options:
        answer(json_text(documents[0] if len(documents) == 1 else documents))
    else:
        for number, document in enumerate(documents):
            say(answer_of(present_compare(document), apart=number > 0))
    if max_loss is not None:
        text = "\n".join(lost) or f"no result lost more than {_MAX_LOSS}={percent:g}%"
        say(Answer(f"\n{text}", text))
    return 2 if lost else 0
