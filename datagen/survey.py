"""Finds the dataset of a job: by its manifest, or else by its file names and a few headers.

And the job of a dataset: the workload that the files in a folder were written for.
"""

import math
import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import accumulate, cycle, islice
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from dlemu.config.compose import known_workloads
from dlemu.config.model import Workload, load_workload
from dlemu.config.published import origin_of, word
from dlemu.config.sections import ColumnSection
from dlemu.config.source import WordSource
from dlemu.datagen.counting import ForeignFiles, count_samples
from dlemu.datagen.manifest import MANIFEST, keys_for, read_manifest, read_plan
from dlemu.datagen.target import WORK
from dlemu.dataset.layout import Dataset, FirstFiles, Layout, Samples, amount_of, layout_of
from dlemu.dataset.rule import datagen_command, extending, resolve_auto
from dlemu.errors import DatasetError, DlemuError, WorkloadError
from dlemu.formats import FORMATS, Places, format_of
from dlemu.formats.csv import TEXT_BYTES
from dlemu.formats.parquet import stored_columns
from dlemu.ranks.world import World
from dlemu.storage.folder import left_behind
from dlemu.storage.pagecache import OnFile
from dlemu.storage.place import Place, place_of
from dlemu.units import ceil_div, counted, format_bytes

_T = TypeVar("_T")
_NO_SHAPE = {
    f"dataset.{key}" for key in ("num_files_train", "seed", "file_prefix", "num_subfolders_train")
}
"""Keys of a dataset that say nothing about its samples."""
_MOST_BELOW = 100
"""So many entries of a folder are looked into."""


def find_workload(folder: Path, own_format: str = "", access: Any = None) -> str:
    """Return what `workload=` takes for the dataset in a folder or a bucket, whole or unfinished.

    `own_format` is the user's word on `dataset.format`: a module of his own may be imported, which
    a dataset alone may not ask for. Where the name is a file, the dataset alone says so, not the
    user (`WordSource.FOUND`). `access` is what the place's `reach` has returned.

    Raises:
        WorkloadError: nobody knows; the line asks for workload=.
        DatasetError: the manifest is damaged.
    """
    if own_format:
        with suppress(ValueError):  # which is told where the key is checked
            FORMATS[own_format]
    place = place_of(folder, access)
    stored = _stored(place)
    if stored is None:
        if named := named_below(place):
            raise WorkloadError(f"{folder} holds no dataset of dlemu's; {named}")
        if not is_there(place):
            raise _unknown(f"{folder} is not there, so nothing says which workload to take")
        raise _without_a_step(folder, Glance.at(place))
    origin = stored[1]
    if origin is None:
        raise _unknown(f"{folder} does not say for which workload it was written")
    if origin not in known_workloads() and not Path(origin).is_file():
        raise _unknown(f"{folder} was written for workload={origin}, which is not there")
    return origin


@dataclass(frozen=True)
class Glance:
    """What a folder of another tool holds, as far as names, sizes and one header tell."""

    format: str
    num_files: int
    sample_bytes: float
    """About: of the first file's samples."""
    num_samples: float

    @classmethod
    def at(cls, place: Place) -> "Glance | None":
        """Return what lies in a place; None: no files of a format that their names tell."""
        _, names, listed = _listed(place)
        name, paths = _most(_by_end(names))
        if not paths:
            return None
        files, kind, each = ForeignFiles(place, listed), FORMATS[name], 1
        size = float(np.mean([files.num_bytes(path) for path in paths[:: _step(paths)]]))
        with suppress(DlemuError, OSError):  # damaged: then who reads it says so
            each = files.use(paths[0], partial(kind.count, path=files.path(paths[0]))) or 1
        return cls(name, len(paths), size / each, float(each * len(paths)))

    def is_like(self, row: Workload) -> bool:
        """Return whether a workload trains on such samples."""
        if FORMATS[self.format].is_picture:
            return row.dataset.file_format.is_picture or row.name.startswith(_OF_PICTURES)
        family = next((each for each in _FAMILIES if self.format in each), (self.format,))
        return row.dataset.format in family and self.differs(row) < math.log(_ALIKE)

    def differs(self, row: Workload) -> float:
        """Return the logarithm of how many times larger, or smaller, a workload's samples are."""
        return abs(math.log(max(1.0, self.sample_bytes) / row.dataset.stored_bytes))

    def rows(self) -> list[str]:
        """Return the published workloads that train on such samples, the most alike first."""
        rows = [_published(name) for name in known_workloads() if _OF_BENCHMARK.search(name)]
        alike = [row for row in rows if self.is_like(row)]
        fit = [row for row in alike if row.reader.batch_size <= self.num_samples]
        return [row.name for row in sorted(fit or alike, key=self.differs)]

    def __str__(self) -> str:
        return (
            f"{counted(self.num_files, f'{self.format} file')}, of about "
            f"{format_bytes(self.sample_bytes)} a sample"
        )


