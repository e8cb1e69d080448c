"""Before a dataset is written: what is there, what is missing, and whether it may be written.

Files of another dataset, or of unknown origin, are never touched.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dlemu.datagen.manifest import (
    FILE_TYPE,
    MANIFEST,
    PLAN,
    Manifest,
    Plan,
    differing,
    read_journals,
    read_manifest,
    read_plan,
    refuse,
    to_entries,
)
from dlemu.datagen.target import WORK, Folder, Listing
from dlemu.dataset.layout import Layout, Samples
from dlemu.errors import DatasetError, RunError
from dlemu.storage.owned import disk_bytes, room
from dlemu.storage.s3.location import in_bucket
from dlemu.units import PAGE_BYTES, counted, format_bytes, round_up

_DONE = f"{WORK}/done.journal"
_MANY = 1_000_000
"""From so many files on, looking at them takes long."""


@dataclass(frozen=True)
class Todo:
    """What is left to do for a dataset."""

    layout: Layout
    missing: Samples
    """Files that must be written, int64 (files,)."""
    unknown: Samples = field(default_factory=lambda: np.zeros(0, np.int64))
    """Objects that are there, and whose checksums must be computed once more."""
    older: Layout | None = None
    """The smaller dataset that is extended; its files get the names of the larger one."""
    changes: bool = True
    """Whether anything is left to write."""


@dataclass(frozen=True)
class Examined:
    """A data folder as it is, before anything is changed."""

    todo: Todo
    done: bytes
    """Journal entries of the files that are complete."""
    partial: tuple[str, ...]
    """Temporary files of an interrupted datagen, below the folder."""
    sizes: Samples
    """Bytes of each file and below them of its indexes, int64 (1 + indexes, files)."""

    @property
    def num_bytes(self) -> int:
        """Bytes that the missing files take on the disk."""
        return int(round_up(self.sizes[:, self.todo.missing]).sum())

    def check_space(self, folder: Path) -> None:
        """Refuse a dataset that does not fit on the disk of a folder, which may be missing."""
        if not self.todo.changes or in_bucket(folder):
            return
        room(
            folder,
            self.sizes.shape[1] * FILE_TYPE.itemsize + self.num_bytes,
            "free space, use another dataset.data_folder, or lower dataset.num_files_train",
            what=counted(len(self.todo.missing), f"{self.todo.layout.format} file"),
        )


def examine(target: Folder, wanted: Layout) -> Examined:
    """Return what is there and what is missing; refuse to write where others' files are."""
    folder = target.path
    manifest = read_manifest(folder, target.access)
    plan = read_plan(target) if manifest is None else None
    layout, older = choose_layout(folder, wanted, manifest, plan)
    if layout.num_files >= _MANY and not in_bucket(folder):
        _check_capacity(folder, layout)
    listing = target.listing(layout, *([] if older is None else [older]))
    refuse_strays(folder, listing, layout, known=manifest is not None or plan is not None)
    if older is not None:
        _refuse_taken_names(folder, listing, layout, extending=manifest is not None)

    sizes = layout.all_sizes()
    whole = (_joined(listing.found) == sizes).all(axis=0)
    if manifest is None:
        known, crcs = read_journals(target, layout.num_files)
    else:
        known = np.arange(layout.num_files) < manifest.layout.num_files
        crcs = np.pad(manifest.files["crc32c"], (0, layout.num_files - len(manifest.files)))
    missing = np.flatnonzero(~(whole & known))
    done, unknown = np.flatnonzero(whole & known), missing[:0]
    if in_bucket(folder):  # what is there was put whole
        missing, unknown = np.flatnonzero(~whole), np.flatnonzero(whole & ~known)
    todo = Todo(layout, missing, unknown, older, manifest is None or len(missing) > 0)
    return Examined(todo, to_entries(done, crcs[done]), listing.partial, sizes)


def prepare(target: Folder, wanted: Layout, workload: str = "") -> Todo:
    """Make the folders, start the journal, and return what is left to do.

    `workload` is the origin of the workload that the dataset is written for.
    """
    found = examine(target, wanted)
    todo = found.todo
    found.check_space(target.path)
    # The empty folder of an evaluation set: without it DLIO does not train.
    target.make([Path("valid")])
    target.delete(*found.partial)
    if todo.changes:
        target.make(dataset_folders(todo.layout))
        extends = None if todo.older is None else todo.older.num_files
        plan = Plan(dataset=todo.layout, extends=extends, workload=workload or None)
        target.put(_DONE, [found.done])  # in place of all other journals
        target.put(PLAN, [plan.to_json()])
        target.delete(*(name for name in target.journals() if name != _DONE))
        # From here on the dataset is unfinished: it has lost files, or files get other names.
        target.delete(MANIFEST)
    return todo


