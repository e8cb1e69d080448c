"""The answers of `dlemu try`: what short runs say, and the commands of the full measurement."""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from dlemu.dataset.layout import layout_of
from dlemu.dataset.rule import SizeCheck, datagen_command, measure_memory
from dlemu.host.devices import devices_under
from dlemu.results.metrics import passes
from dlemu.sizing.answers import First, Sized
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
_NOISE = 0.03
"""Relative error of a rate from one short run to the next (`benchmarks.try_truth` shows it)."""
_NEAR = 10.0
"""Points of AU: runs that are so much further off the threshold than the nearest do not count."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """How many accelerators a storage feeds, by some short runs."""

    num_accelerators: int
    low: int
    high: int | None
    """None: something other than the storage held the runs back."""
    real_accelerators: float | None = None
    """Number at which AU meets the threshold; None: the storage was not the limit."""
    interval: tuple[float, float] | None = None
    """Of `real_accelerators`."""
    limit: str = "storage"
    evidence: str = ""


def conclude(
    points: Sequence[Point], *, threshold: float, read_ahead_share: float, most: int
) -> Estimate:
    """Return what runs say whose AU may be too high by `read_ahead_share`.

    Storage that is the limit moves the same bytes for any number, so N x AU of such a run gives the
    number at which AU meets the threshold. `most`: the number that could be tried at all.
    """
    failed = [p for p in points if not passes(p.au_percentage, threshold)]
    fewest = min((p.num_accelerators for p in failed), default=most + 1)
    passed = [p.num_accelerators for p in points if p not in failed]
    most_passed = max((number for number in passed if number < fewest), default=0)
    off = {id(p): abs(p.au_percentage - threshold) for p in points if p.limit == "storage"}
    if not any(p.limit == "storage" for p in failed):
        moved = max((p.num_accelerators * p.au_percentage / threshold for p in points), default=0.0)
        surely = math.floor(moved * (1 - read_ahead_share) * (1 - _NOISE))
        return _held_back(failed, fewest, most_passed, threshold, surely)
    near = [p for p in points if off.get(id(p), math.inf) <= min(off.values()) + _NEAR]
    feeds = [p.num_accelerators * p.au_percentage / threshold for p in near]
    low = min(feeds) * (1 - read_ahead_share) * (1 - _NOISE)
    high = max([most_passed, *feeds]) * (1 + _NOISE)  # what passed may have done better
    real = max(most_passed, fmean(feeds) * (1 - read_ahead_share / 2))
    number = min(max(math.floor(real), most_passed), fewest - 1)
    return Estimate(
        num_accelerators=number,
        low=min(number, math.floor(low)),
        high=max(number, math.floor(high)),
        real_accelerators=real,
        interval=(low, high),
        evidence=near[-1].evidence,
    )


def _held_back(
    failed: Sequence[Point], fewest: int, most_passed: int, threshold: float, surely: int
) -> Estimate:
    """Return what runs say that something other than the storage held back, or nothing.

    `surely`: the number that they moved enough for, without what was read ahead.
    """
    number, limit, evidence = most_passed, "none", f"nothing failed up to {most_passed}"
    if failed:
        worst = next(p for p in failed if p.num_accelerators == fewest)
        moved = max(p.num_accelerators * p.au_percentage / threshold for p in failed)
        number = min(max(most_passed, math.floor(moved)), fewest - 1)
        limit, evidence = worst.limit or "unclear", worst.evidence
    return Estimate(
        num_accelerators=number, low=min(number, surely), high=None, limit=limit, evidence=evidence
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


def full_measurement(
    folder: Path, files: Files, estimate: Estimate, *, write_rate: float, own: Path
) -> tuple[str, tuple[str, ...]]:
    """Return what the full measurement below `folder` needs, and its commands: none without room.

    `own` holds files that will be removed. Where the dataset of the rule has no room, it is a quick
    search.
    """
    free = shutil.disk_usage(folder).free + _bytes_in(own)
    job, have = _job(folder, files, own)
    wanted = _wanted(job, have, estimate, quick=False)
    kind = ""
    if wanted.new_bytes > free:
        kind = " (quick: the dataset of the benchmark's rule has no room here)"
        wanted = _wanted(job, have, estimate, quick=True)
        more = [replace(wanted, num_files=times * wanted.num_files) for times in _QUICK_TIMES]
        if wanted.new_bytes:  # else those that are there are enough
            wanted = next((each for each in more if each.new_bytes <= free / 2), wanted)
    needs = format_bytes(wanted.new_bytes)
    if wanted.new_bytes > free:
        return f"needs {needs} even for a quick search; {format_bytes(free)} are free", ()
    writing = f"writes {needs} in about {format_seconds(wanted.new_bytes / write_rate)}, then "
    measuring = format_seconds(wanted.seconds(max(1, estimate.num_accelerators)))
    told = f"{writing if wanted.new_bytes else ''}measures for about {measuring}{kind}"
    return told, wanted.commands


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
    full: tuple[str, tuple[str, ...]],
    *,
    folder: Path,
    results: Path,
    asked: Workload,
    conditions: Mapping[str, Any],
) -> Sized:
    """Return the answer for a workload, in the form of a search's.

    `full` is of `full_measurement`, `folder` the one that was tried, `asked` the workload before
    its loader was replaced, and `conditions` says where and when the runs were made.
    """
    workload, threshold = files.workload, 100 * files.workload.metric.au
    passed = [p for p in points if passes(p.au_percentage, threshold)]
    failed = [p.num_accelerators for p in points if p not in passed]
    number = estimate.num_accelerators
    (name,) = names_of([str(folder)])
    return Sized(
        num_accelerators=number,
        real_accelerators=estimate.real_accelerators,
        at_least=estimate.high is None,
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
            commands=full[1],
            full=full[0],
        ),
        conditions=conditions,
    )
