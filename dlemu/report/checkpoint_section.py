"""The section of a page about `dlemu checkpoint`."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from dlemu.checkpoint.text import costs, figures, headline, remarks, verdict_line
from dlemu.report.blocks import Block, Facts, Lines, Table, Tone, Verdict
from dlemu.report.in_run import plot_seconds
from dlemu.results.facts import facts_of
from dlemu.results.summary import limit_name
from dlemu.units import format_seconds

_TONES: Mapping[str, Tone] = {"PASS": "pass", "FAIL": "fail"}


def render_checkpoints(summary: Any) -> Iterable[Block]:
    """Yield the section of a command's checkpoints, from the fields of summary.json."""
    yield Verdict(verdict_line(summary), _TONES.get(summary["verdict"], "caution"))
    yield Lines([headline(summary), *remarks(summary)])
    yield Facts(list(facts_of(summary)))
    rows = [(title.strip(), *cells) for title, cells in figures(summary)]
    yield Table(heads=("", "mean", "min", "max", "stdev"), rows=rows)
    told = summary["checkpoint"]
    if told["saves"]:
        intervals, shares = zip(*costs(_mean(told["saves"])), strict=True)
        yield Table(heads=("one every", *intervals), rows=[("takes of the time", *shares)])
    names = {"writing": "saves", "reading": "loads"}
    found = {name: [each["seconds"] for each in told[key]] for name, key in names.items()}
    yield plot_seconds("duration of each checkpoint", found)


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


def _mean(entries: Sequence[Mapping[str, Any]]) -> float:
    return fmean(entry["seconds"] for entry in entries)
