"""WebDataset: shards in tar format. Members that follow one another and share a name are a sample.

dlemu writes two of them for each sample: KEY.cls, a label, and KEY.bin, the payload. Of other
tools' shards the payload is the largest member of each sample; a stream reads the others with it.
(Format: POSIX.1-2017, pax, "ustar Interchange Format"; github.com/webdataset/webdataset.)
"""

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlemu.errors import DAMAGE, VERIFY, DatasetError, in_short
from dlemu.formats.format import (
    HOW_MANY,
    FileSamples,
    Format,
    Parsed,
    Places,
    Read,
    ReadOnly,
    Sink,
    Streamed,
    damaged,
)
from dlemu.storage.counted import CountedFile
from dlemu.storage.files import read_regular
from dlemu.units import N, round_up

_BLOCK = tarfile.BLOCKSIZE
_LABEL = b"0"
_HEAD = 3 * _BLOCK
"""Bytes from a sample's start to its payload: header and block of the label, the next header."""
_END = bytes(2 * _BLOCK)
_LIBRARY_BUFFER = 262_144


_INDEXES: dict[str, Callable[[bytes], int]] = {
    ".idx": lambda data: int(data.splitlines()[0].split()[1]),  # "v1.2 1000": DALI's wds2idx
    "_stats.json": lambda data: int(json.loads(data)["successes"]),  # img2dataset
}
"""The number of a shard's samples, by the end of an index beside it."""


class WebDataset(Format):
    """Records as in tfrecord, of which two headers are all that is not payload."""

    suffix = "tar"
    tail_bytes = len(_END)
    why_equal = ""
    counts_by_reading = True

    def locate(self, read: Read, file_bytes: int, *, num_samples: int, path: str = "") -> Places:
        found: list[tarfile.TarInfo] = []
        try:
            with tarfile.open(fileobj=ReadOnly(read, file_bytes), mode="r:") as tar:
                for members in _samples(tar):
                    # The label comes first: of equal ones the last is the payload.
                    found.append(max(members, key=lambda each: (each.size, each.offset)))
                    if len(found) > num_samples:
                        break
        except (tarfile.TarError, *DAMAGE) as error:
            raise _no_tar(error) from None
        if len(found) != num_samples:
            more = "more than " if len(found) > num_samples else ""
            raise DatasetError(
                f"it holds {more}{min(len(found), num_samples)} samples, {num_samples} are wanted",
                remedy=HOW_MANY,
            )
        ends = [member.offset_data + member.size for member in found]
        if max(ends) > file_bytes or min(member.size for member in found) < 1:
            raise DatasetError("a sample is empty, or the file was cut")
        offsets = np.array([member.offset_data for member in found], np.int64)
        return Places(offsets, np.array(ends, np.int64) - offsets)

    def count(self, read: Read, file_bytes: int, *, path: str = "") -> int:
        base = path.removesuffix(f".{self.suffix}")
        for index, number in _INDEXES.items():
            with suppress(OSError, ValueError, LookupError, TypeError):
                return number(read_regular(Path(base + index)))
        try:
            with tarfile.open(fileobj=ReadOnly(read, file_bytes), mode="r:") as tar:
                return sum(1 for _ in _samples(tar))
        except (tarfile.TarError, *DAMAGE) as error:
            raise _no_tar(error) from None

    def lead(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full_like(sizes, _HEAD)

    def check_head(self, head: bytes, file_bytes: int) -> None:
        at = 0
        for _ in range(2):
            try:
                member = tarfile.TarInfo.frombuf(head[at : at + _BLOCK], "utf-8", "surrogateescape")
            except tarfile.HeaderError as error:
                raise _no_tar(error) from None
            end = at + _BLOCK + member.size
            if end > file_bytes:
                raise DatasetError(f"{member.name!a} ends at {end}, {file_bytes} are there")
            at = round_up(end, _BLOCK)

    def gap(self, end: N) -> N:
        return round_up(end, _BLOCK) - end

    def write(self, sink: Sink, file: FileSamples) -> None:
        padding = b""
        for sample, size in file:
            label = _header(sample, "cls", len(_LABEL)) + _LABEL.ljust(_BLOCK, b"\0")
            # One call writes everything between two payloads.
            sink.write(padding + label + _header(sample, "bin", size))
            sink.payload(sample, size)
            padding = bytes(self.gap(size))
        sink.write(padding + _END)

    def parse(self, file: CountedFile, num_samples: int) -> Parsed:
        return Streamed(file, _payloads(file))


def _no_tar(error: Exception) -> DatasetError:
    return DatasetError(f"no tar archive, or damaged: {in_short(error)}", remedy=VERIFY)


def _payloads(file: CountedFile) -> Iterator[bytes]:
    """Yield the largest member of each sample, as the library reads a shard."""
    try:
        with tarfile.open(fileobj=io.BufferedReader(file, _LIBRARY_BUFFER), mode="r|") as tar:
            for members in _samples(tar):
                contents = [_content(tar, member) for member in members]
                yield max(reversed(contents), key=len)
    except (tarfile.TarError, *DAMAGE) as error:
        raise damaged(file, error) from None


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = tar.extractfile(member)
    return b"" if content is None else content.read()


def _samples(tar: tarfile.TarFile) -> Iterator[Iterator[tarfile.TarInfo]]:
    """Yield the files of each sample: their names are the same up to the first dot of the last
    part."""
    for _, members in groupby(_files(tar), key=lambda member: _key(member.name)):
        yield members


def _files(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    at = -1
    while (member := tar.next()) is not None:
        if member.offset <= at or member.size < 0:  # a damaged size leads back
            raise tarfile.ReadError("its members do not follow one another")
        at = member.offset
        tar.members = []  # type: ignore[attr-defined]  # kept for a look-up by name
        if member.isfile():
            yield member


def _key(name: str) -> str:
    folder, _, last = name.rpartition("/")
    return f"{folder}/{last.partition('.')[0]}"


@lru_cache(maxsize=8)
def _header(sample: int, kind: str, size: int) -> bytes:
    """Return the block before a member; a number of 8 GiB and more is written as GNU tar does."""
    member = tarfile.TarInfo(f"{sample:012}.{kind}")
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT)


FORMAT = WebDataset()
