"""The manifest of a complete dataset; the plan and the journals of an unfinished one.

    dlemu.json       the recipe that the files' bytes follow from
    dlemu.files.npy  the size and the checksum of each file

dlemu.json is written last: where it is, the dataset is complete.

A journal tells which files are written, in entries of 16 bytes, little-endian: int64 file number,
uint32 CRC-32C of the file, uint32 check over both. A killed writer may leave half an entry, which
`check` reveals.
"""

import dataclasses
import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError
from pydantic_core import from_json

from dlemu.config.model import access_of
from dlemu.config.sections import Section
from dlemu.datagen.recipe import VERSION, Count, Recipe, StoredRecipe
from dlemu.dataset.layout import Layout, Samples
from dlemu.errors import DatasetError
from dlemu.formats import FORMATS
from dlemu.storage.atomic import create, replacing, sync_folder, write_atomically
from dlemu.storage.regular import check_regular, open_regular, read_regular
from dlemu.storage.s3.location import Access, ObjectPath, in_bucket
from dlemu.storage.s3.store import MissingError, store_of
from dlemu.units import counted, format_bytes

MANIFEST = "dlemu.json"
FILES = "dlemu.files.npy"
FILE_TYPE = np.dtype([("bytes", "<i8"), ("crc32c", "<u4")])
_ENTRY = np.dtype([("file", "<i8"), ("crc32c", "<u4"), ("check", "<u4")])
_ENTRIES_AT_ONCE = 1 << 16
Origin = Annotated[str, Field(max_length=4096)]
"""made_from of the workload that wrote the dataset."""
REMEDY = "restore it from a copy, or generate the dataset anew in another dataset.data_folder"


class _StoredManifest(Section):
    """`dlemu.json`."""

    manifest: Annotated[int, Field(ge=VERSION, le=VERSION)]
    dataset: StoredRecipe
    num_samples: Count
    num_bytes: Count
    checksum: Literal["crc32c"]
    files: Literal["dlemu.files.npy"]
    workload: Origin | None = None


class _StoredPlan(Section):
    """The recipe of an unfinished dataset."""

    manifest: Annotated[int, Field(ge=VERSION, le=VERSION)]
    dataset: StoredRecipe
    extends: Count | None
    workload: Origin | None = None


@dataclass(frozen=True, eq=False)
class Manifest:
    """A complete dataset."""

    recipe: Recipe
    files: NDArray[np.void]
    """FILE_TYPE (files,): each file's bytes and CRC-32C; a memory map of dlemu.files.npy."""
    num_bytes: int
    """Of all files, without indexes."""
    files_written: int = 0
    """By the call of `generate` that returned it."""
    workload: str | None = None
    """Workload.made_from of the workload that it was written for; None if unknown."""

    @property
    def layout(self) -> Layout:
        """The files' names, and the samples in each."""
        return self.recipe.layout

    def describe(self) -> str:
        """Return "168 npz files of 1 sample, 22.9 GiB, seed 0; 3 were written now"."""
        layout, num_samples = self.layout, self.layout.samples_per_file
        samples = "1 sample" if num_samples == 1 else f"{num_samples} samples"
        now = {
            0: "complete already, nothing was written",
            layout.num_files: "all written now",
        }.get(self.files_written, f"{self.files_written:,} written now, the others were there")
        return (
            f"{counted(layout.num_files, f'{layout.format} file')} of "
            f"{samples}, {format_bytes(self.num_bytes)}, seed {layout.seed}; {now}"
        )

    def check(self, layout: Layout, folder: Path) -> None:
        """Raise DatasetError if this is not the dataset of that layout."""
        wanted = dataclasses.asdict(layout)
        longer = layout.num_files > self.layout.num_files and not in_bucket(folder)
        extend = longer and self.recipe.differing(wanted) == ["num_files"]
        other = "extend it with dlemu datagen" if extend else "use another dataset.data_folder"
        self.recipe.refuse(wanted, folder, what="a dataset", remedy=f"{other}, or set")

    def to_json(self) -> bytes:
        """Return the content of dlemu.json."""
        tree = {
            "manifest": VERSION,
            "dataset": self.recipe.to_tree(),
            "num_samples": self.layout.num_samples,
            "num_bytes": self.num_bytes,
            "checksum": "crc32c",
            "files": FILES,
            **_known(self.workload),
        }
        return json.dumps(tree, indent=1).encode() + b"\n"


