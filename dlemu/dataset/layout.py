"""Which file holds a sample, its place in the file, and its size.

The only module that knows names and sizes, so that datagen and loaders agree. No file is opened.
Names follow DLIO, so that datasets are interchangeable (docs/formats.md).
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from dlemu.config.model import Workload
from dlemu.config.sections import ColumnSection, DatasetSection
from dlemu.config.types import MOST_AXES, FileName
from dlemu.errors import FROM_SOURCE, VERIFY, DatasetError, WorkloadError, system_line
from dlemu.formats import FileSamples, format_of
from dlemu.formats.parquet import Amount, Parquet
from dlemu.storage.place import Place, place_of
from dlemu.units import PAGE_BYTES, ceil_div, round_up

Samples = NDArray[np.int64]

_STRATA = 64
"""So many consecutive samples draw their sizes from different quantiles of the distribution."""
_LARGEST_FILE = 1 << 40
MOST_SAMPLES = 1 << 34
"""Of a dataset."""
_MOST_SAMPLE_BYTES = 1 << 42
Count = Annotated[int, Field(ge=1, le=1 << 62)]
_SAMPLES_AT_ONCE = 1 << 16
_LEAST_SHARE = 0.01
"""A sample is never smaller than this share of the mean."""
_LOOKED_AT = 64
"""Files whose sizes say what a format adds to its samples."""
_RAREST = 1e-7
"""Probability of the smallest and of the largest size: a normal distribution has no end."""


@dataclass(frozen=True)
class Layout:
    """The files of a dataset: their names, and the samples in each.

    All that their bytes follow from, but for the content of samples; a manifest has its fields in
    JSON, each with its bounds.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", strict=True)

    format: str
    num_files: Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
    samples_per_file: Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
    mean_bytes: Annotated[float, Field(ge=1, le=_MOST_SAMPLE_BYTES)]
    stdev_bytes: Annotated[float, Field(ge=0, le=_MOST_SAMPLE_BYTES)]
    element_bytes: Count
    seed: Annotated[int, Field(ge=0)]
    prefix: FileName = "img"
    num_subfolders: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 0
    distribution: Literal["normal", "lognormal", "listed"] = "normal"
    listed: Annotated[tuple[Count, ...], Field(max_length=100_000)] = ()
    """The sizes that are drawn, in ascending order, where the distribution is a list."""
    columns: Annotated[tuple[ColumnSection, ...], Field(max_length=10_000)] = ()
    """Of a parquet file; a sample's size is then that of the columns that are read."""
    row_group_size: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 0
    """Rows of a row group of a parquet file."""
    element_type: str = "uint8"
    dims: Annotated[tuple[Count, ...], Field(max_length=MOST_AXES)] = ()
    """Shape of a sample in elements, where dataset.record_dims says it."""
    num_parts: Count = 1
    """HDF5 datasets that a sample is cut into."""
    chunks: Annotated[tuple[Count, ...], Field(max_length=MOST_AXES)] | None = None
    """Sides of an HDF5 chunk, that of the samples first; (): h5py chooses; None: contiguous."""
    compression: Literal["none", "gzip"] = "none"
    """Of an HDF5 file."""

    @property
    def num_samples(self) -> int:
        """Samples of the whole dataset."""
        return self.num_files * self.samples_per_file

    @property
    def counts(self) -> Samples | None:
        """Samples of each file, int64 (files,), where they differ; `samples_per_file` is the most.

        None: all have `samples_per_file`, as all that dlemu writes.
        """
        return None

    @property
    def equal_bytes(self) -> int | None:
        """Payload bytes of every sample; None if they differ."""
        whole = self.mean_bytes / self.element_bytes
        return int(self.mean_bytes) if self.stdev_bytes == 0 and whole.is_integer() else None

    @property
    def is_foreign(self) -> bool:
        """Whether the files are those of another tool: dlemu adds none to them."""
        return False

    @property
    def listed_bytes(self) -> Samples | None:
        """Bytes of each object that dlemu did not write, int64 (files,), as they were listed."""
        return None

    def repeated(self, num_files: int) -> "Layout":
        """Return so many files: these, again and again.

        For a short look at storage that O_DIRECT reads: no page cache keeps what was read before.
        """
        return Repeated.of(self, num_files)

    def file_of(self, samples: Samples) -> Samples:
        """Return the file number of each sample."""
        return samples // self.samples_per_file

    def place_of(self, samples: Samples) -> Samples:
        """Return each sample's place in its file, from 0."""
        return samples % self.samples_per_file

    def find(self, sample: int) -> tuple[int, int]:
        """Return the file of a sample, and its place there, from 0."""
        return divmod(sample, self.samples_per_file)

    def in_file(self, file: int) -> int:
        """Return how many samples a file holds."""
        return self.samples_per_file

    def start_of(self, file: int) -> int:
        """Return the first sample of a file."""
        return file * self.samples_per_file

    def samples_of(self, file: int) -> Samples:
        """Return the samples of one file, in their order there."""
        start = self.start_of(file)
        return np.arange(start, start + self.in_file(file))

    def file_samples(self, file: int) -> FileSamples:
        """Return what a file holds."""
        dtype = np.dtype(self.element_type)
        return FileSamples(self.samples_of(file), self.file_sizes(file), dtype, self.dims)

    def file_sizes(self, file: int) -> Samples:
        """Return the payload bytes of a file's samples, int64 (samples,)."""
        group, place = divmod(file, self.files_at_once)
        sizes: Samples = sizes_of_files(self, group)[place]
        return sizes

    def indexes(self, file: int) -> tuple[bytes, ...]:
        """Return the content of a file's indexes, in the order of `index_paths`."""
        return format_of(self).indexes(self.file_sizes(file))

    def path(self, file: int) -> str:
        """Return a file's path below the data folder."""
        return f"train/{self._name(file)}.{self.suffix}"

    @cached_property
    def suffix(self) -> str:
        """End of the files' names, without its dot."""
        return format_of(self).suffix or self.format.rpartition(".")[2]

    def index_paths(self, file: int) -> tuple[str, ...]:
        """Return the paths below the data folder of a file's indexes; few formats have some."""
        return format_of(self).index_paths(self.path(file))

    def sizes(self, samples: Samples) -> Samples:
        """Return the payload bytes of each sample, int64; they depend on (seed, sample) alone.

        A fractional mean is met on average. With a stdev the distribution is normal, without
        sizes below 1 % of the mean; mean and stdev are those of what remains.
        """
        unit = self.element_bytes
        if self.equal_bytes is not None:
            return np.full(len(samples), max(self.equal_bytes, unit))
        if self.listed:
            places = (_strata(self.seed, samples) * len(self.listed)).astype(np.int64)
            return np.array(self.listed, np.int64)[places]
        if self.stdev_bytes == 0:
            exact = np.full(len(samples), self.mean_bytes / unit)
        else:
            quantiles, grid = _quantiles_of(self)
            exact = np.interp(_strata(self.seed, samples), grid, quantiles) / unit
        fraction = _uniform(self.seed, samples, purpose=2)
        return np.maximum(np.floor(exact + fraction), 1).astype(np.int64) * unit

    @property
    def files_at_once(self) -> int:
        """Files whose sizes are computed together."""
        return max(1, _SAMPLES_AT_ONCE // self.samples_per_file)

    def all_sizes(self) -> Samples:
        """Return the bytes of each file and its indexes, int64 (1 + indexes, files)."""
        return np.concatenate([sizes for _, sizes in self.size_pieces()], axis=1)

    def size_pieces(self) -> Iterator[tuple[int, Samples]]:
        """Yield the number of a first file, and what `all_sizes` has of it and some more files."""
        files, each = format_of(self), self.files_at_once

        def sizes(group: int, layout: Layout = self) -> Samples:
            payload = sizes_of_files(layout, group)
            return np.stack([files.file_bytes(payload), *files.index_bytes(payload)])

        same = None if self.equal_bytes is None else sizes(0, replace(self, num_files=1))
        for group, first in enumerate(range(0, self.num_files, each)):
            few = min(each, self.num_files - first)
            yield first, sizes(group) if same is None else np.repeat(same, few, axis=1)

    @cached_property
    def _digits(self) -> int:
        return len(str(self.num_files))

    def _name(self, file: int) -> str:
        name = f"{self.prefix}_{file:0{self._digits}d}_of_{self.num_files}"
        if self.num_subfolders <= 1:
            return name
        width = len(str(self.num_subfolders))
        return f"{file % self.num_subfolders:0{width}d}/{name}"


@dataclass(frozen=True)
class _ByFilesOf(Layout):
    """As many files as are asked for, which are those of another layout: all else is as there."""

    own: Layout | None = None

    @classmethod
    def of(cls, real: Layout, num_files: int) -> Self:
        """Return `num_files` files by those of `real`."""
        same = {each.name: getattr(real, each.name) for each in fields(Layout)}
        return cls(**(same | {"num_files": num_files}), own=real)

    @property
    def real(self) -> Layout:
        """The layout whose files they are."""
        assert self.own is not None
        return self.own


class Repeated(_ByFilesOf):
    """Files that are read as if there were more: file i stands for file i modulo their number."""

    def path(self, file: int) -> str:
        return self.real.path(file % self.real.num_files)

    def sizes(self, samples: Samples) -> Samples:
        return self.real.sizes(samples % self.real.num_samples)


class FirstFiles(_ByFilesOf):
    """The first files of a larger dataset, whose names say the number of all."""

    def path(self, file: int) -> str:
        return self.real.path(file)


def layout_of(workload: Workload) -> Layout:
    """Return the layout of a workload's dataset."""
    dataset = workload.dataset
    counts_bytes = bool(dataset.columns or dataset.listed_sizes or dataset.format == "csv")
    layout = Layout(
        format=dataset.format,
        num_files=workload.num_files,
        samples_per_file=dataset.num_samples_per_file,
        mean_bytes=dataset.mean_bytes,
        stdev_bytes=dataset.stdev_bytes,
        element_bytes=1 if counts_bytes else dataset.element_bytes,
        seed=dataset.seed,
        prefix=dataset.file_prefix,
        num_subfolders=dataset.num_subfolders_train,
        distribution=_distribution_of(dataset),
        listed=dataset.listed_sizes,
        columns=dataset.columns,
        row_group_size=dataset.parquet.row_group_size if dataset.columns else 0,
        element_type="uint8" if counts_bytes else dataset.record_element_type,
        dims=() if counts_bytes else dataset.record_dims,
        num_parts=dataset.num_dset_per_record if dataset.by_h5py else 1,
        chunks=dataset.chunks if dataset.by_h5py else None,
        compression=dataset.compression,
    )
    check_layout(layout)
    return layout


def _distribution_of(dataset: DatasetSection) -> Literal["normal", "lognormal", "listed"]:
    if dataset.columns or dataset.record_dims:
        return "normal"
    if dataset.listed_sizes:
        return "listed"
    named = dataset.record_length_bytes_distribution
    return "lognormal" if named == "lognormal" and dataset.stdev_bytes else "normal"


def amount_of(workload: Workload, layout: Layout) -> Amount:
    """Return what a row of a parquet dataset that dlemu wrote costs to read."""
    parquet, reader = format_of(layout), workload.reader
    assert isinstance(parquet, Parquet)
    gap, transfer, direct = reader.coalesce_gap, reader.transfer_size, reader.odirect is not False
    return parquet.amount(layout.samples_per_file, gap=gap, transfer=transfer, direct=direct)


@lru_cache(maxsize=4)
def sizes_of_files(layout: Layout, group: int) -> Samples:
    """Return the payload bytes of a group of `files_at_once` files, int64 (files, samples)."""
    # For many files at once: a call for one file takes longer than to write a small file.
    step = layout.files_at_once * layout.samples_per_file
    samples = np.arange(group * step, min((group + 1) * step, layout.num_samples))
    return layout.sizes(samples).reshape(-1, layout.samples_per_file)


def check_layout(layout: Layout) -> None:
    """Refuse sizes that no files of this format can have."""
    per_file, mean, stdev = layout.samples_per_file, layout.mean_bytes, layout.stdev_bytes
    if layout.columns:
        if per_file * sum(column.row_bytes for column in layout.columns) > _LARGEST_FILE:
            raise WorkloadError(
                f"dataset.num_samples_per_file={per_file} makes parquet files of more than 1 TiB; "
                "lower it"
            )
        return
    why = format_of(layout).why_equal
    if per_file > 1 and why:
        if stdev > 0:
            raise WorkloadError(
                f"dataset.record_length_bytes_stdev must be 0 where a {layout.format} file holds "
                f"{per_file} samples, got {stdev:g}: {why}"
            )
        if mean % layout.element_bytes:
            raise WorkloadError(
                f"dataset.record_length_bytes must be a multiple of {layout.element_bytes} where "
                f"a {layout.format} file holds {per_file} samples, got {mean:g}"
            )
    if stdev > 0 and not layout.listed:
        _quantiles_of(layout)  # raises if no such distribution exists


def hashed(seed: int, numbers: Samples, *, purpose: int) -> NDArray[np.uint64]:
    """Return 64 random bits for each number; different purposes are independent.

    SplitMix64's finaliser (Steele, Lea, Flood 2014) over a Weyl sequence keyed by seed and purpose.
    """
    key = np.random.SeedSequence((seed, purpose)).generate_state(2, np.uint64)
    with np.errstate(over="ignore"):
        bits = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key[0]
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB) ^ key[1]
        bits = (bits ^ (bits >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes: NDArray[np.uint64] = bits ^ (bits >> np.uint64(32))
    return hashes


def _uniform(seed: int, numbers: Samples, *, purpose: int) -> NDArray[np.float64]:
    top = hashed(seed, numbers, purpose=purpose) >> np.uint64(11)
    return top.astype(np.float64) * 2.0**-53


def _strata(seed: int, samples: Samples) -> NDArray[np.float64]:
    """Return a uniform number for each sample, spread evenly over each run of 64 samples.

    With independent draws the total of 168 UNet3D files would have a standard deviation of 4 %.
    Here 64 consecutive samples draw once from each 64th of the distribution (stratified sampling),
    which keeps every total close to what was asked.
    """
    block, place = np.divmod(samples, _STRATA)
    bits = hashed(seed, block, purpose=0)
    turn, first = bits | np.uint64(1), bits >> np.uint64(32)
    with np.errstate(over="ignore"):
        stratum = (place.astype(np.uint64) * turn + first) % np.uint64(_STRATA)
    within: NDArray[np.float64] = stratum.astype(np.float64) + _uniform(seed, samples, purpose=1)
    return within / _STRATA


def _quantiles_of(layout: Layout) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the quantile function of a layout's sizes: values, and their probabilities."""
    of = _lognormal if layout.distribution == "lognormal" else _quantiles
    return of(layout.mean_bytes, layout.stdev_bytes)


def _grid() -> NDArray[np.float64]:
    """Return probabilities from 0 to 1, finer at both ends, where quantile functions are steep."""
    ends = np.logspace(-7, -3, 200)
    grid = np.concatenate([[0.0], ends, np.linspace(1e-3, 1 - 1e-3, 1999)[1:-1], 1 - ends])
    return np.unique(np.clip(grid, 0.0, 1 - _RAREST))


@lru_cache
def _lognormal(mean: float, stdev: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the quantile function of a lognormal distribution of this mean and stdev."""
    spread = math.sqrt(math.log1p((stdev / mean) ** 2))
    centre = math.log(mean) - spread**2 / 2
    unit, grid = NormalDist(), _grid()
    values = np.exp([centre + spread * unit.inv_cdf(max(p, _RAREST)) for p in grid.tolist()])
    return values, grid


@lru_cache
def _quantiles(mean: float, stdev: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the quantile function of the size: values, and their probabilities.

    Truncating a normal distribution at 1 % of the mean raises its mean and reduces its stdev
    (UNet3D: by 2 and 4 %). So a normal is searched whose truncation has the asked mean and stdev.
    The result is cached, because loaders ask for every batch; callers must not change it.
    """
    least, unit = _LEAST_SHARE * mean, NormalDist()
    centre, width = mean, stdev
    for _ in range(200):
        cut = (least - centre) / width
        kept = 1 - unit.cdf(cut)
        if kept < 1e-3:
            break
        hazard = unit.pdf(cut) / kept
        got_mean = centre + width * hazard
        got_stdev = width * math.sqrt(max(1 + cut * hazard - hazard**2, 1e-12))
        if abs(got_mean - mean) < 1e-6 * mean and abs(got_stdev - stdev) < 1e-6 * mean:
            start = unit.cdf(cut)
            grid = _grid()
            values = [
                max(least, centre + width * unit.inv_cdf(min(max(at, _RAREST), 1 - 1e-12)))
                for at in start + grid * (1 - start)
            ]
            return np.array(values), grid
        centre -= got_mean - mean
        width *= stdev / got_stdev
    raise WorkloadError(
        f"dataset.record_length_bytes_stdev must be at most about 0.7 of the mean {mean:g}, "
        f"got {stdev:g}: sizes cannot be below zero; set it too, 0 for equal sizes"
    )


@dataclass(frozen=True)
class Dataset:
    """The files in a data folder, and the workload that reads them."""

    workload: Workload
    """Its number of files is that of the folder."""
    layout: Layout
    known_places: bool = True
    """Whether dlemu wrote the files, by their manifest. Then sizes and places follow from the
    layout, and every length is checked against it; else they come from each file's header."""
    notes: tuple[str, ...] = ()
    """Lines about the dataset, for a run's report."""
    access: Any = None
    """How its place is reached: what `Place.reach` has returned on rank 0, for all ranks."""
    cache_state: str = ""
    """File that the readers of this host share if they read through a cache: see
    `loaders.cache.reader`."""

    @property
    def folder(self) -> Path:
        """The data folder."""
        return self.workload.data_folder

    @cached_property
    def place(self) -> Place:
        """Where the data folder lies, and how it is reached."""
        return place_of(self.folder, self.access)

    @contextmanager
    def remedies(self) -> Iterator[None]:
        """Name what helps against a damaged file that dlemu has not written, so cannot verify."""
        try:
            yield
        except DatasetError as error:
            if self.known_places or error.remedy != VERIFY:
                raise
            raise error.mended_by(FROM_SOURCE) from None

    @classmethod
    def of(cls, workload: Workload) -> "Dataset":
        """Return the dataset that dlemu generates for a workload."""
        return cls(workload, layout_of(workload))


def file_sizes(dataset: Dataset) -> Samples:
    """Return the bytes of each file, int64 (files,).

    Raises:
        DatasetError: dlemu did not write the files, and one is missing.
    """
    layout = dataset.layout
    if not dataset.known_places:
        if (listed := layout.listed_bytes) is not None:
            return listed[: layout.num_files]
        try:
            found = [
                os.stat(dataset.folder / layout.path(file)).st_size
                for file in range(layout.num_files)
            ]
        except OSError as error:
            raise DatasetError(system_line(error)) from None
        return np.array(found, np.int64)
    sizes: Samples = layout.all_sizes()[0]
    return sizes


def needed_ratio(dataset: Dataset) -> float:
    """Return the bytes that reading needs at most for a byte of samples; inf: that is not known.

    Headers count, and whole pages: of files that are read from end to end, else of each sample
    with its file's head, and in parquet of each column of a row group.
    """
    workload, each = dataset.workload, dataset.layout.samples_per_file
    layout = replace(dataset.layout, num_files=min(dataset.layout.num_files, _LOOKED_AT))
    if each > 1 and not (workload.streamed or workload.by_tf_data or layout.columns):
        return (layout.mean_bytes + 3 * PAGE_BYTES) / layout.mean_bytes
    try:
        files = file_sizes(replace(dataset, layout=layout))
    except DatasetError:  # a bucket, or a file that is gone
        return math.inf
    samples = float(layout.sizes(np.arange(layout.num_samples)).sum())
    needed = float(round_up(files).sum())
    if layout.columns:
        chunks = len(workload.dataset.read_columns) * ceil_div(each, layout.row_group_size)
        unread = each * (workload.dataset.stored_bytes - layout.mean_bytes)
        needed += layout.num_files * (2 * PAGE_BYTES * chunks - unread)
    return needed / samples
