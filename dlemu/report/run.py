"""One run, and several together: blocks from their summary.json, for terminal and page."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from dlemu.findings import weighing
from dlemu.judge.metrics import passes
from dlemu.judge.outcome import REPEATABILITY, counting_rows
from dlemu.judge.records import UNFINISHED
from dlemu.report.blocks import (
    Axis,
    Block,
    Column,
    Document,
    Fold,
    Lines,
    Plot,
    Table,
    Tone,
    Verdict,
    axis_of_au,
    axis_of_numbers,
    dotted,
    level,
    measured,
    over_epochs,
    table_of,
)
from dlemu.report.in_run import checkpoint_lines, checkpoint_plots, host_lines, present_cache
from dlemu.report.watched import watched_blocks, watched_lines
from dlemu.report.words import advice_of, evidence_of, fed, note_lines, sentences
from dlemu.report.words.limits import LOSSES
from dlemu.units import counted, format_seconds

_LEAST_LOST = 0.0005
"""A loss below this share of the time in every epoch has no row, but for that of reads."""
_ROWS = (
    ("AU (%)", "au_percentage", 1, ".2f"),
    ("AU with the first step (%)", "whole_epoch_au_percentage", 1, ".2f"),
    *((f"lost: {name} (%)", f"lost {cause}", 0.01, ".2f") for cause, name in LOSSES.items()),
    ("samples/s", "samples_per_second", 1, ".2f"),
    ("read, nominal (MB/s)", "nominal_bytes_per_second", 1e6, ".1f"),
    ("read, actual (MB/s)", "read_bytes_per_second", 1e6, ".1f"),
    ("reads/s", "reads_per_second", 1, ",.0f"),
    ("first step (s)", "first_step_seconds", 1, ".3f"),
    ("wait for a batch (ms)", "wait_mean_seconds", 1e-3, ".2f"),
    ("wait, latest accelerator, p50 (ms)", "wait_p50_seconds", 1e-3, ".2f"),
    ("wait, latest accelerator, p99 (ms)", "wait_p99_seconds", 1e-3, ".2f"),
    ("read of a file, p50 (ms)", "file_read_p50_seconds", 1e-3, ".2f"),
    ("read of a file, p99 (ms)", "file_read_p99_seconds", 1e-3, ".2f"),
)
"""Of each row its name, an epoch's field, the unit that is shown, and the form of its numbers."""


def present_run(document: Document) -> list[Block]:
    """Return the blocks of a run, or of a training loop's steps; without its folder's name."""
    table = list(_table(document))
    by_epoch = [
        [str(epoch["epoch"]), *(format(values[number], form) for _, values, form in table)]
        for number, epoch in enumerate(document["per_epoch"])
    ]
    names = [name for name, _, _ in table]
    epochs = document["per_epoch"]
    numbers = [each["epoch"] for each in epochs]
    return [
        Verdict(verdict_line(document), tone_of(document)),
        Lines(list(_lines(document))),
        over_epochs(table),
        *present_cache(document),
        *watched_blocks(document),
        _plot_au("epoch", numbers, epochs, document["threshold_percentage"]),
        *checkpoint_plots(document),
        measured(document, is_open=True),
        Fold("each epoch", [Table(["epoch", *names], by_epoch, spare=names[:1:-1])]),
    ]


def tone_of(document: Document) -> Tone:
    """Return how good a verdict is: one that something weakens is no plain PASS."""
    if document["verdict"] == "MEASURED":
        return "plain"
    if document["verdict"] == "FAIL":
        return "fail"
    weak = weighing(document, "weakens")
    return "pass" if document["verdict"] == "PASS" and not weak else "caution"


_WORKERS = {"lean": "lean", "dataloader": "as a DataLoader's"}
"""What a worker costs, by reader.cost."""


