"""Write a dataset: each rank its share of the files, so that an interrupted writing can continue.

1. prepare  rank 0 looks what is there and what is missing (prepare.py)
2. rename   a dataset that is extended: all ranks give its files their new names
3. write    each file under a temporary name, synced, renamed, then entered in its rank's journal
            with its checksum; indexes, which are small, are synced together at the end
4. finish   rank 0 checks that all files are in the journals, and writes the manifest in their place

Whoever starts again, on any number of ranks, reads in the journals which files are complete.

Into a bucket objects are written whole, so there is no journal: whoever starts again lists what is
there (LIST, which a run never does), and computes the checksums of it once more. The plan is
written first, dlemu.json last.
"""

import ctypes
import dataclasses
import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from dlemu.config.model import Workload
from dlemu.datagen.assemble import Content
from dlemu.datagen.manifest import (
    FILE_TYPE,
    FILES,
    MANIFEST,
    Manifest,
    Plan,
    read_journals,
    read_manifest,
    read_plan,
    to_entries,
    write_manifest,
)
from dlemu.datagen.prepare import PLAN, Todo, choose_layout, dataset_folders, prepare, refuse_strays
from dlemu.datagen.target import (
    WORK,
    Bucket,
    FileMaker,
    FileProgress,
    Folder,
    OnProgress,
    Stopped,
    Worker,
    work_through,
)
from dlemu.dataset.layout import Layout, layout_of
from dlemu.errors import DatasetError, RunError
from dlemu.ranks.world import Alone, World
from dlemu.storage import probe
from dlemu.storage.atomic import sync_folder
from dlemu.storage.owned import held
from dlemu.storage.s3.location import ObjectPath, in_bucket


def generate_objects(
    workload: Workload,
    *,
    world: World,
    on_progress: OnProgress | None,
    on_begin: Callable[[], None],
) -> Manifest:
    """Do what `write.generate` does, in a bucket, with the access of rank 0."""
    folder, access = workload.data_folder, world.on_first(lambda: workload.access)
    assert isinstance(folder, ObjectPath) and access is not None
    bucket, layout = Bucket(folder, access), layout_of(workload)
    complete, there = world.on_first(lambda: _begin_objects(bucket, layout, workload.made_from))
    if world.rank == 0:
        on_begin()
    if complete is not None:
        return complete
    content = Content(layout.seed)
    writers = [
        _ObjectWriter(each, layout, content, there) for each in bucket.of_workers(layout, world)
    ]
    work_through(
        np.arange(layout.num_files),
        writers,
        num_bytes=int(layout.all_sizes()[0].sum()),
        world=world,
        on_progress=on_progress,
    )
    parts = world.gather({file: crc for writer in writers for file, crc in writer.crcs.items()})
    if parts is not None:
        _finish_objects(bucket, layout, parts, workload.made_from)
    manifest = world.on_first(lambda: read_manifest(bucket.path, bucket.access))
    if manifest is None:
        raise DatasetError(f"{bucket.path / MANIFEST} has vanished: somebody removed it")
    return dataclasses.replace(manifest, files_written=int((~there).sum()))


class _ObjectWriter(FileMaker):
    """Writes the objects that are not there yet, and keeps the checksums of all."""

    def __init__(
        self, bucket: Bucket, layout: Layout, content: Content, there: NDArray[np.bool_]
    ) -> None:
        super().__init__(bucket, layout, content)
        self._there = there
        self.crcs: dict[int, int] = {}

    def do(self, file: int) -> None:
        if self._there[file]:
            self.crcs[file] = self.made(file, lambda data, offset, num_bytes: None)
            return
        self.write_indexes(file)
        self.crcs[file] = self.write_file(file)


