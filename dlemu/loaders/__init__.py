"""Loaders read an epoch's batches in the plan's order. They are imported when they are asked for.

A loader serves all accelerators that one rank emulates. Each accelerator has `reader.read_threads`
workers. Worker w makes the batches of steps w, w + read_threads, w + 2 read_threads …; in
tf.data's order it makes its part of every batch. `train.loop` and `reader.prefetch_size` say how
far ahead of the training loop batches are read (`Workload.batches_in_flight`).

A loader is a subclass of `Loader`, whose constructor takes and raises what `open_loader` does.
`make_room` sees to the file descriptors that a rank needs meanwhile. `worker.SampleReader` reads
batches of all formats. CONTRIBUTING.md says how to add one.
"""

import resource
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import isabstract

import numpy as np
from numpy.typing import NDArray

from dlemu.config.model import Workload
from dlemu.config.types import LOADERS
from dlemu.dataset.layout import Dataset, Samples
from dlemu.dataset.plan import EpochPlan
from dlemu.dataset.rule import num_processes
from dlemu.errors import WorkloadError
from dlemu.findings import Finding
from dlemu.host.processes import free_memory
from dlemu.loaders.cache.host import uses_cache
from dlemu.ranks.world import World
from dlemu.storage.counted import NUM_BINS, GetCounts, PathBytes
from dlemu.units import counted, format_bytes

OTHERS = 128
"""Descriptors for everything else in the process."""
FILES_KEPT = 8
"""Files of many samples that a stream keeps open if it reads several of them in turn."""
_OF_A_CACHE = 6
"""More descriptors of a worker that reads through a cache: the state that all workers share, four
files in memory (one joins two that wait while one is written), and the file in the cache."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of one accelerator for one step."""

    epoch: int
    """From 0."""
    step: int
    """From 0, within the epoch."""
    accelerator: int
    """Number among all accelerators of the job, from 0."""
    samples: Samples
    """Sample numbers, int64 (batch,)."""
    num_bytes: int
    """Bytes that were read from storage for it, headers and read-ahead of a stream included."""
    ready: float
    """Time (perf_counter, seconds) at which the accelerator could take it."""
    read_seconds: float = 0.0
    """Time that its worker spent in reads."""
    decode_seconds: float = 0.0
    """Time that its worker spent on parsing and checksums."""
    hand_over_seconds: float = 0.0
    """Time that its worker spent on copying and padding."""
    num_reads: int = 0
    """Calls that read its bytes; 0 where they are not counted (dali)."""
    data: NDArray[np.uint8] | None = None
    """uint8 (batch, row_bytes): the samples collated into one array, or None if they are dropped.
    A row has record_length_bytes_resize bytes (the sample is cut, or padded with zeros); if that is
    not set, as many as the largest sample. The memory is used again: `open_loader` says when."""
    lengths: NDArray[np.int64] | None = None
    """int64 (batch,): bytes of each row that belong to the sample."""

    @property
    def arrays(self) -> list[NDArray[np.uint8]] | None:
        """The samples one by one, each uint8 (its length,): views of `data`."""
        if self.data is None or self.lengths is None:
            return None
        rows = zip(self.data, self.lengths.tolist(), strict=True)
        return [row[:length] for row, length in rows]


