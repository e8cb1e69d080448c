"""A run of DLIO or mlpstorage: the blocks of a run, and what the tool itself recorded."""

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from dlemu.report.blocks import Block, Lines, Table, Tone, Verdict
from dlemu.report.run import present_run
from dlemu.units import counted

_TONES: Mapping[str, Tone] = {"PASS": "pass", "FAIL": "fail"}


def present_foreign(document: Mapping[str, Any]) -> list[Block]:
    """Return the blocks of a run of another tool, by dlemu's formulas where its steps are known."""
    recorded = Table(heads=("per epoch", "mean", "min", "max"), rows=list(_rows(document)),
                     title=f"as {document['tool']} recorded it")  # fmt: skip
    word = document["told"]["metric"].get("train_au_meet_expectation") or "no word on it"
    lines = [*document["differences"]]
    if document["kind"] == "run":
        said = f"{document['tool']}'s own verdict: {word}"
        return [*present_run(document), recorded, Lines([said, *lines])]
    verdict = document["verdict"]
    title = f"{document['workload']}: {counted(document['num_accelerators'], 'accelerator')}"
    lines += [f"note: {note}" for note in document["notes"]]
    return [
        Verdict(
            f"{verdict}: by {document['tool']}'s own figures ({word})",
            _TONES.get(verdict, "caution"),
        ),
        Lines([title, *lines]),
        recorded,
    ]


def _rows(document: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the rows of the table of what was recorded, and of what a run's table lacks."""
    told, computed = document["told_per_epoch"], document["computed"] or {}
    rows = [
        ("AU (%)", told["train_au_percentage"], ".2f"),
        ("samples/s", told["train_throughput_samples_per_second"], ".2f"),
        ("first step: waiting for other ranks (s)", computed.get("first_barrier_seconds"), ".3f"),
    ]
    if document["kind"] != "run":
        rows.append(("AU by dlemu's formula (%)", computed.get("train_au_percentage"), ".2f"))
    for name, values, form in rows:
        if values:
            figures = (fmean(values), min(values), max(values))
            yield [name, *(format(each, form) for each in figures)]
