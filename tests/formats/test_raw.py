"""Bare samples and their indexes: DLIO's indexed_binary."""

import numpy as np
import pytest

from dlemu.errors import DatasetError
from dlemu.formats import raw


def index(*numbers: int) -> bytes:
    return np.array(numbers, "<u8").tobytes()


def test_an_index_is_read_back() -> None:
    sizes = np.array([5, 1, 70_000])
    offsets, lengths = raw.indexes(sizes)
    assert (offsets, lengths) == (index(0, 5, 6), index(5, 1, 70_000))
    places = raw.locate_by([offsets, lengths], 70_006, num_samples=3)
    assert (places.offsets.tolist(), places.lengths.tolist()) == ([0, 5, 6], [5, 1, 70_000])


def test_an_index_may_leave_gaps() -> None:
    places = raw.locate_by([index(0, 100), index(10, 20)], 200, num_samples=2)
    assert places.offsets.tolist() == [0, 100]


def test_offsets_that_begin_anew_are_those_of_the_sizes() -> None:
    """DLIO 3.0 counts from zero for each buffer of generation_buffer_size that it wrote."""
    places = raw.locate_by([index(0, 10, 0, 10), index(10, 10, 10, 10)], 40, num_samples=4)
    assert places.offsets.tolist() == [0, 10, 20, 30]


@pytest.mark.parametrize(
    ("offsets", "sizes", "problem"),
    [
        (index(0, 10), index(10), "its index has 1 sizes, dataset.num_samples_per_file asks for 2"),
        (index(0, 10)[:-3], index(10, 10), "its index has 1.625 offsets"),
        (index(0, 11), index(10, 10), "points past its end: sample 1 has 10 bytes at 11, the file"),
        (index(0, 2**64 - 1), index(10, 10), "points past its end: sample 1"),
        (index(0, 10), index(10, 0), "sample 1 has 0 bytes"),
    ],
)
def test_a_wrong_index_is_refused(offsets: bytes, sizes: bytes, problem: str) -> None:
    with pytest.raises(DatasetError, match=problem):
        raw.locate_by([offsets, sizes], 20, num_samples=2)