_published = cache(load_workload)


def is_there(place: Place) -> bool:
    """Return whether a folder exists; in a place without folders, whether files lie below it."""
    return place.path.is_dir() if place.has_paths else _holds_some(place)


def named_below(place: Place) -> str:
    """Return "name FOLDER/a, which holds one" for a dataset one level below; "" if there is none.

    Without paths nothing below is looked for.

    Raises:
        DatasetError: its manifest is damaged.
    """
    below = dataset_below(place) if place.has_paths else place.path
    return "" if below == place.path else f"name {below}, which holds one"


def dataset_below(place: Place, name: str = "") -> Path:
    """Return a folder one level below that holds a dataset, `name` before others.

    That is the folder itself if it holds one, or none below does.

    Raises:
        DatasetError: a manifest is damaged.
    """
    if _stored(place) is None:
        for each in folders_below(place, name):
            if _stored(replace(place, path=each)) is not None:
                return each
    return place.path


def folders_below(place: Place, name: str = "") -> list[Path]:
    """Return the folders one level below, `name` before others; of very many only some.

    Without paths it is `name` alone: a list may be long.
    """
    if not place.has_paths:
        return [place.path / name] if name else []
    entries: list[Path] = []
    with suppress(OSError):
        entries = sorted(place.path.iterdir(), key=lambda path: (path.name != name, path.name))
    return [each for each in entries[:_MOST_BELOW] if each.is_dir()]


def as_it_is(
    workload: Workload, folder: Path, given: Mapping[str, str], *, looks: bool = False
) -> Workload:
    """Return the workload with the dataset in a folder or bucket, whose files stay as they are.

    Keys that were `given` keep their values. Files of another tool are looked at if it `looks`;
    else, as without any files, only the folder is set.

    Raises:
        WorkloadError: the dataset is another workload's.
        DatasetError: the manifest is damaged.
    """
    workload = workload.with_keys(
        {"dataset.data_folder": str(folder), "storage.storage_root": "./"}
    )
    access = workload.access
    stored = _stored(place_of(folder, access))
    if stored is None:
        found = find_foreign(workload, access) if looks else None
        return workload if found is None else found.workload
    _refuse_of_other(workload, *stored)
    keys = keys_for(stored[0], workload)
    return workload.with_keys({key: keys[key] for key in keys if key not in given})


def refuse_other(workload: Workload) -> None:
    """Refuse a workload whose data folder holds the dataset of another one.

    Rows of one network share their samples; so do workloads whose keys describe this dataset.

    Raises:
        WorkloadError: the dataset is another workload's.
        DatasetError: the manifest is damaged.
    """
    if not workload.dataset.data_folder:
        return
    place = place_of(workload.data_folder)
    if not place.has_paths:
        return
    if os.path.isdir(place.path) and (stored := _stored(place)) is not None:
        _refuse_of_other(workload, *stored)


def _refuse_of_other(workload: Workload, layout: Layout, origin: str | None) -> None:
    """Refuse a workload for the dataset in its data folder, as `refuse_other` does."""
    if origin in (None, workload.made_from) or not _shape(layout, workload):
        return
    try:
        written_for = load_workload(str(origin), source=WordSource.FOUND)
        asked = load_workload(workload.made_from, source=workload.source)
    except (WorkloadError, OSError):  # nobody knows; what is read differs, and the verdict says so
        return
    if _shape(layout_of(_numbered(asked)), written_for):
        raise WorkloadError(
            f"{workload.data_folder} holds a {written_for.name} dataset; leave workload= out, or "
            "name another folder"
        )


def _shape(layout: Layout, workload: Workload) -> set[str]:
    """Return the keys of a workload's samples that differ from those of a layout."""
    return set(keys_for(layout, workload)) - _NO_SHAPE


def _numbered(workload: Workload) -> Workload:
    """Return the workload with a number of files, where the rule would say it."""
    auto = workload.dataset.num_files_train == "auto"
    return workload.with_keys({"dataset.num_files_train": 1}) if auto else workload


def _stored(place: Place) -> tuple[Layout, str | None] | None:
    """Return the layout in a place, and the workload that it was written for if that is known."""
    manifest = read_manifest(place.path, place.access, with_files=place.has_paths)
    if manifest is not None:
        return manifest.layout, manifest.workload
    plan = read_plan(place)
    return None if plan is None else (plan.dataset, plan.workload)


