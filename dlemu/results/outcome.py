"""The outcome of a run: its metrics, and the fields of summary.json that follow from them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dlemu.results.checkpoints import dlio_names, with_cost
from dlemu.results.judgement import hidden_share, judge_run
from dlemu.results.metrics import Metrics
from dlemu.results.summary import Metric, Summary
from dlemu.workload.model import Workload

_MEET_EXPECTATION = {"PASS": "success", "FAIL": "fail", "NO VERDICT": "no verdict"}
"""DLIO's words, and one that it lacks."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run, on rank 0."""

    folder: Path
    metrics: Metrics
    summary: Summary
    """The fields of summary.json."""

    @property
    def passed(self) -> bool:
        """Whether the verdict is PASS."""
        return self.summary["verdict"] == "PASS"


def with_metrics(summary: Summary, workload: Workload, metrics: Metrics) -> Summary:
    """Return the summary with the fields that follow from the steps."""
    judgement = judge_run(workload, metrics, summary)
    au = [epoch.au_percentage for epoch in metrics.epochs]
    rate = [epoch.samples_per_second for epoch in metrics.epochs]
    nominal = [each * workload.dataset.mean_bytes / 2**20 for each in rate]
    written = summary.get("checkpoints")
    if written is not None and metrics.checkpoints is not None:
        summary = {**summary, "checkpoints": with_cost(written, metrics.checkpoints)}
    return {
        **summary,
        "num_accelerators": metrics.num_accelerators,
        "epochs": len(metrics.epochs),
        "verdict": judgement.verdict,
        "reasons": list(judgement.reasons),
        "remarks": [*judgement.remarks, *([judgement.hidden] if judgement.hidden else [])],
        "metric": Metric(
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
            **dlio_names(written),
        ),
    }