def _begin_objects(
    bucket: Bucket, wanted: Layout, workload: str
) -> tuple[Manifest | None, NDArray[np.bool_]]:
    """Write the plan; return which files an earlier datagen has completed, (files,).

    If the dataset is complete, its manifest is returned and nothing is written.
    """
    there = np.ones(wanted.num_files, np.bool_)
    manifest = read_manifest(bucket.path, bucket.access)
    plan = None if manifest else read_plan(bucket.path / WORK / PLAN, bucket.access)
    choose_layout(bucket.path, wanted, manifest, plan)
    if manifest is None:
        listing = bucket.listing(wanted)
        refuse_strays(bucket.path, listing, wanted, known=plan is not None)
        there = (listing.found[0] == wanted.all_sizes()).all(axis=0)
        if plan is None:
            bucket.put(f"{WORK}/{PLAN}", Plan(dataset=wanted, workload=workload or None).to_json())
    return manifest, there


def _finish_objects(bucket: Bucket, layout: Layout, parts: list[dict[int, int]], of: str) -> None:
    """Write the manifest, and remove the plan."""
    sizes = layout.all_sizes()[0]
    files = np.zeros(len(sizes), FILE_TYPE)
    files["bytes"] = sizes
    for part in parts:
        files["crc32c"][list(part)] = list(part.values())
    array = io.BytesIO()
    np.save(array, files)
    bucket.put(FILES, array.getbuffer())
    manifest = Manifest(layout, files, int(sizes.sum()), workload=of or None)
    bucket.put(MANIFEST, manifest.to_json())
    bucket.delete(f"{WORK}/{PLAN}")


_PROBE_SECONDS = 1.0
_LOCK_SECONDS = 2.0
"""How long to wait for another datagen: it may only be checking that a dataset is complete."""


def generate(
    workload: Workload,
    *,
    world: World | None = None,
    on_progress: OnProgress | None = None,
    on_begin: Callable[[], None] = lambda: None,
) -> Manifest:
    """Write what is missing of a workload's dataset; all ranks call it and return its manifest.

    Without a `world` there is one rank. `on_begin` is called on rank 0, once it is clear that the
    dataset may be written, and `on_progress` about once a second.

    Raises:
        DatasetError: the folder holds another dataset.
        WorkloadError: another datagen writes it.
        RunError: the disk is, or would be, full. Complete files stay and need not be written again.
        PeerError: another rank failed.
    """
    world = world or Alone()
    wanted, folder = layout_of(workload), workload.data_folder
    if in_bucket(folder):
        return generate_objects(workload, world=world, on_progress=on_progress, on_begin=on_begin)
    remedy = "start datagen again, it continues with the files that are missing"
    with writing(folder, world, remedy):
        todo = world.on_first(lambda: prepare(folder, wanted, workload.made_from))
        if world.rank == 0:
            on_begin()
        if todo.older is not None:
            newer = todo.layout
            places = Folder(folder).of_workers(todo.layout, world)
            renamers = [_Renamer(each.path, todo.older, newer) for each in places]
            work_through(np.arange(todo.older.num_files), renamers, num_bytes=0, world=world)
        if len(todo.missing):
            _write(folder, todo, world, on_progress)
        if world.rank == 0:
            _finish(folder, todo.layout, workload.made_from)
    world.barrier()
    manifest = read_manifest(folder)
    if manifest is None:
        raise DatasetError(_vanished(folder / MANIFEST))
    return dataclasses.replace(manifest, files_written=len(todo.missing))


@contextmanager
def writing(folder: Path, world: World, remedy: str) -> Iterator[None]:
    """Keep other writers out of a folder, and say in one line why it cannot be written.

    `remedy` stands behind "free space and".
    """
    try:
        with ExitStack() as stack:
            if world.rank == 0:
                stack.enter_context(held(folder, key="dataset.data_folder", seconds=_LOCK_SECONDS))
            yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(
                f"{folder} is full ({error.strerror}); free space and {remedy}"
            ) from error
        if error.errno in _REMEDIES:
            raise DatasetError(
                f"{error.filename2 or error.filename or folder} cannot be used ({error.strerror}); "
                f"{_REMEDIES[error.errno]}, or use another dataset.data_folder"
            ) from error
        raise


_REMEDIES = {
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR, errno.EISDIR), "move elsewhere what is there"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "change its permissions"),
    errno.EROFS: "mount it for writing",
}
"""What to do about errors, by their number."""


