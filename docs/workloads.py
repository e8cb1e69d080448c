"""The table of docs/workloads.md: `python -m docs.workloads --write`, at the checkout's root."""

import sys
from pathlib import Path

from dlemu.report.text import render_markdown
from dlemu.report.tools import present_workloads
from dlemu.sizing.formula import workload_rows
from dlemu.terminal import say
from docs.house import page_with

PAGE = Path(__file__).with_name("workloads.md")
MARKS = "<!-- python -m docs.workloads --write -->", "<!-- end -->"


def main() -> None:
    """Print the table, or put it into the page."""
    text = table()
    if sys.argv[1:] != ["--write"]:
        say(text)
        return
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page_with(page, text, MARKS), encoding="utf-8")


def table() -> str:
    """Return all published workloads as a table of Markdown."""
    return render_markdown(present_workloads(workload_rows()))


if __name__ == "__main__":
    main()
