"""`dlemu load`: words to what is read, and its table."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dlemu.cli.progress import Doing, show_progress
from dlemu.cli.scripts import Script, short_hash
from dlemu.cli.values import (
    Read,
    list_of,
    number,
    on_or_off,
    one_of,
    path_of,
    read_values,
    truth,
    whole,
)
from dlemu.cli.words import FOR_SCRIPTS, Words, parse
from dlemu.errors import WorkloadError
from dlemu.load.measure import Load, document_of, measure
from dlemu.load.models import find_drive, find_model, known_drives, known_models
from dlemu.load.reading import WAYS
from dlemu.report.load import present_load
from dlemu.report.text import answer_of
from dlemu.results.summary import time_of_day
from dlemu.terminal import keep_stdout, say

HELP = f"""\
dlemu load model=NAME [target=FOLDER] [key=value ...]
dlemu load files=FILE,FILE... [key=value ...]

How long an inference server waits until a model's files are read, once and cold. Without a target:
by arithmetic, from the datasheets of drives. With one, the files are written there and removed
again. Before each read the files are dropped from the page cache, and it is checked that none of
their pages is left.

  model=llama2_70b         {", ".join(known_models()[:5])},
                           {", ".join(known_models()[5:])}
  target=/mnt/nvme         folder on the drive; the files lie in dlemu_load.<model> there
  files=a,b                files that are there, instead of a model; * and ? as in a shell
  scale=0.01               write and read this share of each file (1); the answer says so
  keep=true                leave the files; the next command finds them
  readers=1,4,16           threads that read at once
  ways=mmap,pread,...      all that work here, of {", ".join(WAYS)}
  drive=d7_ps1010          compare with this datasheet instead of a probe; there is
                           {", ".join(known_drives())}
  drives=1                 number of such drives
  progress=on              off: do not show on stderr what is being read
  --json                   print one document, and nothing else
  --csv FILE               append a row for each read; --label TEXT goes into a column
"""

WORDS = FOR_SCRIPTS
COLUMNS = (
    *("time", "id", "label", "model", "scale", "num_files", "num_bytes", "way", "readers"),
    *("seconds", "read_MB_per_second", "share_of_drive", "drive_MB_per_second"),
    *("cpu_seconds", "pages_before", "dlemu_version"),
)
"""Of --csv; new ones come last."""


def main(arguments: Sequence[str]) -> int:
    """Run `dlemu load` with its arguments; return the exit status."""
    words = parse(arguments, WORDS)
    load = load_of(words)
    script = Script.of(words, COLUMNS)
    with keep_stdout(script.as_json):
        if load.target is None and not load.files:
            if script.table is not None:
                raise WorkloadError("--csv has a row for each read; name a target, or take --json")
            document = document_of(load)
            say(answer_of(present_load(document)))
            script.tell(document, ())
            return 0
        doing = Doing()
        wanted = words.values.get("progress") != "off"
        with show_progress("load", lambda: str(doing), on=wanted):
            document = document_of(load, measure(load, say, doing.begin, doing.add))
        say(answer_of(present_load(document), apart=True))
        script.tell(document, _rows(document))
    return 0


def load_of(words: Words) -> Load:
    """Return what words mean."""
    if words.others:
        raise WorkloadError(f"{words.others[0]!r} is no key=value; write target={words.others[0]}")
    given = {key.removeprefix("load."): text for key, text in words.values.items()}
    values = read_values(given, KEYS)
    values.pop("progress", None)
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


def _files(text: str) -> tuple[Path, ...]:
    """Return the files of a list of names and patterns, in the order of their names."""
    found: list[Path] = []
    for name in filter(None, text.split(",")):
        path = path_of("files")(name)
        matching = sorted(path.parent.glob(path.name)) if {*"*?["} & {*path.name} else [path]
        if not matching:
            raise ValueError(f"{name} matches no file")
        found += matching
    if not found:
        raise ValueError("no file is named")
    return tuple(found)


KEYS: dict[str, Read] = {
    "model": find_model,
    "target": path_of("target"),
    "files": _files,
    "scale": number,
    "keep": truth,
    "readers": list_of(whole),
    "ways": list_of(one_of(*WAYS)),
    "drive": find_drive,
    "drives": whole,
    "progress": on_or_off,
}
"""How each key's value is read."""
