"""The table of docs/workloads.md: `python -m docs.workloads --write`, at the checkout's root."""

import sys
from pathlib import Path

from dlemu.report.text import render_markdown
from dlemu.report.tools import present_workloads
from dlemu.sizing.rows import rows
from dlemu.terminal import say

ROOT = Path(__file__).parents[1]
PAGE = Path("docs/workloads.md")
_MARKS = "<!-- python -m docs.workloads --write -->", "<!-- end -->"


def main() -> None:
    """Print the table, or put it into the page."""
    text = table()
    if sys.argv[1:] != ["--write"]:
        say(text)
        return
    page = (ROOT / PAGE).read_text()
    before, _, rest = page.partition(_MARKS[0])
    _, _, after = rest.partition(_MARKS[1])
    (ROOT / PAGE).write_text(f"{before}{_MARKS[0]}\n\n{text}\n\n{_MARKS[1]}{after}")


def table() -> str:
    """Return all published workloads as a table of Markdown."""
    return render_markdown(present_workloads([row.document for row in rows()]))


if __name__ == "__main__":
    main()
