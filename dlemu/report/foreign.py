"""Results of DLIO and mlpstorage, computed again by dlemu's formulas.

A result folder of DLIO holds summary.json, the files that `dlio_steps` reads, and its workload in
.hydra/config.yaml. mlpstorage's has the workload in dlio_config/config.yaml, and lies in a folder
that holds one folder for each run, named by its time.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np

from dlemu.config.compose import read_yaml
from dlemu.config.model import Workload, check_workload
from dlemu.errors import DAMAGE, DlemuError, RunError, in_short
from dlemu.judge.metrics import Metrics, measure, measure_run
from dlemu.judge.outcome import LABEL, judge_runs, row_of, with_metrics
from dlemu.judge.records import SUMMARY, read_object
from dlemu.judge.summary import RunRow, RunsSummary, Summary
from dlemu.judge.sums import Edition
from dlemu.report.blocks import Block, Column, Document, Fold, Lines, Verdict, over_epochs, table_of
from dlemu.report.dlio_steps import DlioSteps, read_output, steps_of
from dlemu.report.run import present_run, tone_of
from dlemu.units import counted

_TIME = re.compile(r"\d{8}_\d{6}|\d{4}(-\d\d){5}")
"""mlpstorage's and DLIO's names of a run's folder."""
_CONFIGS = (".hydra", "dlio_config")
_SIGNS = ("*_output.json", "*per_epoch_stats.json", "dlio.log", "dlio_config", "*_metadata.json")
_NEEDED = {
    "dataset": (
        *("format", "num_files_train", "num_samples_per_file", "record_length"),
        *("record_length_bytes", "record_length_stdev", "record_length_bytes_stdev"),
    ),
    "reader": ("batch_size", "read_threads", "prefetch_size", "data_loader"),
    "train": ("epochs", "computation_time", "computation_time_stdev", "total_training_steps"),
    "metric": ("au", "exclude_start_steps", "exclude_end_steps"),
}
"""Keys that figures and verdicts rest on. A workload of a later version may have others."""
_PLACE = ("num_accelerators", "num_hosts", "hostname", "start", "end")
"""Fields of DLIO's summary that a run's document has by the same names."""
_TOLD = ("train_au_percentage", "train_throughput_samples_per_second")
"""Figures of each epoch that DLIO's summary has."""
_WORDS = {"success": "PASS", "fail": "FAIL"}


# --- blocks ---------------------------------------------------------------------------------------


def present_foreign(document: Document) -> list[Block]:
    """Return the blocks of a run of another tool of which the steps or the keys are missing."""
    what = f"{document['workload']}: {counted(document['num_accelerators'], 'accelerator')}"
    notes = [f"note: {note}" for note in document["notes"]]
    by = f"by {document['tool']}'s own figures ({_word(document)})"
    return [Verdict(f"{document['verdict']}: {by}", tone_of(document)), Lines([what, *notes])]


def present_told(document: Document) -> list[Block]:
    """Return the blocks of what another tool recorded of its run, or of several."""
    tool = document["tool"]
    if document["kind"] == "runs":
        recorded = Column(f"AU as {tool} recorded it (%)", "told_au_percentage", ".2f")
        return [
            table_of(document["runs"], Column("run", "name"), recorded),
            *(Fold(r["name"], [*present_run(r), *present_told(r)]) for r in document["runs"]),
            Lines([f"not read: {why}" for why in document["incomplete"].values()]),
        ]
    told = document["told_per_epoch"]
    rows = [
        ("AU (%)", told["train_au_percentage"], ".2f"),
        ("samples/s", told["train_throughput_samples_per_second"], ".2f"),
        ("first step: waiting for other ranks (s)", document["first_barrier_seconds"], ".3f"),
    ]
    if document["kind"] != "run":
        rows.append(("AU by dlemu's formula (%)", document["au_percentage"], ".2f"))
    lines = [f"{tool}'s own verdict: {_word(document)}", *document["differences"]]
    table = over_epochs((row for row in rows if row[1]), f"as {tool} recorded it")
    return [table, Lines(lines)]


def _word(document: Document) -> str:
    return document["told"]["metric"].get("train_au_meet_expectation") or "no word on it"


# --- reading --------------------------------------------------------------------------------------


