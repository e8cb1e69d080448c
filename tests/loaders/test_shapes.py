"""Samples read one by one from bare files, and columns of files that another tool wrote."""

import os
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from dlemu.datagen import survey
from dlemu.dataset.layout import Dataset
from dlemu.dataset.plan import make_plan
from dlemu.errors import DatasetError, WorkloadError
from dlemu.formats.parquet import Ranges
from dlemu.loaders import check_loader, open_loader
from tests.lab.dataset import flip, workload_of
from tests.loaders.contract import expected, make_case

LOADERS = ["threads", "pytorch"]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("dataset", ["raw of 13", "indexed of 13"])
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"reader.odirect": True},
        {"reader.io_depth": 4},
        {"dataset.record_length_bytes_resize": 5000, "reader.transfer_size": 1 << 17},
    ],
    ids=str,
)
def test_records_in_any_order(
    tmp_path: Path, loader: str, dataset: str, keys: dict[str, object]
) -> None:
    keys = {"reader.access": "random", "reader.sample_shuffle": "seed", **keys}
    case = make_case(
        tmp_path, dataset, {"reader.data_loader": loader, "reader.read_threads": 2} | keys
    )
    plan = make_plan(case.workload, case.layout, num_accelerators=1, epoch=0)
    assert plan.sequence is None, "no stream"
    for known in (True, False):
        opened, read = case.open(known_places=known), []
        try:
            for [batch] in opened.epoch(0, plan):
                assert batch.arrays is not None
                assert known is False or batch.num_bytes >= sum(map(len, batch.arrays))
                if known and "reader.transfer_size" in keys:
                    assert batch.num_reads == 3, "one read a sample, also where it is cut"
                for sample, array in zip(batch.samples.tolist(), batch.arrays, strict=True):
                    assert np.array_equal(array, expected(case, sample)), sample
                    read.append(sample)
        finally:
            opened.close()
        assert len(read) == len(set(read)) == 24 and sorted(read) != read


@pytest.mark.parametrize("gap", [0, 1 << 20])
def test_only_the_columns_that_are_marked_are_read(tmp_path: Path, gap: int) -> None:
    """With a large gap the column between them is read as well, and each row group once."""
    schema = [{"name": "a", "dtype": "float32", "read": True}, {"name": "b", "dtype": "float64"}]
    schema.append({"name": "l", "dtype": "list", "size": 3, "read": True})
    workload = workload_of(
        tmp_path,
        {"reader.batch_size": 10, "reader.data_loader": "threads", "reader.coalesce_gap": gap},
        **{"format": "parquet", "num_files_train": 2, "num_samples_per_file": 50},
        parquet={"columns": schema, "row_group_size": 20},
    )
    (tmp_path / "train").mkdir()
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(150, np.float32)), 3)
    table = pa.table({"a": np.zeros(50, np.float32), "b": np.zeros(50), "l": lists})
    for file in range(2):  # as DLIO writes them
        path = tmp_path / "train" / f"img_{file}_of_2.parquet"
        pq.write_table(table, path, row_group_size=20, compression="none", use_dictionary=False)
    found = survey(tmp_path, workload)
    plan = make_plan(workload, found, num_accelerators=1, epoch=0)
    with closing(
        open_loader(Dataset(workload, found, False), accelerators=range(1), keep=0)
    ) as opened:
        read = sum(batch.num_bytes for [batch] in opened.epoch(0, plan))
    wanted = 0
    for path in sorted((tmp_path / "train").iterdir()):
        file = pq.ParquetFile(path).metadata
        wanted += file.serialized_size + 8
        for group in range(file.num_row_groups):
            row = file.row_group(group)
            taken = (0, 2) if gap == 0 else (0, 1, 2)
            wanted += sum(row.column(number).total_compressed_size for number in taken)
    assert read == wanted


def test_an_index_that_points_past_its_file(tmp_path: Path) -> None:
    case = make_case(tmp_path, "indexed of 13")
    for name in ("dlemu.json", "dlemu.files.npy"):
        (tmp_path / name).unlink()
    data = tmp_path / case.layout.path(0)
    os.truncate(data, data.stat().st_size - 1)
    with pytest.raises(
        DatasetError, match=r"img_0_of_2.*: its index points past its end: sample 12"
    ):
        survey(tmp_path, case.workload)
    (tmp_path / case.layout.index_paths(0)[1]).unlink()
    with pytest.raises(DatasetError, match=r"its index .*sz.idx cannot be read: No such file"):
        survey(tmp_path, case.workload)


def test_a_footer_that_differs_from_what_was_written(tmp_path: Path) -> None:
    case = make_case(tmp_path, "parquet of 13", {"reader.data_loader": "threads"})
    path = tmp_path / case.layout.path(0)
    flip(path, -20)
    line = "its footer differs from what was written"
    with closing(case.open(keep=0)) as opened, pytest.raises(DatasetError, match=line):
        list(opened.epoch(0, case.plan(0)))


def test_ranges_of_ones_own_files_are_joined_once(tmp_path: Path) -> None:
    """All footers are alike, and a large one takes as long as its file."""
    case = make_case(tmp_path, "parquet of 13", {"reader.read_threads": 0})
    join = patch.object(Ranges, "joined", autospec=True, side_effect=Ranges.joined)
    with join as joined, closing(case.open(keep=0)) as opened:
        for epoch in range(2):
            list(opened.epoch(epoch, case.plan(epoch)))
    assert joined.call_count == 1


def test_rows_need_decoding_to_be_handed_over(tmp_path: Path) -> None:
    case = make_case(tmp_path, "parquet of 13", {"reader.data_loader": "threads"})
    with pytest.raises(WorkloadError, match=r"hand_over=batch needs reader.decode=library"):
        case.open(keep=1)
    decoded = case.workload.with_keys({"reader.decode": "library"})
    line = r"needs pyarrow .*pip install 'dlemu\[parquet\]'"
    with patch("dlemu.loaders.find_spec", lambda _: None), pytest.raises(WorkloadError, match=line):
        check_loader(decoded, 1)
