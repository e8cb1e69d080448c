"""Documents of earlier versions in today's form: the one place that knows how they were written.

The oldest that are read are of November 22, 2026 (220ebcf). Until November 27, 2026 documents had
sentences where they have findings now. A sentence is kept as it is, in a finding `as_written`;
none is taken apart. What such documents lack beside that follows from the steps of their runs, see
`report.stored`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from dlemu.judge.findings import Finding, fields_of, note, reason, remark, weakens

_SENTENCES = ("reasons", "remarks", "read_ahead", "unlike")
"""Where runs and answers had sentences; the last two had one, or ""."""
_WEAKENS = "BUT"
"""First word of a remark that weakened a verdict: nothing else in the document told it."""
_LIMITS = ("limit", "load_limit")
_OF_A_LIMIT = ("evidence", "advice")


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
    """Return a summary with findings in its limits, and as what tells when checkpoints were due."""
    found = {name: _as_written(summary[name], _OF_A_LIMIT) for name in _LIMITS if name in summary}
    saved = summary.get("checkpoints")
    if isinstance(saved, Mapping) and isinstance(every := saved.get("every"), str):
        kept = {name: each for name, each in saved.items() if name != "every"}
        found["checkpoints"] = {**kept, "due": _finding(every).fields}
    return {**summary, **found}


def answer_of_today(answer: Mapping[str, Any]) -> dict[str, Any]:
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
