"""DLIO's keys: those that have another name or another place here, and those without an effect.

A key that would change what is read, in a way that dlemu does not have, is refused.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dlemu.config.compose import leaves, model_keys, named, value_of
from dlemu.config.types import facts_of_loader
from dlemu.errors import WorkloadError

# DLIO's keys that have no effect here (sources: `LoadConfig` of both DLIO repositories, the files
# of MLPerf Storage); a key of which some values would change what is read is in DECLINED.
_IGNORED_KEYS = {
    "dataset": "num_files_eval num_subfolders_eval num_files_test keep_files "
    "generation_buffer_size data_gen_method skip_listing listing_validation_interval "
    "record_element_bytes chunk_size",
    "dataset.parquet": "generation_batch_size use_s3dlio_gen",
    "reader": "batch_size_eval computation_threads pin_memory dont_use_mmap data_loader_sampler "
    "write_threads seed shuffle checkpoint_folder",
    "workflow": "debug profiling",
    "model": "type",
    "checkpoint": "randomize_tensor ksm type recovery_rank_shift recovery_after_steps",
    "output": "log_file log_level",
    "storage": "storage_library storage_options post_generation_settle_seconds "
    "use_mpi_endpoint_distribution load_balance_strategy",
    "metric": "exclude_end_epochs",
}
_CLASS = "is a class for DLIO, which dlemu cannot run: "
DECLINED = {
    "reader.reader_classname": f"{_CLASS}a format of yours is dataset.format=PACKAGE.MODULE",
    "reader.data_loader_classname": f"{_CLASS}a loader of yours is reader.data_loader="
    "PACKAGE.MODULE",
    "checkpoint.checkpoint_mechanism_classname": f"{_CLASS}dlemu writes checkpoints itself",
    "dataset.compression_level": "is not followed: gzip has level 4, as by default in DLIO",
    "dataset.parquet.read_mode": "reads parts of row groups, which dlemu reads whole",
    "reader.data_loader_root": "is followed neither by DLIO nor here: dataset.data_folder says "
    "what is read",
    "storage.protocol": "is not spoken here: places are folders and s3://",
    "reader.read_type": "keeps files in memory, which dlemu does not: each sample is read when it "
    "is asked for, as with on_demand",
    "reader.file_access": "shares a file among ranks by MPI-IO, which dlemu does not: each rank "
    "opens files itself, as with multi",
    "workflow.evaluation": "reads files of its own after an epoch, which dlemu does not",
}
"""What keys of DLIO ask for that dlemu would not read so; accepted are null and _AS_HERE."""
_AS_HERE: tuple[object, ...] = (
    *(None, False, "", [], 4, "on_demand", "multi", "posix", "row_group"),
    *("torch.utils.data.DataLoader", "s3", "file"),
)
IGNORED = {"framework", "evaluation", "profiling", "logging", "generator", *DECLINED} | {
    f"{section}.{key}" for section, keys in _IGNORED_KEYS.items() for key in keys.split()
}
"""Keys that are accepted, named, and have no effect."""


def translated(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree of plain values with dlemu's keys; `ignored` has those without an effect.

    Raises:
        WorkloadError: a key asks for what dlemu would do in another way.
    """
    raw: dict[str, Any] = _plain(tree)
    if "ignored" in raw:
        raise WorkloadError("unknown key ignored")
    _rename(raw)
    raw["ignored"] = tuple(dict.fromkeys(_take_ignored(raw)))
    raw.setdefault("name", "workload")
    return raw


def _take_ignored(raw: dict[str, Any]) -> Iterator[str]:
    """Yield the keys that have no effect here; they are taken out of the tree."""
    for key in sorted(IGNORED):
        above, _, leaf = key.rpartition(".")
        group = value_of(raw, above)
        if not isinstance(group, dict) or leaf not in group:
            continue
        value = group.pop(leaf)
        if key in DECLINED and value not in _AS_HERE:
            shown = str(value).lower() if value is True else value
            off = "false" if value is True else "null"
            raise WorkloadError(f"{key}={shown} {DECLINED[key]}; set {key}={off}")
        yield from ([] if above else [inner for inner, _ in leaves({key: value})]) or [key]


