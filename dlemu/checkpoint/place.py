"""Where checkpoints lie: in a folder or in a bucket, which dlemu owns by a record.

The record says which files dlemu has written there. What it does not name is foreign.

An object is there whole or not at all, and on the storage when its last request is answered: so
there is no temporary name, no fsync and no O_DIRECT. A piece is a part of an upload, or a range.
"""

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from dlemu.checkpoint.files import Reader, Writer, WriteTimes
from dlemu.config.checkpoint_sections import CheckpointSection
from dlemu.datagen.assemble import Content
from dlemu.errors import DAMAGE, RunError, in_short
from dlemu.host.devices import mount_under
from dlemu.storage.atomic import partial_path, sync_folder
from dlemu.storage.extents import File, extent_reader
from dlemu.storage.owned import OwnedFolder, direct, disk_bytes
from dlemu.storage.s3.location import Access, ObjectPath, object_path
from dlemu.storage.s3.objects import ObjectReader
from dlemu.storage.s3.store import MissingError, Store, store_of

_LEAST_BYTES = 8 << 20
"""Of a piece: S3 takes parts of 5 MiB and more."""


class BucketWriter(Writer):
    """Puts an accelerator's objects while their bytes are made; `io_depth` parts at a time."""

    def __init__(self, section: CheckpointSection, content: Content, store: Store) -> None:
        super().__init__(content, piece_bytes=_piece_bytes(section), fsync=False)
        self._store, self._at_once = store, section.io_depth

    def _write_file(self, path: Path, num_bytes: int) -> WriteTimes:
        waited, begin = 0.0, time.perf_counter()

        def pieces() -> Iterator[bytes]:
            nonlocal waited
            while True:
                start = time.perf_counter()
                piece = self._made.get()
                waited += time.perf_counter() - start
                if piece is None or self._stopped:
                    return self._check()
                sent = bytes(piece.memory[: piece.num_bytes])  # kept until the part is answered
                self._free.put(piece.memory)
                yield sent
                self.bytes_done += len(sent)

        self._store.put_pieces(
            object_path(str(path)).key,
            pieces(),
            num_bytes,
            part_bytes=self._piece_bytes,
            at_once=self._at_once,
        )
        write = time.perf_counter() - begin - waited
        return WriteTimes(num_bytes=num_bytes, write=write, waited=waited)


class BucketReader(Reader):
    """Reads an accelerator's objects by ranges, `io_depth` at a time."""

    def __init__(self, section: CheckpointSection, content: Content | None, store: Store) -> None:
        self._objects = ObjectReader(
            store, range_bytes=_piece_bytes(section), in_flight=section.io_depth, whole=True
        )
        super().__init__(self._objects, content)

    def _open(self, path: Path, num_bytes: int) -> File:
        self._objects.know(str(path), num_bytes)
        return self._objects.open(str(path))


def _piece_bytes(section: CheckpointSection) -> int:
    return max(section.piece_bytes, _LEAST_BYTES)


KEY = "checkpoint.checkpoint_folder"
RECORD = "dlemu-checkpoints.json"
"""Name of the record."""
_STEP = re.compile(r"global_epoch[1-9]\d{0,6}_step[1-9]\d{0,6}")
_NAME = re.compile(r"(dcp_\d+/)?[\w.-]*\w[\w.-]*")


@dataclass(frozen=True)
class Written:
    """What dlemu has written into a folder."""

    model: str
    seed: int
    """Of the bytes."""
    scale: float
    writer: str
    """checkpoint.writer."""
    files: tuple[tuple[str, int], ...]
    """Name and bytes of each file of a checkpoint."""
    steps: tuple[int, ...] = ()
    """The checkpoints that are whole."""