def verdict_line(document: Document) -> str:
    """Return the verdict, its figures, and how many accelerators the storage feeds."""
    metric, verdict = document["metric"], document["verdict"]
    how = f"edition {metric['edition']}"
    if "loop" in document and "hand_over" in document:
        how += f", loop {document['loop']}, hand-over {document['hand_over']}"
    if cost := document.get("worker_cost"):
        how += f", workers {_WORKERS[cost]}"
    parts = []
    if document.get("status") not in UNFINISHED:
        wanted = document["threshold_percentage"]
        required = "" if wanted is None else f", required {wanted:g}%"
        ceiling = document.get("ceiling_au_percentage")
        most = "" if ceiling is None else f", ceiling {ceiling:.1f}% on this host"
        if most and (allreduce := document.get("allreduce_seconds")):
            most += f" with an all-reduce of {format_seconds(allreduce)}"
        parts.append(f"AU {metric['train_au_mean_percentage']:.2f}%{most}{required} ({how})")
    if phases := document.get("phases"):
        parts.append(f"this storage feeds {fed(phases)}")
    elif (feeds := document["real_accelerators"]) is not None:
        number = counted(int(feeds + 1e-9), "accelerator")
        parts.append(f"this storage feeds {number} ({math.floor(10 * feeds + 1e-8) / 10:.1f})")
    return f"{verdict}: {'; '.join([*parts, *sentences(document, 'reason', 'weakens', 'remark')])}"


def _lines(document: Document) -> Iterator[str]:
    """Yield the sentences below the verdict."""
    epochs, wanted = document["per_epoch"], document["threshold_percentage"]
    what = document.get("accelerator", "emulated accelerator")
    known = any(each["samples_per_second"] for each in epochs)
    yield (
        f"{document['workload']}: {counted(document['num_accelerators'], what)}, "
        f"{counted(len(epochs), 'epoch')} of {epochs[0]['num_steps']} steps"
        + (f", batches of {document['reader']['batch_size']}" if known else "")
    )
    if limit := document.get("limit"):
        yield f"limit: {limit['name']}. {evidence_of(limit)}"
        if advice := advice_of(limit):
            yield f"try: {advice}"
    yield from sentences(document, "note")
    yield from watched_lines(document)
    yield from checkpoint_lines(document.get("checkpoints"))
    if shares := document.get("time_shares"):
        each = ", ".join(f"{name} {100 * share:.1f}%" for name, share in shares.items())
        yield f"time: {each}; timed by {' and '.join(document['timed_by'])}"
    yield from host_lines(document)
    below = []
    if wanted is not None:
        below = [each for each in epochs if not passes(each["au_percentage"], wanted)]
    if "status" in document and 0 < len(below) < len(epochs):  # not of a training loop
        named = ", ".join(f"{each['epoch']} ({each['au_percentage']:.2f}%)" for each in below)
        yield f"epochs under the threshold: {named}"
    yield from note_lines(document)


def _table(document: Document) -> Iterator[tuple[str, list[float], str]]:
    """Yield of each row its name, the value of each epoch, and the form of its numbers."""
    measured = document.get("measured") or {}
    reads = {name: each for name, each in measured.items() if name.startswith("file_read_")}
    epochs = [
        each
        | {f"lost {cause}": share for cause, share in (each["lost"] or {}).items()}
        | {name.removesuffix("_per_epoch"): of[number] for name, of in reads.items()}
        for number, each in enumerate(document["per_epoch"])
    ]
    for name, key, unit, form in _ROWS:
        values = [each.get(key) for each in epochs]
        if None in values or (key == "reads_per_second" and not document["reader"]["scattered"]):
            continue
        is_loss = key.startswith("lost ") and key != "lost read"
        if not is_loss or max(values) >= _LEAST_LOST:
            yield name, [value / unit for value in values], form


