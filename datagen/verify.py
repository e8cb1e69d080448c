"""Compare a dataset with its manifest: sizes by one listing, content byte for byte; repair it."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlemu.datagen.assemble import Assembly, piece_buffer
from dlemu.datagen.bucket import Bucket, check_objects, repair_objects
from dlemu.datagen.content import Content
from dlemu.datagen.listing import list_files
from dlemu.datagen.manifest import FILES, MANIFEST, REMEDY, Manifest, read_manifest
from dlemu.datagen.work import FILES_IN_FLIGHT, OnProgress, Stopped, Worker, work_through
from dlemu.datagen.write import FileWriter, writing
from dlemu.dataset.layout import Samples
from dlemu.errors import DatasetError
from dlemu.formats import format_of
from dlemu.storage.atomic import sync_folder
from dlemu.storage.regular import direct_if_possible, open_regular, read_regular
from dlemu.units import round_up
from dlemu.workload.objects import Access, ObjectPath
from dlemu.world.world import World

_STRAY = "does not belong to the dataset; move it elsewhere"
_IGNORED = "does not belong to the dataset; nothing reads it"
_PARTIAL = "is left of an interrupted writing; dlemu datagen removes it"


@dataclass(frozen=True, order=True)
class Fault:
    """A file that is damaged or missing, or that does not belong to the dataset."""

    path: str
    """Below the data folder."""
    problem: str
    file: int | None = field(default=None, compare=False)
    """Its file number, or that of the file whose index it is; None: not of the dataset."""
    harmless: bool = False
    """It is not of the dataset, and nothing reads it."""
    repaired: bool = False

    @property
    def extra(self) -> bool:
        """Whether it does not belong to the dataset."""
        return self.file is None


def verify(
    folder: Path,
    *,
    full: bool,
    repair: bool = False,
    world: World,
    on_progress: OnProgress | None = None,
    access: Access | None = None,
) -> list[Fault]:
    """Return the files that do not fit the manifest, by path; all ranks call it and get the same.

    Sizes are compared by listing the folder; with `full` every byte is read and compared. With
    `repair` damaged and missing files are written again; no other file is touched. `access` is that
    of a bucket.

    Raises:
        DatasetError: there is no manifest, or it is damaged.
        WorkloadError: a datagen writes there.
        RunError: the disk is full.
        PeerError: another rank failed.
    """
    if isinstance(folder, ObjectPath):
        assert access is not None
        return _verify_objects(Bucket(folder, access), full, repair, world, on_progress)
    if not folder.is_dir():
        raise DatasetError(f"{folder} is no folder; name the data folder, which has train/ in it")
    if not repair:
        return _find(folder, _manifest(folder), full, world, on_progress)
    with writing(folder, world, "start dlemu verify --repair again"):
        world.barrier()  # rank 0 has the lock: no datagen changes the manifest from here on
        manifest = _manifest(folder)
        faults = _find(folder, manifest, full, world, on_progress)
        return _repair(folder, manifest, faults, world, on_progress)


def _verify_objects(
    bucket: Bucket, full: bool, repair: bool, world: World, on_progress: OnProgress | None
) -> list[Fault]:
    """Do what `verify` does, in a bucket."""
    manifest = world.on_first(lambda: _manifest(bucket.folder, bucket.access))
    faults = world.on_first(lambda: _compare_objects(bucket, manifest))
    if full:
        faults += [Fault(*each) for each in check_objects(bucket, manifest, world, on_progress)]
    bad = [fault.file for fault in faults if fault.file is not None]
    if repair and bad:
        refused = repair_objects(bucket, manifest, bad, world, on_progress)
        faults = [
            replace(fault, problem=f"{fault.problem} ({refused[fault.file]})")
            if fault.file in refused
            else replace(fault, repaired=fault.file is not None)
            for fault in faults
        ]
    return sorted(faults)


def _compare_objects(bucket: Bucket, manifest: Manifest) -> list[Fault]:
    """Return the objects of another size than the manifest's, missing ones, and strays."""
    layout, wanted = manifest.layout, _wanted_sizes(bucket.folder, manifest)
    found, faults = bucket.sizes(), []
    for file, sizes in enumerate(wanted.T.tolist()):
        names = (layout.path(file), *layout.index_paths(file))
        for name, size in zip(names, sizes, strict=True):
            got = found.pop(name, None)
            if got is None:
                faults.append(Fault(name, "is missing", file))
            elif got != size:
                faults.append(Fault(name, f"has {got} bytes, should have {size}", file))
    return faults + [Fault(name, _STRAY) for name in found]


