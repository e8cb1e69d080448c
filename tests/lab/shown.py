"""A run as people see it: its document, text and verdict, from steps that a test made up."""

from dlemu.config.model import Workload
from dlemu.judge.metrics import Metrics
from dlemu.judge.outcome import with_metrics
from dlemu.judge.summary import Summary
from dlemu.report.run import present_run, verdict_line
from dlemu.report.text import render_text


def text_of(workload: Workload, metrics: Metrics, summary: Summary | None = None) -> str:
    """Return a run's report as the terminal shows it."""
    return render_text(present_run(with_metrics(summary or Summary(), workload, metrics)))


def verdict_of(workload: Workload, metrics: Metrics, summary: Summary | None = None) -> str:
    """Return the first line of the report."""
    return verdict_line(with_metrics(summary or Summary(), workload, metrics))