def _without_a_step(folder: Path, found: Glance | None) -> WorkloadError:
    """Return the error for files that nobody describes: they say no batch and no step time."""
    if found is None:
        return _unknown(
            f"{folder} holds no dataset of dlemu's, so nothing says which workload to take"
        )
    what = f"{folder} holds {found}: they do not say batch and time of a step"
    rows = found.rows()[:_MOST_NAMED]
    if rows:
        first, *others = rows
        also = f" (alike: {', '.join(others)})" if others else ""
        return WorkloadError(f"{what}; add workload={first}{also}, or a file.yaml of yours")
    return WorkloadError(
        f"{what}, and no published workload has such samples; add workload=FILE.yaml, or "
        "workload=unet3d_h100 name=mine reader.batch_size=SAMPLES train.computation_time=SECONDS"
    )


def _unknown(why: str) -> WorkloadError:
    return WorkloadError(
        f"{why}; add workload=NAME (dlemu help workloads lists them) or a file.yaml"
    )


_SAMPLES = "dataset.num_samples_per_file"
_NUMBER, _SPREAD = "dataset.num_files_train", "dataset.record_length_bytes_stdev"
_OF_SIZE = {
    f"dataset.{key}"
    for key in ("record_length_bytes", "record_length_bytes_distribution", "record_dims")
}
"""Keys by which a user says how large samples are."""
_OF_PICTURES = ("resnet50", "retinanet", "stable_diffusion", "flux")
"""How the names of workloads begin that train on pictures."""
_FAMILIES = (("npz", "npy", "hdf5"), ("tfrecord", "webdataset", "mds"), ("parquet", "csv"))
"""Formats that hold the same samples: arrays, records, rows."""
_OF_BENCHMARK = re.compile(r"(?<!_real)_h100$")
"""Names of rows that are proposed: others have the same samples and another step."""
_ALIKE = 3.0
"""Samples of other files are alike where neither are so many times as large as the others."""
_MOST_NAMED = 3
_TAKEN_BY_NAME = (
    *("npz", "npy", "hdf5", "tfrecord", "jpeg", "png", "parquet", "webdataset", "mds", "csv"),
)
"""Formats that the end of a name tells: of .bin and .raw files nobody knows what they hold."""
_MOST_NORMAL = 0.6
"""Largest stdev of sizes, as a share of their mean, that a normal distribution is taken for."""
_MOST_SIZES = 512
"""The mean size comes from at most so many files: over a network each takes a round trip."""
_OTHER_MEAN = 0.1
"""Mean sizes that differ by more than this share are of different datasets; demand and AU follow
from the mean. What DLIO rounds (to a square of whole sides) is far less."""
_STDEVS = 3
"""Standard errors by which the mean of drawn sizes may differ by chance."""
_OF_DLIO = re.compile(r".*_(\d+)_of_\d+\.[^.]+", re.DOTALL)
_PARTS = re.compile(r"(\d+)")
_LABELLED = re.compile(r"_[xy](\.[^./]*)?$")
_SHARD = re.compile(r"-\d+-of-\d+$")
_TRAINING = re.compile(r"(^|/)train(?=[-_./\d]|ing)", re.IGNORECASE)
_OF_DLEMU = re.compile(r"dlemu[-_][^/]*/")
"""Folders that commands of dlemu make in the folder that they try or write to."""
_HIDDEN = re.compile(r"(^|/)\.|/$")
"""Names of objects that no dataset has; one that ends in "/" stands for a folder."""
_HELD_OUT = re.compile(r"(^|/)(val|valid|validation|test|dev|eval)(?=[-_./\d])", re.IGNORECASE)


