"""One HTML file on stored results: what they say, where they were measured, tables and plots."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from dlemu.errors import DAMAGE, RunError, in_short
from dlemu.host.intervals import (
    IntervalSummary,
    Observation,
    apart,
    read_observations,
    summarize_interval,
)
from dlemu.report.checkpoint import checkpoint_section
from dlemu.report.html import render_html
from dlemu.reports.cache_section import render_cache
from dlemu.reports.checkpoint_section import render_of_run
from dlemu.reports.checkpoints import StoredCheckpoints
from dlemu.reports.drawing import Axis, Bands, Plot, Series, axis_of_numbers, dotted, level
from dlemu.reports.markup import (
    escaped,
    render_details,
    render_document,
    render_facts,
    render_lines,
    render_table,
    render_verdict,
)
from dlemu.reports.rows import ResultRow
from dlemu.reports.sizings import StoredSizing
from dlemu.reports.stored import Result, Stored
from dlemu.results.facts import date_of, drive_name, facts_of
from dlemu.results.metrics import EpochMetrics, Metrics
from dlemu.results.outcome import Outcome
from dlemu.results.records import CONFIG
from dlemu.results.several import REPEATABILITY, runs_verdict_line
from dlemu.results.summary import CacheWatched, Measured, Spread, limit_name
from dlemu.results.text import report_run, rows_of
from dlemu.results.watched import watched_table
from dlemu.units import each_once, rate_unit
from dlemu.workload.model import Workload
from dlemu.workload.objects import in_bucket

_LEAST_SECONDS = 0.2
"""Over a shorter time a rate is mostly the resolution of the counters."""


def render_page(results: Sequence[Result]) -> str:
    """Return the HTML of one page about these results; it needs no other file."""
    sections = [section for result in results for section in _sections(result)]
    body = [_overview(sections)] if len(sections) > 1 else []
    for number, section in enumerate(sections, 1):
        name = f"{escaped(section.title)} <small>{escaped(section.folder)}</small>"
        body += [f'<section id="result-{number}"><h2>{name}</h2>', *section.body, "</section>"]
    title = "one result" if len(sections) == 1 else f"{len(sections)} results"
    return render_document(f"dlemu: {title}", body)


@dataclass(frozen=True, kw_only=True)
class _Section:
    """What the page says of one result."""

    title: str
    folder: str
    rows: Sequence[Mapping[str, str]]
    """Its cells in the table across results, by their heads."""
    body: Iterable[str]


_ACROSS = (
    *("result", "workload", "verdict", "accelerators", "AU (%)", "samples/s", "runs", "limit"),
    *("storage", "host", "measured"),
)
"""The heads of the table across results."""


def _overview(sections: Sequence[_Section]) -> str:
    """Return the table across results, each a link to its section."""
    numbered = [(n, each.folder, row) for n, each in enumerate(sections, 1) for row in each.rows]
    rows = [[name, *(row.get(head, "") for head in _ACROSS[1:])] for _, name, row in numbered]
    texts = {"workload", "verdict", "limit", "storage", "host"}
    links = [f"result-{number}" for number, _, _ in numbered]
    return render_table(_ACROSS, rows, texts=texts, links=links)


def _sections(result: Result) -> Iterable[_Section]:
    """Yield the section of what one folder holds."""
    folder = str(result.folder)
    if isinstance(result, Stored):
        body = _run if result.together is None else _several
        row = _row_of_runs(result)
        yield _Section(title=result.workload.name, folder=folder, rows=[row], body=body(result))
    elif isinstance(result, StoredSizing):
        found = result.section
        shown = [render_html(found.blocks)]
        yield _Section(title=found.title, folder=folder, rows=found.rows, body=shown)
    elif isinstance(result, StoredCheckpoints):
        made = checkpoint_section(folder, result.summary)
        html = [render_html(made.blocks)]
        yield _Section(title=made.title, folder=folder, rows=made.rows, body=html)
    else:
        text = f"<pre>{escaped(result.text)}</pre>"
        rows = list(map(_row_of_foreign, result.rows))
        yield _Section(title=result.folder.name, folder=folder, rows=rows, body=[text])


def _row_of_runs(stored: Stored) -> Mapping[str, str]:
    outcomes = list(stored.counting.values())
    metrics = [outcome.metrics for outcome in outcomes]
    first, name = outcomes[0].summary, stored.workload.data_folder.name
    return {
        "workload": stored.workload.name,
        "verdict": str(stored.summary["verdict"]),
        "accelerators": str(metrics[0].num_accelerators),
        "AU (%)": f"{fmean(each.au_percentage for each in metrics):.2f}",
        "samples/s": f"{fmean(each.samples_per_second for each in metrics):.2f}",
        "runs": str(len(outcomes)),
        "limit": each_once(limit_name(outcome.summary) for outcome in outcomes),
        **_where(first, name),
    }


def _row_of_foreign(row: ResultRow) -> Mapping[str, str]:
    return {**_cells(row), "workload": f"{row.workload} ({row.tool})", "runs": "1"}


def _cells(row: ResultRow) -> Mapping[str, str]:
    figures = {"AU (%)": row.au_percentage, "samples/s": row.samples_per_second}
    return {
        "workload": row.workload,
        "verdict": row.verdict,
        "accelerators": str(row.num_accelerators),
        **{head: f"{value:.2f}" for head, value in figures.items() if value is not None},
    }


def _where(summary: Mapping[str, Any], folder: str) -> Mapping[str, str]:
    return {
        "storage": drive_name(summary, folder),
        "host": str(summary.get("hostname") or ""),
        "measured": date_of(summary),
    }


def _several(stored: Stored) -> Iterable[str]:
    """Yield the section of several runs: verdict, table, plots; each run's own are folded."""
    workload, outcomes, together = stored.workload, stored.outcomes, stored.together
    assert together is not None
    first, last = (list(outcomes.values())[place].summary for place in (0, -1))
    yield render_verdict(runs_verdict_line(workload, together), together["verdict"])
    yield f"<p><small>{escaped(together['label'])}</small></p>"
    yield render_facts(facts_of({**first, "end": last.get("end")}, workload))
    heads = (
        *("run", "verdict", "AU (%)", "samples/s", "from memory (%)", "pause before (s)", "limit"),
        "epochs under the threshold",
    )
    rows = [
        (
            row["name"],
            row["verdict"],
            f"{row['au_percentage']:.2f}",
            f"{row['samples_per_second']:.2f}",
            "" if (share := row["page_cache_share"]) is None else f"{100 * share:.1f}",
            "" if (gap := row["gap_seconds"]) is None else f"{gap:.0f}",
            row["limit"],
            row["epochs_under"],
        )
        for row in together["runs"]
    ]
    yield render_table(heads, rows, texts={"verdict", "limit", heads[-1]})
    spreads = {"AU (%)": together["au_percentage"], "samples/s": together["samples_per_second"]}
    columns = ("all runs that count", "mean", "standard deviation", "95% interval of the mean")
    yield render_table(columns, [_spread(name, spread) for name, spread in spreads.items()])
    runs = [outcome.metrics for outcome in stored.counting.values()]
    yield _au_plot("run", range(1, len(runs) + 1), workload, runs).render()
    yield _rates_of_runs(stored.counting).render()
    for name, outcome in outcomes.items():
        title = f"{name}: its epochs, and what the hosts did"
        yield render_details(title, _of_one(workload, stored.folder / name, outcome))
    yield _config(stored.folder / next(iter(outcomes)))


