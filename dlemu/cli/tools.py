"""`dlemu try` and `dlemu doctor`: what needs no workload."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlemu.cli.output import Found
from dlemu.cli.words import Words
from dlemu.config.compose import value_of_word
from dlemu.errors import WorkloadError
from dlemu.terminal import say

if TYPE_CHECKING:
    from dlemu.sizing.answers import Sized
    from dlemu.sizing.first import Trial


def try_folder(words: Words) -> Found:
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
    return Found(document, [answer.workload for answer in answers])


def trial_of(words: Words) -> "Trial":
    """Return what the words of a command line ask for."""
    from dlemu.sizing.first import Trial, load_jobs

    if words.folder is None:
        raise WorkloadError("one folder is needed, on the storage: dlemu try FOLDER")
    jobs: dict[str, Any] = {}
    own: list[str] = []
    for key, text in words.values.items():
        if key.removeprefix("try.") in _DECIDED:
            raise WorkloadError(f"dlemu try decides {key} itself; leave it out")
        if "." in key and not key.startswith(("try.", "output.")):
            jobs[key] = value_of_word(key, text)
        else:
            own.append(f"{key}={text}")
    trial = Trial(folder=words.folder, **Words(own).tree("try"))
    return trial.model_copy(update={"jobs": load_jobs(trial.workloads, jobs)})


_DECIDED = ("dataset.data_folder", "dataset.num_files_train", "reader.odirect", "folder", "jobs")
"""Keys that a try decides itself."""


def doctor(words: Words) -> Found:
    """Return what `dlemu doctor` finds."""
    from dlemu.tools.doctor import Examined, examined, worn

    asked, of_wear = Examined(**words.tree("doctor")), "--wear" in words.options
    for key in words.values:
        if key.removeprefix("doctor.").startswith("reader.") == of_wear:
            remedy = "leave it out" if of_wear else "add it"
            raise WorkloadError(
                f"{key} has no effect with{'' if of_wear else 'out'} --wear; {remedy}"
            )
    here = words.folder
    found = worn(here, asked) if of_wear else examined(here or Path(), asked.reader)
    return Found(found, apart=False)