def write_manifest(
    folder: Path, recipe: Recipe, crcs: NDArray[np.uint32], workload: str | None = None
) -> None:
    """Write both files, so that they survive a power failure; dlemu.json last.

    `crcs` has the checksum of each file. Sizes follow from the recipe, and are never all in memory.
    """
    num_bytes = 0
    with replacing(folder / FILES) as partial, open(partial, "wb", opener=create) as file:
        header = {"descr": FILE_TYPE.descr, "fortran_order": False, "shape": crcs.shape}
        np.lib.format.write_array_header_1_0(file, header)
        for first, [sizes, *_] in recipe.layout.size_pieces():
            entries = np.empty(len(sizes), FILE_TYPE)
            entries["bytes"], entries["crc32c"] = sizes, crcs[first : first + len(sizes)]
            file.write(entries.data)
            num_bytes += int(sizes.sum())
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)
    manifest = Manifest(recipe, np.zeros(0, FILE_TYPE), num_bytes, workload=workload)
    write_atomically(folder / MANIFEST, manifest.to_json())
    sync_folder(folder)


def read_manifest(
    folder: Path, access: Access | None = None, *, with_files: bool = True
) -> Manifest | None:
    """Return the manifest of the dataset in `folder`; None if it has none.

    `access` is that of a bucket. Without `with_files` its second object is not read: `files` is
    empty.
    """
    path = folder / MANIFEST
    tree = _read_json(path, access)
    if tree is None:
        return None
    try:
        stored = _StoredManifest.model_validate(tree)
        recipe = Recipe.stored(stored.dataset)
        if stored.num_samples != recipe.layout.num_samples or stored.num_bytes < stored.num_samples:
            raise ValueError("num_samples or num_bytes is not that of the files")
    except ValueError as error:
        raise _damaged(path, error) from None
    files = np.zeros(0, FILE_TYPE)
    if with_files:
        files = _read_files(folder / FILES, recipe.layout.num_files, access)
    return Manifest(recipe, files, stored.num_bytes, workload=stored.workload)


def _known(workload: str | None) -> dict[str, str]:
    return {"workload": workload} if workload else {}


def _read_files(path: Path, num_files: int, access: Access | None) -> NDArray[np.void]:
    """Return each file's bytes and checksum."""
    try:
        if in_bucket(path):
            files: NDArray[np.void] = np.load(io.BytesIO(_read(path, access)))
        else:
            check_regular(path)
            files = np.lib.format.open_memmap(path, mode="r")
        if files.dtype != FILE_TYPE or files.shape != (num_files,):
            raise ValueError(f"it does not fit {MANIFEST}")
        return files
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing; {REMEDY}") from None
    # All that NumPy raises for a damaged header.
    except (
        ValueError,
        TypeError,
        SyntaxError,
        ArithmeticError,
        MemoryError,
        TokenError,
        EOFError,
    ) as error:
        raise _damaged(path, error) from None


@dataclass(frozen=True)
class Plan:
    """What an unfinished dataset will be."""

    recipe: Recipe
    extends: int | None = None
    """Number of files of the smaller dataset that is extended: some may still have its names."""
    workload: str | None = None
    """As in the manifest."""

    def to_json(self) -> bytes:
        """Return it as it is written."""
        tree = {
            "manifest": VERSION,
            "dataset": self.recipe.to_tree(),
            "extends": self.extends,
            **_known(self.workload),
        }
        return json.dumps(tree).encode()

    def write(self, path: Path) -> None:
        """Write it as JSON, atomically."""
        write_atomically(path, self.to_json())


