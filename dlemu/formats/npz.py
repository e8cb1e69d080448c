"""NumPy's .npz: a zip archive with the samples stored as `x.npy` and their labels as `y.npy`."""

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlemu.errors import DAMAGE, VERIFY, DatasetError, in_short
from dlemu.formats import npy
from dlemu.formats.format import (
    TO_THE_END,
    Arrays,
    Field,
    FileSamples,
    Places,
    Read,
    ReadOnly,
    Sink,
    Sum,
)
from dlemu.units import PAGE_BYTES

# PKWARE's APPNOTE 6.3.10, sections 4.3.7 (local), 4.3.12 (central), 4.3.14 to 4.3.16 (ends).
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR64 = struct.Struct("<4sIQI")
_LOCAL_MAGIC, _CENTRAL_MAGIC, _END_MAGIC = b"PK\3\4", b"PK\1\2", b"PK\5\6"
_END64_MAGIC, _LOCATOR64_MAGIC = b"PK\6\6", b"PK\6\7"
_ENCRYPTED, _SIZES_FOLLOW = 1, 8  # general purpose flags
_IN_EXTRA = 0xFFFFFFFF  # a 32-bit field whose value is in the zip64 extra field
_ZIP64, _ALIGNMENT = 1, 0xD935  # ids of extra fields; the second is Android's zipalign
_VERSION = 45  # zip64
_FIRST_OF_1980 = 0x21  # the earliest date that zip has

_LOCAL_BYTES = 64  # then the .npy header behind it is a multiple of 64 bytes, as np.save has it

# Labels: the .npy header of y has 128 bytes for up to 10^50 samples.
_LABEL = np.dtype("<i8")
_LABEL_HEADER = 128


