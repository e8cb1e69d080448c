"""`dlemu load`: words to what is read, and its table."""

from dlemu.cli.output import Found
from dlemu.cli.progress import Doing, show_progress
from dlemu.cli.words import Words
from dlemu.errors import WorkloadError
from dlemu.terminal import say
from dlemu.tools.model_load import Load, document_of, measure


def main(words: Words) -> Found:
    """Return what `dlemu load` finds."""
    load = load_of(words)
    if load.target is None and not load.files:
        if "--csv" in words.options:
            raise WorkloadError("--csv has a row for each read; name a target, or take --json")
        return Found(document_of(load), apart=False)
    doing = Doing()
    with show_progress("load", lambda: str(doing), on=load.progress == "on"):
        return Found(document_of(load, measure(load, say, doing.begin, doing.add)))


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