def read_plan(path: Path, access: Access | None = None) -> Plan | None:
    """Return the plan of an unfinished dataset; None if there is none."""
    tree = _read_json(path, access)
    if tree is None:
        return None
    try:
        stored = _StoredPlan.model_validate(tree)
        if stored.extends is not None and stored.extends >= stored.dataset.num_files:
            raise ValueError(f"{stored.extends} files are not extended to fewer")
        recipe = Recipe.stored(stored.dataset)
        return Plan(recipe, stored.extends, stored.workload)
    except ValueError as error:
        raise _damaged(path, error) from None


def to_entries(files: Samples, crcs: NDArray[np.uint32]) -> bytes:
    """Return the entries of files, int64 (files,), with their checksums, uint32 (files,)."""
    entries = np.zeros(len(files), _ENTRY)
    entries["file"], entries["crc32c"] = files, crcs
    entries["check"] = _check(entries)
    return entries.tobytes()


def read_journals(folder: Path, num_files: int) -> tuple[NDArray[np.bool_], NDArray[np.uint32]]:
    """Return which files are in the folder's journals, and their checksums; both (num_files,)."""
    known, crcs = np.zeros(num_files, np.bool_), np.zeros(num_files, np.uint32)
    for path in folder.glob("*.journal"):
        with open(open_regular(path), "rb") as journal:
            while len(entries := np.fromfile(journal, _ENTRY, _ENTRIES_AT_ONCE)):
                file = entries["file"]
                is_ours = (file >= 0) & (file < num_files)
                entries = entries[(entries["check"] == _check(entries)) & is_ours]
                known[entries["file"]] = True
                crcs[entries["file"]] = entries["crc32c"]
    return known, crcs


def _check(entries: NDArray[np.void]) -> NDArray[np.uint32]:
    """Return 32 bits that depend on the file number and on the checksum of each entry."""
    mixed = entries["file"].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ entries["crc32c"]
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    check: NDArray[np.uint32] = (mixed >> np.uint64(32)).astype(np.uint32)
    return check


def _read(path: Path, access: Access | None) -> bytes:
    """Return the bytes of a file, or of an object.

    Raises:
        OSError: it is missing, or cannot be read.
    """
    if not isinstance(path, ObjectPath):
        return read_regular(path)
    try:
        return store_of(access or access_of(), 0, path.bucket).get_whole(path.key)
    except MissingError:
        raise FileNotFoundError(path) from None


def _read_json(path: Path, access: Access | None) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if the file is not there."""
    try:
        tree = from_json(_read(path, access))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise _damaged(path, error) from None
    if not isinstance(tree, dict):
        raise _damaged(path, ValueError("it holds no JSON object"))
    version = tree.get("manifest")
    if isinstance(version, int) and version != VERSION:
        raise DatasetError(
            f"{path} is of version {version}, this dlemu reads version {VERSION} alone; take the "
            "dlemu that wrote it, or generate the dataset anew in another dataset.data_folder"
        )
    stored = tree.get("dataset")
    name = stored.get("format", "") if isinstance(stored, dict) else ""
    # A file must not say what is imported.
    if isinstance(name, str) and name and not FORMATS.trusts(name):
        raise DatasetError(
            f"{path} is of format {name[:80]!a}, which dlemu does not know; if it is a module of "
            "yours, say so: add workload=NAME and dataset.format=MODULE"
        )
    return tree


def _damaged(path: Path, error: BaseException) -> DatasetError:
    text = str(error)
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        value = "" if first["type"] == "missing" else f", got {str(first['input'])[:80]}"
        text = f"{place}: {first['msg']}{value}"
    shown = ascii(" ".join(text.split()))[1:-1]  # the file may hold anything
    return DatasetError(f"{path} is damaged ({shown[:200]}); {REMEDY}")
