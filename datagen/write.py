"""Write a dataset: each rank its share of the files, whole or not at all, so that it can go on.

A file is written under a temporary name, synced, renamed, and then entered in its rank's journal
with its checksum. Indexes, which are small, are synced together at the end. Whoever starts again,
on any number of ranks, takes from the journals what is done. They make way for the manifest when
all is.
"""

import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlemu.datagen.assemble import Assembly, piece_buffer
from dlemu.datagen.content import Content
from dlemu.datagen.listing import PARTIAL, WORK, Listing, list_files
from dlemu.datagen.manifest import (
    FILE_TYPE,
    MANIFEST,
    Manifest,
    Plan,
    Recipe,
    read_manifest,
    read_plan,
    sync_folder,
    write_whole,
)
from dlemu.datagen.work import FILES_IN_FLIGHT, OnProgress, Stopped, work_through
from dlemu.dataset.layout import Layout, Samples
from dlemu.errors import DatasetError, RunError
from dlemu.formats import FORMATS
from dlemu.storage.regular import read_regular
from dlemu.units import counted, format_bytes, round_up
from dlemu.workload.model import Workload
from dlemu.world.world import World

_PLAN = "recipe.json"
_DONE = "done.journal"
_LOOKING_SECONDS = 2.0
# `check` covers the other two: a killed writer may leave half an entry.
_ENTRY = np.dtype([("file", "<i8"), ("crc32c", "<u4"), ("check", "<u4")])


def generate(
    workload: Workload, *, world: World, on_progress: OnProgress | None = None
) -> Manifest:
    """Write what is missing of a workload's dataset; all ranks call it and return its manifest.

    `on_progress` is called on rank 0, about once a second.

    Raises:
        DatasetError: the folder holds another dataset, or another datagen writes it.
        RunError: the disk is, or would be, full. What was written stays and need not be again.
        PeerError: another rank failed.
    """
    wanted, folder = Recipe.of(workload), workload.data_folder
    remedy = "start datagen again, it continues with the files that are missing"
    with writing(folder, world, remedy):
        todo = world.on_first(lambda: _prepare(folder, wanted))
        if todo.older is not None:
            _rename(folder, todo, todo.older, world)
        if len(todo.missing):
            _write(folder, todo, world, on_progress)
        if world.rank == 0:
            _finish(folder, todo.recipe)
    world.barrier()
    manifest = read_manifest(folder)
    if manifest is None:
        raise DatasetError(_vanished(folder / MANIFEST))
    return dataclasses.replace(manifest, files_written=len(todo.missing))


@contextlib.contextmanager
def writing(folder: Path, world: World, remedy: str) -> Iterator[None]:
    """Keep other writers out of a folder, and say in one line that its disk is full.

    `remedy` stands behind "free space and".

    Raises:
        DatasetError: another datagen writes there.
        RunError: the disk is full.
    """
    try:
        with _only_writer(folder) if world.rank == 0 else contextlib.nullcontext():
            yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise RunError(
            f"{folder} is full ({os.strerror(error.errno)}); free space and {remedy}"
        ) from error


def _vanished(path: Path) -> str:
    return f"{path} has vanished: another process removed it; start dlemu datagen again"


@contextlib.contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """Refuse to write where another process writes; a killed one is in nobody's way.

    Raises:
        DatasetError: another is still at it after some seconds, in which it could have looked
            whether a dataset is complete.
    """
    folder.mkdir(parents=True, exist_ok=True)
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        end = time.monotonic() + _LOOKING_SECONDS
        while not _locked(number):
            if time.monotonic() > end:
                raise DatasetError(
                    f"{folder} is being written by another datagen; wait for it, or use another "
                    "dataset.data_folder"
                )
            time.sleep(0.05)
        yield
    finally:
        os.close(number)


