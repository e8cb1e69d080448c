"""Keys that have no effect on a job are named, and no others."""

import pytest
from pydantic import BaseModel

from dlemu.config.keys import all_keys, context_of, idle_keys
from dlemu.config.model import Workload, load_workload, use_of
from dlemu.config.refusal import group_of
from dlemu.config.types import Use

MANY = {"dataset.num_samples_per_file": 4, "dataset.record_length_bytes_stdev": 0}
STREAM = {**MANY, "dataset.format": "tfrecord"}
LIBRARY = {"reader.decode": "library"}
DALI = {"reader.data_loader": "dali"}
TF = {"reader.data_loader": "tensorflow"}
GPU = {**DALI, "dali.device": "gpu"}
PARQUET = {"dataset.format": "parquet"}
COLUMNS = {"dataset.parquet.columns": [{"name": "a"}]}
BUCKET = {"dataset.data_folder": "s3://bucket/a"}
SAVES = {"workflow.checkpoint": True, "model.model_size_bytes": 1e9}
STEPS = {"checkpoint.steps_between_checkpoints": 3}
V2 = {"metric.edition": "v2.0"}
OFF = {"reader.file_shuffle": "off", "reader.sample_shuffle": "off"}


def idle(keys: dict[str, object], name: str = "unet3d_h100", command: str = "run") -> list[str]:
    return list(idle_keys(load_workload(name, keys), command))


@pytest.mark.parametrize(
    ("key", "value", "without", "effective"),
    [
        ("reader.transfer_size", 1 << 20, {}, MANY),
        ("reader.transfer_size", 1 << 20, {**MANY, **LIBRARY}, MANY),
        ("reader.access", "stream", {}, STREAM),
        ("reader.coalesce_gap", 9, {}, PARQUET),
        ("reader.coalesce_gap", 9, {**PARQUET, **LIBRARY}, PARQUET),
        ("reader.gets_in_flight", 8, {}, BUCKET),
        ("reader.odirect", True, BUCKET, {}),
        ("reader.odirect", True, LIBRARY, {}),
        ("reader.preprocess", "sleep", {}, {"reader.preprocess_time.mean": 1}),
        ("reader.piece_bytes", 1 << 22, MANY, {}),
        ("reader.shuffle_size", 16, {}, STREAM),
        ("reader.shuffle_size", 16, {**STREAM, **OFF}, STREAM),
        ("reader.shuffle_size", 16, {}, TF),
        ("reader.prefetch_size", 4, {"reader.read_threads": 0}, TF),
        ("dataset.record_length_bytes_resize", 9, {"reader.hand_over": "none"}, {}),
        ("dataset.record_length_bytes_resize", 9, {"reader.data_loader": "threads"}, DALI),
        ("reader.io_depth", 8, LIBRARY, {}),
        ("reader.io_depth", 8, {"reader.cost": "dataloader"}, {}),
        ("reader.cost", "dataloader", {"reader.data_loader": "threads"}, {}),
        ("reader.multiprocessing_context", "spawn", {"reader.read_threads": 0}, {}),
        ("reader.worker_memory", "kept", {"reader.read_threads": 0}, {}),
        ("reader.worker_start_time", 0.02, {"reader.read_threads": 0}, {}),
        ("reader.page_lock_time", 1.0, {}, {"reader.cost": "dataloader"}),
        (
            "reader.persistent_workers",
            True,
            {"train.epochs": 2},
            {"reader.cost": "dataloader", "train.epochs": 2},
        ),
        ("reader.gds", "prefer", DALI, GPU),
        ("dali.gpus_per_host", 2, {}, GPU),
        ("dali.gpus_per_host", 2, DALI, {"train.compute": "gpu"}),
        ("train.network", "resnet50", {}, {"train.compute": "gpu"}),
        ("train.launch_time", 0.01, {"train.compute": "gpu", "train.network": "resnet50"}, {}),
        ("train.seed", 7, OFF, {}),
        ("train.step_spread", "shared", {}, {"train.computation_time": {"mean": 1, "stdev": 0.1}}),
        ("train.seed", 7, OFF, {**OFF, "reader.preprocess_time": {"mean": 1, "stdev": 0.1}}),
        ("metric.exclude_start_steps", 3, {}, V2),
        ("metric.exclude_end_steps", 3, {}, V2),
        ("train.seed_change_epoch", False, OFF, {}),
        ("storage.retries", 3, SAVES, BUCKET),
        ("storage.retries", 3, {}, {**SAVES, "checkpoint.checkpoint_folder": "s3://bucket/a"}),
        ("cache.policy", "lru", {}, {"cache.folder": "/cache"}),
        ("checkpoint.keep", 2, {}, SAVES),
        ("checkpoint.checkpoint_after_epoch", 2, {}, SAVES),
        ("checkpoint.checkpoint_after_epoch", 2, {**SAVES, **STEPS}, SAVES),
        ("checkpoint.staging_bandwidth", 1e9, SAVES, {**SAVES, "checkpoint.asynchronous": True}),
        ("storage.storage_root", "/mnt", {"dataset.data_folder": "/data"}, {}),
        ("dataset.record_length_bytes", 5, {"dataset.record_dims": [4, 4]}, {}),
        ("dataset.record_length_bytes_distribution", "lognormal", {"dataset.record_dims": [4]}, {}),
        ("dataset.record_length_bytes_distribution", "lognormal", {**PARQUET, **COLUMNS}, {}),
        ("dataset.enable_chunking", True, {}, {"dataset.format": "hdf5"}),
        ("dataset.parquet.row_group_size", 9, {}, PARQUET),
        ("dataset.record_dims", [4, 4], {**PARQUET, **COLUMNS}, PARQUET),
        ("output.drop_caches", True, {"output.drop_all_caches": True}, {}),
        ("output.drop_all_caches", True, BUCKET, {}),
        ("output.drop_each_epoch", True, {"train.epochs": 1}, {}),
        ("output.drop_each_epoch", True, {"output.drop_caches": False}, {}),
        ("accelerators_per_rank", 2, {"num_accelerators": 4}, {}),
        ("host_memory", "1GiB", {}, {"dataset.num_files_train": "auto"}),
        ("host_memory", "1GiB", {}, {"division": "closed"}),
        ("num_hosts", 2, {}, {"dataset.num_files_train": "auto"}),
    ],
)
def test_a_key_is_named_where_it_has_no_effect_and_only_there(
    key: str, value: object, without: dict[str, object], effective: dict[str, object]
) -> None:
    assert key in idle({**without, key: value})
    assert key not in idle({**effective, key: value})
    assert key not in idle(without), "nobody gave it"


