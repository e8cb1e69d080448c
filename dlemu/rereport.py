"""`dlemu report`: stored runs shown again, as text, JSON or a page."""

import json
from collections.abc import Sequence
from pathlib import Path

import yaml

from dlemu.errors import DlemuError, WorkloadError
from dlemu.records import plain
from dlemu.stored import Stored, read_folder
from dlemu.terminal import complain, say, shown_line


def report_folders(
    folders: Sequence[Path],
    overrides: Sequence[str] = (),
    *,
    html: Path | None = None,
    as_json: bool = False,
) -> int:
    """Print the report of each folder; return the exit status of the worst.

    `overrides` such as "metric.edition=v2.0" apply another definition to the same records. `html`
    names a page to be written beside.

    Raises:
        WorkloadError: an override is none of metric's keys, or the page cannot be written.
    """
    keys = dict(_key_value(override) for override in overrides)
    statuses: set[int] = set()
    stored: list[Stored] = []
    for folder in folders:
        try:
            each = read_folder(folder, keys)
        except DlemuError as error:
            # The others can still be shown.
            complain(str(error))
            statuses.add(1)
            continue
        if as_json:
            text = json.dumps({"folder": str(folder)} | plain(each.summary))
            say(text.replace("\x7f", "\\u007f"))  # which JSON may hold as it is
        else:
            say(("\n" if stored else "") + each.text)
        stored.append(each)
        statuses.add(each.status)
    if html is not None and stored:
        _write_page(html, stored)
    return next(status for status in (1, 2, 0) if status in statuses)


def _key_value(override: str) -> tuple[str, object]:
    key, _, value = override.partition("=")
    if not key.startswith("metric."):
        raise WorkloadError(
            f"dlemu report computes with other metric.* keys only, got {key}: the rest was run"
        )
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        raise WorkloadError(f"override {override} cannot be parsed; write key=value") from None


def _write_page(path: Path, stored: Sequence[Stored]) -> None:
    from dlemu.page import render_page

    try:
        path.write_text(render_page(stored), encoding="utf-8")
    except OSError as error:
        raise WorkloadError(
            f"--html {path} cannot be written ({error.strerror}); name another file"
        ) from None
    say(f"page: {shown_line(str(path))}", to_stderr=True)