def _rename(raw: dict[str, Any]) -> None:
    """Move DLIO's keys that have another place or another name here."""
    for section, names in _OLD.items():
        if isinstance(keys := raw.get(section), dict):
            for old in names.keys() & keys.keys():
                keys.setdefault(names[old], keys.pop(old))
    _rename_model(raw)
    if "data_reader" in raw:
        raw.setdefault("reader", raw.pop("data_reader"))
    _rename_batch(raw)
    _rename_storage(raw)
    for group, name in (("dataset", "data_folder"), ("checkpoint", "checkpoint_folder")):
        keys = raw.get(group)
        if isinstance(keys, dict) and isinstance(keys.get(name), str):
            keys[name] = keys[name].removeprefix("file://")
    output = raw.get("output")
    if isinstance(output, dict) and isinstance(output.get("metric"), dict):
        metric = raw.setdefault("metric", {})
        if isinstance(metric, dict):
            raw["metric"] = output.pop("metric") | metric
    if "edition" in raw and isinstance(metric := raw.setdefault("metric", {}), dict):
        metric["edition"] = raw.pop("edition")
    if "clients" in raw:  # as storage's vendors call the hosts that train
        raw.setdefault("num_hosts", raw.pop("clients"))
    dataset = raw.get("dataset")
    if isinstance(dataset, dict):
        for old in ("record_length", "record_length_stdev", "record_length_resize"):
            if old in dataset:
                dataset.setdefault(old.replace("length", "length_bytes"), dataset.pop(old))
        if dataset.get("record_length_bytes_resize") == 0:
            dataset["record_length_bytes_resize"] = None
        hdf5 = dataset.get("hdf5")
        names = {"max_shape": "enable_chunking"}  # so that they may grow
        for key in ("num_dset_per_record", "chunk_dims", "max_shape"):
            if isinstance(hdf5, dict) and (value := hdf5.pop(key, None)):
                dataset.setdefault(names.get(key, key), key in names or value)
        if hdf5 == {}:
            del dataset["hdf5"]
    for section, key in (("reader", "preprocess_time"), ("train", "computation_time")):
        own = raw.get(section)
        if isinstance(own, dict) and f"{key}_stdev" in own:
            stdev, mean = own.pop(f"{key}_stdev"), own.get(key, 0.0)
            own[key] = mean if isinstance(mean, dict) else {"mean": mean}
            own[key].setdefault("stdev", stdev)


def _rename_batch(raw: dict[str, Any]) -> None:
    """Move the batch, which was the dataset's in the first files of DLIO."""
    dataset, reader = raw.get("dataset"), raw.setdefault("reader", {})
    if isinstance(dataset, dict) and isinstance(reader, dict) and "batch_size" in dataset:
        reader.setdefault("batch_size", dataset.pop("batch_size"))


def _rename_storage(raw: dict[str, Any]) -> None:
    """Move DLIO's storage.storage_options to the keys of the same meaning; others are ignored.

    Some files of MLPerf Storage v3.0 have the storage's keys below `reader`.
    """
    reader = raw.setdefault("reader", {})
    of_reader = _OF_STORAGE & reader.keys() if isinstance(reader, dict) else set()
    storage = raw.setdefault("storage", {}) if of_reader else raw.get("storage")
    if not isinstance(storage, dict) or not isinstance(reader, dict):
        return
    storage = raw["storage"] = storage | {key: reader.pop(key) for key in of_reader}
    options = storage.get("storage_options")
    library = storage.get("storage_library")
    if isinstance(options, dict):
        known = ("endpoint_url", "region", "access_key_id", "secret_access_key")
        library = options.get("storage_library", library)
        for name in options.keys() & set(known):
            if options[name] != "":
                storage.setdefault(name, options[name])
        taken = {*known, "secure"}
        if options.get("secure") is False:  # https without it: any certificate is taken
            storage.setdefault("verify_tls", False)
        if options.keys() <= taken:
            del storage["storage_options"]
    if "endpoint_uris" in storage:
        storage.setdefault("endpoint_url", storage.pop("endpoint_uris"))
    kind = storage.get("storage_type")
    if kind == "object":
        kind = storage["storage_type"] = "s3"
    if kind == "direct_fs":  # a folder, read by s3dlio with O_DIRECT
        storage["storage_type"] = "local_fs"
        reader.setdefault("odirect", True)
    elif kind == "s3dlio" or (kind == "s3" and library == "s3dlio"):
        storage["storage_type"] = "s3"
        loader = facts_of_loader(str(reader.get("data_loader", "pytorch")))
        if loader.is_dataloader:  # DLIO spawns its workers, too
            reader.setdefault("multiprocessing_context", "spawn")


