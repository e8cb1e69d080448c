"""Finds the dataset of a job: by its manifest, or else by a look at its files."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from dlemu.datagen.manifest import read_manifest
from dlemu.datagen.survey import survey
from dlemu.dataset.layout import Dataset, layout_of
from dlemu.dataset.rule import datagen_command, resolve_auto
from dlemu.errors import DatasetError
from dlemu.storage.pagecache import OnFile
from dlemu.workload.model import Workload
from dlemu.world.world import World


def find_dataset(
    workload: Workload,
    world: World,
    *,
    watch: Callable[[str], AbstractContextManager[object]] = nullcontext,
    at: OnFile = lambda path: None,
) -> Dataset:
    """Return the dataset in the workload's data folder. All ranks call it; rank 0 looks.

    `watch` is entered on rank 0 with a text that says what rank 0 does; `at` is called with each
    file before it is opened.
    """
    auto = workload.dataset.num_files_train == "auto"
    workload = resolve_auto(workload, world)

    def look() -> Dataset:
        with watch(f"while looking at the dataset in {workload.data_folder}"):
            return _look_at(workload, auto, at)

    return world.on_first(look)


def _look_at(workload: Workload, auto: bool, at: OnFile) -> Dataset:
    """Return the dataset; with `auto`, one with more files than the workload's will do."""
    folder = workload.data_folder
    manifest = read_manifest(folder)
    if manifest is not None:
        have = manifest.layout.num_files
        if auto:
            if have < workload.num_files:
                raise DatasetError(
                    f"{folder} has {have:,} files, dataset.num_files_train=auto asks for "
                    f"{workload.num_files:,} (dlemu datasize says why); extend it with dlemu "
                    f"datagen, or set dataset.num_files_train={have}"
                )
            workload = workload.with_keys({"dataset.num_files_train": have})
        manifest.check(layout_of(workload), folder)
        return Dataset.of(workload)
    if not folder.is_dir():
        raise DatasetError(
            f"dataset.data_folder {folder} is not there; generate it: "
            f"{datagen_command(workload, workload.num_files)}"
        )
    found = survey(folder, workload, at=at)
    return Dataset(workload, found, False, (f"no manifest in {folder}: {found}",))
