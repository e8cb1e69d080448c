"""Sizings: the answers of `dlemu size` and `dlemu try` in words, and searches that did not end."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from dlemu.errors import DAMAGE, RunError, in_short
from dlemu.reports.rows import ResultRow
from dlemu.results.metrics import passes
from dlemu.storage.regular import read_regular
from dlemu.units import counted, format_bytes, format_rate, format_seconds

ANSWER = "sizing.json"
FIRST_NOTE = (
    "a first answer, not by the benchmark's rule: small files were read again and again with "
    "O_DIRECT, so a cache in the drive, its controller or a server may have answered for it"
)
"""What is to be known of an answer of `dlemu try`."""
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
        by_rule = [answer for answer in self.answers if not answer.get("first")]
        return 2 if any(answer["num_accelerators"] == 0 for answer in by_rule) else 0

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
        return [row_of(self.folder, answer) for answer in self.answers]


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
    """Return the answer and what it rests on, each limit with its run; `with_runs`: all runs."""
    first, points = answer.get("first"), answer["points"]
    lines = [f"{answer['target']}: {sentence(answer) if first else _headline(answer)}"]
    lines += _deciding_lines(answer)
    if any(point.get("au_with_stalls_percentage") is not None for point in points):
        lines.append(
            "checkpoints: each run wrote its own; the rule's AU leaves out the stalls, in which "
            "all accelerators waited for a checkpoint"
        )
    if not answer["at_least"] and answer["real_accelerators"] is None:
        lines.append("no N*: the runs do not agree on where AU meets the threshold")
    if with_runs:
        where = f"dataset: {format_bytes(answer['dataset_bytes'])} in {answer['data_folder']}"
        drives = answer["drives"]
        where = f"{where}, {counted(drives, 'drive')}" if drives else where
        lines.append(f"{where}, written for this" if first and first["written"] else where)
    if first:
        lines.append(FIRST_NOTE)
    elif (share := answer["read_ahead_share"]) is not None:
        memory = "and was read with O_DIRECT"
        if "://" in answer["data_folder"]:
            memory = "and the server may have it in memory"
        lines.append(
            f"quick: the dataset is smaller than the rule asks for, {memory}; up to {share:.1%} of "
            "it is read inside the step that is left out, and so much may AU be too high"
        )
    if with_runs and points:
        lines += _points(points)
    if points:
        lines.append(f"{counted(len(points), 'run')} in {format_seconds(answer['seconds'])}")
    return lines


def sentence(answer: Answer) -> str:
    """Return the answer in one sentence: "feeds 7 H100s of ResNet-50; limit: the drive, 1.5 GB/s".

    It begins with the verb, and has no full stop.
    """
    number, first = answer["num_accelerators"], answer.get("first")
    what = _plain(answer["workload"])
    least = "at least " if answer["at_least"] and number else ""
    amount = f"{number:,} {what[0]}{'' if number == 1 else 's'}" if number else f"no {what[0]}"
    band = ""
    if first and first["high"] not in (None, first["low"]):
        band = f" ({first['low']} to {first['high']})"
    parts = [f"feeds {least}{amount} of {what[1]}{band}{_limits(answer)}"]
    if not first and answer["quick"]:
        parts.append("quick: the dataset is smaller than the rule asks for")
    return "; ".join([*parts, *answer.get("remarks", ())])


def _limits(answer: Answer) -> str:
    """Return what a sentence says of the limits: ": one needs ..." or "; limit: the drive, ..."."""
    if enough := _needed(answer):
        return f": {enough}"
    runs = _deciding(answer)
    if answer.get("fewest_failed") is None:
        return "; nothing that was tried failed, so it may feed more"
    named = []
    for run in runs:
        rate = format_rate(run["read_bytes_per_second"])
        storage = "the drive" if answer.get("first") and answer["drives"] == 1 else "the storage"
        limit = f"{storage}, {rate}" if run["limit"] == "storage" else run["limit"]
        at = f" at {run['num_accelerators']}" if len(runs) > 1 else ""
        named.append(f"limit{at}: {limit}")
    more = ", so the storage may feed more" if answer["at_least"] else ""
    return f"; {'; '.join(named)}{more}"


def _needed(answer: Answer) -> str:
    """Return why a storage feeds none: "one needs 2.86 GB/s, this storage gives 1.86 GB/s"."""
    demand, real = answer.get("demand_bytes_per_second"), answer["real_accelerators"]
    if answer["num_accelerators"] or answer["at_least"] or demand is None or real is None:
        return ""
    needs = demand * answer["threshold"] / 100
    return f"one needs {format_rate(needs)}, this storage gives {format_rate(real * needs)}"


_NETWORKS = {"unet3d": "3D U-Net", "resnet50": "ResNet-50", "cosmoflow": "CosmoFlow"}
_GPU = re.compile(r"(.+)_([abhv]\d+)")


def _plain(workload: str) -> tuple[str, str]:
    """Return accelerator and network of a workload: "resnet50_h100" is an "H100" of "ResNet-50"."""
    if (found := _GPU.fullmatch(workload)) is None:
        return "accelerator", workload
    return found[2].upper(), _NETWORKS.get(found[1], found[1])


def _headline(answer: Answer) -> str:
    """Return the answer with its threshold; N* only where the storage was the limit."""
    number, asked = answer["num_accelerators"], f"{answer['threshold']:.2f}%"
    name, failed = f"{answer['workload']} accelerator", answer.get("fewest_failed")
    real = f" (N* {real_text(answer)})" if real_text(answer) else ""
    passed = f"{counted(number, name)} at AU {asked} or more"
    if number == 0:
        reached = mean_au(answer["points"], min(p["num_accelerators"] for p in answer["points"]))
        whole = f"0 {name}s: one alone reaches {reached:.2f}%, under the {asked} asked{real}"
        why = why_more(answer) if answer["at_least"] else _needed(answer)
        parts = [whole, why] if why else [whole]
    elif not answer["at_least"]:
        parts = [f"{passed}{real}"]
    elif failed is not None:
        reached = mean_au(answer["points"], failed)
        parts = [f"at least {passed}: {why_more(answer)} ({failed} reached {reached:.2f}%)"]
    elif answer.get("bound"):
        parts = [f"at least {passed}: {answer['bound']}"]
    else:
        parts = [
            f"at least {passed}: nothing failed up to {number}, so the storage may feed more; "
            "raise size.max_accelerators"
        ]
    return "; ".join([*parts, *answer.get("remarks", ())])


def why_more(answer: Answer) -> str:
    """Return why the number is not the storage's."""
    no_limit = {
        "unclear": "what the limit was is unclear",
        "none": "almost nothing held the accelerators back",
    }
    why = no_limit.get(answer["limit"], f"the limit was {answer['limit']}")
    return f"{why}, so the storage may feed more"


