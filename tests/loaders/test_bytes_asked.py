"""With O_DIRECT the kernel is asked for the bytes that a format needs, in whole pages, once."""

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyarrow import parquet as pq

from dlemu.config.model import Workload
from dlemu.datagen.survey import survey
from dlemu.errors import WorkloadError
from dlemu.formats import FORMATS
from dlemu.formats.parquet import Ranges
from dlemu.loaders import FILES_KEPT
from dlemu.units import PAGE_BYTES, round_up
from tests.lab.dataset import generated
from tests.loaders.contract import Case, make_case, read_all

SAMPLE, GROUP = 16_384, 4
EPOCHS = 2
HEADER_PAGES = 4
"""Most pages of headers and directories that are looked at when a file is opened."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that each read call asks for."""
    sizes: list[int] = []
    read = os.preadv

    def counted(file: int, into: Sequence[memoryview], *others: int) -> int:
        sizes.append(sum(map(len, into)))
        return read(file, into, *others)

    monkeypatch.setattr(os, "preadv", counted)
    return sizes


def written(folder: Path, name: str, samples: int, files: int, access: str | None) -> Workload:
    """Write a dataset; a combination that the keys refuse is skipped."""
    shape: dict[str, Any] = {"format": name, "num_files_train": files}
    shape |= {"num_samples_per_file": samples, "record_length_bytes": float(SAMPLE)}
    if name == "parquet":
        column = {"name": "a", "dtype": "uint8", "size": SAMPLE, "read": True}
        shape["parquet"] = {"columns": [column], "row_group_size": GROUP}
    keys = {"batch_size": 2, "odirect": True, "data_loader": "threads", "access": access}
    try:
        return generated(folder, {f"reader.{key}": value for key, value in keys.items()}, **shape)
    except WorkloadError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("known_places", [True, False], ids=["own", "foreign"])
@pytest.mark.parametrize("files", [4, FILES_KEPT + 4], ids=["kept", "many"])
@pytest.mark.parametrize(("samples", "access"), [(1, None), (32, "random"), (32, "stream")])
@pytest.mark.parametrize("name", [*FORMATS])
def test_asks_the_kernel_for_what_the_format_needs(
    tmp_path: Path,
    asked: list[int],
    name: str,
    samples: int,
    access: str | None,
    files: int,
    known_places: bool,
) -> None:
    workload = written(tmp_path, name, samples, files, access)
    case = Case(workload)
    if samples == 1 or name == "parquet" or workload.streamed:
        visits = files * EPOCHS
        sizes = [each.stat().st_size for each in (tmp_path / "train").iterdir()]
        needed = sum(map(round_up, sizes)) * EPOCHS
    else:
        visits = files if files <= FILES_KEPT else files * samples * EPOCHS
        needed = files * samples * EPOCHS * round_up(SAMPLE + PAGE_BYTES - 1)
    num_samples = files * samples * EPOCHS
    looks = 0
    if name == "parquet":  # row groups begin within pages
        looks = num_samples // GROUP
    elif name in ("tfrecord", "webdataset") and not known_places:  # at the header of each record
        looks = num_samples
    elif name == "csv" and not known_places:  # for the ends of its lines
        needed *= 2
    most = needed + (visits * HEADER_PAGES + looks) * PAGE_BYTES
    with closing(case.open(known_places=known_places, keep=0)) as loader:
        assert loader.direct
        asked.clear()
        read = 0
        for epoch in range(EPOCHS):
            for batches in loader.epoch(epoch, case.plan(epoch)):
                read += sum(batch.num_bytes for batch in batches)
    assert num_samples * SAMPLE <= read <= sum(asked) <= most


@pytest.mark.parametrize("gap", [0, 1 << 20])
def test_only_the_columns_that_are_marked_are_read(tmp_path: Path, gap: int) -> None:
    """With a large gap the column between them is read as well, and each row group once."""
    keys = {"reader.data_loader": "threads", "reader.batch_size": 13, "reader.coalesce_gap": gap}
    case = make_case(tmp_path, "parquet of 13", keys)
    for name in ("dlemu.json", "dlemu.files.npy"):
        (tmp_path / name).unlink()
    assert survey(tmp_path, case.workload)[1].num_samples == 26, "found by their footers"
    wanted = 0
    for path in (tmp_path / "train").iterdir():
        file = pq.ParquetFile(path).metadata
        wanted += file.serialized_size + 8
        for group in map(file.row_group, range(file.num_row_groups)):
            taken = (0, 2, 3, 4) if gap == 0 else range(5)
            wanted += sum(group.column(number).total_compressed_size for number in taken)
    steps = read_all(case, known_places=False, keep=0)
    assert sum(batch.num_bytes for [batch] in steps) == wanted


def test_ranges_of_ones_own_files_are_joined_once(tmp_path: Path) -> None:
    """All footers are alike, and a large one takes as long as its file."""
    case = make_case(tmp_path, "parquet of 13", {"reader.read_threads": 0})
    join = patch.object(Ranges, "joined", autospec=True, side_effect=Ranges.joined)
    with join as joined:
        read_all(case, epochs=2, keep=0)
    assert joined.call_count == 1