def _manifest(folder: Path, access: Access | None = None) -> Manifest:
    manifest = read_manifest(folder, access)
    if manifest is None:
        raise DatasetError(
            f"{folder} has no manifest, so nothing says what its files should be; dlemu verify "
            "checks what dlemu datagen wrote: start that again if it was interrupted"
        )
    return manifest


def _find(
    folder: Path, manifest: Manifest, full: bool, world: World, on_progress: OnProgress | None
) -> list[Fault]:
    """Return all faults, by path."""
    sized, faults = world.on_first(lambda: _compare_sizes(folder, manifest))
    if full:
        content = Content(manifest.layout.seed)
        readers = [_Reader(folder, manifest, content, sized) for _ in range(FILES_IN_FLIGHT)]
        work_through(
            np.flatnonzero(sized.any(axis=0)),
            readers,
            num_bytes=int(manifest.files["bytes"][sized[0]].sum()),
            world=world,
            on_progress=on_progress,
        )
        found = [fault for reader in readers for fault in reader.faults]
        faults = faults + [fault for part in world.all_gather(found) for fault in part]
    return sorted(faults)


def _compare_sizes(folder: Path, manifest: Manifest) -> tuple[NDArray[np.bool_], list[Fault]]:
    """Return which files and indexes have the right size, (1 + indexes, files), and all faults."""
    layout, wanted = manifest.layout, _wanted_sizes(folder, manifest)
    listing = list_files(folder, layout)
    [found] = listing.found
    sized = found == wanted
    faults = [Fault(path, _STRAY) for path in listing.strays]
    faults += [Fault(path, _IGNORED, harmless=True) for path in listing.left_behind]
    faults += [Fault(path, _PARTIAL, harmless=True) for path in listing.partial]
    for row, file in np.argwhere(~sized).tolist():
        path = (layout.path(file), *layout.index_paths(file))[row]
        problem = f"has {found[row, file]} bytes, should have {wanted[row, file]}"
        faults.append(Fault(path, "is missing" if found[row, file] < 0 else problem, file))
    return sized, faults


def _wanted_sizes(folder: Path, manifest: Manifest) -> Samples:
    """Return the bytes of each file and its indexes, int64 (1 + indexes, files)."""
    recipe, stored = manifest.recipe, manifest.files["bytes"]
    # The sum first: with a damaged number of samples, all_sizes() could need too much memory.
    if stored.sum() != manifest.num_bytes or not np.array_equal(
        stored, (wanted := recipe.all_sizes())[0]
    ):
        raise DatasetError(
            f"{folder / FILES} is damaged: its sizes are not those of {MANIFEST}; {REMEDY}"
        )
    return wanted


class _Differs(Exception):
    """The file has another byte at this offset."""


