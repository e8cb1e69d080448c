"""`dlemu paths`: words to a plan, and its cells as a table and files."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dlemu.cli.progress import show_progress, waiting
from dlemu.cli.words import parse
from dlemu.errors import WorkloadError, did_you_mean
from dlemu.paths.blocks import DATA_PATHS, PATTERNS
from dlemu.paths.report import render_table, write_report
from dlemu.paths.sweep import Sweep, run_paths
from dlemu.terminal import say
from dlemu.units import parse_bytes
from dlemu.workload.compose import refuse_tilde

HELP = """\
dlemu paths FOLDER [key=value ...]

Measure the data paths of a folder side by side: page cache, O_DIRECT, O_DIRECT with a copy to the
GPU, and cuFile (GPUDirect Storage). Writes files named dlemu_paths.<n> into the folder and removes
them. The same command goes on where it was interrupted.

  target=/mnt/d1,/mnt/d2   folders, instead of FOLDER
  seconds=45               of each measurement
  io_sizes=4KiB,1MiB       4, 16, 64, 128, 512, 1024, 4096 KiB
  workers=8,32             8
  patterns=seq_read,...    seq_read,random_read; also {seq,random}_write and, half each, _mix
  paths=host_direct,...    all that work here, of host_buffered, host_direct,
                           host_direct_gpu_copy, cufile
  file_size=2GiB           of each worker's file; less where space is short
  output=outputs/paths     cells.jsonl, paths.csv, paths.json, paths.txt, paths.png, paths.svg
  progress=on              off: do not show on stderr what is being measured
"""


def main(arguments: Sequence[str]) -> int:
    """Run `dlemu paths` with its arguments; return the exit status."""
    plan = parse_plan(arguments)
    wanted = parse(arguments).values.get("progress") != "off"
    doing = [("starting", time.perf_counter())]

    def begin(text: str) -> None:
        doing[0] = (text, time.perf_counter())

    with show_progress("paths", lambda: waiting(*doing[0]), on=wanted):
        cells = run_paths(plan, say, begin)
    say(f"\n{render_table(cells)}")
    if not write_report(cells, plan.output):
        say("no plot: matplotlib is missing; pip install 'dlemu[plot]'")
    say(f"\n{plan.output}/paths.csv, paths.json, paths.txt")
    return 0


def parse_plan(arguments: Sequence[str]) -> Sweep:
    """Return the plan that command-line arguments mean."""
    words = parse(arguments)
    values: dict[str, Any] = {}
    if words.others:
        values["targets"] = (Path(words.others[-1]),)
    for key, text in words.values.items():
        if key not in _KEYS:
            hint = did_you_mean(key, _KEYS) or f"; there is {', '.join(_KEYS)}"
            raise WorkloadError(f"unknown key {key}{hint}")
        try:
            values["targets" if key == "target" else key] = _KEYS[key](text)
        except ValueError as error:
            raise WorkloadError(f"{key}={text}: {error}") from None
    values.pop("progress", None)
    if "targets" not in values:
        raise WorkloadError("no folder to measure; write dlemu paths FOLDER")
    return Sweep(**values)


def _list_of(read: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    return lambda text: tuple(read(item) for item in text.split(",") if item)


def _one_of(choices: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text} is none of {', '.join(choices)}")
        return text

    return read


def _path_of(key: str) -> Callable[[str], Path]:
    def read(text: str) -> Path:
        refuse_tilde(key, text)
        return Path(text)

    return read


_KEYS: dict[str, Callable[[str], Any]] = {
    "target": _list_of(_path_of("target")),
    "output": _path_of("output"),
    "seconds": float,
    "io_sizes": _list_of(parse_bytes),
    "workers": _list_of(int),
    "patterns": _list_of(_one_of(PATTERNS)),
    "paths": _list_of(_one_of(DATA_PATHS)),
    "file_size": parse_bytes,
    "progress": _one_of(("on", "off")),
}
"""How each key's value is read."""