def _locked(number: int) -> bool:
    """Lock an open folder; False if somebody else has."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # NFS locks no folders: there, two would go wrong unseen, as they do without this
    return True


@dataclass(frozen=True)
class _Todo:
    """What is left to do for a dataset."""

    recipe: Recipe
    missing: Samples
    """Files that are to be written, int64 (files,)."""
    older: Layout | None = None
    """The dataset that is extended; its files get the names of the larger one."""


def _prepare(folder: Path, wanted: Recipe) -> _Todo:
    """Make the folders and return what is to be done."""
    work = folder / WORK
    manifest = read_manifest(folder)
    plan = read_plan(work / _PLAN) if manifest is None else None
    recipe, older = _settle(folder, wanted, manifest, plan)
    layout = recipe.layout
    listing = list_files(folder, layout, *([] if older is None else [older]))
    _refuse_strays(folder, listing, recipe, known=manifest is not None or plan is not None)
    if older is not None:
        _refuse_twice(folder, listing, layout, extending=manifest is not None)

    sizes, index_sizes = recipe.file_sizes(), recipe.index_sizes()
    whole = _joined([present.sizes for present in listing.found]) == sizes
    if index_sizes is not None:
        whole &= _joined([present.index_sizes for present in listing.found]) == index_sizes
    if manifest is None:
        known, crcs = _read_journals(work, layout.num_files)
    else:
        known, crcs = np.zeros(layout.num_files, np.bool_), np.zeros(layout.num_files, np.uint32)
        known[: manifest.layout.num_files] = True
        crcs[: manifest.layout.num_files] = manifest.files["crc32c"]
    missing = np.flatnonzero(~(whole & known))
    for partial in listing.partial:
        (folder / partial).unlink()
    if manifest is not None and not len(missing):
        _for_dlio(folder)
        return _Todo(recipe, missing)

    _check_space(folder, sizes, index_sizes, missing)
    for below in [*_folders(folder, recipe), work]:
        below.mkdir(parents=True, exist_ok=True)
    _for_dlio(folder)
    done = np.flatnonzero(whole & known)
    # One journal of what is done, and none with half an entry at its end.
    write_whole(work / _DONE, _entries(done, crcs[done]).tobytes())
    Plan(recipe, None if older is None else older.num_files).write(work / _PLAN)
    for path in work.glob("rank*.journal"):
        path.unlink()
    sync_folder(folder)
    # From here on the dataset is unfinished: files of it were lost, or get other names.
    (folder / MANIFEST).unlink(missing_ok=True)
    sync_folder(folder)
    return _Todo(recipe, missing, older)


def _settle(
    folder: Path, wanted: Recipe, manifest: Manifest | None, plan: Plan | None
) -> tuple[Recipe, Layout | None]:
    """Return the recipe that the folder's dataset is to have, and what it is extended from.

    Raises:
        DatasetError: the folder holds another dataset.
    """
    tree, other = wanted.to_tree(), "use another dataset.data_folder, or set"
    if manifest is not None:
        found, have = manifest.recipe, manifest.layout.num_files
        if found.differing(tree) != ["num_files"]:
            found.refuse(tree, folder, what="a dataset", remedy=other)
            return found, None
        if wanted.layout.num_files < have:
            other = f"datagen extends a dataset, and never makes it smaller; {other}"
            found.refuse(tree, folder, what="a dataset", remedy=other)
        return found.of_files(wanted.layout.num_files), manifest.layout
    if plan is None:
        return wanted, None
    other = "use another dataset.data_folder, or finish that one with"
    plan.recipe.refuse(tree, folder, what="an unfinished dataset", remedy=other)
    if plan.extends is None:
        return plan.recipe, None
    return plan.recipe, plan.recipe.of_files(plan.extends).layout


def _joined(sizes: list[Samples]) -> Samples:
    """Return the sizes of files, of which some may have the names of a smaller dataset."""
    newest, *older = sizes
    for old in older:
        newest = np.maximum(newest, np.pad(old, (0, len(newest) - len(old)), constant_values=-1))
    return newest


def _refuse_strays(folder: Path, listing: Listing, recipe: Recipe, *, known: bool) -> None:
    """Refuse to write beside files that are not this dataset's.

    Raises:
        DatasetError: with the file, or with what nobody vouches for.
    """
    if listing.strays:
        more = len(listing.strays) - 1
        others = f" (and {counted(more, 'other file')})" if more else ""
        raise DatasetError(
            f"{folder / listing.strays[0]}{others} is no file of this dataset; move it elsewhere, "
            "or use another dataset.data_folder"
        )
    num_files = int((listing.found[0].sizes >= 0).sum())
    if num_files and not known:
        raise DatasetError(
            f"{folder}/train holds {counted(num_files, f'{recipe.layout.format} file')} of these "
            "names and no manifest, so nobody knows what is in them; use another "
            "dataset.data_folder, or restore dlemu.json and dlemu.files.npy"
        )


def _refuse_twice(folder: Path, listing: Listing, layout: Layout, *, extending: bool) -> None:
    """Refuse to rename files to names that are taken.

    Raises:
        DatasetError: with the first. As long as the smaller dataset is whole, there is none that
            datagen wrote; later one of each file.
    """
    new, old = listing.found
    for newer, older, path in (
        (new.sizes, old.sizes, layout.path),
        (new.index_sizes, old.index_sizes, layout.index_path),
    ):
        there = newer >= 0
        if not extending:
            there[: len(older)] &= older >= 0
            there[len(older) :] = False
        if there.any():
            taken = folder / path(int(np.argmax(there)))
            raise DatasetError(
                f"{taken} has a name that a file of the larger dataset will have; move it elsewhere"
            )


def _for_dlio(folder: Path) -> None:
    """Make the folder of an evaluation set, empty: DLIO does not train where it is missing."""
    (folder / "valid").mkdir(exist_ok=True)


def _folders(folder: Path, recipe: Recipe) -> list[Path]:
    """Return the folders of a dataset, those above others first."""
    layout = recipe.layout
    first = range(min(layout.num_files, max(1, layout.num_subfolders)))
    paths = [layout.path(file) for file in first]
    if layout.format == "tfrecord":
        paths += [layout.index_path(file) for file in first]
    return [folder / below for below in sorted({up for path in paths for up in Path(path).parents})]


def _check_space(
    folder: Path, sizes: Samples, index_sizes: Samples | None, missing: Samples
) -> None:
    """Refuse what cannot fit."""
    system = os.statvfs(folder)
    have = system.f_bavail * system.f_frsize
    need = len(sizes) * FILE_TYPE.itemsize
    for written in (sizes, index_sizes):
        if written is not None:
            need += int(round_up(written[missing]).sum())
    if need > have:
        raise RunError(
            f"{folder} has {format_bytes(have)} free, the dataset needs {format_bytes(need)} more; "
            "free space, use another dataset.data_folder, or lower dataset.num_files_train"
        )


def _rename(folder: Path, todo: _Todo, older: Layout, world: World) -> None:
    """Give this rank's share of a smaller dataset's files their new names; wait for the others'."""
    work_through(
        np.arange(world.rank, older.num_files, world.num_ranks),
        [_Renamer(folder, older, todo.recipe.layout) for _ in range(FILES_IN_FLIGHT)],
        world=world,
        files_total=older.num_files,
        bytes_total=0,
        on_progress=None,
    )


