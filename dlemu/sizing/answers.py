"""What searches found, as people and programs read it: text, Markdown, CSV, JSON."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from dlemu.sizing.search import Event, Sizing
from dlemu.sizing.targets import Target
from dlemu.units import counted, format_rate, format_seconds
from dlemu.workload.model import Workload

AT_LEAST = "≥: the storage was not the limit, it may feed more"
_SHOWN_CACHED = 0.05
"""Share of the bytes from memory from which on a rate is not the storage's alone."""


@dataclass(frozen=True)
class Sized:
    """The answer for one target and workload."""

    target: Target
    workload: Workload
    sizing: Sizing
    dataset_bytes: float
    read_ahead_share: float | None = None
    """Most of an epoch that is read inside the step left out; None where the dataset is as large
    as the rule asks for."""
    bound: str = ""
    """Why the search tried no more than size.max_accelerators, where that was set lower for it."""

    @property
    def samples_per_second(self) -> float:
        """Mean of the confirming runs, or of the last where none passed."""
        shown = self.sizing.confirmations or self.sizing.points[-1:]
        return fmean(point.samples_per_second for point in shown)

    @property
    def au_percentages(self) -> list[float]:
        """AU of the confirming runs, or of the last where none passed."""
        shown = self.sizing.confirmations or self.sizing.points[-1:]
        return [point.au_percentage for point in shown]


def describe_event(event: Event) -> str:
    """Return a line for the run just made, and one for what comes next."""
    lines = []
    if event.point is not None:
        point = event.point
        share = point.page_cache_share
        cached = "" if share is None or share < _SHOWN_CACHED else f", {share:.0%} from memory"
        lines.append(
            f"{point.num_accelerators:>4} accelerators: AU {point.au_percentage:6.2f}%, "
            f"{point.samples_per_second:.1f} samples/s, "
            f"{format_rate(point.read_bytes_per_second)}{cached}, limit: {point.limit}, "
            f"{format_seconds(point.seconds)}"
        )
    lines.append(f"     {'done' if event.next is None else f'next {event.next}'}: {event.reason}")
    return "\n".join(lines)


def render_sizing(sized: Sized) -> str:
    """Return one answer as text."""
    sizing = sized.sizing
    lines = [f"{sized.target.name}: {_answer(sized)}"]
    shown = sizing.confirmations or sizing.points[-1:]
    read = fmean(point.read_bytes_per_second for point in shown)
    runs = ", ".join(f"{au:.2f}" for au in sized.au_percentages)
    which = "confirming runs" if sizing.confirmations else "last run"
    lines.append(
        f"at {shown[-1].num_accelerators}: {format_rate(read)}, {sized.samples_per_second:.1f} "
        f"samples/s, AU of the {which} {runs}%"
    )
    evidence = next(
        (p.evidence for p in reversed(sizing.points) if p.limit == sizing.limit and p.evidence), ""
    )
    lines.append(f"limit: {sizing.limit}{f'. {evidence}' if evidence else ''}")
    if not sizing.at_least and sizing.real_accelerators is None:
        lines.append("no N*: the runs do not agree on where AU meets the threshold")
    if sized.read_ahead_share is not None:
        lines.append(
            "quick: the dataset is smaller than the rule asks for, and was read with O_DIRECT; up "
            f"to {sized.read_ahead_share:.1%} of it is read inside the step that is left out, and "
            "so much may AU be too high"
        )
    lines.append(f"{len(sizing.points)} runs in {format_seconds(sizing.seconds)}")
    return "\n".join(lines)


def _answer(sized: Sized) -> str:
    """Return the answer in one line, with N* only where the storage was the limit."""
    sizing, name = sized.sizing, f"{sized.workload.name} accelerator"
    number, asked = sizing.num_accelerators, f"{sizing.threshold:.2f}%"
    real = ""
    if sizing.real_accelerators is not None and sizing.interval is not None:
        low, high = sizing.interval
        real = f" (N* {sizing.real_accelerators:.2f}, 95% interval {low:.2f} to {high:.2f})"
    reached = f"{sizing.failed_au_percentage or 0.0:.2f}%"
    if number == 0:
        why = "" if not sizing.at_least else f"; {_not_the_storage(sizing)}"
        return f"0 {name}s: one alone reaches {reached}, under the {asked} asked{real}{why}"
    passed = f"{counted(number, name)} at AU {asked} or more"
    if not sizing.at_least:
        return f"{passed}{real}"
    if sizing.fewest_failed is None:
        if sized.bound:
            return f"at least {passed}: {sized.bound}"
        most = sized.workload.size.max_accelerators
        return (
            f"at least {passed}: nothing failed up to size.max_accelerators={most}, so the storage "
            "may feed more; raise it"
        )
    return (
        f"at least {passed}: {_not_the_storage(sizing)} ({sizing.fewest_failed} reached {reached})"
    )


