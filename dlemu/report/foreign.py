"""Results of DLIO and mlpstorage, computed again by dlemu's formulas.

A result folder of DLIO holds summary.json, its workload in .hydra/config.yaml, and

    <rank>_output.json          per epoch and block: `load`, `proc`, `compute`: seconds of steps,
                                and the block's `au` in percent
    per_epoch_stats.json        times of day; from MLPerf Storage v2.0 on one a rank

mlpstorage's has the workload in dlio_config/config.yaml, and lies in a folder that holds one folder
for each run, named by its time.

`proc` is the time from the request for a batch to the end of its compute; `load` is its part until
the batch was there. The barrier after each step is not recorded: here it lasts until the slowest
rank is ready. What a block takes beside its steps (logging, the barrier's own time) follows from
its AU, since DLIO computes AU = compute / window. It is spread over the steps as `overhead`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from dlemu.config.compose import read_yaml
from dlemu.config.model import Workload, check_workload
from dlemu.config.source import WordSource
from dlemu.errors import DAMAGE, DlemuError, RunError, in_short, system_line
from dlemu.host.devices import total
from dlemu.judge.metrics import Metrics, measure, measure_run
from dlemu.judge.outcome import judge_runs, row_of, with_metrics
from dlemu.judge.records import STEP, SUMMARY, Steps, damaged, read_object, values_of
from dlemu.judge.summary import RunRow, RunsSummary, Summary
from dlemu.judge.sums import Edition, step_seconds
from dlemu.report.blocks import Block, Column, Document, Fold, Lines, Verdict, over_epochs, table_of
from dlemu.report.run import present_run, tone_of
from dlemu.report.words import note_lines
from dlemu.report.words.rules import LABEL
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
_RECORDED = ("train_au_percentage", "train_throughput_samples_per_second")
"""Figures of each epoch that DLIO's summary has."""
_WORDS = {"success": "PASS", "fail": "FAIL"}


_OUTPUT = re.compile(r"(\d+)_output\.json")
_BLOCK = re.compile(r"block(\d+)")


# --- steps ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DlioSteps:
    """The steps of all ranks, and what is not known of them."""

    steps: Steps
    """(steps,) of all ranks; a rank is an accelerator. `num_bytes` is 0: nobody counted."""
    num_blocks: int
    """Most blocks of an epoch; DLIO leaves the first step of each block out."""
    all_known: bool
    """Whether the time beside the steps is known in all blocks."""


_RUN_AGAIN = "let DLIO run to its end, and name that folder"


class _Epoch(NamedTuple):
    """One rank's epoch: seconds of each step, and of all blocks together."""

    load: NDArray[np.float64]
    proc: NDArray[np.float64]
    compute: NDArray[np.float64]
    seconds: float | None
    num_blocks: int


def read_output(folder: Path) -> Mapping[int, Mapping[str, Any]]:
    """Return the content of each <rank>_output.json by its rank.

    Raises:
        RunError: one is no JSON object.
    """
    found = ((path, _OUTPUT.fullmatch(path.name)) for path in folder.iterdir())
    return {int(match[1]): read_object(path) for path, match in sorted(found) if match}


