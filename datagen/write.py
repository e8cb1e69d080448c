"""Write a dataset: each rank its share of the files, so that an interrupted writing can continue.

1. prepare  rank 0 looks what is there and what is missing
2. rename   a dataset that is extended: all ranks give its files their new names
3. write    each file under a temporary name, synced, renamed, then entered in its rank's journal
            with its checksum; indexes, which are small, are synced together at the end
4. finish   rank 0 checks that all files are in the journals, and writes the manifest in their place

A later start, on any number of ranks, reads in the journals which files are complete.

Into a bucket objects are put whole, and each rank's journal in the end: a later start lists
what is there (LIST, which a run never does), and computes the checksums of it once more. The plan
is written first, dlemu.json last.
"""

import dataclasses
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dlemu.config.model import Workload
from dlemu.datagen.assemble import Content
from dlemu.datagen.manifest import (
    FILE_TYPE,
    MANIFEST,
    Manifest,
    WritePlan,
    differing,
    read_journals,
    read_manifest,
    read_plan,
    refuse,
    to_entries,
    write_manifest,
)
from dlemu.datagen.target import (
    PLAN,
    WORK,
    FileMaker,
    FileProgress,
    Listing,
    OnProgress,
    Stopped,
    Worker,
    forget,
    journals,
    listing_of,
    places_of_workers,
    work_through,
)
from dlemu.dataset.layout import Layout, Samples, layout_of
from dlemu.errors import DatasetError, RunError
from dlemu.host.devices import existing, files_below
from dlemu.ranks.world import Alone, World
from dlemu.storage import probe
from dlemu.storage.folder import Folder
from dlemu.storage.owned import disk_bytes, room, why_full
from dlemu.storage.place import Place, place_of
from dlemu.units import PAGE_BYTES, counted, format_bytes, round_up

_DONE = f"{WORK}/done.journal"
_MANY = 1_000_000
"""From so many files on, looking at them takes long."""


@dataclass(frozen=True)
class Todo:
    """The work that a dataset still needs."""

    layout: Layout
    missing: Samples
    """Files that must be written, int64 (files,)."""
    unknown: Samples = field(default_factory=lambda: np.zeros(0, np.int64))
    """Objects that are there, and whose checksums must be computed once more."""
    older: Layout | None = None
    """The smaller dataset that is extended; its files get the names of the larger one."""
    changes: bool = True
    """Whether anything is left to write."""


@dataclass(frozen=True)
class FolderState:
    """A data folder as it is, before anything is changed."""

    todo: Todo
    done: bytes
    """Journal entries of the files that are complete."""
    partial: tuple[str, ...]
    """Temporary files of an interrupted datagen, below the folder."""
    sizes: Samples
    """Bytes of each file and below them of its indexes, int64 (1 + indexes, files)."""

    @property
    def num_bytes(self) -> int:
        """Bytes that the missing files take on the disk."""
        return int(round_up(self.sizes[:, self.todo.missing]).sum())

    def check_space(self, target: Place) -> None:
        """Refuse a dataset that does not fit on the disk of a folder, which may be missing."""
        if not self.todo.changes or target.room() is None:
            return
        layout, missing, folder = self.todo.layout, self.todo.missing, target.path
        needs = round_up(self.sizes[:, missing]).sum(axis=0)
        # Subfolders may be links to other drives: each file is counted where it will lie.
        below = missing % max(1, layout.num_subfolders)
        own = os.stat(existing(folder)).st_dev
        places: dict[int, tuple[Path, list[int]]] = {own: (folder, [])}
        for file in np.unique(below).tolist():
            there = existing((folder / layout.path(file)).parent)
            places.setdefault(os.stat(there).st_dev, (there, []))[1].append(file)
        for place, files in places.values():
            here = np.isin(below, files)
            room(
                place,
                self.sizes.shape[1] * FILE_TYPE.itemsize + int(needs[here].sum()),
                "free space, use another dataset.data_folder, or lower dataset.num_files_train",
                what=counted(int(here.sum()), f"{layout.format} file"),
                num_files=int(here.sum()) * len(self.sizes),
            )


def examine(target: Place, wanted: Layout) -> FolderState:
    """Return what is there and what is missing; refuse to write where others' files are."""
    folder = target.path
    manifest = read_manifest(folder, target.access)
    plan = read_plan(target) if manifest is None else None
    layout, older = choose_layout(target, wanted, manifest, plan)
    if layout.num_files >= _MANY:
        _check_capacity(target, layout)
    listing = listing_of(target, layout, *([] if older is None else [older]))
    refuse_strays(folder, listing, layout, known=manifest is not None or plan is not None)
    if older is not None:
        _refuse_taken_names(folder, listing, layout, extending=manifest is not None)

    sizes = layout.all_sizes()
    whole = (_joined(listing.found) == sizes).all(axis=0)
    if manifest is None:
        known, crcs = read_journals(target, layout.num_files)
    else:
        known = np.arange(layout.num_files) < manifest.layout.num_files
        crcs = np.pad(manifest.files["crc32c"], (0, layout.num_files - len(manifest.files)))
    missing = np.flatnonzero(~(whole & known))
    done, unknown = np.flatnonzero(whole & known), missing[:0]
    if not target.has_paths:  # what is there was put whole
        missing, unknown = np.flatnonzero(~whole), np.flatnonzero(whole & ~known)
    todo = Todo(layout, missing, unknown, older, manifest is None or len(missing) > 0)
    return FolderState(todo, to_entries(done, crcs[done]), listing.partial, sizes)


