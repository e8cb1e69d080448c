"""Results of DLIO and mlpstorage, computed again by dlemu's formulas.

A result folder of DLIO holds summary.json, the files that `dlio_steps` reads, and its workload in
.hydra/config.yaml. mlpstorage's has the workload in dlio_config/config.yaml, and lies in a folder
that holds one folder for each run, named by its time.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from dlemu.errors import DAMAGE, DlemuError, RunError, in_short
from dlemu.reports.dlio_steps import Definition, DlioSteps, read_object, read_output, steps_of
from dlemu.reports.rows import ResultRow
from dlemu.results.judgement import EXIT_STATUS, judge_run
from dlemu.results.metrics import Metrics, measure, measure_run
from dlemu.results.outcome import with_metrics
from dlemu.results.records import SUMMARY
from dlemu.results.summary import Summary, Verdict
from dlemu.results.sums import Edition
from dlemu.workload.compose import read_yaml
from dlemu.workload.model import Workload, check_workload

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
_WORDS: Mapping[object, Verdict] = {"success": "PASS", "fail": "FAIL"}


@dataclass(frozen=True, kw_only=True)
class ForeignRun:
    """One run of DLIO or mlpstorage."""

    folder: Path
    tool: str
    """"DLIO" or "mlpstorage"."""
    name: str
    """The workload's, as the command line or the configuration has it."""
    told: Mapping[str, Any]
    """DLIO's summary.json."""
    workload: Workload | None
    """None: its configuration is missing, or holds too little."""
    dlio: DlioSteps | None
    """None: the steps are missing; then `notes` says why."""
    metrics: Metrics | None
    """By dlemu's formula."""
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """By dlemu's rule where steps and configuration are there, else DLIO's own."""
        if self.workload is None or self.metrics is None:
            return _WORDS.get(self.metric.get("train_au_meet_expectation"), "NO VERDICT")
        return judge_run(self.workload, self.metrics).verdict

    @property
    def metric(self) -> Mapping[str, Any]:
        """DLIO's own figures, by its names."""
        return cast(Mapping[str, Any], self.told["metric"])

    @property
    def summary(self) -> Mapping[str, Any]:
        """The document of a run where steps and configuration are there, else of the tool's own
        figures; with what the tool recorded (`told`), and what it counts in another way."""
        document: dict[str, Any] = {"kind": "foreign"}
        if self.workload is not None and self.metrics is not None:
            document = {**with_metrics(Summary(), self.workload, self.metrics)}
        differences = []
        if self.dlio is not None and self.metrics is not None:
            differences = list(_differences(self.tool, self.dlio, self.metrics))
        return {
            **document,
            **{name: self.told[name] for name in _PLACE if name in self.told},
            "tool": self.tool,
            "workload": self.name,
            "verdict": self.verdict,
            "notes": self.notes,
            "told": self.told,
            "told_per_epoch": {name: _floats(self.metric.get(name)) for name in _TOLD},
            "computed": _computed(self),
            "differences": differences,
        }

    @property
    def row(self) -> ResultRow:
        """The run's row in a table of all tools."""
        metrics, metric, workload = self.metrics, self.metric, self.workload
        rate: float | None = _mean(metric.get("train_throughput_samples_per_second"))
        if metrics is not None and workload is not None:
            rate = metrics.mean("true_samples_per_second")
        size = None if workload is None else workload.dataset.mean_bytes
        return ResultRow(
            name=str(self.folder),
            tool=self.tool,
            workload=self.name,
            num_accelerators=self.told["num_accelerators"],
            au_percentage=None if metrics is None else metrics.au_percentage,
            told_au_percentage=_mean(metric.get("train_au_percentage")),
            whole_au_percentage=None if metrics is None else metrics.whole_epoch_au_percentage,
            samples_per_second=rate,
            nominal_MB_per_second=None if size is None or rate is None else rate * size / 1e6,
            first_step_seconds=None if metrics is None else metrics.mean("first_step_seconds"),
            verdict=self.verdict,
        )


@dataclass(frozen=True)
class Foreign:
    """What a folder of another tool holds: one run, or several with a folder each."""

    folder: Path
    runs: Sequence[ForeignRun]
    incomplete: Mapping[str, str] = field(default_factory=dict)
    """Folders of runs that cannot be read, and why."""

    @property
    def kind(self) -> str:
        """ "DLIO" or "mlpstorage"."""
        return self.runs[0].tool

    @property
    def summary(self) -> Mapping[str, Any]:
        """The fields of `dlemu report --json`: of the run, or `runs`."""
        if len(self.runs) == 1 and self.runs[0].folder == self.folder:
            return self.runs[0].summary
        runs = [{"name": run.folder.name, **run.summary} for run in self.runs]
        return {"tool": self.kind, "runs": runs, "incomplete": dict(self.incomplete)}

    @property
    def status(self) -> int:
        """As `dlemu run` exits, for the worst of the runs."""
        statuses = {EXIT_STATUS[run.verdict] for run in self.runs}
        if self.incomplete:
            statuses.add(1)
        return next(status for status in (1, 2, 0) if status in statuses)

    @property
    def rows(self) -> Sequence[ResultRow]:
        """A row for each run."""
        return [run.row for run in self.runs]


def is_foreign(folder: Path) -> bool:
    """Return whether a folder holds a result of DLIO or mlpstorage, or several of them."""
    return _is_leaf(folder) or bool(_leaves(folder))


