"""`dlemu try`: words to a trial, and its answers as text."""

from collections.abc import Sequence

from dlemu.cli.scripts import SIZE, Script, size_row
from dlemu.cli.values import (
    Read,
    key_of_workload,
    list_of,
    number,
    one_folder,
    path_of,
    read_values,
    truth,
)
from dlemu.cli.words import FOR_SCRIPTS, Words, parse
from dlemu.errors import WorkloadError
from dlemu.report.sizing import present_sizing, write_tables
from dlemu.report.text import answer_of
from dlemu.sizing.answers import Sized, document_of
from dlemu.sizing.first import WORKLOADS, Trial, load_workloads, try_storage
from dlemu.terminal import keep_stdout, say
from dlemu.units import parse_bytes

HELP = """\
dlemu try FOLDER [key=value ...]

A first answer for the storage under a folder, in three minutes: how many accelerators of each of
three workloads it feeds, what limits them, and the command of a full measurement. The files that
are read lie in FOLDER/dlemu-try and are removed in the end; a dataset of dlemu's that is in FOLDER,
or one level below it, is read instead where it fits. dlemu report shows the answer again.

  seconds=180          about how long it may take, 10 to 3600
  max_bytes=8GiB       most bytes of files that are written; less where space is short
  keep=true            leave the files for another try
  workloads=A,B        unet3d_h100,resnet50_h100,cosmoflow_h100
  output.folder=NAME   for sizing.json, the tables and the runs; outputs/try/<date>-<time>
  reader.… train.…     any key of a workload, for all of them: reader.data_loader=threads

  --json               the answers as JSON
  --csv FILE           a row for each answer, as of dlemu size; --label TEXT is its column label
"""

WORDS = FOR_SCRIPTS


def main(arguments: Sequence[str]) -> int:
    """Run `dlemu try` with its arguments; return the exit status."""
    words = parse(arguments, WORDS)
    trial, script = trial_of(words), Script.of(words, SIZE)
    with keep_stdout(script.as_json):

        def keep(answers: list[Sized]) -> None:
            write_tables(answers[0].folder, document_of(answers, trial.folder))

        answers = try_storage(trial, say, on_answer=keep)
        document = document_of(answers, trial.folder)
        if trial.keep:
            say(f"kept: {trial.folder / 'dlemu-try'}")
        say(f"results: {answers[0].folder}")
        say(answer_of(present_sizing(document), apart=True))
        script.tell(document, list(map(size_row, answers)))
    return 0


def trial_of(words: Words) -> Trial:
    """Return what the words of a command line ask for."""
    folder = one_folder(words.others)
    if folder is None:
        raise WorkloadError("one folder is needed, on the storage: dlemu try FOLDER")
    given = {key.lstrip("+").removeprefix("try."): text for key, text in words.values.items()}
    of_job = {key for key in given if "." in key and key not in (*KEYS, *_NOT_HERE)}
    jobs = {key: key_of_workload(key, given.pop(key)) for key in sorted(of_job)}
    values = read_values(given, KEYS)
    names = values.pop("workloads", WORKLOADS)
    if not names:
        raise WorkloadError(f"workloads= names none; write workloads={','.join(WORKLOADS)}")
    if "output.folder" in values:
        values["output"] = str(values.pop("output.folder"))
    return Trial(folder=folder, workloads=load_workloads(names, jobs), **values)


KEYS: dict[str, Read] = {
    "seconds": number,
    "max_bytes": parse_bytes,
    "keep": truth,
    "workloads": lambda text: list_of(str)(text.strip("[]")),
    "output.folder": path_of("output.folder"),
}
"""How each key's value is read."""
_NOT_HERE = ("dataset.data_folder", "dataset.num_files_train", "reader.odirect")
"""Keys of a workload that a try decides itself."""
