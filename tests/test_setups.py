"""As the world is set up: one row a set-up, with what dlemu said of it before and says now.

Each row is a report of somebody's real host. What needs root skips without it, and no other row
needs a privilege.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlemu.config.model import Workload, check_workload
from dlemu.datagen.survey import find_dataset
from dlemu.dataset.plan import make_plan
from dlemu.formats.tfrecord import TfRecord
from dlemu.ranks.world import Alone
from dlemu.report.words import note_lines
from tests.lab.commands import Printed, ran, small_job, summary_of
from tests.lab.dataset import tree
from tests.lab.real_datasets import LAYOUTS, make

# --- real datasets --------------------------------------------------------------------------------


def job_over(keys: dict[str, Any], folder: Path, **reader: object) -> Workload:
    return check_workload(
        {
            "name": "real",
            "dataset": keys,
            "reader": {"batch_size": 2, "data_loader": "threads", "read_threads": 2} | reader,
            "train": {"epochs": 2, "computation_time": 0.001},
            "metric": {"au": 0.0001, "max_cached_share": 1},
            "output": {"folder": str(folder)},
        }
    )


SAMPLES: dict[str, Any] = {
    "imagenet": ("has no jpeg files (of others: none)", 18),
    "cats_and_dogs": ("has two files of number 0 ...; remove one", 16),
    "coco": ("train has no jpeg files", 18),
    "kits19": ("has no npy files (of others: none)", 10),
    "imagenet_tfrecords": ("has no tfrecord files (of others: none)", [7, 7, 7, 3]),
    "laion": ("train has no webdataset files", [8, 8, 5]),
    "huggingface": ("train has no parquet files", [9, 9, 4]),
    "mosaicml": ("dataset.format must be 'npz', ...", [6, 6, 4]),
}
"""What was said before, and the samples that a layout holds now, in all or in each shard."""


def test_the_table_has_each_layout() -> None:
    assert SAMPLES.keys() == LAYOUTS.keys()


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_real_dataset_is_read_as_it_lies(tmp_path: Path, name: str) -> None:
    """Each sample once an epoch, but for what does not fill the last step; nothing is changed."""
    keys, (_, samples) = make(name, tmp_path / "data"), SAMPLES[name]
    before, out = tree(tmp_path / "data"), tmp_path / "out" / "1"

    outcome = ran(job_over(keys, out))

    total = samples if isinstance(samples, int) else sum(samples)
    assert {epoch.num_samples for epoch in outcome.metrics.epochs} == {total // 2 * 2}
    survey = json.loads((out / "survey.json").read_text())
    assert survey["num_samples"] == total
    assert survey["samples_of_files"] == (1 if isinstance(samples, int) else samples)
    assert tree(tmp_path / "data") == before, "nothing is written there"


@pytest.mark.parametrize("name", ["imagenet", "laion"])
def test_verify_says_why_it_cannot_check_a_real_dataset(
    tmp_path: Path, printed: Printed, name: str
) -> None:
    make(name, tmp_path)
    assert "has no manifest, so nothing says what" in printed("verify", str(tmp_path), status=1)


def test_each_sample_of_uneven_shards_is_read_once(tmp_path: Path) -> None:
    """In random order of shards and from end to end, by whatever reads them."""
    keys = make("laion", tmp_path / "data")
    job = job_over(keys, tmp_path / "out", sample_shuffle="off")
    dataset = find_dataset(job, Alone())
    layout = dataset.layout
    assert [layout.in_file(file) for file in range(3)] == [8, 8, 5]
    every = np.arange(layout.num_samples)
    assert layout.file_of(every).tolist() == [0] * 8 + [1] * 8 + [2] * 5
    assert layout.place_of(every).tolist() == [*range(8), *range(8), *range(5)]
    assert [layout.find(sample) for sample in (0, 7, 8, 20)] == [(0, 0), (0, 7), (1, 0), (2, 4)]
    for epoch in range(4):
        plan = make_plan(dataset.workload, layout, num_accelerators=1, epoch=epoch)
        read = plan.sequence
        assert read is not None and sorted(read.tolist()) == every.tolist()
        runs = layout.file_of(read)[np.append(True, np.diff(layout.file_of(read)) != 0)]
        assert sorted(runs.tolist()) == [0, 1, 2], "each shard is read in one piece"


def test_shards_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the survey beside the results, unless a file has changed since."""
    keys = make("imagenet_tfrecords", tmp_path / "data")
    ran(job_over(keys, tmp_path / "out" / "1"))
    counted: list[str] = []
    count = TfRecord.count

    def noted(*words: Any, path: str = "") -> int:
        counted.append(path)
        return count(*words, path=path)

    monkeypatch.setattr(TfRecord, "count", noted)
    ran(job_over(keys, tmp_path / "out" / "2"))
    assert not counted
    shard = tmp_path / "data" / "train" / "train-00001-of-00004"
    shard.write_bytes((tmp_path / "data" / "train" / "train-00003-of-00004").read_bytes())
    ran(job_over(keys, tmp_path / "out" / "3"))
    assert len(counted) == 4
    survey = json.loads((tmp_path / "out" / "3" / "survey.json").read_text())
    assert survey["samples_of_files"] == [7, 3, 7, 3]


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    for name, said in {
        "coco": "not read: 2 files of other sets, such as val2017/000000000139.jpg",
        "kits19": "not read: 10 files *_y.npy beside *_x.npy: they hold labels",
        "imagenet": "dataset.num_files_train=12: the first 12 of 18 files are read",
    }.items():
        keys = make(name, tmp_path / name)
        if name == "imagenet":
            keys["num_files_train"] = 12
        dataset = find_dataset(job_over(keys, tmp_path / "out"), Alone())
        assert dataset.notes[1:] == (said,)


def test_names_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    keys = make("cats_and_dogs", tmp_path)
    for number in (10, 9):
        (tmp_path / "train" / "cat" / f"cat.{number}.JPG").write_bytes(bytes(3000))
    layout = find_dataset(
        job_over(keys | {"num_files_train": 18}, tmp_path / "out"), Alone()
    ).layout
    cats = [layout.path(file) for file in range(10)]
    assert cats == [f"train/cat/cat.{number}.jpg" for number in range(8)] + [
        "train/cat/cat.9.JPG",
        "train/cat/cat.10.JPG",
    ]


def test_the_first_files_of_a_larger_dataset_are_read(tmp_path: Path) -> None:
    """Before: refused; now as mlcommons/storage #779 asks for it."""
    job = small_job(tmp_path).with_keys({"dataset.num_files_train": 28})
    outcome = ran(job)
    assert {epoch.num_samples for epoch in outcome.metrics.epochs} == {28}
    notes = note_lines(summary_of(tmp_path / "run"))
    assert "note: dataset.num_files_train=28: the first 28 of 56 files are read" in notes
    dataset = find_dataset(job, Alone())
    assert dataset.layout.path(27) == "train/img_27_of_56.npz" and dataset.layout.num_samples == 28