@dataclass(frozen=True)
class SurveyedLayout(Layout):
    """The layout of files that were found: their own names; sizes are in each file's header."""

    paths: tuple[str, ...] = ()
    """Of each file, below the data folder."""
    num_opened: int = 0
    """Files that were opened; all others are taken to have such headers."""
    largest_bytes: int | None = None
    """Size of the largest file, if memory for batches depends on it; else None."""
    uneven: tuple[int, ...] = ()
    """Samples of each file, where they differ."""
    fingerprint: str = ""
    """Of the names, sizes and times of all files, where their samples were counted."""
    notes: tuple[str, ...] = ()
    """What was left out, and why; a line each."""
    bytes_of_objects: tuple[int, ...] = ()
    """Of each, as they were listed; files are asked when they are needed."""

    @property
    def is_foreign(self) -> bool:
        return True

    @cached_property
    def listed_bytes(self) -> Samples | None:
        return np.array(self.bytes_of_objects, np.int64) if self.bytes_of_objects else None

    def repeated(self, num_files: int) -> "SurveyedLayout":
        def again(of_each: tuple[_T, ...]) -> tuple[_T, ...]:
            return tuple(islice(cycle(of_each), num_files))

        return replace(
            self,
            num_files=num_files,
            paths=again(self.paths),
            uneven=again(self.uneven),
            bytes_of_objects=again(self.bytes_of_objects),
        )

    @cached_property
    def counts(self) -> Samples | None:
        return np.array(self.uneven, np.int64) if self.uneven else None

    @cached_property
    def _starts(self) -> list[int]:
        """The first sample of each file that is not like the others, and the end."""
        return [0, *accumulate(self.uneven)]

    @property
    def num_samples(self) -> int:
        return self._starts[self.num_files] if self.uneven else super().num_samples

    def find(self, sample: int) -> tuple[int, int]:
        if not self.uneven:
            return super().find(sample)
        file = bisect_right(self._starts, sample) - 1
        return file, sample - self._starts[file]

    def file_of(self, samples: Samples) -> Samples:
        if not self.uneven:
            return super().file_of(samples)
        files: Samples = np.searchsorted(self._starts, samples, side="right") - 1
        return files

    def place_of(self, samples: Samples) -> Samples:
        if not self.uneven:
            return super().place_of(samples)
        places: Samples = samples - np.array(self._starts)[self.file_of(samples)]
        return places

    def in_file(self, file: int) -> int:
        return self.uneven[file] if self.uneven else self.samples_per_file

    def start_of(self, file: int) -> int:
        return self._starts[file] if self.uneven else super().start_of(file)

    def described(self, folder: Path) -> dict[str, Any]:
        """Return what `SURVEY` has of the dataset in `folder`, for JSON."""
        return {
            "folder": str(folder.absolute()),
            "format": self.format,
            "num_files": self.num_files,
            "num_samples": self.num_samples,
            "mean_bytes": self.mean_bytes,
            "stdev_bytes": self.stdev_bytes,
            "first_file": self.paths[0],
            "last_file": self.paths[-1],
            "fingerprint": self.fingerprint,
            "samples_of_files": self.uneven or self.samples_per_file,
            "notes": self.notes,
        }

    def path(self, file: int) -> str:
        """Return a file's path below the data folder."""
        return self.paths[file]

    def __str__(self) -> str:
        return (
            f"{len({*self.paths}):,} {self.format} files were found, their samples have "
            f"{self.mean_bytes:,.0f} bytes on average; {self.num_opened} were opened, with "
            f"{self._each} each"
        )

    @property
    def _each(self) -> str:
        if not self.uneven:
            return counted(self.samples_per_file, "sample")
        return f"{min(self.uneven)} to {self.samples_per_file} samples"


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

    found = world.on_first(look)
    if auto and not found.known_places:  # the rule counts by the sizes that were found
        keys = {"dataset.num_files_train": "auto"}
        by_rule = resolve_auto(found.workload.with_keys(keys), world)
        world.on_first(lambda: _with_all(by_rule, found.layout.num_files, ";"))
    return found


def _look_at(workload: Workload, auto: bool, at: OnFile) -> Dataset:
    """Return the dataset; with `auto`, one with more files than the workload's will do."""
    folder, access = workload.data_folder, workload.access
    place = place_of(folder, access)
    if folder.is_file():
        raise DatasetError(f"dataset.data_folder {folder} is a file; name the folder of a dataset")
    manifest = read_manifest(folder, access, with_files=place.has_paths)
    if manifest is not None:
        have = manifest.layout.num_files
        if auto:
            extend = "extend it" if place.has_paths else "write another one"
            workload = _with_all(workload, have, f"; {extend} with dlemu datagen, or")
        refuse_other(workload)
        layout, notes = layout_of(workload), _amount_of(workload, layout_of(workload))
        if (asked := workload.num_files) < have:
            layout = replace(layout, num_files=have)
            notes = (*notes, first_files(asked, have))
        manifest.check(layout, folder)
        if asked < have:
            layout = FirstFiles.of(layout, asked)
        return Dataset(workload, layout, notes=notes, access=access)
    if not is_there(place):
        what = "is not there" if place.has_paths else f"holds no {MANIFEST} and no files"
        raise DatasetError(
            f"dataset.data_folder {folder} {what}; generate it: "
            f"{datagen_command(workload, workload.num_files)}"
        )
    said = said_keys(workload)
    workload, found = survey(
        folder, workload, access=access, at=at, all_files=auto or _NUMBER not in said
    )
    return as_found(workload, found, access)