def _spread(name: str, spread: Spread) -> tuple[str, ...]:
    deviation, interval = spread["sd"], spread["interval"]
    return (
        name,
        f"{spread['mean']:.2f}",
        "" if deviation is None else f"{deviation:.2f}",
        "" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}",
    )


def _rates_of_runs(outcomes: Mapping[str, Outcome]) -> Plot:
    """Return samples/s of each run, and how far they may lie from their mean."""
    rates = [outcome.metrics.samples_per_second for outcome in outcomes.values()]
    mean = sum(rates) / len(rates)
    bounds = [mean * (1 - REPEATABILITY), mean * (1 + REPEATABILITY)]
    x = axis_of_numbers("run", 1, len(rates))
    low, high = min(*rates, *bounds), max(*rates, *bounds)
    far = f"mean ± {100 * REPEATABILITY:g}%: farther off is not repeatable"
    return Plot(
        title="samples per second of each run",
        x=x,
        y=Axis(name="samples/s", low=low - 0.01 * mean, high=high + 0.01 * mean),
        series=[
            dotted("a run", "first", range(1, len(rates) + 1), rates, joined=False),
            level("mean", "second", x, mean),
            level(far, "limit", x, *bounds),
        ],
    )


def _run(stored: Stored) -> Iterable[str]:
    """Yield the parts of one run's section."""
    workload, folder, outcome = stored.workload, stored.folder, stored.outcomes[""]
    report = report_run(workload, outcome.metrics, outcome.summary)
    yield f"<p>{escaped(report.title)}</p>"
    yield render_verdict(report.verdict)
    yield render_lines(report.remarks)
    yield render_facts(facts_of(outcome.summary, workload))
    yield from _of_one(workload, folder, outcome)
    yield _config(folder)


