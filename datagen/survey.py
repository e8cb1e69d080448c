"""Datasets that somebody else wrote: what their files are called, and what lies in them."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dlemu.datagen.listing import WORK, left_behind, walk
from dlemu.dataset.layout import Layout, layout_of
from dlemu.errors import DatasetError
from dlemu.formats import FORMATS, Places
from dlemu.storage.regular import open_regular
from dlemu.units import ceil_div
from dlemu.workload.model import Workload

_MOST_SIZES = 512
"""Sizes of so many files tell their mean; a network file system takes its time for each."""
_OTHER_MEAN = 0.1
"""A mean further off the workload's is another dataset's: the demand follows from the mean, and so
does the AU. DLIO's own rounding (a square of whole sides) is far below this."""
_STDEVS = 3
"""By chance the mean of so many draws is hardly ever further off than this."""
_NAME = re.compile(
    r"(?P<prefix>.*?)_?(?P<number>\d+)(?:_of_(?P<count>\d+))?\.(?P<format>[a-z0-9]+)"
)


@dataclass(frozen=True)
class Found(Layout):
    """The layout of files that were found: their names are theirs, their sizes in each of them."""

    paths: tuple[str, ...] = ()
    """Of each file, below the data folder."""
    looked_into: int = 0
    """How many files were opened; their headers and number of samples are taken for all."""
    largest_bytes: int | None = None
    """Size of the largest file if batches need room for its samples, else None."""

    def path(self, file: int) -> str:
        """Return a file's path below the data folder."""
        return self.paths[file]

    def __str__(self) -> str:
        return (
            f"{self.num_files:,} {self.format} files were found, their samples have "
            f"{self.mean_bytes:,.0f} bytes on average; {self.looked_into} were opened, with "
            f"{self.samples_per_file} samples each"
        )


def survey(
    folder: Path, workload: Workload, *, at: Callable[[str], object] = lambda path: None
) -> Found:
    """Return the layout of a dataset without a manifest, from its names and a few of its files.

    `at` is told which folder or file is looked at.

    Raises:
        DatasetError: there is none, or it does not fit the workload.
    """
    if (folder / WORK).exists():
        raise DatasetError(f"{folder} is unfinished; start dlemu datagen again, it continues")
    wanted = layout_of(workload)
    at(f"{folder}/train")
    paths = _paths(folder, wanted)
    chosen = sorted({0, len(paths) // 2, len(paths) - 1})
    places = []
    for file in chosen:
        at(f"{folder}/{paths[file]}")
        places.append(_locate(folder / paths[file], wanted))
    lengths = np.concatenate([place.lengths for place in places])
    sizes = [(folder / paths[file]).stat().st_size for file in chosen]
    around = float(np.mean(sizes)) - float(lengths.sum()) / len(chosen)
    found = Found(
        format=wanted.format,
        num_files=wanted.num_files,
        samples_per_file=wanted.samples_per_file,
        mean_bytes=_mean_bytes(folder, paths, wanted, around),
        stdev_bytes=float(lengths.std()),
        element_bytes=places[0].element_bytes,
        seed=wanted.seed,
        prefix=wanted.prefix,
        num_subfolders=wanted.num_subfolders,
        paths=paths,
        looked_into=len(chosen),
        largest_bytes=_largest_bytes(folder, paths, workload, at),
    )
    _check_mean(folder, workload, wanted, found.mean_bytes)
    return found


def _largest_bytes(
    folder: Path, paths: tuple[str, ...], workload: Workload, at: Callable[[str], object]
) -> int | None:
    """Return the size of the largest file, None if no batch needs room for its samples.

    This is slow on a network file system, so rank 0 does it for all ranks.
    """
    if not workload.reader.hands_over or workload.dataset.record_length_bytes_resize is not None:
        return None
    return largest_file(folder, paths, at)


def largest_file(
    folder: Path, paths: Iterable[str], at: Callable[[str], object] = lambda path: None
) -> int:
    """Return the bytes of the largest of these files, whose paths are below the folder.

    Raises:
        OSError: one cannot be looked at.
    """
    largest = 0
    for path in paths:
        at(f"{folder}/{path}")
        largest = max(largest, os.stat(f"{folder}/{path}").st_size)
    return largest


def _mean_bytes(folder: Path, paths: tuple[str, ...], wanted: Layout, around: float) -> float:
    """Return the mean size of a sample by the sizes of many files; `around`: headers of a file."""
    looked_at = paths[:: ceil_div(len(paths), _MOST_SIZES)]
    size = float(np.mean([(folder / path).stat().st_size for path in looked_at]))
    return (size - around) / wanted.samples_per_file


def _check_mean(folder: Path, workload: Workload, wanted: Layout, mean: float) -> None:
    """Refuse samples that are not as large as the workload says.

    Raises:
        DatasetError: with both means, and the key to set.
    """
    num = min(wanted.num_files, _MOST_SIZES) * wanted.samples_per_file
    chance = _STDEVS * wanted.stdev_bytes / num**0.5
    if abs(mean - wanted.mean_bytes) <= _OTHER_MEAN * wanted.mean_bytes + chance:
        return
    key, remedy = "record_length_bytes", f"dataset.record_length_bytes={mean:.0f}"
    if workload.dataset.record_dims:
        key, remedy = "record_dims", f"dataset.record_dims=[] {remedy}"
    raise DatasetError(
        f"{folder}/train has samples of {mean:,.0f} bytes on average, dataset.{key} says "
        f"{wanted.mean_bytes:,.0f}; name the dataset that was meant, or set {remedy}"
    )


def _paths(folder: Path, wanted: Layout) -> tuple[str, ...]:
    """Return the files' paths by their numbers."""
    numbered: dict[int, str] = {}
    formats: Counter[str] = Counter()
    for below, entry in walk(folder, "train"):
        match = _NAME.fullmatch(entry.name)
        if match is None or left_behind(entry.name):
            continue
        formats[match["format"]] += 1
        if match["format"] != wanted.format:
            continue
        number = int(match["number"])
        if number in numbered:
            raise DatasetError(
                f"{folder} has two files of number {number}: {numbered[number]} and {below}; "
                "remove one"
            )
        numbered[number] = below
    if not numbered:
        have = ", ".join(f"{count:,} {name}" for name, count in formats.most_common(3)) or "none"
        raise DatasetError(
            f"{folder}/train has no {wanted.format} files (of others: {have}); set dataset.format, "
            "or generate the dataset: dlemu datagen"
        )
    if len(numbered) != wanted.num_files:
        raise DatasetError(
            f"{folder}/train has {len(numbered):,} files, dataset.num_files_train is "
            f"{wanted.num_files:,}; set dataset.num_files_train={len(numbered)}"
        )
    return tuple(numbered[number] for number in sorted(numbered))


def _locate(path: Path, wanted: Layout) -> Places:
    with open(open_regular(path), "rb", buffering=0) as file:
        number = file.fileno()
        try:
            return FORMATS[wanted.format].locate(
                lambda offset, length: os.pread(number, length, offset),
                os.fstat(number).st_size,
                num_samples=wanted.samples_per_file,
            )
        except DatasetError as error:
            raise DatasetError(f"{path}: {error}") from None
