"""Tables as text, Markdown and HTML. The first row is the head; each row is a list of cells."""

import html
from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def text_table(rows: Rows, *, markdown: bool = False) -> list[str]:
    """Return the lines of a table with aligned columns and a rule below the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[cell.ljust(w) for cell, w in zip(row, widths, strict=True)] for row in rows]
    if markdown:
        lines = ["| " + " | ".join(row) + " |" for row in cells]
        rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    else:
        lines = ["  ".join(row).rstrip() for row in cells]
        rule = "  ".join("-" * width for width in widths)
    return [lines[0], rule, *lines[1:]]


def html_table(rows: Rows) -> str:
    """Return a table as HTML, for notebooks."""
    lines = []
    for tag, row in zip(["th"] + ["td"] * (len(rows) - 1), rows, strict=True):
        lines.append("".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row))
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