class Npz(npy.Npy):
    """The headers of the archive and of its .npy share a page: places are those of .npy."""

    def locate(self, read: Read, file_bytes: int, *, num_samples: int, path: str = "") -> Places:
        head = read(0, PAGE_BYTES)
        # np.savez puts x first, with its sizes in the local header: then one read is enough.
        # Otherwise the directory at the file's end is read.
        start, num_bytes = _first_member(head) or _find(read, file_bytes)
        _check_end(start + num_bytes, file_bytes)
        return npy.locate_within(read, start, start + num_bytes, num_samples=num_samples)

    def arrays(self, read: Read, file_bytes: int) -> Arrays:
        members = _members(read, file_bytes)
        samples = _samples_in(members)
        array = _array_of(read, file_bytes, samples)
        labels = 0
        for each in members:
            if each is samples or not each.filename.endswith(".npy") or each.compress_type:
                continue
            with suppress(DatasetError):  # of text or objects: no labels that count
                found = _array_of(read, file_bytes, each).shape
                if len(found) < max(2, len(array.shape)) and found[:1] == array.shape[:1]:
                    labels = found[0]
        return Arrays(array.shape, array.num_bytes, labels)

    def file_bytes(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        labels = _LOCAL_BYTES + _LABEL_HEADER + _LABEL.itemsize * sizes.shape[1]
        directory = 2 * (_CENTRAL.size + len(b"x.npy") + 4 + 24)
        ends = _END64.size + _LOCATOR64.size + _END.size
        total: NDArray[np.int64] = PAGE_BYTES + sizes.sum(axis=1) + labels + directory + ends
        return total

    def check_head(self, head: bytes, file_bytes: int) -> None:
        member = _first_member(head)
        if member is None:
            return  # a valid archive, but x is not the first member, or its size stands behind it
        start, num_bytes = member
        _check_end(start + num_bytes, file_bytes)
        super().check_head(head[start:], num_bytes)

    def write(self, sink: Sink, file: FileSamples) -> None:
        from isal import isal_zlib  # 20 times as fast as zlib; only writing needs it

        header = npy.header(npy.array_shape(file), file.dtype, PAGE_BYTES - _LOCAL_BYTES)
        payload_bytes = int(file.sizes.sum())
        sink.reserve(PAGE_BYTES)
        crc, checksum = isal_zlib.crc32, zlib.crc32(header)
        if len(file.samples) == 1:
            checksum = sink.payload(int(file.samples[0]), payload_bytes, crc, checksum)
        else:
            checksum = sink.interleaved(file, crc, checksum)
        x = _Member(b"x.npy", 0, len(header) + payload_bytes, checksum)
        labels = npy.header((len(file.samples),), _LABEL) + bytes(
            _LABEL.itemsize * len(file.samples)
        )
        y = _Member(b"y.npy", PAGE_BYTES + payload_bytes, len(labels), zlib.crc32(labels))
        sink.write(y.local() + labels + _directory([x, y], y.offset + _LOCAL_BYTES + len(labels)))
        sink.fill(x.local() + header)

    def checksum(self) -> Iterator[Field]:
        """Yield the fields of the archive: its first member, the samples, has a CRC-32."""
        from isal import isal_zlib

        head, rest = bytearray(), bytearray()
        yield _LOCAL.size, head.extend
        _, _, flags, _, _, _, wanted, _, size, name, extra = _LOCAL.unpack(head)
        yield name + extra, rest.extend
        if flags & _SIZES_FOLLOW:
            raise DatasetError(
                "its checksum stands behind its data", remedy="set reader.check_crc=false"
            )
        [size] = _wide(bytes(rest[name:]), [size])
        crc = Sum(isal_zlib.crc32)
        yield size, crc.take
        if crc.value != wanted:
            raise DatasetError("the checksum of its samples is wrong", remedy=VERIFY)
        yield TO_THE_END, lambda data: None


def _check_end(end: int, file_bytes: int, name: str = "x.npy") -> None:
    if end > file_bytes:
        raise DatasetError(f"{name[:80]} ends at byte {end}, the file at {file_bytes}: it was cut")


class _Member(NamedTuple):
    name: bytes
    offset: int
    num_bytes: int
    crc: int

    def local(self) -> bytes:
        """Return the local header: sizes in a zip64 field, as np.savez writes them, and padding."""
        sizes = struct.pack("<2H2Q", _ZIP64, 16, self.num_bytes, self.num_bytes)
        padding = _LOCAL_BYTES - _LOCAL.size - len(self.name) - len(sizes) - 6
        extra = sizes + struct.pack("<3H", _ALIGNMENT, 2 + padding, 64) + bytes(padding)
        known = (_VERSION, 0, 0, 0, _FIRST_OF_1980, self.crc, _IN_EXTRA, _IN_EXTRA)
        fixed = _LOCAL.pack(_LOCAL_MAGIC, *known, len(self.name), len(extra))
        return fixed + self.name + extra

    def central(self) -> bytes:
        """Return the entry of the directory."""
        extra = struct.pack("<2H3Q", _ZIP64, 24, self.num_bytes, self.num_bytes, self.offset)
        known = (_VERSION, _VERSION, 0, 0, 0, _FIRST_OF_1980, self.crc, _IN_EXTRA, _IN_EXTRA)
        lengths = (len(self.name), len(extra), 0)
        fixed = _CENTRAL.pack(_CENTRAL_MAGIC, *known, *lengths, 0, 0, 0, _IN_EXTRA)
        return fixed + self.name + extra


def _directory(members: list[_Member], start: int) -> bytes:
    """Return the directory at `start` and the end records, always in zip64."""
    entries = b"".join(member.central() for member in members)
    count = len(members)
    fields = (_END64_MAGIC, _END64.size - 12, _VERSION, _VERSION, 0, 0, count, count)
    end64 = _END64.pack(*fields, len(entries), start)
    locator64 = _LOCATOR64.pack(_LOCATOR64_MAGIC, 0, start + len(entries), 1)
    end = _END.pack(_END_MAGIC, 0, 0, count, count, len(entries), _IN_EXTRA, 0)
    return entries + end64 + locator64 + end


def _first_member(head: bytes) -> tuple[int, int] | None:
    """Return start and bytes of x.npy if it is the first member and its header has its sizes."""
    if len(head) < _LOCAL.size or not head.startswith(_LOCAL_MAGIC):
        raise DatasetError(f"no zip archive: it begins with {head[:4]!r}")
    _, _, flags, method, _, _, _, stored, num_bytes, name, extra = _LOCAL.unpack_from(head)
    start = _LOCAL.size + name + extra
    if head[_LOCAL.size : _LOCAL.size + name] != b"x.npy" or start > len(head):
        return None
    _check_stored(flags, method)
    if flags & _SIZES_FOLLOW:
        return None
    sizes = _wide(head[_LOCAL.size + name : start], [num_bytes, stored])
    return start, sizes[0]


def _members(read: Read, file_bytes: int) -> list[zipfile.ZipInfo]:
    """Return the members of the archive, by the directory at the file's end."""
    try:
        with zipfile.ZipFile(ReadOnly(read, file_bytes)) as archive:
            return archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, struct.error, *DAMAGE) as error:
        raise DatasetError(
            f"the zip archive was cut or is damaged: {in_short(error)}", remedy=VERIFY
        ) from None


