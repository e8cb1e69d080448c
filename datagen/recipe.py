"""All that the bytes of a dataset's files follow from."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from dlemu.config.model import Workload
from dlemu.config.published import word
from dlemu.config.sections import (
    MOST_AXES,
    ColumnSection,
    FileName,
    Section,
)
from dlemu.dataset.layout import Layout, Samples, check_layout, layout_of, sizes_of_files
from dlemu.errors import DatasetError, WorkloadError
from dlemu.formats import FileSamples, format_of
from dlemu.units import counted

VERSION = 3
"""Of the manifest: it changes with the bytes of any file. Others are not read."""
_MOST_SAMPLES = 1 << 34
_MOST_SAMPLE_BYTES = 1 << 42
Count = Annotated[int, Field(ge=1, le=1 << 62)]

_KEYS = {
    "format": "dataset.format",
    "num_files": "dataset.num_files_train",
    "samples_per_file": "dataset.num_samples_per_file",
    "dims": "dataset.record_dims",
    "mean_bytes": "dataset.record_length_bytes",
    "stdev_bytes": "dataset.record_length_bytes_stdev",
    "element_type": "dataset.record_element_type",
    "element_bytes": "dataset.record_element_type (bytes)",
    "seed": "dataset.seed",
    "prefix": "dataset.file_prefix",
    "num_subfolders": "dataset.num_subfolders_train",
    "distribution": "dataset.record_length_bytes_distribution",
    "listed": "dataset.record_length_bytes_distribution (sizes)",
    "columns": "dataset.parquet.columns",
    "row_group_size": "dataset.parquet.row_group_size",
    "num_parts": "dataset.num_dset_per_record",
    "chunks": "dataset.chunk_dims",
    "compression": "dataset.compression",
}
"""The workload's keys by the fields that they decide."""


class StoredRecipe(Section):
    """A recipe's fields in JSON, each with its bounds."""

    format: str
    num_files: Annotated[int, Field(ge=1, le=_MOST_SAMPLES)]
    samples_per_file: Annotated[int, Field(ge=1, le=_MOST_SAMPLES)]
    mean_bytes: Annotated[float, Field(ge=1, le=_MOST_SAMPLE_BYTES)]
    stdev_bytes: Annotated[float, Field(ge=0, le=_MOST_SAMPLE_BYTES)]
    element_bytes: Count
    seed: Annotated[int, Field(ge=0)]
    prefix: FileName
    num_subfolders: Annotated[int, Field(ge=0, le=_MOST_SAMPLES)]
    element_type: str
    dims: Annotated[tuple[Count, ...], Field(strict=False, max_length=MOST_AXES)]
    distribution: Literal["normal", "lognormal", "listed"]
    listed: Annotated[tuple[Count, ...], Field(strict=False, max_length=100_000)]
    columns: Annotated[tuple[ColumnSection, ...], Field(strict=False, max_length=10_000)]
    row_group_size: Annotated[int, Field(ge=0, le=_MOST_SAMPLES)]
    num_parts: Count = 1
    chunks: Annotated[tuple[Count, ...], Field(strict=False, max_length=MOST_AXES)] | None = None
    compression: Literal["none", "gzip"] = "none"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.format == "parquet") != bool(self.columns and self.row_group_size):
            raise ValueError("only parquet files have columns and row groups, and all have them")
        if (self.distribution == "listed") != bool(self.listed) or [*self.listed] != sorted(
            self.listed
        ):
            raise ValueError("the listed sizes are missing, or not in ascending order")
        return self