def _not_the_storage(sizing: Sizing) -> str:
    """Return why the number is not the storage's."""
    if sizing.limit == "unclear":
        return "what the limit was is unclear, so the storage may feed more"
    if sizing.limit == "none":
        return "almost nothing held the accelerators back, so the storage may feed more"
    return f"the limit was {sizing.limit}, so the storage may feed more"


_COLUMNS = ("workload", "target", "drives", "accelerators", "dataset GiB", "AU (%)", "MiB/s")


def render_table(sized: Sequence[Sized], *, markdown: bool = False) -> str:
    """Return the table of drives, like the published ones."""
    rows = [_COLUMNS, *(_cells(each) for each in sized)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    cells = [[cell.ljust(w) for cell, w in zip(row, widths, strict=True)] for row in rows]
    notes = sorted({note for each in sized for note in _notes(each)})
    if markdown:
        lines = ["| " + " | ".join(row) + " |" for row in cells]
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    else:
        lines = ["  ".join(row).rstrip() for row in cells]
        lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def render_csv(sized: Sequence[Sized]) -> str:
    """Return the same table as CSV, with a column for each AU."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    runs = max((len(each.au_percentages) for each in sized), default=0)
    writer.writerow(
        ["workload", "target", "drives", "num_accelerators", "at_least", "quick", "dataset_GiB"]
        + [f"AU_{run + 1}" for run in range(runs)]
        + ["throughput_MiBps", "limit"]
    )
    for each in sized:
        au = [f"{au:.2f}" for au in each.au_percentages]
        writer.writerow(
            [
                each.workload.name,
                each.target.name,
                each.target.num_drives,
                each.sizing.num_accelerators,
                str(each.sizing.at_least).lower(),
                str(each.workload.size.quick).lower(),
                f"{each.dataset_bytes / 2**30:.3g}",
                *au,
                *[""] * (runs - len(au)),
                f"{_nominal_rate(each):.2f}",
                each.sizing.limit,
            ]
        )
    return out.getvalue()


def as_json(sized: Sequence[Sized]) -> Any:
    """Return the answers for sizing.json: one object, or a list where there are several."""
    answers = [
        {
            "workload": each.workload.name,
            "target": each.target.name,
            "data_folder": each.target.folder,
            "drives": each.target.num_drives,
            "num_accelerators": each.sizing.num_accelerators,
            "real_accelerators": each.sizing.real_accelerators,
            "at_least": each.sizing.at_least,
            "fewest_failed": each.sizing.fewest_failed,
            "interval": each.sizing.interval,
            "threshold": each.sizing.threshold,
            "limit": each.sizing.limit,
            "quick": each.workload.size.quick,
            "read_ahead_share": each.read_ahead_share,
            "dataset_bytes": each.dataset_bytes,
            "seconds": each.sizing.seconds,
            "points": [asdict(point) for point in each.sizing.points],
            "confirmations": [asdict(point) for point in each.sizing.confirmations],
        }
        for each in sized
    ]
    return answers[0] if len(answers) == 1 else answers


def _cells(sized: Sized) -> tuple[str, ...]:
    sizing = sized.sizing
    mark = "≥ " if sizing.at_least else ""
    quick = " (quick)" if sized.workload.size.quick else ""
    return (
        sized.workload.name,
        sized.target.name,
        str(sized.target.num_drives),
        f"{mark}{sizing.num_accelerators}{quick}",
        f"{sized.dataset_bytes / 2**30:.3g}",
        " ".join(f"{au:.2f}" for au in sized.au_percentages),
        f"{_nominal_rate(sized):.2f}",
    )


def _notes(sized: Sized) -> list[str]:
    notes = []
    if sized.sizing.at_least:
        notes.append(AT_LEAST)
    if sized.workload.size.quick:
        notes.append("quick: a dataset smaller than the rule asks for, read with O_DIRECT")
    return notes


def _nominal_rate(sized: Sized) -> float:
    """Return MiB/s as published tables have them: samples/s x record_length_bytes."""
    return sized.samples_per_second * sized.workload.dataset.mean_bytes / 2**20
