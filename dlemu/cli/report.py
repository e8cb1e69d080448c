"""`dlemu report`: stored runs shown again, as text, JSON or a page."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import yaml

from dlemu.cli.words import parse
from dlemu.errors import DAMAGE, DlemuError, RunError, WorkloadError, in_short
from dlemu.results.records import SUMMARY, plain, read_ranks, read_summary
from dlemu.results.stored import Stored, read_folder
from dlemu.terminal import complain, say, shown_line

HELP = """\
dlemu report FOLDER... [key=value ...] [--html FILE] [--json]

Shows runs again, computed anew from their stored steps; metric.edition=v2.0 applies the other
definition to them. Folders of several runs (runs=5, division=closed) show the table too.

  --html FILE   one page with the tables, the epochs, and what the hosts did meanwhile
  --series FILE the table of one run over time, as series.csv in its folder: for older runs
  --json        what summary.json would say, as one JSON object a folder
"""


def main(arguments: Sequence[str]) -> int:
    """Run `dlemu report` with its arguments; return the exit status."""
    words = parse(arguments, ("--html", "--json", "--series"))
    if not words.others:
        raise WorkloadError("dlemu report needs the folder of a run: dlemu report outputs/...")
    if "--series" in words.options:
        return _series(words.others, Path(words.options["--series"]))
    page = words.options.get("--html")
    return report_folders(
        list(map(Path, words.others)),
        {key: _metric_value(key, text) for key, text in words.values.items()},
        html=None if page is None else Path(page),
        as_json="--json" in words.options,
    )


def _series(folders: Sequence[str], path: Path) -> int:
    """Write the series of the one run; return the exit status."""
    from dlemu.results.series import write_series

    if len(folders) != 1:
        raise WorkloadError("--series takes one run: dlemu report FOLDER --series FILE")
    folder = Path(folders[0])
    read_summary(folder)  # of no run, it names what is missing
    write_series(folder, path, read_ranks(folder))
    say(f"series: {shown_line(str(path))}")
    return 0


def report_folders(
    folders: Sequence[Path], keys: Mapping[str, object], *, html: Path | None, as_json: bool
) -> int:
    """Print the report of each folder; return the exit status of the worst.

    `keys` such as metric.edition apply another definition to the same records. `html` is the file
    of a page that is written as well.
    """
    statuses: set[int] = set()
    stored: list[Stored] = []
    for folder in folders:
        try:
            each, text = _read(folder, keys, as_json=as_json)
        except DlemuError as error:
            complain(str(error))
            statuses.add(1)
            continue
        say(f"\n{text}" if stored and not as_json else text)
        stored.append(each)
        statuses.add(each.status)
    if html is not None and stored:
        _write_page(html, stored)
    return next(status for status in (1, 2, 0) if status in statuses)


def _read(folder: Path, keys: Mapping[str, object], *, as_json: bool) -> tuple[Stored, str]:
    """Return what a folder holds, and what is shown of it."""
    with _sound(folder):
        each = read_folder(folder, keys)
        if not as_json:
            return each, each.text
        text = json.dumps({"folder": str(folder)} | plain(each.summary))
        return each, text.replace("\x7f", "\\u007f")  # json leaves DEL as it is


@contextmanager
def _sound(folder: Path) -> Iterator[None]:
    """Raise RunError where a file of the folder lacks a value, or holds one of a wrong type."""
    try:
        with np.errstate(all="ignore"):
            yield
    except DAMAGE as error:
        raise RunError(
            f"{folder / SUMMARY} or a file beside it is damaged: {in_short(error)}"
        ) from None


def _metric_value(key: str, text: str) -> object:
    if not key.startswith("metric."):
        raise WorkloadError(
            f"dlemu report computes with other metric.* keys only, got {key}: the rest was run"
        )
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise WorkloadError(f"override {key}={text} cannot be parsed; write key=value") from None


def _write_page(path: Path, stored: Sequence[Stored]) -> None:
    from dlemu.results.page import render_page

    with _sound(stored[0].folder):
        page = render_page(stored)
    try:
        path.write_text(page, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise WorkloadError(
            f"--html {path} cannot be written ({error.strerror}); name another file"
        ) from None
    say(f"page: {shown_line(str(path))}", to_stderr=True)