def read_foreign(
    folder: Path, keys: Mapping[str, object]
) -> tuple[Document, Mapping[str, Document]] | None:
    """Return what a folder of another tool holds, and each run's document by its folder in it.

    `keys` are those of `metric`. Several runs are judged as dlemu's are; those that did not end, or
    whose steps are missing, are `incomplete`. None: it holds no result of DLIO or mlpstorage.

    Raises:
        RunError: a run did not end, or a file is damaged; of several, all.
        WorkloadError: a key or value of `keys` is refused.
    """
    if _is_leaf(folder):
        document, _ = read_leaf(folder, keys)
        return document, {"": document}
    runs: dict[str, Document] = {}
    incomplete = {}
    for leaf in _leaves(folder):
        name = str(leaf.relative_to(folder))
        try:
            runs[name], _ = read_leaf(leaf, keys)
            if runs[name]["kind"] != "run":
                raise RunError(f"{leaf}: {'; '.join(runs.pop(name)['notes'])}")
        except RunError as error:
            incomplete[leaf.name] = str(error)
    if not runs and not incomplete:
        return None
    if not runs:
        raise RunError(next(iter(incomplete.values())))
    first = next(iter(runs.values()))
    several = RunsSummary(
        label=LABEL,
        division="open",
        workload=first["workload"],
        hostname=str(first.get("hostname", "")),
        start=str(first.get("start", "")),
        runs=[_row(name, run) for name, run in runs.items()],
    )
    judged = judge_runs(several, [cast(Summary, run) for run in runs.values()])
    return {**judged, "tool": first["tool"], "incomplete": incomplete}, runs


def _row(name: str, run: Document) -> RunRow:
    """Return a run's document with its row among several."""
    told = fmean(run["told_per_epoch"]["train_au_percentage"])
    row = {**run, **row_of(name, cast(Summary, run)), "told_au_percentage": told}
    return cast(RunRow, row)


def _is_leaf(folder: Path) -> bool:
    return any(next(folder.glob(sign), None) for sign in _SIGNS)


def _leaves(folder: Path) -> list[Path]:
    """Return the folders of runs in mlpstorage's folder: of a phase, or of a workload above it."""
    for parent in (folder, folder / "run"):
        with suppress(OSError):
            found = [path for path in parent.iterdir() if _TIME.fullmatch(path.name)]
            if leaves := sorted(path for path in found if _is_leaf(path)):
                return leaves
    return []


def read_leaf(folder: Path, keys: Mapping[str, object]) -> tuple[Document, DlioSteps | None]:
    """Return the document of one run, and its steps; None: they are missing.

    It is the document of a run where steps and configuration are there, else the tool's own
    figures; with what the tool recorded (`told`), and what it counts in another way.

    Raises:
        RunError: the run did not end, or a file is damaged.
    """
    told = _read_summary(folder)
    notes: list[str] = []
    tree = _read_config(folder, notes)
    workload = None if tree is None else _workload_of(tree, keys, notes)
    dlio, metrics, outputs = None, None, read_output(folder)
    try:
        dlio = steps_of(folder, outputs, told["num_accelerators"], workload)
        edition = cast(Edition, keys.get("metric.edition", "v1.0"))
        metrics = (
            measure(dlio.steps, edition=edition)
            if workload is None
            else measure_run(workload, dlio.steps)
        )
    except DlemuError as error:
        notes.append(f"AU cannot be computed again: {error}")
    except DAMAGE as error:
        raise RunError(f"{folder}: a <rank>_output.json is damaged: {in_short(error)}") from None
    is_mlpstorage = (folder / "dlio_config").is_dir() or any(folder.glob("*_metadata.json"))
    tool = "mlpstorage" if is_mlpstorage else "DLIO"
    model = (tree or {}).get("model")
    name = model.get("name") if isinstance(model, dict) else model
    barriers = [] if dlio is None else _first_barriers(dlio)
    try:
        document: dict[str, Any] = {
            "kind": "foreign",
            "verdict": _WORDS.get(told["metric"].get("train_au_meet_expectation"), "NO VERDICT"),
            "reasons": [],
            "remarks": [],
            "au_percentage": [],
        }
        if metrics is not None:
            document["au_percentage"] = [epoch.au_percentage for epoch in metrics.epochs]
            if workload is not None:
                document = {**with_metrics(Summary(), workload, metrics), "status": "complete"}
        document |= {name: told[name] for name in _PLACE if name in told}
        document |= {
            "tool": tool,
            "workload": _chosen(folder) or str(name or told.get("workload") or "unknown"),
            "notes": notes,
            "told": told,
            "told_per_epoch": {
                name: [float(each) for each in told["metric"].get(name) or ()] for name in _TOLD
            },
            "first_barrier_seconds": barriers,
            "differences": [],
        }
    except DAMAGE as error:
        raise RunError(f"{folder / SUMMARY} is damaged: {in_short(error)}") from None
    if dlio is not None and metrics is not None:
        document["differences"] = list(_differences(tool, dlio, fmean(barriers), metrics))
    return document, dlio