def _samples_in(members: list[zipfile.ZipInfo]) -> zipfile.ZipInfo:
    """Return the member with the samples: x.npy, else the largest array."""
    arrays = [each for each in members if each.filename.endswith(".npy")]
    if not arrays:
        raise DatasetError(
            "the zip archive has no x.npy", remedy="save the samples under the name x"
        )
    named = [each for each in arrays if each.filename == "x.npy"]
    return (named or [max(arrays, key=lambda each: each.file_size)])[-1]


def _array_of(read: Read, file_bytes: int, member: zipfile.ZipInfo) -> npy.Array:
    start, num_bytes = _place_of(read, file_bytes, member)
    _check_end(start + num_bytes, file_bytes, member.filename)
    return npy.array_within(read, start, start + num_bytes)


def _find(read: Read, file_bytes: int) -> tuple[int, int]:
    """Return start and bytes of the samples' .npy, by the directory at the file's end."""
    return _place_of(read, file_bytes, _samples_in(_members(read, file_bytes)))


def _place_of(read: Read, file_bytes: int, member: zipfile.ZipInfo) -> tuple[int, int]:
    """Return start and bytes of a member's content."""
    _check_stored(member.flag_bits, member.compress_type, member.filename)
    start = member.header_offset
    local = read(start, _LOCAL.size) if 0 <= start < file_bytes else b""
    if len(local) < _LOCAL.size or not local.startswith(_LOCAL_MAGIC):
        raise DatasetError("the zip archive's directory is damaged", remedy=VERIFY)
    return start + _LOCAL.size + sum(_LOCAL.unpack(local)[-2:]), member.file_size


def _check_stored(flags: int, method: int, name: str = "x.npy") -> None:
    if flags & _ENCRYPTED:
        raise DatasetError(
            f"{name[:80]} is encrypted and cannot be read in place", remedy="use np.savez"
        )
    if method != 0:
        raise DatasetError(
            f"{name[:80]} is compressed and cannot be read in place", remedy="use np.savez"
        )


def _wide(extra: bytes, values: list[int]) -> list[int]:
    """Return the values; 0xFFFFFFFF is replaced by the next value of the zip64 extra field."""
    at = 0
    while at + 4 <= len(extra):
        field, length = struct.unpack_from("<2H", extra, at)
        at += 4
        if field == _ZIP64 and at + length <= len(extra):
            wide = iter(struct.unpack_from(f"<{length // 8}Q", extra, at))
            return [next(wide, value) if value == _IN_EXTRA else value for value in values]
        at += length
    return values


FORMAT = Npz()
