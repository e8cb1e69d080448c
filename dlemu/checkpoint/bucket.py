"""Writes and reads the objects of one accelerator: as files, but by requests to a bucket.

An object is there whole or not at all, and on the storage when its last request is answered: so
there is no temporary name, no fsync and no O_DIRECT. A piece is a part of an upload, or a range.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from dlemu.checkpoint.reader import Reader
from dlemu.checkpoint.times import WriteTimes
from dlemu.checkpoint.writer import Writer
from dlemu.config.checkpoint_sections import CheckpointSection
from dlemu.datagen.assemble import Content
from dlemu.storage.extents import File
from dlemu.storage.s3.location import object_path
from dlemu.storage.s3.objects import ObjectReader
from dlemu.storage.s3.store import Store

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