def find_foreign(workload: Workload, access: Any = None) -> Dataset | None:
    """Return the dataset of another tool in the workload's data folder; None: it holds no files.

    Raises:
        DatasetError: the files are not what the user has said, or dlemu has not written them all.
    """
    place = place_of(workload.data_folder, access)
    if not _holds_some(place):
        return None
    workload, found = survey(
        place.path, workload, access=access, all_files=_NUMBER not in said_keys(workload)
    )
    return as_found(workload, found, access)


def _holds_some(place: Place) -> bool:
    return next(iter(place.list("")), None) is not None


def how_written(workload: Workload, num_files: int, *, looks: bool) -> tuple[str, str]:
    """Return the command that makes the dataset in the data folder so large.

    Else "", and a line that says why there is none: files of others lie there. A bucket is asked
    only if this `looks`.

    Raises:
        DatasetError: the manifest is damaged.
    """
    there = bool(workload.dataset.data_folder) and (workload.place.has_paths or looks)
    place = workload.reach() if there else None
    if place is None or (place.has_paths and not place.path.is_dir()):
        return datagen_command(workload, num_files), ""
    if _stored(place) is not None:
        return extending(workload, num_files), ""
    if any(not (_OF_DLEMU.match(name) or _HIDDEN.search(name)) for name, _ in place.list("")):
        return "", (
            f"{place.path} holds files of others, and dlemu writes none beside them: add files to "
            "it, or name another folder"
        )
    return datagen_command(workload, num_files), ""


def as_found(workload: Workload, layout: Layout, access: Any = None) -> Dataset:
    """Return the dataset of a layout: of one that was surveyed with what the survey says of it."""
    if not layout.is_foreign:
        return Dataset(workload, layout, access=access)
    assert isinstance(layout, SurveyedLayout)
    notes = (f"no manifest in {workload.data_folder}: {layout}", *layout.notes)
    return Dataset(workload, layout, False, notes, access=access)


def said_keys(workload: Workload) -> set[str]:
    """Return the keys of the dataset that the user has said, in words or in a file of his own.

    What a published row has is of the benchmark's dataset: it says nothing about another one.
    """
    own, given = workload.dataset, set(workload.given)
    if origin_of(workload) is not None:
        return given
    fields = type(own).model_fields
    return given | {f"dataset.{key}" for key, value in own if value != fields[key].default}


def _with_all(workload: Workload, have: int, or_else: str) -> Workload:
    """Return the workload with the number of files in its folder, which must do for the rule.

    Its own number is that of the rule. `or_else` stands in the refusal, before the key to set.
    """
    if have < workload.num_files:
        raise DatasetError(
            f"{workload.data_folder} has {have:,} files, dataset.num_files_train=auto asks for "
            f"{workload.num_files:,} (dlemu datasize says why){or_else} set "
            f"dataset.num_files_train={have}"
        )
    return workload.with_keys({"dataset.num_files_train": have})


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


