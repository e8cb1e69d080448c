"""The fields of summary.json: of one run (Summary), and of several runs (RunsSummary).

They are the file's own objects, so fields of other versions and the order of all are kept. A file
of another version may lack fields. The first lines of a command show some of them: workload,
dataset, storage, host (`report.words.places`).
"""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypedDict

from dlemu.errors import DlemuError
from dlemu.host.place import HostFields
from dlemu.host.wear import WearFields
from dlemu.plugins import is_url
from dlemu.ranks.world import PeerError

Verdict = Literal["PASS", "FAIL", "NO VERDICT", "MEASURED"]


class DatasetFields(TypedDict, total=False):
    """What was read: `dataset` in summary.json."""

    folder: str
    num_files: int
    num_bytes: float
    """Of all samples, without what a format adds."""
    format: str
    num_links: int
    """Files with several names, hard links for example, of a few that were looked at."""


def place_of(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of rank 0's host and its storage; none where they are not known."""
    return next(iter(summary.get("system") or ()), {})


def is_at_servers(summary: Mapping[str, Any]) -> bool:
    """Return whether the data lay in no file system of the hosts, but in a bucket or the like."""
    return is_url(place_of(summary).get("mount") or "")


class CheckpointMetric(TypedDict, total=False):
    """What DLIO has under `metric`, by its names, in runs that wrote checkpoints."""

    save_checkpoint_duration_mean_seconds: float
    save_checkpoint_duration_stdev_seconds: float
    save_checkpoint_io_mean_GB_per_second: float
    """In GiB/s, as the others are in GiB."""
    save_checkpoint_io_stdev_GB_per_second: float
    checkpoint_size_GB: float


class CheckpointCost(TypedDict, total=False):
    """What the checkpoints of a run cost its accelerators; percentages are 0 to 100."""

    number: int
    """Checkpoints that began in the epochs counted."""
    total_stall_seconds: float
    """Time between steps in which all accelerators waited for a checkpoint, in all epochs."""
    au_with_stalls_percentage: float
    """Nominal compute over the whole time, first steps and stalls included; mean over epochs."""
    steps_while_writing: int
    """Steps of which most fell into the writing of a checkpoint; each epoch's first is left out."""
    au_while_writing_percentage: float | None
    """Nominal compute over the time of these steps; None: there are none."""
    au_otherwise_percentage: float | None
    """The same for the other steps."""
    lost_share: float
    """Share (0-1) of what all these steps lost that they would not have lost if steps during
    writes had lost as little as the others."""


DocumentKind = Literal[
    "cached prediction",
    "calibration",
    "checkpoint",
    "checkpoint prediction",
    "comparisons",
    "dataset",
    "datasize",
    "doctor",
    "foreign",
    "load",
    "needs",
    "paths",
    "plan",
    "prediction",
    "predictions",
    "results",
    "run",
    "runs",
    "several needs",
    "sizing",
    "steptime",
    "verify",
    "wear",
]
"""`kind` of what a command stores or prints with --json."""


class CheckpointFields(CheckpointCost, total=False):
    """`checkpoints` in summary.json, of a run with `workflow.checkpoint`. Seconds of a checkpoint
    are those of its slowest rank, in the order in which they were taken. A run that did not end has
    the fields of CheckpointCost alone."""

    folder: str
    asynchronous: bool
    due: Mapping[str, Any]
    """When they were due: a finding."""
    num_bytes: int
    """Of one checkpoint, all ranks."""
    written_bytes: int
    """Of all."""
    duration_seconds: Sequence[float]
    """From the first byte to the last one on the drive (or in its cache, without fsync)."""
    stall_seconds: Sequence[float]
    """All accelerators waited for it, barrier included."""
    waited_seconds: Sequence[float]
    """The part of the stall in which the one before it was still being written."""
    remaining_seconds: float
    """After the last step, until the last one was written."""
    parts_seconds: Mapping[str, float]
    """Sum over all ranks and checkpoints of open, write, waited (for bytes to write), fsync and
    close; and `generation`, CPU seconds in which the bytes were made."""
    devices: Sequence[str]
    """Drives under the folder, of all hosts."""
    device_read_bytes: int | None
    """Of these drives in the epochs, by any process; None where no drive is seen."""
    device_written_bytes: int | None


_BEGUN = time.time() - time.monotonic()


def time_of_day() -> str:
    """Return the time as summaries have it: UTC, in ISO 8601.

    Those of one process differ by what has passed, also where the clock is set meanwhile.
    """
    return datetime.fromtimestamp(_BEGUN + time.monotonic(), UTC).isoformat(timespec="seconds")


def how_it_ended(error: BaseException) -> tuple[str, str]:
    """Return `status` and `error` of a summary, from what ended the job.

    A signal to all ranks may come to another one first, which tells this one before it comes here.
    """
    is_other = isinstance(error, PeerError) and error.is_interrupt
    if is_other or isinstance(error, KeyboardInterrupt | SystemExit):
        return "incomplete", "interrupted"
    return "failed", str(error) if isinstance(error, DlemuError) else repr(error)


def limit_name(summary: Mapping[str, Any], field: str = "limit") -> str:
    """Return the name of a limit; "" where the run did not end."""
    return str((summary.get(field) or {}).get("name", ""))


class Metric(CheckpointMetric, total=False):
    """AU and throughput of a run, by DLIO's names; means and standard deviations over epochs."""

    edition: str
    """MLPerf Storage's edition whose rules apply, "v1.0", "v2.0" or "v3.0"."""
    train_au_percentage: Sequence[float]
    """AU of each epoch, 0 to 100."""
    train_au_mean_percentage: float
    train_au_stdev_percentage: float
    train_au_interval_percentage: Sequence[float] | None
    """The mean's 95 % interval, 0 to 100, by parts of this run's steps; None of too few."""
    train_au_min_accelerator_percentage: float
    """Of the accelerator with the least, mean over epochs."""
    train_au_meet_expectation: str
    """"success", "fail" or "no verdict"."""
    train_hidden_share: float
    """The largest share (0-1) of the counted steps that the steps left out can read for."""
    train_throughput_samples_per_second: Sequence[float]
    """Of each epoch, over all accelerators."""
    train_throughput_mean_samples_per_second: float
    train_throughput_stdev_samples_per_second: float
    train_io_mean_MB_per_second: float
    """Nominal bytes, in MiB/s: the name is DLIO's."""
    train_io_stdev_MB_per_second: float


class CacheMeasured(TypedDict, total=False):
    """A read-through cache, dlemu's own or one that is mounted and watched, over all hosts. Lists
    have a value for each epoch; None where nobody counts."""

    hit_share_per_epoch: Sequence[float | None]
    """Share (0-1) of the bytes that the origin did not give: of the files' that caches served, of
    those that training read from a mount. None where no file was read."""
    origin_bytes_per_epoch: Sequence[int | None]
    """Read from the origin; of a mount's by any process, as the cache's drives' below."""
    cache_read_bytes_per_epoch: Sequence[int | None]
    cache_write_bytes_per_epoch: Sequence[int | None]
    """With what was flushed after the epoch's end, outside its time."""
    seconds_per_epoch: Sequence[float]

    read_bytes_per_epoch: Sequence[int]
    """Of a mounted cache alone, as the next two: read by training."""
    fill_ratio_per_epoch: Sequence[float | None]
    """Written to the cache / read from the origin; None where the origin gave hardly anything."""
    daemon_cpu_seconds_per_epoch: Sequence[float | None]
    """CPU time of the FUSE mount's process."""

    policy: str
    """cache.policy; this and all below of dlemu's own cache alone."""
    fill: str
    """cache.fill."""
    emulated_origin: Mapping[str, Any] | str
    """How the origin was emulated: a finding `emulated_at`; "" if it was not. Earlier versions
    stored a text."""
    capacity_bytes: int
    """Sum over the hosts, each at most the dataset; 0: no cache, only an emulated origin."""
    dataset_bytes: int
    """Of the files of the whole dataset."""
    planned_hit_share_per_epoch: Sequence[float | None]
    """The hits by the plan; they are the measured ones, unless somebody removes files."""
    hit_bytes_per_epoch: Sequence[int]
    planned_hit_bytes_per_epoch: Sequence[int]
    settle_seconds_per_epoch: Sequence[float]
    """From an epoch's end until its last file was in the cache; outside the epoch's time."""
    preload: Mapping[str, Any] | None
    """num_files, num_bytes, seconds and read_share; None: cache.warm was not true."""
    pays_from_epoch: int | None
    """The first epoch, from 1, by whose end the cache has saved time; None: it does not."""
    can_save: bool
    """Whether a cache can save time here at all, by what was measured."""
    one_drive: bool
    """Whether the origin is on the cache's drive, and not emulated."""
    endurance_bytes: int | None
    """What the cache's drives may be written in their lives (drive.endurance x drives)."""
    hosts: Sequence[Mapping[str, Any]]
    """Of each host: host, capacity_bytes, and its own hit_share_per_epoch, hit_bytes_per_epoch and
    planned_hit_bytes_per_epoch. Empty without a cache."""


class Measured(TypedDict, total=False):
    """What was counted during the epochs. A value is None where it is not known."""

    storage_read_bytes: int | None
    """Delivered by storage: not from the page cache."""
    read_amplification: float
    """Bytes of the storage / bytes of the samples; of the loaders' reads where no counter tells."""
    path: str
    """PathBytes.mode: the path that the bytes took to memory, "host" or cuFile's."""
    path_bytes: Mapping[str, Any]
    """The fields of PathBytes."""
    device_read_bytes: int | None
    """Of all drives under the data folder, for any reader; a drive that hosts share counts once."""
    network: Mapping[str, int | None] | None
    """`received_bytes` and `sent_bytes`, by any process, with the headers of Ethernet, and the TCP
    segments of NetworkCounters. Over all hosts; interfaces that they share count once. None where a
    host has none."""
    page_cache_share: float | None
    """Share (0-1) of the bytes that came from memory, added up over the epochs."""
    page_cache_share_per_epoch: Sequence[float | None]
    uncounted_share: float
    """Share (0-1) of the bytes read with O_DIRECT that the drives did not count, and that came from
    no memory: of holes and compressed files. Only where there are any."""
    file_read_p50_seconds_per_epoch: Sequence[float | None]
    """Over all reads of files, each from its opening to its last byte, or over the parts of files
    that batches took; None where the loader does not count them. Not of a bucket; p99 likewise."""
    file_read_p99_seconds_per_epoch: Sequence[float | None]
    resident_share_before: float | None
    """Share (0-1) of the dataset's pages that were in memory before the first epoch."""
    hosts: Sequence[Mapping[str, Any]]
    """HostReport.fields of each host."""
    wear: WearFields
    """What was written to the drives under the data folder from the start to the end of the run."""
    read_seconds: float
    """In read calls, sum over all workers."""
    worker_seconds: float
    """Seconds of the epochs x workers."""
    read_bytes: int
    """Really read by the loaders, all epochs. This and the next come from the steps alone."""
    read_bytes_per_second: float
    steady: Mapping[str, Any]
    """The fields of Steadiness. Only where the storage was the limit, and a counter tells."""
    objects: Mapping[str, Any]
    """Only where the data folder is a bucket: the counts of GetCounts, of all ranks and epochs;
    `p50_seconds` and `p99_seconds`, the latency that so many did not exceed, from the request to
    its last byte; `cpu_seconds_per_GB` of ranks and workers, for 10^9 bytes received."""
    cache: CacheMeasured
    """Only with a cache of dlemu's own, an emulated origin, or places that are watched."""


EpochRow = Mapping[str, Any]
"""One epoch of a run: `epoch` from 1, fields of EpochMetrics by their names, and two more.

What is not known is None: samples/s, or bytes and reads that the loader does not count.

    nominal_bytes_per_second    samples/s x the mean size of a sample
    lost                        shares (0-1) of the time that were lost, by cause: the fields of
                                metrics.LostShares; empty for a loader not dlemu's
"""


class _Summary(TypedDict, total=False):
    """What one run and several runs have."""

    status: str
    """"complete", or one of UNFINISHED."""
    workload: str
    """Its name."""
    data_loader: str
    """reader.data_loader."""
    num_hosts: int
    num_accelerators: int
    hostname: str
    """Of rank 0: DLIO's name of it, for scripts that read DLIO's results. `system[0].host` is the
    same."""
    dataset: DatasetFields
    system: Sequence[HostFields]
    """Each host, that of rank 0 first, and its storage below the data folder."""
    reader: Mapping[str, Any]
    """batch_size, read_threads, odirect and gets_in_flight of `reader`; `scattered`, whether files
    are read by ranges or by records, so that reads/s say something."""
    versions: Mapping[str, str]
    """Of dlemu, Python, the kernel and the libraries that read."""
    start: str
    """By `time_of_day`, as `end`."""
    end: str
    notes: Sequence[str | Mapping[str, Any]]
    """Findings, and texts of loaders, launchers and places. Of several runs those on rules of the
    division that hold only under a condition."""
    error: str
    """Why it did not end."""
    verdict: Verdict
    """Several runs that did not end have none."""
    findings: Sequence[Mapping[str, Any]]
    """Why there is no verdict, and of several runs why they fail; what the verdict's line says as
    well, of several runs each kind once; notes. Each as `Finding.fields` has it."""
    threshold_percentage: float | None
    """metric.au in percent; None of a training loop of one's own that is to reach none."""


class Summary(_Summary, total=False):
    """summary.json of one run."""

    kind: Literal["run"]
    decode: str
    """reader.decode."""
    loop: str
    """train.loop."""
    hand_over: str
    """"batch" or "none"."""
    workers: Mapping[str, Any]
    """What a plain DataLoader makes on this host for each accelerator: samples_per_second, the
    au_percentage that follows, and how many workers are `enough`, None if no number is; {} where
    it is not known."""
    ceiling_au_percentage: float
    """AU of some steps without reads, made after the epochs: what dlemu itself can reach on this
    host. Only of steps below 20 ms, where its own cost is seen."""
    allreduce_seconds: float
    """Of a step, by train.allreduce_time: they lower the ceiling, too. Only beside it, and above
    0."""
    worker_cost: str
    """reader.cost of the pytorch loader; "" with another."""
    num_ranks: int
    num_files_train: int
    """This and the next seven by DLIO's names and types."""
    num_files_eval: int
    """Always 0."""
    num_samples_per_file: int
    data_size_per_host_GB: float
    """Nominal bytes that each host reads in an epoch, in GiB: the name is DLIO's."""
    host_memory_GB: Sequence[float]
    """GiB of each host."""
    host_cpu_count: Sequence[int]
    """Of each host."""
    potential_caching: Sequence[int]
    """1 for each host with more memory than it reads, else 0."""
    epochs: int
    """Of which `metric` has values."""
    metric: Metric
    """Without fields where the run did not end, as `measured`."""
    measured: Measured
    checkpoints: CheckpointFields
    """Only there if the run wrote any."""
    limit: Any
    """The fields of Limit; None where the run did not end."""
    ignored: Sequence[str]
    """Keys of the workload that have no effect."""
    real_accelerators: float | None
    """That this storage feeds; None where it was not the limit, or there is no verdict. Of a rate
    that fell, at its last level; None of one that went up and down."""
    phases: Sequence[Mapping[str, Any]]
    """The fields of Phase: what the storage fed over time. Empty where its rate was steady."""
    per_epoch: Sequence[EpochRow]
    accelerator: str
    """What computed in a training loop of the user's own, whose time the next two divide."""
    time_shares: Mapping[str, float]
    timed_by: Sequence[str]


class RunRow(TypedDict, total=False):
    """One run of several."""

    name: str
    """Its folder within theirs, "run.1" or "warmup.1"."""
    status: str
    """As in the run's Summary, and the next three too."""
    verdict: Verdict
    start: str
    end: str
    gap_seconds: float | None
    """Since the end of the run before; None for the first one."""
    au_percentage: float
    whole_epoch_au_percentage: float
    samples_per_second: float
    min_accelerator_au_percentage: float
    """Of the accelerator with the least, mean over epochs."""
    read_bytes_per_second: float | None
    nominal_MiB_per_second: float
    page_cache_share: float | None
    limit: str
    epochs_under: Sequence[Mapping[str, Any]]
    """`epoch`, from 1 on, and `au_percentage` of those under the threshold. Until November 2026 it
    was a text."""
    recorded_au_percentage: float
    """As another tool recorded it, mean over epochs; of a run of its own alone."""


class Spread(TypedDict):
    """Mean, standard deviation (n - 1) and 95 % interval of the mean; None for one value."""

    mean: float
    sd: float | None
    interval: Sequence[float] | None


class RunsSummary(_Summary, total=False):
    """summary.json of several runs; each run's own lies in its folder."""

    kind: Literal["runs"]
    label: str
    division: str
    """"closed" or "open"."""
    runs: Sequence[RunRow]
    repeatability_percentage: float
    """The largest distance of a run's samples/s from their mean."""
    au_percentage: Spread
    samples_per_second: Spread
