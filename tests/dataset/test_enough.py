"""Datasets that are too small for a search, and the number of files that would do."""

import re

import pytest

from dlemu.dataset.enough import Enough
from dlemu.dataset.layout import layout_of
from dlemu.errors import DatasetError
from dlemu.workload.model import load_workload

GIB = 1 << 30


def enough(num_files: int, *, memory: int = 0, **keys: object) -> Enough:
    """Return a dataset of so many files: UNet3D, batches of 7, with 4 batches read ahead."""
    given = {key.replace("__", "."): value for key, value in keys.items()}
    least = {"dataset.data_folder": "/mnt/d", "dataset.num_files_train": num_files}
    workload = load_workload("unet3d_h100", least | given)
    assert workload.reader.batch_size == 7 and workload.batches_in_flight == 5
    return Enough(workload, layout_of(workload), memory)


def asked_for(dataset: Enough, accelerators: int, *, expected: float) -> int:
    """Return the files that a refusal asks for."""
    with pytest.raises(DatasetError) as error:
        dataset.check(accelerators, expected=expected)
    found = re.search(r"dataset\.num_files_train=(\d+)", str(error.value))
    assert found is not None, str(error.value)
    return int(found[1])


@pytest.mark.parametrize(
    ("expected", "ahead"),
    [
        (1.0, 4),  # no fewer than those that are to be tried
        (8.0, 10),  # a quarter more than where the search may end
        (1000.0, 20),  # what is expected is an estimate: at most five times as many
    ],
)
def test_a_dataset_is_asked_for_with_more_accelerators_in_view(expected: float, ahead: int) -> None:
    whole = enough(100)
    assert asked_for(whole, 4, expected=expected) == 500 * 7 * ahead
    quick = enough(100, size__quick=True)
    assert asked_for(quick, 4, expected=expected) == 10 * 5 * 7 * ahead


def test_the_smallest_dataset_that_is_enough_is_taken() -> None:
    for quick, least in ((False, 500 * 7 * 4), (True, 10 * 5 * 7 * 4)):
        enough(least, size__quick=quick).check(4, expected=1000)
        assert enough(least, size__quick=quick).most == 4
        assert enough(least - 1, size__quick=quick).most == 3
        with pytest.raises(DatasetError):
            enough(least - 1, size__quick=quick).check(4, expected=1)


def test_memory_asks_for_files_too_but_not_of_a_quick_search() -> None:
    samples = 5 * 1024 * GIB / 146_600_628
    assert asked_for(enough(3500, memory=1024 * GIB), 1, expected=1) == int(samples) + 1
    with pytest.raises(DatasetError, match=r"1 accelerator \(5 x memory\), /mnt/d has 3,500;"):
        enough(3500, memory=1024 * GIB).check(1, expected=1)
    enough(3500, memory=1024 * GIB, size__quick=True).check(1, expected=1)


def test_what_is_read_ahead_is_a_share_of_the_epochs_steps() -> None:
    dataset = enough(7 * 100)
    assert [dataset.num_steps(number) for number in (1, 2, 3)] == [100, 50, 33]
    assert dataset.read_ahead_share(2) == pytest.approx(5 / 50)
    assert enough(7 * 100, train__total_training_steps=20).num_steps(1) == 20