def prepare(target: Place, wanted: Layout, workload: str = "") -> Todo:
    """Make the folders, start the journal, and return what is left to do.

    `workload` is the origin of the workload that the dataset is written for.
    """
    found = examine(target, wanted)
    todo = found.todo
    found.check_space(target)
    # The empty folder of an evaluation set: without it DLIO does not train.
    target.make([Path("valid")])
    target.delete(*found.partial)
    if todo.changes:
        target.make(dataset_folders(todo.layout))
        extends = None if todo.older is None else todo.older.num_files
        plan = WritePlan(dataset=todo.layout, extends=extends, workload=workload or None)
        target.put(_DONE, [found.done])  # in place of all other journals
        target.put(PLAN, [plan.to_json()])
        target.delete(*(name for name in journals(target) if name != _DONE))
        # From here on the dataset is unfinished: it has lost files, or files get other names.
        target.delete(MANIFEST)
    return todo


def choose_layout(
    target: Place, wanted: Layout, manifest: Manifest | None, plan: WritePlan | None
) -> tuple[Layout, Layout | None]:
    """Return the layout to write by, and the layout of the smaller dataset that it extends."""
    folder = target.path
    other = "use another dataset.data_folder, or set"
    if manifest is not None:
        found = manifest.layout
        if differing(found, wanted) != ["num_files"]:
            refuse(found, wanted, folder, what="a dataset", remedy=other)
            return found, None
        if not target.has_paths or wanted.num_files < found.num_files:
            rule = "datagen extends a dataset, and never makes it smaller"
            rule = rule if target.has_paths else f"a dataset in {target.word} is not extended"
            refuse(found, wanted, folder, what="a dataset", remedy=f"{rule}; {other}")
        return wanted, found
    if plan is None:
        return wanted, None
    other = "use another dataset.data_folder, or finish that one with"
    refuse(plan.dataset, wanted, folder, what="an unfinished dataset", remedy=other)
    older = None if plan.extends is None else replace(plan.dataset, num_files=plan.extends)
    return plan.dataset, older


def _joined(found: Sequence[Samples]) -> Samples:
    """Return the files' sizes, of files that still have the name in a smaller dataset, too."""
    newest = found[0].copy()
    for old in found[1:]:
        same = newest[:, : old.shape[1]]
        np.maximum(same, old, out=same)
    return newest


def refuse_strays(folder: Path, listing: Listing, layout: Layout, *, known: bool) -> None:
    """Refuse to write beside other files; `known`: a manifest or a plan tells what is in these."""
    if listing.strays:
        more = len(listing.strays) - 1
        others = f" (and {counted(more, 'other file')})" if more else ""
        raise DatasetError(
            f"{folder / listing.strays[0]}{others} is no file of this dataset; move it elsewhere, "
            "or use another dataset.data_folder"
        )
    num_files = int((listing.found[0][0] >= 0).sum())
    if num_files and not known:
        raise DatasetError(
            f"{folder}/train holds {counted(num_files, f'{layout.format} file')} of these "
            "names and no manifest, so nobody knows what is in them; use another "
            "dataset.data_folder, or restore dlemu.json and dlemu.files.npy"
        )


def _refuse_taken_names(folder: Path, listing: Listing, layout: Layout, *, extending: bool) -> None:
    """Refuse to rename a file to a name that another file has.

    While the smaller dataset is still complete (`extending`), no file may have a new name. When an
    interrupted extension continues, only a file that exists under both names is refused.
    """
    for row, (newer, older) in enumerate(zip(*listing.found, strict=True)):
        there = newer >= 0
        if not extending:
            there[: len(older)] &= older >= 0
            there[len(older) :] = False
        if there.any():
            file = int(np.argmax(there))
            taken = folder / (layout.path(file), *layout.index_paths(file))[row]
            raise DatasetError(
                f"{taken} has a name that a file of the larger dataset will have; move it elsewhere"
            )


def dataset_folders(layout: Layout) -> list[Path]:
    """Return the folders of a dataset's files, below its own; those in a folder come after it."""
    first = range(min(layout.num_files, max(1, layout.num_subfolders)))
    paths = [layout.path(file) for file in first]
    paths += [path for file in first for path in layout.index_paths(file)]
    return sorted({up for path in paths for up in Path(path).parents})


