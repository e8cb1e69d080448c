"""Checkpoints in a page: the section of `dlemu checkpoint`, and the plot of a run's checkpoints."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from dlemu.checkpoint.text import costs, figures, headline, remarks, verdict_line
from dlemu.reports.drawing import Axis, Look, Plot, axis_of_numbers, dotted
from dlemu.reports.markup import (
    escaped,
    render_facts,
    render_lines,
    render_table,
    render_verdict,
)
from dlemu.results.facts import facts_of
from dlemu.results.summary import Summary, limit_name
from dlemu.units import format_seconds


def render_checkpoints(summary: Any) -> Iterable[str]:
    """Yield the section of a command's checkpoints, from the fields of summary.json."""
    yield f"<p>{escaped(headline(summary))}</p>"
    yield render_verdict(verdict_line(summary))
    yield render_lines(remarks(summary))
    yield render_facts(facts_of(summary))
    rows = [(title.strip(), *cells) for title, cells in figures(summary)]
    yield render_table(("", "mean", "min", "max", "stdev"), rows)
    told = summary["checkpoint"]
    if told["saves"]:
        intervals, shares = zip(*costs(_mean(told["saves"])), strict=True)
        yield render_table(("one every", *intervals), [("takes of the time", *shares)])
    names = {"writing": "saves", "reading": "loads"}
    found = {name: [each["seconds"] for each in told[key]] for name, key in names.items()}
    yield _plot("duration of each checkpoint", found)


def row_of_checkpoints(summary: Any) -> Mapping[str, str]:
    """Return the cells of the table across results that there are."""
    told = summary["checkpoint"]
    entries = told["saves"] or told["loads"]
    takes = f"takes {format_seconds(_mean(entries))}" if entries else ""
    return {
        "workload": f"checkpoint of {summary['model']['name']}",
        "verdict": summary["verdict"] or takes,
        "accelerators": str(summary["num_accelerators"]),
        "limit": limit_name(summary) or limit_name(summary, "load_limit"),
    }


def render_of_run(summary: Summary) -> Iterable[str]:
    """Yield the plot of a run's checkpoints; nothing where it took none."""
    told = summary.get("checkpoints")
    if told is None or not told["stall_seconds"]:
        return
    found = {"until it was written": told["duration_seconds"]}
    found["accelerators stood still"] = told["stall_seconds"]
    yield _plot("each checkpoint", found)


def _mean(entries: Sequence[Mapping[str, Any]]) -> float:
    return fmean(entry["seconds"] for entry in entries)


def _plot(title: str, found: Mapping[str, Sequence[float]]) -> str:
    """Return a plot of seconds over the number of the checkpoint."""
    looks: tuple[Look, ...] = ("first", "second")
    series = [
        dotted(name, look, range(1, len(seconds) + 1), seconds, joined=False)
        for look, (name, seconds) in zip(looks, found.items(), strict=True)
        if seconds
    ]
    most = max(len(seconds) for seconds in found.values())
    highest = max(second for seconds in found.values() for second in seconds)
    return Plot(
        title=title,
        x=axis_of_numbers("checkpoint", 1, most),
        y=Axis(name="seconds", low=0.0, high=1.05 * highest or 1.0),
        series=series,
    ).render()
