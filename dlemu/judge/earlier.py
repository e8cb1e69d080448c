"""Documents of earlier versions in today's form: the one place that knows how they were written.

The oldest that are read are of November 22, 2026 (220ebcf): runs, several runs, checkpoints and
answers of searches. They name no kind, and have rank 0's host as `place`; a sizing.json of theirs
is one answer, or a list of them. Sweeps of `dlemu paths` and calibrations had files of their own
names, without a summary.json. Until November 27, 2026 documents had sentences where they have
findings now. A sentence is kept as it is, in a finding `as_written`; none is taken apart. What
such documents lack beside that follows from the steps of their runs, see `report.stored`.
"""

from collections.abc import Iterable, Mapping
from datetime import date
from fnmatch import fnmatch
from typing import Any

from dlemu.findings import Finding, fields_of, note, reason, remark, weakens

_SENTENCES = ("reasons", "remarks", "read_ahead", "unlike")
"""Where runs and answers had sentences; the last two had one, or ""."""
_WEAKENS = "BUT"
"""First word of a remark that weakened a verdict: nothing else in the document told it."""
PATHS, CALIBRATIONS = "paths.json", "calibration.*.json"
_LIMITS = ("limit", "load_limit")
_OF_A_LIMIT = ("evidence", "advice")


def is_tools_own(name: str) -> bool:
    """Return whether a tool of an earlier version wrote its result into a file of this name."""
    return name == PATHS or fnmatch(name, CALIBRATIONS)


def tool_of_today(name: str, tree: Any, day: date) -> dict[str, Any]:
    """Return the document of what a tool wrote on a day into a file of its own.

    A file of several calibrations is the last one: each was added to those before. What an
    accelerator asked for, and where two rates of a drive were read, is not in it.
    """
    document = {"status": "complete", "day": day.isoformat()}
    if name == PATHS:
        lacks: dict[str, Any] = {
            "gpu": None,
            "together": [],
            "ceiling": None,
            "ceiling_bytes_per_second": None,
        }
        return {**document, "kind": "paths", "cells": [{**lacks, **cell} for cell in tree]}
    own = {**tree, **tree["calibrations"][-1]}
    del own["calibrations"]
    return {**document, "kind": "calibration", "demand_bytes_per_second": None, **own}


def with_findings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run, several runs, or an answer with `findings`, of whichever version it is."""
    if "findings" in fields:
        return dict(fields)
    kept = {name: each for name, each in fields.items() if name not in _SENTENCES}
    reasons = (reason("as_written", text=text) for text in fields.get("reasons") or ())
    remarks = (
        (weakens if str(text).partition(" ")[0] == _WEAKENS else remark)("as_written", text=text)
        for text in fields.get("remarks") or ()
    )
    notes = (note("as_written", text=fields[name]) for name in _SENTENCES[2:] if fields.get(name))
    return {**kept, "findings": fields_of([*reasons, *remarks, *notes])}


def summary_of_today(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary with its kind, its hosts in `system`, and findings in place of texts.

    Texts were the evidence and advice of its limits, and what tells when checkpoints were due.
    """
    found = {name: _as_written(summary[name], _OF_A_LIMIT) for name in _LIMITS if name in summary}
    if "kind" not in summary and summary.get("command") == "checkpoint":
        found["kind"] = "checkpoint"
    if isinstance(place := summary.get("place"), Mapping):
        found["system"] = _with_place(summary.get("system") or [{}], place)
    saved = summary.get("checkpoints")
    if isinstance(saved, Mapping) and isinstance(every := saved.get("every"), str):
        kept = {name: each for name, each in saved.items() if name != "every"}
        found["checkpoints"] = {**kept, "due": _finding(every).fields}
    return {**summary, **found}


def _with_place(system: Iterable[Any], place: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the hosts with rank 0's storage, and the size of its drive."""
    sizes = {place.get("device"): place.get("size_bytes", 0)}
    hosts = [
        {
            **host,
            "drives": [
                {"size_bytes": sizes.get(drive["name"], 0), **drive}
                for drive in host.get("drives", ())
            ],
        }
        for host in system
    ]
    return [{**place, **hosts[0]}, *hosts[1:]]


def sizing_of_today(tree: Any) -> dict[str, Any]:
    """Return the document of searches, whichever version has written it.

    Raises:
        KeyError, TypeError, ValueError: it is damaged.
    """
    if not isinstance(tree, Mapping) or not {"kind", "answers"} & tree.keys():
        answers = tree if isinstance(tree, list) else [tree]
        tree = {"kind": "sizing", "status": "complete", "tried": None, "answers": answers}
    unfinished = tree.get("unfinished", {}).items()
    return {
        **tree,
        "answers": [_whole_answer(_answer_of_today(each)) for each in tree["answers"]],
        "unfinished": {name: _answer_of_today(search) for name, search in unfinished},
    }


def _whole_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer with the fields that it lacks: by its runs, or as nothing is known."""
    number, points = answer["num_accelerators"], answer["points"]
    tried = {each["num_accelerators"] for each in points}
    lacks = {
        "low": number,
        "high": None if answer["at_least"] else number,
        "is_computed": max(1, number) not in tried,
        "storage_seconds": None,
        "evidence": [],
        "phases": [],
        "first": None,
        "real_h100s": None,
        "conditions": {},
    }
    if "sample_bytes" not in answer:  # nor has it what an accelerator asks for
        moved = sum(each["read_bytes_per_second"] for each in points)
        asked = sum(each["num_accelerators"] * each["au_percentage"] / 100 for each in points)
        lacks["demand_bytes_per_second"] = moved / asked if asked else 0.0
        samples = sum(each["samples_per_second"] for each in points)
        lacks["sample_bytes"] = moved / samples if samples else 0.0
    # A first answer had its range and its evidence below `first`.
    first = _as_written(answer.get("first") or {}, ("evidence",))
    lacks |= {name: first[name] for name in ("low", "high", "evidence") if name in first}
    found = with_findings(answer)
    return found | {name: value for name, value in lacks.items() if name not in found}


def _answer_of_today(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer of sizing.json, or a search that has not ended, in today's form."""
    found: dict[str, Any] = _as_written(answer, ("evidence",))
    if isinstance(bound := found.get("bound"), str):
        found["bound"] = _finding(bound).fields if bound else None
    for name in ("points", "confirmations"):
        if name in found:
            found[name] = [_point_of_today(each) for each in found[name]]
    return found


def _point_of_today(point: Mapping[str, Any]) -> dict[str, Any]:
    return with_findings(_as_written(point, ("evidence",)))


def _as_written(fields: Any, names: Iterable[str]) -> Any:
    """Return the fields with findings in place of the texts that have these names."""
    if not isinstance(fields, Mapping):
        return fields
    texts = {name: text for name in names if isinstance(text := fields.get(name), str)}
    found = {name: [_finding(text).fields] if text else [] for name, text in texts.items()}
    return {**fields, **found}


def _finding(text: str) -> Finding:
    return note("as_written", text=text)