_OF_STORAGE = {
    *("storage_type", "storage_root", "storage_library", "storage_options", "protocol"),
    *("endpoint_uris", "load_balance_strategy"),
}
_OF_MODELS = {
    *("num_layers", "layer_parameters", "optimization_groups", "parallelism"),
    *("model_datatype", "optimizer_datatype"),
}
"""Keys of a model that were the checkpoint's in DLIO before 2.0."""
_OLD = {
    "dataset": {"record_length_std": "record_length_bytes_stdev"},
    "checkpoint": {"num_checkpoints": "num_checkpoints_write"},
    "workflow": {"do_eval": "evaluation"},
}
"""DLIO's earlier names of keys: those of its files of 2022 to 2024."""


def _rename_model(raw: dict[str, Any]) -> None:
    """Take a model that is given by its name alone, and DLIO's names of its keys."""
    checkpoint = raw.get("checkpoint")
    if isinstance(checkpoint, dict) and "model_size" in checkpoint:  # MLPerf Storage v1.0
        size = checkpoint.pop("model_size")
        if isinstance(group := raw.setdefault("model", {}), dict):
            group.setdefault("model_size_bytes", size)
    checkpoint = checkpoint if isinstance(checkpoint, dict) else {}
    moved = checkpoint.keys() & _OF_MODELS
    model = raw.get("model")
    if model is None and not moved:
        raw.pop("model", None)
        return
    model = raw["model"] = {} if model is None else model
    if not isinstance(model, dict):
        known = str(model) in named("model") or str(model).endswith((".yaml", ".yml"))
        model = raw["model"] = model_keys(str(model)) if known else {"name": str(model)}
    for key in moved:
        model.setdefault(key, checkpoint.pop(key))
    parallelism = model.get("parallelism")
    if isinstance(parallelism, dict) and parallelism.get("zero_stage") == -1:  # none, in DLIO
        parallelism["zero_stage"] = 0
    if "name" in model:
        raw.setdefault("name", str(model["name"]))
    if "model_size" in model:  # as the files of MLPerf Storage have it
        model.setdefault("model_size_bytes", model.pop("model_size"))
    if "dataset" not in raw and model.keys() & {"num_layers", "model_size_bytes"}:
        # A job of checkpoints alone, as MLPerf Storage's llama3_8b.yaml.
        raw["dataset"] = {"format": "npz", "num_files_train": 1}


def _plain(value: Any) -> Any:
    """Return a tree of dicts whose keys are text that can be shown in one line."""
    if not isinstance(value, Mapping):
        return value
    shown = {key: key if str(key).isprintable() else repr(key) for key in value}
    return {str(shown[key]): _plain(inner) for key, inner in value.items()}


_VECTORS = "MLPerf Storage's benchmark of vector databases (vectordb), which dlemu does not emulate"
_OTHERS = {
    _VECTORS: {"database", "index", "search"},
    "MLPerf Storage's benchmark of key-value caches (kvcache), which dlemu does not emulate": {
        *("user_templates", "qos_profiles", "qos_distribution", "kv_cache"),
        *("gpu_backend", "cpu_backend", "nvme_backend"),
    },
    "mlpstorage itself: its own options": {"hosts", "data_dir", "results_dir"},
    "a submission to MLPerf Storage: it describes a system": {"System", "Power", "Nodes"},
}
"""Groups of keys in files of MLPerf Storage that are no workloads."""
_LEAST_GROUPS = 2
"""Of them, for a file to be of that benchmark."""


def other_benchmark(tree: Mapping[str, Any]) -> str:
    """Return of what a file of MLPerf Storage is that is none of training; "" for other files."""
    dataset = tree.get("dataset")
    if isinstance(dataset, dict) and "num_vectors" in dataset:
        return _VECTORS
    if isinstance(dataset, dict) and "format" in dataset:
        return ""
    found = (name for name, groups in _OTHERS.items() if len(groups & tree.keys()) >= _LEAST_GROUPS)
    return next(found, "")


def is_of_checkpoints(tree: Mapping[str, Any]) -> bool:
    """Return whether a tree describes a model and no dataset, as DLIO's files of llama do."""
    model, dataset = tree.get("model"), tree.get("dataset")
    has_model = isinstance(model, dict) and bool(model.keys() & {"num_layers", "model_size_bytes"})
    reader = tree.get("reader")
    trains = isinstance(reader, dict) and "batch_size" in reader
    return has_model and not trains and not (isinstance(dataset, dict) and "format" in dataset)
