"""The page of `dlemu report --html`: a section for each result, from the blocks of its kind."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from dlemu.report.blocks import Block, Fold, Lines, Listing, Section
from dlemu.report.checkpoint import checkpoint_section
from dlemu.report.foreign import present_foreign
from dlemu.report.html import render_page
from dlemu.report.over_time import plots_over_time
from dlemu.report.run import present_run
from dlemu.report.runs import present_runs
from dlemu.report.sizing import section_of
from dlemu.reports.checkpoints import StoredCheckpoints
from dlemu.reports.foreign import Foreign
from dlemu.reports.rows import ResultRow
from dlemu.reports.sizings import StoredSizing
from dlemu.reports.stored import Result, Stored
from dlemu.results.facts import date_of, drive_name
from dlemu.results.records import CONFIG
from dlemu.results.summary import limit_name
from dlemu.units import each_once
from dlemu.workload.objects import in_bucket


def page_of(results: Sequence[Result]) -> str:
    """Return the HTML of one page about these results; it needs no other file."""
    sections = [section for result in results for section in _sections(result)]
    if len(sections) > 1:
        return render_page(f"dlemu: {len(sections)} results", sections)
    about = [
        sections[0].title,
        *(sections[0].rows[0].get(head) for head in ("storage", "measured")),
    ]
    return render_page(f"dlemu: {each_once(about)}", sections)


def _sections(result: Result) -> Iterator[Section]:
    """Yield the sections of what one folder holds."""
    folder = str(result.folder)

    def section(title: str, blocks: Sequence[Block], *rows: Mapping[str, str]) -> Section:
        return Section(title=title, folder=folder, blocks=blocks, rows=rows)

    if isinstance(result, Stored):
        yield section(result.workload.name, list(_blocks_of_runs(result)), _row_of_runs(result))
    elif isinstance(result, StoredSizing):
        yield section_of(result.summary, result.folder)
    elif isinstance(result, StoredCheckpoints):
        yield checkpoint_section(folder, result.summary)
    else:
        rows = map(_row_of_foreign, result.rows)
        yield section(result.folder.name, blocks_of_foreign(result), *rows)


def blocks_of_foreign(result: Foreign) -> list[Block]:
    """Return the blocks of another tool's runs, one after the other."""
    blocks: list[Block] = []
    for run in result.runs:
        blocks += [*present_foreign(run.summary), Lines([f"results of {run.tool}: {run.folder}"])]
    if result.incomplete:
        blocks.append(Lines([f"not read: {why}" for why in result.incomplete.values()]))
    return blocks


def _blocks_of_runs(stored: Stored) -> Iterator[Block]:
    """Yield the blocks of a run, or of several with each run folded; and their workload."""
    if stored.together is not None:
        yield from present_runs(stored.together)
        for name in stored.outcomes:
            yield Fold(f"{name}: its epochs, and what the hosts did", list(_run(stored, name)))
    else:
        yield from _run(stored, "")
    config = stored.folder / next(iter(stored.outcomes)) / CONFIG
    text = config.read_text(encoding="utf-8")
    yield Fold("all keys of the workload", [Listing(text)])


def _run(stored: Stored, name: str) -> Iterator[Block]:
    yield from present_run(stored.outcomes[name].summary)
    bucket = in_bucket(stored.workload.data_folder)
    yield from plots_over_time(stored.folder / name, in_bucket=bucket)


def _row_of_runs(stored: Stored) -> Mapping[str, str]:
    runs = [outcome.summary for outcome in stored.counting.values()]
    metrics = [run["metric"] for run in runs]
    rates = [each["train_throughput_mean_samples_per_second"] for each in metrics]
    return {
        "workload": stored.workload.name,
        "verdict": str(stored.summary["verdict"]),
        "accelerators": str(runs[0]["num_accelerators"]),
        "AU (%)": f"{fmean(each['train_au_mean_percentage'] for each in metrics):.2f}",
        "samples/s": f"{fmean(rates):.2f}",
        "runs": str(len(runs)),
        "limit": each_once(map(limit_name, runs)),
        **_where(runs[0], stored.workload.data_folder.name),
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
