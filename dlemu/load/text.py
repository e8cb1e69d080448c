"""The table of a model load, and the arithmetic by datasheets."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dlemu.load.measure import Answer, Load
from dlemu.load.models import Model, find_drive, known_drives
from dlemu.units import counted, format_rate, format_seconds
from dlemu.workload.model import Drive

ONCE = (
    "A model that is loaded stays in memory and reads nothing more: inference feels the drive at "
    "load only."
)


def seconds_by_datasheet(num_bytes: int, drives: Sequence[Drive], num: int) -> list[dict[str, Any]]:
    """Return the drives with the seconds that so many of each need for these bytes."""
    return [
        {
            "drive": drive.name,
            "drives": num,
            "read_bytes_per_second": num * drive.read_rate,
            "seconds": num_bytes / (num * drive.read_rate),
        }
        for drive in drives
    ]


def drives_to_show(load: Load) -> list[Drive]:
    """Return the drive that was named, else all datasheets."""
    if load.drive is not None:
        return [load.drive]
    return [find_drive(name) for name in known_drives()]


def arithmetic(name: str, num_bytes: int, load: Load) -> list[str]:
    """Return a line for each drive: bytes / rate = seconds."""
    lines = [f"{name} by datasheet:"]
    for row in seconds_by_datasheet(num_bytes, drives_to_show(load), load.drives):
        shown = f"{load.drives} x {row['drive']}"
        rate = format_rate(row["read_bytes_per_second"])
        lines.append(f"  {shown:<16} {num_bytes / 1e9:.4g} GB / {rate} = {row['seconds']:.3g} s")
    return lines


def describe_model(model: Model) -> str:
    """Return what is known of a model in a line."""
    size = f"{model.num_bytes / 1e9:.4g} GB in {counted(len(model.files), 'file')}"
    return f"{model.name}: {size}, {model.datatype} ({model.source})"


def render(answer: Answer) -> str:
    """Return the table over ways and readers, and what the whole model takes."""
    load, best = answer.load, max(answer.cells, key=lambda cell: cell.bytes_per_second)
    part = f", scale={load.scale:g} of the model" if load.scale < 1 else ""
    known = all(cell.pages_before == 0 for cell in answer.cells)
    cold = (
        f"cold: 0 of {answer.num_pages} pages in the page cache before each read"
        if known
        else "not shown to be cold: the kernel does not tell what the page cache holds"
    )
    lines = [
        f"{answer.num_bytes / 1e9:.4g} GB in {counted(answer.num_files, 'file')}{part}; {cold}",
        "",
        "way      readers   seconds    GB/s   share of the drive   CPU-s/GB",
    ]
    for cell in answer.cells:
        cpu = cell.cpu_seconds / cell.num_bytes * 1e9
        lines.append(
            f"{cell.way:<8} {cell.readers:>7} {cell.seconds:>9.3f} "
            f"{cell.bytes_per_second / 1e9:>7.3f}   {answer.share(cell):>18.0%} {cpu:>10.2f}"
        )
    rate = format_rate(answer.drive_bytes_per_second)
    lines += ["", f"drive: {rate} ({answer.drive_source})"]
    if load.scale < 1:
        lines.append(
            f"the whole model at {best.way} x {best.readers}: {answer.whole_bytes / 1e9:.4g} GB / "
            f"{format_rate(best.bytes_per_second)} = "
            f"{format_seconds(answer.whole_bytes / best.bytes_per_second)} (not measured)"
        )
    return "\n".join(lines)


def document(answer: Answer) -> dict[str, Any]:
    """Return what --json prints."""
    load = answer.load
    return {
        "model": None if load.model is None else load.model.name,
        "model_bytes": answer.whole_bytes,
        "scale": load.scale,
        "num_files": answer.num_files,
        "num_bytes": answer.num_bytes,
        "drive_bytes_per_second": answer.drive_bytes_per_second,
        "drive_source": answer.drive_source,
        "cells": [
            {
                **asdict(cell),
                "bytes_per_second": cell.bytes_per_second,
                "share_of_drive": answer.share(cell),
                "whole_model_seconds": answer.whole_bytes / cell.bytes_per_second,
            }
            for cell in answer.cells
        ],
        "by_datasheet": seconds_by_datasheet(answer.whole_bytes, drives_to_show(load), load.drives),
    }
