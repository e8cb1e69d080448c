"""Finds the dataset of a job: by its manifest, or else by its file names and a few headers.

And the job of a dataset: the workload that the files in a folder were written for.
"""

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dlemu.config.compose import known_workloads
from dlemu.config.model import Workload, load_workload
from dlemu.config.source import WordSource
from dlemu.datagen.manifest import MANIFEST, keys_for, read_manifest, read_plan
from dlemu.datagen.target import WORK, Folder, left_behind, walk
from dlemu.dataset.layout import Dataset, Layout, amount_of, layout_of
from dlemu.dataset.rule import datagen_command, resolve_auto
from dlemu.errors import DatasetError, WorkloadError
from dlemu.formats import FORMATS, Places, format_of
from dlemu.ranks.world import World
from dlemu.storage.files import open_regular
from dlemu.storage.pagecache import OnFile
from dlemu.storage.s3 import in_bucket
from dlemu.units import ceil_div

_NO_SHAPE = {
    f"dataset.{key}" for key in ("num_files_train", "seed", "file_prefix", "num_subfolders_train")
}
"""Keys of a dataset that say nothing about its samples."""
_MOST_BELOW = 100
"""So many entries of a folder are looked into."""


def find_workload(folder: Path, own_format: str = "") -> str:
    """Return what `workload=` takes for the dataset in a folder, whole or unfinished.

    `own_format` is the user's word on `dataset.format`: a module of his own may be imported, which
    a dataset alone may not ask for. Where the name is a file, the dataset alone says so, not the
    user (`WordSource.FOUND`).

    Raises:
        WorkloadError: nobody knows; the line asks for workload=.
        DatasetError: the manifest is damaged.
    """
    if own_format:
        with suppress(ValueError):  # which is told where the key is checked
            FORMATS[own_format]
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
    keys = keys_for(stored[0], workload)
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
    origin = None if stored is None else stored[1]
    same = origin in (None, workload.made_from)
    if same or stored is None or not _shape(stored[0], workload):
        return
    try:
        written_for = load_workload(str(origin), source=WordSource.FOUND)
        asked = load_workload(workload.made_from, source=workload.source)
    except (WorkloadError, OSError):  # nobody knows; what is read differs, and the verdict says so
        return
    if _shape(layout_of(_numbered(asked)), written_for):
        raise WorkloadError(
            f"{folder} holds a {written_for.name} dataset; leave workload= out, or name another "
            "folder"
        )


def _shape(layout: Layout, workload: Workload) -> set[str]:
    """Return the keys of a workload's samples that differ from those of a layout."""
    return set(keys_for(layout, workload)) - _NO_SHAPE


def _numbered(workload: Workload) -> Workload:
    """Return the workload with a number of files, where the rule would say it."""
    auto = workload.dataset.num_files_train == "auto"
    return workload.with_keys({"dataset.num_files_train": 1}) if auto else workload


def _stored(folder: Path) -> tuple[Layout, str | None] | None:
    """Return the layout in a folder, and the workload that it was written for if that is known."""
    manifest = read_manifest(folder)
    if manifest is not None:
        return manifest.layout, manifest.workload
    plan = read_plan(Folder(folder))
    return None if plan is None else (plan.dataset, plan.workload)


def _unknown(why: str) -> WorkloadError:
    return WorkloadError(
        f"{why}; add workload=NAME (dlemu help workloads lists them) or a file.yaml"
    )


_MOST_SIZES = 512
"""The mean size comes from at most so many files: over a network each takes a round trip."""
_OTHER_MEAN = 0.1
"""Mean sizes that differ by more than this share are of different datasets; demand and AU follow
from the mean. What DLIO rounds (to a square of whole sides) is far less."""
_STDEVS = 3
"""Standard errors by which the mean of drawn sizes may differ by chance."""
_NAME = re.compile(
    r"(?P<prefix>.*?)_?(?P<number>\d+)(?:_of_(?P<count>\d+))?\.(?P<suffix>[a-z0-9_]+)"
)


