"""What several runs came to together: the verdict, the spread, and their table."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dlemu.results.metrics import passes
from dlemu.results.outcome import Outcome
from dlemu.results.proof import Verdict, given_memory
from dlemu.workload.model import Workload

LABEL = "MLPerf-Storage-style, not an MLPerf result"

_REPEATABILITY = 0.05
"""Each run's samples/s must lie this close to their mean (rules, "repeatability")."""
# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def judge(workload: Workload, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return what several runs came to: verdict, reasons, mean, sd, 95 % interval.

    One FAIL makes all of them one; else a run without a verdict leaves them without.
    """
    au = [outcome.metrics.au_percentage for outcome in outcomes]
    rates = [outcome.metrics.samples_per_second for outcome in outcomes]
    reasons = []
    for number, outcome in enumerate(outcomes, 1):
        if outcome.summary["verdict"] == "NO VERDICT":
            reasons.append(f"run {number} has none: {'; '.join(outcome.summary['reasons'])}")
        elif not outcome.passed:
            reasons.append(f"run {number} has {au[number - 1]:.2f}% utilisation")
    mean = float(np.mean(rates))
    spread = max(abs(rate / mean - 1) for rate in rates)
    if spread > _REPEATABILITY:
        reasons.append(
            f"samples/s are up to {100 * spread:.1f}% off their mean, at most "
            f"{100 * _REPEATABILITY:g}% is repeatable"
        )
    verdicts = [outcome.summary["verdict"] for outcome in outcomes]
    verdict: Verdict = "FAIL" if reasons else "PASS"
    if "FAIL" not in verdicts and "NO VERDICT" in verdicts:
        verdict = "NO VERDICT"
    return {
        "status": "complete",
        "verdict": verdict,
        "passed": verdict == "PASS",
        "reasons": reasons,
        "repeatability_percentage": 100 * spread,
        "au_percentage": statistics(au),
        "samples_per_second": statistics(rates),
    }


def statistics(values: Sequence[float]) -> dict[str, Any]:
    """Return mean, sd (n - 1) and the 95 % interval of the mean; the latter None for one value."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return {"mean": mean, "sd": None, "interval": None}
    sd = float(np.std(values, ddof=1))
    half = _T95[min(len(values) - 1, len(_T95)) - 1] * sd / len(values) ** 0.5
    return {"mean": mean, "sd": sd, "interval": [mean - half, mean + half]}


def render_runs(workload: Workload, summary: Mapping[str, Any]) -> str:
    """Return the table of the runs and what they came to together."""
    lines = [
        f"{workload.name}, division {summary['division']}: {LABEL}",
        "",
        f"{'run':<12}{'AU (%)':>10}{'samples/s':>14}{'MiB/s':>12}{'cached (%)':>12}"
        f"{'gap (s)':>10}  limit",
    ]
    for row in summary["runs"]:
        cached = row["page_cache_share"]
        gap = row["gap_seconds"]
        lines.append(
            f"{row['name']:<12}{row['au_percentage']:>10.2f}{row['samples_per_second']:>14.2f}"
            f"{row['nominal_MiB_per_second']:>12.1f}"
            f"{'-' if cached is None else f'{100 * cached:.1f}':>12}"
            f"{'-' if gap is None else f'{gap:.0f}':>10}  {row['limit']}"
            + (f"; under the threshold: {row['epochs_under']}" if row["epochs_under"] else "")
        )
    for name, key in (("AU (%)", "au_percentage"), ("samples/s", "samples_per_second")):
        each = summary[key]
        line = f"{name}: mean {each['mean']:.2f}"
        if each["interval"] is not None:
            low, high = each["interval"]
            line += f", sd {each['sd']:.2f}, 95% interval {low:.2f} to {high:.2f}"
        lines.append(line)
    reasons = "; ".join(summary["reasons"]) or (
        f"every run has at least {100 * workload.metric.au:g}%, samples/s within "
        f"{summary['repeatability_percentage']:.1f}% of their mean"
    )
    if workload.host_memory is not None:
        reasons += f"; {given_memory(workload)}"
    return "\n".join([*lines, f"{summary['verdict']}: {reasons}"])


def describe_run(workload: Workload, name: str, outcome: Outcome) -> dict[str, Any]:
    """Return a run's row of the table."""
    under = [
        f"epoch {epoch.epoch + 1} ({epoch.au_percentage:.2f}%)"
        for epoch in outcome.metrics.epochs
        if not passes(epoch.au_percentage, 100 * workload.metric.au)
    ]
    return {
        "name": name,
        "status": outcome.summary["status"],
        "verdict": outcome.summary["verdict"],
        "start": outcome.summary["start"],
        "end": outcome.summary["end"],
        "gap_seconds": None,
        "au_percentage": outcome.metrics.au_percentage,
        "samples_per_second": outcome.metrics.samples_per_second,
        "nominal_MiB_per_second": outcome.summary["metric"]["train_io_mean_MB_per_second"],
        "page_cache_share": outcome.summary["measured"].get("page_cache_share"),
        "limit": outcome.summary["limit"]["name"],
        "epochs_under": ", ".join(under),
    }
