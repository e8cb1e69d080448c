"""`dlemu workloads`: the published workloads, and which of them are limited by storage."""

import json

from dlemu.cli.words import Words
from dlemu.errors import WorkloadError, did_you_mean
from dlemu.report.text import answer_of
from dlemu.report.tools import present_workloads
from dlemu.sizing.rows import rows
from dlemu.terminal import answer, say


def main(words: Words) -> int:
    """Run the command; return the exit status."""
    if words.overrides:
        raise WorkloadError(f"dlemu workloads takes no keys, got {words.overrides[0]}")
    found = rows()
    for name in words.others:
        if not any(row.workload.name.startswith(name) for row in found):
            hint = did_you_mean(name, [row.workload.name for row in found])
            raise WorkloadError(f"no workload begins with {name}{hint}; dlemu workloads lists all")
    begins = tuple(words.others)
    chosen = [row for row in found if not begins or row.workload.name.startswith(begins)]
    documents = [row.document for row in chosen]
    if "--json" in words.options:
        answer(json.dumps(documents, indent=1))
    else:
        say(answer_of(present_workloads(documents)))
    return 0