@dataclass(frozen=True)
class SurveyedLayout(Layout):
    """The layout of files that were found: their own names; sizes are in each file's header."""

    paths: tuple[str, ...] = ()
    """Of each file, below the data folder."""
    num_opened: int = 0
    """Files that were opened; all others are taken to have such headers."""
    largest_bytes: int | None = None
    """Size of the largest file, if memory for batches depends on it; else None."""

    def path(self, file: int) -> str:
        """Return a file's path below the data folder."""
        return self.paths[file]

    def __str__(self) -> str:
        return (
            f"{self.num_files:,} {self.format} files were found, their samples have "
            f"{self.mean_bytes:,.0f} bytes on average; {self.num_opened} were opened, with "
            f"{self.samples_per_file} samples each"
        )


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
        with watch(f"looking at the dataset in {workload.data_folder}"):
            return _look_at(workload, auto, at)

    return world.on_first(look)


def _look_at(workload: Workload, auto: bool, at: OnFile) -> Dataset:
    """Return the dataset; with `auto`, one with more files than the workload's will do."""
    folder, access = workload.data_folder, workload.access
    if folder.is_file():
        raise DatasetError(f"dataset.data_folder {folder} is a file; name the folder of a dataset")
    manifest = read_manifest(folder, access, with_files=access is None)
    if manifest is not None:
        have = manifest.layout.num_files
        if auto:
            if have < workload.num_files:
                extend = "extend it" if access is None else "write another one"
                raise DatasetError(
                    f"{folder} has {have:,} files, dataset.num_files_train=auto asks for "
                    f"{workload.num_files:,} (dlemu datasize says why); {extend} with dlemu "
                    f"datagen, or set dataset.num_files_train={have}"
                )
            workload = workload.with_keys({"dataset.num_files_train": have})
        refuse_other(workload)
        manifest.check(layout_of(workload), folder)
        dataset = Dataset.of(workload)
        return replace(dataset, notes=_amount_of(workload, dataset.layout), access=access)
    if access is not None:
        raise DatasetError(
            f"{folder} has no {MANIFEST}, which says what lies there: objects are never listed in "
            f"a run; generate it, or copy a whole folder of dlemu datagen there: "
            f"{datagen_command(workload, workload.num_files)}"
        )
    if not folder.is_dir():
        raise DatasetError(
            f"dataset.data_folder {folder} is not there; generate it: "
            f"{datagen_command(workload, workload.num_files)}"
        )
    found = survey(folder, workload, at=at)
    return Dataset(workload, found, False, (f"no manifest in {folder}: {found}",))


def _amount_of(workload: Workload, layout: Layout) -> tuple[str, ...]:
    """Return a line about what is read of a row, for parquet files that dlemu wrote."""
    if not layout.columns or workload.reader.decode != "raw":
        return ()
    amount = amount_of(workload, layout)
    rate = ""
    if workload.demand < math.inf:
        reads = amount.reads * workload.demand / amount.useful
        rate = f"; an accelerator at full speed asks for {reads:,.0f} reads/s"
    return (f"parquet: {amount.describe()}{rate}",)


