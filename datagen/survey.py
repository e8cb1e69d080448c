"""Datasets that another program wrote: the names of their files, and what is in them."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
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
"""The mean size comes from at most so many files: on a network file system each takes a round
trip."""
_OTHER_MEAN = 0.1
"""Mean sizes that differ by more than this share are of different datasets; demand and AU follow
from the mean. What DLIO rounds (to a square of whole sides) is far less."""
_STDEVS = 3
"""Standard errors by which the mean of drawn sizes may differ by chance."""
_NAME = re.compile(
    r"(?P<prefix>.*?)_?(?P<number>\d+)(?:_of_(?P<count>\d+))?\.(?P<format>[a-z0-9]+)"
)


@dataclass(frozen=True)
class Found(Layout):
    """The layout of files that were found: their own names; sizes are in each file's header."""

    paths: tuple[str, ...] = ()
    """Of each file, below the data folder."""
    num_opened: int = 0
    """Files that were opened; all others are taken to have such headers."""
    largest_bytes: int | None = None
    """Size of the largest file, if memory for batches depends on it; else None."""

    def path(self, file: int) -> str:
        """Return a file's path below the data folder."""
        return self.paths[file]

    def __str__(self) -> str:
        return (
            f"{self.num_files:,} {self.format} files were found, their samples have "
            f"{self.mean_bytes:,.0f} bytes on average; {self.num_opened} were opened, with "
            f"{self.samples_per_file} samples each"
        )


def survey(
    folder: Path, workload: Workload, *, at: Callable[[str], object] = lambda path: None
) -> Found:
    """Return the layout of a dataset without a manifest, from file names and a few headers.

    `at` is called with each folder or file before it is read.
    """
    if (folder / WORK).exists():
        raise DatasetError(f"{folder} is unfinished; start dlemu datagen again, it continues")
    wanted = layout_of(workload)
    at(f"{folder}/train")
    paths = _paths(folder, wanted)
    chosen = [paths[file] for file in sorted({0, len(paths) // 2, len(paths) - 1})]
    places = []
    for path in chosen:
        at(f"{folder}/{path}")
        places.append(_locate(folder / path, wanted))
    lengths = np.concatenate([place.lengths for place in places])
    sizes = [(folder / path).stat().st_size for path in chosen]
    header_bytes = float(np.mean(sizes)) - float(lengths.sum()) / len(chosen)
    reader, dataset = workload.reader, workload.dataset
    needs_largest = reader.hands_over and dataset.record_length_bytes_resize is None
    seen = {
        "mean_bytes": _mean_bytes(folder, paths, wanted, header_bytes),
        "stdev_bytes": float(lengths.std()),
        "element_bytes": places[0].element_bytes,
        "paths": paths,
        "num_opened": len(chosen),
        # Slow on a network file system, so rank 0 does it for all ranks.
        "largest_bytes": largest_file(folder, paths, at) if needs_largest else None,
    }
    found = Found(**(asdict(wanted) | seen))
    _check_mean(folder, workload, wanted, found.mean_bytes)
    return found


def largest_file(
    folder: Path, paths: Iterable[str], at: Callable[[str], object] = lambda path: None
) -> int:
    """Return the bytes of the largest of these files, whose paths are below the folder."""
    largest = 0
    for path in paths:
        at(f"{folder}/{path}")
        largest = max(largest, os.stat(f"{folder}/{path}").st_size)
    return largest


def _mean_bytes(folder: Path, paths: tuple[str, ...], wanted: Layout, header_bytes: float) -> float:
    """Return the mean size of a sample by the sizes of many files.

    `header_bytes` of each file are no samples.
    """
    chosen = paths[:: ceil_div(len(paths), _MOST_SIZES)]
    size = float(np.mean([(folder / path).stat().st_size for path in chosen]))
    return (size - header_bytes) / wanted.samples_per_file


def _check_mean(folder: Path, workload: Workload, wanted: Layout, mean: float) -> None:
    """Refuse samples of another mean size than the workload's."""
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
    """Return the files' paths, ordered by the numbers in their names."""
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
    """Return where a file's samples lie, by its header."""
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
