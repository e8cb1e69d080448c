"""What dlemu makes of each key of DLIO: `python -m docs.dlio`, at the checkout's root.

    python -m docs.dlio            print the table
    python -m docs.dlio --write    put it into docs/from_dlio.md

Each value of each key is tried, and the table says what came of it.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from dlemu import load_workload
from dlemu.config.checkpoint_sections import ModelSection
from dlemu.config.compose import leaves
from dlemu.config.model import Workload, read_by
from dlemu.config.refusal import NO_KEYS
from dlemu.errors import WorkloadError
from docs.house import print_or_write

PAGE = Path(__file__).with_name("from_dlio.md")
MARKS = "<!-- python -m docs.dlio --write -->", "<!-- end -->"

# Those that `LoadConfig` reads in argonne-lcf/dlio_benchmark (e1919d7) and in
# mlcommons/DLIO_local_changes (f6796ed), by group: each with values other than dlemu's default.
KEYS = {
    "": "framework=tensorflow",
    "storage": "storage_type=parallel_fs,direct_fs,s3,aistore storage_root=/mnt "
    "storage_library=s3dlio post_generation_settle_seconds=5 storage_options.region=eu "
    "storage_options.endpoint_url=http://s3 storage_options.access_key_id=a "
    "storage_options.secret_access_key=b storage_options.s3_max_attempts=5 "
    "storage_options.secure=false",
    "dataset": "record_length_bytes=9 record_length_bytes_stdev=9 record_length_bytes_resize=9 "
    "num_files_train=9 num_files_eval=9 generation_buffer_size=9 num_samples_per_file=9 "
    "data_folder=/mnt num_subfolders_train=9 num_subfolders_eval=9 enable_chunking=true "
    "chunk_size=9 compression=gzip,lzf,bz2,zip,xz compression_level=4,9 file_prefix=file "
    "format=tfrecord,hdf5,csv,npy,hdf5_opt,jpeg,png,indexed_binary,mmap_indexed_binary,parquet,"
    "synthetic data_gen_method=dgen keep_files=false record_element_bytes=4 "
    "record_element_type=float32 record_dims=[9] skip_listing=true "
    'listing_validation_interval=9 parquet.columns=[{"name":"a"}] '
    "parquet.row_group_size=9 "
    "parquet.partition_by=a parquet.generation_batch_size=9 parquet.use_s3dlio_gen=true "
    "hdf5.chunk_dims=[1,8,8] hdf5.num_dset_per_record=2 hdf5.max_shape=[9]",
    "reader": "dont_use_mmap=true reader_classname=a.B multiprocessing_context=spawn "
    "data_loader=tensorflow,dali,native_dali,custom,none,synthetic data_loader_classname=a.B "
    "data_loader_sampler=iterative,index read_threads=9 write_threads=9 computation_threads=9 "
    "batch_size=9 batch_size_eval=9 prefetch_size=9 file_shuffle=off,random "
    "file_access=multi,posix,shared,collective,mpio shuffle_size=9 sample_shuffle=off,random "
    "read_type=on_demand,memory transfer_size=8192 odirect=true preprocess_time=0.1 "
    "preprocess_time_stdev=0.1 pin_memory=true transformed_record_dims=[9] "
    "transformed_record_element_type=uint8",
    "train": "epochs=9 total_training_steps=9 seed_change_epoch=false computation_time=0.1 "
    "computation_time_stdev=0.1 seed=9",
    "evaluation": "eval_time=0.1 eval_time_stdev=0.1 eval_after_epoch=2 epochs_between_evals=2",
    "checkpoint": "checkpoint_folder=/mnt checkpoint_after_epoch=9 epochs_between_checkpoints=9 "
    "steps_between_checkpoints=9 type=all_ranks checkpoint_mechanism_classname=a.B fsync=false "
    "time_between_checkpoints=9 num_checkpoints_write=9 num_checkpoints_read=9 "
    "recovery_rank_shift=true rank_sync=true mode=subset randomize_tensor=false "
    "ksm.high_ram_trigger=9",
    "model": "name=own type=transformer model_size_bytes=9 optimization_groups=[9] num_layers=9 "
    "layer_parameters=[9] model_datatype=fp32 optimizer_datatype=fp16 parallelism.tensor=9 "
    "parallelism.pipeline=9 parallelism.data=9 parallelism.zero_stage=1 transformer.vocab_size=9 "
    "transformer.hidden_size=9 transformer.ffn_hidden_size=9 transformer.num_attention_heads=9 "
    "transformer.num_kv_heads=9",
    "output": "folder=/mnt log_file=a metric.exclude_start_steps=9 metric.exclude_end_steps=9",
    "workflow": "train=false generate_data=true evaluation=true checkpoint=true profiling=true",
    "profiling": "profiler=iostat iostat_devices=[sda]",
    "metric": "au=0.5",
}
_WRITTEN = "how files are written"
_EVALUATION = "of the evaluation, which does not run"
_COUNTERS = "dlemu has counters of its own"
_UNUSED = "DLIO reads the key and uses it nowhere"
WHY = {
    "framework": "reader.data_loader decides",
    "storage.storage_library": "the client of a bucket; dlemu has its own",
    "storage.post_generation_settle_seconds": _WRITTEN,
    "storage.storage_options.s3_max_attempts": "storage.retries is dlemu's",
    "dataset.num_files_eval": _EVALUATION,
    "dataset.generation_buffer_size": _WRITTEN,
    "dataset.num_subfolders_eval": _EVALUATION,
    "dataset.chunk_size": _UNUSED,
    "dataset.compression_level": "this is the level of gzip",
    "dataset.record_element_bytes": "dataset.record_element_type decides",
    "dataset.data_gen_method": _WRITTEN,
    "dataset.keep_files": "files stay",
    "dataset.skip_listing": "how the names of files are found",
    "dataset.listing_validation_interval": "how the names of files are found",
    "dataset.parquet.generation_batch_size": _WRITTEN,
    "dataset.parquet.use_s3dlio_gen": _WRITTEN,
    "reader.dont_use_mmap": "DALI's files; dlemu reads them by calls",
    "reader.data_loader_sampler": "that of each loader is fixed, as in DLIO",
    "reader.write_threads": _WRITTEN,
    "reader.computation_threads": "threads of tf.data behind the reading",
    "reader.batch_size_eval": _EVALUATION,
    "reader.file_access": _UNUSED,
    "reader.read_type": "this is how dlemu reads",
    "reader.pin_memory": "memory of a batch that has been read",
    "evaluation.eval_time": _EVALUATION,
    "evaluation.eval_time_stdev": _EVALUATION,
    "evaluation.eval_after_epoch": _EVALUATION,
    "evaluation.epochs_between_evals": _EVALUATION,
    "checkpoint.type": _UNUSED,
    "checkpoint.recovery_rank_shift": "DLIO looks for it under another name",
    "checkpoint.randomize_tensor": "content of a checkpoint; dlemu's is random",
    "checkpoint.ksm.high_ram_trigger": "memory of DLIO's tensors; so are the other keys of ksm",
    "model.type": "model.num_layers and model.model_size_bytes decide",
    "output.log_file": "output.log is dlemu's",
    "workflow.profiling": _COUNTERS,
    "profiling.profiler": _COUNTERS,
    "profiling.iostat_devices": _COUNTERS,
}
"""Why a key without effect changes no byte that is read."""
_BASE: dict[str, object] = {
    "model.transformer": dict.fromkeys(ModelSection().transformer.model_dump(), 8)
}
"""So that a number of layers is enough of a model."""
_HDF5 = _BASE | {"dataset.format": "hdf5", "dataset.record_dims": [8, 8]}
"""Of what a value is that is for HDF5 files alone."""


def tried() -> Iterator[tuple[str, str, str, str]]:
    """Yield each key, a value, what becomes of it, and which keys it sets, or why."""
    for group, words in KEYS.items():
        for word in words.split():
            name, _, values = word.partition("=")
            key = f"{group}.{name}" if group else name
            for value in [values] if values[0] == "[" else values.split(","):
                yield key, value, *_outcome(key, value)


def with_keys(keys: Mapping[str, str], base: Mapping[str, object] = _BASE) -> Workload:
    """Return a workload with values as YAML has them."""
    values = {key: yaml.safe_load(value) for key, value in keys.items()}
    return load_workload("unet3d_h100", {**base, **values})


def plain(workload: Workload) -> dict[str, object]:
    """Return the keys that make a workload; not those that were given and have no effect."""
    return {key: value for key, value in leaves(workload.model_dump()) if key not in NO_KEYS}


def _outcome(key: str, value: str, base: Mapping[str, object] = _BASE) -> tuple[str, str]:
    try:
        found = plain(with_keys({key: value}, base))
    except WorkloadError as error:
        if base is _BASE:
            return _outcome(key, value, _HDF5)
        why = str(error).removeprefix(f"{key}={value} ").removeprefix(f"{key} ")
        return "refused", "no such key" if why.startswith("unknown") else why.partition(", got")[0]
    usual = plain(with_keys({}, base))
    changed = [own for own in found if found[own] != usual[own]]
    if not any(map(read_by, changed)):
        return "no effect", WHY[key]
    if any(own == key or own.startswith(f"{key}.") for own in changed):
        return "works", ""
    return "mapped", f"is `{changed[0]}`"


def table() -> str:
    """Return the table of the page: what has the same outcome for one reason is one row."""
    found = list(tried())
    several = Counter(key for key, *_ in found)
    rows: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for key, value, outcome, what in found:
        group = "" if what else key.partition(".")[0]
        row = rows.setdefault((group, outcome, what), {})
        row.setdefault(key, []).extend([value] if several[key] > 1 else [])
    lines = ["| keys of DLIO | here | |", "|---|---|---|"]
    for (_, outcome, what), keys in rows.items():
        each = (
            f"`{key}`{f' ({own})' if (own := ', '.join(values)) else ''}"
            for key, values in keys.items()
        )
        lines.append(f"| {', '.join(each)} | {outcome} | {what} |")
    return "\n".join(lines)


def main(words: list[str]) -> int:
    """Print the table, or write it."""
    return print_or_write(words, PAGE, table(), MARKS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
