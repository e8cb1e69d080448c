"""Golden files: commands, and what they print on results and on a host that never change.

A file of tests/golden/ holds lines that begin with "$ " and, below each, what it prints:

    $ dlemu WORDS      the command, in process; lines on stderr begin with "! "
    $ cat FILE         a file that a command wrote: JSON as flat lines, HTML as its text
    $ render NAME      what a command shows that measures: `RENDERED` of tests/lab/stored.py

tests/refusals.toml holds commands that are refused: a table's name has the first words of all its
entries, an entry the rest and the one line that is printed.

`python -m tests.lab.golden` writes all of it anew: the diff is the review. With names
(`golden run refusals`) it writes these alone.
"""

import contextlib
import importlib.metadata
import io
import json
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from dlemu.cli import main
from dlemu.datagen import write as datagen_write
from dlemu.findings import as_written
from dlemu.host import devices, place, processes, wear
from dlemu.host.devices import BlockDevice
from dlemu.judge import folders, summary
from dlemu.report import stored
from dlemu.run import forecast
from dlemu.storage import probe as storage_probe
from dlemu.tools import doctor
from dlemu.tools.doctor import Check
from tests.lab.commands import SMALL
from tests.lab.settings import QUICK, apply
from tests.lab.stored import MADE, RENDERED, STORED, SYSTEM, VERSIONS, flat

FOLDER = Path(__file__).parents[1] / "golden"
REFUSALS = FOLDER.with_name("refusals.toml")
_PROMPT = "$ "
_LONG_NUMBER = re.compile(r"\b\d+\.\d{8,}(e[+-]\d+)?\b")
_CHECKS = [Check(name, state, *map(as_written, words)) for name, state, *words in MADE["checks"]]
_DISK = shutil._ntuple_diskusage(3_800_000_000_000, 0, 3_800_000_000_000)


def commands_of(text: str) -> list[str]:
    """Return the commands of a golden file."""
    return [line for line in text.splitlines() if line.startswith(_PROMPT)]


def written(text: str) -> str:
    """Return a golden file anew: its commands, run in their order, and what each prints."""
    parts = []
    named = {word.rpartition("=")[2] for line in commands_of(text) for word in line.split()}
    with prepared(named & STORED.keys()) as folder:
        for line in commands_of(text):
            verb, *words = shlex.split(line.removeprefix(_PROMPT))
            shown = _VERBS[verb](words).replace(folder, "/here").rstrip("\n")
            body = "\n".join(each.rstrip() for each in shown.split("\n"))
            parts.append(f"{line}\n{_LONG_NUMBER.sub(_rounded, body)}\n")
    return "\n".join(parts)


@contextlib.contextmanager
def prepared(names: Iterable[str]) -> Iterator[str]:
    """Work on the fixed host in a folder that holds these results; yield its name."""
    with (
        fixed(),
        tempfile.TemporaryDirectory(prefix="golden.") as folder,
        contextlib.chdir(folder),
    ):
        for name in names:
            STORED[name](Path(name))
        yield folder


@dataclass(frozen=True)
class Refusal:
    """A command that was refused, or should have been."""

    words: Sequence[str]
    printed: str
    """As in a golden file."""
    left: Sequence[str]
    """What it has made, or changed the name of."""

    @property
    def lines(self) -> list[str]:
        """What stderr says, but for keys without effect."""
        lines = [each[2:] for each in self.printed.splitlines() if each.startswith("! ")]
        return [each for each in lines if not each.startswith("ignored: ")]


def refused(text: str) -> tuple[str, list[Refusal]]:
    """Return the table of refusals anew, and what each of its commands did."""
    lines, found, first = [], [], ""
    with prepared(STORED) as folder:
        for name in ("empty", "other"):
            Path(name).mkdir()
        for name in ("file", "other/x", "empty.yaml"):
            Path(name).touch()
        _dlemu(["datagen", *SMALL, "dataset.data_folder=data"])
        before = {*map(str, Path().rglob("*"))}
        for line in text.splitlines():
            if line.startswith("["):
                (first,) = tomllib.loads(line)
            elif line and not line.startswith("#"):
                (more,) = tomllib.loads(line)
                words = shlex.split(f"{first} {more}")
                printed = _dlemu(words).replace(folder, "/here")
                now = {*map(str, Path().rglob("*"))}
                found.append(Refusal(words, printed, sorted(now - before)))
                before |= now
                told = " ".join(each.removeprefix("dlemu: ") for each in found[-1].lines)
                line = f"{json.dumps(more)} = {json.dumps(told, ensure_ascii=False)}"
            lines.append(line)
    return "\n".join([*lines, ""]), found


def _rounded(found: re.Match[str]) -> str:
    """Return a number to ten digits: CPUs differ in the last ones of a sum."""
    return f"{float(found[0]):.10g}"


def _dlemu(words: list[str]) -> str:
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = main.run(words)
    text = out.getvalue().rstrip("\n")
    if "--json" in words:
        text = "\n".join(map(flat, _documents(text)))
    lines = [text, *(f"! {line}" for line in errors.getvalue().splitlines() if line)]
    lines += [f"(exit {status})"] if status else []
    return "\n".join(lines if text else lines[1:])


