"""Compare a dataset with its manifest: sizes by one listing, content byte for byte; repair it."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlemu.datagen.assemble import Content, piece_buffer
from dlemu.datagen.manifest import FILES, MANIFEST, REMEDY, Manifest, read_manifest
from dlemu.datagen.target import (
    FileMaker,
    OnProgress,
    listing_of,
    places_of_workers,
    work_through,
)
from dlemu.datagen.write import writing
from dlemu.dataset.layout import Samples
from dlemu.errors import DatasetError, reason_of
from dlemu.findings import Finding, note
from dlemu.ranks.world import Alone, World
from dlemu.storage.place import Place, Read, place_of


@dataclass(frozen=True)
class Fault:
    """A file that is damaged or missing, or that does not belong to the dataset."""

    path: str
    """Below the data folder."""
    problem: Finding
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
    world: World | None = None,
    on_progress: OnProgress | None = None,
    access: Any = None,
) -> list[Fault]:
    """Return the files that do not fit the manifest, by path; all ranks call it and get the same.

    Without a `world` there is one rank. Sizes are compared by listing the folder; with `full` every
    byte is read and compared. With `repair` damaged and missing files are written again; no other
    file is touched. `access` is what the place's `reach` has returned on rank 0.

    Raises:
        DatasetError: there is no manifest, or it is damaged.
        WorkloadError: a datagen writes there.
        RunError: the disk is full.
        PeerError: another rank failed.
    """
    world = world or Alone()
    target, again = place_of(folder, access), "start dlemu verify --repair again"
    if not target.is_there():
        raise DatasetError(f"{folder} is no folder; name the data folder, which has train/ in it")
    with writing(target, world, again) if repair else nullcontext():
        world.barrier()  # rank 0 has the lock: no datagen changes the manifest from here on
        manifest = _manifest(folder, access)
        faults = _find(target, manifest, full, world, on_progress)
        return _repair(target, manifest, faults, world, on_progress) if repair else faults


def _manifest(folder: Path, access: Any) -> Manifest:
    manifest = read_manifest(folder, access)
    if manifest is None:
        raise DatasetError(
            f"{folder} has no manifest, so nothing says what its files should be; dlemu verify "
            "checks what dlemu datagen wrote: start that again if it was interrupted"
        )
    return manifest


def _find(
    target: Place, manifest: Manifest, full: bool, world: World, on_progress: OnProgress | None
) -> list[Fault]:
    """Return all faults, by path."""
    sized, faults = world.on_first(lambda: _compare_sizes(target, manifest))
    if full:
        places, content = (
            places_of_workers(target, manifest.layout, world),
            Content(manifest.layout.seed),
        )
        readers = [_Reader(each, manifest, content, sized) for each in places]
        work_through(
            np.flatnonzero(sized.any(axis=0)),
            readers,
            num_bytes=int(manifest.files["bytes"][sized[0]].sum()),
            world=world,
            on_progress=on_progress,
        )
        found = [fault for reader in readers for fault in reader.faults]
        faults = faults + [fault for part in world.all_gather(found) for fault in part]
    return sorted(faults, key=lambda fault: (fault.path, fault.problem.kind))


def _compare_sizes(target: Place, manifest: Manifest) -> tuple[NDArray[np.bool_], list[Fault]]:
    """Return which files and indexes have the right size, (1 + indexes, files), and all faults."""
    layout, wanted = manifest.layout, _wanted_sizes(target.path, manifest)
    listing = listing_of(target, layout)
    [found] = listing.found
    sized = found == wanted
    faults = [Fault(path, note("file_stray")) for path in listing.strays]
    faults += [Fault(path, note("file_ignored"), harmless=True) for path in listing.left_behind]
    faults += [Fault(path, note("file_partial"), harmless=True) for path in listing.partial]
    for row, file in np.argwhere(~sized).tolist():
        path = (layout.path(file), *layout.index_paths(file))[row]
        sizes = {"bytes": int(found[row, file]), "wanted": int(wanted[row, file])}
        problem = note("file_missing") if sizes["bytes"] < 0 else note("file_cut", **sizes)
        faults.append(Fault(path, problem, file))
    return sized, faults


def _not_repaired(fault: Fault, error: Exception) -> Finding:
    """Return what was wrong with a file, and why it still is."""
    return note("still", problem=fault.problem.fields, error=str(error))


def _wanted_sizes(folder: Path, manifest: Manifest) -> Samples:
    """Return the bytes of each file and its indexes, int64 (1 + indexes, files)."""
    stored = manifest.files["bytes"]
    # The sum first: with a damaged number of samples, all_sizes() could need too much memory.
    if stored.sum() != manifest.num_bytes or not np.array_equal(
        stored, (wanted := manifest.layout.all_sizes())[0]
    ):
        raise DatasetError(
            f"{folder / FILES} is damaged: its sizes are not those of {MANIFEST}; {REMEDY}"
        )
    return wanted


class _Differs(Exception):
    """The file has another byte at this offset."""

    def __init__(self, byte: int) -> None:
        super().__init__(byte)
        self.byte = byte


class _Reader(FileMaker):
    """Reads files and their indexes, and compares them with what was generated."""

    def __init__(
        self, target: Place, manifest: Manifest, content: Content, sized: NDArray[np.bool_]
    ) -> None:
        super().__init__(target, manifest.layout, content)
        self.faults: list[Fault] = []
        self._crcs, self._sized, self._read = manifest.files["crc32c"], sized, piece_buffer()

    def do(self, file: int) -> None:
        name, *indexes = self.names(file)
        for index, wanted, is_sized in zip(
            indexes, self.layout.indexes(file), self._sized[1:, file], strict=True
        ):
            if is_sized:
                self._check(index, partial(self._check_index, wanted), file)
        if self._sized[0, file]:
            self._check(name, partial(self._check_file, file), file)

    def _check(self, name: str, check: Callable[[str], Finding | None], file: int) -> None:
        try:
            problem = check(name)
        except _Differs as difference:
            problem = note("file_differs", byte=difference.byte)
        except DatasetError:  # replaced since the listing
            problem = note("file_replaced")
        except OSError as error:
            problem = note("file_unreadable", error=reason_of(error))
        if problem is not None:
            self.faults.append(Fault(name, problem, file))

    def _check_index(self, wanted: bytes, name: str) -> Finding | None:
        """Return what is wrong with an index; None if nothing is."""
        is_same = self.target.whole(name) == wanted
        return None if is_same else note("file_differs", byte=None)

    def _check_file(self, file: int, name: str) -> Finding | None:
        """Return what is wrong; None if nothing is."""
        with self.target.reading(name) as read:
            crc = self.made(file, partial(self._compare, read))
        same = crc == self._crcs[file]
        return None if same else note("other_checksum")

    def _compare(self, read: Read, data: memoryview, offset: int, num_bytes: int) -> None:
        done = 0
        while done < num_bytes:
            count = read(self._read[done : len(data)].data, offset + done)
            if count == 0:  # truncated since the listing
                raise _Differs(offset + done)
            done += count
        found, made = self._read[:num_bytes], np.frombuffer(data[:num_bytes], np.uint8)
        if not np.array_equal(found, made):
            raise _Differs(offset + int(np.argmax(found != made)))


def _repair(
    target: Place,
    manifest: Manifest,
    faults: list[Fault],
    world: World,
    on_progress: OnProgress | None,
) -> list[Fault]:
    """Write the bad files again; return all faults, updated by what became of them."""
    bad = np.flatnonzero([not fault.extra for fault in faults])
    if not len(bad):
        return faults
    places, content = (
        places_of_workers(target, manifest.layout, world),
        Content(manifest.layout.seed),
    )
    repairers = [_Repairer(each, manifest, content, faults) for each in places]
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


class _Repairer(FileMaker):
    """Writes bad files again; its "files" are numbers of faults."""

    def __init__(
        self, target: Place, manifest: Manifest, content: Content, faults: list[Fault]
    ) -> None:
        super().__init__(target, manifest.layout, content)
        self.done: dict[int, Fault] = {}
        self._crcs, self._faults = manifest.files["crc32c"], faults

    def do(self, number: int) -> None:
        fault = self._faults[number]
        assert fault.file is not None, "only files of the dataset are repaired"
        try:
            with self.target.repairing(fault.path):
                if _is_index(fault):
                    self.write_indexes(fault.file)
                else:
                    self.write_file(fault.file, wanted_crc=int(self._crcs[fault.file]))
            self.done[number] = replace(fault, repaired=True)
        except ValueError as error:
            self.done[number] = replace(fault, problem=_not_repaired(fault, error))
