"""Compare a dataset with its manifest: sizes by one listing, content byte for byte."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlemu.datagen.assemble import Assembly, piece_buffer
from dlemu.datagen.content import Content
from dlemu.datagen.listing import list_files
from dlemu.datagen.manifest import Manifest, read_manifest
from dlemu.datagen.progress import FILES_IN_FLIGHT, OnProgress, Stopped, work_through
from dlemu.errors import DatasetError
from dlemu.formats import FORMATS, PAGE_BYTES
from dlemu.regular import open_regular, read_regular
from dlemu.world import World


@dataclass(frozen=True, order=True)
class Fault:
    """A file that is not as it was written."""

    path: str
    """Below the data folder."""
    problem: str


def verify(
    folder: Path, *, full: bool, world: World, on_progress: OnProgress | None = None
) -> list[Fault]:
    """Return the files that do not fit the manifest, by path; all ranks call it and get the same.

    Sizes are compared by listing the folder; with `full` every byte is read and compared.

    Raises:
        DatasetError: there is no manifest, or it is damaged.
        PeerError: another rank failed.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise DatasetError(
            f"{folder} has no manifest, so nothing says what its files should be; finish it with "
            "dlemu datagen, if that began it"
        )
    listed = world.broadcast(_compare_sizes(folder, manifest) if world.rank == 0 else None)
    assert listed is not None
    sound, faults = listed
    if full:
        content = Content(manifest.layout.seed)
        readers = [_Reader(folder, manifest, content) for _ in range(FILES_IN_FLIGHT)]
        work_through(
            sound[world.rank :: world.num_ranks],
            readers,
            world=world,
            files_total=len(sound),
            bytes_total=int(manifest.files["bytes"][sound].sum()),
            on_progress=on_progress,
        )
        found = [fault for reader in readers for fault in reader.faults]
        faults = faults + [fault for part in world.all_gather(found) for fault in part]
    return sorted(faults)


def _compare_sizes(folder: Path, manifest: Manifest) -> tuple[NDArray[np.int64], list[Fault]]:
    """Return the files whose sizes are right, and the faults of the others."""
    layout, recipe = manifest.layout, manifest.recipe
    found = list_files(folder, layout)
    sound = np.ones(layout.num_files, np.bool_)
    faults = [Fault(path, "does not belong to the dataset") for path in found.others]
    for sizes, wanted, path in (
        (found.sizes, manifest.files["bytes"], layout.path),
        (found.index_sizes, recipe.index_sizes(), layout.index_path),
    ):
        if wanted is None:
            continue
        for file in np.flatnonzero(sizes != wanted).tolist():
            problem = f"has {sizes[file]} bytes, should have {wanted[file]}"
            faults.append(Fault(path(file), "is missing" if sizes[file] < 0 else problem))
            sound[file] = False
    return np.flatnonzero(sound), faults


class _Differs(Exception):
    """The file has another byte at this offset."""


class _Reader:
    """Reads files and compares them, one after the other."""

    def __init__(self, folder: Path, manifest: Manifest, content: Content) -> None:
        self.files_done = self.bytes_done = 0
        self.stopped = False
        self.faults: list[Fault] = []
        self._folder, self._manifest, self._content = folder, manifest, content
        self._format = FORMATS[manifest.layout.format]
        self._made, self._read = piece_buffer(), piece_buffer()
        self._file = -1

    def do(self, file: int) -> None:
        layout, recipe = self._manifest.layout, self._manifest.recipe
        index = recipe.write_index(file)
        if index is not None and read_regular(self._folder / layout.index_path(file)) != index:
            self._blame(layout.index_path(file), "differs from what was written")
        path = layout.path(file)
        try:
            self._file = _open(self._folder / path)
            try:
                assembly = Assembly(self._content, self._made, self._compare)
                self._format.write(assembly, recipe.file_samples(file))
                _, crc = assembly.finish()
            finally:
                os.close(self._file)
            if crc != self._manifest.files["crc32c"][file]:
                self._blame(path, "is as generated, but the manifest has another checksum for it")
        except _Differs as difference:
            self._blame(path, f"differs from what was written at byte {difference}")
        except OSError as error:
            self._blame(path, f"cannot be read: {error.strerror}")
        self.files_done += 1

    def _compare(self, piece: NDArray[np.uint8], offset: int) -> None:
        if self.stopped:
            raise Stopped
        whole = -(-len(piece) // PAGE_BYTES) * PAGE_BYTES
        done = 0
        while done < len(piece):
            count = os.preadv(self._file, [self._read[done:whole].data], offset + done)
            if count == 0:  # cut since its size was seen
                raise _Differs(offset + done)
            done += count
        found = self._read[: len(piece)]
        if not np.array_equal(found, piece):
            raise _Differs(offset + int(np.argmax(found != piece)))
        self.bytes_done += len(piece)

    def _blame(self, path: str, problem: str) -> None:
        self.faults.append(Fault(path, problem))


def _open(path: Path) -> int:
    """Return a descriptor that reads from the drive, not from memory, where that can be had."""
    try:
        return open_regular(path, os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return open_regular(path)
