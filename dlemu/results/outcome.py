"""The outcome of a run: its metrics, and the fields of summary.json that follow from them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dlemu.results.judgement import hidden_share, judge_run
from dlemu.results.metrics import Metrics
from dlemu.results.summary import Measured, Metric, Summary
from dlemu.workload.model import Workload

_MEET_EXPECTATION = {"PASS": "success", "FAIL": "fail", "NO VERDICT": "no verdict"}
"""DLIO's words, and one that it lacks."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run, on rank 0."""

    folder: Path
    metrics: Metrics
    summary: Mapping[str, Any]
    """As summary.json has it; dlemu.results.summary.Summary documents the fields."""
    passed: bool


def outcome_of(folder: Path, metrics: Metrics, summary: Summary) -> Outcome:
    """Return the outcome of a run that was judged."""
    return Outcome(folder, metrics, summary.as_json(), summary.verdict == "PASS")


def measured_with(metrics: Metrics, measured: Measured) -> Measured:
    """Return what was measured with the fields that follow from the steps."""
    return replace(
        measured,
        read_bytes=metrics.read_bytes,
        read_bytes_per_second=metrics.read_bytes_per_second,
        whole_epoch_au_percentage=[e.whole_epoch_au_percentage for e in metrics.epochs],
        first_step_seconds=[epoch.first_step_seconds for epoch in metrics.epochs],
    )


def with_metrics(summary: Summary, workload: Workload, metrics: Metrics) -> Summary:
    """Return the summary with the fields that follow from the steps."""
    judgement = judge_run(workload, metrics, summary)
    au = [epoch.au_percentage for epoch in metrics.epochs]
    rate = [epoch.samples_per_second for epoch in metrics.epochs]
    nominal = [each * workload.dataset.mean_bytes / 2**20 for each in rate]
    return replace(
        summary,
        num_accelerators=metrics.num_accelerators,
        verdict=judgement.verdict,
        reasons=list(judgement.reasons),
        remarks=[*judgement.remarks, *([judgement.hidden] if judgement.hidden else [])],
        metric=Metric(
            edition=metrics.edition,
            train_au_percentage=au,
            train_au_mean_percentage=float(np.mean(au)),
            train_au_stdev_percentage=float(np.std(au)),
            train_au_meet_expectation=_MEET_EXPECTATION[judgement.verdict],
            train_hidden_share=hidden_share(workload, metrics),
            train_throughput_samples_per_second=rate,
            train_throughput_mean_samples_per_second=float(np.mean(rate)),
            train_throughput_stdev_samples_per_second=float(np.std(rate)),
            train_io_mean_MB_per_second=float(np.mean(nominal)),
            train_io_stdev_MB_per_second=float(np.std(nominal)),
        ),
    )