def read_foreign(folder: Path, keys: Mapping[str, object]) -> Foreign:
    """Return what a folder of another tool holds, computed again; `keys` are those of `metric`.

    Raises:
        RunError: a run did not end, or a file is damaged; of several, all.
        WorkloadError: a key or value of `keys` is refused.
    """
    if _is_leaf(folder):
        return Foreign(folder, [_read_leaf(folder, keys)])
    runs, incomplete = [], {}
    for leaf in _leaves(folder):
        try:
            runs.append(_read_leaf(leaf, keys))
        except RunError as error:
            incomplete[leaf.name] = str(error)
    if not runs:
        none = f"{folder} holds no result of DLIO or mlpstorage"
        raise RunError(next(iter(incomplete.values()), none))
    return Foreign(folder, runs, incomplete)


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


def _read_leaf(folder: Path, keys: Mapping[str, object]) -> ForeignRun:
    told = _read_summary(folder)
    notes: list[str] = []
    tree = _read_config(folder, notes)
    workload = None if tree is None else _workload_of(tree, keys, notes)
    dlio, metrics, outputs = None, None, read_output(folder)
    try:
        dlio = _read_steps(folder, outputs, told, workload)
        metrics = _measure(dlio, workload, keys)
    except RunError as error:
        notes.append(f"AU cannot be computed again: {error}")
    except DAMAGE as error:
        raise RunError(f"{folder}: a <rank>_output.json is damaged: {in_short(error)}") from None
    is_mlpstorage = (folder / "dlio_config").is_dir() or any(folder.glob("*_metadata.json"))
    model = (tree or {}).get("model")
    name = model.get("name") if isinstance(model, dict) else model
    run = ForeignRun(
        folder=folder,
        tool="mlpstorage" if is_mlpstorage else "DLIO",
        name=_chosen(folder) or str(name or told.get("workload") or "unknown"),
        told=told,
        workload=workload,
        dlio=dlio,
        metrics=metrics,
        notes=tuple(notes),
    )
    try:
        assert run.summary and run.row  # reads every field that is shown
    except DAMAGE as error:
        raise RunError(f"{folder / SUMMARY} is damaged: {in_short(error)}") from None
    return run


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


def _read_steps(
    folder: Path,
    outputs: Mapping[int, Mapping[str, Any]],
    told: Mapping[str, Any],
    workload: Workload | None,
) -> DlioSteps:
    """Return the steps of all ranks.

    Raises:
        RunError: a rank's are missing, or they do not fit together.
    """
    missing = sorted(set(range(told["num_accelerators"])) - outputs.keys())
    if missing:
        names = ", ".join(f"{rank}_output.json" for rank in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise RunError(f"{names}{more} missing")
    metric = None if workload is None else workload.metric
    measured = not (folder / "per_epoch_stats.json").exists()
    nominal = None
    if workload is not None and workload.train.computation_time.stdev == 0:
        nominal = workload.train.computation_time.mean
    return steps_of(
        outputs,
        definition=Definition(
            start=metric.exclude_start_steps if metric and measured else 1,
            end=metric.exclude_end_steps if metric and measured else 0,
            measured=measured,
        ),
        batch_size=1 if workload is None else workload.reader.batch_size,
        nominal=nominal,
    )


def _measure(dlio: DlioSteps, workload: Workload | None, keys: Mapping[str, object]) -> Metrics:
    try:
        if workload is not None:
            return measure_run(workload, dlio.steps)
        return measure(dlio.steps, edition=cast(Edition, keys.get("metric.edition", "v1.0")))
    except DlemuError as error:
        raise RunError(str(error)) from None


def _floats(values: object) -> list[float]:
    return list(map(float, values)) if isinstance(values, list) else []


def _mean(values: object) -> float | None:
    return float(np.mean(values)) if isinstance(values, list) and values else None


def _computed(run: ForeignRun) -> Mapping[str, Any] | None:
    """Return what dlemu computes, one value an epoch, by the names of a run's summary."""
    if run.metrics is None or run.dlio is None:
        return None
    epochs = run.metrics.epochs
    rates = [epoch.true_samples_per_second for epoch in epochs]
    return {
        "edition": run.metrics.edition,
        "train_au_percentage": [epoch.au_percentage for epoch in epochs],
        "train_au_mean_percentage": run.metrics.au_percentage,
        "whole_epoch_au_percentage": [epoch.whole_epoch_au_percentage for epoch in epochs],
        # The batch size is the configuration's.
        "samples_per_second": None if run.workload is None else rates,
        "first_step_seconds": [epoch.first_step_seconds for epoch in epochs],
        "first_barrier_seconds": _first_barriers(run.dlio),
        "barrier_share": [epoch.barrier_share for epoch in epochs],
        "overhead_share": [epoch.overhead_share for epoch in epochs],
    }


def _first_barriers(dlio: DlioSteps) -> list[float]:
    """Return the mean wait for other ranks after the first step, of each epoch."""
    firsts = dlio.steps[dlio.steps["step"] == 0]
    return [
        float(firsts["barrier"][firsts["epoch"] == epoch].mean())
        for epoch in np.unique(firsts["epoch"])
    ]


def _differences(tool: str, dlio: DlioSteps, metrics: Metrics) -> Iterator[str]:
    """Yield what DLIO counts in another way."""
    barrier = float(np.mean(_first_barriers(dlio)))
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
