"""The manifest of a complete dataset; the plan and the journals of an unfinished one.

    dlemu.json       the layout that the files' bytes follow from
    dlemu.files.npy  the size and the checksum of each file

dlemu.json is written last: where it is, the dataset is complete.

A journal tells which files are written, in entries of 16 bytes, little-endian: int64 file number,
uint32 CRC-32C of the file, uint32 check over both. A killed writer may leave half an entry, which
`check` reveals.
"""

import dataclasses
import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from dlemu.config.model import Workload
from dlemu.config.published import word
from dlemu.config.types import Strict
from dlemu.datagen.target import PLAN, journals
from dlemu.dataset.layout import MOST_SAMPLES, Count, Layout, Samples, check_layout, layout_of
from dlemu.errors import DatasetError, WorkloadError
from dlemu.findings import Finding, note
from dlemu.formats import FORMATS
from dlemu.storage.files import check_regular
from dlemu.storage.place import Place, place_of
from dlemu.units import counted

VERSION = 3
"""Of the manifest: it changes with the bytes of any file. Others are not read."""
MANIFEST = "dlemu.json"
FILES = "dlemu.files.npy"
FILE_TYPE = np.dtype([("bytes", "<i8"), ("crc32c", "<u4")])
_ENTRY = np.dtype([("file", "<i8"), ("crc32c", "<u4"), ("check", "<u4")])
_READ_AT_ONCE = _ENTRY.itemsize << 16
Origin = Annotated[str, Field(max_length=4096)]
"""made_from of the workload that wrote the dataset."""
REMEDY = "restore it from a copy, or generate the dataset anew in another dataset.data_folder"


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


class _StoredManifest(Strict):
    """`dlemu.json`."""

    manifest: Annotated[int, Field(ge=VERSION, le=VERSION)] = VERSION
    dataset: Layout
    num_samples: Count
    num_bytes: Count
    checksum: Literal["crc32c"] = "crc32c"
    files: Literal["dlemu.files.npy"] = "dlemu.files.npy"
    workload: Origin | None = None


@dataclass(frozen=True, eq=False)
class Manifest:
    """A complete dataset."""

    layout: Layout
    """The files' names, and the samples in each."""
    files: NDArray[np.void]
    """FILE_TYPE (files,): each file's bytes and CRC-32C; a memory map of dlemu.files.npy."""
    num_bytes: int
    """Of all files, without indexes."""
    files_written: int = 0
    """By the call of `generate` that returned it."""
    workload: str | None = None
    """Workload.made_from of the workload that it was written for; None if unknown."""

    def describe(self) -> Finding:
        """Return how many files there are, of what, and how many of them were written now."""
        return note(
            "dataset_written",
            files=self.layout.num_files,
            format=self.layout.format,
            samples_per_file=self.layout.samples_per_file,
            bytes=self.num_bytes,
            seed=self.layout.seed,
            files_written=self.files_written,
        )

    def check(self, layout: Layout, folder: Path) -> None:
        """Raise DatasetError if this is not the dataset of that layout."""
        # A reader asks for bytes, whatever the shape and the type of their elements.
        layout = dataclasses.replace(
            layout, dims=self.layout.dims, element_type=self.layout.element_type
        )
        longer = layout.num_files > self.layout.num_files and place_of(folder).has_paths
        extend = longer and differing(self.layout, layout) == ["num_files"]
        other = "extend it with dlemu datagen" if extend else "use another dataset.data_folder"
        refuse(self.layout, layout, folder, what="a dataset", remedy=f"{other}, or set")

    def to_json(self) -> bytes:
        """Return the content of dlemu.json."""
        stored = _StoredManifest(
            dataset=self.layout,
            num_samples=self.layout.num_samples,
            num_bytes=self.num_bytes,
            workload=self.workload or None,
        )
        return stored.model_dump_json(exclude_none=True, indent=1).encode() + b"\n"


_STORED = TypeAdapter(Layout)


def to_tree(layout: Layout) -> dict[str, Any]:
    """Return the fields as plain values, for JSON."""
    tree: dict[str, Any] = _STORED.dump_python(layout, mode="json")
    return tree