class _Reader(Worker):
    """Reads files and their indexes, and compares them with what was generated."""

    def __init__(
        self, folder: Path, manifest: Manifest, content: Content, sized: NDArray[np.bool_]
    ) -> None:
        super().__init__()
        self.faults: list[Fault] = []
        self._folder, self._manifest, self._content = folder, manifest, content
        self._format = format_of(manifest.layout)
        self._has_file, self._has_index = sized[0], sized[1:]
        self._made, self._read = piece_buffer(), piece_buffer()
        self._file = -1  # descriptor of the file that is being read

    def do(self, file: int) -> None:
        layout = self._manifest.layout
        for number, path in enumerate(layout.index_paths(file)):
            if self._has_index[number, file]:
                self._check(path, partial(self._check_index, number), file)
        if self._has_file[file]:
            self._check(layout.path(file), self._check_file, file)

    def _check(self, path: str, check: Callable[[Path, int], str], file: int) -> None:
        try:
            problem = check(self._folder / path, file)
        except _Differs as difference:
            problem = f"differs from what was written at byte {difference}"
        except DatasetError:  # replaced since the listing
            problem = "is no file"
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        if problem:
            self.faults.append(Fault(path, problem, file))

    def _check_index(self, number: int, path: Path, file: int) -> str:
        """Return what is wrong with a file's index of this number, "" if nothing is."""
        same = read_regular(path) == self._manifest.recipe.indexes(file)[number]
        return "" if same else "differs from what was written"

    def _check_file(self, path: Path, file: int) -> str:
        """Return what is wrong, "" if nothing is. With O_DIRECT, the drive is read, not memory."""
        self._file, _ = direct_if_possible(open_regular, path)
        try:
            assembly = Assembly(self._content, self._made, self._compare)
            self._format.write(assembly, self._manifest.recipe.file_samples(file))
            _, crc = assembly.finish()
        finally:
            os.close(self._file)
        same = crc == self._manifest.files["crc32c"][file]
        return "" if same else "is as generated, but the manifest has another checksum for it"

    def _compare(self, piece: NDArray[np.uint8], offset: int) -> None:
        if self.stopped:
            raise Stopped
        whole = round_up(len(piece))
        done = 0
        while done < len(piece):
            count = os.preadv(self._file, [self._read[done:whole].data], offset + done)
            if count == 0:  # truncated since the listing
                raise _Differs(offset + done)
            done += count
        found = self._read[: len(piece)]
        if not np.array_equal(found, piece):
            raise _Differs(offset + int(np.argmax(found != piece)))
        self.bytes_done += len(piece)


def _repair(
    folder: Path,
    manifest: Manifest,
    faults: list[Fault],
    world: World,
    on_progress: OnProgress | None,
) -> list[Fault]:
    """Write the bad files again; return all faults, updated by what became of them."""
    bad = np.flatnonzero([not fault.extra for fault in faults])
    if not len(bad):
        return faults
    content = Content(manifest.layout.seed)
    repairers = [_Repairer(folder, manifest, content, faults) for _ in range(FILES_IN_FLIGHT)]
    files = [fault.file for fault in faults if fault.file is not None and not _is_index(fault)]
    work_through(
        bad,
        repairers,
        num_bytes=int(manifest.files["bytes"][files].sum()),
        world=world,
        on_progress=on_progress,
    )
    done = {number: fault for repairer in repairers for number, fault in repairer.done.items()}
    for part in world.all_gather(done):
        for number, fault in part.items():
            faults[number] = fault
    return faults


def _is_index(fault: Fault) -> bool:
    return fault.path.endswith(".idx")


class _Repairer(FileWriter):
    """Writes bad files again; its "files" are numbers of faults."""

    def __init__(
        self, folder: Path, manifest: Manifest, content: Content, faults: list[Fault]
    ) -> None:
        super().__init__(folder, manifest.recipe, content)
        self.done: dict[int, Fault] = {}
        self._crcs, self._faults = manifest.files["crc32c"], faults

    def do(self, number: int) -> None:
        fault = self._faults[number]
        path, file = self._folder / fault.path, fault.file
        assert file is not None, "only files of the dataset are repaired"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            if _is_index(fault):
                self.write_indexes(file, sync=True)
            else:
                self.write_file(file, wanted_crc=int(self._crcs[file]))
            sync_folder(path.parent)
            self.done[number] = replace(fault, repaired=True)
        except ValueError as error:
            self.done[number] = replace(fault, problem=f"{fault.problem} ({error})")