def _of_one(workload: Workload, folder: Path, outcome: Outcome) -> Iterable[str]:
    """Yield the table of a run's epochs, their plot, and those of its hosts."""
    epochs = outcome.metrics.epochs
    mean_bytes = workload.dataset.mean_bytes
    rows = rows_of(workload, outcome.metrics)
    heads = ["epoch", *(name.strip() for name, _, _ in rows)]
    cells = [
        [str(epoch.epoch + 1), *(format(value(epoch, mean_bytes), form) for _, value, form in rows)]
        for epoch in epochs
    ]
    yield render_table(heads, cells)
    cached = outcome.summary.get("measured", Measured()).get("cache")
    if cached is not None and "fill_ratio_per_epoch" in cached:
        yield "<p>a mounted cache, watched; bytes in MB</p>"
        yield render_table(*watched_table(cast(CacheWatched, cached), outcome.metrics))
    numbers = [epoch.epoch + 1 for epoch in epochs]
    yield _au_plot("epoch", numbers, workload, epochs).render()
    yield from render_cache(outcome.summary, outcome.metrics)
    yield from render_of_run(outcome.summary)
    for path in sorted(folder.glob("host.*.jsonl")):
        yield from _host(path, in_bucket=in_bucket(workload.data_folder))


def _au_plot(
    what: str, numbers: Sequence[int], workload: Workload, each: Sequence[Metrics | EpochMetrics]
) -> Plot:
    """Return AU by the rule and AU with the first step, of epochs or runs, and the threshold."""
    counted = [one.au_percentage for one in each]
    whole = [one.whole_epoch_au_percentage for one in each]
    wanted, joined = 100 * workload.metric.au, what == "epoch"
    x = axis_of_numbers(what, numbers[0], numbers[-1])
    return Plot(
        title=f"utilisation of each {what}",
        x=x,
        y=Axis(
            name="accelerator utilisation (%)",
            low=max(0.0, min(wanted, *counted, *whole) - 5),
            high=100.0,
        ),
        series=[
            dotted("as the rule counts it", "first", numbers, counted, joined=joined),
            dotted("with the first step", "second", numbers, whole, joined=joined),
            level(f"threshold {wanted:g}%", "limit", x, wanted),
        ],
    )


def _config(folder: Path) -> str:
    config = (folder / CONFIG).read_text(encoding="utf-8")
    return render_details("all keys of the workload", [f"<pre>{escaped(config)}</pre>"])