@dataclass(frozen=True)
class CheckpointFolder(OwnedFolder):
    """A folder of checkpoints on a file system, as dlemu owns it by a record."""

    def of(self, record: Written | None) -> Self:
        """Return the same place, where the files of this record are dlemu's."""
        files = [] if record is None else [name for name, _ in record.files]
        own = {"", *files} | {f"{name.partition('/')[0]}/" for name in files if "/" in name}

        def is_ours(below: str) -> bool:
            step, slash, name = below.partition("/")
            return bool(slash and _STEP.fullmatch(step) and name in own)

        return replace(self, is_ours=is_ours)

    def record(self) -> Written | None:
        """Return what dlemu has written there; None: nothing, or the folder is not there.

        Raises:
            RunError: the record is damaged, so that nothing tells what may be removed.
        """
        fields = self.fields()
        if fields is None:
            return None
        try:
            files = tuple((str(name), int(size)) for name, size in fields.pop("files"))
            if any(not _NAME.fullmatch(name) for name, _ in files):
                raise ValueError("a file's name leads elsewhere")
            return Written(**fields | {"files": files, "steps": tuple(map(int, fields["steps"]))})
        except DAMAGE as error:
            raise RunError(
                f"{self.path / RECORD} is damaged ({in_short(error)})",
                remedy=f"name another {KEY}, or remove this one",
            ) from None

    def make(self, below: Path, *, sync: bool = True) -> None:
        """Make a checkpoint's folder; with `sync` its name is on the drive. Raises OSError."""
        below.mkdir(exist_ok=True)
        if sync:
            sync_folder(self.path)

    def remove(self, below: Path, record: Written) -> None:
        """Remove a checkpoint's folder, but nothing that the record does not name."""
        # The temporary name first: a thread that is being stopped may just give the final one.
        for name, _ in record.files:
            for path in (partial_path(below / name), below / name):
                with suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(path)
        inner = {(below / name).parent for name, _ in record.files} - {below}
        for folder in (*inner, below):
            with suppress(OSError):  # it holds something foreign, or is gone
                os.rmdir(folder)

    def remove_all(self, record: Written) -> int:
        """Remove all checkpoints that the record names, whole or not; return their number."""
        steps = self._steps()
        for name in steps:
            self.remove(self.path / name, record)
        self.forget()
        return len(steps)

    def forget(self) -> None:
        """Remove the record once no checkpoint is left; another rank may still remove its own."""
        with suppress(OSError):
            if not self._steps():
                self._delete(self.path / RECORD)

    def free_bytes(self, replaced: Iterable[str]) -> tuple[int, int] | None:
        """Return the bytes of these files, and those free beside them; None: without bound."""
        files = [self.path / name for name in replaced if name[-1] != "/"]
        return sum(512 * os.lstat(file).st_blocks for file in files), disk_bytes(self.path)[1]

    @property
    def file_system(self) -> str:
        """Its type, as mountinfo names it; "" if unknown."""
        mount = mount_under(self.path)
        return mount.kind if mount else ""

    def takes_direct(self) -> bool:
        """Return whether files are opened with O_DIRECT."""
        return direct(self.path)

    def writer(
        self, section: CheckpointSection, content: Content, *, direct: bool, accelerator: int
    ) -> Writer:
        """Return a writer for the files of an accelerator, as the keys say."""
        return Writer(
            content,
            piece_bytes=section.piece_bytes,
            io_depth=section.io_depth,
            direct=direct,
            fsync=section.fsync,
        )

    def reader(
        self, section: CheckpointSection, content: Content | None, *, direct: bool, accelerator: int
    ) -> Reader:
        """Return a reader for the files of an accelerator; `content` as in Reader."""
        size, depth = section.piece_bytes, section.io_depth
        return Reader(extent_reader(direct=direct, piece_bytes=size, io_depth=depth), content)

    def _delete(self, path: Path) -> None:
        os.unlink(path)

    def _steps(self) -> list[str]:
        """Return the names of the checkpoints that are there."""
        with suppress(FileNotFoundError):
            return [name for name in os.listdir(self.path) if _STEP.fullmatch(name)]
        return []


@dataclass(frozen=True)
class CheckpointBucket(CheckpointFolder):
    """Checkpoints in a bucket, which has no folders, no lock, and room for all."""

    path: ObjectPath
    access: Access = field(kw_only=True)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold nothing: no other command is kept away."""
        yield

    def make(self, below: Path, *, sync: bool = True) -> None:
        """Do nothing: names need no folder."""

    def remove(self, below: Path, record: Written) -> None:
        """Remove a checkpoint's objects, but none that the record does not name."""
        for name, _ in record.files:
            self._delete(below / name)

    def free_bytes(self, replaced: Iterable[str]) -> None:
        """Return None: a bucket does not tell."""

    @property
    def file_system(self) -> str:
        """ "s3"."""
        return "s3"

    def takes_direct(self) -> bool:
        """Return False: there is no page cache to go past."""
        return False

    def writer(self, section: CheckpointSection, content: Content, **of: Any) -> BucketWriter:
        """Return a writer for the objects of an accelerator."""
        return BucketWriter(section, content, self._store(of["accelerator"]))

    def reader(
        self, section: CheckpointSection, content: Content | None, **of: Any
    ) -> BucketReader:
        """Return a reader for the objects of an accelerator."""
        return BucketReader(section, content, self._store(of["accelerator"]))

    def _store(self, number: int = 0) -> Store:
        return store_of(self.access, number, self.path.bucket)

    def _key(self, path: Path) -> str:
        return object_path(str(path)).key

    def _read(self, path: Path) -> bytes:
        try:
            return self._store().get_whole(self._key(path))
        except MissingError as error:
            raise FileNotFoundError from error

    def _write(self, path: Path, data: bytes) -> None:
        self._store().put(self._key(path), memoryview(data))

    def _delete(self, path: Path) -> None:
        self._store().delete(self._key(path))

    def _below(self, start: str = "") -> Iterator[str]:
        for key, _ in self._store().sizes(self.path.key):
            yield key.removeprefix(self.path.key).lstrip("/")

    def _steps(self) -> list[str]:
        first = {name.partition("/")[0] for name in self._below() if "/" in name}
        return sorted(filter(_STEP.fullmatch, first))


def place_of(path: Path, access: Access | None) -> CheckpointFolder:
    """Return where checkpoints lie; `access` is that of a bucket."""
    fields = RECORD, lambda below: False, KEY
    if access is None:
        return CheckpointFolder(path, *fields)
    assert isinstance(path, ObjectPath)
    return CheckpointBucket(path, *fields, access=access)
