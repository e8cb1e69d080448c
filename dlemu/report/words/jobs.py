"""The words of a real job that was measured: the comments of the workload file that repeats it."""

from collections.abc import Callable, Mapping
from typing import Any

from dlemu.units import counted

JOBS: Mapping[str, Callable[[Any], str]] = {
    # by dlemu.Meter
    "loop_measured": lambda f: (
        f"A training loop measured by dlemu.Meter, {f.steps:,} steps, timed by "
        f"{' and '.join(f.timed_by)}."
    ),
    "loop_shares": lambda f: (
        f"waiting for batches: {100 * f.waiting_share:.1f} % of the time; the loop's own work, "
        f"which computation_time includes: {100 * f.own_work_share:.1f} %"
    ),
    "batch_is_the_workloads": lambda f: (
        f"batch size: that of {f.workload}; Meter(batch_size=) gives the loop's"
    ),
    "dataset_is_the_workloads": lambda f: (
        f"dataset: that of {f.workload}; the loader does not tell its bytes, "
        "Meter(sample_bytes=) gives them"
    ),
    "deviation_is_the_workloads": lambda f: (
        f"deviation of the samples' bytes: that of {f.workload}; files are streams"
    ),
    # by dlemu watch
    "job_seen": lambda f: (
        f"A job seen by dlemu watch: {counted(f.steps, 'step')} of {counted(f.ranks, 'rank')}, "
        f"{100 * f.waiting_share:.1f} % of the time waiting for batches."
    ),
    "files_not_seen": lambda f: (
        "FILL IN dataset.num_files_train and record_length_bytes: no file of the data was seen."
    ),
    "files_of_folder": lambda f: (
        "CHECK dataset: its files are all those below the folder that was given."
    ),
    "files_seen_open": lambda f: (
        f"CHECK dataset.num_files_train: {f.files} files were seen open; there may be more."
    ),
    "format_not_seen": lambda f: (
        "FILL IN dataset.format: the names of the files do not tell; raw is taken."
    ),
    "preprocessing_not_seen": lambda f: (
        "FILL IN reader.preprocess_time: no worker was seen making a batch."
    ),
    "launch_not_seen": lambda f: (
        "train.launch_time was not seen: the loop waits for its GPU, or its GPU for no batch."
    ),
    "checkpoint_seen": lambda f: (
        f"The job saved {f.path or 'into an open file'}. To emulate its checkpoints, too, add:"
    ),
    "checkpoint_keys": lambda f: (
        f"workflow.checkpoint=true model.name=seen model.model_size_bytes={f.bytes} "
        f"checkpoint.{f.unit}_between_checkpoints={f.every} "
        "checkpoint.checkpoint_folder=/path/on/the/storage"
    ),
    "evaluation_seen": lambda f: (
        "The job also evaluates, which is not in here: training alone is emulated."
    ),
}
