"""A run as people read it: the table, the verdict, and what stands behind it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dlemu.results.metrics import EpochMetrics, Metrics, passes
from dlemu.results.proof import judge
from dlemu.results.records import UNFINISHED
from dlemu.units import counted, format_bytes
from dlemu.workload.model import Workload

_MIB = 2**20

ROWS: list[tuple[str, Callable[[EpochMetrics, float], float], str]] = [
    ("accelerator utilisation (%)", lambda e, _: e.au_percentage, ".2f"),
    ("  with the first step (%)", lambda e, _: e.whole_epoch_au_percentage, ".2f"),
    ("samples/s", lambda e, _: e.samples_per_second, ".2f"),
    ("read, nominal (MiB/s)", lambda e, mean: e.samples_per_second * mean / _MIB, ".1f"),
    ("read, really (MiB/s)", lambda e, _: e.read_bytes_per_second / _MIB, ".1f"),
    ("first step (s)", lambda e, _: e.first_step_seconds, ".3f"),
    ("wait for a batch (ms)", lambda e, _: 1e3 * e.wait_seconds, ".2f"),
]


def render_metrics(
    workload: Workload, metrics: Metrics, *, accelerator: str = "emulated accelerator"
) -> str:
    """Return the table per epoch and the verdict line; `accelerator` is what computed."""
    hidden = judge(workload, metrics).hidden
    lines = [*_table(workload, metrics, accelerator), "", verdict_line(workload, metrics)]
    return "\n".join([*lines, hidden] if hidden else lines)


def render_run(workload: Workload, metrics: Metrics, summary: Mapping[str, Any]) -> str:
    """Return a run's whole report: table, verdict, the limit and what was measured beside it."""
    lines = [*_table(workload, metrics), "", verdict_line(workload, metrics, summary)]
    hidden = judge(workload, metrics, summary).hidden
    lines += [hidden] if hidden else []
    limit = summary.get("limit")
    if limit:
        lines.append(f"limit: {limit['name']}. {limit['evidence']}")
        if limit.get("advice"):
            lines.append(f"try: {limit['advice']}")
    lines += _path_line(summary)
    lines += _below(workload, metrics)
    lines += [f"note: {note}" for note in summary.get("notes", ())]
    return "\n".join(lines)


def _path_line(summary: Mapping[str, Any]) -> list[str]:
    """Return which way the bytes took to memory, where cuFile could have been one of them."""
    measured = summary.get("measured") or {}
    if summary.get("data_loader") != "dali" or "path_bytes" not in measured:
        return []
    taken = measured["path_bytes"]
    parts = [
        f"{format_bytes(taken[name])} {title}"
        for name, title in (
            ("p2pdma", "by P2PDMA straight to the GPU"),
            ("nvidia_fs", "by nvidia-fs straight to the GPU"),
            ("compat", "by cuFile's compat mode, through the host: not GPUDirect Storage"),
            ("host", "through the host's memory"),
        )
        if taken.get(name)
    ]
    guess = ", shares estimated from cuFile's operations" if taken.get("estimated") else ""
    return [f"path: {measured['path']} ({'; '.join(parts)}{guess})"]


def verdict_line(
    workload: Workload, metrics: Metrics, summary: Mapping[str, Any] | None = None
) -> str:
    """Return the verdict with the figures that decide; how many accelerators that makes."""
    summary = summary or {}
    judgement = judge(workload, metrics, summary)
    au, wanted = metrics.au_percentage, 100 * workload.metric.au
    how = f"edition {metrics.edition}"
    if "loop" in summary:  # runs of earlier versions do not say
        how += f", loop {summary['loop']}, hand-over {summary['hand_over']}"
    figures = f"utilisation {au:.2f}%, at least {wanted:g}% wanted ({how})"
    if judgement.reasons:
        ended = summary.get("status") not in UNFINISHED
        parts = [*([figures] if ended else []), *judgement.reasons, *judgement.remarks]
        return f"{judgement.verdict}: {'; '.join(parts)}"
    parts = [f"{judgement.verdict}: {figures}"]
    limit = (summary.get("limit") or {}).get("name")
    if limit == "storage":
        feeds = metrics.num_accelerators * round(au, 2) / wanted  # as `passes` rounds
        parts.append(
            f"this storage feeds {counted(int(feeds + 1e-9), 'accelerator')} ({feeds:.1f})"
        )
    return "; ".join([*parts, *judgement.remarks])


def _table(
    workload: Workload, metrics: Metrics, accelerator: str = "emulated accelerator"
) -> list[str]:
    epochs = metrics.epochs
    lines = [
        f"{workload.name}: {counted(metrics.num_accelerators, accelerator)}, "
        f"{counted(len(epochs), 'epoch')} of {epochs[0].num_steps} steps, "
        f"batches of {workload.reader.batch_size}",
        "",
        f"{'per epoch':<28}{'mean':>12}{'min':>12}{'max':>12}",
        f"{'':<28}" + "  ----------" * 3,
    ]
    mean_bytes = workload.dataset.mean_bytes
    for name, value, form in ROWS:
        values = [value(epoch, mean_bytes) for epoch in epochs]
        cells = "".join(f"{cell:>12{form}}" for cell in (np.mean(values), min(values), max(values)))
        lines.append(f"{name:<28}{cells}")
    return lines


def _below(workload: Workload, metrics: Metrics) -> list[str]:
    """Return a line that names the epochs under the threshold, if there are any."""
    wanted = 100 * workload.metric.au
    below = [e for e in metrics.epochs if not passes(e.au_percentage, wanted)]
    if not below or len(below) == len(metrics.epochs):
        return []
    named = ", ".join(f"{epoch.epoch + 1} ({epoch.au_percentage:.2f}%)" for epoch in below)
    return [f"epochs under the threshold: {named}"]
