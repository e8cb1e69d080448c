"""`dlemu load`: words to what is read, and its table."""

import time
from collections.abc import Mapping
from typing import Any

from dlemu.cli.progress import Doing, show_progress
from dlemu.cli.scripts import Script, short_hash
from dlemu.cli.words import Words
from dlemu.errors import WorkloadError
from dlemu.judge.summary import time_of_day
from dlemu.report.text import answer_of
from dlemu.report.tools import present_load
from dlemu.terminal import say
from dlemu.tools.model_load import Load, document_of, measure

COLUMNS = (
    *("time", "id", "label", "model", "scale", "num_files", "num_bytes", "way", "readers"),
    *("seconds", "read_MB_per_second", "share_of_drive", "drive_MB_per_second"),
    *("cpu_seconds", "pages_before", "dlemu_version"),
)
"""Of --csv; new ones come last."""


def main(words: Words) -> int:
    """Run `dlemu load`; return the exit status."""
    load = load_of(words)
    script = Script.of(words, COLUMNS)
    if load.target is None and not load.files:
        if script.table is not None:
            raise WorkloadError("--csv has a row for each read; name a target, or take --json")
        document = document_of(load)
        say(answer_of(present_load(document)))
        script.tell(document, ())
        return 0
    doing = Doing()
    with show_progress("load", lambda: str(doing), on=load.progress == "on"):
        document = document_of(load, measure(load, say, doing.begin, doing.add))
    say(answer_of(present_load(document), apart=True))
    script.tell(document, _rows(document))
    return 0


def load_of(words: Words) -> Load:
    """Return what words mean."""
    if words.others:
        raise WorkloadError(f"{words.others[0]!r} is no key=value; write target={words.others[0]}")
    values = words.tree("load")
    if "model" in values and "files" in values:
        raise WorkloadError("model and files exclude each other; give one of them")
    if "model" not in values and "files" not in values:
        raise WorkloadError("no model; write dlemu load model=llama2_70b, or files=FILE,FILE")
    idle = {"target", "scale", "keep"} & values.keys() if "files" in values else set()
    if idle:
        raise WorkloadError(f"{', '.join(sorted(idle))} has no effect with files=; leave it out")
    return Load(**values)


def _rows(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    same = {name: told[name] for name in ("model", "scale", "num_files", "num_bytes")}
    return [
        {
            **same,
            **{name: cell[name] for name in ("way", "readers", "seconds", "share_of_drive")},
            **{name: cell[name] for name in ("cpu_seconds", "pages_before")},
            "time": time_of_day(),
            "id": short_hash(time.time_ns(), cell["way"], cell["readers"]),
            "read_MB_per_second": cell["bytes_per_second"] / 1e6,
            "drive_MB_per_second": told["drive_bytes_per_second"] / 1e6,
        }
        for cell in told["cells"]
    ]
