"""MDS: shards of MosaicML's Streaming, where they are not compressed.

A shard begins with the number of its samples and the offset of each, all uint32 little-endian, and
a description of the columns in JSON. Before the columns of a sample stand the sizes of those that
have no fixed one. What dlemu writes has one column, `data`. The index of all shards, `index.json`,
is Streaming's own: dlemu neither needs nor writes it.
(Format: github.com/mosaicml/streaming, streaming/base/format/mds.)
"""

import json

import numpy as np
from numpy.typing import NDArray

from dlemu.errors import VERIFY, DatasetError
from dlemu.formats.format import HOW_MANY, FileSamples, Format, Places, Read, Sink

_U32 = np.dtype("<u4")
_LARGEST_CONFIG = 1 << 20
_CONFIG = json.dumps(
    {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": 1 << 26,
        "column_names": ["data"],
        "column_encodings": ["bytes"],
        "column_sizes": [None],
    }
).encode()


class Mds(Format):
    """A table of offsets, and records of one column."""

    why_equal = ""

    def locate(self, read: Read, file_bytes: int, *, num_samples: int, path: str = "") -> Places:
        found = self.count(read, file_bytes, path=path)
        if found != num_samples:
            raise DatasetError(
                f"it holds {found} samples, {num_samples} are wanted", remedy=HOW_MANY
            )
        table = _U32.itemsize * (found + 2)
        offsets = np.frombuffer(read(4, table - 4), _U32).astype(np.int64)
        start = int(offsets[0])
        if start - table > _LARGEST_CONFIG:
            raise DatasetError("no MDS shard: its offsets do not begin behind a description")
        try:
            described = json.loads(read(table, start - table))
            lead = _U32.itemsize * [*described["column_sizes"]].count(None)
        except (ValueError, LookupError, TypeError, RecursionError):
            raise DatasetError("no MDS shard: its columns are not described") from None
        lengths = np.diff(offsets) - lead
        if int(offsets[-1]) != file_bytes or lengths.min() < 1:
            raise DatasetError(
                f"its samples end at byte {offsets[-1]}, the file at {file_bytes}, or one is empty",
                remedy=VERIFY,
            )
        return Places(offsets[:-1] + lead, lengths)

    def count(self, read: Read, file_bytes: int, *, path: str = "") -> int:
        head = read(0, 2 * _U32.itemsize)
        self._check(head, file_bytes)
        return int.from_bytes(head[:4], "little")

    def check_head(self, head: bytes, file_bytes: int) -> None:
        if len(head) != _U32.itemsize:  # the size before a later sample
            self._check(head, file_bytes)

    def _check(self, head: bytes, file_bytes: int) -> None:
        number, first = np.frombuffer(head[:8].ljust(8, b"\0"), _U32).tolist()
        if not number or not _U32.itemsize * (number + 2) < first < file_bytes:
            raise DatasetError(
                f"no MDS shard, or it was cut: it begins with {head[:8]!r}", remedy=VERIFY
            )
        if len(head) > _U32.itemsize * (number + 2):
            end = int.from_bytes(head[4 * number + 4 :][:4], "little")
            if end != file_bytes:
                raise DatasetError(
                    f"its samples end at byte {end}, the file at {file_bytes}", remedy=VERIFY
                )

    def places(self, sizes: NDArray[np.int64], *, element_bytes: int = 1) -> Places:
        return Places(_ends(sizes) - sizes, sizes)

    def starts(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full_like(sizes, _head_bytes(1) + _U32.itemsize)

    def file_bytes(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        whole: NDArray[np.int64] = (sizes + _U32.itemsize).sum(axis=1)
        return _head_bytes(sizes.shape[1]) + whole

    def lead(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full_like(sizes, _U32.itemsize)

    def write(self, sink: Sink, file: FileSamples) -> None:
        ends = _ends(file.sizes)
        if ends[-1] >> 32:
            raise DatasetError(
                f"an MDS shard has at most 4 GiB, {len(ends)} samples make {ends[-1]:,} bytes",
                remedy="lower dataset.num_samples_per_file",
            )
        table = np.array([len(ends), _head_bytes(len(ends)), *ends], _U32)
        sink.write(table.tobytes() + _CONFIG)
        for sample, size in file:
            sink.write(np.array(size, _U32).tobytes())
            sink.payload(sample, size)


def _head_bytes(num_samples: int) -> int:
    """Return the bytes before the first sample."""
    return _U32.itemsize * (num_samples + 2) + len(_CONFIG)


def _ends(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each sample of a shard that `write` wrote ends, int64 (samples,)."""
    ends: NDArray[np.int64] = _head_bytes(len(sizes)) + np.cumsum(sizes + _U32.itemsize)
    return ends


FORMAT = Mds()