def survey(folder: Path, workload: Workload, *, at: OnFile = lambda path: None) -> SurveyedLayout:
    """Return the layout of a dataset without a manifest, from file names and a few headers.

    `at` is called with each folder or file before it is read.
    """
    if (folder / WORK).exists():
        raise DatasetError(f"{folder} is unfinished; start dlemu datagen again, it continues")
    wanted = layout_of(workload)
    at(f"{folder}/train")
    paths = _paths(folder, wanted)
    chosen = [paths[file] for file in sorted({0, len(paths) // 2, len(paths) - 1})]
    places = []
    for path in chosen:
        at(f"{folder}/{path}")
        places.append(_locate(folder / path, wanted))
    lengths = np.concatenate([place.lengths for place in places])
    sizes = [(folder / path).stat().st_size for path in chosen]
    header_bytes = float(np.mean(sizes)) - float(lengths.sum()) / len(chosen)
    many = [(folder / path).stat().st_size for path in paths[:: ceil_div(len(paths), _MOST_SIZES)]]
    size = float(np.mean(many))
    dataset = workload.dataset
    needs_largest = workload.hands_over and dataset.record_length_bytes_resize is None
    seen = {
        "mean_bytes": (size - header_bytes) / wanted.samples_per_file,
        "stdev_bytes": float(lengths.std()),
        "element_bytes": places[0].element_bytes,
        "paths": paths,
        "num_opened": len(chosen),
        # Slow on a network file system, so rank 0 does it for all ranks.
        "largest_bytes": largest_file(folder, paths, at) if needs_largest else None,
    }
    found = SurveyedLayout(**(vars(wanted) | seen))
    _check_mean(folder, workload, wanted, found.mean_bytes)
    return found


def largest_file(folder: Path, paths: Iterable[str], at: OnFile = lambda path: None) -> int:
    """Return the bytes of the largest of these files, whose paths are below the folder."""
    largest = 0
    for path in paths:
        at(f"{folder}/{path}")
        largest = max(largest, os.stat(f"{folder}/{path}").st_size)
    return largest


def _check_mean(folder: Path, workload: Workload, wanted: Layout, mean: float) -> None:
    """Refuse samples of another mean size than the workload's."""
    num = min(wanted.num_files, _MOST_SIZES) * wanted.samples_per_file
    chance = _STDEVS * wanted.stdev_bytes / num**0.5
    if abs(mean - wanted.mean_bytes) <= _OTHER_MEAN * wanted.mean_bytes + chance:
        return
    key, remedy = "record_length_bytes", f"dataset.record_length_bytes={mean:.0f}"
    if workload.dataset.record_dims:
        key, remedy = "record_dims", f"dataset.record_dims=[] {remedy}"
    raise DatasetError(
        f"{folder}/train has samples of {mean:,.0f} bytes on average, dataset.{key} says "
        f"{wanted.mean_bytes:,.0f}; name the dataset that was meant, or set {remedy}"
    )


def _paths(folder: Path, wanted: Layout) -> tuple[str, ...]:
    """Return the files' paths, ordered by the numbers in their names."""
    numbered: dict[int, str] = {}
    formats: Counter[str] = Counter()
    for below, entry in walk(folder, "train"):
        match = _NAME.fullmatch(entry.name)
        if match is None or left_behind(entry.name):
            continue
        formats[match["suffix"]] += 1
        if match["suffix"] != wanted.suffix:
            continue
        number = int(match["number"])
        if number in numbered:
            raise DatasetError(
                f"{folder} has two files of number {number}: {numbered[number]} and {below}; "
                "remove one"
            )
        numbered[number] = below
    if not numbered:
        have = ", ".join(f"{count:,} {name}" for name, count in formats.most_common(3)) or "none"
        remedy = "set dataset.format, or generate the dataset: dlemu datagen"
        raise DatasetError(
            f"{folder}/train has no {wanted.format} files (of others: {have}); "
            f"{named_below(folder) or remedy}"
        )
    if len(numbered) != wanted.num_files:
        raise DatasetError(
            f"{folder}/train has {len(numbered):,} files, dataset.num_files_train is "
            f"{wanted.num_files:,}; set dataset.num_files_train={len(numbered)}"
        )
    return tuple(numbered[number] for number in sorted(numbered))


def _locate(path: Path, wanted: Layout) -> Places:
    """Return where a file's samples lie, by its header."""
    with open(open_regular(path), "rb", buffering=0) as file:
        number, num_samples = file.fileno(), wanted.samples_per_file
        num_bytes = os.fstat(number).st_size
        try:
            return format_of(wanted).locate(
                lambda offset, length: os.pread(number, length, offset),
                num_bytes,
                num_samples=num_samples,
                path=str(path),
            )
        except DatasetError as error:
            raise DatasetError(f"{path}: {error}") from None
