"""The outcome of a run: its metrics, and the fields of summary.json that follow from them."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from dlemu.config.model import Workload
from dlemu.judge.checkpoints import CheckpointFields, dlio_names
from dlemu.judge.judgement import hidden_share, judge_run
from dlemu.judge.metrics import EpochMetrics, Metrics
from dlemu.judge.summary import EpochRow, Metric, ReaderFields, Summary, limit_name

_MEET_EXPECTATION = {"PASS": "success", "FAIL": "fail", "NO VERDICT": "no verdict"}
"""DLIO's words, and one that it lacks."""
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
        "reader": ReaderFields(
            batch_size=reader.batch_size,
            read_threads=reader.read_threads,
            odirect=reader.odirect,
            gets_in_flight=reader.gets_in_flight,
            scattered=workload.dataset.format == "parquet" or reader.access == "random",
        ),
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
