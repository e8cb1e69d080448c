"""Results of one kind side by side: what each reached, and in what they differ.

A result is a run, several runs in a folder, or a sizing (sizing.json).
"""

import glob
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dlemu.errors import DAMAGE, DlemuError, RunError, WorkloadError, in_short
from dlemu.reports.checkpoints import StoredCheckpoints, is_checkpoint, read_checkpoints
from dlemu.reports.noise import (
    Difference,
    Figure,
    difference,
    enough,
    figure_of,
    figure_of_interval,
    parts_of_steps,
)
from dlemu.reports.sizings import ANSWER, read_document
from dlemu.reports.stored import read_folder
from dlemu.results.outcome import Outcome
from dlemu.results.records import SUMMARY, read_config, read_steps, read_summary
from dlemu.results.summary import limit_name
from dlemu.units import counted, each_once
from dlemu.workload.compose import PATH_KEYS
from dlemu.workload.model import Workload, leaves

_PATHS = PATH_KEYS | {"size.targets"}
_IN_SYSTEM = {"host", "num_hosts", "device", "model", "firmware", "memory_bytes"}
"""Fields of `place` that `system` has of every host."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One result. Names are those of summary.json and sizing.json."""

    folder: Path
    kind: Literal["run", "sizing", "checkpoint"]
    workload: str
    target: str = ""
    """Of a sizing."""
    num_accelerators: int
    at_least: bool = False
    """Of a sizing: the storage may feed more."""
    verdict: str = ""
    """Of a run."""
    limit: str
    figures: Mapping[str, Figure]
    """By name: au_percentage, samples_per_second …; what is unknown is not there."""
    basis: str
    """What the noise of the figures was taken from."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Of the hosts, drives and versions, by dotted name in summary.json."""
    keys: Mapping[str, object] = field(default_factory=dict)
    """Of the workload, without where the results went."""


@dataclass(frozen=True)
class Comparison:
    """Results of one workload; the first is what the others are compared with."""

    results: Sequence[Result]

    def differences(self, number: int) -> dict[str, Difference]:
        """Return, by name, in which figures a result differs from the first one."""
        first, other = self.results[0].figures, self.results[number].figures
        return {name: difference(other[name], first[name]) for name in first if name in other}

    def loss(self, number: int) -> float:
        """Return the share, 0 to 1, by which a result is below the first one; 0: it is not."""
        was, now = _scores(self.results[0], self.results[number])
        return max(0.0, 1 - now / was) if was > 0 else 0.0

    @property
    def facts(self) -> dict[str, list[str | None]]:
        """Facts that are not the same everywhere, with the value of each result; None: unknown."""
        return dict(_unlike([result.facts for result in self.results]))

    @property
    def keys(self) -> dict[str, list[Any]]:
        """Keys of the workload that are not the same everywhere; paths come last."""
        unlike = dict(_unlike([result.keys for result in self.results]))
        return dict(sorted(unlike.items(), key=lambda pair: pair[0] in _PATHS))


def compare_folders(folders: Sequence[Path]) -> list[Comparison]:
    """Return the comparison of each workload and target in these folders.

    Raises:
        DlemuError: a folder holds no result, is damaged, or holds one of another kind or workload.
    """
    found = [read_results(folder) for folder in folders]
    if all(len(results) == 1 for results in found):
        results = [each[0] for each in found]
        _check_alike(results)
        return [Comparison(results)]
    comparisons = []
    for first in found[0]:
        same = [first]
        for folder, results in zip(folders[1:], found[1:], strict=True):
            named = [r for r in results if (r.workload, r.target) == (first.workload, first.target)]
            if not named:
                raise WorkloadError(
                    f"{folder} has no sizing of {first.workload} on {first.target}, "
                    f"{folders[0]} has; compare sizings of the same targets and workloads"
                )
            same.append(named[0])
        comparisons.append(Comparison(same))
    return comparisons


def _scores(first: Result, other: Result) -> tuple[float, float]:
    """Return what a loss is counted in: accelerators of sizings, samples/s of runs, bytes/s."""
    if first.kind == "sizing":
        return first.num_accelerators, other.num_accelerators
    for name in ("samples_per_second", "save_bytes_per_second", "load_bytes_per_second"):
        if name in first.figures and name in other.figures:
            return first.figures[name].value, other.figures[name].value
    raise WorkloadError(
        f"{first.folder} and {other.folder} have no figure in common: one has checkpoints that "
        "were written, the other such that were read; compare results of the same command"
    )


