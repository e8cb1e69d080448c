"""Stored sizings: the answers of `dlemu size`, and searches that did not end."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from dlemu.errors import DAMAGE, RunError, in_short
from dlemu.reports.rows import ResultRow
from dlemu.storage.regular import read_regular
from dlemu.units import counted, format_bytes, format_rate, format_seconds

ANSWER = "sizing.json"
_LOG = "*.jsonl"

Answer = Mapping[str, Any]
"""One object of sizing.json."""
Run = Mapping[str, Any]
"""One of its `points`, or a line of a search's log."""


@dataclass(frozen=True)
class StoredSizing:
    """What a folder of `dlemu size` holds."""

    folder: Path
    answers: Sequence[Answer]
    """The objects of sizing.json, one a target and workload."""
    unfinished: Mapping[str, Sequence[Run]]
    """The points of searches without an answer, by "<target>.<workload>"."""

    @property
    def summary(self) -> Mapping[str, Any]:
        """What sizing.json has, and the searches that did not end."""
        return {"answers": list(self.answers), "unfinished": dict(self.unfinished)}

    @property
    def status(self) -> int:
        """As `dlemu size` exits: 2 if one accelerator alone fails; 1 if a search did not end."""
        if self.unfinished:
            return 1
        return 2 if any(answer["num_accelerators"] == 0 for answer in self.answers) else 0

    @property
    def text(self) -> str:
        """The answers, and the runs that they rest on."""
        parts = [f"{self.folder}: sizing of {_named(self.answers, self.unfinished)}"]
        parts += ["\n".join(answer_lines(answer, with_runs=True)) for answer in self.answers]
        for name, points in self.unfinished.items():
            runs = counted(len(points), "run")
            head = f"{name}: no answer yet; the search was interrupted after {runs}"
            parts.append("\n".join([head, *_points(points)]))
        return "\n\n".join(parts)

    @property
    def rows(self) -> Sequence[ResultRow]:
        """A row for each answer."""
        return [row_of(self.folder, answer) for answer in self.answers if answer["points"]]


def is_sizing(folder: Path) -> bool:
    """Return whether a folder holds a sizing, ended or not."""
    return (folder / ANSWER).is_file() or ((folder / "runs").is_dir() and any(folder.glob(_LOG)))


def read_sizing(folder: Path) -> StoredSizing:
    """Return the sizing in a folder.

    Raises:
        RunError: a file is damaged.
    """
    answers = read_answers(folder / ANSWER) if (folder / ANSWER).exists() else []
    known = {f"{answer['target']}.{answer['workload']}" for answer in answers}
    unfinished = {
        path.stem: _read_points(path)
        for path in sorted(folder.glob(_LOG))
        if path.stem not in known
    }
    if not answers and not any(unfinished.values()):
        raise RunError(f"{folder}: no answer, and no run of the search is complete")
    sizing = StoredSizing(folder, answers, unfinished)
    try:
        assert sizing.text and sizing.rows is not None  # reads every field that is shown
    except DAMAGE as error:
        raise RunError(f"{folder / ANSWER} is damaged: {in_short(error)}") from None
    return sizing


def read_answers(path: Path) -> list[Answer]:
    """Return the objects of a sizing.json.

    Raises:
        RunError: it is damaged.
    """
    try:
        tree = json.loads(read_regular(path, error=RunError))
        answers = tree if isinstance(tree, list) else [tree]
        assert all(map(_is_answer, answers)), "it holds no answers of dlemu size"
    except (*DAMAGE, AssertionError) as error:
        raise RunError(f"{path} is damaged: {in_short(error)}") from None
    return answers


def _is_answer(answer: object) -> bool:
    return isinstance(answer, dict) and {"target", "workload", "num_accelerators"} <= answer.keys()


def _read_points(path: Path) -> list[Run]:
    """Return the runs of a search's log, without its first line and a last one that was cut."""
    try:
        lines = read_regular(path, error=RunError).splitlines(keepends=True)
        points = [json.loads(line) for line in lines if line.endswith(b"\n")][1:]
        for point in points:
            _point(point)
    except DAMAGE as error:
        raise RunError(f"{path} is damaged: {in_short(error)}") from None
    return points


