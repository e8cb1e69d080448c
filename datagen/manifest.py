"""What a finished dataset is: all that its bytes follow from, and each file's size and checksum.

`dlemu.json` says it for people and programs, `dlemu.files.npy` for each file. The first is written
last of all: where it is, the dataset is whole.
"""

import dataclasses
import functools
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError
from pydantic_core import from_json

from dlemu.dataset.layout import Layout, Samples, check_layout, layout_of
from dlemu.errors import DatasetError, WorkloadError
from dlemu.formats import FORMATS, FileSamples, tfrecord
from dlemu.storage.regular import check_regular, read_regular
from dlemu.units import ceil_div, counted, format_bytes
from dlemu.workload.commands import word
from dlemu.workload.model import Workload
from dlemu.workload.sections import FileName, FormatName, Section

MANIFEST = "dlemu.json"
FILES = "dlemu.files.npy"
FILE_TYPE = np.dtype([("bytes", "<i8"), ("crc32c", "<u4")])
_VERSION = 2
_SAMPLES_AT_ONCE = 1 << 16
_MOST_SAMPLES = 1 << 34
_MOST_SAMPLE_BYTES = 1 << 42
_Count = Annotated[int, Field(ge=1, le=1 << 62)]
_MOST_AXES = 30
"""Of a sample; HDF5 takes 32, of which the samples and a column are two."""

# Which workload key decides a field of the layout.
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
}


class _StoredRecipe(Section):
    """A recipe's fields as JSON has them, each with its bounds."""

    format: FormatName
    num_files: Annotated[int, Field(ge=1, le=_MOST_SAMPLES)]
    samples_per_file: Annotated[int, Field(ge=1, le=_MOST_SAMPLES)]
    mean_bytes: Annotated[float, Field(ge=1, le=_MOST_SAMPLE_BYTES)]
    stdev_bytes: Annotated[float, Field(ge=0, le=_MOST_SAMPLE_BYTES)]
    element_bytes: _Count
    seed: Annotated[int, Field(ge=0)]
    prefix: FileName
    num_subfolders: Annotated[int, Field(ge=0, le=_MOST_SAMPLES)]
    element_type: str
    dims: Annotated[tuple[_Count, ...], Field(strict=False, max_length=_MOST_AXES)]


class _StoredManifest(Section):
    """`dlemu.json`."""

    manifest: Annotated[int, Field(ge=1, le=_VERSION)]
    dataset: _StoredRecipe
    num_samples: _Count
    num_bytes: _Count
    checksum: Literal["crc32c"]
    files: Literal["dlemu.files.npy"]


class _StoredPlan(Section):
    """The recipe of an unfinished dataset."""

    manifest: Annotated[int, Field(ge=1, le=_VERSION)]
    dataset: _StoredRecipe
    extends: _Count | None