def _host(path: Path, *, in_bucket: bool) -> Iterable[str]:
    """Return the plots of one host's counters over time."""
    try:
        return list(_host_plots(path.name.split(".")[1], read_observations(path), in_bucket))
    except DAMAGE as error:
        raise RunError(f"{path} is damaged: {in_short(error)}") from None


def _host_plots(rank: str, observations: Sequence[Observation], in_bucket: bool) -> Iterable[str]:
    """Yield what the host of a rank read and how busy its CPUs were, over the time of a run."""
    points = _for_a_plot(observations)
    if len(points) < 2:
        return
    start = points[0].time
    times = [point.time - start for point in points]
    parts = [summarize_interval(pair) for pair in pairwise(points)]
    x = Axis(name="seconds since the first epoch began", low=0.0, high=times[-1])
    bands = [Bands("epochs: only these count", "first", _epochs(observations))]
    where = "" if rank == "0" else f", host of rank {rank}"
    source, rates = _best_counter(parts, in_bucket)
    if source:
        unit, size = rate_unit(max(rate or 0.0 for rate in rates))
        scaled = [None if rate is None else rate / size for rate in rates]
        yield Plot(
            title=f"bytes read over time{where}",
            x=x,
            y=Axis(name=unit, low=0.0, high=1.1 * max(rate or 0.0 for rate in scaled) or 1.0),
            series=[Series(source, "first", _stairs(times, scaled))],
            bands=bands,
        ).render()
    cpu = [p.host_cpu_share and 100 * p.host_cpu_share for p in parts]
    own = [p.process_cpu_share and 100 * p.process_cpu_share for p in parts]
    yield Plot(
        title=f"CPUs over time{where}",
        x=x,
        y=Axis(name="busy (%)", low=0.0, high=100.0),
        series=[
            Series("whole host, of all its CPUs", "first", _stairs(times, cpu)),
            Series("ranks and workers, of the CPUs they may use", "second", _stairs(times, own)),
        ],
        bands=bands,
    ).render()


def _epochs(observations: Sequence[Observation]) -> list[tuple[float, float]]:
    """Return from when to when the epochs lasted, in seconds since the first observation."""
    start = observations[0].time
    times = {o.label: o.time - start for o in observations if o.label is not None}
    ends = {label: label.replace("start", "end") for label in times if label.endswith("start")}
    return [(times[start], times[end]) for start, end in ends.items() if end in times]


def _best_counter(
    parts: Sequence[IntervalSummary], in_bucket: bool
) -> tuple[str, list[float | None]]:
    """Return what the best counter counts, and its bytes/s."""
    counters = [
        ("from the drives", [part.device_read_bytes for part in parts]),
        ("from the network mount", [part.network_read_bytes for part in parts]),
        ("by read calls, from storage or memory", [part.process_rchar for part in parts]),
    ]
    if in_bucket:  # sockets are not read by read calls
        received = [None if p.network is None else p.network.received_bytes for p in parts]
        counters = [("over the host's network interfaces, without lo", received)]
    for name, counts in counters:
        if any(count is not None for count in counts):
            return name, [
                None if count is None else count / part.seconds
                for count, part in zip(counts, parts, strict=True)
            ]
    return "", []


def _stairs(
    times: Sequence[float], values: Sequence[float | None]
) -> list[list[tuple[float, float]]]:
    """Return values that hold from one time to the next, without a line where one is unknown."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for (begun, ended), value in zip(pairwise(times), values, strict=True):
        if value is None:
            pieces.append([])
        else:
            pieces[-1] += [(begun, value), (ended, value)]
    return [piece for piece in pieces if piece]


def _for_a_plot(observations: Sequence[Observation]) -> list[Observation]:
    """Return about 400 observations at most, far enough from each other for rates."""
    if not observations:
        return []
    least = max(_LEAST_SECONDS, (observations[-1].time - observations[0].time) / 400)
    return apart(observations, least)