def steps_of(
    folder: Path,
    outputs: Mapping[int, Mapping[str, Any]],
    num_ranks: int,
    workload: Workload | None,
) -> DlioSteps:
    """Return the records of all ranks; without a `workload` batches count as one sample.

    Raises:
        RunError: the steps of a rank are missing, ranks have other epochs or steps than each other,
            or there is no step.
        LookupError, TypeError, ValueError: a file does not hold what DLIO writes.
    """
    if missing := sorted(set(range(num_ranks)) - outputs.keys()):
        names = ", ".join(f"{rank}_output.json" for rank in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise RunError(f"{names}{more} missing")
    # `compute` is the measured time from MLPerf Storage v2.0 on, else what was asked for.
    measured = not (folder / "per_epoch_stats.json").exists()
    left_out = 1, 0  # at start and end of each block, for DLIO's AU
    if workload is not None and measured:
        left_out = workload.metric.exclude_start_steps, workload.metric.exclude_end_steps
    ranks = [
        {int(key): _epoch(tree, left_out) for key, tree in output.items() if key.isdigit()}
        for _, output in sorted(outputs.items())
    ]
    if any(rank.keys() != ranks[0].keys() for rank in ranks):
        raise RunError("not every rank has steps of the same epochs")
    parts = []
    begin = 0.0
    for number in sorted(ranks[0]):
        epochs = [rank[number] for rank in ranks]
        if len(lengths := {len(epoch.proc) for epoch in epochs}) > 1 or 0 in lengths:
            raise RunError(f"not every rank has the same steps in epoch {number}")
        records = _records(epochs, measured=measured)
        records["epoch"] = number - 1
        records["num_samples"] = 1 if workload is None else workload.reader.batch_size
        if workload is not None and (time := workload.train.computation_time).stdev == 0:
            records["computation_time"] = time.mean
        records["start"] += begin
        begin += step_seconds(records).sum(axis=1).max()
        parts.append(records.ravel())
    if not parts:
        raise RunError("no epoch ended")
    every = [epoch for rank in ranks for epoch in rank.values()]
    return DlioSteps(
        np.concatenate(parts),
        max(epoch.num_blocks for epoch in every),
        all(epoch.seconds is not None for epoch in every),
    )


def _records(epochs: Sequence[_Epoch], *, measured: bool) -> Steps:
    """Return the (ranks, steps) records of an epoch of all ranks."""
    load, proc, compute = (
        np.stack([getattr(epoch, name) for epoch in epochs]) for name in ("load", "proc", "compute")
    )
    num_ranks, num_steps = proc.shape
    records = np.zeros(proc.shape, STEP)
    slowest = proc.max(axis=0)
    records["accelerator"] = np.arange(num_ranks)[:, None]
    records["step"] = np.arange(num_steps)
    records["wait"] = load
    records["compute"] = np.minimum(compute, proc - load) if measured else proc - load
    records["computation_time"] = compute
    records["barrier"] = slowest - proc
    known = [epoch.seconds for epoch in epochs if epoch.seconds is not None]
    beside = max(0.0, float(np.mean(known)) - slowest.sum()) if known else 0.0
    records["overhead"] = beside / num_steps + proc - load - records["compute"]
    seconds = step_seconds(records)
    records["start"] = seconds.cumsum(axis=1) - seconds
    return records


def _epoch(tree: Mapping[str, Any], left_out: tuple[int, int]) -> _Epoch:
    """Return one rank's epoch from its part of output.json."""
    names = sorted(filter(_BLOCK.fullmatch, tree["proc"]), key=lambda name: int(name[5:]))
    blocks = [_block(tree, name) for name in names]
    seconds = [
        _block_seconds(proc, compute, tree["au"].get(name), left_out)
        for name, (_, proc, compute) in zip(names, blocks, strict=True)
    ]
    load, proc, compute = map(np.concatenate, zip(*blocks, strict=True))
    return _Epoch(load, proc, compute, total(seconds), len(blocks))


def _block(tree: Mapping[str, Any], name: str) -> tuple[NDArray[np.float64], ...]:
    """Return a block's load, proc and compute seconds; a batch that was not processed is left."""
    load, proc, compute = (
        np.asarray(tree[field][name], np.float64) for field in ("load", "proc", "compute")
    )
    load = load[: len(proc)]
    if not (proc.shape == load.shape == compute.shape and proc.ndim == 1):
        raise ValueError(f"{name} has other numbers of load, proc and compute times")
    if not np.isfinite([proc, load, compute]).all() or (load > proc).any() or (load < 0).any():
        raise ValueError(f"{name} has times that cannot be")
    return load, proc, compute


def _block_seconds(
    proc: NDArray[np.float64], compute: NDArray[np.float64], au: object, left_out: tuple[int, int]
) -> float | None:
    """Return a block's whole time from its AU; None where that does not tell."""
    window = slice(left_out[0], len(proc) - left_out[1])
    if not isinstance(au, (int, float)) or au <= 0 or not compute[window].sum():
        return None
    outside = proc[: window.start].sum() + proc[window.stop :].sum()
    return float(100 * compute[window].sum() / au + outside)


# --- blocks ---------------------------------------------------------------------------------------


def present_foreign(document: Document) -> list[Block]:
    """Return the blocks of a run of another tool of which the steps or the keys are missing."""
    what = f"{document['workload']}: {counted(document['num_accelerators'], 'accelerator')}"
    notes = note_lines(document)
    by = f"by {document['tool']}'s own figures ({_word(document)})"
    return [Verdict(f"{document['verdict']}: {by}", tone_of(document)), Lines([what, *notes])]


def present_recorded(document: Document) -> list[Block]:
    """Return the blocks of what another tool recorded of its run, or of several."""
    tool = document["tool"]
    if document["kind"] == "runs":
        recorded = Column(f"AU as {tool} recorded it (%)", "recorded_au_percentage", ".2f")
        return [
            table_of(document["runs"], Column("run", "name"), recorded),
            *(Fold(r["name"], [*present_run(r), *present_recorded(r)]) for r in document["runs"]),
            Lines([f"not read: {why}" for why in document["incomplete"].values()]),
        ]
    recorded = document["recorded_per_epoch"]
    rows = [
        ("AU (%)", recorded["train_au_percentage"], ".2f"),
        ("samples/s", recorded["train_throughput_samples_per_second"], ".2f"),
        ("first step: waiting for other ranks (s)", document["first_barrier_seconds"], ".3f"),
    ]
    if document["kind"] != "run":
        rows.append(("AU by dlemu's formula (%)", document["au_percentage"], ".2f"))
    lines = [f"{tool}'s own verdict: {_word(document)}", *document["differences"]]
    table = over_epochs((row for row in rows if row[1]), f"as {tool} recorded it")
    return [table, Lines(lines)]


def _word(document: Document) -> str:
    return document["recorded"]["metric"].get("train_au_meet_expectation") or "no word on it"


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
        raise RunError(next(iter(incomplete.values())), remedy=_RUN_AGAIN)
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
    recorded = fmean(run["recorded_per_epoch"]["train_au_percentage"])
    row = {**run, **row_of(name, cast(Summary, run)), "recorded_au_percentage": recorded}
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
    figures; with what the tool recorded (`recorded`), and what it counts in another way.

    Raises:
        RunError: the run did not end, or a file is damaged.
    """
    summary = _read_summary(folder)
    notes: list[str] = []
    tree = _read_config(folder, notes)
    workload = None if tree is None else _workload_of(tree, keys, notes)
    dlio, metrics, outputs = None, None, read_output(folder)
    try:
        dlio = steps_of(folder, outputs, summary["num_accelerators"], workload)
        edition = cast(Edition, keys.get("metric.edition", "v1.0"))
        metrics = (
            measure(dlio.steps, edition=edition)
            if workload is None
            else measure_run(workload, dlio.steps)
        )
    except DlemuError as error:
        notes.append(f"AU cannot be computed again: {error}")
    except DAMAGE as error:
        raise damaged(folder / "<rank>_output.json", in_short(error)) from None
    is_mlpstorage = (folder / "dlio_config").is_dir() or any(folder.glob("*_metadata.json"))
    tool = "mlpstorage" if is_mlpstorage else "DLIO"
    model = (tree or {}).get("model")
    name = model.get("name") if isinstance(model, dict) else model
    barriers = [] if dlio is None else _first_barriers(dlio)
    try:
        document: dict[str, Any] = {
            "kind": "foreign",
            "verdict": _WORDS.get(summary["metric"].get("train_au_meet_expectation"), "NO VERDICT"),
            "findings": [],
            "au_percentage": [],
        }
        if metrics is not None:
            document["au_percentage"] = [epoch.au_percentage for epoch in metrics.epochs]
            if workload is not None:
                document = {**with_metrics(Summary(), workload, metrics), "status": "complete"}
        document |= {name: summary[name] for name in _PLACE if name in summary}
        document |= {
            "tool": tool,
            "workload": _chosen(folder) or str(name or summary.get("workload") or "unknown"),
            "notes": notes,
            "recorded": summary,
            "recorded_per_epoch": {
                name: [float(each) for each in summary["metric"].get(name) or ()]
                for name in _RECORDED
            },
            "first_barrier_seconds": barriers,
            "differences": [],
        }
    except DAMAGE as error:
        raise damaged(folder / SUMMARY, in_short(error)) from None
    if dlio is not None and metrics is not None:
        document["differences"] = list(_differences(tool, dlio, fmean(barriers), metrics))
    return document, dlio


def _read_summary(folder: Path) -> Mapping[str, Any]:
    """Return DLIO's summary; where there is none, the run did not end."""
    paths = [path for path in sorted(folder.glob(f"*{SUMMARY}")) if path.is_file()]
    if not paths:
        raise RunError(f"{folder} holds no {SUMMARY}: DLIO writes it when a run ends, this did not")
    recorded = read_object(paths[0])
    metric = recorded.get("metric")
    if not isinstance(metric, dict) or "train_au_percentage" not in metric:
        raise RunError(f"{paths[0]} holds no figures of a training (train_au_percentage)")
    if not isinstance(recorded.get("num_accelerators"), int):
        raise damaged(paths[0], "num_accelerators is no number")
    return recorded


def _read_config(folder: Path, notes: list[str]) -> dict[str, Any] | None:
    """Return the workload as DLIO's configuration has it."""
    for name in _CONFIGS:
        path = folder / name / "config.yaml"
        if path.is_file():
            try:
                tree = read_yaml(path)
            except (DlemuError, OSError) as error:
                why = system_line(error, path) if isinstance(error, OSError) else str(error)
                raise RunError(why) from None
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
        workload = check_workload(values_of(needed), source=WordSource.FOUND)
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
