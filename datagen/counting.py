"""How many samples the files of another tool hold, by indexes or by the format's own means.

An array says its shape alone. Its first axis are samples where an array of labels has as many, and
where it has four axes, the first longer than one of channels; else where a sample is then nearer in
size to what the workload reads than the whole array is.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dlemu.config.model import Workload
from dlemu.errors import FROM_SOURCE, VERIFY, DatasetError
from dlemu.formats import Format
from dlemu.formats.format import Arrays, Read
from dlemu.storage.files import open_regular, read_regular
from dlemu.storage.pagecache import OnFile
from dlemu.storage.place import Place

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
_ENDS = (0, -1)
_NOT_SO = f"if it is whole, dataset.format says what such files are; else {FROM_SOURCE}"
"""The remedy for a file that is not what its name says. None removes a user's file."""
_BLOCK = 1 << 20
"""Bytes of a request for a part of an object, beside which the next part is likely to lie."""


@dataclass(frozen=True)
class ForeignFiles:
    """Files of another tool, by their names below a folder: their sizes, and what is in them."""

    place: Place
    listed: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each object, which came with the list of their names; of files nothing."""
    at: OnFile = lambda path: None
    """Is called with each file before it is asked."""

    def path(self, name: str) -> str:
        """Return the whole path of a file."""
        return f"{self.place.path}/{name}"

    def num_bytes(self, name: str) -> int:
        """Return the size of a file."""
        size = self.listed.get(name)
        if size is None:
            self.at(self.path(name))
            size = os.stat(self.path(name)).st_size
        return size

    def largest(self, names: Iterable[str]) -> int:
        """Return the bytes of the largest of some files."""
        return max(map(self.num_bytes, names))

    def stamp(self, name: str) -> str:
        """Return what changes with the content of a file, as far as its size and time tell."""
        if name in self.listed:
            return f"{name}\0{self.listed[name]}\n"
        self.at(self.path(name))
        status = os.stat(self.path(name))
        return f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n"

    def use(self, name: str, use: Callable[..., _T]) -> _T:
        """Return what `use` makes of a function that reads a file, and of the file's size."""
        path = self.path(name)
        try:
            if name in self.listed:
                return use(self._reader(name), self.listed[name])
            with open(open_regular(Path(path)), "rb", buffering=0) as file:
                number = file.fileno()
                return use(
                    lambda offset, length: os.pread(number, length, offset),
                    os.fstat(number).st_size,
                )
        except DatasetError as error:
            is_named = error.problem.startswith(path)  # it is missing, or no file
            if error.remedy == VERIFY:  # which knows nothing of them
                error = error.mended_by(FROM_SOURCE if is_named else "")
            raise error if is_named else error.within(path, _NOT_SO) from None

    def _reader(self, name: str) -> Read:
        """Return what reads parts of an object; of what lies near the last part it asks nobody."""
        num_bytes, begin, block = self.listed[name], 0, memoryview(b"")

        def read(offset: int, length: int) -> bytes:
            nonlocal begin, block
            end = min(offset + length, num_bytes)
            if not begin <= offset <= end <= begin + len(block):
                begin = offset
                stop = min(max(end, offset + _BLOCK), num_bytes)
                block = self.place.get(name, begin, stop).memory if begin < stop else block[:0]
            return bytes(block[offset - begin : max(end, offset) - begin])

        return read


@dataclass(frozen=True)
class Counts:
    """The samples of each file; none where nothing but the workload's key says it."""

    numbers: tuple[int, ...] = ()
    fingerprint: str = ""
    """Of the names, sizes and times of all files, where they were counted."""
    is_chunked: bool = False
    """Whether only h5py finds the samples."""
    notes: tuple[str, ...] = ()
    ends_alone: bool = False
    """Whether only the first and the last were counted."""


