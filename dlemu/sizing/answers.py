"""The answers of searches as text, tables, CSV and JSON."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from dlemu.sizing.search import Event, Point, Sizing
from dlemu.sizing.targets import Target
from dlemu.units import counted, format_rate, format_seconds, html_table, text_table
from dlemu.workload.model import Workload
from dlemu.workload.objects import in_bucket

AT_LEAST = "≥: the storage was not the limit, it may feed more"


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

    @property
    def shown(self) -> tuple[Point, ...]:
        """The runs that the answer shows: those that confirm it, or the last if none passed."""
        return self.confirmations or self.points[-1:]

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
    def line(self) -> str:
        """The answer in one line."""
        return f"{self.target.name}: {_answer(self)}"

    def __str__(self) -> str:
        """Return the answer, what it rests on, and what to know about it."""
        runs = ", ".join(f"{p.au_percentage:.2f}%{_with_stalls(p)}" for p in self.shown)
        which = "confirming runs" if self.confirmations else "last run"
        evidence = [p.evidence for p in self.points if p.limit == self.limit and p.evidence]
        lines = [
            self.line,
            f"at {self.shown[-1].num_accelerators}: {format_rate(self.read_bytes_per_second)}, "
            f"{self.samples_per_second:.1f} samples/s, AU of the {which} {runs}",
            ". ".join([f"limit: {self.limit}", *evidence[-1:]]),
        ]
        if self.workload.workflow.checkpoint:
            lines.append(
                "checkpoints: each run wrote its own; the rule's AU leaves out the stalls, in "
                "which all accelerators waited for a checkpoint"
            )
        if not self.at_least and self.real_accelerators is None:
            lines.append("no N*: the runs do not agree on where AU meets the threshold")
        if self.read_ahead_share is not None:
            lines.append(
                f"quick: the dataset is smaller than the rule asks for, {_who_caches(self)}; "
                f"up to {self.read_ahead_share:.1%} of it is read inside the step that is left "
                "out, and so much may AU be too high"
            )
        lines.append(f"{counted(len(self.points), 'run')} in {format_seconds(self.seconds)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the answer as a table, for notebooks."""
        return html_table(
            [
                (self.workload.name, self.target.name),
                ("accelerators", _number(self)),
                ("N*", _real(self) or "-"),
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
            f"{number:>4} {noun}: AU {point.au_percentage:6.2f}%{_with_stalls(point)}, "
            f"{point.samples_per_second:.1f} samples/s, "
            f"{format_rate(point.read_bytes_per_second)}{cached}, limit: {point.limit}, "
            f"{format_seconds(point.seconds)}"
        )
    lines.append(f"     {'done' if event.next is None else f'next {event.next}'}: {event.reason}")
    return "\n".join(lines)


def _with_stalls(point: Point) -> str:
    """Return what the rule leaves out where checkpoints were taken: " (81.20% with stalls)"."""
    whole = point.au_with_stalls_percentage
    return "" if whole is None else f" ({whole:.2f}% with stalls)"


def _answer(sized: Sized) -> str:
    """Return the answer in one line; N* only where the storage was the limit."""
    name = f"{sized.workload.name} accelerator"
    number, asked = sized.num_accelerators, f"{sized.threshold:.2f}%"
    real = f" (N* {_real(sized)})" if _real(sized) else ""
    reached = f"{sized.failed_au_percentage or 0.0:.2f}%"
    if number == 0:
        why = f"; {_not_the_storage(sized)}" if sized.at_least else ""
        return f"0 {name}s: one alone reaches {reached}, under the {asked} asked{real}{why}"
    passed = f"{counted(number, name)} at AU {asked} or more"
    if not sized.at_least:
        return f"{passed}{real}"
    if sized.fewest_failed is not None:
        failed = f"{sized.fewest_failed} reached {reached}"
        return f"at least {passed}: {_not_the_storage(sized)} ({failed})"
    if sized.bound:
        return f"at least {passed}: {sized.bound}"
    return (
        f"at least {passed}: nothing failed up to size.max_accelerators="
        f"{sized.workload.size.max_accelerators}, so the storage may feed more; raise it"
    )


def _real(sizing: Sizing) -> str:
    """Return N* with its interval; empty where there is none."""
    if sizing.real_accelerators is None or sizing.interval is None:
        return ""
    low, high = sizing.interval
    return f"{sizing.real_accelerators:.2f}, 95% interval {low:.2f} to {high:.2f}"


def _not_the_storage(sizing: Sizing) -> str:
    """Return why the number is not the storage's."""
    no_limit = {
        "unclear": "what the limit was is unclear",
        "none": "almost nothing held the accelerators back",
    }
    why = no_limit.get(sizing.limit, f"the limit was {sizing.limit}")
    return f"{why}, so the storage may feed more"


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
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def _is_objects(sized: Sized) -> bool:
    """Return whether the data lay in a bucket."""
    return in_bucket(sized.workload.data_folder)


def _who_caches(sized: Sized) -> str:
    """Return which memory a small dataset was, or may have been, read from."""
    if _is_objects(sized):
        return "and the server may have it in memory"
    return "and was read with O_DIRECT"


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
        f"{_nominal_rate(sized) / 1e6:.2f}",
    )


def render_csv(sized: Sequence[Sized]) -> str:
    """Return the table of drives as CSV, with a column for the AU of each run."""
    runs = max((len(each.au_percentages) for each in sized), default=0)
    head = ["workload", "target", "drives", "num_accelerators", "at_least", "quick", "dataset_GiB"]
    head += [f"AU_{run + 1}" for run in range(runs)] + ["throughput_MiBps", "limit"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    for each in sized:
        au = [f"{au:.2f}" for au in each.au_percentages]
        row = [each.workload.name, each.target.name, each.target.num_drives, each.num_accelerators]
        row += [str(flag).lower() for flag in (each.at_least, each.workload.size.quick)]
        row += [f"{each.dataset_bytes / 2**30:.3g}", *au, *[""] * (runs - len(au))]
        writer.writerow([*row, f"{_nominal_rate(each) / 2**20:.2f}", each.limit])
    return out.getvalue()


def as_json(sized: Sequence[Sized]) -> Any:
    """Return the content of sizing.json: one object, or a list where there are several answers."""
    same = ("num_accelerators", "real_accelerators", "at_least", "fewest_failed", "interval")
    answers = [
        {
            "workload": each.workload.name,
            "target": each.target.name,
            "data_folder": each.target.folder,
            "drives": each.target.num_drives,
            **{name: getattr(each, name) for name in (*same, "threshold", "limit")},
            "bound": each.bound,
            "quick": each.workload.size.quick,
            "read_ahead_share": each.read_ahead_share,
            "dataset_bytes": each.dataset_bytes,
            "seconds": each.seconds,
            "points": [asdict(point) for point in each.points],
            "confirmations": [asdict(point) for point in each.confirmations],
        }
        for each in sized
    ]
    return answers[0] if len(answers) == 1 else answers


def _nominal_rate(sized: Sized) -> float:
    """Return bytes/s as published tables compute them: samples/s x record_length_bytes."""
    return sized.samples_per_second * sized.workload.dataset.mean_bytes