def _check_alike(results: Sequence[Result]) -> None:
    first = results[0]
    for other in results[1:]:
        if (first.kind, first.workload) != (other.kind, other.workload):
            raise WorkloadError(
                f"{first.folder} holds a {first.kind} of {first.workload}, {other.folder} a "
                f"{other.kind} of {other.workload}; compare results of one kind and workload"
            )
        _scores(first, other)


def read_results(folder: Path) -> list[Result]:
    """Return what a folder holds: one result, or one for each target and workload of a sizing.

    Raises:
        DlemuError: it holds none, or a damaged one.
    """
    if folder.name in (ANSWER, SUMMARY):
        folder = folder.parent
    try:
        if (folder / ANSWER).exists():
            answers = read_document(folder / ANSWER)["answers"]
            results = [_sizing(folder, answer) for answer in answers]
        elif is_checkpoint(summary := read_summary(folder)):
            results = [_checkpoints(read_checkpoints(folder, summary))]
        else:
            results = [_runs(folder)]
        for result in results:
            _check_sound(result)
        return results
    except DlemuError:
        raise
    except DAMAGE as error:
        raise RunError(f"{folder} holds a damaged result: {in_short(error)}") from None


def _check_sound(result: Result) -> None:
    """Raise a ValueError if a name is no text or a figure no finite number."""
    for name in ("workload", "target", "verdict", "limit"):
        if not isinstance(value := getattr(result, name), str):
            raise ValueError(f"its {name} is {value!r}")
    for name, figure in result.figures.items():
        if not math.isfinite(figure.value) or not math.isfinite(figure.error or 0.0):
            raise ValueError(f"its {name} is no finite number")


def _runs(folder: Path) -> Result:
    stored = read_folder(folder)
    name, first = next(iter(stored.outcomes.items()))
    counting = list(stored.counting.values())
    if len(counting) > 1:
        figures, basis = _over(list(map(_of_run, counting))), counted(len(counting), "run")
    else:
        figures, basis = _of_one(counting[0])
    limits = [limit_name(outcome.summary) for outcome in counting]
    return Result(
        folder=folder,
        kind="run",
        workload=stored.workload.name,
        num_accelerators=counting[0].metrics.num_accelerators,
        verdict=stored.summary["verdict"],
        limit=each_once(limits),
        figures=figures,
        basis=basis,
        facts=_facts(first.summary),
        keys=_keys(read_config(folder / name, {})),
    )


def _checkpoints(stored: StoredCheckpoints) -> Result:
    """Return the result of `dlemu checkpoint`; its figures are the rates of saves and loads."""
    summary, told = stored.summary, stored.summary["checkpoint"]
    figures = {
        f"{kind}_bytes_per_second": figure_of([e["num_bytes"] / e["seconds"] for e in entries])
        for kind, entries in (("save", told["saves"]), ("load", told["loads"]))
        if entries
    }
    if not figures:
        raise RunError(f"{stored.folder} holds no checkpoint that was written or read")
    limits = [limit_name(summary, field) for field in ("limit", "load_limit")]
    return Result(
        folder=stored.folder,
        kind="checkpoint",
        workload=summary["workload"],
        num_accelerators=summary["num_accelerators"],
        verdict=summary["verdict"],
        limit=each_once(limits),
        figures=figures,
        basis=counted(len(told["saves"] or told["loads"]), "checkpoint"),
        facts=_facts(summary),
        keys=_keys(read_config(stored.folder, {})),
    )


def _of_run(outcome: Outcome) -> dict[str, float | None]:
    metrics = outcome.metrics
    return {
        "au_percentage": metrics.au_percentage,
        "samples_per_second": metrics.samples_per_second,
        "read_bytes_per_second": metrics.read_bytes_per_second,
        "page_cache_share": outcome.summary.get("measured", {}).get("page_cache_share"),
    }


def _over(rows: Sequence[Mapping[str, float | None]]) -> dict[str, Figure]:
    """Return the figures of several rows; a name that one of them does not know is left out."""
    figures = {}
    for name in rows[0]:
        values = [value for row in rows if (value := row[name]) is not None]
        if len(values) == len(rows):
            figures[name] = figure_of(values)
    return figures