def _check_capacity(target: Place, layout: Layout) -> None:
    """Refuse a dataset that is larger than the whole file system, before anything is looked at."""
    if target.room() is None:
        return
    have = sum(disk_bytes(each)[0] for each in files_below(existing(target.path)))
    need = max(layout.num_files * PAGE_BYTES, round(layout.num_samples * layout.mean_bytes))
    if need > have:
        raise RunError(
            f"{target.path} lies on a file system of {format_bytes(have)}, "
            f"{counted(layout.num_files, 'file')} need {format_bytes(need)}; use another "
            "dataset.data_folder, or lower dataset.num_files_train"
        )


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
    target = place_of(folder, world.on_first(lambda: workload.access))
    remedy = "start datagen again, it continues with the files that are missing"
    with writing(target, world, remedy):
        todo = world.on_first(lambda: prepare(target, wanted, workload.made_from))
        if world.rank == 0:
            on_begin()
        if todo.older is not None:
            places = places_of_workers(target, todo.layout, world)
            renamers = [_Renamer(each.path, todo.older, todo.layout) for each in places]
            work_through(np.arange(todo.older.num_files), renamers, num_bytes=0, world=world)
        if len(todo.missing) or len(todo.unknown):
            _write(target, todo, world, on_progress)
        if world.rank == 0:
            if todo.changes:
                _finish(target, todo.layout, workload.made_from)
            forget(target)
    world.barrier()
    manifest = read_manifest(folder, target.access)
    if manifest is None:
        raise DatasetError(_vanished(folder / MANIFEST))
    return dataclasses.replace(manifest, files_written=len(todo.missing))


@contextmanager
def writing(target: Place, world: World, remedy: str) -> Iterator[None]:
    """Keep other writers out of a folder, and say in one line why it cannot be written.

    `remedy` stands behind "free space and".
    """
    folder = target.path
    try:
        with ExitStack() as stack:
            if world.rank == 0:
                stack.enter_context(target.held("dataset.data_folder", _LOCK_SECONDS))
            yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(
                f"{folder} {why_full(folder, error)}; free space and {remedy}"
            ) from error
        if error.errno in _REMEDIES:
            raise DatasetError.of_system(
                error,
                error.filename2 or error.filename or folder,
                "cannot be used",
                f"{_REMEDIES[error.errno]}, or use another dataset.data_folder",
            ) from error
        raise


_REMEDIES = {
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR, errno.EISDIR), "move elsewhere what is there"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "change its permissions"),
    errno.EROFS: "mount it for writing",
}
"""Remedies of errors, by their number."""


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


def _write(target: Place, todo: Todo, world: World, on_progress: OnProgress | None) -> None:
    """Write the missing files; all ranks call it, and return when all files are written."""
    layout, content = todo.layout, Content(todo.layout.seed)
    files, there = np.union1d(todo.missing, todo.unknown), {*todo.unknown.tolist()}
    with target.appending(f"{WORK}/rank{world.rank}.journal") as enter:
        places = places_of_workers(target, layout, world)
        work_through(
            files,
            [_Writer(each, layout, content, there, enter) for each in places],
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
        target: Place,
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


def _finish(target: Place, layout: Layout, workload: str) -> None:
    """Write the manifest, from the journals."""
    known, crcs = read_journals(target, layout.num_files)
    if not known.all():  # every rank has entered each of its files
        raise DatasetError(_vanished(target.path / WORK))
    target.sync(dataset_folders(layout))
    write_manifest(target, layout, crcs, workload or None)


def _vanished(path: Path) -> str:
    return f"{path} has vanished: another process removed it; start dlemu datagen again"


def write_rate(layout: Layout, folder: Path, *, seconds: float = _PROBE_SECONDS) -> float | None:
    """Return bytes per second at which a rank writes such files; None: no folder, or unknown.

    The files are written as `generate` does, for `seconds` or until all are there, into a temporary
    folder beside `folder`, or in the next folder above that is there; it is removed in the end.
    """
    if not place_of(folder).has_paths:
        return None
    there = existing((folder / layout.path(0)).parent)
    seen: list[FileProgress] = []

    def stop(progress: FileProgress) -> None:
        seen.append(progress)
        raise Stopped

    try:
        with TemporaryDirectory(dir=there, prefix=".dlemu-probe.") as name:
            target, content = Folder(Path(name)), Content(0)
            target.make(dataset_folders(layout))
            writers = [
                _Prober(e, layout, content) for e in places_of_workers(target, layout, Alone())
            ]
            files = np.arange(layout.num_files)
            every = min(seconds, probe.longest_seconds)
            work_through(files, writers, num_bytes=0, world=Alone(), on_progress=stop, every=every)
    except (OSError, Stopped):  # a full disk may end it early
        pass
    return seen[0].bytes_done / seen[0].seconds or None if seen else None


class _Prober(FileMaker):
    def do(self, file: int) -> None:
        self.write_file(file)
