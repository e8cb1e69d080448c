"""Tables as text, Markdown and HTML. The first row is the head; each row is a list of cells."""

import html
from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def text_table(rows: Rows) -> list[str]:
    """Return the lines of a table with aligned columns and a rule below the head."""
    widths = _widths(rows)
    lines = ["  ".join(row).rstrip() for row in _padded(rows, widths)]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def markdown_table(rows: Rows) -> list[str]:
    """Return the lines of a Markdown table."""
    widths = _widths(rows)
    lines = ["| " + " | ".join(row) + " |" for row in _padded(rows, widths)]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def html_table(rows: Rows) -> str:
    """Return a table as HTML, for notebooks."""
    cells = [[html.escape(cell) for cell in row] for row in rows]
    lines = ["".join(f"<td>{cell}</td>" for cell in row) for row in cells[1:]]
    head = "".join(f"<th>{cell}</th>" for cell in cells[0])
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in [head, *lines]) + "</table>"


def _widths(rows: Rows) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _padded(rows: Rows, widths: Sequence[int]) -> list[list[str]]:
    return [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
