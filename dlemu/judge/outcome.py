"""The outcome of a run and of several: the fields of summary.json that follow from the metrics."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np

from dlemu.config.model import Workload
from dlemu.judge.checkpoints import CheckpointFields, dlio_names
from dlemu.judge.judgement import hidden_share, judge_run
from dlemu.judge.metrics import EpochMetrics, Metrics, passes, t95
from dlemu.judge.summary import (
    EpochRow,
    Measured,
    Metric,
    RunRow,
    RunsSummary,
    Spread,
    Summary,
    Verdict,
    limit_name,
)

_MEET_EXPECTATION = {"PASS": "success", "FAIL": "fail", "NO VERDICT": "no verdict"}
"""DLIO's words, and one that it lacks."""
_OF_READER = ("batch_size", "read_threads", "odirect", "gets_in_flight")
_OF_AN_EPOCH = (
    *("num_steps", "seconds", "au_percentage", "whole_epoch_au_percentage", "samples_per_second"),
    *("true_samples_per_second", "read_bytes_per_second", "reads_per_second"),
    *("first_step_seconds", "wait_mean_seconds", "wait_p50_seconds", "wait_p99_seconds"),
)
"""Fields of EpochMetrics that summary.json has."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run, on rank 0."""

    folder: Path
    metrics: Metrics
    summary: Summary
    """The fields of summary.json."""


def with_metrics(summary: Summary, workload: Workload, metrics: Metrics) -> Summary:
    """Return the summary with the fields that follow from the steps."""
    judgement = judge_run(workload, metrics, summary)
    wanted = 100 * workload.metric.au
    feeds = None
    if judgement["verdict"] != "NO VERDICT" and limit_name(summary) == "storage":
        rounded = round(metrics.au_percentage, 2)  # as `passes` rounds
        feeds = metrics.num_accelerators * rounded / wanted
    au = [epoch.au_percentage for epoch in metrics.epochs]
    each = np.mean([epoch.accelerator_au for epoch in metrics.epochs], axis=0)
    rate = [epoch.samples_per_second for epoch in metrics.epochs]
    nominal = [each * workload.dataset.mean_bytes / 2**20 for each in rate]
    written = summary.get("checkpoints")
    if metrics.checkpoints is not None:
        both = cast(CheckpointFields, {**(written or {}), **metrics.checkpoints})
        summary = {**summary, "checkpoints": both}
    reader = workload.reader
    return {
        "kind": "run",
        "workload": workload.name,
        **summary,
        "reader": {
            **{name: getattr(reader, name) for name in _OF_READER},
            "scattered": workload.dataset.format == "parquet" or reader.access == "random",
        },
        "num_accelerators": metrics.num_accelerators,
        "epochs": len(metrics.epochs),
        **judgement,
        "threshold_percentage": wanted,
        "real_accelerators": feeds,
        "per_epoch": [
            _row(epoch, workload.dataset.mean_bytes, known=metrics.read_bytes > 0)
            for epoch in metrics.epochs
        ],
        "metric": Metric(
            edition=metrics.edition,
            train_au_percentage=au,
            train_au_mean_percentage=float(np.mean(au)),
            train_au_stdev_percentage=float(np.std(au)),
            train_au_interval_percentage=list(metrics.au_interval or ()) or None,
            train_au_min_accelerator_percentage=float(each.min()),
            train_au_meet_expectation=_MEET_EXPECTATION[judgement["verdict"]],
            train_hidden_share=hidden_share(workload, metrics),
            train_throughput_samples_per_second=rate,
            train_throughput_mean_samples_per_second=float(np.mean(rate)),
            train_throughput_stdev_samples_per_second=float(np.std(rate)),
            train_io_mean_MB_per_second=float(np.mean(nominal)),
            train_io_stdev_MB_per_second=float(np.std(nominal)),
            **dlio_names(written),
        ),
    }


def _row(epoch: EpochMetrics, mean_bytes: float, *, known: bool) -> EpochRow:
    """Return the row of an epoch; `known` is whether the loader counts what it reads.

    A loop of one's own may show neither its samples nor their bytes.
    """
    row: dict[str, Any] = {"epoch": epoch.epoch + 1}
    row |= {name: getattr(epoch, name) for name in _OF_AN_EPOCH}
    row["nominal_bytes_per_second"] = epoch.samples_per_second * mean_bytes
    row["lost"] = asdict(epoch.lost)
    unknown = [
        *(["samples_per_second"] if not epoch.num_samples else []),
        *(["nominal_bytes_per_second", "read_bytes_per_second"] if not known else []),
        *(["reads_per_second"] if not epoch.num_reads else []),
    ]
    return row | dict.fromkeys(unknown)


# --- several runs ---------------------------------------------------------------------------------


LABEL = "MLPerf-Storage-style, not an MLPerf result"

_CLOCK = 1.0
"""Seconds that begin and end of a run are told to."""
REPEATABILITY = 0.05
"""Each run's samples/s must lie this close to their mean (rules, "repeatability")."""