@dataclass(frozen=True)
class Recipe:
    """All that a dataset's files follow from, byte for byte."""

    layout: Layout
    element_type: str

    @classmethod
    def of(cls, workload: Workload) -> Self:
        """Return the recipe of a workload's dataset."""
        dataset = workload.dataset
        layout = layout_of(workload)
        counts_bytes = layout.columns or layout.element_bytes != dataset.element_bytes
        return cls(layout, "uint8" if counts_bytes else dataset.record_element_type)

    def file_samples(self, file: int) -> FileSamples:
        """Return the samples of one file."""
        dtype = np.dtype(self.element_type)
        samples = self.layout.samples_of(file)
        return FileSamples(samples, self.sizes(file), dtype, self.layout.dims)

    def sizes(self, file: int) -> Samples:
        """Return the payload bytes of a file's samples, int64 (samples,)."""
        group, place = divmod(file, self.layout.files_at_once)
        sizes: Samples = sizes_of_files(self.layout, group)[place]
        return sizes

    def indexes(self, file: int) -> tuple[bytes, ...]:
        """Return the content of a file's indexes, in the order of `Layout.index_paths`."""
        return format_of(self.layout).indexes(self.sizes(file))

    def to_tree(self) -> dict[str, Any]:
        """Return the fields as plain values, for JSON."""
        tree = dataclasses.asdict(self.layout)
        return _plain(tree) | {"element_type": self.element_type}

    @classmethod
    def stored(cls, stored: StoredRecipe) -> Self:
        """Return the recipe that `to_tree` has stored.

        Raises:
            ValueError: the fields contradict each other.
        """
        tree = {name: getattr(stored, name) for name in type(stored).model_fields}
        element_type = tree.pop("element_type")
        layout = Layout(**tree)
        dims = layout.dims
        if layout.num_samples > _MOST_SAMPLES:
            raise ValueError(f"{layout.num_samples} samples are more than a dataset has")
        try:
            dtype = np.dtype(element_type)
        except (TypeError, ValueError, SyntaxError):
            raise ValueError(f"element_type {element_type[:80]} is unknown") from None
        if dtype.kind not in "biufc" or dtype.itemsize != layout.element_bytes:
            raise ValueError(
                f"element_type {element_type[:80]} has not {layout.element_bytes} bytes"
            )
        sizes = layout.mean_bytes, layout.stdev_bytes
        if dims and sizes != (math.prod(dims) * dtype.itemsize, 0):
            raise ValueError(f"dims {list(dims)} do not make {layout.mean_bytes:g} bytes")
        try:
            check_layout(layout)
        except (WorkloadError, ArithmeticError) as error:
            raise ValueError(str(error)) from None
        return cls(layout, element_type)

    def of_files(self, num_files: int) -> "Recipe":
        """Return the recipe of a dataset with more or fewer files of the same samples."""
        layout = dataclasses.replace(self.layout, num_files=num_files)
        return dataclasses.replace(self, layout=layout)

    def differing(self, wanted: Mapping[str, Any]) -> list[str]:
        """Return the fields that have another value in a tree; those that it lacks fit."""
        own, wanted = self.to_tree(), _plain(wanted)
        names = [name for name in _KEYS if name in wanted and own[name] != wanted[name]]
        if "element_type" in wanted and "element_bytes" in names:
            names.remove("element_bytes")  # it follows from the type
        return names

    def refuse(self, wanted: Mapping[str, Any], folder: Path, *, what: str, remedy: str) -> None:
        """Raise if a tree asks for another dataset than this one in `folder`.

        `what` is "a dataset" or "an unfinished dataset"; `remedy` stands before the keys to set.
        """
        names = self.differing(wanted)
        if not names:
            return
        own = self.to_tree()
        differences = ", and ".join(
            f"{_KEYS[name]} is {own[name]}, the workload's is {wanted[name]}" for name in names
        )
        keys = " ".join(word(key, value) for key, value in self._keys_of(names).items())
        raise DatasetError(
            f"{folder} holds {what} of {self.describe()}: {differences}; {remedy} {keys}"
        )

    def keys_for(self, workload: Workload) -> dict[str, Any]:
        """Return the keys, with values, that make a workload's dataset this one."""
        number = {"dataset.num_files_train": self.layout.num_files}
        wanted = Recipe.of(workload.with_keys(number)).to_tree()
        return number | self._keys_of(self.differing(wanted))

    def _keys_of(self, names: list[str]) -> dict[str, Any]:
        """Return the workload's keys, with values, that make these fields fit this recipe."""
        own, keys = self.to_tree(), set(names)
        sizes = {"dims", "mean_bytes", "stdev_bytes"}
        if self.layout.dims and keys & sizes:
            keys = keys - sizes | {"dims"}  # which decide the sizes
        elif "dims" in keys:
            keys |= sizes
        if "element_bytes" in keys:
            keys = keys - {"element_bytes"} | {"element_type"}
        return {_KEYS[name]: own[name] for name in _KEYS if name in keys}

    def describe(self) -> str:
        """Return "6 npz files img_* of 1 sample, mean 5,000 bytes, uint8, seed 0"."""
        layout = self.layout
        stdev = f" (stdev {layout.stdev_bytes:,.0f})" if layout.stdev_bytes else ""
        shape = f" of shape {list(layout.dims)}" if layout.dims else ""
        return (
            f"{layout.num_files:,} {layout.format} files {layout.prefix}_* of "
            f"{counted(layout.samples_per_file, 'sample')}{shape}, "
            f"{layout.mean_bytes:,.0f} bytes each{stdev}, {self.element_type}, seed {layout.seed}"
        )


def _plain(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields as `to_tree` has them."""
    columns = [
        column if isinstance(column, dict) else column.model_dump() for column in tree["columns"]
    ]
    lists = {key: [*value] for key, value in tree.items() if isinstance(value, tuple)}
    return {**tree, **lists, "columns": columns}
