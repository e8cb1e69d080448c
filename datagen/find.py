"""A data folder alone: the workload that its dataset was written for, and its files as they are."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dlemu.config.compose import known_workloads
from dlemu.config.model import Workload, load_workload
from dlemu.datagen.listing import WORK
from dlemu.datagen.manifest import read_manifest, read_plan
from dlemu.datagen.prepare import PLAN
from dlemu.datagen.recipe import Recipe
from dlemu.errors import WorkloadError
from dlemu.storage.s3.location import in_bucket

_NO_SHAPE = {
    f"dataset.{key}" for key in ("num_files_train", "seed", "file_prefix", "num_subfolders_train")
}
"""Keys of a dataset that say nothing about its samples."""
_MOST_BELOW = 100
"""So many entries of a folder are looked into."""


def find_workload(folder: Path) -> str:
    """Return what `workload=` takes for the dataset in a folder, whole or unfinished.

    Raises:
        WorkloadError: nobody knows; the line asks for workload=.
        DatasetError: the manifest is damaged.
    """
    stored = _stored(folder)
    if stored is None:
        if named := named_below(folder):
            raise WorkloadError(f"{folder} holds no dataset of dlemu's; {named}")
        what = "holds no dataset of dlemu's" if folder.is_dir() else "is not there"
        raise _unknown(f"{folder} {what}, so nothing says which workload to take")
    origin = stored[1]
    if origin is None:
        raise _unknown(f"{folder} does not say for which workload it was written")
    if origin not in known_workloads() and not Path(origin).is_file():
        raise _unknown(f"{folder} was written for workload={origin}, which is not there")
    return origin


def named_below(folder: Path) -> str:
    """Return "name FOLDER/a, which holds one" for a dataset one level below; "" if there is none.

    Raises:
        DatasetError: its manifest is damaged.
    """
    below = dataset_below(folder)
    return "" if below == folder else f"name {below}, which holds one"


def dataset_below(folder: Path, name: str = "") -> Path:
    """Return a folder one level below that holds a dataset, `name` before others.

    That is the folder itself if it holds one, or none below does.

    Raises:
        DatasetError: a manifest is damaged.
    """
    if _stored(folder) is None:
        for each in folders_below(folder, name):
            if _stored(each) is not None:
                return each
    return folder


def folders_below(folder: Path, name: str = "") -> list[Path]:
    """Return the folders one level below, `name` before others; of very many only some."""
    entries: list[Path] = []
    with suppress(OSError):
        entries = sorted(folder.iterdir(), key=lambda path: (path.name != name, path.name))
    return [each for each in entries[:_MOST_BELOW] if each.is_dir()]


def as_it_is(workload: Workload, folder: Path, given: Mapping[str, str]) -> Workload:
    """Return the workload with the dataset in a folder, whose files stay as they are.

    Keys that were `given` keep their values. Without a dataset of dlemu's, only the folder is set.

    Raises:
        WorkloadError: the dataset is another workload's.
        DatasetError: the manifest is damaged.
    """
    workload = workload.with_keys(
        {"dataset.data_folder": str(folder), "storage.storage_root": "./"}
    )
    refuse_other(workload)
    stored = _stored(folder)
    if stored is None:
        return workload
    keys = stored[0].keys_for(workload)
    return workload.with_keys({key: keys[key] for key in keys if key not in given})


def refuse_other(workload: Workload) -> None:
    """Refuse a workload whose data folder holds the dataset of another one.

    Rows of one network share their samples; so do workloads whose keys describe this dataset.

    Raises:
        WorkloadError: the dataset is another workload's.
        DatasetError: the manifest is damaged.
    """
    if not workload.dataset.data_folder or in_bucket(folder := workload.data_folder):
        return
    stored = _stored(folder) if os.path.isdir(folder) else None
    if stored is None or stored[1] is None or not _shape(stored[0], workload):
        return
    try:
        written_for = load_workload(stored[1])
        asked = load_workload(workload.made_from)
    except (WorkloadError, OSError):  # nobody knows; what is read differs, and the verdict says so
        return
    if _shape(Recipe.of(_numbered(asked)), written_for):
        raise WorkloadError(
            f"{folder} holds a {written_for.name} dataset; leave workload= out, or name another "
            "folder"
        )


def _shape(recipe: Recipe, workload: Workload) -> set[str]:
    """Return the keys of a workload's samples that differ from those of a recipe."""
    return set(recipe.keys_for(workload)) - _NO_SHAPE


def _numbered(workload: Workload) -> Workload:
    """Return the workload with a number of files, where the rule would say it."""
    auto = workload.dataset.num_files_train == "auto"
    return workload.with_keys({"dataset.num_files_train": 1}) if auto else workload


def _stored(folder: Path) -> tuple[Recipe, str | None] | None:
    """Return the recipe in a folder, and the workload that it was written for if that is known."""
    manifest = read_manifest(folder)
    if manifest is not None:
        return manifest.recipe, manifest.workload
    plan = read_plan(folder / WORK / PLAN)
    return None if plan is None else (plan.recipe, plan.workload)


def _unknown(why: str) -> WorkloadError:
    return WorkloadError(
        f"{why}; add workload=NAME (dlemu help workloads lists them) or a file.yaml"
    )
