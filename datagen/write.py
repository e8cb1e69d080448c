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
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlemu.datagen.assemble import Assembly, piece_buffer
from dlemu.datagen.content import Content
from dlemu.datagen.listing import PARTIAL, WORK, list_files
from dlemu.datagen.manifest import (
    FILE_TYPE,
    MANIFEST,
    Manifest,
    Recipe,
    read_manifest,
    sync_folder,
    write_whole,
)
from dlemu.datagen.progress import FILES_IN_FLIGHT, OnProgress, Stopped, work_through
from dlemu.errors import DatasetError, RunError
from dlemu.files import Samples
from dlemu.formats import FORMATS, PAGE_BYTES
from dlemu.regular import read_regular
from dlemu.units import format_bytes
from dlemu.workload import Workload
from dlemu.world import World

_RECIPE = "recipe.json"
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
    recipe, folder = Recipe.of(workload), workload.data_folder
    try:
        with _only_writer(folder) if world.rank == 0 else contextlib.nullcontext():
            missing = world.broadcast(_prepare(folder, recipe) if world.rank == 0 else None)
            assert missing is not None
            if len(missing):
                _write(folder, recipe, missing, world, on_progress)
            if world.rank == 0:
                _finish(folder, recipe)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise RunError(
            f"{folder} is full ({os.strerror(error.errno)}); free space and start datagen again, "
            "it continues with the files that are missing"
        ) from error
    world.barrier()
    manifest = read_manifest(folder)
    assert manifest is not None
    return dataclasses.replace(manifest, files_written=len(missing))


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


def _prepare(folder: Path, recipe: Recipe) -> Samples:
    """Make the folders and return the files that are to be written, int64 (files,)."""
    work = folder / WORK
    manifest = read_manifest(folder)
    if manifest is not None:
        manifest.recipe.refuse(recipe, folder)
    elif (work / _RECIPE).exists():
        Recipe.from_tree(json.loads(read_regular(work / _RECIPE))).refuse(recipe, folder)

    found = list_files(folder, recipe.layout)
    others = [path for path in found.others if not path.endswith(PARTIAL)]
    unknown = manifest is None and not (work / _RECIPE).exists() and found.sizes.max() >= 0
    if others or unknown:
        raise DatasetError(
            f"{folder} holds files of another dataset ({others[0] if others else 'no manifest'}); "
            "use another dataset.data_folder, or remove that folder"
        )
    sizes, index_sizes = recipe.file_sizes(), recipe.index_sizes()
    whole = found.sizes == sizes
    if index_sizes is not None:
        whole &= found.index_sizes == index_sizes
    known, crcs = _read_journals(work, recipe.layout.num_files)
    if manifest is not None:
        known[:], crcs[:] = True, manifest.files["crc32c"]
    missing = np.flatnonzero(~(whole & known))
    if manifest is not None and not len(missing):
        return missing

    for partial in found.others:
        (folder / partial).unlink()
    _check_space(folder, sizes, index_sizes, missing)
    for below in [*_folders(folder, recipe), work]:
        below.mkdir(parents=True, exist_ok=True)
    write_whole(work / _RECIPE, json.dumps(recipe.to_tree()).encode())
    done = np.flatnonzero(whole & known)
    # One journal of what is done, and none with half an entry at its end.
    write_whole(work / _DONE, _entries(done, crcs[done]).tobytes())
    for path in work.glob("rank*.journal"):
        path.unlink()
    (folder / MANIFEST).unlink(missing_ok=True)  # files of it were lost
    return missing


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
            need += int((-(-written[missing] // PAGE_BYTES) * PAGE_BYTES).sum())
    if need > have:
        raise RunError(
            f"{folder} has {format_bytes(have)} free, the dataset needs {format_bytes(need)} more; "
            "free space, use another dataset.data_folder, or lower dataset.num_files_train"
        )


def _write(
    folder: Path,
    recipe: Recipe,
    missing: Samples,
    world: World,
    on_progress: OnProgress | None,
) -> None:
    """Write this rank's share of the missing files, and wait for the others'."""
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
        entries = entries[(entries["check"] == _check(entries)) & (entries["file"] < num_files)]
        known[entries["file"]] = True
        crcs[entries["file"]] = entries["crc32c"]
    return known, crcs


def _finish(folder: Path, recipe: Recipe) -> None:
    """Put the manifest in the place of the journals."""
    work = folder / WORK
    if not work.exists():
        return
    if not (folder / MANIFEST).exists():
        known, crcs = _read_journals(work, recipe.layout.num_files)
        assert known.all(), "each rank has entered each of its files"
        for below in _folders(folder, recipe):
            sync_folder(below)
        files = np.zeros(len(crcs), FILE_TYPE)
        files["bytes"], files["crc32c"] = recipe.file_sizes(), crcs
        Manifest(recipe, files, int(files["bytes"].sum())).write(folder)
    shutil.rmtree(work)


class _Writer:
    """Writes files, one after the other."""

    def __init__(self, folder: Path, recipe: Recipe, content: Content, journal: int) -> None:
        self.files_done = self.bytes_done = 0
        self.stopped = False
        self._folder, self._recipe, self._content = folder, recipe, content
        self._journal = journal
        self._format = FORMATS[recipe.layout.format]
        self._buffer = piece_buffer()
        self._file = -1

    def do(self, file: int) -> None:
        layout = self._recipe.layout
        index = self._recipe.write_index(file)
        if index is not None:
            path = self._folder / layout.index_path(file)
            # Lost with the host's power, it has not the size that a restart looks for.
            with _partial(path, direct=False, synced=False) as number:
                _write_all(number, np.frombuffer(index, np.uint8), 0)
        with _partial(self._folder / layout.path(file), direct=True) as self._file:
            assembly = Assembly(self._content, self._buffer, self._put)
            self._format.write(assembly, self._recipe.file_samples(file))
            num_bytes, crc = assembly.finish()
            os.ftruncate(self._file, num_bytes)  # the last page was written whole
        entry = _entries(np.array([file]), np.array([crc], np.uint32))
        os.write(self._journal, entry.tobytes())
        self.files_done += 1

    def _put(self, piece: NDArray[np.uint8], offset: int) -> None:
        if self.stopped:
            raise Stopped
        num_bytes = len(piece)
        whole = -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
        padded = self._buffer[:whole]  # which the piece is the start of
        padded[num_bytes:] = 0
        _write_all(self._file, padded, offset)
        self.bytes_done += num_bytes


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
