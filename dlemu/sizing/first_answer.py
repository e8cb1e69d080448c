"""The answers of `dlemu try` as text and JSON, each with the commands of the full measurement."""

import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dlemu.dataset.layout import layout_of
from dlemu.dataset.rule import SizeCheck, datagen_command, measure_memory
from dlemu.sizing.estimate import Estimate
from dlemu.sizing.first_files import Files
from dlemu.sizing.search import Point
from dlemu.sizing.start import START_SECONDS
from dlemu.units import format_bytes, format_seconds, text_table
from dlemu.workload.commands import command
from dlemu.workload.model import Workload
from dlemu.world.world import Alone

_HEADROOM = 1.25
_QUICK_TIMES = (5, 2)
"""A quick search gets so many times the files that it needs, if that is half of what is free."""
_SEARCH_RUNS = 7
"""Runs of a search from a good start, on average (docs/sizing.md)."""
_SIZE_KEYS = (
    *("reader.data_loader", "reader.read_threads", "reader.batch_size", "metric.au"),
    *("train.computation_time", "train.epochs", "dataset.record_length_bytes"),
)


@dataclass(frozen=True)
class Full:
    """The full measurement of a workload: what it needs, and its commands."""

    quick: bool
    """Whether there is room for a quick search only."""
    num_bytes: float
    """Of the files to write."""
    free_bytes: int
    """Room for it, once the files of the try are removed."""
    write_seconds: float
    search_seconds: float
    commands: tuple[str, ...]
    """Empty: there is no room."""

    @classmethod
    def of(
        cls, folder: Path, files: Files, estimate: Estimate, *, write_rate: float, own: Path
    ) -> "Full":
        """Return the full measurement below `folder`; `own` holds files that will be removed."""
        free = shutil.disk_usage(folder).free + _bytes_in(own)
        job, have = _job(folder, files, own)
        wanted = _wanted(job, have, estimate, quick=False)
        if wanted.new_bytes > free:
            wanted = _wanted(job, have, estimate, quick=True)
            more = [replace(wanted, num_files=times * wanted.num_files) for times in _QUICK_TIMES]
            if wanted.new_bytes:  # else those that are there are enough
                wanted = next((each for each in more if each.new_bytes <= free / 2), wanted)
        return cls(
            quick=wanted.workload.size.quick,
            num_bytes=wanted.new_bytes,
            free_bytes=free,
            write_seconds=wanted.new_bytes / write_rate,
            search_seconds=wanted.seconds(max(1, estimate.num_accelerators)),
            commands=wanted.commands if wanted.new_bytes <= free else (),
        )

    def __str__(self) -> str:
        needs = format_bytes(self.num_bytes)
        if not self.commands:
            return f"{needs} even for a quick search, {format_bytes(self.free_bytes)} are free"
        kind = "quick, for the rule asks for more than is free: " if self.quick else ""
        return (
            f"{kind}{needs} more, about {format_seconds(self.write_seconds)} to write, and about "
            f"{format_seconds(self.search_seconds)} to measure"
        )


@dataclass(frozen=True)
class _Wanted:
    """A search, and the dataset that it needs."""

    workload: Workload
    num_files: int
    have: int
    """Files that are there already."""

    @property
    def new_bytes(self) -> float:
        dataset = self.workload.dataset
        new = max(0, self.num_files - self.have)
        return new * dataset.num_samples_per_file * dataset.mean_bytes

    def seconds(self, accelerators: int) -> float:
        """Return about how long the search takes."""
        reader, train = self.workload.reader, self.workload.train
        samples = self.num_files * self.workload.dataset.num_samples_per_file
        steps = samples / (reader.batch_size * accelerators)
        step = train.computation_time.mean / self.workload.metric.au
        return _SEARCH_RUNS * (START_SECONDS + train.epochs * steps * step)

    @property
    def commands(self) -> tuple[str, ...]:
        more: dict[str, object] = {"dataset.data_folder": self.workload.data_folder}
        if self.workload.size.quick:
            more["size.quick"] = True
        size = command("size", self.workload, _SIZE_KEYS, more)
        if self.num_files <= self.have:
            return (size,)
        return datagen_command(self.workload, self.num_files), size


