"""Which of the user's keys have no effect on a job, by what their fields say of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlemu.config.model import Workload, check_workload, leaves, use_of
from dlemu.config.published import published_row
from dlemu.storage.s3.location import in_bucket


@dataclass(frozen=True)
class Job:
    """A workload under a command, and what decides whether a key of it has an effect.

    `Use.when` gets it. Its other attributes are the workload's.
    """

    workload: Workload
    command: str = "run"
    """ "run" or "size"."""
    hosts: int = 1
    """Hosts of the ranks."""

    def __getattr__(self, name: str) -> Any:
        """Return the workload's attribute of that name."""
        return getattr(self.workload, name)

    @property
    def counts_memory(self) -> bool:
        """Whether the hosts' memory decides how many files are needed."""
        if self.command == "size":
            return not self.workload.size.quick
        workload = self.workload
        return workload.dataset.num_files_train == "auto" or workload.division == "closed"

    @property
    def counts_hosts(self) -> bool:
        """Whether num_hosts does: it is counted where there are several."""
        return self.counts_memory and (self.hosts == 1 or self.workload.host_memory is not None)

    @property
    def saves(self) -> bool:
        """Whether checkpoints are written meanwhile."""
        return self.workload.workflow.checkpoint

    @property
    def saves_to_bucket(self) -> bool:
        """Whether they are objects."""
        return self.saves and "://" in (self.workload.checkpoint.checkpoint_folder or "")

    @property
    def has_many(self) -> bool:
        """Whether files hold several samples."""
        return self.workload.dataset.num_samples_per_file > 1

    @property
    def has_rows(self) -> bool:
        """Whether files hold rows of columns."""
        return self.workload.dataset.format == "parquet"

    @property
    def has_hdf5(self) -> bool:
        """Whether files are HDF5's."""
        return self.workload.dataset.format == "hdf5"

    @property
    def parses(self) -> bool:
        """Whether dlemu reads the bytes of a sample, not a library."""
        return self.workload.reader.decode == "raw"

    @property
    def by_dali(self) -> bool:
        """Whether DALI reads."""
        return self.workload.reader.data_loader in ("dali", "native_dali")

    @property
    def on_gpu(self) -> bool:
        """Whether it reads into a GPU."""
        return self.by_dali and self.workload.dali.device == "gpu"

    @property
    def in_bucket(self) -> bool:
        """Whether the dataset lies in a bucket."""
        workload = self.workload
        return bool(workload.dataset.data_folder) and in_bucket(workload.data_folder)

    @property
    def below_root(self) -> bool:
        """Whether the data folder is relative to storage.storage_root."""
        folder = self.workload.dataset.data_folder or ""
        return "://" not in folder and not Path(folder).is_absolute()

    @property
    def is_drawn(self) -> bool:
        """Whether an order or a time is drawn at random."""
        reader = self.workload.reader
        times = self.workload.train.computation_time, reader.preprocess_time
        shuffled = (reader.file_shuffle, reader.sample_shuffle) != ("off", "off")
        return shuffled or any(time.stdev > 0 or time.type == "exponential" for time in times)


def idle_keys(job: Job) -> tuple[str, ...]:
    """Return the user's keys that have no effect on a job.

    The user's keys are the overrides, and what the user's own workload sets to other values than
    the defaults.
    """
    return tuple(key for key in _users_keys(job.workload) if not _has_effect(key, job))


def _has_effect(key: str, job: Job) -> bool:
    if key == "drive" and job.drive is not None and job.drive.endurance is not None:
        return True  # for the line on wear
    use = use_of(key)
    return job.command in (use.by or "").split() and (use.when is None or use.when(job))


def _users_keys(workload: Workload) -> list[str]:
    """Return the overrides, and the keys that differ from the published workload or default."""
    usual = published_row(workload)
    if usual is None:
        least = {"format": workload.dataset.format, "num_files_train": 1}
        usual = check_workload({"dataset": least})
    before, now = (dict(leaves(each.model_dump())) for each in (usual, workload))
    own = [key for key, value in now.items() if before.get(key) != value]
    keys = [key for key in workload.given if key not in workload.ignored]
    keys += [key for key in own if key not in ("given", "ignored", "made_from")]
    # A drive is one key, not one for each of its rates.
    return list(dict.fromkeys("drive" if key.startswith("drive.") else key for key in keys))
