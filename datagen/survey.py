"""Finds the dataset of a job: by its manifest, or else by its file names and a few headers.

And the job of a dataset: the workload that the files in a folder were written for.
"""

import hashlib
import json
import math
import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dlemu.config.compose import known_workloads
from dlemu.config.model import Workload, load_workload
from dlemu.config.sections import ColumnSection
from dlemu.config.source import WordSource
from dlemu.datagen.manifest import MANIFEST, keys_for, read_manifest, read_plan
from dlemu.datagen.target import WORK
from dlemu.dataset.layout import Dataset, FirstFiles, Layout, Samples, amount_of, layout_of
from dlemu.dataset.rule import datagen_command, resolve_auto
from dlemu.errors import DatasetError, WorkloadError
from dlemu.formats import FORMATS, Format, Places, format_of
from dlemu.formats.parquet import stored_columns
from dlemu.ranks.world import World
from dlemu.storage.files import open_regular, read_regular
from dlemu.storage.folder import Folder, left_behind
from dlemu.storage.pagecache import OnFile
from dlemu.storage.place import place_of
from dlemu.units import ceil_div, counted

_T = TypeVar("_T")
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


_MOST_SIZES = 512
"""The mean size comes from at most so many files: over a network each takes a round trip."""
_OTHER_MEAN = 0.1
"""Mean sizes that differ by more than this share are of different datasets; demand and AU follow
from the mean. What DLIO rounds (to a square of whole sides) is far less."""
_STDEVS = 3
"""Standard errors by which the mean of drawn sizes may differ by chance."""
_OF_DLIO = re.compile(r".*_(\d+)_of_\d+\.[^.]+", re.DOTALL)
_PARTS = re.compile(r"(\d+)")
_SHARD = re.compile(r"-\d+-of-\d+$")
_TRAINING = re.compile(r"(^|/)train(?=[-_./\d]|ing)", re.IGNORECASE)
_HELD_OUT = re.compile(r"(^|/)(val|valid|validation|test|dev|eval)(?=[-_./\d])", re.IGNORECASE)
SURVEY = "survey.json"
"""In a run's folder: what was found of a dataset without a manifest."""
_READERS = 8
"""Threads that count samples: a drive answers several at once."""
_MOST_SURVEYS = 20
"""Of earlier runs, that are looked into."""


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

    return world.on_first(look)


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
    found = survey(folder, workload, at=at, all_files=auto)
    if auto:
        workload = _with_all(workload, found.num_files, ";")
    keys: dict[str, object] = {}
    if workload.dataset.num_samples_per_file != found.samples_per_file:
        keys["dataset.num_samples_per_file"] = found.samples_per_file
    if found.columns != workload.dataset.columns:
        keys["dataset.parquet.columns"] = [column.model_dump() for column in found.columns]
    if keys:
        workload = workload.with_keys(keys)
    return Dataset(workload, found, False, (f"no manifest in {folder}: {found}", *found.notes))


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
) -> SurveyedLayout:
    """Return the layout of a dataset without a manifest, from file names and a few headers.

    Names may be any; files are read in the order of `_in_order`. Where a format tells how many
    samples a file holds, each is asked, and dataset.num_samples_per_file is not needed. With more
    files than dataset.num_files_train the first are read; with `all_files` all are. `at` is called
    with each folder or file before it is read.

    Raises:
        DatasetError: there are too few files, or what they hold is not what the workload reads.
    """
    if (folder / WORK).exists():
        raise DatasetError(f"{folder} is unfinished; start dlemu datagen again, it continues")
    wanted = layout_of(workload)
    at(f"{folder}/train")
    paths, notes = _paths(folder, workload, all_files)
    counts, fingerprint = _count_samples(folder, paths, workload, at)
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
        "fingerprint": fingerprint,
        "notes": notes,
    }
    found = SurveyedLayout(**(vars(wanted) | seen))
    if wanted.columns == layout_of(workload).columns:
        _check_mean(folder, workload, wanted, found.mean_bytes)
    return found


def _count_samples(
    folder: Path, paths: Sequence[str], workload: Workload, at: OnFile
) -> tuple[tuple[int, ...], str]:
    """Return the samples of each file, by indexes or by the format's own means, and a fingerprint.

    Empty where the format does not tell. What an earlier run has counted is not counted again.
    """
    kind = workload.dataset.file_format
    if type(kind).count is Format.count:
        return (), ""
    named = hashlib.sha256()
    for path in paths:
        at(f"{folder}/{path}")
        status = os.stat(f"{folder}/{path}")
        named.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="replace"))
    fingerprint = named.hexdigest()
    known = _counted_before(folder, workload, fingerprint)
    if isinstance(known, int):
        return (known,) * len(paths), fingerprint
    if isinstance(known, list) and len(known) == len(paths):
        return tuple(known), fingerprint

    def count(path: str) -> int | None:
        return _with_file(folder / path, partial(kind.count, path=f"{folder}/{path}"))

    with ThreadPoolExecutor(_READERS) as pool:
        counts = []
        for path, number in zip(paths, pool.map(count, paths), strict=True):
            at(f"{folder}/{path}")
            if number is None:
                return (), ""
            if number < 1:
                raise DatasetError(f"{folder}/{path} holds no samples")
            counts.append(number)
    return tuple(counts), fingerprint


