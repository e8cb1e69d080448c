"""Which of the user's keys have no effect on a job: a table of when each key has effect."""

from pathlib import Path

from dlemu.workload.compose import known_workloads
from dlemu.workload.model import Workload, check_workload, leaves, load_workload
from dlemu.workload.objects import in_bucket

_OF_THE_COMMAND = (
    "num_checkpoints_write",
    "num_checkpoints_read",
    "time_between_checkpoints",
    "rank_sync",
    "verify",
    "max_seconds",
    "mtbf",
)
"""Keys of checkpoints that only `dlemu checkpoint` reads."""


def _effects(workload: Workload, command: str, num_hosts: int) -> dict[str, bool]:
    """Return which keys have effect on a job.

    A section's name stands for its keys that are not listed; a key that is in neither way listed
    always has effect.
    """
    runs, sizes = command == "run", command == "size"
    has_cache = workload.cache.folder is not None
    by_rule = workload.dataset.num_files_train == "auto" or workload.division == "closed"
    memory_counts = not workload.size.quick if sizes else by_rule
    written = workload.workflow.checkpoint and (runs or sizes)
    by_steps = workload.checkpoint.steps_between_checkpoints is not None
    return {
        "framework": False,
        "accelerators_per_rank": runs and workload.num_accelerators is None,
        "num_accelerators": runs,
        "division": runs,
        "runs": runs,
        "warmup": runs,
        "workflow": runs,
        "workflow.checkpoint": runs or sizes,
        "model": written,
        "checkpoint": written,
        **{f"checkpoint.{key}": False for key in _OF_THE_COMMAND},
        "checkpoint.checkpoint_after_epoch": written and not by_steps,
        "checkpoint.epochs_between_checkpoints": written and not by_steps,
        "checkpoint.staging_bandwidth": written and workload.checkpoint.asynchronous,
        "size": sizes,
        "predict": False,
        "steptime": False,
        "predict.calibration": sizes,
        **dict.fromkeys(("cache.capacity", "cache.policy", "cache.fill", "cache.warm"), has_cache),
        "drive": sizes or (workload.drive is not None and workload.drive.endurance is not None),
        "drives": sizes,
        "host_memory": memory_counts,
        "num_hosts": memory_counts and (num_hosts == 1 or workload.host_memory is not None),
        "metric.exclude_start_steps": workload.metric.edition != "v1.0",
        "metric.exclude_end_steps": workload.metric.edition != "v1.0",
        **_effects_on_reading(workload),
    }


def _effects_on_reading(workload: Workload) -> dict[str, bool]:
    """Return which keys of the dataset, the reader and the storage have effect."""
    dataset, reader, train = workload.dataset, workload.reader, workload.train
    own_parsing, many_in_file = reader.decode == "raw", dataset.num_samples_per_file > 1
    tf_data = reader.data_loader == "tensorflow"
    parquet = dataset.format == "parquet"
    dali = reader.data_loader in ("dali", "native_dali")
    dali_on_gpu = dali and workload.dali.device == "gpu"
    bucket = bool(dataset.data_folder) and in_bucket(workload.data_folder)
    shuffled = (reader.file_shuffle, reader.sample_shuffle) != ("off", "off")
    times = train.computation_time, reader.preprocess_time
    drawn = shuffled or any(time.stdev > 0 or time.type == "exponential" for time in times)
    return {
        "dataset.chunk_size": False,
        "dataset.record_length_bytes": not (
            dataset.record_dims or dataset.parquet.columns or dataset.listed_sizes
        ),
        "dataset.record_dims": not (parquet and dataset.parquet.columns),
        "dataset.record_length_bytes_stdev": not (dataset.record_dims or dataset.listed_sizes),
        "dataset.record_length_bytes_distribution": not dataset.record_dims and not parquet,
        "dataset.parquet.columns": parquet,
        "dataset.parquet.row_group_size": parquet,
        "dataset.parquet.read_mode": parquet,
        "dataset.parquet.generation_batch_size": False,
        "dataset.parquet.use_s3dlio_gen": False,
        "reader.access": many_in_file,
        "reader.coalesce_gap": parquet and own_parsing,
        "dataset.record_length_bytes_resize": workload.hands_over or dali,
        "reader.transfer_size": own_parsing and many_in_file and not bucket,
        "reader.piece_bytes": own_parsing and not many_in_file and not bucket,
        "reader.io_depth": own_parsing and not bucket,
        "reader.odirect": own_parsing and not bucket,
        "reader.gets_in_flight": bucket,
        "reader.range_bytes": bucket,
        "reader.prefetch_size": tf_data or reader.read_threads > 0,
        "reader.shuffle_size": (tf_data or workload.streamed) and reader.sample_shuffle != "off",
        "reader.multiprocessing_context": (
            reader.data_loader == "pytorch" and reader.read_threads > 0
        ),
        "reader.gds": dali_on_gpu,
        "reader.preprocess": reader.preprocess_time.mean > 0,
        "train.seed": drawn,
        "storage": bucket,
        "storage.storage_type": bucket,
        "storage.storage_root": (
            "://" not in (dataset.data_folder or "")
            and not Path(dataset.data_folder or "").is_absolute()
        ),
        "output.drop_caches": not workload.output.drop_all_caches and not bucket,
        "output.drop_all_caches": not bucket,
        "dali": dali,
        "dali.gpus_per_host": dali_on_gpu or train.compute == "gpu",
    }


def idle_keys(workload: Workload, *, command: str = "run", num_hosts: int = 1) -> tuple[str, ...]:
    """Return the user's keys that have no effect on this job.

    The user's keys are the overrides, and what the user's own workload sets to other values than
    the defaults. `command` is "run" or "size"; `num_hosts` is the number of the ranks' hosts.
    """
    effects = _effects(workload, command, num_hosts)
    keys = _users_keys(workload)
    return tuple(
        key for key in keys if not effects.get(key, effects.get(key.partition(".")[0], True))
    )


def _users_keys(workload: Workload) -> list[str]:
    """Return the overrides, and the keys that differ from the published workload or default."""
    published = known_workloads()
    name = next((each for each in (workload.made_from, workload.name) if each in published), None)
    if name is not None:
        usual = load_workload(name)
    else:
        least = {"format": workload.dataset.format, "num_files_train": 1}
        usual = check_workload({"dataset": least})
    before, now = (dict(leaves(each.model_dump())) for each in (usual, workload))
    own = [key for key, value in now.items() if before.get(key) != value]
    keys = [key for key in workload.given if key not in workload.ignored]
    keys += [key for key in own if key not in ("given", "ignored", "made_from")]
    # A drive is one key, not one for each of its rates.
    return list(dict.fromkeys("drive" if key.startswith("drive.") else key for key in keys))
