"""The files' own checksums, computed while the bytes are read (`reader.check_crc`)."""

from collections.abc import Callable, Iterator

import google_crc32c
import numpy as np
from isal import isal_zlib

from dlemu.errors import DatasetError
from dlemu.formats import npz, tfrecord
from dlemu.workload.model import FormatName

_Field = tuple[int, Callable[[memoryview], object]]
"""Bytes of the next field, and the function that takes them."""

_TO_THE_END = 1 << 62


class Checksum:
    """Checks a file: it is called with the file's bytes from the first on, in order.

    A generator of the format yields field after field, and raises DatasetError on a wrong checksum.
    """

    def __init__(self, path: str, fields: Iterator[_Field]) -> None:
        self.at = 0
        """Bytes taken so far."""
        self._path, self._fields = path, fields
        self._want, self._take = next(fields)

    def __call__(self, data: memoryview) -> None:
        self.at += len(data)
        while len(data):
            part = data[: self._want]
            self._take(part)
            data = data[len(part) :]
            self._want -= len(part)
            while self._want == 0:
                try:
                    self._want, self._take = next(self._fields)
                except DatasetError as error:
                    raise DatasetError(f"{self._path}: {error}") from None


class _Crc:
    def __init__(self, extend: Callable[[int, memoryview], int]) -> None:
        self.value = 0
        self._extend = extend

    def take(self, data: memoryview) -> None:
        self.value = self._extend(self.value, data)


def _records() -> Iterator[_Field]:
    """Yield the fields of a TFRecord file: each record's length and data have a masked CRC-32C."""
    number = 0
    while True:
        head, tail = bytearray(), bytearray()
        yield 12, head.extend
        tfrecord.check_head(bytes(head), _TO_THE_END)
        crc = _Crc(lambda value, data: google_crc32c.extend(value, np.frombuffer(data, np.uint8)))
        yield int.from_bytes(head[:8], "little"), crc.take
        yield 4, tail.extend
        if tfrecord.masked_crc(crc.value) != tail:
            raise DatasetError(f"the checksum of record {number} is wrong; the file is damaged")
        number += 1


def _archive() -> Iterator[_Field]:
    """Yield the fields of a zip archive: its first member, the samples, has a CRC-32."""
    head, rest = bytearray(), bytearray()
    yield npz.LOCAL.size, head.extend
    _, _, flags, _, _, _, wanted, _, size, name, extra = npz.LOCAL.unpack(head)
    yield name + extra, rest.extend
    if flags & npz.SIZES_FOLLOW:
        raise DatasetError("its checksum stands behind its data; set reader.check_crc=false")
    [size] = npz.wide(bytes(rest[name:]), [size])
    crc = _Crc(lambda value, data: int(isal_zlib.crc32(data, value)))
    yield size, crc.take
    if crc.value != wanted:
        raise DatasetError("the checksum of its samples is wrong; the file is damaged")
    yield _TO_THE_END, lambda data: None


CHECKSUMS: dict[FormatName, Callable[[str], Checksum]] = {
    "npz": lambda path: Checksum(path, _archive()),
    "tfrecord": lambda path: Checksum(path, _records()),
}
"""By format, for those whose files have checksums: makes a checksum from the file's path."""