def _documents(text: str) -> Iterator[Any]:
    """Yield the JSON documents of a text, one after the other."""
    decoder = json.JSONDecoder()
    while text := text.lstrip():
        found, end = decoder.raw_decode(text)
        yield found
        text = text[end:]


def _cat(words: list[str]) -> str:
    (path,) = map(Path, words)
    text = path.read_text()
    if path.suffix == ".json":
        return "\n".join(map(flat, _documents(text)))
    return _Page.lines_of(text) if path.suffix == ".html" else text


def _render(words: list[str]) -> str:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        return RENDERED[words[0]](Path(folder))


_VERBS: dict[str, Callable[[list[str]], str]] = {"dlemu": _dlemu, "cat": _cat, "render": _render}


_BLOCKS = {"h1", "h2", "h3", "p", "li", "tr", "dt", "dd", "figure", "summary", "section"}


class _Page(HTMLParser):
    """The text of a page, a line for each block, with the block's tag; curves are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._hidden = 0

    @classmethod
    def lines_of(cls, text: str) -> str:
        page = cls()
        page.feed(text)
        return "\n".join(page.lines)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("style", "script"):
            self._hidden += 1
        elif tag in _BLOCKS:
            kind = dict(attrs).get("class")
            self.lines.append(f"{tag}{f'.{kind}' if kind else ''}:")
        elif tag in ("path", "circle") and self.lines:
            self.lines[-1] += f" <{tag}>"

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("style", "script")

    def handle_data(self, data: str) -> None:
        if data.strip() and not self._hidden and self.lines:
            first, *more = data.strip().splitlines()
            # All keys of a workload are many; they change with each key that there is.
            text = f"{first} and {len(more) // 100} hundred lines" if len(more) > 100 else data
            self.lines[-1] += f" {' '.join(text.split())} |"


# --- the host that never was ----------------------------------------------------------------------


@contextlib.contextmanager
def fixed() -> Iterator[None]:
    """Give this process a host, a clock, a locale and versions that are always the same."""
    memory: int = SYSTEM["memory_bytes"]
    real, own = importlib.metadata.version, doctor._devices
    fakes: dict[Any, Any] = {
        summary.time_of_day: lambda: "2026-01-02T03:04:05+00:00",
        processes.usable_cpus: lambda *_, **__: SYSTEM["cpus"],
        processes.memory_bytes: lambda: memory,
        processes.host_memory_bytes: lambda **_: (memory, "MemTotal"),
        place.find_host: lambda folder, **_: SYSTEM,
        folders.versions: lambda: VERSIONS,
        doctor.examine: lambda folder, **_: iter(_CHECKS),
        forecast.probe_dataset: lambda *_, **__: 6e9,
        storage_probe.probe_writing: lambda *_, **__: 2e9,
        datagen_write.write_rate: lambda *_: 2e9,
        stored.written_at: lambda folder: 1_767_323_045.0,
        wear.lifetime: lambda device: MADE["lifetime"],
        devices.devices_under: lambda *_, **__: [],
        devices.lies_in_memory: lambda *_, **__: False,
        own: lambda path: [BlockDevice("nvme1n1", ())] if path == Path() else own(path),
        real: lambda name: "1.2.3" if name == "dlemu" else real(name),
    }
    with pytest.MonkeyPatch.context() as patch, swapped(fakes):
        for name, value in {"TZ": "UTC", "COLUMNS": "100", "NO_COLOR": "1", "LC_ALL": "C"}.items():
            patch.setenv(name, value)
        patch.setattr(importlib.metadata, "version", fakes[real])
        patch.setattr(socket, "gethostname", lambda: "node1")
        patch.setattr(os, "cpu_count", lambda: 16)
        patch.setattr(shutil, "disk_usage", lambda path: _DISK)
        patch.setattr(time, "time_ns", lambda: 10**18)
        yield


@contextlib.contextmanager
def swapped(fakes: dict[Any, Any]) -> Iterator[None]:
    """Put functions in the place of others wherever a module of the product names them."""
    _swap(fakes)
    try:
        yield
    finally:  # modules that were imported meanwhile have taken the fakes
        _swap({fake: own for own, fake in fakes.items()})


def _swap(pairs: dict[Any, Any]) -> None:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "dlemu":
            for key, value in list(vars(module).items()):
                if isinstance(value, FunctionType) and value in pairs:
                    setattr(module, key, pairs[value])


def write_anew(names: Sequence[str]) -> None:
    """Write the files of these names anew, all of them without a name."""
    apply(QUICK)
    for path in sorted(FOLDER.glob("*.txt")):
        if not names or path.stem in names:
            path.write_text(written(path.read_text()))
    if not names or REFUSALS.stem in names:
        REFUSALS.write_text(refused(REFUSALS.read_text())[0])


if __name__ == "__main__":
    write_anew(sys.argv[1:])
