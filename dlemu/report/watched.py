"""What is said of a job that `dlemu watch` has run: lines and commands from its numbers."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from dlemu.report.blocks import Block, Column, CommandLine, Document, table_of
from dlemu.units import counted, format_bytes, format_rate, format_seconds

_SAID = 0.01
"""Shorter shares of the time are not worth a line."""
_SEVERAL = 1.2
"""Batches for each step of an optimizer above which a loop takes several; an epoch that is left
after a batch has one without a step."""


def watched_lines(document: Document) -> Iterator[str]:
    """Yield the sentences on a watched job; none of another run."""
    seen = document.get("watched")
    if not seen:
        return
    yield _end(seen)
    yield _need(document, seen)
    if workers := seen["workers"]:
        cpu, other = (workers[f"{name}_seconds_a_batch"] for name in ("cpu", "other"))
        yield (
            f"a batch takes its worker {format_seconds(cpu)} of CPU time and "
            f"{format_seconds(other)} of waiting (reads, or no CPU)"
        )
    if seen["batches_a_step"] > _SEVERAL:
        yield f"{seen['batches_a_step']:.3g} batches for each step of the optimizer"
    if seen["ahead"]:
        yield f"the loop takes {counted(seen['ahead'], 'batch')} ahead of the one that it computes"
    if seen["early_ends"]:
        yield (
            f"{counted(seen['early_ends'], 'epoch')} ended before the loader had no more batches: "
            "the last step of each is taken to be as long as the others"
        )
    yield from _left_out(seen)
    clock = "the GPU's own clock (events on its stream)" if seen["by_gpu"] else "the host's clock"
    yield f"times are those of {clock}"
    yield from (f"note: the hook: {note}" for note in seen["notes"])


def _end(seen: dict[str, Any]) -> str:
    """Return how the command ended."""
    how = f"ended with status {seen['status']}"
    if seen["interrupted"]:
        how = f"was interrupted (status {seen['status']})"
    return f"{shlex.join(seen['command'])[:200]} {how} after {format_seconds(seen['seconds'])}"


def _need(document: Document, seen: dict[str, Any]) -> str:
    """Return what an accelerator needs, what it got, and what it lost."""
    epochs = document["per_epoch"]
    got = fmean(each["samples_per_second"] or 0.0 for each in epochs)
    got /= max(1, document["num_accelerators"])
    lost = 100 - fmean(each["whole_epoch_au_percentage"] for each in epochs)
    need, gave = f"{seen['needs_samples_per_second']:,.4g} samples/s", f"{got:,.4g} samples/s"
    if seen["needs_bytes_per_second"]:
        each = seen["needs_bytes_per_second"] / max(seen["needs_samples_per_second"], 1e-9)
        need = f"{format_rate(seen['needs_bytes_per_second'])} ({need})"
        gave = f"{format_rate(got * each)} ({gave})"
    return (
        f"one accelerator needs {need} at AU 100%; it got {gave}, and lost {lost:.1f}% of the time"
    )


def _left_out(seen: dict[str, Any]) -> Iterator[str]:
    """Yield what is not in the AU: evaluation and checkpoints."""
    parts = []
    if seen["evaluation_seconds"]:
        parts.append(f"evaluation ({format_seconds(seen['evaluation_seconds'])})")
    saved = seen["checkpoints"]
    if saved["num"]:
        parts.append(
            f"{counted(saved['num'], 'checkpoint')} ({format_bytes(saved['num_bytes'])}, "
            f"{format_seconds(saved['seconds'])})"
        )
    if parts:
        yield f"not in the AU: {' and '.join(parts)}"


def watched_blocks(document: Document) -> Iterator[Block]:
    """Yield the table of a watched job's loaders."""
    seen = document.get("watched")
    if not seen:
        return
    yield table_of(
        seen["loaders"],
        Column("loader", lambda row: Path(row["place"]).name or row["dataset"], text=True),
        Column("role", "role", text=True),
        Column("dataset", "dataset", text=True, spare=1),
        Column("batch", lambda row: row.get("batch_size") or "", text=True),
        Column("workers", lambda row: _text(row.get("num_workers")), text=True),
        Column("prefetch", lambda row: _text(row.get("prefetch_factor")), text=True, spare=3),
        Column("pinned", lambda row: _text(row.get("pin_memory")), text=True, spare=4),
        Column("start", lambda row: _text(row.get("start_method")), text=True, spare=2),
        Column("passes", "iterations", ","),
        Column("batches", "batches", ","),
        Column("seconds", "seconds", ".1f"),
    )


def next_commands(document: Document, folder: Path) -> Iterator[Block]:
    """Yield the commands that emulate a watched job, whose results are in the folder."""
    if "watched" not in document:
        return
    file = f"workload={shlex.quote(str(folder / 'workload.yaml'))}"
    where = f"dataset.data_folder=/mnt/other/{document['workload']}"
    yield CommandLine("the same job elsewhere: write its data", f"dlemu datagen {file} {where}")
    yield CommandLine("and run it", f"dlemu run {file} {where} train.epochs=2")
    yield CommandLine("how many of it a drive feeds", f"dlemu predict {file} drive=d7_ps1010")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
