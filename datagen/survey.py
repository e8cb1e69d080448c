"""Datasets that somebody else wrote: what their files are called, and what lies in them."""

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dlemu.datagen.listing import WORK, walk
from dlemu.errors import DatasetError
from dlemu.files import Layout, layout_of
from dlemu.formats import FORMATS, Places
from dlemu.workload import Workload

_NUM_LOOKED_INTO = 3
_NAME = re.compile(
    r"(?P<prefix>.*?)_?(?P<number>\d+)(?:_of_(?P<count>\d+))?\.(?P<format>[a-z0-9]+)"
)


@dataclass(frozen=True)
class Found(Layout):
    """The layout of files that were found: their names are theirs, their sizes in each of them."""

    paths: tuple[str, ...] = ()
    """Of each file, below the data folder."""
    looked_into: int = 0
    """How many files were opened; what they hold is taken for all."""

    def path(self, file: int) -> str:
        """Return a file's path below the data folder."""
        return self.paths[file]

    def __str__(self) -> str:
        return (
            f"{self.num_files:,} {self.format} files were found, {self.samples_per_file} samples "
            f"of {self.mean_bytes:,.0f} bytes in each of the {self.looked_into} that were opened"
        )


def survey(folder: Path, workload: Workload) -> Found:
    """Return the layout of a dataset without a manifest, from its names and a few of its files.

    Raises:
        DatasetError: there is none, or it does not fit the workload.
    """
    if (folder / WORK).exists():
        raise DatasetError(f"{folder} is unfinished; start dlemu datagen again, it continues")
    wanted = layout_of(workload)
    paths = _paths(folder, wanted)
    chosen = sorted({0, len(paths) // 2, len(paths) - 1})
    places = [_locate(folder / paths[file], wanted) for file in chosen]
    lengths = np.concatenate([place.lengths for place in places])
    return Found(
        format=wanted.format,
        num_files=wanted.num_files,
        samples_per_file=wanted.samples_per_file,
        mean_bytes=float(lengths.mean()),
        stdev_bytes=float(lengths.std()),
        element_bytes=places[0].element_bytes,
        seed=wanted.seed,
        prefix=wanted.prefix,
        num_subfolders=wanted.num_subfolders,
        paths=paths,
        looked_into=len(chosen),
    )


def _paths(folder: Path, wanted: Layout) -> tuple[str, ...]:
    """Return the files' paths by their numbers."""
    numbered: dict[int, str] = {}
    formats: Counter[str] = Counter()
    for below, entry in walk(folder, "train"):
        match = _NAME.fullmatch(entry.name)
        if match is None:
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
    with open(path, "rb", buffering=0) as file:
        number = file.fileno()
        try:
            return FORMATS[wanted.format].locate(
                lambda offset, length: os.pread(number, length, offset),
                os.fstat(number).st_size,
                num_samples=wanted.samples_per_file,
            )
        except DatasetError as error:
            raise DatasetError(f"{path}: {error}") from None
