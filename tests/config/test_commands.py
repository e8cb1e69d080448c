"""Printed commands describe the very job, whatever its workload came from."""

import shlex

import pytest

from dlemu.config.compose import compose_words
from dlemu.config.model import check_workload, load_workload
from dlemu.config.published import command
from dlemu.dataset.rule import datagen_command

KEYS = (
    "dataset.record_length_bytes",
    "dataset.data_folder",
    "dataset.record_dims",
    "reader.odirect",
    "train.computation_time",
)


def read_back(text: str, name: str) -> tuple[str, ...]:
    """Return the words of a command as a shell hands them over, without the first two."""
    program, found, *words = shlex.split(text)
    assert (program, found) == ("dlemu", name)
    return tuple(words)


def test_only_what_differs_from_the_shipped_workload_is_said() -> None:
    workload = load_workload("unet3d_h100", {"reader.odirect": True, "train.epochs": 5})

    assert command("run", workload, KEYS) == ("dlemu run workload=unet3d_h100 reader.odirect=true")


@pytest.mark.parametrize(
    "folder", ["/mnt/d1", "/mnt/my drive", "/mnt/it's=mine, [all]", 'a"b$HOME', "/mnt/ü"]
)
def test_a_command_is_read_back_as_the_job(folder: str) -> None:
    keys = {
        "dataset.record_length_bytes": 65536,
        "dataset.data_folder": folder,
        "dataset.record_dims": [4, 5],
        "reader.odirect": "auto",
        "train.computation_time": 0.0123,
    }
    workload = load_workload("cosmoflow_h100", keys)

    again = check_workload(compose_words(read_back(command("run", workload, KEYS), "run")))

    assert again.dataset == workload.dataset
    assert (again.reader, again.train) == (workload.reader, workload.train)


def test_a_dataset_is_written_as_it_was_asked_for() -> None:
    keys = {"dataset.data_folder": "/mnt/d1", "dataset.format": "tfrecord", "dataset.seed": 3}
    workload = load_workload("unet3d_h100", {**keys, "reader.batch_size": 2})

    again = check_workload(
        compose_words(read_back(datagen_command(workload, "auto", num_accelerators=5), "datagen"))
    )

    assert again.dataset == workload.dataset.model_copy(update={"num_files_train": "auto"})
    assert (again.num_accelerators, again.reader.batch_size) == (5, 2)
    assert "batch_size" not in datagen_command(workload, 100), "it decides nothing then"