def judge_runs(summary: RunsSummary, runs: Sequence[Summary]) -> RunsSummary:
    """Return the summary with the verdict, its reasons, and the spread of AU and samples/s.

    FAIL if one of the `runs` has it; else NO VERDICT if a run has that.
    """
    au = [run["metric"]["train_au_mean_percentage"] for run in runs]
    rates = [run["metric"]["train_throughput_mean_samples_per_second"] for run in runs]
    reasons = []
    verdicts = [run["verdict"] for run in runs]
    for number, run in enumerate(runs, 1):
        if run["verdict"] == "NO VERDICT":
            reasons.append(f"run {number}: NO VERDICT, {'; '.join(run['reasons'])}")
        elif run["verdict"] == "FAIL":
            rule = " (rule 3.3.2)" if _has_numbered_rules(summary, run) else ""
            reasons.append(f"run {number}: AU {au[number - 1]:.2f}%{rule}")
    remarks = _joined([run["remarks"] for run in runs])
    mean = float(np.mean(rates))
    spread = max(abs(rate / mean - 1) for rate in rates)
    if spread > REPEATABILITY:
        reasons.append(
            f"samples/s differ by up to {100 * spread:.1f}% from their mean, "
            f"{100 * REPEATABILITY:g}% is allowed"
        )
    if runs and _has_numbered_rules(summary, runs[-1]):
        reasons += _long_gaps(summary["runs"])
    verdict: Verdict = "FAIL" if reasons else "PASS"
    if "FAIL" not in verdicts and "NO VERDICT" in verdicts:
        verdict = "NO VERDICT"
    return {
        "kind": "runs",
        **summary,
        "status": "complete",
        "threshold_percentage": runs[0]["threshold_percentage"],
        "verdict": verdict,
        "reasons": reasons,
        "remarks": remarks,
        "repeatability_percentage": 100 * spread,
        "au_percentage": spread_of(au, most=100.0),
        "samples_per_second": spread_of(rates),
    }


def _has_numbered_rules(summary: RunsSummary, run: Summary) -> bool:
    """Return whether the closed division's rules apply, in the edition that numbers them."""
    return summary.get("division") == "closed" and run["metric"]["edition"] == "v3.0"


def _long_gaps(rows: Sequence[RunRow]) -> Iterator[str]:
    """Yield the gaps before runs that leave time for another one: rule 2.1.18."""
    for before, row in pairwise(rows):
        gap = row["gap_seconds"]
        begin, end = (datetime.fromisoformat(before[key]) for key in ("start", "end"))
        took = (end - begin).total_seconds()
        if gap is not None and gap >= max(took, _CLOCK):
            yield (
                f"{gap:.0f} s lie between {before['name']} and {row['name']}, less than the "
                f"{took:.0f} s of a run may (rule 2.1.18)"
            )


def spread_of(values: Sequence[float], *, most: float = math.inf) -> Spread:
    """Return mean, standard deviation (n - 1) and the 95 % interval of the mean.

    The values, and so the interval, are from 0 to `most`.
    """
    mean = float(np.mean(values))
    if len(values) < 2:
        return Spread(mean=mean, sd=None, interval=None)
    sd = float(np.std(values, ddof=1))
    half = t95(len(values) - 1) * sd / len(values) ** 0.5
    return Spread(mean=mean, sd=sd, interval=[max(0.0, mean - half), min(most, mean + half)])


def counting_rows(rows: Sequence[RunRow]) -> list[RunRow]:
    """Return the rows of the runs that count: warm-ups do not."""
    return [row for row in rows if not row["name"].startswith("warmup")]


def _joined(remarks: Sequence[Sequence[str]]) -> list[str]:
    """Return the remarks of all runs, each once; of those that differ in a number the first."""
    kinds: dict[str, dict[int, str]] = {}
    for number, each in enumerate(remarks, 1):
        for remark in each:
            kinds.setdefault(re.sub(r"\d[\d.,]*", "", remark), {}).setdefault(number, remark)
    found = []
    for by_run in kinds.values():
        first, text = next(iter(by_run.items()))
        same = len(by_run) == len(remarks) and len({*by_run.values()}) == 1
        alike = f" and {len(by_run) - 1} more alike" if len(by_run) > 1 else ""
        found.append(text if same else f"run {first}{alike}: {text}")
    return found


def row_of(name: str, run: Summary) -> RunRow:
    """Return a run's row of the table."""
    epochs, metric = run["per_epoch"], run["metric"]
    measured = run.get("measured", Measured())
    under = [
        f"epoch {epoch['epoch']} ({epoch['au_percentage']:.2f}%)"
        for epoch in epochs
        if not passes(epoch["au_percentage"], run["threshold_percentage"])
    ]
    return RunRow(
        name=name,
        status=run["status"],
        verdict=run["verdict"],
        start=run.get("start", ""),
        end=run.get("end", ""),
        gap_seconds=None,
        au_percentage=metric["train_au_mean_percentage"],
        whole_epoch_au_percentage=fmean(epoch["whole_epoch_au_percentage"] for epoch in epochs),
        samples_per_second=metric["train_throughput_mean_samples_per_second"],
        min_accelerator_au_percentage=metric["train_au_min_accelerator_percentage"],
        read_bytes_per_second=measured.get("read_bytes_per_second"),
        nominal_MiB_per_second=metric["train_io_mean_MB_per_second"],
        page_cache_share=measured.get("page_cache_share"),
        limit=limit_name(run),
        epochs_under=", ".join(under),
    )
