"""What becomes of a command's answer: text, one JSON document, rows of a table, exit status."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlemu.cli.words import Words
from dlemu.errors import WorkloadError
from dlemu.plugins import named_by
from dlemu.terminal import Answer, answer, complain, say

if TYPE_CHECKING:
    from dlemu.config.model import Workload
    from dlemu.ranks.world import World
    from dlemu.report.blocks import Block

Document = Mapping[str, Any]
_COLUMNS = {
    **{"run": "scripts:RUN", "size": "scripts:SIZE", "try": "scripts:SIZE"},
    **{"predict": "scripts:PREDICT", "datasize": "scripts:DATASIZE", "load": "scripts:LOAD"},
    "paths": "paths:COLUMNS",
}
"""By command, where the columns of its table are."""


@dataclass(frozen=True)
class CommandResult:
    """The answer of a command: a document, and how it is shown."""

    document: Document
    """Its `kind` says how it is shown, and which rows it has; "error": a part has failed, and
    `error` says why. `folder` is that of its files."""
    workloads: Sequence["Workload"] = ()
    """Of its rows: their keys are what the user asked for."""
    blocks: Sequence["Block"] | None = None
    """Its blocks, where they are made already."""
    apart: bool = True
    """Whether an empty line comes before its text."""
    status: int | None = None
    """The exit status; None: the one that follows from the document."""


@dataclass(frozen=True)
class CommandOutput:
    """Files and formats that the answers of a command go to, beside the terminal."""

    command: str
    as_json: bool
    table: Path | None
    label: str
    statuses: list[int] = field(default_factory=list)
    """Of what was given out so far."""

    @classmethod
    def of(cls, command: str, words: Words) -> "CommandOutput":
        """Return what the words ask for; a file that will not take the rows is refused now.

        Raises:
            WorkloadError: --label stands without --csv, or the file cannot be appended to.
        """
        table, label = words.path("--csv"), words.options.get("--label", "")
        if table is None and "--label" in words.options:
            raise WorkloadError("--label is a column of --csv FILE; name the file as well")
        if not label.isprintable():
            raise WorkloadError(f"--label must be one line of printable text, got {label[:80]!a}")
        if table is not None:
            from dlemu.cli.scripts import check_table

            check_table(table, _columns_of(command))
        return cls(command, "--json" in words.options, table, label)

    def take(self, found: CommandResult | Iterator[CommandResult] | None, world: "World") -> int:
        """Give out what a command has found on rank 0; return its exit status, on all ranks."""
        for each in found if isinstance(found, Iterator) else [found]:
            if each is not None and world.rank == 0:
                self._give(each)
        from dlemu.report.present import worst

        status = self.statuses[0] if len(self.statuses) == 1 else worst(self.statuses)
        self.statuses.clear()
        return world.broadcast(status)

    def _give(self, found: CommandResult) -> None:
        document = found.document
        if document["kind"] == "error":
            complain(document["error"])
            self.statuses.append(1 if found.status is None else found.status)
            return
        from dlemu.report.present import status_of

        # What looks at results prints either; what has measured prints both.
        if not (self.as_json and self.command in ("report", "compare")):
            show(document, found.blocks, apart=found.apart)
        if self.table is not None:
            from dlemu.cli.scripts import append_rows, rows_of

            columns = _columns_of(self.command)
            rows = rows_of(document, found.workloads, columns, self.label)
            append_rows(self.table, columns, rows)
        if self.as_json:
            answer(json_text(_printed(document), indent=None if self.command == "report" else 2))
        self.statuses.append(status_of(document) if found.status is None else found.status)


def _columns_of(command: str) -> Sequence[str]:
    """Return the columns of a command's table."""
    columns: Sequence[str] = named_by(f"dlemu.cli.{_COLUMNS[command]}")
    return columns


def show(
    document: Document,
    blocks: Sequence["Block"] | None = None,
    *,
    apart: bool = True,
    is_last: bool = True,
) -> None:
    """Print a document, at a command's end as `dlemu report` does later.

    In the quiet mode nothing is printed of one that is not the last: one run of several.
    """
    from dlemu.report.present import present
    from dlemu.report.text import answer_of

    found = answer_of(present(document) if blocks is None else blocks, apart=apart)
    say(found if is_last else Answer(found, "", found.fitted))


def _printed(document: Document) -> Any:
    """Return what --json prints of a document."""
    each = document.get("comparisons", [document])
    return each[0] if len(each) == 1 else each


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """Return JSON in ASCII without control characters; what is not finite becomes null."""
    import json

    from dlemu.judge.records import plain

    return json.dumps(plain(value), indent=indent).replace("\x7f", "\\u007f")
