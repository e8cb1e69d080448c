"""The answers of searches: what `dlemu size` and `dlemu try` found, as one document."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from dlemu.config.model import Workload
from dlemu.sizing.search import Point, Range, Sizing
from dlemu.sizing.targets import Target


@dataclass(frozen=True, kw_only=True)
class First(Range):
    """What an answer of `dlemu try` has beside that of a search."""

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
    """The answer for one target and workload; `dlemu.show` makes text and a table of it."""

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
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """Host, drive and day of the runs, as their summaries have them."""

    @property
    def name(self) -> str:
        """Of its search."""
        return f"{self.target.name}.{self.workload.name}"

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
        """The content of sizing.json, where this is the only answer."""
        return document_of([self])

    @property
    def fields(self) -> dict[str, Any]:
        """One of the answers in sizing.json."""
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
            "sample_bytes": self.workload.dataset.mean_bytes,
            "seconds": self.seconds,
            "points": [asdict(point) for point in self.points],
            "confirmations": [asdict(point) for point in self.confirmations],
            "first": None if self.first is None else asdict(self.first),
            "conditions": dict(self.conditions),
        }


def document_of(answers: Sequence[Sized], tried: Path | None = None) -> dict[str, Any]:
    """Return the content of sizing.json; `tried` is the folder of `dlemu try`."""
    return {
        "kind": "sizing",
        "status": "complete",
        "tried": None if tried is None else str(tried),
        "answers": [answer.fields for answer in answers],
        "unfinished": {},
    }