@dataclass(frozen=True)
class Recipe:
    """All that a dataset's files follow from, byte for byte."""

    layout: Layout
    element_type: str
    dims: tuple[int, ...]
    version: int = 1
    """Of the manifest; 2: HDF5 files whose samples `records` leads to as well."""

    @classmethod
    def of(cls, workload: Workload) -> Self:
        """Return the recipe of a workload's dataset.

        Raises:
            WorkloadError: sizes cannot be as asked.
        """
        dataset = workload.dataset
        version = _VERSION if dataset.format == "hdf5" else 1
        return cls(layout_of(workload), dataset.record_element_type, dataset.record_dims, version)

    def file_samples(self, file: int) -> FileSamples:
        """Return the samples of one file."""
        dtype = np.dtype(self.element_type)
        samples = self.layout.samples_of(file)
        return FileSamples(samples, self.sizes(file), dtype, self.dims, self.version > 1)

    def sizes(self, file: int) -> Samples:
        """Return the payload bytes of a file's samples, int64 (samples,)."""
        group, place = divmod(file, _files_at_once(self.layout))
        sizes: Samples = _sizes_of_files(self.layout, group)[place]
        return sizes

    def write_index(self, file: int) -> bytes | None:
        """Return the content of a file's index, None where the format has none."""
        if self.layout.format != "tfrecord":
            return None
        return tfrecord.index(self.sizes(file))

    def file_sizes(self) -> Samples:
        """Return the bytes of each file, int64 (files,)."""
        return self._per_file(FORMATS[self.layout.format].file_bytes)

    def index_sizes(self) -> Samples | None:
        """Return the bytes of each index, int64 (files,); None where the format has none."""
        return self._per_file(tfrecord.index_bytes) if self.layout.format == "tfrecord" else None

    def _per_file(self, count: Callable[[Samples], Samples]) -> Samples:
        groups = range(ceil_div(self.layout.num_files, _files_at_once(self.layout)))
        return np.concatenate([count(_sizes_of_files(self.layout, group)) for group in groups])

    def to_tree(self) -> dict[str, Any]:
        """Return plain values, as JSON has them."""
        return dataclasses.asdict(self.layout) | {
            "element_type": self.element_type,
            "dims": list(self.dims),
        }

    @classmethod
    def stored(cls, stored: _StoredRecipe, version: int) -> Self:
        """Return what `to_tree` made plain.

        Raises:
            ValueError: no dataset can be like that.
        """
        tree = stored.model_dump()
        element_type, dims = tree.pop("element_type"), tree.pop("dims")
        layout = Layout(**tree)
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
        if dims and (math.prod(dims) * dtype.itemsize, 0) != (
            tree["mean_bytes"],
            tree["stdev_bytes"],
        ):
            raise ValueError(f"dims {list(dims)} do not make {tree['mean_bytes']:g} bytes")
        try:
            check_layout(layout)
        except (WorkloadError, ArithmeticError) as error:
            raise ValueError(str(error)) from None
        return cls(layout, element_type, dims, version)

    def of_files(self, num_files: int) -> "Recipe":
        """Return the recipe of as many files of the same samples."""
        layout = dataclasses.replace(self.layout, num_files=num_files)
        return dataclasses.replace(self, layout=layout)

    def differing(self, wanted: Mapping[str, Any]) -> list[str]:
        """Return the fields in which a tree, or a part of one, asks for another dataset."""
        own, implied = self.to_tree(), "element_bytes" if "element_type" in wanted else None
        names = [name for name in _KEYS if name in wanted and name != implied]
        return [name for name in names if own[name] != wanted[name]]

    def refuse(self, wanted: Mapping[str, Any], folder: Path, *, what: str, remedy: str) -> None:
        """Say whose dataset is in `folder`, if it is another than a tree asks for.

        `what` it is: "a dataset"; `remedy` stands before the keys that fit it.

        Raises:
            DatasetError: with all keys that differ.
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

    def _keys_of(self, names: list[str]) -> dict[str, Any]:
        """Return the workload keys, with values, that make these fields like this recipe's."""
        own = self.to_tree()
        sizes = {"dims", "mean_bytes", "stdev_bytes"}
        if self.dims and sizes & set(names):
            names = [*(name for name in names if name not in sizes), "dims"]
        elif "dims" in names:
            names = [*(name for name in names if name not in sizes), *sorted(sizes)]
        if "element_bytes" in names:
            names = [*(name for name in names if name != "element_bytes"), "element_type"]
        return {_KEYS[name]: own[name] for name in _KEYS if name in names}

    def describe(self) -> str:
        """Return "6 npz files img_* of 1 sample, mean 5,000 bytes, uint8, seed 0"."""
        layout = self.layout
        stdev = f" (stdev {layout.stdev_bytes:,.0f})" if layout.stdev_bytes else ""
        shape = f" of shape {list(self.dims)}" if self.dims else ""
        return (
            f"{layout.num_files:,} {layout.format} files {layout.prefix}_* of "
            f"{counted(layout.samples_per_file, 'sample')}{shape}, "
            f"{layout.mean_bytes:,.0f} bytes each{stdev}, {self.element_type}, seed {layout.seed}"
        )