def choose_layout(
    folder: Path, wanted: Layout, manifest: Manifest | None, plan: Plan | None
) -> tuple[Layout, Layout | None]:
    """Return the layout to write by, and the layout of the smaller dataset that it extends."""
    other = "use another dataset.data_folder, or set"
    if manifest is not None:
        found = manifest.layout
        if differing(found, wanted) != ["num_files"]:
            refuse(found, wanted, folder, what="a dataset", remedy=other)
            return found, None
        if in_bucket(folder) or wanted.num_files < found.num_files:
            rule = "datagen extends a dataset, and never makes it smaller"
            rule = "a dataset in a bucket is not extended" if in_bucket(folder) else rule
            refuse(found, wanted, folder, what="a dataset", remedy=f"{rule}; {other}")
        return wanted, found
    if plan is None:
        return wanted, None
    other = "use another dataset.data_folder, or finish that one with"
    refuse(plan.dataset, wanted, folder, what="an unfinished dataset", remedy=other)
    older = None if plan.extends is None else replace(plan.dataset, num_files=plan.extends)
    return plan.dataset, older


def _joined(found: Sequence[Samples]) -> Samples:
    """Return the files' sizes, of files that still have the name in a smaller dataset, too."""
    newest = found[0].copy()
    for old in found[1:]:
        same = newest[:, : old.shape[1]]
        np.maximum(same, old, out=same)
    return newest


def refuse_strays(folder: Path, listing: Listing, layout: Layout, *, known: bool) -> None:
    """Refuse to write beside other files; `known`: a manifest or a plan tells what is in these."""
    if listing.strays:
        more = len(listing.strays) - 1
        others = f" (and {counted(more, 'other file')})" if more else ""
        raise DatasetError(
            f"{folder / listing.strays[0]}{others} is no file of this dataset; move it elsewhere, "
            "or use another dataset.data_folder"
        )
    num_files = int((listing.found[0][0] >= 0).sum())
    if num_files and not known:
        raise DatasetError(
            f"{folder}/train holds {counted(num_files, f'{layout.format} file')} of these "
            "names and no manifest, so nobody knows what is in them; use another "
            "dataset.data_folder, or restore dlemu.json and dlemu.files.npy"
        )


def _refuse_taken_names(folder: Path, listing: Listing, layout: Layout, *, extending: bool) -> None:
    """Refuse to rename a file to a name that another file has.

    While the smaller dataset is still complete (`extending`), no file may have a new name. When an
    interrupted extension continues, only a file that exists under both names is refused.
    """
    for row, (newer, older) in enumerate(zip(*listing.found, strict=True)):
        there = newer >= 0
        if not extending:
            there[: len(older)] &= older >= 0
            there[len(older) :] = False
        if there.any():
            file = int(np.argmax(there))
            taken = folder / (layout.path(file), *layout.index_paths(file))[row]
            raise DatasetError(
                f"{taken} has a name that a file of the larger dataset will have; move it elsewhere"
            )


def dataset_folders(layout: Layout) -> list[Path]:
    """Return the folders of a dataset's files, below its own; those in a folder come after it."""
    first = range(min(layout.num_files, max(1, layout.num_subfolders)))
    paths = [layout.path(file) for file in first]
    paths += [path for file in first for path in layout.index_paths(file)]
    return sorted({up for path in paths for up in Path(path).parents})


def _check_capacity(folder: Path, layout: Layout) -> None:
    """Refuse a dataset that is larger than the whole file system, before anything is looked at."""
    have, _ = disk_bytes(folder)
    need = max(layout.num_files * PAGE_BYTES, round(layout.num_samples * layout.mean_bytes))
    if need > have:
        raise RunError(
            f"{folder} lies on a file system of {format_bytes(have)}, "
            f"{counted(layout.num_files, 'file')} need {format_bytes(need)}; use another "
            "dataset.data_folder, or lower dataset.num_files_train"
        )
