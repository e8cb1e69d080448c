"""Names, places and sizes of samples; and how large a dataset must be."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dlemu.config.model import load_workload
from dlemu.dataset.layout import Dataset, Layout, hashed, layout_of, needed_ratio
from dlemu.errors import WorkloadError

NAMES = ["unet3d_h100", "resnet50_h100", "cosmoflow_h100"]


def layout(**changes: Any) -> Layout:
    least = Layout("npz", 168, 1, mean_bytes=1000.0, stdev_bytes=0.0, element_bytes=1, seed=0)
    return replace(least, **changes)


@pytest.mark.parametrize(
    ("changes", "file", "path"),
    [
        ({}, 7, "train/img_007_of_168.npz"),
        ({"num_files": 10, "format": "npy"}, 9, "train/img_09_of_10.npy"),
        ({"num_files": 9, "format": "hdf5", "prefix": "vol"}, 8, "train/vol_8_of_9.hdf5"),
        ({"num_subfolders": 1}, 7, "train/img_007_of_168.npz"),
        ({"num_subfolders": 12}, 7, "train/07/img_007_of_168.npz"),
        ({"num_subfolders": 12}, 23, "train/11/img_023_of_168.npz"),
    ],
)
def test_names_are_dlios(changes: dict[str, object], file: int, path: str) -> None:
    assert layout(**changes).path(file) == path


def test_an_index_lies_beside_the_data() -> None:
    files = layout(format="tfrecord", num_subfolders=2)
    assert files.path(5) == "train/1/img_005_of_168.tfrecord"
    assert files.index_paths(5)[0] == "index/train/1/img_005_of_168.idx"
    of_any_size = layout(format="mmap_indexed_binary", samples_per_file=4, stdev_bytes=9.0)
    assert of_any_size.index_paths(7) == (
        "train/img_007_of_168.mmap_indexed_binary.off.idx",
        "train/img_007_of_168.mmap_indexed_binary.sz.idx",
    )


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(NAMES),
    st.sampled_from(["uint8", "float32", "int64"]),
    st.integers(0, 2**63),
    st.integers(0, 10**9),
)
def test_sizes_are_as_asked_over_any_1000_samples(
    name: str, element: str, seed: int, first: int
) -> None:
    keys = {"dataset.seed": seed, "dataset.record_element_type": element}
    workload, unit = load_workload(name, keys), np.dtype(element).itemsize
    sizes = layout_of(workload).sizes(np.arange(first, first + 1000))
    mean, stdev = workload.dataset.mean_bytes, workload.dataset.record_length_bytes_stdev
    assert sizes.mean() == pytest.approx(mean, rel=0.03)
    assert sizes.min() >= 0.01 * mean - unit and not (sizes % unit).any()
    if stdev:
        assert sizes.std() == pytest.approx(stdev, rel=0.06)
    else:
        assert set(sizes.tolist()) <= {114_660 // unit * unit, 114_660 // unit * unit + unit}


@settings(max_examples=30, deadline=None)
@given(st.floats(0.01, 0.65), st.floats(1e3, 1e9), st.integers(0, 2**31))
@example(1 / 64, 1e6, 3653)  # one of its draws is nearer to 0 than the rarest size
def test_any_stdev_that_can_be_is_reached(share: float, mean: float, seed: int) -> None:
    files = layout(mean_bytes=mean, stdev_bytes=share * mean, seed=seed)
    sizes = files.sizes(np.arange(50_000))
    assert sizes.mean() == pytest.approx(mean, rel=0.002)
    # The outermost of 64 strata are drawn 780 times: one standard deviation is 0.3 %.
    assert sizes.std() == pytest.approx(share * mean, rel=0.02)
    assert sizes.min() >= 0.01 * mean - 1


def test_a_fraction_of_a_byte_is_met_on_average() -> None:
    sizes = layout_of(load_workload("resnet50_h100")).sizes(np.arange(200_000))
    assert sizes.mean() == pytest.approx(114_660.07, abs=0.002)


def test_sizes_do_not_look_alike_from_sample_to_sample() -> None:
    sizes = layout_of(load_workload("unet3d_h100")).sizes(np.arange(20_000)).astype(float)
    for apart in (1, 2, 7, 33, 64):  # those 32 apart are strata 32 apart, which evens sums out
        alike = np.corrcoef(sizes[:-apart], sizes[apart:])[0, 1]
        assert abs(alike) < 0.05, f"samples {apart} apart"


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 64))
@settings(max_examples=50, deadline=None)
def test_sizes_follow_from_seed_and_sample_alone(seed: int, num_files: int, per_file: int) -> None:
    """Neither the ranks that ask, in what order or pieces, nor the number of files count."""
    one = layout(stdev_bytes=300.0, seed=seed, num_files=10**9)
    many = layout(stdev_bytes=300.0, seed=seed, num_files=num_files, samples_per_file=per_file)
    samples = np.arange(many.num_samples)
    together = one.sizes(samples)
    assert (many.sizes(samples) == together).all()
    by_file = [many.sizes(many.samples_of(file)) for file in reversed(range(num_files))]
    assert (np.concatenate(by_file[::-1]) == together).all()
    assert one.sizes(samples[-1:]) == together[-1]


@given(st.integers(0, 2**63), st.integers(0, 2**40))
def test_purposes_are_drawn_apart(seed: int, first: int) -> None:
    numbers = np.arange(first, first + 2000)
    one, other = (hashed(seed, numbers, purpose=purpose) for purpose in (1, 2))
    assert len(set(one.tolist()) | set(other.tolist())) == 4000
    differing = np.unpackbits((one ^ other).view(np.uint8)).mean()
    assert differing == pytest.approx(0.5, abs=0.01)


def test_lognormal_sizes_have_the_mean_and_the_spread() -> None:
    """As of ImageNet's JPEG files; half of them are smaller than the median of the distribution."""
    files = layout(mean_bytes=114_660.0, stdev_bytes=90_000.0, distribution="lognormal")
    sizes = files.sizes(np.arange(64 * 2000)).astype(float)
    assert sizes.mean() == pytest.approx(114_660, rel=0.005)
    assert sizes.std() == pytest.approx(90_000, rel=0.02)
    median = 114_660 / np.sqrt(1 + (90_000 / 114_660) ** 2)
    assert np.median(sizes) == pytest.approx(median, rel=0.01)


