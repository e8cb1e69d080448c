"""The answers of `dlemu try`, each with the commands of the full measurement."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dlemu.dataset.layout import layout_of
from dlemu.dataset.rule import SizeCheck, datagen_command, measure_memory
from dlemu.host.devices import devices_under
from dlemu.results.metrics import passes
from dlemu.sizing.answers import First, Sized
from dlemu.sizing.estimate import Estimate
from dlemu.sizing.first_files import Files
from dlemu.sizing.search import Point
from dlemu.sizing.start import START_SECONDS
from dlemu.sizing.targets import Target, names_of
from dlemu.units import format_bytes, format_seconds
from dlemu.workload.commands import command
from dlemu.workload.model import Workload
from dlemu.world.world import Alone

_HEADROOM = 1.25
_QUICK_TIMES = (5, 2)
"""A quick search gets so many times the files that it needs, if that is half of what is free."""
_SEARCH_RUNS = 7
"""Runs of a search from a good start, on average (docs/prediction.md)."""
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
            return (
                f"needs {needs} even for a quick search; {format_bytes(self.free_bytes)} are free"
            )
        kind = (
            " (quick: the dataset of the benchmark's rule has no room here)" if self.quick else ""
        )
        writing = f"writes {needs} in about {format_seconds(self.write_seconds)}, then "
        return (
            f"{writing if self.num_bytes else ''}measures for about "
            f"{format_seconds(self.search_seconds)}{kind}"
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


def answer_of(
    files: Files,
    points: Sequence[Point],
    estimate: Estimate,
    full: Full,
    *,
    folder: Path,
    results: Path,
    asked: Workload,
    conditions: Mapping[str, Any],
) -> Sized:
    """Return the answer for a workload, in the form of a search's.

    `folder` is the one that was tried, `asked` the workload before its loader was replaced, and
    `conditions` says where and when the runs were made.
    """
    workload, threshold = files.workload, 100 * files.workload.metric.au
    passed = [p for p in points if passes(p.au_percentage, threshold)]
    failed = [p.num_accelerators for p in points if p not in passed]
    number = estimate.num_accelerators
    (name,) = names_of([str(folder)])
    return Sized(
        num_accelerators=number,
        real_accelerators=estimate.real_accelerators,
        at_least=estimate.at_least,
        fewest_failed=min(failed, default=None),
        threshold=threshold,
        points=tuple(points),
        confirmations=tuple(p for p in passed if p.num_accelerators == number),
        interval=estimate.interval,
        limit=estimate.limit,
        target=Target(name, str(workload.data_folder), len(devices_under(folder))),
        workload=workload,
        folder=results,
        dataset_bytes=files.num_bytes,
        first=First(
            low=estimate.low,
            high=estimate.high,
            evidence=estimate.evidence,
            data_loader=workload.reader.data_loader,
            instead_of=asked.reader.data_loader,
            written=files.written,
            commands=full.commands,
            full=str(full),
        ),
        conditions=conditions,
    )
