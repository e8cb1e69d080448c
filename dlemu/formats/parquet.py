"""Apache Parquet: row groups of column chunks, whose ranges of bytes are read without decoding.

`write` writes what PyArrow reads: uncompressed pages of plain values, no dictionary, no statistics.
So every file of a dataset has one structure, which is known without opening it. The footers of
other tools' files are parsed by PyArrow. (Format: github.com/apache/parquet-format, parquet.thrift
and Encodings.md.)
"""

import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dlemu.errors import VERIFY, DatasetError, WorkloadError
from dlemu.formats.format import HOW_MANY, FileSamples, Format, Places, Read, Sink, varint
from dlemu.units import PAGE_BYTES, ceil_div, format_bytes, round_up

MAGIC = b"PAR1"
TAIL_BYTES = 8
"""At a file's end: the footer's bytes (uint32, little-endian) and the magic number."""
_PAGE_BYTES = 1 << 20  # PyArrow's default for a page of data
_LARGEST_FOOTER = 1 << 28

# Enumerations of parquet.thrift.
_PLAIN, _RLE = 0, 3
_REQUIRED, _REPEATED = 0, 2
_LIST = 3
_FIXED = 7
_TYPES = {"int32": 1, "uint32": 1, "int64": 2, "uint64": 2, "float32": 4, "float64": 5}
_CONVERTED = {"uint32": 13, "uint64": 14}

_DAMAGES = (OSError, LookupError, ValueError, TypeError, ArithmeticError)

_NO_DICTIONARY = b"\x26\0"
"""dictionary_page_offset = 0 in a chunk's entry: DLIO 3.0.2 ends with a TypeError without it."""


