"""What a report is made of. `present` makes blocks of a document; a renderer knows only blocks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dlemu.report.plot import Plot

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


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
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


def folded(title: str, blocks: Sequence[Block]) -> Sequence[Block]:
    """Return blocks below a fold; nothing where there are none."""
    return [Fold(title, blocks)] if blocks else []
