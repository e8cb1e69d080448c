"""The workload files that DLIO and the benchmark publish, as tests/data/published.yaml has them."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from dlemu.cli.main import run
from dlemu.config.compose import set_key
from dlemu.config.model import Workload, load_workload, read_by
from dlemu.dataset.layout import layout_of
from dlemu.dataset.plan import make_plan
from dlemu.dataset.rule import dataset_size
from dlemu.errors import WorkloadError
from dlemu.judge.records import dump_workload
from dlemu.run.protocol import check_closed
from docs import dlio
from docs.house import page_with

STORED = yaml.safe_load((Path(__file__).parents[1] / "data" / "published.yaml").read_text())
NAMES = [f"{place} {name}" for place, files in STORED.items() for name in files]
_EVALUATION: dict[str, object] = {"workflow.evaluation": False}
DECLINED: dict[str, dict[str, object]] = {
    "dlio default": _EVALUATION,
    "dlio plugins/default": _EVALUATION,
    "dlio plugins/experimental/default": _EVALUATION,
    "dlio plugins/experimental/pt_custom_checkpoint": {
        "checkpoint.checkpoint_mechanism_classname": None
    },
}
"""Files that ask for what dlemu does not do, and the word with which they run."""


def keys_of(name: str) -> dict[str, Any]:
    """Return the keys of a stored file, by "PLACE NAME"."""
    place, _, own = name.partition(" ")
    found = STORED[place][own]
    if "like" not in found:
        return copy.deepcopy(found)
    tree = keys_of(found["like"])
    for key, value in found.items():
        if key != "like":
            set_key(tree, key, value)
    return tree


def loaded(name: str, folder: Path, keys: Mapping[str, object]) -> Workload:
    """Return the workload of a stored file, which has its own name, with other keys."""
    path = folder / f"{name.replace(' ', '/').rpartition('/')[2]}.yaml"
    path.write_text(yaml.safe_dump(keys_of(name)))
    return load_workload(path, keys)


@pytest.mark.parametrize("name", NAMES)
def test_every_published_file_loads_or_names_the_word_with_which_it_does(
    name: str, tmp_path: Path
) -> None:
    declined = DECLINED.get(name, {})
    for key, value in declined.items():
        word = "null" if value is None else str(value).lower()
        with pytest.raises(WorkloadError, match=rf"^{key}=.*{key}={word}"):
            loaded(name, tmp_path, {})
    loaded(name, tmp_path, declined)


CLOSED = [name for name in NAMES if name[0] == "v" and keys_of(name)["workflow"]["train"]]


@pytest.mark.parametrize("name", CLOSED)
def test_each_editions_files_are_closed_as_they_stand(name: str, tmp_path: Path) -> None:
    keys = {"division": "closed", "runs": 5, "warmup": 1, "dataset.num_files_train": "auto"}
    job = loaded(name, tmp_path, keys | {"metric.edition": name.partition(" ")[0]})
    size = dataset_size(job, num_accelerators=1, host_memory=2**30)
    row = load_workload(job.name)
    assert check_closed(job, size).reader == job.reader == row.reader
    assert (job.train, job.metric.au) == (row.train, row.metric.au)
    same: dict[str, object] = {"dataset.data_folder": None, "dataset.num_files_train": "auto"}
    assert job.with_keys(same).dataset == row.with_keys(same).dataset


_SMALL: dict[str, object] = {
    "workflow.generate_data": True,
    "dataset.num_files_train": 12,
    "dataset.record_length_bytes": 5000,
    "dataset.record_length_bytes_stdev": 0,
    "reader.batch_size": 2,
    "reader.read_threads": 1,
    "train.epochs": 1,
    "train.computation_time": 0.001,
    "train.total_training_steps": -1,
    "model.parallelism.tensor": 1,
    "model.parallelism.pipeline": 1,
    "checkpoint.fsync": False,
    "checkpoint.scale": 1e-8,
    "checkpoint.steps_between_checkpoints": None,
    "checkpoint.checkpoint_after_epoch": 1,
    "checkpoint.num_checkpoints_write": 1,
    "checkpoint.num_checkpoints_read": 1,
    "checkpoint.time_between_checkpoints": 0,
    "storage.storage_type": "local_fs",
    "storage.storage_root": "./",
    "metric.au": 1e-6,  # also beside other programs
    "metric.max_cached_share": 1,
}


def small(name: str, folder: Path) -> Workload:
    """Return the job of a stored file at a size that is read in a moment, from a local drive."""
    tree = keys_of(name)
    keys = {key: value for key, value in _SMALL.items() if key.partition(".")[0] != "dataset"}
    if "dataset" in tree:
        each = min(tree["dataset"]["num_samples_per_file"], 4)
        keys = _SMALL | {
            "dataset.num_samples_per_file": each,
            "dataset.data_folder": f"{folder / 'data'}",
        }
    return loaded(name, folder, DECLINED.get(name, {}) | keys)


def test_every_published_file_runs(tmp_path: Path) -> None:
    """Those that are the same at small size run once."""
    jobs = {}
    for name in NAMES:
        job = small(name, tmp_path)
        command = "checkpoint"
        if "dataset" in keys_of(name):
            command = "run" if job.workflow.train else "datagen"
        read = {"dataset", "reader", "train", "workflow"}
        wrote = job.model if command == "checkpoint" else ""
        jobs[str((command, job.model_dump(include=read), wrote))] = name, command, job
    assert len(jobs) > 20
    for number, (name, command, job) in enumerate(jobs.values()):
        own = tmp_path / str(number)
        own.mkdir()
        (own / "job.yaml").write_text(dump_workload(job))
        words = [f"checkpoint.checkpoint_folder={own / 'ck'}", f"output.folder={own / 'run'}"]
        words += [f"dataset.data_folder={own / 'data'}"] if command != "checkpoint" else []
        assert run([command, f"workload={own / 'job.yaml'}", *words]) == 0, name


def test_the_page_has_every_key_of_dlio() -> None:
    page = dlio.PAGE.read_text(encoding="utf-8")
    told = "run python -m docs.dlio --write"
    assert page == page_with(page, dlio.table(), dlio.MARKS), told


def test_no_key_without_effect_changes_what_is_read() -> None:
    """Why is in the table, and the whole of them leaves each epoch's samples as they are."""
    idle = {key: value for key, value, outcome, _ in dlio.tried() if outcome == "no effect"}
    assert len(idle) > 30
    named, usual = dlio.with_keys(idle), dlio.with_keys({})
    of_fields = {key for key in idle if not read_by(key) and key not in named.ignored}
    changed = {key for key, value in dlio.plain(named).items() if dlio.plain(usual)[key] != value}
    assert changed <= of_fields, "the fields that nothing reads"
    for epoch in (0, 1):
        one, two = (
            make_plan(job, layout_of(job), num_accelerators=2, epoch=epoch).samples
            for job in (named, usual)
        )
        assert (one == two).all()
        assert (layout_of(named).sizes(one) == layout_of(usual).sizes(two)).all()
