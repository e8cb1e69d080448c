"""Stored results in blocks, each by its kind: on the terminal, side by side, and as a page."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from dlemu.judge.records import CONFIG
from dlemu.judge.series import HostSeries, Interval, series_of
from dlemu.judge.summary import is_at_servers, limit_name
from dlemu.report import checkpoint, sizing
from dlemu.report.blocks import (
    Axis,
    Bands,
    Block,
    Document,
    FileText,
    Fold,
    Look,
    Plot,
    ResultSection,
    Series,
    Table,
    axis_from_zero,
    where_cells,
)
from dlemu.report.html import render_page
from dlemu.report.present import present
from dlemu.report.stored import Stored
from dlemu.units import each_once, rate_unit

_LEAST_SECONDS = 0.2
"""Over a shorter time a rate is mostly the resolution of the counters."""
_MOST_POINTS = 400


_READ = {
    "drive_read_MB_per_s": "from the drives",
    "network_read_MB_per_s": "from the network mount",
    "read_calls_MB_per_s": "by read calls, from storage or memory",
}
"""Counters of reads, the best first."""
_RECEIVED = {"network_received_MB_per_s": "over the host's network interfaces, without lo"}
"""Of a bucket: sockets are not read by read calls."""
_BUSY: tuple[tuple[str, Look, str], ...] = (
    ("whole host, of all its CPUs", "first", "host_cpu_percent"),
    ("ranks and workers, of the CPUs they may use", "second", "process_cpu_percent"),
)


def plots_over_time(
    folder: Path, *, received: bool, levels: Sequence[Mapping[str, Any]] = ()
) -> Iterator[Plot]:
    """Yield the plots of what the hosts of a run did over time; `levels` of a rate that changed.

    Raises:
        RunError: a file of a host is damaged.
    """
    hosts = [
        host
        for host in series_of(folder, least=_LEAST_SECONDS, most=_MOST_POINTS)
        if host.intervals
    ]
    for host in hosts:
        yield from host_plots(host, received, levels if len(hosts) == 1 else ())


def host_plots(
    host: HostSeries, received: bool, levels: Sequence[Mapping[str, Any]] = ()
) -> Iterator[Plot]:
    """Yield what a host read and how busy its CPUs were."""
    parts, start = host.intervals, host.intervals[0].begin
    x = Axis("seconds since the first epoch began", 0.0, parts[-1].end - start)
    epochs = [(max(0.0, begin - start), min(end - start, x.high)) for begin, end in host.epochs]
    bands = [Bands("epochs: only these count", "first", epochs)]
    where = "" if host.rank == 0 else f", host of rank {host.rank}"
    for column, source in (_RECEIVED if received else _READ).items():
        rates = [part.rates[column] for part in parts]
        if (most := max((rate for rate in rates if rate is not None), default=None)) is not None:
            unit, size = rate_unit(1e6 * most)
            scaled = [rate and 1e6 * rate / size for rate in rates]
            read = [Series(source, "first", stairs(parts, scaled))]
            if len(levels) > 1:
                read.append(_levels(host, levels, size))
            yield Plot(f"bytes read over time{where}", x, axis_from_zero(unit, read), read, bands)
            break
    busy = [
        Series(name, look, stairs(parts, [part.rates[column] for part in parts]))
        for name, look, column in _BUSY
    ]
    yield Plot(f"CPUs over time{where}", x, Axis("busy (%)", 0.0, 100.0), busy, bands)


def _levels(host: HostSeries, levels: Sequence[Mapping[str, Any]], size: float) -> Series:
    """Return the levels of the rate: of the time in which steps count, one after the other."""
    pieces, start = [], host.intervals[0].begin
    spans = [(begin - start, end - begin) for begin, end in host.counted]

    def placed(seconds: float) -> float:
        """Return when so many counted seconds had passed."""
        for begin, length in spans[:-1]:
            if seconds <= length:
                return begin + seconds
            seconds -= length
        return spans[-1][0] + min(seconds, spans[-1][1])

    for level in levels if spans else ():
        begin, rate = level["begin"], level["bytes_per_second"] / size
        pieces.append([(placed(begin), rate), (placed(begin + level["seconds"]), rate)])
    return Series("levels of the rate: not steady", "limit", pieces)


def stairs(
    parts: Sequence[Interval], values: Sequence[float | None]
) -> list[list[tuple[float, float]]]:
    """Return values that hold over their intervals, without a line where one is unknown."""
    start = parts[0].begin
    pieces: list[list[tuple[float, float]]] = [[]]
    for part, value in zip(parts, values, strict=True):
        if value is None:
            pieces.append([])
        else:
            pieces[-1] += [(part.begin - start, value), (part.end - start, value)]
    return [piece for piece in pieces if piece]


_ACROSS = (
    *("result", "workload", "verdict", "accelerators", "AU (%)", "with first step (%)"),
    *("as recorded (%)", "samples/s", "runs", "limit", "storage", "host", "measured"),
)
"""The heads of the table across results. A column without a value is left out."""
_TEXTS = ("workload", "verdict", "limit", "storage", "host")


def across(sections: Sequence[ResultSection]) -> Table:
    """Return the table across results, each a link to its section of a page."""
    numbered = [
        (f"result-{number}", {"result": section.folder, **row})
        for number, section in enumerate(sections, 1)
        for row in section.rows
    ]
    heads = [head for head in _ACROSS if any(row.get(head) for _, row in numbered)]
    return Table(
        heads=heads,
        rows=[[row.get(head, "") for head in heads] for _, row in numbered],
        texts=_TEXTS,
        spare=("measured", "host", "storage", "runs", "with first step (%)", "limit"),
        links=[link for link, _ in numbered],
    )


def page_of(sections: Sequence[ResultSection]) -> str:
    """Return the HTML of one page about results; it needs no other file."""
    if len(sections) > 1:
        return render_page(f"dlemu: {len(sections)} results", sections, across(sections))
    title, row = sections[0].title, sections[0].rows[0]
    about = [
        each for each in (row.get("storage"), row.get("measured")) if each and each not in title
    ]
    return render_page(f"dlemu: {', '.join([title, *about])}", sections)


def section(
    stored: Stored, blocks: Sequence[Block] = (), *, on_page: bool = False
) -> ResultSection:
    """Return the section of a page about what one folder holds, which `blocks` show.

    What only a page shows is left out elsewhere: the hosts' files of a long run are large.
    """
    document = stored.document
    rows: list[dict[str, str]] = []
    title = str(document.get("workload") or stored.kind)
    if stored.kind == "sizing":
        answers, unfinished = document["answers"], document["unfinished"]
        names = [f"{answer['workload']} on {answer['target']}" for answer in answers]
        title = ", ".join([*names, *unfinished])
        rows += map(sizing.row_of, answers)
        for search in unfinished.values():
            rows.append({"verdict": "no answer yet", "runs": str(len(search["points"]))})
    elif stored.kind == "checkpoint":
        rows.append(checkpoint.row_of(document))
    elif "verdict" not in document:
        rows.append(where_cells(document, "") | {"workload": title})
    else:
        blocks = [*blocks, *(_of_each_run(stored) if on_page else ())]
        rows.append(_row(stored.counting) | {"verdict": str(document["verdict"])})
    return ResultSection(title, str(stored.folder), blocks, rows)


def _of_each_run(stored: Stored) -> Iterator[Block]:
    """Yield what the hosts of a run did; of several each run, folded; and their workload."""
    for name, document in stored.runs.items() if "tool" not in stored.document else ():
        received = is_at_servers(document)
        steady = (document.get("measured") or {}).get("steady") or {"levels": ()}
        over_time = plots_over_time(
            stored.folder / name, received=received, levels=steady["levels"]
        )
        if stored.kind == "runs":
            inner = [*present(document), *over_time]
            yield Fold(f"{name}: its epochs, and what the hosts did", inner)
        else:
            yield from over_time
    config = stored.folder / next(iter(stored.runs)) / CONFIG
    if config.is_file():
        yield Fold("all keys of the workload", [FileText(config.read_text(encoding="utf-8"))])


def _row(runs: Sequence[Document]) -> dict[str, str]:
    """Return the cells of runs, their means, in the table across results."""
    run = runs[0]
    tool = f" ({run['tool']})" if "tool" in run else ""
    folder = (run.get("dataset") or {}).get("folder") or ""
    cells = {
        **where_cells(run, folder.rstrip("/").rpartition("/")[2]),
        "workload": f"{run['workload']}{tool}",
        "verdict": str(run["verdict"]),
        "accelerators": str(run["num_accelerators"]),
        "runs": str(len(runs)),
        "limit": each_once(map(limit_name, runs)),
    }
    figures: dict[str, Sequence[float]] = {}
    if run["kind"] == "run":
        epochs = [epoch for each in runs for epoch in each["per_epoch"]]
        rates = [each["metric"]["train_throughput_mean_samples_per_second"] for each in runs]
        figures["AU (%)"] = [each["metric"]["train_au_mean_percentage"] for each in runs]
        figures["with first step (%)"] = [each["whole_epoch_au_percentage"] for each in epochs]
        figures["samples/s"] = rates
    if tool:
        recorded = [each["recorded_per_epoch"] for each in runs]
        figures["as recorded (%)"] = [au for each in recorded for au in each["train_au_percentage"]]
        rates = [each for run in recorded for each in run["train_throughput_samples_per_second"]]
        figures.setdefault("samples/s", rates)
        figures.setdefault("AU (%)", run.get("au_percentage", ()))
    return cells | {head: f"{fmean(each):.2f}" for head, each in figures.items() if each}
