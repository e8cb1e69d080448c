"""TFRecord: framed tf.train.Example messages with the features `image` and `size`."""

import bisect
import functools
import io
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from dlemu.errors import VERIFY, DatasetError
from dlemu.formats.format import (
    HOW_MANY,
    TO_THE_END,
    Field,
    FileSamples,
    Format,
    Parsed,
    Places,
    Read,
    Sink,
    Streamed,
    Sum,
    crc32c,
    varint,
)
from dlemu.storage.counted import CountedFile
from dlemu.storage.files import read_regular
from dlemu.units import N

_LENGTH = struct.Struct("<QI")  # of the record, and its checksum
_CRC_BYTES = 4
FRAME_BYTES = _LENGTH.size + _CRC_BYTES
"""Bytes around each record: its length with a checksum before it, its own checksum behind it."""
_WINDOW = 4096
# Bounds on the work that a damaged file can cause.
_MOST_FIELDS = 1000
_LONGEST_NAME = 256
_LARGEST_IMAGE = 1 << 48


class TfRecord(Format):
    """Records, each in a frame with checksums; an index of them lies in a tree of its own."""

    other_suffixes = ("tfrecords", "tfrec", "")
    why_equal = ""
    by_dali = True
    counts_by_reading = True

    def locate(self, read: Read, file_bytes: int, *, num_samples: int, path: str = "") -> Places:
        offsets = np.empty(num_samples, np.int64)
        lengths = np.empty(num_samples, np.int64)
        at = 0
        for sample in range(num_samples):
            near = _Nearby(read, at, file_bytes)
            try:
                length = _record_length(near.take(at, _LENGTH.size), file_bytes - at)
                message = _Span(at + _LENGTH.size, at + _LENGTH.size + length)
                image = _image(near, message)
            except DatasetError as error:
                raise error.within(f"record {sample} at byte {at}") from None
            offsets[sample], lengths[sample] = image.start, image.end - image.start
            at = message.end + 4
        if at != file_bytes:
            raise DatasetError(
                f"{num_samples} records end at byte {at}, the file at {file_bytes}",
                remedy=HOW_MANY,
            )
        return Places(offsets, lengths)

    def count(self, read: Read, file_bytes: int, *, path: str = "") -> int:
        for index in (f"{path}.idx", f"{os.path.splitext(path)[0]}.idx"):
            with suppress(OSError):  # as tfrecord2idx writes it: a line for each record
                return len(read_regular(Path(index)).splitlines())
        at = number = 0
        while at < file_bytes:
            try:
                at += FRAME_BYTES + _record_length(read(at, _LENGTH.size), file_bytes - at)
            except DatasetError as error:
                raise error.within(f"record {number} at byte {at}") from None
            number += 1
        return number

    def lead(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        least, steps = _head_steps()
        return _LENGTH.size + least + np.searchsorted(steps, sizes, side="right")

    def gap(self, end: N) -> N:
        return end * 0 + _CRC_BYTES

    def check_head(self, head: bytes, file_bytes: int) -> None:
        _record_length(head[: _LENGTH.size], file_bytes)

    def write(self, sink: Sink, file: FileSamples) -> None:
        tail = b""
        for sample, size in file:
            before, crc = _before_image(size)
            sink.write(tail + before)  # one call writes everything between two payloads
            tail = masked_crc(sink.payload(sample, size, crc32c, crc))
        sink.write(tail)

    def index_paths(self, path: str) -> tuple[str, ...]:
        return (f"index/{path.removesuffix('.tfrecord')}.idx",)

    def indexes(self, sizes: NDArray[np.int64]) -> tuple[bytes, ...]:
        """Return the index, as DALI wants it: a line `offset framed_length` for each record."""
        lines = zip(*(each.tolist() for each in self._records(sizes)), strict=True)
        return ("".join(f"{start} {length}\n" for start, length in lines).encode(),)

    def index_bytes(self, sizes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        starts, framed = self._records(sizes)
        return [(_num_digits(starts) + _num_digits(framed) + 2).sum(axis=1)]

    def _records(self, sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return each record's offset in its file, and its framed bytes."""
        framed = self.record_bytes(sizes)
        return np.cumsum(framed, axis=-1) - framed, framed

    def checksum(self) -> Iterator[Field]:
        """Yield the fields of a file: each record's length and data have a masked CRC-32C."""
        number = 0
        while True:
            head, tail = bytearray(), bytearray()
            yield _LENGTH.size, head.extend
            self.check_head(bytes(head), TO_THE_END)
            crc = Sum(lambda data, value: crc32c(np.frombuffer(data, np.uint8), value))
            yield int.from_bytes(head[:8], "little"), crc.take
            yield _CRC_BYTES, tail.extend
            if masked_crc(crc.value) != tail:
                raise DatasetError(f"the checksum of record {number} is wrong", remedy=VERIFY)
            number += 1

    def parse(self, file: CountedFile, num_samples: int) -> Parsed:
        return Streamed(file, _payloads(file))


def _payloads(counted: CountedFile) -> Iterator[bytes]:
    """Yield the image of each record, its checksums compared."""
    file = io.BufferedReader(counted, 262_144)  # tf.data's default
    while frame := file.read(12):
        at = file.tell() - len(frame)
        try:
            left = os.fstat(counted.fileno()).st_size - at
            FORMAT.check_head(frame, left)
            record = file.read(int.from_bytes(frame[:8], "little") + 4)
            data = np.frombuffer(record, np.uint8)[:-4]
            if masked_crc(google_crc32c.value(data)) != record[-4:]:
                raise DatasetError("the checksum of its data is wrong", remedy=VERIFY)
            whole = frame + record
            place = FORMAT.locate(partial(_slice, whole), len(whole), num_samples=1)
        except DatasetError as error:
            raise error.within(f"{counted.path}: record at byte {at}", VERIFY) from None
        start = int(place.offsets[0])
        yield whole[start : start + int(place.lengths[0])]


def _slice(data: bytes, start: int, size: int) -> bytes:
    return data[start : start + size]


def read_index(data: bytes, *, file_bytes: int, num_samples: int) -> list[tuple[int, int]]:
    """Return (offset, framed bytes) of each record, by the index of its file; check the index."""
    lines = data.splitlines()
    if len(lines) != num_samples:
        raise DatasetError(
            f"it has {len(lines)} lines, dataset.num_samples_per_file asks for {num_samples}",
            remedy=VERIFY,
        )
    records, end = [], 0
    for line in lines:
        numbers = [int(word) for word in line.split() if word.isdigit() and len(word) < 19]
        if len(numbers) != len(line.split()) or len(numbers) != 2:
            raise DatasetError(
                "it is damaged: a line must be `offset framed_length`", remedy=VERIFY
            )
        offset, num_bytes = numbers
        if offset < end or num_bytes < FRAME_BYTES or offset + num_bytes > file_bytes:
            raise DatasetError(
                f"it is damaged: {num_bytes} bytes at {offset} are no record of a file of "
                f"{file_bytes} bytes whose last one ended at {end}",
                remedy=VERIFY,
            )
        end = offset + num_bytes
        records.append((offset, num_bytes))
    return records


def masked_crc(crc: int) -> bytes:
    """Return a CRC-32C as TFRecord writes it: masked, because a CRC of CRCs is a weak checksum."""
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


class _Span(NamedTuple):
    start: int
    end: int


class _Nearby:
    """Reads nearby bytes of one record, a page at a time."""

    num_fields = 0
    """Fields found so far."""

    def __init__(self, read: Read, start: int, file_bytes: int) -> None:
        self._read, self._file_bytes = read, file_bytes
        self._start = start
        self._data = read(start, _WINDOW)

    def take(self, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`, at most a page; fewer only at the file's end."""
        if not self._start <= start <= start + length <= self._start + len(self._data):
            self._start = min(start, self._file_bytes)
            self._data = self._read(self._start, _WINDOW)
        return self._data[start - self._start : start - self._start + length]


def _record_length(frame: bytes, left: int) -> int:
    """Return a record's length from its frame's first 12 bytes; check their checksum."""
    if len(frame) < _LENGTH.size:
        raise DatasetError("the file ends within a record's length: it was cut")
    length, crc = _LENGTH.unpack(frame)
    if masked_crc(google_crc32c.value(frame[:8])) != crc.to_bytes(4, "little"):
        raise DatasetError("the checksum of the record's length is wrong", remedy=VERIFY)
    if FRAME_BYTES + length > left:
        raise DatasetError(f"the record has {length} bytes, the file {left}: it was cut")
    return int(length)


# Protocol buffers: a message is a run of fields, each a tag (number << 3 | wire type) and a value.
# Example.features = 1; Features.feature = 1, a map whose entries are key = 1 and value = 2;
# Feature.bytes_list = 1; BytesList.value = 1 (tensorflow/core/example/{example,feature}.proto).
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_TAG_1, _TAG_2 = bytes([1 << 3 | _BYTES]), bytes([2 << 3 | _BYTES])
_TAG_INT64_LIST = bytes([3 << 3 | _BYTES])


def _image(near: _Nearby, example: _Span) -> _Span:
    """Return where the value of the feature `image` lies."""
    names = []
    for features in _fields(near, example, 1):
        for entry in _fields(near, features, 1):
            keys = [
                near.take(key.start, min(key.end - key.start, _LONGEST_NAME))
                for key in _fields(near, entry, 1)
            ]
            names += [key.decode(errors="replace") for key in keys]
            if keys == [b"image"]:
                values = [
                    value
                    for feature in _fields(near, entry, 2)
                    for bytes_list in _fields(near, feature, 1)
                    for value in _fields(near, bytes_list, 1)
                ]
                if len(values) != 1:
                    raise DatasetError(f"its feature image must hold 1 value, got {len(values)}")
                return values[0]
    raise DatasetError(f"it has no feature image, but {ascii(names)[:80]}")


def _fields(near: _Nearby, message: _Span, number: int) -> Iterator[_Span]:
    """Yield where the values of field `number` lie, if they are bytes, text or messages."""
    at = message.start
    while at < message.end:
        tag, at = _varint(near, at, message.end)
        wire_type = tag & 7
        end = message.end + 1  # of an unknown type
        if wire_type == _VARINT:
            _, end = _varint(near, at, message.end)
        elif wire_type == _BYTES:
            length, at = _varint(near, at, message.end)
            end = at + length
        elif wire_type in (_FIXED64, _FIXED32):
            end = at + (8 if wire_type == _FIXED64 else 4)
        near.num_fields += 1
        if end > message.end or near.num_fields > _MOST_FIELDS:
            raise DatasetError("it is no tf.train.Example")
        if tag == number << 3 | _BYTES:
            yield _Span(at, end)
        at = end


def _varint(near: _Nearby, at: int, end: int) -> tuple[int, int]:
    """Return the varint at `at` (seven bits in each byte), and the offset behind it."""
    value = 0
    for index, byte in enumerate(near.take(at, min(10, end - at))):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise DatasetError("it is no tf.train.Example")


def _delimited(tag: bytes, num_bytes: int) -> bytes:
    return tag + varint(num_bytes)


@functools.lru_cache(maxsize=1024)
def _example_head(size: int) -> bytes:
    """Return an Example without the bytes of its image, which come last."""
    number = _delimited(_TAG_1, len(varint(size))) + varint(size)
    feature = _delimited(_TAG_INT64_LIST, len(number)) + number
    entry = _delimited(_TAG_1, 4) + b"size" + _delimited(_TAG_2, len(feature)) + feature
    first = _delimited(_TAG_1, len(entry)) + entry

    head, length = b"", size
    for tag, before in ((_TAG_1, b""), (_TAG_1, b""), (_TAG_2, _delimited(_TAG_1, 5) + b"image")):
        head = before + _delimited(tag, length) + head
        length = len(head) + size
    head = first + _delimited(_TAG_1, length) + head
    return _delimited(_TAG_1, len(head) + size) + head


@functools.lru_cache(maxsize=1024)
def _before_image(size: int) -> tuple[bytes, int]:
    """Return what a record has before the bytes of its image, and the CRC-32C of its Example's."""
    head = _example_head(size)
    length = struct.pack("<Q", len(head) + size)
    return length + masked_crc(google_crc32c.value(length)) + head, google_crc32c.value(head)


@functools.cache
def _head_steps() -> tuple[int, NDArray[np.int64]]:
    """Return the shortest head's bytes, and the image sizes at which the head grows by a byte."""
    shortest, longest = len(_example_head(0)), len(_example_head(_LARGEST_IMAGE))
    images = range(_LARGEST_IMAGE + 1)
    steps = [
        bisect.bisect_left(images, num_bytes, key=lambda size: len(_example_head(size)))
        for num_bytes in range(shortest + 1, longest + 1)
    ]
    return shortest, np.array(steps, np.int64)


def _num_digits(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    return 1 + np.searchsorted(10 ** np.arange(1, 19), numbers, side="right")


FORMAT = TfRecord()
