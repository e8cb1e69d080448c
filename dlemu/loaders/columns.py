"""Parquet: the column chunks of whole row groups, as ranges of bytes or decoded by PyArrow.

A worker reads its rows in the files' order, so it reads each row group once: when the first of its
rows is wanted. Which bytes that are is known from the footer, which is read when a file is opened.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dlemu.dataset.layout import Samples
from dlemu.errors import VERIFY, DatasetError, DlemuError
from dlemu.formats import format_of
from dlemu.formats.format import HOW_MANY
from dlemu.formats.parquet import TAIL_BYTES, Parquet, Ranges, read_footer
from dlemu.loaders.source import Memory, Note, Rows, Source, Task, TaskReader
from dlemu.loaders.steps import READING
from dlemu.storage.counted import CountedFile
from dlemu.storage.extents import ExtentReader, File


@dataclass(slots=True, eq=False)
class _OpenParquet:
    number: int
    file: File
    ends: Samples
    """Rows up to the end of each row group."""
    reads: list[tuple[list[int], list[int]]]
    """Offsets and lengths of each row group's reads."""
    parsed: Any = None
    """pyarrow.parquet.ParquetFile, where it decodes."""
    counted: CountedFile | None = None
    group: int = -1
    """The row group that was read last."""
    rows: Memory | None = None
    """Its rows, uint8 (rows, bytes of a row), where they are handed over."""


class ColumnReader(TaskReader):
    """Reads the columns of one worker's rows."""

    def __init__(self, source: Source, rows: Rows, note: Note, storage: ExtentReader) -> None:
        super().__init__(source, rows, note, storage)
        reader = source.workload.reader
        self._gap, self._decodes = reader.coalesce_gap, reader.decode == "library"
        parquet = format_of(source.layout)
        assert isinstance(parquet, Parquet)
        self._parquet = parquet
        self._storage = storage
        self._opened: _OpenParquet | None = None
        self._known: tuple[Ranges, list[tuple[list[int], list[int]]]] | None = None
        self._own: tuple[bytes, Ranges] | None = None
        """Footer and ranges of each file that dlemu wrote."""

    def read(self, task: Task) -> Iterator[int]:
        for number, first, last in self._runs(task.fetch):
            opened = self._open(number)
            begin, end = np.searchsorted(opened.ends, (first, last), side="right").tolist()
            for group in range(begin, end + 1):
                if group != opened.group:
                    self._read_group(opened, group)
                if opened.rows is not None:
                    self._hand_over(opened, first, last)
                start = int(opened.ends[group - 1]) if group else 0
                yield min(last + 1, int(opened.ends[group])) - max(first, start)

    def _runs(self, samples: Samples) -> Iterator[tuple[int, int, int]]:
        """Yield (file, first row, last row): a stream has the rows of a file in their order."""
        start = 0
        while start < len(samples):
            number, first = self._layout.find(int(samples[start]))
            num_rows = min(len(samples) - start, self._layout.in_file(number) - first)
            assert samples[start + num_rows - 1] == samples[start] + num_rows - 1
            yield number, first, first + num_rows - 1
            start += num_rows

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            self._storage.close_file(opened.file)
            if opened.counted is not None:
                opened.counted.close()

    start_epoch = close

    def _open(self, number: int) -> _OpenParquet:
        self._note(READING, number)
        if self._opened is not None and self._opened.number == number:
            return self._opened
        self.close()
        path = self._source.path(number)
        if self._storage.needs_sizes:
            self._storage.know(path, self._source.file_bytes(number))
        file = self._storage.open(path)
        try:
            with self._decoding(path):
                self._opened = self._find(number, file)
        except DlemuError:
            self._storage.close_file(file)
            raise
        return self._opened

    def _find(self, number: int, file: File) -> _OpenParquet:
        """Return where the columns of a file lie, by its footer."""
        parquet, num_rows = self._parquet, self._layout.in_file(number)
        footer = read_footer(partial(self._storage.peek, file), file.num_bytes)
        if self._source.dataset.known_places:
            if self._own is None:
                self._own = parquet.footer(num_rows), parquet.ranges(num_rows)
            own_footer, ranges = self._own
            if footer != own_footer:
                raise DatasetError("its footer differs from what was written", remedy=VERIFY)
            end = int((ranges.offsets + ranges.lengths).max()) + len(footer) + TAIL_BYTES
            if end > file.num_bytes:
                raise DatasetError(f"it holds {file.num_bytes} bytes: it was cut short")
        else:
            ranges = parquet.found_by(footer, file.num_bytes)
            if ranges.ends[-1] != num_rows:
                raise DatasetError(
                    f"it has {ranges.ends[-1]} rows, {num_rows} samples are wanted",
                    remedy=HOW_MANY,
                )
        if self._known is None or self._known[0] is not ranges:
            self._known = ranges, ranges.joined(self._gap)
        opened = _OpenParquet(number, file, ranges.ends, self._known[1])
        if self._decodes:
            from pyarrow import parquet as library

            opened.counted = CountedFile(file.path, counts=self._storage)
            try:
                opened.parsed = library.ParquetFile(
                    opened.counted, pre_buffer=False, thrift_container_size_limit=1 << 26
                )
            except (OSError, ValueError) as error:
                raise DatasetError(" ".join(str(error).split())[:160]) from None
        return opened

    def _read_group(self, opened: _OpenParquet, group: int) -> None:
        opened.group, opened.rows = group, None
        if not self._decodes:
            offsets, lengths = opened.reads[group]
            self._storage.read_each(opened.file, offsets, lengths)
            return
        names = [column.name for column in self._parquet.read_columns]
        try:
            with self._decoding():
                table = opened.parsed.read_row_group(group, columns=names, use_threads=False)
                if self._rows.slots is not None:
                    opened.rows = self._rows_of(table)
        # PyArrow raises many types for damaged files.
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            why = " ".join(str(error).split())[:160]
            raise DatasetError(f"{opened.file.path} is damaged: {why}", remedy=VERIFY) from None

    def _rows_of(self, table: Any) -> Memory:
        """Return a row group as rows: the values of the columns that are read, side by side."""
        columns = self._parquet.read_columns
        rows = np.empty((table.num_rows, sum(column.row_bytes for column in columns)), np.uint8)
        at = 0
        for column in columns:
            chunks = table.column(column.name).chunks
            values = [chunk.flatten() if hasattr(chunk, "flatten") else chunk for chunk in chunks]
            block = np.concatenate([_bytes_of(each) for each in values])
            rows[:, at : at + column.row_bytes] = block.reshape(table.num_rows, column.row_bytes)
            at += column.row_bytes
        return rows

    def _hand_over(self, opened: _OpenParquet, first: int, last: int) -> None:
        """Copy those rows from `first` to `last` that the row group read last holds."""
        assert opened.rows is not None
        end = int(opened.ends[opened.group])
        begin, of_file = end - len(opened.rows), self._layout.start_of(opened.number)
        for row in range(max(first, begin), min(last + 1, end)):
            self._rows.copy(opened.file.path, of_file + row, opened.rows[row - begin])


def _bytes_of(array: Any) -> Memory:
    """Return the values of a PyArrow array of numbers, or of fixed-length values, as bytes."""
    width = array.type.bit_width // 8
    data = np.frombuffer(array.buffers()[-1], np.uint8)
    return data[array.offset * width : (array.offset + len(array)) * width]