def survey(
    folder: Path,
    workload: Workload,
    *,
    access: Any = None,
    at: OnFile = lambda path: None,
    all_files: bool = False,
) -> tuple[Workload, SurveyedLayout]:
    """Return the layout of a dataset without a manifest, from file names and a few headers.

    And the workload that reads it: format, number of files, samples and sizes are those that were
    found, unless the user has said them (`said_keys`). Names may be any; files are read in the
    order of `_in_order`. Where a format tells how many samples a file holds, each is asked. With
    more files than dataset.num_files_train the first are read; with `all_files` all are. `access`
    is what the place's `reach` has returned; `at` is called with each folder or file before it is
    read.

    Raises:
        DatasetError: there are too few files, or what they hold is not what the user has said.
    """
    at(f"{folder}/train")
    place = place_of(folder, access)
    if (folder / WORK).exists() if place.has_paths else any(place.list(WORK)):
        raise DatasetError(f"{folder} is unfinished; start dlemu datagen again, it continues")
    said, before = said_keys(workload), workload
    if said & {*_OF_SIZE, _SAMPLES} and _SPREAD not in said:  # that of a row is of its own mean
        workload = workload.with_keys({_SPREAD: 0})
    tree, listed, sizes = _listed(place)
    files = ForeignFiles(place, sizes, at)
    workload, paths, notes = _paths(folder, tree, listed, workload, all_files, said)
    wanted = layout_of(workload)
    is_said = _SAMPLES in said
    counted_ = count_samples(files, paths, workload, is_said=is_said)
    counts, notes = counted_.numbers, (*notes, *counted_.notes)
    if counted_.is_chunked and not place.has_paths:
        raise DatasetError(
            f"{folder}/{paths[0]} has chunks, which only h5py reads, and it opens no file in "
            f"{place.word}; copy the dataset to a folder, or repack it without chunks"
        )
    if counted_.is_chunked and not workload.dataset.by_h5py:
        workload = workload.with_keys({"dataset.enable_chunking": True})
        wanted = layout_of(workload)
    if wanted.format == "parquet" and not workload.dataset.parquet.columns:
        wanted = replace(wanted, columns=_columns_of(files, paths[0], wanted.columns))
    each = max(counts) if counts else wanted.samples_per_file
    wanted = replace(wanted, num_files=len(paths), samples_per_file=each)
    chosen = sorted({0, len(paths) // 2, len(paths) - 1})
    if counted_.ends_alone:  # the others were taken to be like the first
        chosen = sorted({0, len(paths) - 1})
    places = []
    for file in chosen:
        at(f"{folder}/{paths[file]}")
        places.append(_locate(files, paths[file], wanted, counts[file] if counts else each))
    lengths = np.concatenate([each.lengths for each in places])
    opened = sum(files.num_bytes(paths[file]) for file in chosen)
    step = _step(paths)
    size = float(np.mean([files.num_bytes(path) for path in paths[::step]]))
    in_file = float(np.mean(counts[::step])) if counts else each
    besides = (opened - float(lengths.sum())) * in_file / len(lengths)
    dataset = workload.dataset
    needs_largest = workload.hands_over and dataset.record_length_bytes_resize is None
    seen = {
        "mean_bytes": (size - besides) / in_file,
        "stdev_bytes": float(lengths.std()),
        "element_bytes": places[0].element_bytes,
        "paths": paths,
        "num_opened": len(chosen),
        # Slow on a network file system, so rank 0 does it for all ranks.
        "largest_bytes": files.largest(paths) if needs_largest else None,
        "uneven": counts if len({*counts}) > 1 else (),
        "fingerprint": counted_.fingerprint,
        "notes": notes,
        "bytes_of_objects": tuple(map(files.listed.__getitem__, paths)) if files.listed else (),
    }
    found = SurveyedLayout(**(vars(wanted) | seen))
    keys = _keys_found(folder, workload, found, said)
    workload = workload.with_keys(keys) if keys else workload
    if taken := _taken(before, workload):
        found = replace(found, notes=(taken, *notes))
    return workload, found


def _keys_found(
    folder: Path, workload: Workload, found: SurveyedLayout, said: set[str]
) -> dict[str, object]:
    """Return the keys that the files say otherwise than the workload.

    Raises:
        DatasetError: the user has said another size.
    """
    dataset, keys = workload.dataset, dict[str, object]()
    if workload.num_files != found.num_files:
        keys[_NUMBER] = found.num_files
    if dataset.num_samples_per_file != found.samples_per_file:
        keys[_SAMPLES] = found.samples_per_file
    if found.columns != layout_of(workload).columns:
        columns = [column.model_dump() for column in found.columns]
        return keys | {"dataset.parquet.columns": columns}
    several = found.samples_per_file > 1 and dataset.file_format.why_equal
    if _has_other_mean(workload, found):
        if said & _OF_SIZE:
            _refuse_mean(folder, workload, found.mean_bytes)
        keys |= _keys_of_size(dataset.format, found, equal=bool(several))
    elif several and dataset.stdev_bytes:
        keys[_SPREAD] = 0
    return keys


def _keys_of_size(format: str, found: SurveyedLayout, *, equal: bool) -> dict[str, object]:
    """Return the keys of samples of the mean and the spread that were found."""
    mean, spread = found.mean_bytes, found.stdev_bytes
    name, stdev = "dataset.record_length_bytes", 0.0 if equal else float(round(spread))
    kind = "lognormal" if stdev > _MOST_NORMAL * mean else "normal"
    return {
        # A number of csv takes several letters.
        name: max(1.0, mean / TEXT_BYTES if format == "csv" else mean),
        f"{name}_stdev": stdev,
        f"{name}_distribution": kind,
        "dataset.record_dims": [],
        "dataset.record_element_type": "uint8",
    }


def _taken(before: Workload, after: Workload) -> str:
    """Return a line about the keys that were taken from the files; "" where there are none."""
    was, now = before.dataset.model_dump(), after.dataset.model_dump()
    keys = [key for key in now if now[key] != was[key] and key != "parquet"]
    if before.dataset.num_files_train == "auto":
        keys = [key for key in keys if key != "num_files_train"]
    words = [word(f"dataset.{key}", _short(now[key])) for key in keys]
    words += ["dataset.parquet.columns"] if now["parquet"] != was["parquet"] else []
    return f"taken from the files: {' '.join(words)}" if words else ""


def _short(value: Any) -> Any:
    return round(value) if isinstance(value, float) else value


def _columns_of(
    files: ForeignFiles, name: str, default: tuple[ColumnSection, ...]
) -> tuple[ColumnSection, ...]:
    """Return the columns of a parquet file where the keys name none: all are read, as stored.

    A file with the one column that the keys stand for is left to them.
    """
    found = files.use(name, stored_columns)
    if [*found] == [column.name for column in default]:
        return default
    return tuple(
        ColumnSection(name=name, dtype="uint8", size=max(1, round(size)), read=True)
        for name, size in found.items()
    )


def _has_other_mean(workload: Workload, found: SurveyedLayout) -> bool:
    """Return whether samples are of another mean size than the workload's."""
    dataset = workload.dataset
    num = min(found.num_files, _MOST_SIZES) * found.samples_per_file
    chance = _STDEVS * dataset.stdev_bytes / num**0.5
    bound = _OTHER_MEAN * dataset.mean_bytes + chance
    return bool(abs(found.mean_bytes - dataset.mean_bytes) > bound)


def _refuse_mean(folder: Path, workload: Workload, mean: float) -> NoReturn:
    """Refuse samples of another mean size than the user has said."""
    key, remedy = "record_length_bytes", f"dataset.record_length_bytes={mean:.0f}"
    if workload.dataset.record_dims:
        key, remedy = "record_dims", f"dataset.record_dims=[] {remedy}"
    raise DatasetError(
        f"{folder} has samples of {mean:,.0f} bytes on average, dataset.{key} says "
        f"{workload.dataset.mean_bytes:,.0f}; name the dataset that was meant, or set {remedy}"
    )


def _listed(place: Place) -> tuple[str, Sequence[str], Mapping[str, int]]:
    """Return the folder in which the files lie, the paths of all below it, and bytes of objects.

    They lie below `train/`, or anywhere where there is no `train/`. The paths are below the place.
    """
    if place.has_paths:
        tree = "train" if (place.path / "train").is_dir() else ""
        if not tree and named_below(place):  # of another dataset nothing is read
            return "", (), {}
        paths = (path for path, _ in place.list(tree))
        return tree, [*paths] if tree else [p for p in paths if not _OF_DLEMU.match(p)], {}
    for tree in ("train", ""):
        found = {
            key: num
            for key, num in place.list(tree)
            if not (_HIDDEN.search(key) or _OF_DLEMU.match(key))
        }
        if found:
            return tree, list(found), found
    return "", (), {}


def _paths(
    folder: Path,
    tree: str,
    listed: Sequence[str],
    workload: Workload,
    all_files: bool,
    said: set[str],
) -> tuple[Workload, tuple[str, ...], tuple[str, ...]]:
    """Return the paths of the files that are read, in order, and lines about those that are not.

    `tree` and `listed` are what `_listed` has found. The workload has their format, where none are
    of its own and the user has not said it.
    """
    notes = []
    place = folder / tree
    by_end = _by_end(listed)
    found = _of_format(workload.dataset.format, by_end)
    if not found and "dataset.format" not in said:
        workload, found = _by_their_names(workload, by_end, said)
    dataset = workload.dataset
    own = layout_of(workload).suffix
    if not found:
        formats = Counter({end or "without an end": len(each) for end, each in by_end.items()})
        have = ", ".join(f"{count:,} {name}" for name, count in formats.most_common(3)) or "none"
        remedy = "set dataset.format, or generate the dataset: dlemu datagen"
        raise DatasetError(
            f"{place} has no {dataset.format} files (of others: {have}); "
            f"{named_below(place_of(folder)) or remedy}"
        )
    if not tree and any(map(_TRAINING.search, found)):
        held_out = {path for path in found if _HELD_OUT.search(path)}
        if held_out and len(held_out) < len(found):
            found = [path for path in found if path not in held_out]
            notes.append(
                f"not read: {counted(len(held_out), 'file')} of other sets, such as {min(held_out)}"
            )
    if labels := _labels(found):
        found = [path for path in found if path not in labels]
        notes.append(
            f"not read: {counted(len(labels), 'file')} *_y.{own} beside *_x.{own}: they hold labels"
        )
    num_found, asked = len(found), workload.num_files
    if num_found < asked and not all_files:
        raise DatasetError(
            f"{place} has {num_found:,} files, dataset.num_files_train is {asked:,}; set "
            f"dataset.num_files_train={num_found}"
        )
    found = _in_order(found)
    if num_found > asked and not all_files:
        found = found[:asked]
        notes.append(first_files(asked, num_found))
    return workload, tuple(found), tuple(notes)


def _of_format(name: str, by_end: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the files of a format, by the ends of their names."""
    kind = FORMATS[name]
    own = kind.suffix or name.rpartition(".")[2]
    ends = [own.lower(), *(each for each in kind.other_suffixes if each)]
    found = [path for end in ends for path in by_end.get(end, ())]
    if not found and "" in kind.other_suffixes:  # README and LICENSE have no number
        found = [path for path in by_end.get("", ()) if re.search(r"\d[^/]*$", path)]
    return found


def _by_their_names(
    workload: Workload, by_end: Mapping[str, Sequence[str]], said: set[str]
) -> tuple[Workload, list[str]]:
    """Return the workload with the format of most files, and these; no files if none is known."""
    name, paths = _most(by_end)
    if not paths:
        return workload, []
    keys: dict[str, object] = {"dataset.format": name, "dataset.compression": "none"}
    if name == "csv":  # lines of text
        keys["dataset.record_element_type"] = "uint8"
    if _SAMPLES not in said:  # those of the row are of files of its own format
        keys[_SAMPLES] = 1
    return workload.with_keys(keys), paths


def _most(by_end: Mapping[str, Sequence[str]]) -> tuple[str, list[str]]:
    """Return the format of most files, as far as the ends of names tell, and these files."""
    of_formats = {name: _of_format(name, by_end) for name in _TAKEN_BY_NAME}
    name = max(of_formats, key=lambda name: len(of_formats[name]))
    return name, of_formats[name]


def _step(paths: Sequence[str]) -> int:
    """Return the step at which `_MOST_SIZES` of all files are asked for their sizes."""
    return ceil_div(len(paths), _MOST_SIZES)


def first_files(asked: int, have: int) -> str:
    """Return the line about files that dataset.num_files_train leaves out."""
    return f"dataset.num_files_train={asked}: the first {asked:,} of {have:,} files are read"


def _by_end(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return paths by the ends of their names, in small letters and without the dot.

    "": of names as train-00000-of-01024, and of all others without a dot.
    """
    as_written: dict[str, list[str]] = {}
    for below in paths:
        name = below.rpartition("/")[2]
        if not left_behind(name):
            _, dot, end = name.rpartition(".")
            as_written.setdefault(end if dot else "", []).append(below)
    found: dict[str, list[str]] = {}
    for end, those in as_written.items():  # few, but for shards: tfrecord-00000-of-01024
        found.setdefault(_SHARD.sub("", end).lower(), []).extend(those)
    return found


def _labels(paths: Iterable[str]) -> set[str]:
    """Return those of names like case_00000_y.npy that have a case_00000_x.npy beside them."""
    stems = {path: os.path.splitext(path)[0] for path in paths if _LABELLED.search(path)}
    there = {*stems.values()}
    return {
        path for path, stem in stems.items() if stem.endswith("_y") and f"{stem[:-1]}x" in there
    }


def _in_order(paths: list[str]) -> list[str]:
    """Return paths by the numbers that DLIO gave them, else by name, with numbers by their value.

    So img_9 stands before img_10, on each file system.
    """
    numbered: dict[int, str] = {}
    for path in paths:
        match = _OF_DLIO.fullmatch(path)
        if match is None:
            break
        numbered[int(match[1])] = path
    if len(numbered) == len(paths):
        return [numbered[number] for number in sorted(numbered)]

    def key(path: str) -> tuple[str, str]:
        # One text is compared ten times as fast as its parts. A number begins with its length, a
        # part of letters ends with what is less than any letter.
        parts = _PARTS.split(path)
        for at in range(1, len(parts), 2):
            digits = parts[at].lstrip("0")
            parts[at] = f"\0{len(digits):03}{digits}"
        return "".join(parts), path

    return sorted(paths, key=key)


def _locate(files: ForeignFiles, name: str, wanted: Layout, num_samples: int) -> Places:
    """Return where a file's samples lie, by its header."""
    locate = partial(format_of(wanted).locate, num_samples=num_samples, path=files.path(name))
    return files.use(name, locate)
