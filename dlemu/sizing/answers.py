"""The answers of searches as text, tables, CSV and JSON."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from dlemu.reports.sizings import answer_lines, au_text, real_text
from dlemu.sizing.search import Event, Point, Sizing
from dlemu.sizing.targets import Target
from dlemu.units import counted, format_rate, format_seconds, html_table, text_table
from dlemu.workload.model import Workload
from dlemu.workload.objects import in_bucket

AT_LEAST = "≥: the storage was not the limit, it may feed more"
FIRST = "first answers of dlemu try, from some short runs: not by the benchmark's rule"


@dataclass(frozen=True, kw_only=True)
class First:
    """What an answer of `dlemu try` has beside that of a search."""

    low: int
    high: int | None
    """None: something other than the storage held the runs back."""
    evidence: str
    data_loader: str
    """What read the files."""
    instead_of: str
    """What the workload asks for; the same where that is installed."""
    written: bool
    """Whether they were written for this, and removed."""
    commands: tuple[str, ...]
    """Of the full measurement, the dataset's first; empty: there is no room for it."""
    full: str
    """What that needs."""


@dataclass(frozen=True, kw_only=True)
class Sized(Sizing):
    """The answer for one target and workload.

    `str` gives the text that `dlemu size` shows; a notebook shows a table.
    """

    target: Target
    workload: Workload
    """As it was run: with the number of files that were found."""
    folder: Path
    """Where the results lie: sizing.json, the tables, the plots, and each run's folder in runs/."""
    dataset_bytes: float
    """Bytes of the dataset that was read."""
    read_ahead_share: float | None = None
    """Largest share of an epoch, 0 to 1, that is read inside the step left out. None: the dataset
    is as large as the rule asks for."""
    bound: str = ""
    """Why the search lowered size.max_accelerators; empty: it did not."""
    first: First | None = None
    """Of an answer of `dlemu try`."""

    @property
    def shown(self) -> tuple[Point, ...]:
        """The runs that the answer shows: those that passed with its number; for 0 the last."""
        return self.confirmations or (() if self.num_accelerators else self.points[-1:])

    @property
    def samples_per_second(self) -> float:
        """Mean of the shown runs."""
        return fmean(point.samples_per_second for point in self.shown)

    @property
    def read_bytes_per_second(self) -> float:
        """Mean of the shown runs."""
        return fmean(point.read_bytes_per_second for point in self.shown)

    @property
    def au_percentages(self) -> list[float]:
        """AU of each of the shown runs, in percent."""
        return [point.au_percentage for point in self.shown]

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the verdicts of the shown runs say as well; the last where only numbers differ."""
        runs = self.shown or self.points
        found = [remark for point in runs for remark in point.remarks]
        if self.first is not None and self.first.data_loader != self.first.instead_of:
            took = f"read by {self.first.data_loader}, which take less CPU time than"
            found.append(f"{took} {self.first.instead_of}: that is not installed")
        return tuple({re.sub(r"[\d.]+", "", remark): remark for remark in found}.values())

    @property
    def document(self) -> dict[str, Any]:
        """The object of sizing.json."""
        same = ("num_accelerators", "real_accelerators", "at_least", "fewest_failed", "interval")
        return {
            "workload": self.workload.name,
            "target": self.target.name,
            "data_folder": self.target.folder,
            "drives": self.target.num_drives,
            **{name: getattr(self, name) for name in (*same, "threshold", "limit")},
            "bound": self.bound,
            "quick": self.workload.size.quick,
            "demand_bytes_per_second": self.workload.demand,
            "remarks": self.remarks,
            "read_ahead_share": self.read_ahead_share,
            "dataset_bytes": self.dataset_bytes,
            "seconds": self.seconds,
            "points": [asdict(point) for point in self.points],
            "confirmations": [asdict(point) for point in self.confirmations],
            "first": None if self.first is None else asdict(self.first),
        }

    @property
    def line(self) -> str:
        """The answer in one line."""
        return answer_lines(self.document)[0]

    def __str__(self) -> str:
        """Return the answer, what it rests on, and what to know about it."""
        return "\n".join(answer_lines(self.document))

    def _repr_html_(self) -> str:
        """Return the answer as a table, for notebooks."""
        return html_table(
            [
                (self.workload.name, self.target.name),
                ("accelerators", _number(self)),
                ("N*", real_text(self.document) or "-"),
                ("AU (%)", " ".join(f"{au:.2f}" for au in self.au_percentages)),
                ("threshold (%)", f"{self.threshold:.2f}"),
                ("read", format_rate(self.read_bytes_per_second)),
                ("samples/s", f"{self.samples_per_second:.1f}"),
                ("limit", self.limit),
                ("runs", f"{len(self.points)} in {format_seconds(self.seconds)}"),
            ]
        )


def describe_event(event: Event) -> str:
    """Return a line about the run just made, and one about what comes next."""
    lines = []
    if (point := event.point) is not None:
        share = point.page_cache_share or 0.0
        cached = f", {share:.0%} from memory" if share >= 0.05 else ""
        number, noun = counted(point.num_accelerators, "accelerator").split()
        lines.append(
            f"{number:>4} {noun}: AU {au_text(asdict(point)):>7}, "
            f"{point.samples_per_second:.1f} samples/s, "
            f"{format_rate(point.read_bytes_per_second)}{cached}, limit: {point.limit}, "
            f"{format_seconds(point.seconds)}"
        )
    lines.append(f"     {'done' if event.next is None else f'next {event.next}'}: {event.reason}")
    return "\n".join(lines)


_COLUMNS = ("workload", "target", "drives", "accelerators", "dataset GiB", "AU (%)", "MB/s")


def render_table(sized: Sequence[Sized], *, markdown: bool = False) -> str:
    """Return the table of drives, with the columns of published results."""
    rows = [_COLUMNS, *map(_cells, sized)]
    lines = [_markdown(rows) if markdown else text_table(rows, ruled=True)]
    notes = []
    if any(each.workload.size.quick for each in sized):
        how = "" if any(_is_objects(each) for each in sized) else ", read with O_DIRECT"
        notes.append(f"quick: a dataset smaller than the rule asks for{how}")
    if any(each.at_least for each in sized):
        notes.append(AT_LEAST)
    notes += dict.fromkeys(remark for each in sized for remark in each.remarks)
    notes += [FIRST] * any(each.first for each in sized)
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def _is_objects(sized: Sized) -> bool:
    """Return whether the data lay in a bucket."""
    return in_bucket(sized.workload.data_folder)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown whose columns stand below each other as text, too."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in rows]
    lines.insert(1, f"|{'|'.join('-' * (width + 2) for width in widths)}|")
    return "\n".join(lines)


def _number(sized: Sized) -> str:
    """Return the number of accelerators with its marks: a lower bound, a quick search."""
    quick = " (quick)" if sized.workload.size.quick else ""
    return f"{'≥ ' if sized.at_least else ''}{sized.num_accelerators}{quick}"


def _cells(sized: Sized) -> tuple[str, ...]:
    return (
        sized.workload.name,
        sized.target.name,
        str(sized.target.num_drives),
        _number(sized),
        f"{sized.dataset_bytes / 2**30:.3g}",
        " ".join(f"{au:.2f}" for au in sized.au_percentages),
        _nominal_rate(sized),
    )


def render_csv(sized: Sequence[Sized]) -> str:
    """Return the table of drives as CSV, with a column for the AU of each run."""
    runs = max((len(each.au_percentages) for each in sized), default=0)
    head = ["workload", "target", "drives", "num_accelerators", "at_least", "quick", "dataset_GiB"]
    head += [f"AU_{run + 1}" for run in range(runs)] + ["nominal_MB_per_second", "limit", "remarks"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    for each in sized:
        au = [f"{au:.2f}" for au in each.au_percentages]
        row = [each.workload.name, each.target.name, each.target.num_drives, each.num_accelerators]
        row += [str(flag).lower() for flag in (each.at_least, each.workload.size.quick)]
        row += [f"{each.dataset_bytes / 2**30:.3g}", *au, *[""] * (runs - len(au))]
        writer.writerow([*row, _nominal_rate(each), each.limit, "; ".join(each.remarks)])
    return out.getvalue()


def as_json(sized: Sequence[Sized]) -> Any:
    """Return the content of sizing.json: one object, or a list where there are several answers."""
    answers = [each.document for each in sized]
    return answers[0] if len(answers) == 1 else answers


def _nominal_rate(sized: Sized) -> str:
    """Return MB/s as published tables compute them: samples/s x record_length_bytes."""
    if not sized.shown:
        return ""
    return f"{sized.samples_per_second * sized.workload.dataset.mean_bytes / 1e6:.2f}"
