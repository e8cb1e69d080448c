"""The table of docs/workloads.md: `python -m docs.workloads --write`, at the checkout's root."""

import sys
from pathlib import Path

from dlemu.report.text import render_markdown
from dlemu.report.tools import present_workloads
from dlemu.sizing.formula import workload_rows
from docs.house import print_or_write

PAGE = Path(__file__).with_name("workloads.md")
MARKS = "<!-- python -m docs.workloads --write -->", "<!-- end -->"


def main(words: list[str]) -> int:
    """Print the table, or put it into the page."""
    return print_or_write(words, PAGE, table(), MARKS)


def table() -> str:
    """Return all published workloads as a table of Markdown."""
    return render_markdown(present_workloads(workload_rows()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