def _write(folder: Path, todo: _Todo, world: World, on_progress: OnProgress | None) -> None:
    """Write this rank's share of the missing files, and wait for the others'."""
    recipe, missing = todo.recipe, todo.missing
    content, sizes = Content(recipe.layout.seed), recipe.file_sizes()
    path = folder / WORK / f"rank{world.rank}.journal"
    journal = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
    try:
        work_through(
            missing[world.rank :: world.num_ranks],
            [_Writer(folder, recipe, content, journal) for _ in range(FILES_IN_FLIGHT)],
            world=world,
            files_total=len(missing),
            bytes_total=int(sizes[missing].sum()),
            on_progress=on_progress,
        )
        if recipe.layout.format == "tfrecord":
            _sync_file_system(journal)  # for the indexes
    finally:
        os.close(journal)
    world.barrier()  # all journals are closed, and so seen by rank 0 on a network's file system


def _sync_file_system(number: int) -> None:
    """Make all that was written to the file system of this open file outlive a power failure."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(number):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _entries(files: Samples, crcs: NDArray[np.uint32]) -> NDArray[np.void]:
    entries = np.zeros(len(files), _ENTRY)
    entries["file"], entries["crc32c"] = files, crcs
    entries["check"] = _check(entries)
    return entries


def _check(entries: NDArray[np.void]) -> NDArray[np.uint32]:
    """Return 32 bits that depend on both numbers of each entry."""
    mixed = entries["file"].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ entries["crc32c"]
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    check: NDArray[np.uint32] = (mixed >> np.uint64(32)).astype(np.uint32)
    return check


def _read_journals(work: Path, num_files: int) -> tuple[NDArray[np.bool_], NDArray[np.uint32]]:
    """Return which files are done, and their checksums."""
    known, crcs = np.zeros(num_files, np.bool_), np.zeros(num_files, np.uint32)
    for path in work.glob("*.journal"):
        data = read_regular(path)
        entries = np.frombuffer(data[: len(data) // _ENTRY.itemsize * _ENTRY.itemsize], _ENTRY)
        file = entries["file"]
        entries = entries[(entries["check"] == _check(entries)) & (file >= 0) & (file < num_files)]
        known[entries["file"]] = True
        crcs[entries["file"]] = entries["crc32c"]
    return known, crcs


def _finish(folder: Path, recipe: Recipe) -> None:
    """Put the manifest in the place of the journals."""
    work = folder / WORK
    if not (folder / MANIFEST).exists():
        known, crcs = _read_journals(work, recipe.layout.num_files)
        if not known.all():  # each rank has entered each of its files
            raise DatasetError(_vanished(work))
        for below in _folders(folder, recipe):
            sync_folder(below)
        files = np.zeros(len(crcs), FILE_TYPE)
        files["bytes"], files["crc32c"] = recipe.file_sizes(), crcs
        Manifest(recipe, files, int(files["bytes"].sum())).write(folder)
    shutil.rmtree(work, ignore_errors=True)  # what stays of it says nothing beside a manifest


class _Renamer:
    """Gives files the names that they have in a larger dataset."""

    def __init__(self, folder: Path, older: Layout, newer: Layout) -> None:
        self.files_done = self.bytes_done = 0
        self.stopped = False
        self._folder, self._older, self._newer = folder, older, newer

    def do(self, file: int) -> None:
        self._rename(self._older.path(file), self._newer.path(file))
        if self._newer.format == "tfrecord":
            self._rename(self._older.index_path(file), self._newer.index_path(file))
        self.files_done += 1

    def _rename(self, older: str, newer: str) -> None:
        # It is not there if it was renamed before an interruption, or lost.
        with contextlib.suppress(FileNotFoundError):
            os.rename(self._folder / older, self._folder / newer)


class FileWriter:
    """Writes files, one after the other."""

    def __init__(self, folder: Path, recipe: Recipe, content: Content) -> None:
        self.files_done = self.bytes_done = 0
        self.stopped = False
        self._folder, self._recipe, self._content = folder, recipe, content
        self._format = FORMATS[recipe.layout.format]
        self._buffer = piece_buffer()
        self._file = -1

    def write_index(self, file: int, *, synced: bool) -> None:
        """Write a file's index, if the format has one."""
        index = self._recipe.write_index(file)
        if index is not None:
            path = self._folder / self._recipe.layout.index_path(file)
            with _partial(path, direct=False, synced=synced) as number:
                _write_all(number, np.frombuffer(index, np.uint8), 0)

    def write_file(self, file: int, *, wanted_crc: int | None = None) -> int:
        """Write a file and return its CRC-32C.

        Raises:
            ValueError: it is not the wanted one; the file is as it was before.
        """
        with _partial(self._folder / self._recipe.layout.path(file), direct=True) as self._file:
            assembly = Assembly(self._content, self._buffer, self._put)
            self._format.write(assembly, self._recipe.file_samples(file))
            num_bytes, crc = assembly.finish()
            if wanted_crc not in (None, crc):
                raise ValueError(f"its checksum would be {crc}, not {wanted_crc}")
            os.ftruncate(self._file, num_bytes)  # the last page was written whole
        return crc

    def _put(self, piece: NDArray[np.uint8], offset: int) -> None:
        if self.stopped:
            raise Stopped
        num_bytes = len(piece)
        whole = round_up(num_bytes)
        padded = self._buffer[:whole]  # which the piece is the start of
        padded[num_bytes:] = 0
        _write_all(self._file, padded, offset)
        self.bytes_done += num_bytes