def _check_stored(layout: Layout) -> None:
    """Raise ValueError if the fields of a stored layout contradict each other."""
    if (layout.format == "parquet") != bool(layout.columns and layout.row_group_size):
        raise ValueError("only parquet files have columns and row groups, and all have them")
    if (layout.distribution == "listed") != bool(layout.listed) or [*layout.listed] != sorted(
        layout.listed
    ):
        raise ValueError("the listed sizes are missing, or not in ascending order")
    if layout.num_samples > MOST_SAMPLES:
        raise ValueError(f"{layout.num_samples} samples are more than a dataset has")
    try:
        dtype = np.dtype(layout.element_type)
    except (TypeError, ValueError, SyntaxError):
        raise ValueError(f"element_type {layout.element_type[:80]} is unknown") from None
    if dtype.kind not in "biufc" or dtype.itemsize != layout.element_bytes:
        raise ValueError(
            f"element_type {layout.element_type[:80]} has not {layout.element_bytes} bytes"
        )
    sizes = layout.mean_bytes, layout.stdev_bytes
    if layout.dims and sizes != (math.prod(layout.dims) * dtype.itemsize, 0):
        raise ValueError(f"dims {list(layout.dims)} do not make {layout.mean_bytes:g} bytes")
    try:
        check_layout(layout)
    except (WorkloadError, ArithmeticError) as error:
        raise ValueError(str(error)) from None


def differing(own: Layout, wanted: Layout) -> list[str]:
    """Return the fields in which two layouts differ."""
    names = [name for name in _KEYS if getattr(own, name) != getattr(wanted, name)]
    if "element_type" in names and "element_bytes" in names:
        names.remove("element_bytes")  # it follows from the type
    return names


def refuse(own: Layout, wanted: Layout, folder: Path, *, what: str, remedy: str) -> None:
    """Raise if another dataset is wanted than the one in `folder`, `own`.

    `what` is "a dataset" or "an unfinished dataset"; `remedy` stands before the keys to set.
    """
    names = differing(own, wanted)
    if not names:
        return
    have, asked = to_tree(own), to_tree(wanted)
    differences = ", and ".join(
        f"{_KEYS[name]} is {have[name]}, the workload's is {asked[name]}" for name in names
    )
    keys = " ".join(word(key, value) for key, value in _keys_of(own, names).items())
    raise DatasetError(f"{folder} holds {what} of {_describe(own)}: {differences}; {remedy} {keys}")


def keys_for(layout: Layout, workload: Workload) -> dict[str, Any]:
    """Return the keys, with values, that make a workload's dataset this one."""
    number = {"dataset.num_files_train": layout.num_files}
    return number | _keys_of(layout, differing(layout, layout_of(workload.with_keys(number))))


def _keys_of(layout: Layout, names: list[str]) -> dict[str, Any]:
    """Return the workload's keys, with values, that make these fields fit this layout."""
    own, keys = to_tree(layout), set(names)
    sizes = {"dims", "mean_bytes", "stdev_bytes"}
    if layout.dims and keys & sizes:
        keys = keys - sizes | {"dims"}  # which decide the sizes
    elif "dims" in keys:
        keys |= sizes
    if "element_bytes" in keys:
        keys = keys - {"element_bytes"} | {"element_type"}
    return {_KEYS[name]: own[name] for name in _KEYS if name in keys}


def _describe(layout: Layout) -> str:
    """Return "6 npz files img_* of 1 sample, mean 5,000 bytes, uint8, seed 0"."""
    stdev = f" (stdev {layout.stdev_bytes:,.0f})" if layout.stdev_bytes else ""
    shape = f" of shape {list(layout.dims)}" if layout.dims else ""
    return (
        f"{layout.num_files:,} {layout.format} files {layout.prefix}_* of "
        f"{counted(layout.samples_per_file, 'sample')}{shape}, "
        f"{layout.mean_bytes:,.0f} bytes each{stdev}, {layout.element_type}, seed {layout.seed}"
    )


def write_manifest(
    target: Place, layout: Layout, crcs: NDArray[np.uint32], workload: str | None = None
) -> None:
    """Write both files; dlemu.json last.

    `crcs` has the checksum of each file. Sizes follow from the layout, and are never all in memory.
    """
    num_bytes = 0

    def pieces() -> Iterator[bytes]:
        nonlocal num_bytes
        header = {"descr": FILE_TYPE.descr, "fortran_order": False, "shape": crcs.shape}
        np.lib.format.write_array_header_1_0(head := io.BytesIO(), header)
        yield head.getvalue()
        for first, [sizes, *_] in layout.size_pieces():
            entries = np.empty(len(sizes), FILE_TYPE)
            entries["bytes"], entries["crc32c"] = sizes, crcs[first : first + len(sizes)]
            yield entries.tobytes()
            num_bytes += int(sizes.sum())

    target.put(FILES, pieces())
    manifest = Manifest(layout, np.zeros(0, FILE_TYPE), num_bytes, workload=workload)
    target.put(MANIFEST, [manifest.to_json()])