class _Renamer(Worker):
    """Gives files the names that they have in a larger dataset."""

    def __init__(self, folder: Path, older: Layout, newer: Layout) -> None:
        super().__init__()
        self._folder, self._older, self._newer = folder, older, newer

    def do(self, file: int) -> None:
        self._rename(self._older.path(file), self._newer.path(file))
        indexes = self._older.index_paths(file), self._newer.index_paths(file)
        for older, newer in zip(*indexes, strict=True):
            self._rename(older, newer)

    def _rename(self, older: str, newer: str) -> None:
        # A missing file was renamed before an interruption, or is lost and will be written.
        with suppress(FileNotFoundError):
            os.rename(self._folder / older, self._folder / newer)


def _write(folder: Path, todo: Todo, world: World, on_progress: OnProgress | None) -> None:
    """Write the missing files; all ranks call it, and return when all files are written."""
    layout, missing = todo.layout, todo.missing
    content = Content(layout.seed)
    path = folder / WORK / f"rank{world.rank}.journal"
    journal = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
    try:
        work_through(
            missing,
            [
                _Writer(each, layout, content, journal)
                for each in Folder(folder).of_workers(layout, world)
            ],
            num_bytes=int(layout.all_sizes()[0, missing].sum()),
            world=world,
            on_progress=on_progress,
        )
        if layout.index_paths(0):
            _sync_file_system(journal)  # for the indexes
    finally:
        os.close(journal)
    # On a network file system rank 0 sees the entries of a journal once it is closed.
    world.barrier()


class _Writer(FileMaker):
    """Writes missing files, and enters them in this rank's journal."""

    def __init__(self, folder: Folder, layout: Layout, content: Content, journal: int) -> None:
        super().__init__(folder, layout, content)
        self._journal = journal

    def do(self, file: int) -> None:
        # No sync: after a power failure the size is wrong, and a restart writes the index again.
        self.write_indexes(file, sync=False)
        crc = self.write_file(file)
        os.write(self._journal, to_entries(np.array([file]), np.array([crc], np.uint32)))


def _sync_file_system(number: int) -> None:
    """Sync the whole file system on which this open file lies."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(number):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _finish(folder: Path, layout: Layout, workload: str) -> None:
    """Write the manifest, if it is not there, and remove the journals."""
    work = folder / WORK
    if not (folder / MANIFEST).exists():
        known, crcs = read_journals(work, layout.num_files)
        if not known.all():  # every rank has entered each of its files
            raise DatasetError(_vanished(work))
        for below in dataset_folders(folder, layout):
            sync_folder(below)
        write_manifest(folder, layout, crcs, workload or None)
    shutil.rmtree(work, ignore_errors=True)  # where there is a manifest, journals are ignored


def _vanished(path: Path) -> str:
    return f"{path} has vanished: another process removed it; start dlemu datagen again"


def write_rate(layout: Layout, folder: Path) -> float | None:
    """Return bytes per second at which a rank writes such files; None if it cannot tell.

    The files are written as `generate` does, into a temporary folder beside `folder`, or in the
    next folder above that is there; it is removed in the end.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    seen: list[FileProgress] = []

    def stop(progress: FileProgress) -> None:
        seen.append(progress)
        raise Stopped

    try:
        with TemporaryDirectory(dir=there, prefix=".dlemu-probe.") as name:
            for below in dataset_folders(Path(name), layout):
                below.mkdir(parents=True, exist_ok=True)
            places, content = Folder(Path(name)).of_workers(layout, Alone()), Content(0)
            writers = [_Prober(each, layout, content) for each in places]
            files = np.arange(layout.num_files)
            every = min(_PROBE_SECONDS, probe.longest_seconds)
            work_through(files, writers, num_bytes=0, world=Alone(), on_progress=stop, every=every)
    except (OSError, Stopped):  # a full disk may end it early
        pass
    return seen[0].bytes_done / seen[0].seconds or None if seen else None


class _Prober(FileMaker):
    def do(self, file: int) -> None:
        self.write_file(file)
