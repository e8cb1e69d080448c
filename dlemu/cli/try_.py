"""`dlemu try`: words to a trial, and its answers as text."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from dlemu.cli.words import parse
from dlemu.errors import WorkloadError, did_you_mean
from dlemu.sizing.first import WORKLOADS, Trial, load_workloads, try_storage
from dlemu.terminal import Answer, say
from dlemu.units import parse_bytes
from dlemu.workload.compose import refuse_tilde

HELP = """\
dlemu try FOLDER [key=value ...]

A first answer for the storage under a folder, in three minutes: how many accelerators of each of
three workloads it feeds, with an interval, and the commands of the full measurement. The files that
are read lie in FOLDER/dlemu-try and are removed in the end; a dataset of dlemu's that is in FOLDER,
or one level below it, is read instead where it fits.

  seconds=180          about how long it may take, 10 to 3600
  max_bytes=8GiB       most bytes of files that are written; less where space is short
  keep=true            leave the files for another try
  workloads=A,B        unet3d_h100,resnet50_h100,cosmoflow_h100
  output.folder=NAME   for try.json and the runs; outputs/try/<date>-<time>
  reader.… train.…     any key of a workload, for all of them: reader.data_loader=threads
"""


def main(arguments: Sequence[str]) -> int:
    """Run `dlemu try` with its arguments; return the exit status."""
    trial = parse_trial(arguments)
    found = try_storage(trial, say)
    say(Answer(f"\n{found}\n"))
    if trial.keep:
        say(f"kept: {trial.folder / 'dlemu-try'}")
    say(f"results: {found.results}")
    return 0


def parse_trial(arguments: Sequence[str]) -> Trial:
    """Return what command-line arguments ask for."""
    words = parse(arguments)
    if len(words.others) != 1:
        raise WorkloadError("one folder is needed, on the storage: dlemu try FOLDER")
    values: dict[str, Any] = {}
    keys: dict[str, Any] = {}
    names: Sequence[str] = WORKLOADS
    for key, text in words.values.items():
        key = key.lstrip("+").removeprefix("try.")
        if key == "workloads":
            names = tuple(name for name in text.strip("[]").split(",") if name)
        elif key in _KEYS:
            name, read = _KEYS[key]
            try:
                values[name] = read(text)
            except ValueError as error:
                raise WorkloadError(f"{key}={text}: {error}") from None
        elif "." in key and key not in _NOT_HERE:
            keys[key] = yaml.safe_load(text)
        else:
            hint = did_you_mean(key, _KEYS) or " (dlemu try --help lists them)"
            raise WorkloadError(f"{key} is no key of dlemu try{hint}")
    folder = Path(words.others[0])
    return Trial(folder=folder, workloads=load_workloads(names, keys), **values)


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("must be true or false")
    return text == "true"


def _path(text: str) -> str:
    refuse_tilde("output.folder", text)
    return text


_KEYS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "seconds": ("seconds", float),
    "max_bytes": ("max_bytes", parse_bytes),
    "keep": ("keep", _flag),
    "output.folder": ("output", _path),
}
"""For each key the field of Trial, and how its value is read."""
_NOT_HERE = ("dataset.data_folder", "dataset.num_files_train", "reader.odirect")
