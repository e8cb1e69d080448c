"""Write a dataset: each rank its share of the files, so that an interrupted writing can continue.

1. prepare  rank 0 looks what is there and what is missing (prepare.py)
2. rename   a dataset that is extended: all ranks give its files their new names
3. write    each file under a temporary name, synced, renamed, then entered in its rank's journal
            with its checksum; indexes, which are small, are synced together at the end
4. finish   rank 0 checks that all files are in the journals, and writes the manifest in their place

Whoever starts again, on any number of ranks, reads in the journals which files are complete.

Into a bucket objects are put whole, and each rank's journal in the end, also of a failure: whoever
starts again after a kill lists what is there (LIST, which a run never does), and computes the
checksums of it once more. The plan is written first, dlemu.json last.
"""

import dataclasses
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dlemu.config.model import Workload
from dlemu.datagen.assemble import Content
from dlemu.datagen.manifest import (
    MANIFEST,
    Manifest,
    read_journals,
    read_manifest,
    to_entries,
    write_manifest,
)
from dlemu.datagen.prepare import Todo, dataset_folders, prepare
from dlemu.datagen.target import (
    WORK,
    FileMaker,
    FileProgress,
    Folder,
    OnProgress,
    Stopped,
    Worker,
    target_of,
    work_through,
)
from dlemu.dataset.layout import Layout, layout_of
from dlemu.errors import DatasetError, RunError
from dlemu.ranks.world import Alone, World
from dlemu.storage import probe
from dlemu.storage.owned import held
from dlemu.storage.s3.location import in_bucket

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
    target = target_of(folder, world.on_first(lambda: workload.access))
    remedy = "start datagen again, it continues with the files that are missing"
    with writing(folder, world, remedy):
        todo = world.on_first(lambda: prepare(target, wanted, workload.made_from))
        if world.rank == 0:
            on_begin()
        if todo.older is not None:
            places = target.of_workers(todo.layout, world)
            renamers = [_Renamer(each.path, todo.older, todo.layout) for each in places]
            work_through(np.arange(todo.older.num_files), renamers, num_bytes=0, world=world)
        if len(todo.missing) or len(todo.unknown):
            _write(target, todo, world, on_progress)
        if world.rank == 0:
            if todo.changes:
                _finish(target, todo.layout, workload.made_from)
            target.forget()
    world.barrier()
    manifest = read_manifest(folder, target.access)
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
            if world.rank == 0 and not in_bucket(folder):
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


def _write(target: Folder, todo: Todo, world: World, on_progress: OnProgress | None) -> None:
    """Write the missing files; all ranks call it, and return when all files are written."""
    layout, content = todo.layout, Content(todo.layout.seed)
    files = np.union1d(todo.missing, todo.unknown)
    with target.journal(f"rank{world.rank}.journal") as enter:
        places = target.of_workers(layout, world)
        work_through(
            files,
            [_Writer(each, layout, content, {*todo.unknown.tolist()}, enter) for each in places],
            num_bytes=int(layout.all_sizes()[0, files].sum()),
            world=world,
            on_progress=on_progress,
        )
        if layout.index_paths(0):
            target.settle()  # for the indexes
    # On a network file system rank 0 sees the entries of a journal once it is closed.
    world.barrier()


class _Writer(FileMaker):
    """Writes missing files, and enters their checksums in this rank's journal.

    Of those that are `there` it only computes the checksums.
    """

    def __init__(
        self,
        target: Folder,
        layout: Layout,
        content: Content,
        there: set[int],
        enter: Callable[[bytes], object],
    ) -> None:
        super().__init__(target, layout, content)
        self._there, self._enter = there, enter

    def do(self, file: int) -> None:
        if file in self._there:
            crc = self.made(file, lambda data, offset, num_bytes: None)
        else:
            # No sync: after a power failure the size is wrong, and a restart writes it again.
            self.write_indexes(file, sync=False)
            crc = self.write_file(file)
        self._enter(to_entries(np.array([file]), np.array([crc], np.uint32)))


def _finish(target: Folder, layout: Layout, workload: str) -> None:
    """Write the manifest, from the journals."""
    known, crcs = read_journals(target, layout.num_files)
    if not known.all():  # every rank has entered each of its files
        raise DatasetError(_vanished(target.path / WORK))
    target.sync(dataset_folders(layout))
    write_manifest(target, layout, crcs, workload or None)


def _vanished(path: Path) -> str:
    return f"{path} has vanished: another process removed it; start dlemu datagen again"


def write_rate(layout: Layout, folder: Path) -> float | None:
    """Return bytes per second at which a rank writes such files; None: a bucket, or unknown.

    The files are written as `generate` does, into a temporary folder beside `folder`, or in the
    next folder above that is there; it is removed in the end.
    """
    if in_bucket(folder):
        return None
    there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    seen: list[FileProgress] = []

    def stop(progress: FileProgress) -> None:
        seen.append(progress)
        raise Stopped

    try:
        with TemporaryDirectory(dir=there, prefix=".dlemu-probe.") as name:
            target, content = Folder(Path(name)), Content(0)
            target.make(dataset_folders(layout))
            writers = [_Prober(e, layout, content) for e in target.of_workers(layout, Alone())]
            files = np.arange(layout.num_files)
            every = min(_PROBE_SECONDS, probe.longest_seconds)
            work_through(files, writers, num_bytes=0, world=Alone(), on_progress=stop, every=every)
    except (OSError, Stopped):  # a full disk may end it early
        pass
    return seen[0].bytes_done / seen[0].seconds or None if seen else None


class _Prober(FileMaker):
    def do(self, file: int) -> None:
        self.write_file(file)