def _job(folder: Path, files: Files, own: Path) -> tuple[Workload, int]:
    """Return the workload with the folder of its full dataset, and the files that are there."""
    workload = files.workload
    place = workload.data_folder
    if not files.written and not place.is_relative_to(own.absolute()):
        return workload, files.layout.num_files
    place = folder / workload.name
    if place.exists():  # another dataset, or something else
        place = folder / f"{workload.name}.full"
    return workload.with_keys({"dataset.data_folder": str(place), "dataset.seed": 0}), 0


def _wanted(workload: Workload, have: int, estimate: Estimate, *, quick: bool) -> _Wanted:
    """Return the search for this estimate."""
    workload = workload.with_keys({"size.quick": quick, "train.epochs": 1 if quick else 5})
    check = SizeCheck(workload, layout_of(workload), measure_memory(workload, Alone()))
    number = max(1, round(_HEADROOM * (estimate.high or estimate.num_accelerators)))
    return _Wanted(workload, max(have, check.files_for(number)), have)


def _bytes_in(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


@dataclass(frozen=True)
class FirstAnswer:
    """The first answer for one workload."""

    estimate: Estimate
    files: Files
    points: tuple[Point, ...]
    full: Full

    @property
    def workload(self) -> Workload:
        """As it was read."""
        return self.files.workload

    def cells(self) -> tuple[str, ...]:
        """Return its row of the table."""
        found = self.estimate
        number = f"at least {found.low}" if found.at_least else f"{found.num_accelerators}"
        band = f"{found.low} or more" if found.high is None else f"{found.low} to {found.high}"
        real = ""
        if found.real_accelerators is not None and found.interval is not None:
            low, high = found.interval
            real = f"{found.real_accelerators:.2f} ({low:.2f} to {high:.2f})"
        return self.workload.name, number, band, real, found.limit

    def full_lines(self) -> list[str]:
        """Return what the full measurement needs, and its commands."""
        return [f"{self.workload.name}: {self.full}", *(f"  {c}" for c in self.full.commands)]


_HEAD = ("workload", "accelerators", "interval", "N*", "limit")


@dataclass(frozen=True)
class FirstAnswers:
    """What `dlemu try` found; `str` gives the text that it shows."""

    folder: Path
    answers: tuple[FirstAnswer, ...]
    seconds: float
    results: Path

    def __str__(self) -> str:
        table = text_table([_HEAD, *(answer.cells() for answer in self.answers)], ruled=True)
        total = format_bytes(sum(answer.files.num_bytes for answer in self.answers))
        return "\n".join(
            [
                f"first answer for {self.folder}: from {format_seconds(self.seconds)} of writing "
                "and of reading with O_DIRECT, not by the benchmark's rule",
                "",
                table,
                "",
                *(f"{a.workload.name}: {a.estimate.evidence}" for a in self.answers),
                f"the files were small ({total} in all) and were read many times: a cache in the "
                "drive, its controller or a server may have answered for it",
                "",
                "the full measurement:",
                *(line for answer in self.answers for line in answer.full_lines()),
            ]
        )

    def as_json(self) -> dict[str, Any]:
        """Return the content of try.json."""
        return {
            "folder": str(self.folder),
            "seconds": self.seconds,
            "answers": [
                {
                    "workload": answer.workload.name,
                    "data_loader": answer.workload.reader.data_loader,
                    **asdict(answer.estimate),
                    "at_least": answer.estimate.at_least,
                    "dataset_bytes": answer.files.num_bytes,
                    "written": answer.files.written,
                    "points": [asdict(point) for point in answer.points],
                    "full": asdict(answer.full),
                }
                for answer in self.answers
            ],
        }
