"""The dataset that a job needs by the benchmark's rule: the answer of `dlemu datasize`."""

import math
from collections.abc import Mapping
from typing import Any

from dlemu.report.blocks import Block, Command, Lines, Table, Verdict
from dlemu.units import counted, format_bytes

Document = Mapping[str, Any]


def present_datasize(found: Document) -> list[Block]:
    """Return files and bytes, both terms of the rule, and the command that writes the files."""
    batch, number = found["batch_size"], found["num_accelerators"]
    memory = f"{found['memory']['text']} / {format_bytes(found['sample_bytes'])} a sample"
    steps = f"500 x {batch} x {counted(number, 'accelerator')}"
    terms = {"steps": ("500 steps an epoch", steps), "memory": ("5 x memory", f"5 x {memory}")}
    rows = [
        (
            name,
            f"{math.ceil(found[f'samples_for_{term}']):,}",
            f"{how}{'  <- decides' if found['decided_by'] == term else ''}",
        )
        for term, (name, how) in terms.items()
    ]
    each = f"{counted(found['samples_per_file'], 'sample')}, {found['format']}"
    blocks: list[Block] = [
        Verdict(
            f"{found['workload']} with {counted(number, 'emulated accelerator')} needs "
            f"{counted(found['num_files'], 'file')}, {_total(found)}"
        ),
        Table(heads=("rule", "samples", "from"), rows=rows, texts=("from",)),
        Lines([f"a file: {each}"]),
    ]
    if found["excess"]:
        return [*blocks, Lines([found["excess"]])]
    if not found["has_folder"]:
        here = "written below the working directory; name a folder on the storage instead:"
        blocks.append(Lines([here]))
    return [*blocks, Command("", found["command"])]


def _total(found: Document) -> str:
    """Return the bytes, how many of them are read, and what small files take, if they differ."""
    num_bytes, blocks = found["num_bytes"], found["block_bytes"]
    share = found["sample_bytes"] / found["stored_sample_bytes"]
    read = "" if share == 1 else f", of which {format_bytes(num_bytes * share)} are read"
    total = f"{format_bytes(num_bytes)}{read}"
    if num_bytes > blocks / 2:
        return total
    return f"{total}; {format_bytes(blocks)} on a drive with blocks of 4 KiB"
