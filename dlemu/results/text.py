"""The report of a run as text: the table, the verdict, and its reasons."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from dlemu.results.cache import cache_lines
from dlemu.results.checkpoints import checkpoint_lines
from dlemu.results.judgement import UNKNOWN, judge_run
from dlemu.results.metrics import EpochMetrics, Metrics, passes
from dlemu.results.objects import objects_line
from dlemu.results.records import UNFINISHED
from dlemu.results.summary import CacheWatched, Measured, Summary
from dlemu.results.watched import watched_lines
from dlemu.results.wear import belongs_to, wear_line
from dlemu.units import counted, format_bytes, format_rate
from dlemu.workload.model import Workload

_Row = tuple[str, Callable[[EpochMetrics, float], float], str]
ROWS: list[_Row] = [
    ("accelerator utilisation (%)", lambda e, _: e.au_percentage, ".2f"),
    ("  with the first step (%)", lambda e, _: e.whole_epoch_au_percentage, ".2f"),
    ("samples/s", lambda e, _: e.samples_per_second, ".2f"),
    ("read, nominal (MB/s)", lambda e, mean: e.samples_per_second * mean / 1e6, ".1f"),
    ("read, really (MB/s)", lambda e, _: e.read_bytes_per_second / 1e6, ".1f"),
    ("reads/s", lambda e, _: e.reads_per_second, ",.0f"),
    ("first step (s)", lambda e, _: e.first_step_seconds, ".3f"),
    ("wait for a batch (ms)", lambda e, _: 1e3 * e.wait_seconds, ".2f"),
]

_HALF_FULL = 0.5
"""Share of a link's rate from which on the report shows it."""
_CARRIED = 0.1
"""Share of the bytes read that a host's network must have received to be worth a line."""
_MOST_NAMED = 4
"""Hosts that are named one by one."""


def rows_of(workload: Workload, metrics: Metrics) -> list[_Row]:
    """Return the rows of a run, without those that say nothing of it.

    reads/s is there where the access is by ranges or by records, and what was really read where the
    loader tells it: one of the user's own does not.
    """
    scattered = workload.dataset.format == "parquet" or workload.reader.access == "random"
    silent = set() if scattered and metrics.num_reads else {"reads/s"}
    silent |= set() if metrics.read_bytes else {"read, really (MB/s)", "read, nominal (MB/s)"}
    if not any(epoch.num_samples for epoch in metrics.epochs):
        silent |= {"samples/s", "read, nominal (MB/s)"}
    return [row for row in ROWS if row[0] not in silent]


@dataclass(frozen=True)
class Report:
    """The parts of a run's report, for the terminal and for the page."""

    title: str
    table: list[str]
    """Lines with the values of all epochs."""
    verdict: str
    remarks: list[str]
    """Lines below the verdict."""

    @property
    def text(self) -> str:
        """The report as the terminal shows it."""
        return "\n".join([self.title, "", *self.table, "", self.verdict, *self.remarks])


def render_metrics(
    workload: Workload, metrics: Metrics, *, accelerator: str = "emulated accelerator"
) -> str:
    """Return the table per epoch and the verdict's line; `accelerator` is what computed."""
    return report_run(workload, metrics, UNKNOWN, accelerator=accelerator).text


def render_run(workload: Workload, metrics: Metrics, summary: Summary) -> str:
    """Return a run's report as text."""
    return report_run(workload, metrics, summary).text


def report_run(
    workload: Workload,
    metrics: Metrics,
    summary: Summary,
    *,
    accelerator: str = "emulated accelerator",
) -> Report:
    """Return a run's report: table, verdict, its limit and what was measured."""
    epochs = metrics.epochs
    title = (
        f"{workload.name}: {counted(metrics.num_accelerators, accelerator)}, "
        f"{counted(len(epochs), 'epoch')} of {epochs[0].num_steps} steps"
    )
    if any(epoch.num_samples for epoch in epochs):
        title += f", batches of {workload.reader.batch_size}"
    judgement = judge_run(workload, metrics, summary)
    remarks = [judgement.hidden] if judgement.hidden else []
    if limit := summary.get("limit"):
        remarks.append(f"limit: {limit['name']}. {limit['evidence']}")
        if limit.get("advice"):
            remarks.append(f"try: {limit['advice']}")
    remarks += [judgement.unlike] if judgement.unlike else []
    remarks += checkpoint_lines(metrics.checkpoints, summary.get("checkpoints"))
    measured = summary.get("measured", Measured())
    if summary:  # not a loop of one's own
        remarks += [
            *_path_line(summary),
            *_network_lines(summary),
            *_start_line(measured),
            *_below(workload, metrics),
        ]
        if asked := measured.get("objects"):
            remarks.append(objects_line(asked))
        if (wear := measured.get("wear")) and belongs_to(wear):
            remarks.append(wear_line(wear))
    remarks += [f"note: {note}" for note in summary.get("notes") or ()]
    verdict = verdict_line(workload, metrics, summary)
    table = _table(workload, metrics)
    if cached := measured.get("cache"):
        if "fill_ratio_per_epoch" in cached:
            table += ["", *watched_lines(cast(CacheWatched, cached), metrics)]
        else:
            table += ["", *cache_lines(cached, metrics)]
    return Report(title, table, verdict, remarks)