def count_samples(
    files: ForeignFiles, paths: Sequence[str], workload: Workload, *, is_said: bool
) -> Counts:
    """Return the samples of each file. What an earlier run has counted is not counted again.

    `is_said`: the user has said dataset.num_samples_per_file. Of objects that only tell it when all
    of each is read, the first and the last are counted.

    Raises:
        DatasetError: a file is damaged, or holds another number than the user has said.
    """
    kind, number = workload.dataset.file_format, workload.dataset.num_samples_per_file
    count: Callable[[str], int | None] = partial(_counted, files, kind)
    way, chunked, notes = "", False, tuple[str, ...]()
    if not files.num_bytes(paths[0]):
        return Counts()  # `locate` says so
    arrays = files.use(paths[0], kind.arrays)
    if arrays is not None:
        chunked = arrays.is_chunked
        first, notes = _is_first_axis(arrays, workload, is_said=is_said)
        if not first:
            return Counts(is_chunked=chunked, notes=notes)
        count, way = partial(_along, files, kind), "first axis"
    elif type(kind).count is Format.count:
        return Counts()
    asked = paths
    if kind.counts_by_reading and files.listed and len(paths) > len(_ENDS):
        asked = [paths[end] for end in _ENDS]
        way = "first and last"
        notes = (
            *notes,
            f"samples were counted in the first and the last of {len(paths):,} objects",
        )
    fingerprint = _fingerprint(files, paths, f"{workload.dataset.format} {way}")
    known = _counted_before(workload, fingerprint)
    if isinstance(known, int):
        numbers: tuple[int, ...] = (known,) * len(paths)
    elif isinstance(known, list) and len(known) == len(paths):
        numbers = tuple(known)
    else:
        numbers = _count_each(files, asked, count)
        if numbers and asked is not paths:
            numbers = (*(numbers[:1] * (len(paths) - 1)), numbers[-1])
    if is_said and numbers and max(numbers) != number:
        raise DatasetError(
            f"{files.place.path} has files of {max(numbers):,} samples, "
            f"dataset.num_samples_per_file says {number:,}; leave it out"
        )
    return Counts(numbers, fingerprint, chunked, notes, asked is not paths)


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


def _along(files: ForeignFiles, kind: Format, name: str) -> int:
    """Return how many samples an array holds along its first axis."""
    arrays = files.use(name, kind.arrays)
    if arrays is None or not arrays.shape:
        raise DatasetError(f"{files.path(name)} holds no array with samples", remedy=_NOT_SO)
    return arrays.shape[0]


def _counted(files: ForeignFiles, kind: Format, name: str) -> int | None:
    return files.use(name, partial(kind.count, path=files.path(name)))


def _count_each(
    files: ForeignFiles, names: Sequence[str], count: Callable[[str], int | None]
) -> tuple[int, ...]:
    """Return the samples of each file, by several threads; none if one file does not tell."""
    counts = []
    with ThreadPoolExecutor(_READERS) as pool:
        for name, number in zip(names, pool.map(count, names), strict=True):
            files.at(files.path(name))
            if number is None:
                return ()
            if number < 1:
                raise DatasetError(f"{files.path(name)} holds no samples", remedy=_NOT_SO)
            counts.append(number)
    return tuple(counts)


def _fingerprint(files: ForeignFiles, names: Sequence[str], way: str) -> str:
    """Return a digest of the names, sizes and times of all files, and of how they are counted."""
    named = hashlib.sha256(way.encode())
    for name in names:
        named.update(files.stamp(name).encode(errors="replace"))
    return named.hexdigest()


def _counted_before(workload: Workload, fingerprint: str) -> Any:
    """Return what a survey beside the results has of the samples of these files; None: nothing."""
    given = workload.output.folder
    results, below = Path("outputs"), "*/*/"  # of each workload, and of searches
    if given is not None:
        results, below = Path(given).absolute().parent, "*/"
    surveys = results.glob(f"{below}*{SURVEY}")
    found = sorted(surveys, key=lambda path: path.parent.name, reverse=True)[:_MOST_SURVEYS]
    for path in found:
        with suppress(OSError, ValueError, LookupError, TypeError, DatasetError):
            stored = json.loads(read_regular(path))
            if stored["fingerprint"] == fingerprint:
                return stored["samples_of_files"]
    return None
