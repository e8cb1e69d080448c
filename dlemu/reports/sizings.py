"""Stored sizings: the answers of `dlemu size` and `dlemu try`, and searches that did not end."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from dlemu.errors import DAMAGE, RunError, in_short
from dlemu.reports.rows import ResultRow
from dlemu.results.facts import conditions_of
from dlemu.storage.regular import read_regular

ANSWER = "sizing.json"
_LOG = "*.jsonl"

Document = Mapping[str, Any]
"""The content of sizing.json, and `unfinished`."""
_OF_A_RUN = {"num_accelerators", "au_percentage", "samples_per_second", "read_bytes_per_second"}
"""Numbers of a run that are shown."""


@dataclass(frozen=True)
class StoredSizing:
    """What a folder of `dlemu size` holds."""

    folder: Path
    summary: Document
    """sizing.json, and the searches that did not end."""

    @property
    def status(self) -> int:
        """As `dlemu size` exits: 2 if one accelerator alone fails; 1 if a search did not end."""
        if self.summary["unfinished"]:
            return 1
        by_rule = [answer for answer in self.summary["answers"] if not answer["first"]]
        return 2 if any(answer["num_accelerators"] == 0 for answer in by_rule) else 0

    @property
    def rows(self) -> Sequence[ResultRow]:
        """A row for each answer."""
        return [_row_of(self.folder, answer) for answer in self.summary["answers"]]


def is_sizing(folder: Path) -> bool:
    """Return whether a folder holds a sizing, ended or not."""
    return (folder / ANSWER).is_file() or ((folder / "runs").is_dir() and any(folder.glob(_LOG)))


def read_sizing(folder: Path) -> StoredSizing:
    """Return the sizing in a folder.

    Raises:
        RunError: a file is damaged.
    """
    tree = read_document(folder / ANSWER) if (folder / ANSWER).exists() else {"answers": []}
    known = {f"{answer['target']}.{answer['workload']}" for answer in tree["answers"]}
    unfinished = {
        path.stem: {"points": _read_points(path), "conditions": conditions_of(folder, path.stem)}
        for path in sorted(folder.glob(_LOG))
        if path.stem not in known
    }
    if not tree["answers"] and not any(each["points"] for each in unfinished.values()):
        raise RunError(f"{folder}: no answer, and no run of the search is complete")
    sizing = StoredSizing(folder, {"kind": "sizing", **tree, "unfinished": unfinished})
    try:
        assert sizing.rows is not None
    except DAMAGE as error:
        raise RunError(f"{folder / ANSWER} is damaged: {in_short(error)}") from None
    return sizing


def read_document(path: Path) -> Mapping[str, Any]:
    """Return the content of a sizing.json.

    Raises:
        RunError: it is damaged.
    """
    try:
        tree: Mapping[str, Any] = json.loads(read_regular(path, error=RunError))
        assert tree.get("kind") == "sizing" and isinstance(tree["answers"], list)
        assert all(map(_is_answer, tree["answers"])), "it holds no answers of dlemu size"
    except (*DAMAGE, AssertionError) as error:
        raise RunError(f"{path} is damaged: {in_short(error)}") from None
    return tree


def _is_answer(answer: object) -> bool:
    return isinstance(answer, dict) and {"target", "workload", "num_accelerators"} <= answer.keys()


def _read_points(path: Path) -> list[Mapping[str, Any]]:
    """Return the runs of a search's log, without its first line and a last one that was cut."""
    try:
        lines = read_regular(path, error=RunError).splitlines(keepends=True)
        points = [json.loads(line) for line in lines if line.endswith(b"\n")][1:]
        for point in points:
            assert all(math.isfinite(point[name]) for name in _OF_A_RUN)
    except DAMAGE as error:
        raise RunError(f"{path} is damaged: {in_short(error)}") from None
    return points


def _row_of(folder: Path, answer: Mapping[str, Any]) -> ResultRow:
    """Return an answer's row: of the runs that passed with its number; for 0 of the last."""
    number = answer["num_accelerators"]
    shown = answer["confirmations"] or ([] if number else answer["points"][-1:])
    least = "at least " if answer["at_least"] and number else ""
    au = fmean(point["au_percentage"] for point in shown) if shown else None
    return ResultRow(
        name=f"{folder} {answer['target']}",
        tool="dlemu",
        workload=answer["workload"],
        num_accelerators=shown[-1]["num_accelerators"] if shown else number,
        au_percentage=au,
        told_au_percentage=au,
        whole_au_percentage=None,
        samples_per_second=fmean(point["samples_per_second"] for point in shown) if shown else None,
        nominal_MB_per_second=None,
        first_step_seconds=None,
        verdict=f"feeds {least}{number}",
    )