def _plot_au(
    what: str, numbers: Sequence[int], rows: Sequence[Document], threshold: float | None
) -> Plot:
    """Return AU by the rule and AU with the first step, of epochs or runs, and the threshold."""
    by_rule, whole = (
        [row[name] for row in rows] for name in ("au_percentage", "whole_epoch_au_percentage")
    )
    x, joined = axis_of_numbers(what, numbers[0], numbers[-1]), what == "epoch"
    series = [
        dotted("AU by the rule", "first", numbers, by_rule, joined=joined),
        dotted("AU with the first step", "second", numbers, whole, joined=joined),
    ]
    if threshold is not None:
        series.append(level(f"threshold {threshold:g}%", "limit", x, threshold))
    wanted = [] if threshold is None else [threshold]
    return Plot(f"AU of each {what}", x, axis_of_au(*wanted, *by_rule, *whole), series)


# --- several runs ---------------------------------------------------------------------------------


def present_runs(document: Document) -> list[Block]:
    """Return the blocks of several runs, without those of each run."""
    counting = counting_rows(document["runs"])
    spreads = [
        {"name": name, **document[field]}
        for name, field in (("AU (%)", "au_percentage"), ("samples/s", "samples_per_second"))
    ]
    line = f"{document['workload']}, division {document['division']}: {document['label']}"
    numbers = range(1, len(counting) + 1)
    return [
        Verdict(runs_verdict_line(document), tone_of(document)),
        Lines([line, *note_lines(document)]),
        table_of(
            document["runs"],
            Column("run", "name"),
            Column("verdict", "verdict", text=True),
            Column("AU (%)", "au_percentage", ".2f"),
            Column("samples/s", "samples_per_second", ".2f"),
            Column("MB/s", lambda r: r["nominal_MiB_per_second"] * 2**20 / 1e6, ".1f", spare=3),
            Column("cached (%)", "page_cache_share", lambda share: f"{100 * share:.1f}"),
            Column("pause before (s)", "gap_seconds", ".0f", spare=2),
            Column("limit", "limit", text=True),
            Column("epochs under the threshold", "epochs_under", _epochs, text=True, spare=1),
        ),
        table_of(
            spreads,
            Column("runs that count", "name"),
            Column("mean", "mean", ".2f"),
            Column("standard deviation", "sd", ".2f"),
            Column("95% interval of the mean", "interval", lambda i: f"{i[0]:.2f} to {i[1]:.2f}"),
        ),
        _plot_au("run", numbers, counting, document["threshold_percentage"]),
        _plot_rates([row["samples_per_second"] for row in counting]),
        measured(document, is_open=True),
    ]


def _epochs(rows: Sequence[Document]) -> str:
    """Return "epoch 1 (71.43%), epoch 2 (70.92%)"."""
    return ", ".join(f"epoch {row['epoch']} ({row['au_percentage']:.2f}%)" for row in rows)


def runs_verdict_line(document: Document) -> str:
    """Return the verdict on all runs, with its reasons."""
    reasons = "; ".join(sentences(document, "reason")) or (
        f"every run has AU {document['threshold_percentage']:g}% or more, samples/s within "
        f"{document['repeatability_percentage']:.1f}% of their mean"
    )
    remarks = sentences(document, "weakens", "remark")
    return "; ".join([f"{document['verdict']}: {reasons}", *remarks])


def _plot_rates(rates: Sequence[float]) -> Plot:
    """Return samples/s of each run, and how far they may lie from their mean."""
    mean = fmean(rates)
    bounds = [mean * (1 - REPEATABILITY), mean * (1 + REPEATABILITY)]
    x = axis_of_numbers("run", 1, len(rates))
    low, high = min(*rates, *bounds), max(*rates, *bounds)
    far = f"mean ± {100 * REPEATABILITY:g}%: farther off is not repeatable"
    series = [
        dotted("a run", "first", range(1, len(rates) + 1), rates, joined=False),
        level("mean", "second", x, mean),
        level(far, "limit", x, *bounds),
    ]
    y = Axis("samples/s", low - 0.01 * mean, high + 0.01 * mean)
    return Plot("samples per second of each run", x, y, series)
