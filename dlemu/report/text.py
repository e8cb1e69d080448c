"""Blocks as the terminal's text: as wide as the terminal, or unbounded where a program reads."""

import io
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Literal

from rich.box import Box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from dlemu.report.blocks import (
    Block,
    CommandLine,
    Facts,
    FileText,
    Fold,
    Lines,
    Table,
    Verdict,
)
from dlemu.terminal import Answer, is_verbose, shown_line, takes_colours, terminal_width

_UNBOUND = 100_000
"""Columns of what is no terminal: nothing is wrapped, so that it can be searched."""
_STYLES = {"pass": "bold green", "fail": "bold red", "caution": "bold yellow", "plain": "bold"}
_INDENT = "  "
_APART = 3
"""Characters between two columns."""
_SHORT = 12
"""Characters of a cell that stays on one line."""
_SENTENCE = 24
"""Characters that a column of sentences keeps."""
_lines = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)
_RULED = Box("    \n    \n -- \n" + 5 * "    \n", ascii=True)
"""A line below the heads, in a character that every encoding has."""


def render_text(
    blocks: Iterable[Block],
    *,
    width: int | None = None,
    colour: bool = False,
    verbose: bool = False,
) -> str:
    """Return blocks as text without a last line feed; `verbose` opens what is folded.

    Control characters are written out, so with `colour` the only ones are those of the colours.
    """
    columns = width or _UNBOUND
    file = io.StringIO()
    console = Console(
        file=file,
        width=columns,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    before: Block | None = None
    for block in _opened(blocks, verbose=verbose):
        next_answer = isinstance(block, Verdict) and not isinstance(before, Verdict)
        beside_columns = isinstance(before, Table | Facts) or isinstance(block, Table | Facts)
        if before is not None and (next_answer or beside_columns):
            console.print()
        for part in _parts(block, columns):
            console.print(part, soft_wrap=isinstance(part, str))
        before = block
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def answer_of(blocks: Sequence[Block], *, apart: bool = False) -> Answer:
    """Return what a command answers: plain where a program reads, fitted to a terminal.

    `apart`: an empty line comes before it.
    """
    before = "\n" if apart else ""
    verdicts = [block.line for block in blocks if isinstance(block, Verdict)]
    short = "\n".join(verdicts) or None
    verbose = is_verbose()
    fitted = None
    if (width := terminal_width()) is not None:
        colour = takes_colours()
        fitted = before + render_text(blocks, width=width, colour=colour, verbose=verbose)
    return Answer(before + render_text(blocks, verbose=verbose), short, fitted)


def render_markdown(blocks: Iterable[Block]) -> str:
    """Return tables and lines as Markdown; as text, too, its columns stand below each other."""
    parts = []
    for block in blocks:
        if isinstance(block, Table):
            rows = [block.heads, *block.rows]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            lines = [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in rows]
            lines.insert(1, f"|{'|'.join('-' * (width + 2) for width in widths)}|")
            parts.append("\n".join(lines))
        elif isinstance(block, Lines) and block.lines:
            parts.append("\n".join(block.lines))
    return "\n\n".join(parts)


def _opened(blocks: Iterable[Block], *, verbose: bool) -> Iterator[Block]:
    """Yield the blocks that are shown; a plot is for pages and pictures."""
    for block in blocks:
        if isinstance(block, Fold):
            if verbose:
                yield Lines([f"{block.title}:"])
                yield from _opened(block.blocks, verbose=True)
        elif isinstance(block, Verdict | Lines | CommandLine | Facts | Table | FileText):
            yield block


def _parts(block: Block, columns: int) -> Iterator[Text | str | RichTable | Padding]:
    match block:
        case Verdict(line, tone):
            yield Text("\n".join(_wrapped(line, columns)), style=_STYLES[tone])
        case Lines(lines):
            yield from ("\n".join(_wrapped(line, columns)) for line in lines)
        case CommandLine(what, line):
            yield f"{what}: {shown_line(line)}" if what else shown_line(line)
        case FileText(text):
            yield from map(shown_line, text.splitlines())
        case Facts(pairs):
            yield from _facts(pairs, columns)
        case Table():
            yield from _table(block, columns)


def _wrapped(line: str, columns: int) -> list[str]:
    """Return a sentence in lines that break between words, the later ones indented."""
    return _lines(shown_line(line), columns, subsequent_indent=_INDENT)


def _facts(pairs: Sequence[tuple[str, str]], columns: int) -> Iterator[str]:
    known = [(shown_line(name), shown_line(value)) for name, value in pairs if value]
    most = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        indent = (f"{name}: " if name else "").ljust(most + 2)
        lines = _lines(value, columns, initial_indent=indent, subsequent_indent=" " * len(indent))
        yield "\n".join(lines)


def _table(table: Table, columns: int) -> Iterator[str | RichTable]:
    """Yield a table's title, the table, and which columns the terminal is too narrow for.

    Numbers stand to the right, and no word breaks.
    """
    if table.title:
        yield "\n".join(_wrapped(table.title, columns))
    cells = {
        head: [shown_line(row[place]) for row in table.rows]
        for place, head in enumerate(table.heads)
    }
    texts = {table.heads[0], *table.texts}
    least = {head: _least_width(head, each, is_text=head in texts) for head, each in cells.items()}
    widths = {head: max(map(len, [head, *each])) for head, each in cells.items()}
    left_out: list[str] = []
    for head in table.spare:
        if sum(least[each] + _APART for each in widths) - 1 <= columns:
            break
        del widths[head]
        left_out.append(head)
    while sum(width + _APART for width in widths.values()) - 1 > columns:
        loose = [head for head in widths if widths[head] > least[head]]
        if not loose:
            break
        widths[max(loose, key=lambda head: widths[head])] -= 1
    made = RichTable(box=_RULED, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
    for head, width in widths.items():
        side: Literal["left", "right"] = "left" if head in texts else "right"
        made.add_column(shown_line(head), justify=side, overflow="fold", width=width)
    for row in zip(*(cells[head] for head in widths), strict=True):
        made.add_row(*row)
    yield made
    if left_out:
        note = f"left out, for lack of columns: {', '.join(left_out)}; a wider terminal shows them"
        yield "\n".join(_wrapped(note, columns))


def _least_width(head: str, cells: Sequence[str], *, is_text: bool) -> int:
    """Return the characters that a column keeps: its longest number, or its longest word."""
    if is_text:
        cells = [word for cell in cells for word in (*_words(cell), cell[:_SENTENCE])]
    return max(map(len, [*_words(head), *cells]), default=0)


def _words(text: str) -> list[str]:
    """Return the parts between which a text may break; a short one does not."""
    return [text] if len(text) <= _SHORT else text.split()
