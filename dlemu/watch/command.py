"""`dlemu watch`: run a command as it is, and leave the folder of a run beside it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dlemu.config.sections import Share
from dlemu.config.types import Arguments, Section
from dlemu.errors import DlemuError, RunError, WorkloadError, system_line
from dlemu.judge.folders import first_fields, recorded
from dlemu.judge.records import write_config, write_steps, write_text
from dlemu.ranks.world import Alone
from dlemu.watch import launch
from dlemu.watch.document import Seen, document_of, see, workload_yaml

WORKLOAD = "workload.yaml"
"""The workload of a watched job, in the job's folder."""
_JOURNAL = "journal"


class WatchMetric(Section, strict=False):
    """When a watched job passes."""

    au: Share | None = None
    """Least accelerator utilisation that passes, as 0.9 or 90%. None: the AU is told, and no
    verdict is given."""


class WatchOutput(Section, strict=False):
    """Where the results of a watched job go."""

    folder: str | None = None
    """Folder for the results; None: a new one below outputs/watch/."""


class WatchArguments(Arguments):
    """How a job is watched."""

    name: str = ""
    """Name of the job and of its workload; "": that of its script."""
    folder: str | None = None
    """Where the files of the data lie, if neither the dataset nor open files tell."""
    metric: WatchMetric = WatchMetric()
    output: WatchOutput = WatchOutput()


@dataclass(frozen=True)
class Result:
    """What came of a watched command."""

    status: int
    """Its own exit status."""
    folder: Path
    document: Any
    """None where nothing could be measured."""
    problem: str = ""
    """Why not."""


def watch(command: Sequence[str], asked: WatchArguments) -> Result:
    """Run a command, measure the training in it, and write its folder.

    Raises:
        WorkloadError: the command cannot be watched, or the results cannot be written. It was not
            started then.
        RunError: it cannot be started.
    """
    launch.check(command)
    data = [] if asked.folder is None else [Path(asked.folder)]
    for folder in data:
        if not folder.is_dir():
            raise WorkloadError(f"folder {folder} is no folder; name the one with the job's data")
    watched: launch.Watched | None = None
    result: Result | None = None
    try:
        with recorded(asked.output.folder, "watch", Alone()) as record:
            journal = record.folder / _JOURNAL
            journal.mkdir(exist_ok=True)
            if any(journal.iterdir()):
                raise WorkloadError(
                    f"output.folder {record.folder} holds a watched job already; name another"
                )
            watched = launch.run(command, journal, data=data)
            result = Result(watched.status, record.folder, None)
            name = asked.name or name_of(command)
            seen = see(watched, name, asked.metric.au, next(iter(data), None))
            first = first_fields("run", seen.workload, Alone())
            document = document_of(seen, first, command)
            _write(record.folder, seen)
            record.complete(document)
            return Result(watched.status, record.folder, document)
    except (DlemuError, OSError) as error:
        if result is None:
            raise
        why = system_line(error) if isinstance(error, OSError) else str(error)
        kept = RunError(f"{why}; what was written down is in {result.folder}")
        return replace(result, problem=str(kept))


def _write(folder: Path, seen: Seen) -> None:
    """Write the records, the workload as it was, and the one to emulate."""
    for rank in np.unique(seen.steps["accelerator"]).tolist():
        write_steps(folder, rank, seen.steps[seen.steps["accelerator"] == rank])
    write_config(folder, seen.workload)
    write_text(folder / WORKLOAD, workload_yaml(seen))


def name_of(command: Sequence[str]) -> str:
    """Return a name for a job: that of its script, of its module, or of its program."""
    words = [os.path.basename(word) for word in command]
    scripts = [word.removesuffix(".py") for word in words if word.endswith(".py")]
    if scripts:
        return _plain(scripts[0])
    python = [n for n, word in enumerate(words) if word.startswith("python")]
    if python and "-m" in words[python[0] :]:
        after = words[python[0] :]
        module = after[after.index("-m") + 1 : after.index("-m") + 2]
        return _plain(module[0].rpartition(".")[2]) if module else "watched"
    return _plain(words[0])


def _plain(word: str) -> str:
    kept = "".join(c if (c.isalnum() and c.isascii()) or c in "_-." else "_" for c in word)
    return kept.strip("._-") or "watched"