def test_several_hosts_are_counted_and_not_told() -> None:
    keys = {"num_hosts": 2, "dataset.num_files_train": "auto"}
    assert idle_keys(load_workload("unet3d_h100", keys), hosts=2) == ("num_hosts",)
    keys["host_memory"] = "64GiB"
    assert idle_keys(load_workload("unet3d_h100", keys), hosts=2) == ()


def test_each_command_has_keys_of_its_own() -> None:
    keys: dict[str, object] = {
        "size.confirm": 3,
        "predict.calibration": "file",
        "predict.accelerators": 3,
        "drive": {"read_bandwidth": 14e9},
        "runs": 2,
    }
    assert idle(keys) == ["size.confirm", "predict.calibration", "predict.accelerators", "drive"]
    assert idle(keys, command="size") == ["predict.accelerators", "runs"]
    memory: dict[str, object] = {"host_memory": "64GiB", "dataset.num_files_train": 9}
    assert idle(memory) == ["host_memory"], "the dataset is as large as was asked"
    assert idle(memory, command="size") == []
    assert idle({**memory, "size.quick": True}, command="size") == ["host_memory"]


def test_every_condition_can_be_asked() -> None:
    job = context_of(load_workload("unet3d_h100"))
    conditions = {key: use_of(key).when for key in all_keys()}
    assert all(when is None or when(job) in (True, False) for when in conditions.values())


def test_a_field_has_one_use() -> None:
    """Of two, a reader would have to know which one counts."""
    for key in all_keys():
        model: type[BaseModel] | None = Workload
        for part in key.split("."):
            if model is not None and part in model.model_fields:
                field = model.model_fields[part]
                assert sum(isinstance(each, Use) for each in field.metadata) <= 1, key
                model = group_of(field.annotation)
