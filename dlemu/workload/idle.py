"""Which of the user's keys have no effect on a job: a table of when each key has effect."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dlemu.errors import WorkloadError
from dlemu.workload.model import Workload, check_workload, leaves, load_workload

_DALI = ("dali", "native_dali")


@dataclass(frozen=True)
class _Job:
    """A job, with the properties that the table asks for."""

    workload: Workload
    command: str
    num_hosts: int

    @property
    def own_parsing(self) -> bool:
        """dlemu's own readers find the samples in the files; no library does."""
        return self.workload.reader.decode == "raw"

    @property
    def many_in_file(self) -> bool:
        return self.workload.dataset.num_samples_per_file > 1

    @property
    def streamed(self) -> bool:
        return self.many_in_file and self.workload.dataset.format != "hdf5"

    @property
    def streams_as_tf_data(self) -> bool:
        return self.workload.reader.data_loader == "tensorflow"

    @property
    def dali(self) -> bool:
        return self.workload.reader.data_loader in _DALI

    @property
    def memory_counts(self) -> bool:
        """The hosts' memory is part of the rule for the dataset's size."""
        workload = self.workload
        if self.command == "size":
            return not workload.size.quick
        return workload.dataset.num_files_train == "auto" or workload.division == "closed"

    @property
    def drawn(self) -> bool:
        """A seed decides the reading order or the times."""
        reader, times = self.workload.reader, self.workload.train.computation_time
        shuffled = (reader.file_shuffle, reader.sample_shuffle) != ("off", "off")
        each = (times, reader.preprocess_time)
        return shuffled or any(time.stdev > 0 or time.type == "exponential" for time in each)


_EFFECT: Mapping[str, Callable[[_Job], bool]] = {
    "framework": lambda job: False,
    "accelerators_per_rank": lambda job: (
        job.command == "run" and job.workload.num_accelerators is None
    ),
    "num_accelerators": lambda job: job.command == "run",
    "division": lambda job: job.command == "run",
    "runs": lambda job: job.command == "run",
    "warmup": lambda job: job.command == "run",
    "workflow": lambda job: job.command == "run",
    "size": lambda job: job.command == "size",
    "predict": lambda job: False,
    "predict.calibration": lambda job: job.command == "size",
    "drive": lambda job: job.command == "size",
    "drives": lambda job: job.command == "size",
    "host_memory": lambda job: job.memory_counts,
    "num_hosts": lambda job: (
        job.memory_counts and (job.num_hosts == 1 or job.workload.host_memory is not None)
    ),
    "dataset.chunk_size": lambda job: False,
    "dataset.record_length_bytes": lambda job: not job.workload.dataset.record_dims,
    "dataset.record_length_bytes_stdev": lambda job: not job.workload.dataset.record_dims,
    "reader.transfer_size": lambda job: job.own_parsing and job.many_in_file,
    "reader.piece_bytes": lambda job: job.own_parsing and not job.many_in_file,
    "reader.io_depth": lambda job: job.own_parsing,
    "reader.odirect": lambda job: job.own_parsing,
    "dataset.record_length_bytes_resize": lambda job: job.workload.reader.hands_over or job.dali,
    "reader.prefetch_size": lambda job: (
        job.streams_as_tf_data or (job.workload.reader.read_threads > 0)
    ),
    "reader.shuffle_size": lambda job: (
        (job.streamed or job.streams_as_tf_data) and job.workload.reader.sample_shuffle != "off"
    ),
    "reader.multiprocessing_context": lambda job: (
        job.workload.reader.data_loader == "pytorch" and job.workload.reader.read_threads > 0
    ),
    "reader.gds": lambda job: job.dali and job.workload.dali.device == "gpu",
    "train.seed": lambda job: job.drawn,
    "metric.exclude_start_steps": lambda job: job.workload.metric.edition == "v2.0",
    "metric.exclude_end_steps": lambda job: job.workload.metric.edition == "v2.0",
    "storage.storage_type": lambda job: False,
    "storage.storage_root": lambda job: (
        not Path(job.workload.dataset.data_folder or "").is_absolute()
    ),
    "output.drop_caches": lambda job: not job.workload.output.drop_all_caches,
    "dali": lambda job: job.dali,
    "dali.gpus_per_host": lambda job: (
        (job.dali and job.workload.dali.device == "gpu") or job.workload.train.compute == "gpu"
    ),
}
"""When a key has effect. A section's name stands for its keys that are not listed; a key that is in
neither way listed always has effect."""


def idle_keys(workload: Workload, *, command: str = "run", num_hosts: int = 1) -> tuple[str, ...]:
    """Return the user's keys that have no effect on this job.

    The user's keys are the overrides, and what the user's own workload sets to other values than
    the defaults. `command` is "run" or "size"; `num_hosts` is the number of the ranks' hosts.
    """
    job = _Job(workload, command, num_hosts)
    return tuple(key for key in _users_keys(workload) if not _has_effect(key, job))


def _has_effect(key: str, job: _Job) -> bool:
    rule = _EFFECT.get(key) or _EFFECT.get(key.partition(".")[0])
    return rule is None or rule(job)


def _users_keys(workload: Workload) -> list[str]:
    """Return the overrides, and the keys that differ from the published workload or default."""
    try:
        usual = load_workload(workload.name)
    except WorkloadError:
        least = {"format": workload.dataset.format, "num_files_train": 1}
        usual = check_workload({"dataset": least})
    before, now = (dict(leaves(each.model_dump())) for each in (usual, workload))
    own = [key for key, value in now.items() if before.get(key) != value]
    keys = [key for key in workload.given if key not in workload.ignored]
    keys += [key for key in own if key not in ("given", "ignored")]
    # A drive is one key, not one for each of its rates.
    return list(dict.fromkeys("drive" if key.startswith("drive.") else key for key in keys))