class ParquetColumn(Protocol):
    """A column, as `dataset.parquet.columns` describes it."""

    def __hash__(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def read(self) -> bool: ...
    @property
    def element_type(self) -> str: ...
    @property
    def row_bytes(self) -> int: ...


@dataclass(frozen=True, eq=False)
class Ranges:
    """The bytes that training asks for in each row group of a file."""

    ends: NDArray[np.int64]
    """Rows up to the end of each row group, int64 (groups,)."""
    offsets: NDArray[np.int64]
    """Of each column chunk that is read, int64 (groups, columns)."""
    lengths: NDArray[np.int64]

    def joined(self, gap: int) -> list[tuple[list[int], list[int]]]:
        """Return (offsets, lengths) of each group's reads: neighbours up to `gap` bytes are one."""
        order = np.argsort(self.offsets, axis=1)
        starts = np.take_along_axis(self.offsets, order, axis=1)
        stops = starts + np.take_along_axis(self.lengths, order, axis=1)
        apart = starts[:, 1:] - stops[:, :-1] > gap
        found = []
        for group in range(len(starts)):
            cuts = np.flatnonzero(apart[group])
            begins = starts[group][np.append(0, cuts + 1)]
            ends = stops[group][np.append(cuts, starts.shape[1] - 1)]
            found.append((begins.tolist(), (ends - begins).tolist()))
        return found


@dataclass(frozen=True)
class Amount:
    """Bytes and reads of one row, in the mean over a file."""

    useful: float
    """Bytes of the values that training reads."""
    asked: float
    """Bytes of the column chunks that hold them."""
    read: float
    """Bytes that are read: chunks, what lies between joined ones, and the footer."""
    reads: float
    """Read calls."""

    def describe(self) -> str:
        """Return "of each row 160 bytes are useful, 164 asked for, 180 read; ..."."""
        return (
            f"of each row {self.useful:,.0f} bytes are useful, {self.asked:,.1f} asked for, "
            f"{self.read:,.1f} read; {1 / self.reads:,.3g} rows a read of "
            f"{format_bytes(self.read / self.reads)}"
        )


@dataclass(frozen=True)
class Parquet(Format):
    """The files of one dataset. A row is a sample, scattered over columns."""

    columns: tuple[ParquetColumn, ...] = ()
    group_rows: int = 0
    """Rows of each row group but the last."""
    other_suffixes = ("pq", "parq")
    head_bytes = len(MAGIC)
    in_columns = True

    def of(self, layout: Any) -> "Parquet":
        return Parquet(layout.columns, layout.row_group_size)

    @property
    def read_columns(self) -> tuple[ParquetColumn, ...]:
        """The columns that training reads."""
        return tuple(column for column in self.columns if column.read) or self.columns

    def locate(self, read: Read, file_bytes: int, *, num_samples: int, path: str = "") -> Places:
        rows = int(self.find(read, file_bytes).ends[-1])
        if rows != num_samples:
            raise DatasetError(
                f"it has {rows} rows, {num_samples} samples are wanted", remedy=HOW_MANY
            )
        return self.places(np.full(num_samples, sum(each.row_bytes for each in self.read_columns)))

    def count(self, read: Read, file_bytes: int, *, path: str = "") -> int:
        with _metadata(read_footer(read, file_bytes)) as found:
            return int(found.num_rows)

    def places(self, sizes: NDArray[np.int64], *, element_bytes: int = 1) -> Places:
        """Return the rows' sizes. No row lies in one piece: `ranges` has where the columns lie."""
        return Places(np.zeros(len(sizes), np.int64), sizes)

    def file_bytes(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = sizes.shape[1]
        whole = len(MAGIC) + self._total(rows, _chunk_bytes) + len(self.footer(rows)) + TAIL_BYTES
        return np.full(len(sizes), whole, np.int64)

    def check_head(self, head: bytes, file_bytes: int) -> None:
        if not head.startswith(MAGIC):
            raise DatasetError(f"no Parquet file: it begins with {head[:4]!r}")

    def write(self, sink: Sink, file: FileSamples) -> None:
        num_rows = len(file.samples)
        num_pages = self._total(num_rows, lambda column, rows: len(_pages(column, rows)))
        number = int(file.samples[0]) // num_rows * num_pages
        sink.write(MAGIC)
        for rows in self._groups(num_rows):
            for column in self.columns:
                for page_rows in _pages(column, rows):
                    sink.write(_page_head(column, page_rows))
                    sink.payload(number, page_rows * column.row_bytes)
                    number += 1
        footer = self.footer(num_rows)
        sink.write(footer + len(footer).to_bytes(4, "little") + MAGIC)

    def ranges(self, num_rows: int) -> Ranges:
        """Return what is read of a file that `write` wrote."""
        return _ranges(self, num_rows)

    def amount(self, num_rows: int, *, gap: int, transfer: int, direct: bool = False) -> Amount:
        """Return what a row costs in files that `write` wrote; `transfer`: the largest read.

        `direct`: O_DIRECT reads whole pages.
        """
        useful, ranges = sum(each.row_bytes for each in self.read_columns), self.ranges(num_rows)
        page = PAGE_BYTES if direct else 1
        transfer = round_up(transfer, page)
        data_end = len(MAGIC) + self._total(num_rows, _chunk_bytes)
        footer_end = data_end + len(self.footer(num_rows))
        end = footer_end + TAIL_BYTES
        extents = [
            (begin, begin + length)
            for group in ranges.joined(gap)
            for begin, length in zip(*group, strict=True)
        ]
        # The footer's length, then the footer, unless it is in the page that is there already.
        extents.append((footer_end, end))
        if not direct or data_end < footer_end - footer_end % page:
            extents.append((data_end, footer_end))
        begins = np.array([begin - begin % page for begin, _ in extents])
        ends = np.array([min(end, round_up(stop, page)) for _, stop in extents])
        reads = int(ceil_div(ends - begins, transfer).sum())
        asked, read = int(ranges.lengths.sum()), int((ends - begins).sum())
        return Amount(useful, asked / num_rows, read / num_rows, reads / num_rows)

    def find(self, read: Read, file_bytes: int) -> Ranges:
        """Return what is read of any file; raise what `found_by` raises."""
        return self.found_by(read_footer(read, file_bytes), file_bytes)

    def found_by(self, footer: bytes, file_bytes: int) -> Ranges:
        """Return what is read of any file, by its footer.

        Raises:
            DatasetError: the file is damaged, or lacks a column.
            WorkloadError: another tool wrote it, and PyArrow is not there to parse its footer.
        """
        return _parsed(self, footer, file_bytes)

    def footer(self, num_rows: int) -> bytes:
        """Return the footer of a file that `write` writes."""
        return _footer(self, num_rows)

    def _groups(self, num_rows: int) -> list[int]:
        """Return the rows of each row group."""
        whole, rest = divmod(num_rows, self.group_rows)
        return [self.group_rows] * whole + ([rest] if rest else [])

    def _total(self, num_rows: int, of_chunk: Callable[[ParquetColumn, int], int]) -> int:
        """Return the sum over all column chunks of a file; `of_chunk` takes a column and rows."""
        groups = self._groups(num_rows)
        each = {rows: sum(of_chunk(column, rows) for column in self.columns) for rows in {*groups}}
        return sum(each[rows] for rows in groups)


def read_footer(read: Read, file_bytes: int) -> bytes:
    """Return the footer of a file, or raise DatasetError."""
    tail = read(max(0, file_bytes - TAIL_BYTES), TAIL_BYTES)
    if len(tail) < TAIL_BYTES or tail[4:] != MAGIC:
        raise DatasetError(f"no Parquet file, or it was cut: it ends with {tail[-4:]!r}")
    length = int.from_bytes(tail[:4], "little")
    if length > min(_LARGEST_FOOTER, file_bytes - TAIL_BYTES - len(MAGIC)):
        raise DatasetError(f"its footer would have {length} bytes, the file has {file_bytes}")
    return read(file_bytes - TAIL_BYTES - length, length)


@contextmanager
def _metadata(footer: bytes) -> Iterator[Any]:
    """Yield PyArrow's FileMetaData of a footer; what it or its use raises is one DatasetError."""
    try:
        import pyarrow
        from pyarrow import parquet as library
    except ImportError:
        raise WorkloadError(
            "dataset.format=parquet needs PyArrow for files that dlemu did not write: "
            "pip install 'dlemu[parquet]'"
        ) from None
    tail = len(footer).to_bytes(4, "little") + MAGIC
    try:
        yield library.read_metadata(pyarrow.BufferReader(MAGIC + footer + tail))
    except DatasetError:
        raise
    # PyArrow raises many types for damaged footers; an offset may exceed 64 bits.
    except (pyarrow.ArrowException, *_DAMAGES) as error:
        why = " ".join(str(error).split())[:120]
        raise DatasetError(f"its footer is damaged: {why}", remedy=VERIFY) from None


@functools.lru_cache(maxsize=8)
def _parsed(parquet: Parquet, footer: bytes, file_bytes: int) -> Ranges:
    with _metadata(footer) as found:
        groups = [found.row_group(number) for number in range(found.num_row_groups)]
        leaves = [found.schema.column(number).path for number in range(len(found.schema))]
        wanted = [leaf for each in parquet.read_columns for leaf in _leaves(leaves, each.name)]
        chunks = [[group.column(leaf) for leaf in wanted] for group in groups]
        table = np.array([[_range_of(chunk) for chunk in row] for row in chunks], np.int64)
        rows = np.array([group.num_rows for group in groups], np.int64)
    if not rows.size or rows.min() < 1 or rows.max() > 1 << 40:
        raise DatasetError("it has no rows, or an empty row group")
    offsets, lengths = table[:, :, 0], table[:, :, 1]
    end = file_bytes - len(footer) - TAIL_BYTES
    if offsets.min() < len(MAGIC) or lengths.min() < 1 or (offsets > end - lengths).any():
        raise DatasetError(f"a column chunk lies outside of the file's {file_bytes} bytes")
    return Ranges(np.cumsum(rows), offsets, lengths)


def stored_columns(read: Read, file_bytes: int) -> dict[str, float]:
    """Return the bytes that a row of another tool's file takes, by column, compressed or not.

    A struct (an image of Hugging Face's, `image.bytes` and `image.path`) is one column.

    Raises:
        DatasetError: the file is damaged.
        WorkloadError: PyArrow is missing.
    """
    sizes: dict[str, float] = {}
    with _metadata(read_footer(read, file_bytes)) as found:
        for group in map(found.row_group, range(found.num_row_groups)):
            for chunk in map(group.column, range(found.num_columns)):
                name = chunk.path_in_schema.partition(".")[0]
                sizes[name] = sizes.get(name, 0.0) + _range_of(chunk)[1] / max(found.num_rows, 1)
    return sizes


def _leaves(leaves: Sequence[str], name: str) -> list[int]:
    """Return the leaves of a column: of a struct one for each of its fields."""
    found = [
        number for number, path in enumerate(leaves) if path == name or path.startswith(f"{name}.")
    ]
    if not found:
        raise DatasetError(
            f"it has no column {name!a}, but {ascii(list(leaves))[:80]}",
            remedy="dataset.parquet.columns names what is read",
        )
    return found


def _range_of(chunk: Any) -> tuple[int, int]:
    """Return where a column chunk lies, dictionary included, and its bytes there."""
    # Its codec is not asked: PyArrow aborts the process if it does not know the footer's number.
    size, start = chunk.total_compressed_size, chunk.data_page_offset
    dictionary = chunk.dictionary_page_offset
    if dictionary is not None and 0 < dictionary < start:
        start = dictionary
    return start, size


@functools.lru_cache(maxsize=8)
def _ranges(parquet: Parquet, num_rows: int) -> Ranges:
    groups = parquet._groups(num_rows)
    read = [column in parquet.read_columns for column in parquet.columns]
    sizes = {rows: [_chunk_bytes(c, rows) for c in parquet.columns] for rows in {*groups}}
    table = np.array([sizes[rows] for rows in groups], np.int64)
    ends = len(MAGIC) + np.cumsum(table.ravel()).reshape(table.shape)
    offsets, lengths = (ends - table)[:, read], table[:, read]
    return Ranges(np.cumsum(np.array(groups, np.int64)), offsets, lengths)


@functools.lru_cache(maxsize=2)
def _footer(parquet: Parquet, num_rows: int) -> bytes:
    groups, at = [], len(MAGIC)
    for rows in parquet._groups(num_rows):
        chunks, begin = [], at
        for column in parquet.columns:
            head, size = _chunk_head(column, rows)
            chunks.append(head + _whole(at) + _NO_DICTIONARY + b"\0\0")
            at += size
        groups.append(
            _fields((1, _ARRAY, _array(_GROUP, chunks)), (2, _I64, at - begin), (3, _I64, rows))
        )
    columns = [element for column in parquet.columns for element in _elements(column)]
    root = _fields((4, _BINARY, b"schema"), (5, _I32, len(parquet.columns)))
    return _fields(
        (1, _I32, 2),
        (2, _ARRAY, _array(_GROUP, [root, *columns])),
        (3, _I64, num_rows),
        (4, _ARRAY, _array(_GROUP, groups)),
        (6, _BINARY, b"dlemu"),
    )


def _elements(column: ParquetColumn) -> Iterator[bytes]:
    """Yield a column's elements of the schema: a leaf, or a list of a leaf."""
    kind = _TYPES.get(column.element_type, _FIXED)
    leaf: list[tuple[int, int, bytes | int]] = [(1, _I32, kind)]
    if kind == _FIXED:
        leaf.append((2, _I32, column.row_bytes))
    name = column.name.encode()
    if _is_list(column):
        yield _fields((3, _I32, _REQUIRED), (4, _BINARY, name), (5, _I32, 1), (6, _I32, _LIST))
        yield _fields((3, _I32, _REPEATED), (4, _BINARY, b"list"), (5, _I32, 1))
        name = b"element"
    leaf += [(3, _I32, _REQUIRED), (4, _BINARY, name)]
    if column.element_type in _CONVERTED:
        leaf.append((6, _I32, _CONVERTED[column.element_type]))
    elif column.element_type == "float16" and column.size == 1:
        float16 = _fields((15, _GROUP, _fields()))
        leaf.append((10, _GROUP, float16))
    yield _fields(*leaf)


def _is_list(column: ParquetColumn) -> bool:
    """Return whether a row is a list; of types that Parquet lacks it is one fixed-length value.

    Parquet's shortest number has four bytes: int8 and int16 would grow.
    """
    return column.size > 1 and column.element_type in _TYPES


@functools.lru_cache(maxsize=4096)
def _chunk_head(column: ParquetColumn, rows: int) -> tuple[bytes, int]:
    """Return a chunk's entry in the footer up to its offset, and the chunk's bytes."""
    size = _chunk_bytes(column, rows)
    path = [column.name.encode(), *([b"list", b"element"] if _is_list(column) else [])]
    values = rows * (column.size if _is_list(column) else 1)
    encodings = [_whole(each) for each in (_PLAIN, _RLE)]
    described = _fields(
        (1, _I32, _TYPES.get(column.element_type, _FIXED)),
        (2, _ARRAY, _array(_I32, encodings)),
        (3, _ARRAY, _array(_BINARY, [varint(len(part)) + part for part in path])),
        (4, _I32, 0),
        (5, _I64, values),
        (6, _I64, size),
        (7, _I64, size),
        (9, _I64, 0),
    )
    # Without the last field's value and the end of the struct.
    return _fields((2, _I64, 0), (3, _GROUP, described))[:-3], size


@functools.lru_cache(maxsize=4096)
def _chunk_bytes(column: ParquetColumn, rows: int) -> int:
    pages = _pages(column, rows)
    sizes = {n: len(_page_head(column, n)) + n * column.row_bytes for n in {*pages}}
    return sum(sizes[n] for n in pages)


def _pages(column: ParquetColumn, rows: int) -> list[int]:
    """Return the rows of each page of a column chunk."""
    most = max(1, _PAGE_BYTES // column.row_bytes)
    return [most] * (ceil_div(rows, most) - 1) + [rows - most * (ceil_div(rows, most) - 1)]


@functools.lru_cache(maxsize=4096)
def _page_head(column: ParquetColumn, rows: int) -> bytes:
    """Return what stands before a page's values: its header, and where its lists begin and end."""
    levels, values = b"", rows
    if _is_list(column):
        values = rows * column.size
        # Level 0: a list begins; level 1: it goes on. All elements are there, at level 1.
        row = varint(1 << 1) + b"\0" + varint(column.size - 1 << 1) + b"\1"
        levels = b"".join(
            struct.pack("<I", len(runs)) + runs
            for runs in (row * rows, varint(values << 1) + b"\1")
        )
    size = len(levels) + rows * column.row_bytes
    data = _fields((1, _I32, values), (2, _I32, _PLAIN), (3, _I32, _RLE), (4, _I32, _RLE))
    return _fields((1, _I32, 0), (2, _I32, size), (3, _I32, size), (5, _GROUP, data)) + levels


# Thrift's compact protocol: a struct is a run of fields, each its number as a difference, its type
# and its value; whole numbers are zigzag varints.
_I32, _I64, _BINARY, _ARRAY, _GROUP = 5, 6, 8, 9, 12


def _fields(*fields: tuple[int, int, bytes | int]) -> bytes:
    data, last = bytearray(), 0
    for number, kind, value in fields:
        data.append(number - last << 4 | kind)
        if isinstance(value, int):
            data += _whole(value)
        else:
            data += varint(len(value)) + value if kind == _BINARY else value
        last = number
    return bytes([*data, 0])


def _array(kind: int, items: Sequence[bytes]) -> bytes:
    count = len(items)
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + varint(count)
    return head + b"".join(items)


def _whole(value: int) -> bytes:
    return varint(value << 1)


FORMAT = Parquet()
