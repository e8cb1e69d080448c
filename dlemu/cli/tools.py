"""`dlemu try`, `dlemu doctor` and `dlemu load`: what needs no workload."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlemu.cli.output import CommandResult
from dlemu.cli.progress import Doing, show_progress
from dlemu.cli.words import Words
from dlemu.config.compose import value_of_word
from dlemu.errors import WorkloadError
from dlemu.ranks.world import Alone
from dlemu.report.words import telling
from dlemu.storage.place import path_of
from dlemu.terminal import say

if TYPE_CHECKING:
    from dlemu.sizing.answers import Sized
    from dlemu.sizing.first import Trial
    from dlemu.tools.model_load import Load


def try_folder(words: Words) -> CommandResult:
    """Return what `dlemu try` finds."""
    from dlemu.report.sizing import write_table
    from dlemu.sizing.answers import document_of
    from dlemu.sizing.first import try_storage

    trial = trial_of(words)

    def keep(answers: "list[Sized]") -> None:
        write_table(answers[0].folder, document_of(answers, trial.folder))

    answers = try_storage(trial, say, on_answer=keep)
    folder = answers[0].folder
    if trial.keep:
        say(f"kept: {trial.folder / 'dlemu-try'}")
    say(f"results: {folder}")
    document = {"folder": str(folder), **document_of(answers, trial.folder)}
    return CommandResult(document, [answer.workload for answer in answers])


def trial_of(words: Words) -> "Trial":
    """Return what the words of a command line ask for."""
    from dlemu.sizing.first import Trial, load_jobs

    if len(words.others) != 1:
        got = f", got {', '.join(words.others)}" if words.others else ""
        raise WorkloadError(f"one folder is needed, on the storage: dlemu try FOLDER{got}")
    jobs: dict[str, Any] = {}
    own: list[str] = []
    if {"workload", "workloads"} <= words.values.keys():
        raise WorkloadError("workload and workloads are one key of dlemu try; keep one")
    for key, text in words.values.items():
        if key.removeprefix("try.") in _DECIDED:
            raise WorkloadError(f"dlemu try decides {key} itself; leave it out")
        if "." in key and not key.startswith(("try.", "output.")):
            jobs[key] = value_of_word(key, text)
        else:
            # One is named as other commands have it.
            own.append(f"{'workloads' if key == 'workload' else key}={text}")
    place = path_of(words.others[0], "folder")
    trial = Trial(folder=place, **Words(own).tree("try"))
    return trial.model_copy(update={"jobs": load_jobs(trial.workloads, jobs)})


_DECIDED = ("dataset.data_folder", "dataset.num_files_train", "reader.odirect", "folder", "jobs")
"""Keys that a try decides itself."""


def doctor(words: Words) -> CommandResult:
    """Return what `dlemu doctor` finds."""
    from dlemu.tools.doctor import DoctorArguments, examined, worn

    asked, of_wear = DoctorArguments(**words.tree("doctor")), "--wear" in words.options
    for key in words.values:
        if key.removeprefix("doctor.").startswith(("reader.", "dali.")) == of_wear:
            remedy = "leave it out" if of_wear else "add it"
            raise WorkloadError(
                f"{key} has no effect with{'' if of_wear else 'out'} --wear; {remedy}"
            )
    here = path_of(words.others[0], "FOLDER") if len(words.others) == 1 else words.folder
    found = (
        worn(here, asked) if of_wear else examined(here or Path(), asked.reader, asked.dali.device)
    )
    return CommandResult(found, apart=False)


def watch(words: Words) -> CommandResult:
    """Return what `dlemu watch` finds; the exit status is that of the command."""
    from dlemu.watch.command import WatchArguments, watch

    if len(words.others) > len(words.behind):
        first = words.others[0]
        raise WorkloadError(
            f"{first!r} stands before the --; write dlemu watch [key=value ...] -- {first} ..."
        )
    result = watch(words.behind, WatchArguments(**words.tree("watch")))
    if result.document is None:
        error = {"kind": "error", "error": result.problem}
        return CommandResult(error, status=result.status)
    document = {"folder": str(result.folder), **result.document}
    return CommandResult(document, status=result.status)


def load(words: Words) -> CommandResult:
    """Return what `dlemu load` finds."""
    from dlemu.judge.folders import recorded
    from dlemu.judge.records import read_summary
    from dlemu.tools.model_load import document_of, measure

    asked = load_of(words)
    if asked.target is None and not asked.files:
        if "--csv" in words.options:
            raise WorkloadError("--csv has a row for each read; name a target, or take --json")
        return CommandResult(document_of(asked), apart=False)
    doing = Doing()
    with (
        show_progress("load", lambda: str(doing), on=asked.progress == "on"),
        recorded(asked.output, "load", Alone(), key="output") as record,
    ):
        record.complete(document_of(asked, measure(asked, telling(say), doing.begin, doing.add)))
        return CommandResult({"folder": str(record.folder), **read_summary(record.folder)})


def load_of(words: Words) -> "Load":
    """Return what words mean."""
    from dlemu.tools.model_load import Load

    values = words.tree("load")
    if (folder := words.folder) is not None:
        key = "target" if "model" in values else "files"
        if values.setdefault(key, str(folder)) != str(folder):
            raise WorkloadError(f"{folder} is the {key}, and {key}={values[key]}; keep one")
    if "model" in values and "files" in values:
        raise WorkloadError("model and files exclude each other; give one of them")
    if "model" not in values and "files" not in values:
        Load.refuse_unknown(key.removeprefix("load.") for key in words.values)
        raise WorkloadError(
            "no model; write dlemu load model=llama2_70b, or the FOLDER of a model's files"
        )
    idle = {"target", "scale", "keep"} & values.keys() if "files" in values else set()
    if idle:
        raise WorkloadError(f"{', '.join(sorted(idle))} has no effect with files=; leave it out")
    return Load(**values)
