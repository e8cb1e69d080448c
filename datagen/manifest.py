"""What a finished dataset is: all that its bytes follow from, and each file's size and checksum.

`dlemu.json` says it for people and programs, `dlemu.files.npy` for each file. The first is written
last of all: where it is, the dataset is whole.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dlemu.errors import DatasetError
from dlemu.files import Layout, Samples, layout_of
from dlemu.formats import FORMATS, FileSamples, tfrecord
from dlemu.regular import check_regular, read_regular
from dlemu.units import format_bytes
from dlemu.workload import Workload

MANIFEST = "dlemu.json"
FILES = "dlemu.files.npy"
FILE_TYPE = np.dtype([("bytes", "<i8"), ("crc32c", "<u4")])
_VERSION = 1
_SAMPLES_AT_ONCE = 1 << 16

# Which workload key decides a field of the layout.
_KEYS = {
    "format": "dataset.format",
    "num_files": "dataset.num_files_train",
    "samples_per_file": "dataset.num_samples_per_file",
    "mean_bytes": "dataset.record_length_bytes",
    "stdev_bytes": "dataset.record_length_bytes_stdev",
    "element_bytes": "dataset.record_element_type (bytes)",
    "seed": "dataset.seed",
    "prefix": "dataset.file_prefix",
    "num_subfolders": "dataset.num_subfolders_train",
    "element_type": "dataset.record_element_type",
    "dims": "dataset.record_dims",
}


@dataclass(frozen=True)
class Recipe:
    """All that a dataset's files follow from, byte for byte."""

    layout: Layout
    element_type: str
    dims: tuple[int, ...]

    @classmethod
    def of(cls, workload: Workload) -> Self:
        """Return the recipe of a workload's dataset.

        Raises:
            WorkloadError: sizes cannot be as asked.
        """
        dataset = workload.dataset
        return cls(layout_of(workload), dataset.record_element_type, dataset.record_dims)

    def file_samples(self, file: int) -> FileSamples:
        """Return the samples of one file."""
        dtype = np.dtype(self.element_type)
        return FileSamples(self.layout.samples_of(file), self.sizes(file), dtype, self.dims)

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
        groups = range(-(-self.layout.num_files // _files_at_once(self.layout)))
        return np.concatenate([count(_sizes_of_files(self.layout, group)) for group in groups])

    def to_tree(self) -> dict[str, Any]:
        """Return plain values, as JSON has them."""
        return dataclasses.asdict(self.layout) | {
            "element_type": self.element_type,
            "dims": list(self.dims),
        }

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> Self:
        """Return what `to_tree` made plain; any KeyError or TypeError says that it did not."""
        layout = {key.name: tree[key.name] for key in dataclasses.fields(Layout)}
        return cls(Layout(**layout), str(tree["element_type"]), tuple(tree["dims"]))

    def refuse(self, wanted: "Recipe", folder: Path) -> None:
        """Raise DatasetError if the dataset in `folder`, of this recipe, is not the wanted one."""
        _refuse(self.to_tree(), wanted.to_tree(), folder)


def _refuse(found: dict[str, Any], wanted: dict[str, Any], folder: Path) -> None:
    for name, key in _KEYS.items():
        if name in wanted and found[name] != wanted[name]:
            raise DatasetError(
                f"{folder} holds a dataset whose {key} is {found[name]}, the workload's is "
                f"{wanted[name]}; change the workload's, use another dataset.data_folder, or "
                "remove that folder"
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
        _refuse(self.recipe.to_tree(), dataclasses.asdict(layout), folder)

    def write(self, folder: Path) -> None:
        """Write it, each of its files at once or not at all."""
        tree = {
            "manifest": _VERSION,
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
    try:
        tree = json.loads(read_regular(path))
        if tree["manifest"] > _VERSION:
            raise DatasetError(f"{path} is of version {tree['manifest']}; update dlemu to read it")
        recipe = Recipe.from_tree(tree["dataset"])
        check_regular(folder / tree["files"])
        files = np.load(folder / tree["files"], mmap_mode="r")
        if files.dtype != FILE_TYPE or files.shape != (recipe.layout.num_files,):
            raise ValueError(f"{FILES} does not fit")
        return Manifest(recipe, files, int(tree["num_bytes"]))
    except FileNotFoundError as error:
        if error.filename == str(path):
            return None
        raise DatasetError(f"{folder / FILES} is missing; {_REMEDY}") from None
    except (ValueError, KeyError, TypeError, EOFError) as error:
        raise DatasetError(f"{path} is damaged ({error}); {_REMEDY}") from None


_REMEDY = "restore it, or remove the folder and generate the dataset again"


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