def _read_summary(folder: Path) -> Mapping[str, Any]:
    """Return DLIO's summary; where there is none, the run did not end."""
    paths = [path for path in sorted(folder.glob(f"*{SUMMARY}")) if path.is_file()]
    if not paths:
        raise RunError(f"{folder} holds no {SUMMARY}: DLIO writes it when a run ends, this did not")
    told = read_object(paths[0])
    metric = told.get("metric")
    if not isinstance(metric, dict) or "train_au_percentage" not in metric:
        raise RunError(f"{paths[0]} holds no figures of a training (train_au_percentage)")
    if not isinstance(told.get("num_accelerators"), int):
        raise RunError(f"{paths[0]} is damaged: num_accelerators is no number")
    return told


def _read_config(folder: Path, notes: list[str]) -> dict[str, Any] | None:
    """Return the workload as DLIO's configuration has it."""
    for name in _CONFIGS:
        path = folder / name / "config.yaml"
        if path.is_file():
            try:
                tree = read_yaml(path)
            except (DlemuError, OSError) as error:
                raise RunError(str(error)) from None
            inner = tree.get("workload", tree)
            if isinstance(inner, dict):
                return inner
    notes.append(
        "no configuration (.hydra/config.yaml, dlio_config/config.yaml): no verdict of ours"
    )
    return None


def _chosen(folder: Path) -> str:
    """Return the name that the command line has chosen, `workload=unet3d_h100`; "" if none."""
    for name in _CONFIGS:
        with suppress(OSError, ValueError):
            words = (folder / name / "overrides.yaml").read_text(encoding="utf-8")
            if found := re.search(r"^- ['\"]?workload=(\w+)", words, re.MULTILINE):
                return found[1]
    return ""


def _workload_of(
    tree: Mapping[str, Any], keys: Mapping[str, object], notes: list[str]
) -> Workload | None:
    """Return DLIO's configuration as a workload; of unknown keys only those that are needed."""
    needed: dict[str, Any] = {
        section: {key: group[key] for key in names if key in group}
        for section, names in _NEEDED.items()
        if isinstance(group := tree.get(section), dict)
    }
    try:
        workload = check_workload(needed)
    except DlemuError as error:
        notes.append(f"no verdict of ours: {error}")
        return None
    return workload.with_keys(keys) if keys else workload


def _first_barriers(dlio: DlioSteps) -> list[float]:
    """Return the mean wait for other ranks after the first step, of each epoch."""
    firsts = dlio.steps[dlio.steps["step"] == 0]
    return [
        float(firsts["barrier"][firsts["epoch"] == epoch].mean())
        for epoch in np.unique(firsts["epoch"])
    ]


def _differences(tool: str, dlio: DlioSteps, barrier: float, metrics: Metrics) -> Iterator[str]:
    """Yield what DLIO counts in another way; `barrier`: seconds of waiting after first steps."""
    beside = metrics.mean("overhead_share")
    yield (
        f"first step: {tool} leaves it out, but not the {barrier:.3f} s of waiting for other ranks "
        "after it; dlemu leaves both out"
    )
    yield (
        f"barriers: not recorded; taken as the wait for the slowest rank; {100 * beside:.1f}% of "
        f"the time is {tool}'s own, between the steps"
        if dlio.all_known
        else "barriers: not recorded; taken as the wait for the slowest rank; the time between the "
        "steps is not known"
    )
    if dlio.num_blocks > 1:
        yield (
            f"blocks: {dlio.num_blocks} an epoch, between checkpoints; {tool} leaves out the first "
            "step of each, dlemu that of the epoch"
        )
