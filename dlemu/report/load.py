"""`dlemu load`: how long a model's files take, measured or by datasheets."""

from collections.abc import Mapping
from typing import Any

from dlemu.report.blocks import Block, Column, Command, Lines, Verdict, folded, table_of
from dlemu.units import counted, format_bytes, format_rate, format_seconds

Document = Mapping[str, Any]


def present_load(document: Document) -> list[Block]:
    """Return the blocks of a model load: what was read, and the arithmetic by datasheets."""
    name = document["model"] or "the files"
    size = f"{format_bytes(document['model_bytes'])} in {counted(document['num_files'], 'file')}"
    about = f", {document['datatype']} ({document['source']})" if document["model"] else ""
    what = Lines([f"{name}: {size}{about}"])
    sheets = table_of(
        document["by_datasheet"],
        Column("drives", _drives),
        Column("read rate", "read_bytes_per_second", format_rate),
        Column("load", "seconds", format_seconds),
        title="by datasheet, without a measurement",
    )
    once = Lines(
        ["A loaded model stays in memory and reads nothing more: only loading uses storage."]
    )
    if "cells" not in document:
        fast, slow = (
            choose(document["by_datasheet"], key=lambda row: row["seconds"])
            for choose in (min, max)
        )
        line = f"{name} loads in {format_seconds(fast['seconds'])} from {_drives(fast)}"
        if fast != slow:
            line += f", in {format_seconds(slow['seconds'])} from {_drives(slow)}"
        measure = f"dlemu load model={document['model']} target=FOLDER"
        return [Verdict(line), what, sheets, once, Command("measure it", measure)]
    return [
        _verdict(name, document),
        what,
        Lines([_cold(document)]),
        table_of(
            document["cells"],
            Column("way", "way"),
            Column("readers", "readers"),
            Column("seconds", "seconds", format_seconds),
            Column("rate", "bytes_per_second", format_rate),
            Column("of the drive", "share_of_drive", ".0%"),
            Column("CPU-s per GB", lambda c: 1e9 * c["cpu_seconds"] / c["num_bytes"], ".2f"),
        ),
        *folded("datasheets", [sheets, once]),
    ]


def _drives(row: Document) -> str:
    return f"{row['drives']} x {row['drive']}"


def _verdict(name: str, document: Document) -> Verdict:
    best = max(document["cells"], key=lambda cell: cell["bytes_per_second"])
    part = document["scale"] < 1
    how = f"{best['way']} with {counted(best['readers'], 'reader')}"
    line = (
        f"{name} loads in {format_seconds(best['whole_model_seconds'])}"
        f"{', computed from a part' if part else ''}: "
        f"{format_rate(best['bytes_per_second'])} by {how}, {best['share_of_drive']:.0%} of the "
        f"drive's {format_rate(document['drive_bytes_per_second'])} ({document['drive_source']})"
    )
    return Verdict(line)


def _cold(document: Document) -> str:
    part = f" (scale={document['scale']:g} of the model)" if document["scale"] < 1 else ""
    read = f"read: {format_bytes(document['num_bytes'])}{part}"
    if all(cell["pages_before"] == 0 for cell in document["cells"]):
        return f"{read}; cold: 0 of {document['num_pages']} pages in the page cache before each"
    return f"{read}; not shown to be cold: the kernel does not say what the page cache holds"
