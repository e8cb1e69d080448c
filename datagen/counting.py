"""How many samples the files of another tool hold, by indexes or by the format's own means.

An array says its shape alone. Its first axis are samples where an array of labels has as many, and
where it has four axes, the first longer than one of channels; else where a sample is then nearer in
size to what the workload reads than the whole array is.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dlemu.config.model import Workload
from dlemu.errors import DatasetError
from dlemu.formats import Format
from dlemu.formats.format import Arrays
from dlemu.storage.files import open_regular, read_regular
from dlemu.storage.pagecache import OnFile

_T = TypeVar("_T")
SURVEY = "survey.json"
"""In a run's folder: what was found of a dataset without a manifest."""
_READERS = 8
"""Threads that count samples: a drive answers several at once."""
_AXES_OF_IMAGES, _MOST_CHANNELS = 4, 4
"""Of an array of images: their number, two sides, and channels. The first axis of a volume are its
channels, if it has some."""
_MOST_SURVEYS = 20
"""Of earlier runs, that are looked into."""


@dataclass(frozen=True)
class Counts:
    """The samples of each file; none where nothing but the workload's key says it."""

    numbers: tuple[int, ...] = ()
    fingerprint: str = ""
    """Of the names, sizes and times of all files, where they were counted."""
    is_chunked: bool = False
    """Whether only h5py finds the samples."""
    notes: tuple[str, ...] = ()


def count_samples(
    folder: Path, paths: Sequence[str], workload: Workload, *, is_said: bool, at: OnFile
) -> Counts:
    """Return the samples of each file. What an earlier run has counted is not counted again.

    `is_said`: the user has said dataset.num_samples_per_file.

    Raises:
        DatasetError: a file is damaged, or holds another number than the user has said.
    """
    kind, number = workload.dataset.file_format, workload.dataset.num_samples_per_file
    count: Callable[[Path], int | None] = partial(_counted, kind)
    way, chunked, notes = "", False, tuple[str, ...]()
    if not folder.joinpath(paths[0]).stat().st_size:
        return Counts()  # `locate` says so
    arrays = with_file(folder / paths[0], kind.arrays)
    if arrays is not None:
        chunked = arrays.is_chunked
        first, notes = _is_first_axis(arrays, workload, is_said=is_said)
        if not first:
            return Counts(is_chunked=chunked, notes=notes)
        count, way = partial(_along, kind), "first axis"
    elif type(kind).count is Format.count:
        return Counts()
    fingerprint = _fingerprint(folder, paths, f"{workload.dataset.format} {way}", at)
    known = _counted_before(workload, fingerprint)
    if isinstance(known, int):
        numbers: tuple[int, ...] = (known,) * len(paths)
    elif isinstance(known, list) and len(known) == len(paths):
        numbers = tuple(known)
    else:
        numbers = _count_each(folder, paths, count, at)
    if is_said and numbers and max(numbers) != number:
        raise DatasetError(
            f"{folder} has files of {max(numbers):,} samples, dataset.num_samples_per_file says "
            f"{number:,}; leave it out"
        )
    return Counts(numbers, fingerprint, chunked, notes)


def _is_first_axis(
    arrays: Arrays, workload: Workload, *, is_said: bool
) -> tuple[bool, tuple[str, ...]]:
    """Return whether the first axis of an array are its samples, and a line about it.

    Else it is one sample, or has as many along its last axis as the workload says (DLIO).
    """
    shape, asked = arrays.shape, workload.dataset.num_samples_per_file
    first = shape[0] if shape else 1
    if asked > 1 and shape[-1:] == (asked,):
        return False, ()
    if is_said:  # `locate` tells of an axis that is longer
        return 1 < first <= asked, ()
    if first <= 1:
        return False, ()
    if arrays.num_labels == first:
        return True, ()
    if len(shape) < 2:
        return False, ()
    wanted, whole = math.log(workload.dataset.mean_bytes), math.log(max(1, arrays.num_bytes))
    key, sides = "dataset.num_samples_per_file", "x".join(map(str, shape))
    what = f"an array of {sides} is taken as"
    of_images = len(shape) >= _AXES_OF_IMAGES and first > _MOST_CHANNELS
    if of_images or abs(whole - math.log(first) - wanted) < abs(whole - wanted):
        return True, (f"{what} {first} samples, by its first axis; {key}=1: as one",)
    return False, (f"{what} one sample; {key}={first}: its first axis are samples",)


def _along(kind: Format, path: Path) -> int:
    """Return how many samples an array holds along its first axis."""
    arrays = with_file(path, kind.arrays)
    if arrays is None or not arrays.shape:
        raise DatasetError(f"{path} holds no array with samples")
    return arrays.shape[0]


def _counted(kind: Format, path: Path) -> int | None:
    return with_file(path, partial(kind.count, path=str(path)))


def _count_each(
    folder: Path, paths: Sequence[str], count: Callable[[Path], int | None], at: OnFile
) -> tuple[int, ...]:
    """Return the samples of each file, by several threads; none if one file does not tell."""
    counts = []
    with ThreadPoolExecutor(_READERS) as pool:
        found = pool.map(lambda path: count(folder / path), paths)
        for path, number in zip(paths, found, strict=True):
            at(f"{folder}/{path}")
            if number is None:
                return ()
            if number < 1:
                raise DatasetError(f"{folder}/{path} holds no samples")
            counts.append(number)
    return tuple(counts)


def _fingerprint(folder: Path, paths: Sequence[str], way: str, at: OnFile) -> str:
    """Return a digest of the names, sizes and times of all files, and of how they are counted."""
    named = hashlib.sha256(way.encode())
    for path in paths:
        at(f"{folder}/{path}")
        status = os.stat(f"{folder}/{path}")
        named.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="replace"))
    return named.hexdigest()


def _counted_before(workload: Workload, fingerprint: str) -> Any:
    """Return what a survey beside the results has of the samples of these files; None: nothing."""
    given = workload.output.folder
    results = Path("outputs", workload.name) if given is None else Path(given).absolute().parent
    found = sorted(results.glob(f"*/{SURVEY}"), reverse=True)[:_MOST_SURVEYS]
    for path in found:
        with suppress(OSError, ValueError, LookupError, TypeError, DatasetError):
            stored = json.loads(read_regular(path))
            if stored["fingerprint"] == fingerprint:
                return stored["samples_of_files"]
    return None


def with_file(path: Path, use: Callable[..., _T]) -> _T:
    """Return what `use` makes of a function that reads a file, and of the file's size."""
    with open(open_regular(path), "rb", buffering=0) as file:
        number = file.fileno()
        try:
            return use(
                lambda offset, length: os.pread(number, length, offset), os.fstat(number).st_size
            )
        except DatasetError as error:
            raise DatasetError(f"{path}: {error}") from None