def test_sizes_of_a_file_are_drawn_equally_often(tmp_path: Path) -> None:
    path = tmp_path / "sizes.txt"
    path.write_text("70000\n5\n100\n100\n")
    keys = {"dataset.record_length_bytes_distribution": str(path)}
    workload = load_workload("unet3d_h100", keys)
    found = layout_of(workload)
    assert found.listed == (5, 100, 100, 70_000) and found.mean_bytes == 70_205 / 4
    assert found.stdev_bytes == pytest.approx(np.std([5, 100, 100, 70_000]))
    numbers, counts = np.unique(found.sizes(np.arange(6400)), return_counts=True)
    assert numbers.tolist() == [5, 100, 70_000] and counts.tolist() == [1600, 3200, 1600]


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "has 0 sizes"), ("5\n-1\n", r"size 2 must be whole bytes, got b'-1'")],
)
def test_a_wrong_file_of_sizes(tmp_path: Path, text: str, problem: str) -> None:
    key, path = "dataset.record_length_bytes_distribution", tmp_path / "sizes.txt"
    with pytest.raises(WorkloadError, match=rf"^{key}.*No such file"):
        load_workload("unet3d_h100", {key: str(path)})
    path.write_text(text)
    with pytest.raises(WorkloadError, match=rf"^{key}.*{problem}"):
        load_workload("unet3d_h100", {key: str(path)})


PARQUET = {
    "dataset.format": "parquet",
    "dataset.num_samples_per_file": 100,
    "dataset.parquet.columns": [
        {"name": "a", "dtype": "uint8", "size": 1000, "read": True},
        {"name": "b", "dtype": "uint8", "size": 3000},
    ],
    "dataset.parquet.row_group_size": 50,
}


def files(folder: Path | str, keys: dict[str, object]) -> Dataset:
    """Return a dataset of equal samples that is not there."""
    same = {"dataset.data_folder": str(folder), "dataset.record_length_bytes_stdev": 0}
    return Dataset.of(load_workload("unet3d_h100", same | keys))


@pytest.mark.parametrize(
    ("keys", "least", "most"),
    [
        ({"dataset.format": "npz", "dataset.record_length_bytes": 100_000}, 1.06, 1.07),
        # A file of 5120 bytes takes two pages, of which 1024 bytes are the sample.
        ({"dataset.format": "npy", "dataset.record_length_bytes": 1024}, 8.0, 8.0),
        (PARQUET, 1.1, 1.2),
    ],
)
def test_a_format_needs_its_headers_and_whole_pages(
    keys: dict[str, object], least: float, most: float
) -> None:
    assert least <= needed_ratio(files("/data", keys | {"dataset.num_files_train": 100})) <= most


def test_what_files_of_others_need_is_in_their_sizes(tmp_path: Path) -> None:
    keys = {"dataset.format": "npy", "dataset.record_length_bytes": 10_000}
    known = files(tmp_path, {**keys, "dataset.num_files_train": 2})
    dataset = replace(known, known_places=False)
    assert needed_ratio(dataset) == math.inf, "the files are gone"
    for number in range(2):
        path = tmp_path / known.layout.path(number)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(16_385))
    assert needed_ratio(dataset) == pytest.approx(20_480 / 10_000)
