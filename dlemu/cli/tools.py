"""`dlemu try` and `dlemu doctor`: what needs no workload."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlemu.cli.scripts import SIZE, Script, json_text, size_row
from dlemu.cli.words import Words
from dlemu.config.compose import value_of_word
from dlemu.errors import WorkloadError
from dlemu.report.text import answer_of
from dlemu.terminal import answer, say

if TYPE_CHECKING:
    from dlemu.sizing.answers import Sized
    from dlemu.sizing.first import Trial


def try_folder(words: Words) -> int:
    """Run `dlemu try`; return the exit status."""
    from dlemu.report.sizing import present_sizing, write_table
    from dlemu.sizing.answers import document_of
    from dlemu.sizing.first import try_storage

    trial, script = trial_of(words), Script.of(words, SIZE)

    def keep(answers: "list[Sized]") -> None:
        write_table(answers[0].folder, document_of(answers, trial.folder))

    answers = try_storage(trial, say, on_answer=keep)
    document = document_of(answers, trial.folder)
    if trial.keep:
        say(f"kept: {trial.folder / 'dlemu-try'}")
    say(f"results: {answers[0].folder}")
    say(answer_of(present_sizing(document), apart=True))
    script.tell(document, list(map(size_row, answers)))
    return 0


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


def doctor(words: Words) -> int:
    """Run `dlemu doctor`; return the exit status."""
    from dlemu.report.tools import present_doctor, present_wear
    from dlemu.tools.doctor import Examined, examined, worn

    asked, of_wear = Examined(**words.tree("doctor")), "--wear" in words.options
    for key in words.values:
        if key.removeprefix("doctor.").startswith("reader.") == of_wear:
            remedy = "leave it out" if of_wear else "add it"
            raise WorkloadError(
                f"{key} has no effect with{'' if of_wear else 'out'} --wear; {remedy}"
            )
    if of_wear:
        document = worn(words.folder, asked)
        say(answer_of(present_wear(document)))
    else:
        document = examined(words.folder or Path(), asked.reader)
        say(answer_of(present_doctor(document)))
    if "--json" in words.options:
        answer(json_text(document))
    return 1 if document.get("problems") else 0