def _named(answers: Sequence[Answer], unfinished: Mapping[str, object]) -> str:
    names = [f"{answer['workload']} on {answer['target']}" for answer in answers]
    return ", ".join([*names, *unfinished])


def answer_lines(answer: Answer, *, with_runs: bool = False) -> list[str]:
    """Return the answer, what limits it and what it rests on; `with_runs` also a table of them."""
    number, points = answer["num_accelerators"], answer["points"]
    least = "at least " if answer["at_least"] and answer["num_accelerators"] else ""
    name = f"{answer['workload']} accelerator"
    asked = f"at AU {answer['threshold']:.2f}% or more"
    line = f"{answer['target']}: {least}{counted(number, name)} {asked}{_real(answer)}"
    if failed := answer["fewest_failed"]:
        line += f"; {failed} reached {mean_au(points, failed):.2f}%"
    if answer["at_least"]:
        line += f": {why_more(answer)}"
    evidence = [p["evidence"] for p in points if p["limit"] == answer["limit"] and p["evidence"]]
    lines = [line, ". ".join([f"limit: {answer['limit']}", *evidence[-1:]])]
    where = f"dataset: {format_bytes(answer['dataset_bytes'])} in {answer['data_folder']}"
    drives = answer["drives"]
    lines.append(f"{where}, {counted(drives, 'drive')}" if drives else where)
    if answer["at_least"] and answer["bound"]:
        lines.append(f"bound: {answer['bound']}")
    if answer["quick"]:
        share = answer["read_ahead_share"] or 0.0
        lines.append(
            "quick: the dataset is smaller than the rule asks for; AU may be too high by "
            f"{share:.1%}"
        )
    if with_runs:
        lines += _points(points)
    if confirmed := answer["confirmations"]:
        runs = ", ".join(f"{point['au_percentage']:.2f}" for point in confirmed)
        lines.append(f"confirmed by {counted(len(confirmed), 'run')} in a row: AU {runs}%")
    lines.append(f"{counted(len(points), 'run')} in {format_seconds(answer['seconds'])}")
    return lines


def why_more(answer: Answer) -> str:
    """Return why an answer is a lower bound."""
    if answer["fewest_failed"] is None:
        return "no number that was tried failed, so the storage may feed more"
    return "the storage was not the limit, so it may feed more"


def mean_au(runs: Sequence[Run], number: int) -> float:
    """Return the mean AU of the runs with so many accelerators."""
    return fmean(run["au_percentage"] for run in runs if run["num_accelerators"] == number)


def _real(answer: Answer) -> str:
    if answer["real_accelerators"] is None or answer["interval"] is None:
        return ""
    low, high = answer["interval"]
    return f" (N* {answer['real_accelerators']:.2f}, 95% interval {low:.2f} to {high:.2f})"


def _points(points: Sequence[Run]) -> list[str]:
    """Return the table of the runs, in their order."""
    head = (
        f"{'accelerators':>12}{'AU (%)':>10}{'samples/s':>12}{'read':>12}{'cached':>8}{'time':>9}"
    )
    return [f"{head}  limit", *map(_point, points)]


def _point(point: Run) -> str:
    share = point["page_cache_share"]
    return (
        f"{point['num_accelerators']:>12}{point['au_percentage']:>10.2f}"
        f"{point['samples_per_second']:>12.1f}{format_rate(point['read_bytes_per_second']):>12}"
        f"{'-' if share is None else f'{share:.0%}':>8}{format_seconds(point['seconds']):>9}"
        f"  {point['limit']}"
    )


def row_of(folder: Path, answer: Answer) -> ResultRow:
    """Return an answer's row: of the runs that confirm it, or of the last run."""
    shown = answer["confirmations"] or answer["points"][-1:]
    least = "at least " if answer["at_least"] and answer["num_accelerators"] else ""
    au = fmean(point["au_percentage"] for point in shown)
    return ResultRow(
        name=f"{folder} {answer['target']}",
        tool="dlemu",
        workload=answer["workload"],
        num_accelerators=shown[-1]["num_accelerators"],
        au_percentage=au,
        told_au_percentage=au,
        whole_au_percentage=None,
        samples_per_second=fmean(point["samples_per_second"] for point in shown),
        nominal_MB_per_second=None,
        first_step_seconds=None,
        verdict=f"feeds {least}{answer['num_accelerators']}",
    )