def read_manifest(folder: Path, access: Any = None, *, with_files: bool = True) -> Manifest | None:
    """Return the manifest of the dataset in `folder`; None if it has none.

    `access` is what the place's `reach` has returned. Without `with_files` the second file is not
    read: `files` is empty.
    """
    path, target = folder / MANIFEST, place_of(folder, access)
    data = _read_json(target, MANIFEST)
    if data is None:
        return None
    try:
        stored = _StoredManifest.model_validate_json(data)
        layout = stored.dataset
        _check_stored(layout)
        if stored.num_samples != layout.num_samples or stored.num_bytes < stored.num_samples:
            raise ValueError("num_samples or num_bytes is not that of the files")
    except ValueError as error:
        raise _damaged(path, error) from None
    files = np.zeros(0, FILE_TYPE)
    if with_files:
        files = _read_files(target, layout.num_files)
    return Manifest(layout, files, stored.num_bytes, workload=stored.workload)


def _read_files(target: Place, num_files: int) -> NDArray[np.void]:
    """Return each file's bytes and checksum."""
    path = target.path / FILES
    try:
        if not target.has_paths:
            files: NDArray[np.void] = np.load(io.BytesIO(target.whole(FILES)))
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


class WritePlan(Strict):
    """The plan of an unfinished dataset, in JSON."""

    manifest: Annotated[int, Field(ge=VERSION, le=VERSION)] = VERSION
    dataset: Layout
    extends: Count | None = None
    """Number of files of the smaller dataset that is extended: some may still have its names."""
    workload: Origin | None = None

    def to_json(self) -> bytes:
        """Return it as it is written."""
        return self.model_dump_json(exclude_none=True).encode()


def read_plan(target: Place) -> WritePlan | None:
    """Return the plan of an unfinished dataset; None if there is none."""
    data = _read_json(target, PLAN)
    if data is None:
        return None
    try:
        plan = WritePlan.model_validate_json(data)
        if plan.extends is not None and plan.extends >= plan.dataset.num_files:
            raise ValueError(f"{plan.extends} files are not extended to fewer")
        _check_stored(plan.dataset)
        return plan
    except ValueError as error:
        raise _damaged(target.path / PLAN, error) from None


def to_entries(files: Samples, crcs: NDArray[np.uint32]) -> bytes:
    """Return the entries of files, int64 (files,), with their checksums, uint32 (files,)."""
    entries = np.zeros(len(files), _ENTRY)
    entries["file"], entries["crc32c"] = files, crcs
    entries["check"] = _check(entries)
    return entries.tobytes()


def read_journals(target: Place, num_files: int) -> tuple[NDArray[np.bool_], NDArray[np.uint32]]:
    """Return which files are in the journals, and their checksums; both (num_files,)."""
    known, crcs = np.zeros(num_files, np.bool_), np.zeros(num_files, np.uint32)
    for name in journals(target):
        with target.open(name) as journal:
            while num := len(data := journal.read(_READ_AT_ONCE)) // _ENTRY.itemsize:
                entries = np.frombuffer(data, _ENTRY, num)
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


def _read_json(target: Place, name: str) -> bytes | None:
    """Return the content of a file with a JSON object; None if the file is not there."""
    path = target.path / name
    try:
        data = target.whole(name)
        tree = from_json(data)
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
        module = name if re.fullmatch(r"[\w.:]{1,80}", name, re.ASCII) else "MODULE"
        raise DatasetError(
            f"{path} is of format {name[:80]!a}, which dlemu does not know; if it is a module of "
            f"yours, say so: add dataset.format={module}"
        )
    return data


def _damaged(path: Path, error: BaseException) -> DatasetError:
    text = str(error)
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        value = "" if first["type"] == "missing" else f", got {str(first['input'])[:80]}"
        text = f"{place}: {first['msg']}{value}"
    shown = ascii(" ".join(text.split()))[1:-1]  # the file may hold anything
    return DatasetError(f"{path} is damaged ({shown[:200]}); {REMEDY}")