class _Writer(FileWriter):
    """Writes what is missing, and enters it in a journal."""

    def __init__(self, folder: Path, recipe: Recipe, content: Content, journal: int) -> None:
        super().__init__(folder, recipe, content)
        self._journal = journal

    def do(self, file: int) -> None:
        # Not synced: after a power failure its size is wrong, and a restart rewrites it.
        self.write_index(file, synced=False)
        entry = _entries(np.array([file]), np.array([self.write_file(file)], np.uint32))
        os.write(self._journal, entry.tobytes())
        self.files_done += 1


def _write_all(number: int, data: NDArray[np.uint8], offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(number, data[done:].data, offset + done)


@contextlib.contextmanager
def _partial(path: Path, *, direct: bool, synced: bool = True) -> Iterator[int]:
    """Yield a new file's descriptor; the file gets its name once it is whole, and `synced`."""
    partial = f"{path}{PARTIAL}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        number = os.open(partial, flags | (os.O_DIRECT if direct else 0), 0o666)
    except OSError as error:
        if not direct or error.errno != errno.EINVAL:
            raise
        number = os.open(partial, flags, 0o666)  # this file system has no direct writes
    try:
        yield number
        if synced:
            os.fsync(number)
    except BaseException:
        os.close(number)
        os.unlink(partial)
        raise
    os.close(number)
    os.rename(partial, path)
