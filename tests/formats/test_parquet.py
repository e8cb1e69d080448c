"""Parquet: PyArrow reads what we write, and we find what PyArrow wrote."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from dlemu.config.sections import ColumnSection
from dlemu.contract import file_samples, write_file
from dlemu.datagen.assemble import Content
from dlemu.errors import DatasetError, WorkloadError
from dlemu.formats.parquet import Parquet, Ranges, _pages, read_footer
from dlemu.storage.extents import extent_reader

COLUMNS = (
    ColumnSection(name="a", dtype="float32", read=True),
    ColumnSection(name="b", dtype="float64"),
    ColumnSection(name="half", dtype="float16", read=True),
    ColumnSection(name="i", dtype="int8", read=True),
    ColumnSection(name="u", dtype="uint64"),
    ColumnSection(name="l", dtype="list", size=5000, read=True),
    ColumnSection(name="bytes", dtype="uint8", size=77),
)
FILES = Parquet(COLUMNS, 300)


def reader(path: Path) -> Callable[[int, int], bytes]:
    data = path.read_bytes()
    return lambda offset, length: data[offset : offset + length]


def find(path: Path, files: Parquet = FILES) -> Ranges:
    return files.find(reader(path), path.stat().st_size)


def refused(path: Path, problem: str, files: Parquet = FILES) -> None:
    with pytest.raises(DatasetError, match=problem):
        find(path, files)


@pytest.mark.parametrize("num_rows", [1, 299, 300, 1000])
def test_pyarrow_reads_what_was_written(tmp_path: Path, num_rows: int) -> None:
    path = tmp_path / "a.parquet"
    num_bytes, _ = write_file(path, FILES, file_samples([1] * num_rows, first=2 * num_rows))
    assert num_bytes == path.stat().st_size == FILES.file_bytes(np.ones((1, num_rows), np.int64))[0]

    file = pq.ParquetFile(path)
    table = file.read()

    assert table.num_rows == num_rows and file.metadata.num_row_groups == -(-num_rows // 300)
    types = ["float", "double", "halffloat", "fixed_size_binary[1]", "uint64"]
    assert [str(field.type) for field in table.schema][:5] == types
    assert pa.types.is_list(table.schema.field("l").type)
    assert set(map(len, table.column("l").to_pylist())) == {5000}
    page = np.empty(4 * min(300, num_rows), np.uint8)
    before = 2 * FILES._total(num_rows, lambda *chunk: len(_pages(*chunk)))  # two files
    Content(11).fill(page, before)
    first = table.column("a").chunk(0)
    assert first.to_numpy()[:300].tobytes() == page.tobytes()


def write_with_pyarrow(path: Path, **options: object) -> None:
    columns = {"b": np.zeros(50), "a": np.arange(50, dtype=np.float32), "i": np.zeros(50, np.int8)}
    columns |= {"half": np.zeros(50, np.float16)}
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(500, np.float32)), 10)
    table = pa.table({**columns, "l": lists})
    pq.write_table(table, path, row_group_size=20, **options)


def test_a_file_of_pyarrow_is_found_by_its_footer(tmp_path: Path) -> None:
    """With its dictionaries, statistics and another order of the columns."""
    path = tmp_path / "a.parquet"
    write_with_pyarrow(path, compression="none")
    found = find(path)
    assert found.ends.tolist() == [20, 40, 50]
    file = pq.ParquetFile(path).metadata
    for group in range(3):
        chunks = [file.row_group(group).column(number) for number in (1, 3, 2, 4)]
        starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
        assert found.offsets[group].tolist() == starts
        assert found.lengths[group].tolist() == [chunk.total_compressed_size for chunk in chunks]


def test_an_unknown_codec_does_not_end_the_process(tmp_path: Path) -> None:
    """PyArrow's `compression` aborts there; equal sizes say that nothing is compressed."""
    path = tmp_path / "a.parquet"
    write_file(path, FILES, file_samples([1] * 300))
    plain, unknown = (b"\x01a\x15" + codec + b"\x16" for codec in (b"\0", b"\1"))  # 0, -1
    data = path.read_bytes()
    assert data.count(plain) == 1
    path.write_bytes(data.replace(plain, unknown))
    assert find(path).ends.tolist() == [300]


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_with_pyarrow(path, compression="none")
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    for damaged, problem in (
        (data[:-100], "it was cut"),
        (data[:-5] + b"\x40" + data[-4:], "its footer would have 10737"),
        (data[: -8 - length] + b"\xff" * length + data[-8:], "its footer is damaged"),
    ):
        path.write_bytes(damaged)
        refused(path, problem)


