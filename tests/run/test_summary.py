"""What a run's summary says of the bytes that a format needs."""

import math
from pathlib import Path

import pytest

from dlemu.config.model import load_workload
from dlemu.dataset.layout import Dataset
from dlemu.run.job import needed_ratio

PARQUET = [
    {"name": "a", "dtype": "uint8", "size": 1000, "read": True},
    {"name": "b", "dtype": "uint8", "size": 3000},
]


@pytest.mark.parametrize(
    ("keys", "least", "most"),
    [
        ({"dataset.format": "npz"}, 1.06, 1.07),
        ({"dataset.format": "tfrecord", "dataset.num_samples_per_file": 50}, 1.0, 1.05),
        # A file of 5120 bytes takes two pages, of which 1024 bytes are the sample.
        ({"dataset.format": "npy", "dataset.record_length_bytes": 1024}, 8.0, 8.0),
        ({"dataset.format": "hdf5", "dataset.num_samples_per_file": 50}, 1.12, 1.13),
        (
            {
                "dataset.format": "parquet",
                "dataset.num_samples_per_file": 100,
                "dataset.parquet.columns": PARQUET,
                "dataset.parquet.row_group_size": 50,
            },
            1.1,
            1.2,
        ),
    ],
)
def test_a_format_needs_its_headers_and_whole_pages(
    keys: dict[str, object], least: float, most: float
) -> None:
    more: dict[str, object] = {
        "dataset.data_folder": "/data",
        "dataset.num_files_train": 100,
        "dataset.record_length_bytes": 100_000,
        "dataset.record_length_bytes_stdev": 0,
    }
    dataset = Dataset.of(load_workload("unet3d_h100", more | keys))
    assert least <= needed_ratio(dataset) <= most


def test_what_files_of_others_need_is_in_their_sizes(tmp_path: Path) -> None:
    keys: dict[str, object] = {
        "dataset.data_folder": str(tmp_path),
        "dataset.format": "npy",
        "dataset.num_files_train": 2,
        "dataset.record_length_bytes": 10_000,
        "dataset.record_length_bytes_stdev": 0,
    }
    known = Dataset.of(load_workload("unet3d_h100", keys))
    dataset = Dataset(known.workload, known.layout, known_places=False)
    assert needed_ratio(dataset) == math.inf, "the files are gone"
    for number in range(2):
        path = tmp_path / known.layout.path(number)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(16_385))
    assert needed_ratio(dataset) == pytest.approx(20_480 / 10_000)
