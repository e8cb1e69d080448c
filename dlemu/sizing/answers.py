"""What `dlemu size` is asked to search, in the table's order, and the answers as one document."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from dlemu.config.model import Workload, load_workload
from dlemu.config.published import value_of
from dlemu.dataset.rule import datagen_command
from dlemu.errors import WorkloadError
from dlemu.host.devices import devices_under
from dlemu.run.job import Say
from dlemu.sizing.search import Point, Range, Sizing

_NOT_HERE = {
    "num_accelerators": "it is what is searched for; size.start says where to begin",
    "accelerators_per_rank": "the search spreads its accelerators over the ranks",
    "runs": "size.confirm says how many runs confirm the answer",
    "warmup": "the first run is known to be cold",
}

FIRST_DATASET = 8
"""A dataset is proposed for this many accelerators where nothing is known of the storage."""


@dataclass(frozen=True)
class Target:
    """One storage to be sized."""

    name: str
    folder: str
    num_drives: int


def find_jobs(workload: Workload, say: Say) -> list[tuple[Target, Workload]]:
    """Return what is to be searched, in the table's order."""
    for key, remedy in _NOT_HERE.items():
        if key in workload.given:
            raise WorkloadError(f"{key} has no place in dlemu size: {remedy}")
    size = workload.size
    if size.start is not None and size.start > size.max_accelerators:
        raise WorkloadError(
            f"size.start must be at most size.max_accelerators={size.max_accelerators}, "
            f"got {size.start}"
        )
    return [
        job
        for target in find_targets(workload, say)
        for name in size.workloads or (workload.name,)
        for job in _cold_and_warm(target, _workload_for(workload, name, target))
    ]


def answers_twice(workload: Workload) -> bool:
    """Return whether a cache is sized cold and warm: not if the user chose one of both."""
    return workload.cache.folder is not None and "cache.warm" not in workload.given


def _cold_and_warm(target: Target, workload: Workload) -> Iterator[tuple[Target, Workload]]:
    """Yield the searches for a target: with a cache, for its first epoch and for warm ones."""
    if not answers_twice(workload):
        yield target, workload
        return
    cold, warm = (replace(target, name=f"{target.name}-{name}") for name in ("cold", "warm"))
    yield cold, workload.with_keys({"cache.warm": False, "train.epochs": 1})
    yield warm, workload.with_keys({"cache.warm": True})


def find_targets(workload: Workload, say: Say) -> list[Target]:
    """Return the targets with their names and drive counts; warn of two on one device."""
    size = workload.size
    folders = size.targets or (str(workload.data_folder),)
    key = "size.targets" if size.targets else "dataset.data_folder"
    for name, values in (("size.names", size.names), ("size.drives", size.drives)):
        if values and len(values) != len(folders):
            raise WorkloadError(
                f"{name} must have one value for each target ({len(folders)}), got {len(values)}"
            )
    names = size.names or names_of(folders)
    for number, name in enumerate(names):
        if name in names[:number]:
            raise WorkloadError(f"size.targets names {name} twice; give each a name: size.names")
    targets: list[Target] = []
    seen: dict[str, set[str]] = {}
    for number, (name, folder) in enumerate(zip(names, folders, strict=True)):
        if "://" not in folder and not Path(folder).is_dir():
            there = {"dataset.data_folder": folder, "storage.storage_root": "./"}
            made = datagen_command(
                workload.with_keys(there), "auto", num_accelerators=FIRST_DATASET
            )
            raise WorkloadError(
                f"{key}: {folder} is no folder; this writes a dataset there, for "
                f"{FIRST_DATASET} accelerators: {made}"
            )
        devices = set()
        if "://" not in folder:
            devices = {device.name for device in devices_under(Path(folder))}
        for other, others in seen.items():
            if shared := ", ".join(sorted(devices & others)):
                say(f"warning: {name} and {other} share {shared}: one drive, twice")
        seen[name] = devices
        drives = size.drives[number] if size.drives else max(1, len(devices))
        targets.append(Target(name, folder, drives))
    return targets


def _workload_for(workload: Workload, name: str, target: Target) -> Workload:
    """Return the named workload on a target, with the keys that the user gave."""
    if name != workload.name:
        tree = workload.model_dump()
        given = {key: value_of(tree, key) for key in workload.given}
        # A key without a value here has no effect (`Workload.ignored`).
        workload = load_workload(name, {k: v for k, v in given.items() if v is not None})
    if workload.train.computation_time.mean == 0:
        raise WorkloadError(
            f"train.computation_time of {workload.name} must be above 0 for a search: accelerators "
            "that do not compute are never busy"
        )
    place = target.folder
    # A target may hold the dataset of each workload in a folder of that name.
    if "://" not in place and Path(place, workload.name).is_dir():
        place = str(Path(place, workload.name))
    return workload.with_keys({"dataset.data_folder": place, "storage.storage_root": "./"})


def names_of(folders: Sequence[str]) -> tuple[str, ...]:
    """Return the last parts of the folders' paths: as few as make the names different."""
    parts = [Path(folder).absolute().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = tuple("-".join(part[-length:]).strip("/-") or "root" for part in parts)
        if len(set(names)) == len(names):
            break
    return names


@dataclass(frozen=True, kw_only=True)
class First(Range):
    """What an answer of `dlemu try` has beside that of a search."""

    remark: str
    """What read the files, where that is not what the workload asks for."""
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

    def mean(self, name: str) -> float | None:
        """Return the mean over the shown runs of a field of `Point`; None where no run was made."""
        return fmean(getattr(point, name) for point in self.shown) if self.shown else None

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the verdicts of the shown runs say as well; the last where only numbers differ."""
        runs = self.shown or self.points
        found = [remark for point in runs for remark in point.remarks]
        if self.first is not None and self.first.remark:
            found.append(self.first.remark)
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