def test_what_cannot_be_read_in_place_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_with_pyarrow(path, compression="none")
    table = pq.read_table(path)
    other = Parquet((ColumnSection(name="x"),), 10)
    refused(path, r"it has no column 'x', but \['b', 'a'", other)
    with pytest.raises(DatasetError, match=r"it has 50 rows, 7 samples are wanted"):
        FILES.locate(reader(path), path.stat().st_size, num_samples=7)
    pq.write_table(table.slice(0, 0), path, compression="none")
    refused(path, "it has no rows, or an empty row group")


def test_without_pyarrow_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    write_with_pyarrow(path, compression="none")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(WorkloadError, match=r"pip install 'dlemu\[parquet\]'"):
        find(path, Parquet(COLUMNS[:1], 7))


@pytest.mark.parametrize(
    ("gap", "reads"),
    [
        (0, [(0, 10), (20, 25), (100, 10)]),
        (9, [(0, 10), (20, 25), (100, 10)]),
        (10, [(0, 45), (100, 10)]),
        (55, [(0, 110)]),
    ],
)
def test_neighbours_up_to_a_gap_are_one_read(gap: int, reads: list[tuple[int, int]]) -> None:
    """The columns lie in another order than they are asked for; two of them touch."""
    ranges = Ranges(np.array([5]), np.array([[100, 0, 20, 40]]), np.array([[10, 10, 20, 5]]))
    offsets, lengths = ranges.joined(gap)[0]
    assert list(zip(offsets, lengths, strict=True)) == reads


def test_the_amount_counts_what_is_useful_asked_for_and_read() -> None:
    ranges, footer = FILES.ranges(900), len(FILES.footer(900))
    lengths = [length for _, group in ranges.joined(10) for length in group]
    amount = FILES.amount(900, gap=10, transfer=1000)
    assert amount.useful == sum(column.row_bytes for column in FILES.read_columns)
    assert amount.asked == ranges.lengths.sum() / 900
    assert amount.read == (sum(lengths) + footer + 8) / 900
    # Reads have at most 1000 bytes; the footer takes two, and 8 bytes of tail.
    assert amount.reads == (sum(-(-length // 1000) for length in lengths) + 2) / 900
    assert amount.describe().startswith("of each row 20,007 bytes are useful, 20,012.9 asked")


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("num_rows", [1, 299, 1000])
@pytest.mark.parametrize("group_rows", [7, 300])
@pytest.mark.parametrize("gap", [0, 10**6])
def test_the_amount_is_what_is_read(
    direct: bool, num_rows: int, group_rows: int, gap: int, tmp_path: Path
) -> None:
    """O_DIRECT reads whole pages, of the columns and of the footer."""
    files, path = Parquet(COLUMNS, group_rows), tmp_path / "a.parquet"
    write_file(path, files, file_samples([1] * num_rows))
    storage = extent_reader(direct=direct, piece_bytes=20_480, io_depth=1)
    file = storage.open(str(path))
    read_footer(partial(storage.peek, file), file.num_bytes)
    for offsets, lengths in files.ranges(num_rows).joined(gap):
        storage.read_each(file, offsets, lengths)
    storage.close_file(file)
    told = files.amount(num_rows, gap=gap, transfer=20_480, direct=direct)
    assert storage.bytes_read == pytest.approx(told.read * num_rows)
    # What is in the page cache, as all of a file just written, is taken in fewer calls.
    at_most = round(told.reads * num_rows)
    assert storage.num_reads == at_most if direct else 0 < storage.num_reads <= at_most
