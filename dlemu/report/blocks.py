"""What a report is made of. `present` makes blocks of a document; a renderer knows only blocks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from dlemu.report.facts import date_of, drive_name, facts_of
from dlemu.report.plot import Plot

Document = Mapping[str, Any]
"""What a command has measured, or a part of it: JSON as Python reads it."""
Tone = Literal["pass", "fail", "caution", "plain"]
"""How good an answer is: "caution" is NO VERDICT, and a PASS with a remark that weakens it."""


@dataclass(frozen=True)
class Verdict:
    """The answer in one line: all that the quiet mode prints."""

    line: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class Lines:
    """Sentences, each a paragraph, such as "limit: storage. vda gave 1.5 GB/s"."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Command:
    """A command to copy. It keeps its line, however narrow the terminal is."""

    what: str
    """Why one would run it, as "next"."""
    line: str


@dataclass(frozen=True)
class Facts:
    """Names and values side by side; what has no value is left out."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Table:
    """Cells in rows, as text. The first column names the row."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    texts: Sequence[str] = ()
    """Heads of columns without numbers: they stand to the left, as the first column does."""
    spare: Sequence[str] = ()
    """Heads of columns to leave out where the terminal is too narrow, in this order."""
    links: Sequence[str] = ()
    """Targets in the page, one a row, for the first cell."""


@dataclass(frozen=True)
class Column:
    """A column of a table of equal things."""

    head: str
    value: str | Callable[[Any], Any]
    """A thing's value: by its key, or what this returns for the thing. None is shown as "-"."""
    form: str | Callable[[Any], str] = ""
    """The value as text: by a format such as ".2f", or what this returns for the value."""
    text: bool = False
    """As `Table.texts`."""
    spare: int = 0
    """From 1: when it is left out, as `Table.spare`."""

    def cell(self, thing: Any) -> str:
        """Return the cell of a thing."""
        value = thing[self.value] if isinstance(self.value, str) else self.value(thing)
        if value is None:
            return "-"
        return format(value, self.form) if isinstance(self.form, str) else self.form(value)


def table_of(things: Iterable[Any], *columns: Column, title: str = "") -> Table:
    """Return a table with a row for each thing."""
    spare = sorted((each for each in columns if each.spare), key=lambda each: each.spare)
    return Table(
        title=title,
        heads=[each.head for each in columns],
        rows=[[each.cell(thing) for each in columns] for thing in things],
        texts=[each.head for each in columns if each.text],
        spare=[each.head for each in spare],
    )


def over_epochs(rows: Iterable[tuple[str, Sequence[float], str]], title: str = "") -> Table:
    """Return a table with a row for each name, values of epochs, and form of a number."""
    finds = (fmean, min, max)
    cells = [[name, *(format(find(each), form) for find in finds)] for name, each, form in rows]
    return Table(("per epoch", "mean", "min", "max"), cells, title)


@dataclass(frozen=True)
class Fold:
    """Details: closed in a page, and in the terminal shown by -v only."""

    title: str
    blocks: Sequence["Block"]
    is_open: bool = False
    """Whether a page shows it open."""


@dataclass(frozen=True)
class Listing:
    """The text of a file, shown as it is."""

    text: str


Block = Verdict | Lines | Command | Facts | Table | Plot | Fold | Listing


@dataclass(frozen=True)
class Section:
    """One result: what it is called, where it lies, its blocks, and its row beside others."""

    title: str
    folder: str
    blocks: Sequence[Block]
    rows: Sequence[Mapping[str, str]] = field(default=())
    """Its cells in the table across results, by their heads."""

    @property
    def verdict(self) -> str:
        """The answer in one line."""
        return next((block.line for block in self.blocks if isinstance(block, Verdict)), "")


def measured(document: Document, *more: tuple[str, str], is_open: bool = False) -> Fold:
    """Return where and when something was measured, below a fold."""
    facts = Facts([*facts_of(document), *more])
    return Fold("where and how it was measured", [facts], is_open)


def where_cells(document: Document, folder: str) -> dict[str, str]:
    """Return the cells of the table across results that say where and when one was measured."""
    return {
        "storage": drive_name(document, folder),
        "host": str(document.get("hostname") or ""),
        "measured": date_of(document),
    }
