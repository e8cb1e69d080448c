"""A document as blocks, whichever command has made it, and the exit status that follows from it."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dlemu.judge.summary import DocumentKind
from dlemu.plugins import named_by
from dlemu.report.blocks import Block, CommandLine, Document, Lines

_PRESENT: Mapping[DocumentKind, str] = {
    "cached prediction": "predict:present_cached",
    "calibration": "predict:present_calibration",
    "checkpoint": "checkpoint:present_checkpoint",
    "checkpoint prediction": "checkpoint:present_predicted_checkpoint",
    "comparisons": "compare:present_comparisons",
    "dataset": "tools:present_dataset",
    "datasize": "tools:present_datasize",
    "doctor": "tools:present_doctor",
    "foreign": "foreign:present_foreign",
    "load": "tools:present_load",
    "needs": "predict:present_needs",
    "paths": "paths:present_paths",
    "plan": "tools:present_plan",
    "prediction": "predict:present_prediction",
    "predictions": "predict:present_predictions",
    "results": "listing:present_listing",
    "run": "run:present_run",
    "runs": "run:present_runs",
    "several needs": "predict:present_several_needs",
    "sizing": "sizing:present_sizing",
    "steptime": "tools:present_steptime",
    "verify": "tools:present_verify",
    "wear": "tools:present_wear",
}
"""By kind of document, the module of this folder and the function that makes blocks of it. It is
imported when it is needed."""
EXIT_STATUS = {"PASS": 0, "NO VERDICT": 1, "FAIL": 2}
_NAME_FOLDER = ("checkpoint", "foreign", "load", "paths", "run", "runs", "steptime")
"""Kinds that end with the folder of their files."""


def present(document: Document) -> list[Block]:
    """Return the blocks of a document; `folder`, where it has one, is that of its files."""
    kind: DocumentKind = document["kind"]
    blocks: list[Block] = list(named_by(f"dlemu.report.{_PRESENT[kind]}")(document))
    if "tool" in document:
        from dlemu.report.foreign import present_recorded

        blocks += present_recorded(document)
    return [*blocks, *files_of(document)]


def files_of(document: Document) -> Iterator[Block]:
    """Yield what a result's folder and those beside it hold: runs that did not end, the files."""
    if document["kind"] not in _NAME_FOLDER or "folder" not in document:
        return
    from dlemu.report.stored import attempts_of, cut_runs

    folder = Path(document["folder"])
    for path in cut_runs(folder, document.get("runs", ())) if document["kind"] == "runs" else ():
        yield CommandLine(f"{path.name} did not end", shlex.join(["dlemu", "report", str(path)]))
    if attempts := attempts_of(folder):
        yield Lines([f"earlier attempts, which did not end: {', '.join(map(str, attempts))}"])
    if "watched" in document:
        from dlemu.report.watched import next_commands

        yield from next_commands(document, folder)
    yield CommandLine("results", str(folder))


def status_of(document: Document) -> int:
    """Return a command's exit status: 0 passed, 1 no verdict or no end, 2 under the threshold."""
    if any(document.get(name) for name in ("problems", "unfinished", "incomplete")):
        return 1
    match document["kind"]:
        case "sizing":
            by_rule = [answer for answer in document["answers"] if not answer.get("first")]
            return 2 if any(answer["num_accelerators"] == 0 for answer in by_rule) else 0
        case "comparisons":
            return 2 if document["losses"] else 0
        case _:
            parts = [document] if "verdict" in document else document.get("runs", ())
            return worst([EXIT_STATUS.get(str(part["verdict"]), 0) for part in parts])


def worst(statuses: Sequence[int]) -> int:
    """Return the exit status of several results: an error goes before a failure."""
    return next(status for status in (1, 2, 0) if status in {0, *statuses})