def _files_at_once(layout: Layout) -> int:
    return max(1, _SAMPLES_AT_ONCE // layout.samples_per_file)


@functools.lru_cache(maxsize=4)
def _sizes_of_files(layout: Layout, group: int) -> Samples:
    """Return the payload bytes of a group of files, int64 (files, samples): drawn together, for
    to draw them costs little, but to begin costs more than to write a small file.
    """
    step = _files_at_once(layout) * layout.samples_per_file
    samples = np.arange(group * step, min((group + 1) * step, layout.num_samples))
    return layout.sizes(samples).reshape(-1, layout.samples_per_file)


@dataclass(frozen=True, eq=False)
class Manifest:
    """A whole dataset."""

    recipe: Recipe
    files: NDArray[np.void]
    """FILE_TYPE (files,): each file's bytes and CRC-32C; on disk until it is looked at."""
    num_bytes: int
    """Of all files, indexes left out."""
    files_written: int = 0
    """By the `generate` that returned it."""

    @property
    def layout(self) -> Layout:
        """The files' names, and the samples in each."""
        return self.recipe.layout

    def describe(self) -> str:
        """Return "168 npz files of 1 sample, 22.9 GiB, seed 0; 3 were written now"."""
        layout = self.layout
        samples = (
            "1 sample" if layout.samples_per_file == 1 else f"{layout.samples_per_file} samples"
        )
        now = {
            0: "complete already, nothing was written",
            layout.num_files: "all written now",
        }.get(self.files_written, f"{self.files_written:,} written now, the others were there")
        return (
            f"{layout.num_files:,} {layout.format} files of {samples}, "
            f"{format_bytes(self.num_bytes)}, seed {layout.seed}; {now}"
        )

    def check(self, layout: Layout, folder: Path) -> None:
        """Raise DatasetError if this is not the dataset of that layout."""
        wanted = dataclasses.asdict(layout)
        longer = layout.num_files > self.layout.num_files
        extend = longer and self.recipe.differing(wanted) == ["num_files"]
        other = "extend it with dlemu datagen" if extend else "use another dataset.data_folder"
        self.recipe.refuse(wanted, folder, what="a dataset", remedy=f"{other}, or set")

    def write(self, folder: Path) -> None:
        """Write it, each of its files at once or not at all."""
        tree = {
            "manifest": self.recipe.version,
            "dataset": self.recipe.to_tree(),
            "num_samples": self.layout.num_samples,
            "num_bytes": self.num_bytes,
            "checksum": "crc32c",
            "files": FILES,
        }
        with open(folder / f"{FILES}.partial", "wb") as file:
            np.save(file, self.files)
            os.fsync(file.fileno())
        os.rename(folder / f"{FILES}.partial", folder / FILES)
        sync_folder(folder)
        write_whole(folder / MANIFEST, json.dumps(tree, indent=1).encode() + b"\n")


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of the dataset in `folder`; None if it has none.

    Raises:
        DatasetError: the manifest is damaged, or of a later version.
    """
    path = folder / MANIFEST
    tree = _read_json(path)
    if tree is None:
        return None
    try:
        stored = _StoredManifest.model_validate(tree)
        recipe = Recipe.stored(stored.dataset, stored.manifest)
        if stored.num_samples != recipe.layout.num_samples or stored.num_bytes < stored.num_samples:
            raise ValueError("num_samples or num_bytes is not that of the files")
    except ValueError as error:
        raise _damaged(path, error) from None
    return Manifest(recipe, _read_files(folder / FILES, recipe.layout.num_files), stored.num_bytes)


def _read_files(path: Path, num_files: int) -> NDArray[np.void]:
    """Return each file's bytes and checksum."""
    try:
        check_regular(path)
        files = np.lib.format.open_memmap(path, mode="r")
        if files.dtype != FILE_TYPE or files.shape != (num_files,):
            raise ValueError(f"it does not fit {MANIFEST}")
        return files
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing; {REMEDY}") from None
    # Whatever NumPy makes of a header that is no array's.
    except (ValueError, TypeError, SyntaxError, ArithmeticError, MemoryError, TokenError) as error:
        raise _damaged(path, error) from None


@dataclass(frozen=True)
class Plan:
    """What an unfinished dataset is to be."""

    recipe: Recipe
    extends: int | None = None
    """Number of files of the dataset that it was, whose files have their names yet, or had."""

    def write(self, path: Path) -> None:
        """Write it, at once or not at all."""
        tree = {
            "manifest": self.recipe.version,
            "dataset": self.recipe.to_tree(),
            "extends": self.extends,
        }
        write_whole(path, json.dumps(tree).encode())


def read_plan(path: Path) -> Plan | None:
    """Return the plan of an unfinished dataset; None if there is none.

    Raises:
        DatasetError: it is damaged, or of a later version.
    """
    tree = _read_json(path)
    if tree is None:
        return None
    if isinstance(tree, dict) and "dataset" not in tree:  # of the first version
        tree = {"manifest": 1, "dataset": tree, "extends": None}
    try:
        stored = _StoredPlan.model_validate(tree)
        if stored.extends is not None and stored.extends >= stored.dataset.num_files:
            raise ValueError(f"{stored.extends} files are not extended to fewer")
        return Plan(Recipe.stored(stored.dataset, stored.manifest), stored.extends)
    except ValueError as error:
        raise _damaged(path, error) from None


def _read_json(path: Path) -> Any:
    """Return what a file holds, None if it is not there."""
    try:
        tree = from_json(read_regular(path))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise _damaged(path, error) from None
    version = tree.get("manifest") if isinstance(tree, dict) else None
    if isinstance(version, int) and version > _VERSION:
        raise DatasetError(f"{path} is of version {version}; update dlemu to read it")
    return tree


def _damaged(path: Path, error: BaseException) -> DatasetError:
    text = str(error)
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        value = "" if first["type"] == "missing" else f", got {str(first['input'])[:80]}"
        text = f"{place}: {first['msg']}{value}"
    shown = ascii(" ".join(text.split()))[1:-1]  # what a file holds may be no text
    return DatasetError(f"{path} is damaged ({shown[:200]}); {REMEDY}")


REMEDY = "restore it from a copy, or generate the dataset anew in another dataset.data_folder"


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file at once or not at all, so that it outlives a power failure."""
    partial = path.with_name(f"{path.name}.partial")
    with open(partial, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(partial, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder outlive a power failure."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
