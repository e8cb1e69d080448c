"""What a run came to: its metrics, and the fields of summary.json that follow from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dlemu.results.metrics import Metrics
from dlemu.results.proof import hidden_share, judge
from dlemu.workload.model import Workload

_MEET_EXPECTATION = {"PASS": "success", "FAIL": "fail", "NO VERDICT": "no verdict"}
"""DLIO's words, and one that it lacks."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to, on rank 0."""

    folder: Path
    metrics: Metrics
    summary: Mapping[str, Any]
    passed: bool


def summarize(workload: Workload, metrics: Metrics, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of summary.json that follow from the steps, by DLIO's names.

    `summary` is what is known beside them: `measured`, and `status` where the run failed.
    """
    judgement = judge(workload, metrics, summary)
    au = [epoch.au_percentage for epoch in metrics.epochs]
    rate = [epoch.samples_per_second for epoch in metrics.epochs]
    nominal = [each * workload.dataset.mean_bytes / 2**20 for each in rate]
    return {
        "num_accelerators": metrics.num_accelerators,
        "verdict": judgement.verdict,
        "reasons": list(judgement.reasons),
        "remarks": [*judgement.remarks, *([judgement.hidden] if judgement.hidden else [])],
        "metric": {
            "edition": metrics.edition,
            "train_au_percentage": au,
            "train_au_mean_percentage": float(np.mean(au)),
            "train_au_stdev_percentage": float(np.std(au)),
            "train_au_meet_expectation": _MEET_EXPECTATION[judgement.verdict],
            "train_hidden_share": hidden_share(workload, metrics),
            "train_throughput_samples_per_second": rate,
            "train_throughput_mean_samples_per_second": float(np.mean(rate)),
            "train_throughput_stdev_samples_per_second": float(np.std(rate)),
            "train_io_mean_MB_per_second": float(np.mean(nominal)),
            "train_io_stdev_MB_per_second": float(np.std(nominal)),
        },
    }