class Loader(ABC):
    """Reads batches for the accelerators of one rank. tests/loaders/test_loaders.py checks it.

    Counters default to zero; override those that you support.
    """

    direct = False
    """Whether O_DIRECT is really used (`reader.odirect=auto` may have fallen back)."""
    notes: tuple[str | Finding, ...] = ()
    """A line for each key that could not be met, to be shown."""

    @abstractmethod
    def epoch(self, epoch: int, plan: EpochPlan) -> Iterator[list[Batch]]:
        """Yield the batches of each step, one for every accelerator, in the accelerators' order.

        A batch has the samples `plan.samples[step, accelerator]`. The caller asks for a step when
        training begins it, and may close the iterator before its end; then another epoch may begin.
        `epoch` is the number that batches carry, from 0.

        Raises:
            DatasetError: a file is missing, damaged or not what the workload says.
            RunError: a worker died.
        """

    @abstractmethod
    def waiting_for(self) -> str:
        """Return in one line what the workers read, and for how long. Other threads call it."""

    @abstractmethod
    def close(self) -> None:
        """End all workers, in time even if a read hangs; may be called again."""

    def pids(self) -> list[int]:
        """Return the process numbers of the workers; none if they are threads."""
        return []

    def path_bytes(self) -> PathBytes:
        """Return the bytes so far by path, if some may pass the host's memory by.

        Call it before `close`.

        Raises:
            RunError: reader.gds=require, but bytes went through the host.
        """
        return PathBytes()

    def gets(self) -> GetCounts:
        """Return the totals of all requests to a bucket so far."""
        return GetCounts()

    def read_counts(self) -> NDArray[np.float64]:
        """Return how many reads so far fell into each bin of `storage.counted`, (NUM_BINS,).

        A read is what a worker takes from one file at a time: a whole file, or the part of it that
        a batch needs. It lasts from the opening to the last byte, with checks and copies.
        """
        return np.zeros(NUM_BINS)

    @classmethod  # noqa: B027
    def check(cls, workload: Workload) -> None:
        """Refuse a workload for which this host lacks something. Raises WorkloadError."""

    @classmethod
    def reads(cls, workload: Workload) -> bool:
        """Return whether it reads the dataset from where it lies: by default from folders alone.

        A place without paths has no names that the kernel opens: it is read by `SampleReader`.
        """
        return workload.place.has_paths

    @classmethod
    def descriptors(cls, workload: Workload) -> tuple[int, int]:
        """Return the descriptors that one accelerator needs in a rank, and those it can use."""
        least, kept = descriptors_of_a_stream(workload)
        num_streams = workload.reader.num_streams
        return num_streams * least, num_streams * kept

    @classmethod
    def lacks(cls) -> Sequence[str]:
        """Return what this host lacks to read by it, a line each: for `dlemu doctor`."""
        return ()

    def memory(self) -> list[NDArray[np.uint8]]:
        """Return the arrays in which all batches are handed over, which a user may pin.

        uint8 (slots, batch, row_bytes), one for each accelerator; none if each batch has its own.
        """
        return []


def check_loader(workload: Workload, num_accelerators: int) -> None:
    """Check that this host has what the loader needs; raise its limit of open files.

    Raises:
        WorkloadError: a package or a GPU is missing, or too few files may be open.
    """
    if not workload.place.has_paths:
        _check_place(workload)
    loader = find_loader(workload)
    files, name = workload.dataset.file_format, workload.dataset.format
    if files.needs and find_spec(files.needs) is None:
        raise WorkloadError(f"dataset.format={name} needs {files.needs}: pip install {files.needs}")
    decodes = files.in_columns and workload.reader.decode == "library"
    if decodes and find_spec("pyarrow") is None:
        raise WorkloadError(
            "reader.decode=library needs pyarrow for parquet: pip install 'dlemu[parquet]', or "
            "leave it out"
        )
    loader.check(workload)
    make_room(workload, num_accelerators)


def _check_place(workload: Workload) -> None:
    """Refuse what reads from a folder alone; of DALI that is known before it is installed."""
    reader, folder, place = workload.reader, workload.data_folder, workload.place
    if reader.loader.by_dali or not find_loader(workload).reads(workload):
        raise WorkloadError(
            f"reader.data_loader={reader.data_loader} does not read {folder}: use "
            "reader.data_loader=threads, tensorflow for tf.data's order, or pytorch with "
            "reader.multiprocessing_context=spawn ("
            f"{place.needs[0] or 'what reads there'} does not survive the fork of a worker)"
        )
    if reader.decode == "library":
        raise WorkloadError(
            f"reader.decode=library opens files by name, and {folder} is {place.word}; leave it out"
        )
    module, package = place.needs
    if module and find_spec(module) is None:
        raise WorkloadError(f"{folder} needs {module}: pip install '{package}'")


def open_loader(dataset: Dataset, *, accelerators: range, keep: int) -> Loader:
    """Return the loader that `reader.data_loader` names.

    `accelerators`: their numbers among all of the job. `keep`: a batch's `data` stays valid until
    that many more batches of its accelerator were taken; with 0 the bytes are read and dropped, and
    batches have no `data`.

    Raises:
        DatasetError: the first file cannot be read.
        WorkloadError: a package or memory is missing, or two keys exclude each other.
    """
    opened: Callable[..., Loader] = find_loader(dataset.workload)
    return opened(dataset, accelerators=accelerators, keep=keep)