def _counted_before(folder: Path, workload: Workload, fingerprint: str) -> Any:
    """Return what a survey beside the results has of the samples of these files; None: nothing."""
    given = workload.output.folder
    results = Path("outputs", workload.name) if given is None else Path(given).absolute().parent
    found = sorted(results.glob(f"*/{SURVEY}"), reverse=True)[:_MOST_SURVEYS]
    for path in found:
        with suppress(OSError, ValueError, LookupError, TypeError, DatasetError):
            stored = json.loads(read_regular(path))
            if stored["fingerprint"] == fingerprint:
                return stored["samples_of_files"]
    return None


def _columns_of(path: Path, default: tuple[ColumnSection, ...]) -> tuple[ColumnSection, ...]:
    """Return the columns of a parquet file where the keys name none: all are read, as stored.

    A file with the one column that the keys stand for is left to them.
    """
    found = _with_file(path, stored_columns)
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


def _paths(
    folder: Path, workload: Workload, all_files: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the paths of the files that are read, in order, and lines about those that are not.

    They lie below `train/`, or anywhere in the folder where there is no `train/`.
    """
    dataset, notes = workload.dataset, []
    tree = "train" if (folder / "train").is_dir() else ""
    place = folder / tree
    named = "" if tree else named_below(folder)  # of another dataset nothing is read
    by_end: dict[str, list[str]] = {}
    for below, entry in () if named else Folder(folder).list(tree):
        if not left_behind(entry.name):
            by_end.setdefault(_end_of(entry.name), []).append(below)
    kind, own = dataset.file_format, layout_of(workload).suffix
    ends = [own.lower(), *(each for each in kind.other_suffixes if each)]
    found = [path for end in ends for path in by_end.get(end, ())]
    if not found and "" in kind.other_suffixes:  # README and LICENSE have no number
        found = [path for path in by_end.get("", ()) if re.search(r"\d[^/]*$", path)]
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
    return tuple(found), tuple(notes)


def first_files(asked: int, have: int) -> str:
    """Return the line about files that dataset.num_files_train leaves out."""
    return f"dataset.num_files_train={asked}: the first {asked:,} of {have:,} files are read"


def _end_of(name: str) -> str:
    """Return the end of a name in small letters, without its dot: "" for train-00000-of-01024."""
    return _SHARD.sub("", name).rpartition(".")[2].lower() if "." in name else ""


def _labels(paths: Iterable[str]) -> set[str]:
    """Return those of names like case_00000_y.npy that have a case_00000_x.npy beside them."""
    there = {os.path.splitext(path)[0] for path in paths}
    return {
        path
        for path in paths
        if (stem := os.path.splitext(path)[0]).endswith("_y") and f"{stem[:-1]}x" in there
    }


def _in_order(paths: list[str]) -> list[str]:
    """Return paths by the numbers that DLIO gave them, else by name, with numbers by their value.

    So img_9 stands before img_10, on each file system.
    """
    numbers = [_OF_DLIO.fullmatch(path) for path in paths]
    numbered = {int(match[1]): path for match, path in zip(numbers, paths, strict=True) if match}
    if len(numbered) == len(paths):
        return [numbered[number] for number in sorted(numbered)]

    def key(path: str) -> tuple[list[tuple[int, str]], str]:
        parts = _PARTS.split(path)
        return [(int(part), "") if at % 2 else (-1, part) for at, part in enumerate(parts)], path

    return sorted(paths, key=key)


def _locate(path: Path, wanted: Layout, num_samples: int) -> Places:
    """Return where a file's samples lie, by its header."""
    kind = format_of(wanted)
    return _with_file(path, partial(kind.locate, num_samples=num_samples, path=str(path)))


def _with_file(path: Path, use: Callable[..., _T]) -> _T:
    """Return what `use` makes of a function that reads a file, and of the file's size."""
    with open(open_regular(path), "rb", buffering=0) as file:
        number = file.fileno()
        try:
            return use(
                lambda offset, length: os.pread(number, length, offset), os.fstat(number).st_size
            )
        except DatasetError as error:
            raise DatasetError(f"{path}: {error}") from None