def mean_au(runs: Sequence[Run], number: int) -> float:
    """Return the mean AU of the runs with so many accelerators."""
    return fmean(run["au_percentage"] for run in runs if run["num_accelerators"] == number)


def real_text(answer: Answer) -> str:
    """Return N* with its interval; empty where there is none."""
    if answer["real_accelerators"] is None or answer["interval"] is None:
        return ""
    low, high = answer["interval"]
    return f"{answer['real_accelerators']:.2f}, 95% interval {low:.2f} to {high:.2f}"


def _deciding(answer: Answer) -> list[Run]:
    """Return the failing run whose limit is the answer's, and the nearest if it had another.

    Of several the one with the fewest accelerators, and of those the last.
    """
    threshold = answer["threshold"]
    failed = [run for run in answer["points"] if not passes(run["au_percentage"], threshold)]
    nearest = sorted(reversed(failed), key=lambda run: int(run["num_accelerators"]))
    own = [run for run in nearest if run["limit"] == answer["limit"]]
    return [*own[:1], *(run for run in nearest[:1] if run["limit"] != answer["limit"])]


def _deciding_lines(answer: Answer) -> list[str]:
    """Return the runs that decided: "at 3: limit storage, AU 63.20%. ...", "at 2: PASS, ..."."""
    lines = []
    for run in _deciding(answer):
        head = f"at {run['num_accelerators']}: limit {run['limit']}, AU {au_text(run)}"
        lines.append(". ".join(filter(None, [head, run["evidence"]])))
    if passed := answer["confirmations"]:
        rate = fmean(run["read_bytes_per_second"] for run in passed)
        samples = fmean(run["samples_per_second"] for run in passed)
        line = (
            f"at {passed[-1]['num_accelerators']}: PASS, AU {', '.join(map(au_text, passed))}, "
            f"{format_rate(rate)}, {samples:.1f} samples/s"
        )
        if not lines:  # nothing failed
            limit = f"{line}; limit {answer['limit']}"
            line = ". ".join(filter(None, [limit, passed[-1]["evidence"]]))
        lines.append(line)
    if not answer["points"]:
        lines.append(answer["first"]["evidence"])
    return lines


def au_text(run: Run) -> str:
    """Return the AU of a run, and with its stalls where checkpoints were taken."""
    whole = run.get("au_with_stalls_percentage")
    stalls = "" if whole is None else f" ({whole:.2f}% with stalls)"
    return f"{run['au_percentage']:.2f}%{stalls}"


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