def find_loader(workload: Workload) -> type[Loader]:
    """Return the class of the loader that `reader.data_loader` names.

    Raises:
        WorkloadError: there is none, or a package is missing.
    """
    name = workload.reader.data_loader
    try:
        found: type[Loader] = LOADERS[name]
        if not issubclass(found, Loader) or isabstract(found):
            raise ValueError(
                f"={name} cannot be used: it must be a subclass of dlemu.loaders.Loader that "
                "defines epoch, waiting_for and close"
            )
        return found
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dlemu"):
            raise
        installed_by = workload.reader.loader.installed_by or error.name
        package = "NVIDIA DALI" if (error.name or "").startswith("nvidia") else error.name
        raise WorkloadError(
            f"reader.data_loader={name} needs {package}: pip install '{installed_by}', "
            "or use reader.data_loader=threads"
        ) from None
    except ValueError as error:  # a user's own
        raise WorkloadError(f"reader.data_loader{error}") from None


def make_room(workload: Workload, num_accelerators: int) -> int:
    """Raise this process's limit of open files to what its accelerators can use; return it."""
    soft, hard = _limits()
    each = find_loader(workload).descriptors(workload)
    least, wanted = (OTHERS + num_accelerators * number for number in each)
    if least > hard:
        most = most_accelerators(workload)
        fewer = f"emulate at most {most} in a rank, " if most else ""
        raise WorkloadError(
            f"{counted(num_accelerators, 'accelerator')} of reader.read_threads="
            f"{workload.reader.read_threads} in a rank need {least} open files, a process may "
            f"have {hard} here; {fewer}use more ranks or fewer reader.read_threads, or raise the "
            f"limit as root: ulimit -n {least}"
        )
    if wanted > soft:
        soft, limits = min(wanted, hard), resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, limits[1]))
    return soft


_WORKER_BYTES = 150_000_000
"""Memory of its own that a spawned worker takes: it imports torch anew (158 MiB, of which some can
be given up). A forked one shares that of its parent."""


def check_workers_memory(workload: Workload, num_accelerators: int) -> None:
    """Refuse more spawned workers than the host's memory, or the cgroup's limit, has room for.

    `num_accelerators`: of this host. The kernel would kill them without a word.

    Raises:
        WorkloadError: the line has both sizes.
    """
    reader = workload.reader
    if not reader.loader.is_dataloader or reader.multiprocessing_context == "fork":
        return
    number = num_accelerators * reader.read_threads
    free, limit = free_memory()
    if number * _WORKER_BYTES > free:
        raise WorkloadError(
            f"{counted(number, 'worker')} of reader.multiprocessing_context="
            f"{reader.multiprocessing_context} take about {format_bytes(number * _WORKER_BYTES)} "
            f"of memory on this host, as each imports torch; {format_bytes(free)} are free "
            f"({limit}): lower reader.read_threads, emulate fewer accelerators "
            "on a host, or take fork"
        )


def most_accelerators(workload: Workload) -> int:
    """Return how many accelerators a rank can emulate at the hard limit."""
    least, _ = find_loader(workload).descriptors(workload)
    return max(0, _limits()[1] - OTHERS) // least


def most_of_job(workload: Workload, world: World, asked: int) -> int:
    """Return how many of the asked accelerators all ranks of a job, or its processes, emulate."""
    each, most = most_accelerators(workload), asked
    # Of fewer accelerators a job may start fewer processes.
    while most > each * (ranks := num_ranks_of(workload, world, most)):
        most = each * ranks
    return most


def num_ranks_of(workload: Workload, world: World, num_accelerators: int) -> int:
    """Return the ranks, or processes of dlemu's own, that share so many accelerators."""
    job = workload.with_keys({"num_accelerators": num_accelerators})
    return max(world.num_ranks, num_processes(job, world)) if num_accelerators else world.num_ranks


def descriptors_needed(workload: Workload, num_accelerators: int) -> int:
    """Return the limit of open files that a rank with so many accelerators needs."""
    least, _ = find_loader(workload).descriptors(workload)
    return OTHERS + num_accelerators * least


def _limits() -> tuple[int, int]:
    soft, hard = (
        sys.maxsize if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return soft, hard


def descriptors_of_a_stream(workload: Workload) -> tuple[int, int]:
    """Return the descriptors that a worker needs for what it reads, and those that it can use."""
    if not workload.place.has_paths:
        connections = workload.reader.gets_in_flight
        return connections, connections
    one_by_one = workload.dataset.num_samples_per_file == 1 or workload.streamed
    through_cache = _OF_A_CACHE if uses_cache(workload) else 0
    return 1 + through_cache, through_cache + (1 if one_by_one else FILES_KEPT)