def _of_one(outcome: Outcome) -> tuple[dict[str, Figure], str]:
    """Return the figures of one run, and what their noise is taken from."""
    means = {name: value for name, value in _of_run(outcome).items() if value is not None}
    epochs = outcome.metrics.epochs
    shares = outcome.summary.get("measured", {}).get("page_cache_share_per_epoch", ())
    if enough(epochs):
        spread: dict[str, list[float]] = {
            "au_percentage": [epoch.au_percentage for epoch in epochs],
            "samples_per_second": [epoch.samples_per_second for epoch in epochs],
            "read_bytes_per_second": [epoch.read_bytes_per_second for epoch in epochs],
            "page_cache_share": [share for share in shares if share is not None],
        }
        basis = f"{counted(len(epochs), 'epoch')} of one run"
    else:
        spread = parts_of_steps(read_steps(outcome.folder))
        num = len(spread.get("au_percentage", ()))
        basis = f"{num} parts of the steps of one run" if num else "nothing: the run is too short"
    figures = {
        name: figure_of(spread.get(name, ()), mean=mean, of_one_run=True)
        for name, mean in means.items()
    }
    return figures, basis


def _sizing(folder: Path, tree: Mapping[str, Any]) -> Result:
    points = tree["confirmations"] or tree["points"][-1:]
    if not points:
        raise RunError(f"{folder}: no run of {tree['workload']} was made, so nothing is compared")
    names = ("au_percentage", "samples_per_second", "read_bytes_per_second", "page_cache_share")
    figures = _over([{name: point.get(name) for name in names} for point in points])
    if tree["real_accelerators"] is not None and tree["interval"] is not None:
        figures["real_accelerators"] = figure_of_interval(
            tree["real_accelerators"], *tree["interval"]
        )
    facts: Mapping[str, str] = {}
    keys: Mapping[str, object] = {}
    name = glob.escape(f"{tree['target']}.{tree['workload']}")
    for run in sorted((folder / "runs").glob(f"{name}.*")):
        with suppress(DlemuError, *DAMAGE):  # cut short, or removed
            facts = _facts(read_summary(run))
            keys = _keys(read_config(run, {}), "num_accelerators", "size")
            break
    return Result(
        folder=folder,
        kind="sizing",
        workload=tree["workload"],
        target=tree["target"],
        num_accelerators=tree["num_accelerators"],
        at_least=tree["at_least"],
        limit=tree["limit"],
        figures=figures,
        basis=f"{counted(len(points), 'run')} at {points[-1]['num_accelerators']}",
        facts=facts,
        keys=keys,
    )


def _keys(workload: Workload, *without: str) -> dict[str, object]:
    """Return the keys that say what was run, by dotted name."""
    left_out = {"given", "ignored", "output", *without}
    keys = dict(leaves(workload.model_dump(mode="json", exclude=left_out)))
    if "random" in (workload.reader.file_shuffle, workload.reader.sample_shuffle):
        del keys["train.seed"]  # each run draws its own
    return keys


def _facts(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return what a run tells of its hosts; of several hosts, each value once."""
    hosts = summary.get("system") or [{"host": summary.get("hostname", "")}]
    facts = {f"num_{what}": str(summary.get(f"num_{what}", "")) for what in ("ranks", "hosts")}
    for name in dict.fromkeys(name for host in hosts for name in host if name != "drives"):
        facts[f"system.{name}"] = each_once(host.get(name, "") for host in hosts)
    drives = [drive for host in hosts for drive in host.get("drives", ())]
    for name in dict.fromkeys(name for drive in drives for name in drive):
        facts[f"drives.{name}"] = each_once(drive.get(name, "") for drive in drives)
    for name, value in (summary.get("place") or {}).items():
        if name not in _IN_SYSTEM:
            facts[f"place.{name}"] = str(value)
    for name, value in (summary.get("versions") or {}).items():
        if name != "kernel" or "system.kernel" not in facts:
            facts[f"versions.{name}"] = str(value)
    return {name: value for name, value in facts.items() if value}


def _unlike(tables: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Any]]]:
    """Yield each name whose known values differ, with the value in each table or None."""
    for name in dict.fromkeys(name for table in tables for name in table):
        known = [table[name] for table in tables if name in table]
        if any(value != known[0] for value in known):
            yield name, [table.get(name) for table in tables]