def _path_line(summary: Summary) -> list[str]:
    """Return the paths that the bytes took to memory, for the loader that may use cuFile."""
    measured = summary.get("measured", Measured())
    taken = measured.get("path_bytes")
    if taken is None or summary["data_loader"] != "dali":
        return []
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


def _network_lines(summary: Summary) -> list[str]:
    """Return what the network of the host with the fullest link did, where that matters.

    It does if a link was half full, or if the data came over it: no drive is seen under the data
    folder, and the interfaces received what was read. They do not where the server is on this very
    host, for example: its bytes go over `lo`, which is not counted.
    """
    in_memory = summary.get("place", {}).get("in_memory")
    hosts = []
    for host in summary.get("measured", Measured()).get("hosts") or ():
        if use := host.get("network"):
            came = use["received_bytes_per_second"] >= _CARRIED * host["read_bytes_per_second"]
            local = host.get("device") or in_memory
            if _fullest(use)[0] >= _HALF_FULL or (came and not local):
                hosts.append((host["host"], use))
    if not hosts:
        return []
    name, use = max(hosts, key=lambda each: _fullest(each[1]))
    rates = " and ".join(
        f"{done} {format_rate(use[f'{done}_bytes_per_second'])}" for done in ("received", "sent")
    )
    if use["gbps"] is None:
        link = f"the rate of {use['nic']} is not known, client.nic_gbps=... tells it"
    else:
        link = f"{use['nic']}: {100 * _fullest(use)[0]:.0f}% of {use['gbps']:g} Gb/s"
    return [f"network: host {name} {rates}; {link}"]


def _start_line(measured: Measured) -> list[str]:
    """Return how long each of several hosts took from its launch to the first step."""
    known = [(host.get("start_seconds"), host["host"]) for host in measured.get("hosts") or ()]
    told = sorted((seconds, name) for seconds, name in known if seconds is not None)
    if len(told) < 2:
        return []
    until = "from launch to the first step"
    if len(told) > _MOST_NAMED:
        (least, _), (most, name) = told[0], told[-1]
        return [f"start: {least:.1f} to {most:.1f} s {until}, the longest on host {name}"]
    each = ", ".join(f"host {name} {seconds:.1f} s" for seconds, name in told)
    return [f"start: {each} {until}"]


def _fullest(use: Mapping[str, Any]) -> tuple[float, float]:
    """Return the share of a link's rate in its busier direction, and its bytes per second."""
    ways = ("received", "sent")
    return (
        max(use[f"{way}_share"] or 0.0 for way in ways),
        max(use[f"{way}_bytes_per_second"] for way in ways),
    )


def verdict_line(workload: Workload, metrics: Metrics, summary: Summary = UNKNOWN) -> str:
    """Return the verdict, its figures, and how many accelerators the storage feeds."""
    judgement = judge_run(workload, metrics, summary)
    au, wanted = metrics.au_percentage, 100 * workload.metric.au
    how = f"edition {metrics.edition}"
    if "loop" in summary and "hand_over" in summary:
        how += f", loop {summary['loop']}, hand-over {summary['hand_over']}"
    figures = f"utilisation {au:.2f}%, at least {wanted:g}% wanted ({how})"
    if judgement.reasons:
        parts = [] if summary.get("status") in UNFINISHED else [figures]
        parts += [*judgement.reasons, *judgement.remarks]
        return f"{judgement.verdict}: {'; '.join(parts)}"
    parts = [f"{judgement.verdict}: {figures}"]
    limit = summary.get("limit")
    if limit and limit["name"] == "storage":
        feeds = metrics.num_accelerators * round(au, 2) / wanted  # as `passes` rounds
        parts.append(
            f"this storage feeds {counted(int(feeds + 1e-9), 'accelerator')} ({feeds:.1f})"
        )
    return "; ".join([*parts, *judgement.remarks])


def _table(workload: Workload, metrics: Metrics) -> list[str]:
    mean_bytes = workload.dataset.mean_bytes
    rows = (
        (name, [value(epoch, mean_bytes) for epoch in metrics.epochs], form)
        for name, value, form in rows_of(workload, metrics)
    )
    return table_over_epochs(rows, width=28)


def table_over_epochs(rows: Iterable[tuple[str, Sequence[float], str]], *, width: int) -> list[str]:
    """Return the lines of a table: of each row its name, and mean, least and most of its values.

    A row also has the form of its numbers; the names take `width` characters.
    """
    lines = [f"{'per epoch':<{width}}{'mean':>12}{'min':>12}{'max':>12}"]
    lines.append(" " * width + "  ----------" * 3)
    for name, values, form in rows:
        cells = (float(np.mean(values)), min(values), max(values))
        lines.append(f"{name:<{width}}" + "".join(f"{cell:>12{form}}" for cell in cells))
    return lines


def _below(workload: Workload, metrics: Metrics) -> list[str]:
    """Return a line that names the epochs under the threshold, if there are any."""
    wanted = 100 * workload.metric.au
    below = [e for e in metrics.epochs if not passes(e.au_percentage, wanted)]
    named = ", ".join(f"{epoch.epoch + 1} ({epoch.au_percentage:.2f}%)" for epoch in below)
    some = 0 < len(below) < len(metrics.epochs)
    return [f"epochs under the threshold: {named}"] if some else []
