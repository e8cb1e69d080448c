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
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from dlemu.config.compose import known_workloads
from dlemu.config.model import Workload, load_workload
from dlemu.config.published import origin_of, word
from dlemu.config.sections import ColumnSection
from dlemu.config.source import WordSource
from dlemu.datagen.counting import count_samples, with_file
from dlemu.datagen.manifest import MANIFEST, keys_for, read_manifest, read_plan
from dlemu.datagen.target import WORK
from dlemu.dataset.layout import Dataset, FirstFiles, Layout, Samples, amount_of, layout_of
from dlemu.dataset.rule import datagen_command, resolve_auto
from dlemu.errors import DatasetError, WorkloadError
from dlemu.formats import FORMATS, Places, format_of
from dlemu.formats.csv import TEXT_BYTES
from dlemu.formats.parquet import stored_columns
from dlemu.ranks.world import World
from dlemu.storage.folder import Folder, left_behind
from dlemu.storage.pagecache import OnFile
from dlemu.storage.place import place_of
from dlemu.units import ceil_div, counted

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
    if not workload.dataset.data_folder:
        return
    if not place_of(folder := workload.data_folder).has_paths:
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


_SAMPLES = "dataset.num_samples_per_file"
_NUMBER, _SPREAD = "dataset.num_files_train", "dataset.record_length_bytes_stdev"
_OF_SIZE = {
    f"dataset.{key}"
    for key in ("record_length_bytes", "record_length_bytes_distribution", "record_dims")
}
"""Keys by which a user says how large samples are."""
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
            f"{self.num_files:,} {self.format} files were found, their samples have "
            f"{self.mean_bytes:,.0f} bytes on average; {self.num_opened} were opened, with "
            f"{self._each} samples each"
        )

    @property
    def _each(self) -> str:
        if not self.uneven:
            return f"{self.samples_per_file}"
        return f"{min(self.uneven)} to {self.samples_per_file}"


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
    if not place.has_paths:
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
    said = said_keys(workload)
    workload, found = survey(folder, workload, at=at, all_files=auto or _NUMBER not in said)
    return Dataset(workload, found, False, (f"no manifest in {folder}: {found}", *found.notes))


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
    folder: Path, workload: Workload, *, at: OnFile = lambda path: None, all_files: bool = False
) -> tuple[Workload, SurveyedLayout]:
    """Return the layout of a dataset without a manifest, from file names and a few headers.

    And the workload that reads it: format, number of files, samples and sizes are those that were
    found, unless the user has said them (`said_keys`). Names may be any; files are read in the
    order of `_in_order`. Where a format tells how many samples a file holds, each is asked. With
    more files than dataset.num_files_train the first are read; with `all_files` all are. `at` is
    called with each folder or file before it is read.

    Raises:
        DatasetError: there are too few files, or what they hold is not what the user has said.
    """
    if (folder / WORK).exists():
        raise DatasetError(f"{folder} is unfinished; start dlemu datagen again, it continues")
    at(f"{folder}/train")
    said, before = said_keys(workload), workload
    if said & {*_OF_SIZE, _SAMPLES} and _SPREAD not in said:  # that of a row is of its own mean
        workload = workload.with_keys({_SPREAD: 0})
    workload, paths, notes = _paths(folder, workload, all_files, said)
    wanted = layout_of(workload)
    is_said = _SAMPLES in said
    counted_ = count_samples(folder, paths, workload, is_said=is_said, at=at)
    counts, notes = counted_.numbers, (*notes, *counted_.notes)
    if counted_.is_chunked and not workload.dataset.by_h5py:
        workload = workload.with_keys({"dataset.enable_chunking": True})
        wanted = layout_of(workload)
    if wanted.format == "parquet" and not workload.dataset.parquet.columns:
        wanted = replace(wanted, columns=_columns_of(folder / paths[0], wanted.columns))
    each = max(counts) if counts else wanted.samples_per_file
    wanted = replace(wanted, num_files=len(paths), samples_per_file=each)
    chosen = sorted({0, len(paths) // 2, len(paths) - 1})
    places = []
    for file in chosen:
        at(f"{folder}/{paths[file]}")
        places.append(_locate(folder / paths[file], wanted, counts[file] if counts else each))
    lengths = np.concatenate([place.lengths for place in places])
    sizes = [(folder / paths[file]).stat().st_size for file in chosen]
    step = ceil_div(len(paths), _MOST_SIZES)
    size = float(np.mean([(folder / path).stat().st_size for path in paths[::step]]))
    in_file = float(np.mean(counts[::step])) if counts else each
    besides = (sum(sizes) - float(lengths.sum())) * in_file / len(lengths)
    dataset = workload.dataset
    needs_largest = workload.hands_over and dataset.record_length_bytes_resize is None
    seen = {
        "mean_bytes": (size - besides) / in_file,
        "stdev_bytes": float(lengths.std()),
        "element_bytes": places[0].element_bytes,
        "paths": paths,
        "num_opened": len(chosen),
        # Slow on a network file system, so rank 0 does it for all ranks.
        "largest_bytes": largest_file(folder, paths, at) if needs_largest else None,
        "uneven": counts if len({*counts}) > 1 else (),
        "fingerprint": counted_.fingerprint,
        "notes": notes,
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


def _columns_of(path: Path, default: tuple[ColumnSection, ...]) -> tuple[ColumnSection, ...]:
    """Return the columns of a parquet file where the keys name none: all are read, as stored.

    A file with the one column that the keys stand for is left to them.
    """
    found = with_file(path, stored_columns)
    if [*found] == [column.name for column in default]:
        return default
    return tuple(
        ColumnSection(name=name, dtype="uint8", size=max(1, round(size)), read=True)
        for name, size in found.items()
    )


def largest_file(folder: Path, paths: Iterable[str], at: OnFile = lambda path: None) -> int:
    """Return the bytes of the largest of these files, whose paths are below the folder."""
    largest = 0
    for path in paths:
        at(f"{folder}/{path}")
        largest = max(largest, os.stat(f"{folder}/{path}").st_size)
    return largest


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


def _paths(
    folder: Path, workload: Workload, all_files: bool, said: set[str]
) -> tuple[Workload, tuple[str, ...], tuple[str, ...]]:
    """Return the paths of the files that are read, in order, and lines about those that are not.

    They lie below `train/`, or anywhere in the folder where there is no `train/`. The workload has
    their format, where none are of its own and the user has not said it.
    """
    notes = []
    tree = "train" if (folder / "train").is_dir() else ""
    place = folder / tree
    named = "" if tree else named_below(folder)  # of another dataset nothing is read
    by_end = {} if named else _by_end(Folder(folder).list(tree))
    found = _of_format(workload.dataset.format, by_end)
    if not found and "dataset.format" not in said:
        workload, found = _by_their_names(workload, by_end)
    dataset = workload.dataset
    own = layout_of(workload).suffix
    if not found:
        formats = Counter({end or "without an end": len(each) for end, each in by_end.items()})
        have = ", ".join(f"{count:,} {name}" for name, count in formats.most_common(3)) or "none"
        remedy = "set dataset.format, or generate the dataset: dlemu datagen"
        raise DatasetError(
            f"{place} has no {dataset.format} files (of others: {have}); "
            f"{named or named_below(folder) or remedy}"
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
    workload: Workload, by_end: Mapping[str, Sequence[str]]
) -> tuple[Workload, list[str]]:
    """Return the workload with the format of most files, and these; no files if none is known."""
    of_formats = {name: _of_format(name, by_end) for name in _TAKEN_BY_NAME}
    name = max(of_formats, key=lambda name: len(of_formats[name]))
    if not of_formats[name]:
        return workload, []
    keys: dict[str, object] = {"dataset.format": name, "dataset.compression": "none"}
    if name == "csv":  # lines of text
        keys["dataset.record_element_type"] = "uint8"
    return workload.with_keys(keys), of_formats[name]


def first_files(asked: int, have: int) -> str:
    """Return the line about files that dataset.num_files_train leaves out."""
    return f"dataset.num_files_train={asked}: the first {asked:,} of {have:,} files are read"


def _by_end(files: Iterable[tuple[str, "os.DirEntry[str]"]]) -> dict[str, list[str]]:
    """Return paths by the ends of their names, in small letters and without the dot.

    "": of names as train-00000-of-01024, and of all others without a dot.
    """
    as_written: dict[str, list[str]] = {}
    for below, entry in files:
        name = entry.name
        if not left_behind(name):
            _, dot, end = name.rpartition(".")
            as_written.setdefault(end if dot else "", []).append(below)
    found: dict[str, list[str]] = {}
    for end, paths in as_written.items():  # few, but for shards: tfrecord-00000-of-01024
        found.setdefault(_SHARD.sub("", end).lower(), []).extend(paths)
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


def _locate(path: Path, wanted: Layout, num_samples: int) -> Places:
    """Return where a file's samples lie, by its header."""
    kind = format_of(wanted)
    return with_file(path, partial(kind.locate, num_samples=num_samples, path=str(path)))
