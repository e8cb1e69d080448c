"""One run: blocks from its summary.json, for the terminal and for a page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from dlemu.report.blocks import Block, Facts, Fold, Lines, Table, Tone, Verdict
from dlemu.report.cache import present_cache
from dlemu.report.facts import facts_of
from dlemu.report.in_run import checkpoint_lines, checkpoint_plots, host_lines
from dlemu.report.plot import Axis, Plot, axis_of_numbers, dotted, level
from dlemu.results.losses import LOSSES
from dlemu.results.metrics import passes
from dlemu.results.records import UNFINISHED
from dlemu.units import counted

Document = Mapping[str, Any]
_Value = Callable[[Document], float | None]
_LEAST_LOST = 0.0005
"""A loss below this share of the time in every epoch has no row, but for that of reads."""


def present_run(document: Document) -> list[Block]:
    """Return the blocks of a run, or of a training loop's steps; without its folder's name."""
    table = _table(document)
    blocks: list[Block] = [
        Verdict(verdict_line(document), tone_of(document)),
        Lines(list(_lines(document))),
        Table(heads=("per epoch", "mean", "min", "max"), rows=[_over(row) for row in table]),
        *present_cache(document),
        _plot(document),
        *checkpoint_plots(document),
    ]
    if facts := [(name, value) for name, value in facts_of(document) if value]:
        blocks.append(Fold("where and how it was measured", [Facts(facts)], is_open=True))
    blocks.append(Fold("each epoch", [_by_epoch(document, table)]))
    return blocks


def tone_of(document: Document) -> Tone:
    """Return how good a verdict is: one that a remark with BUT weakens is no plain PASS."""
    if document["verdict"] == "FAIL":
        return "fail"
    weak = any("BUT " in remark for remark in document["remarks"])
    return "pass" if document["verdict"] == "PASS" and not weak else "caution"


def verdict_line(document: Document) -> str:
    """Return the verdict, its figures, and how many accelerators the storage feeds."""
    metric, verdict = document["metric"], document["verdict"]
    how = f"edition {metric['edition']}"
    if "loop" in document and "hand_over" in document:
        how += f", loop {document['loop']}, hand-over {document['hand_over']}"
    parts = []
    if document.get("status") not in UNFINISHED:
        parts.append(
            f"AU {metric['train_au_mean_percentage']:.2f}%, required "
            f"{document['threshold_percentage']:g}% ({how})"
        )
    if (feeds := document["real_accelerators"]) is not None:
        number = counted(int(feeds + 1e-9), "accelerator")
        parts.append(f"this storage feeds {number} ({feeds:.1f})")
    return f"{verdict}: {'; '.join([*parts, *document['reasons'], *document['remarks']])}"


def _lines(document: Document) -> Iterator[str]:
    """Yield the sentences below the verdict."""
    epochs = document["per_epoch"]
    what = document.get("accelerator", "emulated accelerator")
    known = any(each["samples_per_second"] for each in epochs)
    yield (
        f"{document['workload']}: {counted(document['num_accelerators'], what)}, "
        f"{counted(len(epochs), 'epoch')} of {epochs[0]['num_steps']} steps"
        + (f", batches of {document['reader']['batch_size']}" if known else "")
    )
    if limit := document.get("limit"):
        yield f"limit: {limit['name']}. {limit['evidence']}"
        if limit.get("advice"):
            yield f"try: {limit['advice']}"
    yield from filter(None, (document["read_ahead"], document["unlike"]))
    yield from checkpoint_lines(document.get("checkpoints"))
    if shares := document.get("time_shares"):
        each = ", ".join(f"{name} {100 * share:.1f}%" for name, share in shares.items())
        yield f"time: {each}; timed by {' and '.join(document['timed_by'])}"
    yield from host_lines(document)
    if "status" in document:  # not of a training loop
        yield from _below(document)
    yield from (f"note: {note}" for note in document.get("notes") or ())


def _below(document: Document) -> Iterator[str]:
    """Yield the epochs under the threshold, if not all are."""
    epochs, wanted = document["per_epoch"], document["threshold_percentage"]
    below = [each for each in epochs if not passes(each["au_percentage"], wanted)]
    if 0 < len(below) < len(epochs):
        named = ", ".join(f"{each['epoch']} ({each['au_percentage']:.2f}%)" for each in below)
        yield f"epochs under the threshold: {named}"


def _table(document: Document) -> list[tuple[str, list[float], str]]:
    """Return of each row its name, the value of each epoch, and the form of its numbers."""
    epochs = document["per_epoch"]

    def of(name: str, unit: float = 1.0) -> _Value:
        return lambda epoch: None if epoch[name] is None else epoch[name] / unit

    def lost(cause: str) -> _Value:
        known = [epoch["lost"][cause] for epoch in epochs if epoch["lost"]]
        said = known and (max(known) >= _LEAST_LOST or cause == "read")
        return lambda epoch: 100 * epoch["lost"][cause] if said else None

    rows: list[tuple[str, _Value, str]] = [
        ("AU (%)", of("au_percentage"), ".2f"),
        ("AU with the first step (%)", of("whole_epoch_au_percentage"), ".2f"),
        *((f"lost: {name} (%)", lost(cause), ".2f") for cause, name in LOSSES.items()),
        ("samples/s", of("samples_per_second"), ".2f"),
        ("read, nominal (MB/s)", of("nominal_bytes_per_second", 1e6), ".1f"),
        ("read, actual (MB/s)", of("read_bytes_per_second", 1e6), ".1f"),
        ("first step (s)", of("first_step_seconds"), ".3f"),
        ("wait for a batch (ms)", of("wait_mean_seconds", 1e-3), ".2f"),
        ("wait, latest accelerator, p50 (ms)", of("wait_p50_seconds", 1e-3), ".2f"),
        ("wait, latest accelerator, p99 (ms)", of("wait_p99_seconds", 1e-3), ".2f"),
    ]
    if document["reader"]["scattered"]:
        rows.insert(-4, ("reads/s", of("reads_per_second"), ",.0f"))
    found = []
    for name, value, form in rows:
        known = [each for each in map(value, epochs) if each is not None]
        if len(known) == len(epochs):
            found.append((name, known, form))
    return found


def _over(row: tuple[str, list[float], str]) -> list[str]:
    name, values, form = row
    return [name, *(format(each, form) for each in (fmean(values), min(values), max(values)))]


def _by_epoch(document: Document, table: Sequence[tuple[str, list[float], str]]) -> Table:
    """Return the same figures, one row an epoch."""
    return Table(
        heads=("epoch", *(name for name, _, _ in table)),
        rows=[
            [str(each["epoch"]), *(format(values[number], form) for _, values, form in table)]
            for number, each in enumerate(document["per_epoch"])
        ],
        spare=[name for name, _, _ in reversed(table[2:])],
    )


def _plot(document: Document) -> Plot:
    epochs = document["per_epoch"]
    numbers = [each["epoch"] for each in epochs]
    au, whole = ([each[f"{name}au_percentage"] for each in epochs] for name in ("", "whole_epoch_"))
    return plot_au("epoch", numbers, (au, whole), document["threshold_percentage"])


def plot_au(
    what: str, numbers: Sequence[int], au: tuple[Sequence[float], Sequence[float]], wanted: float
) -> Plot:
    """Return AU by the rule and AU with the first step, of epochs or runs, and the threshold."""
    counts, whole = au
    x = axis_of_numbers(what, numbers[0], numbers[-1])
    joined = what == "epoch"
    return Plot(
        title=f"utilisation of each {what}",
        x=x,
        y=Axis(
            name="accelerator utilisation (%)",
            low=max(0.0, min(wanted, *counts, *whole) - 5),
            high=100.0,
        ),
        series=[
            dotted("AU by the rule", "first", numbers, counts, joined=joined),
            dotted("AU with the first step", "second", numbers, whole, joined=joined),
            level(f"threshold {wanted:g}%", "limit", x, wanted),
        ],
    )
