"""The sections of a workload: DLIO's keys and dlemu's own, each with its type and its bounds."""

import math
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    model_validator,
)

from dlemu.config.refusal import Names as Names
from dlemu.config.types import (
    DURATION,
    LARGEST_SAMPLE,
    MOST_AXES,
    MOST_FILES,
    PLANS,
    RUNS,
    SAMPLE_SIZE,
    WRITES,
    Bandwidth,
    Distribution,
    Duration,
    FileName,
    FormatName,
    LoaderFacts,
    LoaderName,
    Natural,
    Positive,
    ReadBytes,
    SampleBytes,
    Seconds,
    Section,
    Seed,
    Shuffle,
    Size,
    Use,
    facts_of_loader,
    known_by,
    off_for_false,
)
from dlemu.errors import system_line
from dlemu.formats import FORMATS
from dlemu.formats.csv import NUMBER_BYTES, TEXT_BYTES
from dlemu.formats.format import Format
from dlemu.plugins import Registry
from dlemu.units import ceil_div, parse_bytes

_MOST_SAMPLES = 10**10
_MOST_BUFFERED = 2**34
_PREDICTED = Use(by=f"{RUNS} predict")


class WorkflowSection(Section):
    """Which parts of the job `dlemu run` does."""

    generate_data: Annotated[bool, Use(closed=True)] = False
    """Generate the dataset first, unless it is complete already."""
    train: bool = True
    """Replay the reading."""
    checkpoint: Annotated[bool, Use(by="run size")] = False
    """Write checkpoints while it runs, as the keys checkpoint.* say."""


def _element_type(value: str) -> str:
    try:
        kind: str = np.dtype(value).kind
    except (TypeError, ValueError, SyntaxError):
        kind = ""
    if kind not in tuple("biufc"):  # bool, integers, floats, complex
        raise ValueError(f"must be a NumPy type such as uint8 or float32, got {value!r}")
    return value


_Signed = Literal["int8", "int16", "int32", "int64"]
_Unsigned = Literal["uint8", "uint16", "uint32", "uint64"]
_Floating = Literal["float16", "float32", "float64"]


class ColumnSection(Section):
    """One column of a parquet file."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """Its name in the file."""
    dtype: Literal[_Signed, _Unsigned, _Floating, "list"] = "float32"
    """Type of an element; `list` is DLIO's word for lists of float32."""
    size: Annotated[int, Field(ge=1, le=10**9)] = 1
    """Elements of a row."""
    read: bool = False
    """Whether training reads it. Where no column is marked, all are read."""

    @property
    def element_type(self) -> str:
        """NumPy name of an element's type."""
        return "float32" if self.dtype == "list" else self.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's elements."""
        return self.size * np.dtype(self.element_type).itemsize


class ParquetSection(Section):
    """What a parquet file holds, by DLIO's keys."""

    columns: Annotated[tuple[ColumnSection, ...], Field(strict=False, max_length=10_000)] = ()
    """Columns, each with the keys name, dtype, size and read. Empty: one column `data` of
    dataset.record_dims, or of dataset.record_length_bytes bytes a row."""
    row_group_size: Annotated[int, Field(ge=1, le=10**8)] = 1024
    """Rows of a row group; a reader fetches whole row groups (DLIO: 1024)."""

    @model_validator(mode="after")
    def _names(self) -> Self:
        names = [column.name for column in self.columns]
        twice = [name for name in names if names.count(name) > 1] if len(names) < 1000 else []
        if twice:
            raise ValueError(f"dataset.parquet.columns has two columns of the name {twice[0]!a}")
        return self


@lru_cache
def listed_sizes(path: str) -> tuple[int, ...]:
    """Return the sizes in a text file, one a line, in bytes, in ascending order.

    Raises:
        ValueError: the file cannot be read, or a line is no size.
    """
    try:
        with open(path, "rb") as file:
            lines = file.read(_MOST_LISTED * 16).split()
    except OSError as error:
        raise ValueError(
            f"must be normal, lognormal, or a file; {system_line(error, path)}"
        ) from None
    if not 1 <= len(lines) <= _MOST_LISTED:
        raise ValueError(f"{path} has {len(lines):,} sizes, 1 to {_MOST_LISTED:,} are possible")
    for number, line in enumerate(lines, 1):
        if not (line.isdigit() and len(line) < 13 and 1 <= int(line) <= LARGEST_SAMPLE):
            raise ValueError(f"{path}, size {number} must be whole bytes, got {line[:40]!a}")
    return tuple(sorted(map(int, lines)))


_MOST_LISTED = 100_000


Axis = Annotated[int, Field(ge=1, le=LARGEST_SAMPLE)]
_HDF5 = Use(when=lambda job: job.is_hdf5)


class DatasetSection(Section):
    """The files of the training set."""

    data_folder: Annotated[str | None, Use(by=f"{WRITES} verify", closed=True)] = None
    """Where the files lie; files are at `train/` below it."""
    format: Annotated[FormatName, Use(by=PLANS)]
    """How a file holds its samples: a name, or the dotted path of a module with a FORMAT."""
    num_files_train: Annotated[
        Annotated[int, Field(ge=1, le=MOST_FILES)] | Literal["auto"], Use(by=PLANS, closed=True)
    ]
    """Number of files, or "auto": as many as the benchmark's rule asks for (`dlemu datasize`)."""
    num_samples_per_file: Annotated[int, Field(ge=1, le=_MOST_SAMPLES), Use(by=PLANS)] = 1
    """Samples in each file."""
    record_length_bytes: Annotated[
        SampleBytes,
        Use(by=PLANS, when=lambda job: not (job.has_own_sizes or job.has_columns)),
    ] = 65536.0
    """Mean size of a sample, before compression (DLIO: 65536)."""
    record_length_bytes_stdev: Annotated[
        float,
        SAMPLE_SIZE,
        Field(ge=0, le=LARGEST_SAMPLE),
        Use(when=lambda job: not job.has_own_sizes),
    ] = 0.0
    """Standard deviation of that size over the samples."""
    record_length_bytes_distribution: Annotated[
        str, Use(when=lambda job: not (job.has_dims or job.has_rows))
    ] = "normal"
    """How sizes are distributed: `normal`, `lognormal`, or a file with one size in bytes a line,
    which are drawn equally often and decide mean and stdev."""
    record_length_bytes_resize: Annotated[
        Annotated[Size, Field(ge=1, le=LARGEST_SAMPLE)] | None,
        Use(by=RUNS, when=lambda job: job.hands_over or job.by_dali),
    ] = None
    """Bytes of each sample that training gets, cut or padded with zeros. None: the whole sample."""
    record_dims: Annotated[
        tuple[Axis, ...],
        Field(strict=False, max_length=MOST_AXES),
        Use(by=PLANS, when=lambda job: not (job.has_rows and job.has_columns)),
    ] = ()
    """Shape of a sample, in elements; if set, it decides the size."""
    record_element_type: Annotated[str, AfterValidator(_element_type), Use(by=PLANS)] = "uint8"
    """NumPy name of a sample's element type."""
    num_subfolders_train: Annotated[Natural, Use(closed=True)] = 0
    """Subfolders of `train/` that the files are spread over; 0: none."""
    file_prefix: FileName = "img"
    """Start of each file's name."""
    num_dset_per_record: Annotated[int, Field(ge=1, le=10_000), _HDF5] = 1
    """HDF5 datasets that a sample is cut into along the first axis of dataset.record_dims."""
    compression: Literal["none", "gzip"] = "none"
    """`gzip`: the chunks of HDF5 files are compressed. Other formats are not."""
    enable_chunking: Annotated[bool, _HDF5] = False
    """HDF5 files are chunked, and h5py reads them; `gzip` and DLIO's max_shape ask for it too."""
    chunk_dims: Annotated[
        Annotated[
            tuple[Axis, ...],
            Field(strict=False, max_length=MOST_AXES + 1),
        ]
        | None,
        _HDF5,
    ] = None
    """Sides of an HDF5 chunk in elements, the first that of the samples (DLIO: hdf5.chunk_dims).
    []: h5py chooses. null: no chunks, unless another key asks for them."""
    parquet: Annotated[ParquetSection, Use(when=lambda job: job.has_rows)] = ParquetSection()
    seed: Annotated[Seed, Use(closed=True)] = 0
    """Seed of the files' sizes and content; train.seed is that of the reading order."""

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        if self.record_length_bytes_distribution not in ("normal", "lognormal"):
            try:
                listed_sizes(self.record_length_bytes_distribution)
            except ValueError as error:
                raise ValueError(f"dataset.record_length_bytes_distribution {error}") from None
        return self

    @model_validator(mode="after")
    def _products(self) -> Self:
        num_bytes = math.prod(self.record_dims) * self.element_bytes
        if num_bytes > LARGEST_SAMPLE:
            raise ValueError(
                f"dataset.record_dims must make samples of at most {LARGEST_SAMPLE:,} bytes, "
                f"got {num_bytes:,}"
            )
        files = 1 if self.num_files_train == "auto" else self.num_files_train
        if files * self.num_samples_per_file > _MOST_SAMPLES:
            raise ValueError(
                "dataset.num_files_train x dataset.num_samples_per_file must be at most "
                f"{_MOST_SAMPLES:,}, got {files * self.num_samples_per_file:,}"
            )
        return self

    @model_validator(mode="after")
    def _parts(self) -> Self:
        first, rank = (*self.record_dims, 1)[0], 1 + len(self.record_dims or (1, 1))
        if self.compression != "none" and self.format != "hdf5":
            raise ValueError(
                f"dataset.compression={self.compression} is for hdf5 files; {self.format} files "
                "are read in place, leave it out"
            )
        if self.format == "csv" and self.record_element_type != "uint8":
            raise ValueError(
                "dataset.record_element_type must be uint8 in csv files, whose lines are numbers "
                f"of known lengths; got {self.record_element_type!r}"
            )
        if first % self.num_dset_per_record:
            raise ValueError(
                "dataset.num_dset_per_record must divide the first of dataset.record_dims, "
                f"{first}; got {self.num_dset_per_record}"
            )
        rank -= bool(self.record_dims) and first == self.num_dset_per_record
        if self.chunk_dims and len(self.chunk_dims) != rank:
            raise ValueError(
                f"dataset.chunk_dims must have {rank} sides, the samples' and a dataset's; got "
                f"{len(self.chunk_dims)}"
            )
        return self

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """Sides of an HDF5 chunk; (): h5py chooses; None: there are none."""
        asked = self.enable_chunking or self.compression != "none"
        return () if asked and self.chunk_dims is None else self.chunk_dims

    @property
    def by_h5py(self) -> bool:
        """Whether only h5py finds the samples in the files."""
        cut = self.num_dset_per_record > 1 or self.chunks is not None
        return self.format == "hdf5" and cut

    @property
    def file_format(self) -> Format:
        """Their format: how samples lie in them, and who reads it."""
        return FORMATS[self.format]

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return np.dtype(self.record_element_type).itemsize

    @property
    def mean_bytes(self) -> float:
        """Mean bytes that training reads of a sample.

        That of record_dims where set, of the columns that are read, or of the file of sizes; else
        record_length_bytes.
        """
        if self.columns:
            return float(sum(column.row_bytes for column in self.read_columns))
        if self.format == "csv":  # the text of its numbers
            numbers = math.prod(self.record_dims) if self.record_dims else self.record_length_bytes
            return float(NUMBER_BYTES * max(1, round(numbers * TEXT_BYTES / NUMBER_BYTES)))
        if self.record_dims:
            return float(math.prod(self.record_dims) * self.element_bytes)
        if self.listed_sizes:
            return sum(self.listed_sizes) / len(self.listed_sizes)
        return self.record_length_bytes

    @property
    def stdev_bytes(self) -> float:
        """Standard deviation of a sample's size in bytes."""
        if self.columns or self.record_dims:
            return 0.0
        if self.listed_sizes:
            return float(np.std(self.listed_sizes))
        return self.record_length_bytes_stdev

    @property
    def stored_bytes(self) -> float:
        """Mean bytes of a sample in its file, columns that are not read included."""
        return float(sum(column.row_bytes for column in self.columns)) or self.mean_bytes

    @property
    def listed_sizes(self) -> tuple[int, ...]:
        """The sizes that are drawn, in ascending order; empty where a distribution is named."""
        named = self.record_length_bytes_distribution
        return () if named in ("normal", "lognormal") else listed_sizes(named)

    @property
    def columns(self) -> tuple[ColumnSection, ...]:
        """The columns of a parquet file; none in other formats."""
        if self.format != "parquet" or self.parquet.columns:
            return self.parquet.columns if self.format == "parquet" else ()
        size = round(self.record_length_bytes)
        if self.record_dims:
            size = math.prod(self.record_dims) * self.element_bytes
        return (ColumnSection(name="data", dtype="uint8", size=size, read=True),)

    @property
    def read_columns(self) -> tuple[ColumnSection, ...]:
        """The columns that training reads."""
        return tuple(column for column in self.columns if column.read) or self.columns


_BY_CALLS = Use(when=lambda job: job.parses and job.has_paths)
_BY_REQUESTS = Use(when=lambda job: not job.has_paths)
AtOnce = Annotated[int, Field(ge=1, le=1024)]
"""A number of things that are under way at once."""


class ReaderSection(Section):
    """How the samples are read."""

    data_loader: Annotated[LoaderName, _PREDICTED] = "pytorch"
    """Which loader reads: a name, or the dotted path of a module with a LOADER. `tensorflow`:
    threads that read in tf.data's order and as far ahead."""
    batch_size: Annotated[Positive, Use(by=f"{PLANS} steptime")] = 1
    """Samples of one accelerator and step (DLIO: 1)."""
    read_threads: Annotated[
        int, Field(ge=0, le=1024), Use(by=f"{RUNS} predict steptime", closed=True)
    ] = 1
    """Workers of each accelerator; 0 reads in the rank itself."""
    prefetch_size: Annotated[
        int,
        Field(ge=0, le=10_000),
        Use(when=lambda job: job.by_tf_data or job.has_workers, closed=True),
    ] = 2
    """Batches read ahead by each accelerator (MLPerf Storage: 2)."""
    file_shuffle: Shuffle = "off"
    """Order of the files. `seed` and `random`: another in each epoch, drawn by train.seed."""
    sample_shuffle: Shuffle = "off"
    """Order of the samples, in the same way."""
    shuffle_size: Annotated[
        int,
        Field(ge=1, le=10**9),
        Use(when=lambda job: (job.by_tf_data or job.streamed) and job.shuffles_samples),
    ] = 2
    """Samples in the shuffle buffer of a stream, where files hold many (MLPerf's CosmoFlow: 2)."""
    transfer_size: Annotated[
        ReadBytes,
        Use(when=lambda job: job.parses and job.has_many and job.has_paths, closed=True),
    ] = 262_144
    """Bytes of one read of a file of several samples (DLIO: 262144)."""
    piece_bytes: Annotated[
        ReadBytes, Use(when=lambda job: job.parses and not job.has_many and job.has_paths)
    ] = 1_048_576
    """Bytes of one read of a file of one sample."""
    access: Annotated[Literal["stream", "random"] | None, Use(when=lambda job: job.has_many)] = None
    """How files of several samples are read. `stream`: from end to end. `random`: each sample
    alone, in the plan's order. null: `random` for hdf5, `stream` for the others."""
    coalesce_gap: Annotated[
        Size, Field(ge=0, le=2**30), Use(when=lambda job: job.has_rows and job.parses)
    ] = 8192
    """parquet: ranges of columns are joined to one read where at most so many bytes lie between
    (PyArrow: 8192)."""
    io_depth: Annotated[AtOnce, _BY_CALLS] = 1
    """Reads that a worker keeps outstanding."""
    gets_in_flight: Annotated[AtOnce, _BY_REQUESTS] = 8
    """Requests that a worker keeps outstanding where the data folder is a bucket."""
    range_bytes: Annotated[ReadBytes | None, _BY_REQUESTS] = None
    """Bytes of one request where the data folder is a bucket; a smaller object is read by one
    request. null: objects up to 16 MiB whole, larger ones by ranges of 8 MiB."""
    odirect: Annotated[bool | Literal["auto"], Use(by=_PREDICTED.by, when=_BY_CALLS.when)] = False
    """Bypass the page cache; `auto` falls back to buffered reads with a note."""
    preprocess_time: Duration = Distribution(mean=0.0)
    """Seconds that a worker takes for each sample after it has read it: to decode, to augment."""
    preprocess: Annotated[Literal["cpu", "sleep"], Use(when=lambda job: job.prepares)] = "cpu"
    """`cpu`: a worker computes, for preprocess_time where all workers compute at once, and longer
    where others need the cores: as decoding does. `sleep`: it sleeps for preprocess_time."""
    decode: Literal["raw", "library"] = "raw"
    """How samples are parsed. `raw`: dlemu reads the bytes of a sample by its place in the file.
    `library`: np.load, h5py, or TFRecord with CRC, as frameworks do."""
    check_crc: bool = False
    """Check the checksums in the files with `raw` too."""
    multiprocessing_context: Annotated[
        Literal["fork", "forkserver", "spawn"],
        Use(when=lambda job: job.by_pytorch and job.has_workers),
    ] = "fork"
    """How PyTorch starts its workers."""
    worker_start_time: Annotated[
        Seconds | None,
        Field(le=60),
        Use(when=lambda job: job.by_pytorch and job.has_workers),
    ] = None
    """Seconds in which a job starts each of its workers, one after the other, before the first
    batch: a process that holds a GPU takes longer to fork (15 to 23 ms beside an H100). Meter and
    watch find it. null: as long as it takes a run of dlemu, which has no GPU."""
    persistent_workers: Annotated[
        bool, Use(when=lambda job: job.starts_workers and job.has_epochs)
    ] = False
    """With cost=dataloader or worker_start_time: whether workers last for all epochs. `false`, as
    PyTorch has it: each epoch starts its own."""
    page_lock_time: Annotated[Seconds, Field(le=1000), Use(when=lambda job: job.plain_workers)] = (
        0.0
    )
    """With cost=dataloader: seconds in which CUDA makes 1 GB of page-locked memory, where a job has
    pin_memory=True. A batch waits for its part where no earlier batch has left memory: the first
    ones do. Meter finds it. 0: the job has no such memory."""
    worker_memory: Annotated[
        Literal["returned", "kept"] | Annotated[float, Field(ge=0, le=1)],
        Use(when=lambda job: job.by_pytorch and job.has_workers),
    ] = "returned"
    """What a worker of a plain DataLoader (cost=dataloader) does with the memory of a batch's
    samples. `returned`: the kernel has it back, and gives each of its pages anew for the next
    batch, which costs CPU time. `kept`: the worker uses it again. 0 to 1: the share that is kept.
    In a real worker glibc decides by what the process has allocated before; Meter finds which. It
    returns arrays above 32 MiB each in any case."""
    gds: Annotated[
        Literal["require", "prefer", "off"],
        BeforeValidator(off_for_false),
        Use(when=lambda job: job.on_gpu),
    ] = "off"
    """GPUDirect Storage with DALI on a GPU. `require`: reads must bypass the host's memory.
    `prefer`: they bypass it where they can. `off`: cuFile is not used."""
    hand_over: Literal["none", "batch"] | None = None
    """What a run does with the bytes it has read. `batch`: put each batch into one array, as the
    workers of a DataLoader do. `none`: drop them. None: `batch` for the pytorch loader, which every
    DataLoader job pays; `none` for the others."""

    cost: Annotated[
        Literal["lean", "dataloader"],
        Use(when=lambda job: job.by_pytorch, closed=False),
    ] = "lean"
    """What a worker of the pytorch loader costs. `lean`: as little as possible, to measure the
    storage. `dataloader`: what a plain one costs: np.load, PIL or h5py, collate, fresh shared
    memory, torch's queue."""

    @model_validator(mode="after")
    def _buffers(self) -> Self:
        for key in ("piece_bytes", "transfer_size"):
            num_bytes = self.io_depth * int(getattr(self, key))
            if num_bytes > _MOST_BUFFERED:
                raise ValueError(
                    f"reader.io_depth x reader.{key}, a worker's buffers, must be at most "
                    f"{_MOST_BUFFERED:,} bytes, got {num_bytes:,}"
                )
        return self

    @property
    def loader(self) -> LoaderFacts:
        """What is known of the loader before it is imported."""
        return facts_of_loader(self.data_loader)

    @property
    def hands_over(self) -> bool:
        """Whether a run puts each batch into one array."""
        return (self.hand_over or ("batch" if self.loader.is_dataloader else "none")) == "batch"

    @property
    def kept_share(self) -> float:
        """The share (0-1) of a batch's memory that a plain worker keeps for the next one."""
        if isinstance(self.worker_memory, str):
            return float(self.worker_memory == "kept")
        return self.worker_memory

    @property
    def num_streams(self) -> int:
        """Workers that read for an accelerator; without workers, the rank itself is one."""
        return max(1, self.read_threads)

    @property
    def prefetch_factor(self) -> int:
        """Batches that each worker may read ahead, as DLIO sets it for PyTorch."""
        return max(1, ceil_div(self.prefetch_size, self.num_streams))

    @property
    def batches_ahead(self) -> int:
        """Batches of an accelerator that may be read ahead of the one that training has taken.

        PyTorch's DataLoader: read_threads x prefetch_factor, none without workers. tf.data:
        prefetch_size batches, and behind them two samples of each stream, which matter only where
        batches are that small (dlemu help rules: "How far each loader reads ahead"). DALI:
        prefetch_size batches, whose samples all threads read together, and one in its reader.
        """
        if self.loader.by_dali:
            return max(1, self.prefetch_size) + 1
        if self.loader.by_tf_data:
            return self.prefetch_size + 2 * self.num_streams // self.batch_size
        return self.read_threads * self.prefetch_factor


def _steps(value: int) -> int:
    if value < 2 and value != -1:
        raise ValueError(f"must be -1 (all) or at least 2, got {value}")
    return value


class TrainSection(Section):
    """The emulated training."""

    epochs: Positive = 1
    """Times that all samples are read."""
    computation_time: Annotated[Duration, _PREDICTED] = Distribution(mean=0.0)
    """Seconds that an accelerator computes on a batch."""
    first_step_time: Annotated[Seconds | None, Use(by="run")] = None
    """Seconds that a run's first step computes, that of the first epoch: a job warms up its GPU in
    it, and its workers read ahead meanwhile. It proves nothing about the storage, so sizings have
    none. None: as long as other steps."""
    step_spread: Annotated[
        Literal["own", "shared"] | Annotated[float, Field(gt=0, le=1)],
        Use(when=lambda job: job.step_varies),
    ] = "own"
    """Whose the drawn times of a step are. `own`: each accelerator draws its own, and all wait for
    the longest. `shared`: a step takes all accelerators as long, as in a data-parallel job, whose
    step ends with an all-reduce. A number: this share of the variance is shared."""
    total_training_steps: Annotated[int, Field(le=10**9), AfterValidator(_steps), _PREDICTED] = -1
    """At most this many steps per epoch; -1: as many as the dataset gives."""
    seed: Annotated[Seed, Use(when=lambda job: job.is_drawn, closed=True)] = 123
    """Seed of the reading order and of drawn times (DLIO: 123)."""
    seed_change_epoch: Annotated[bool, Use(by=_PREDICTED.by, when=lambda job: job.is_shuffled)] = (
        True
    )
    """Shuffle anew for each epoch. `false`: all epochs have the order of the first."""
    loop: Annotated[Literal["rule", "pipelined"], Use(by=f"{RUNS} steptime")] = "rule"
    """Which training loop is emulated. `rule`: the benchmark's, which asks for the next batch when
    a step has ended. `pipelined`: a GPU job that asks for it while it computes."""
    launch_time: Annotated[Seconds, Use(when=lambda job: not job.trains)] = 0.0
    """Seconds of a core at the start of each step, spent by the rank in short calls which take
    Python's lock, as a job queues the step's kernels. They are a part of computation_time, at most
    all of it; a step whose thread waits for a core or the lock may end late. A pipelined loop asks
    for its next batch after them. A rank with several accelerators spends them once."""
    allreduce_time: Annotated[Seconds, Use(by="run size predict")] = 0.0
    """Seconds that a job's all-reduce takes in each step beyond computation_time: a step ends no
    sooner after its last accelerator was there. What it takes is told apart from the storage's part
    and from dlemu's own barrier, which is a part of these seconds; between hosts they begin when
    that has opened."""
    processes: Annotated[Literal["auto"] | Positive, Use(closed=True)] = "auto"
    """Processes that share a run's accelerators where no mpirun starts ranks. `auto`: more than one
    where the accelerators ask for more samples a second than one process can hand over."""
    compute: Literal["sleep", "gpu"] = "sleep"
    """`gpu` keeps a real GPU busy instead, so that copies, and pictures that DALI decodes on a GPU,
    contend as they would."""
    network: Annotated[str | None, Use(when=lambda job: job.computes_on_gpu)] = None
    """Whose training steps keep the GPU busy (`train.compute=gpu`), each on random data of a batch:
    `unet3d`, `resnet50`, `cosmoflow`, or PACKAGE.MODULE:FUNCTION of your own, as in steptime.model.
    They slow down what a GPU decodes as a job's do, and are launched as a job's are, in place of
    launch_time. None: matrix products, which take no launches and little memory."""

    @property
    def steps_ahead(self) -> int:
        """Steps that the loop prepares while it computes: 1 if it is pipelined, else 0."""
        return 1 if self.loop == "pipelined" else 0

    @property
    def longest_step(self) -> float:
        """Seconds that hardly any step exceeds."""
        longest = self.computation_time.longest
        return max(longest, self.launch_time, self.first_step_time or 0.0)

    @property
    def shared_spread(self) -> float:
        """The share (0-1) of the variance of a step's time that all accelerators share."""
        if isinstance(self.step_spread, str):
            return float(self.step_spread == "shared")
        return self.step_spread


def _share(value: object) -> object:
    """Take "90%" as 0.9."""
    if isinstance(value, str) and value.endswith("%"):
        with suppress(ValueError):
            return float(value[:-1]) / 100
    if isinstance(value, (int, float)) and 10 <= value <= 100:
        raise ValueError(f"must be at most 1, got {value:g}; write {value / 100:g} or {value:g}%")
    return value


Share = Annotated[float, BeforeValidator(_share), Field(gt=0, le=1)]


class MetricSection(Section):
    """Which metrics are computed, and when a run passes."""

    au: Annotated[
        float, BeforeValidator(_share), Field(ge=1e-6, le=1), Use(by=f"{RUNS} predict report")
    ] = 0.9
    """Least accelerator utilisation that passes, 0 to 1, or as 90%."""
    edition: Annotated[
        Literal["v1.0", "v2.0", "v3.0"],
        Use(by=f"{RUNS} report checkpoint", closed=True),
    ] = "v1.0"
    """Edition of MLPerf Storage whose formulas apply (dlemu help rules). v3.0 has v2.0's formulas,
    and rules of its own in `division=closed`."""
    exclude_start_steps: Annotated[Natural, Use(when=lambda job: job.leaves_out_steps)] = 1
    """Steps left out at an epoch's start (edition v2.0)."""
    exclude_end_steps: Annotated[Natural, Use(when=lambda job: job.leaves_out_steps)] = 0
    """Steps left out at an epoch's end (edition v2.0)."""
    max_cached_share: Annotated[Annotated[float, Field(ge=0, le=1)] | None, Use(closed=True)] = None
    """Largest share of bytes that may come from memory; above it, or if it is unknown, a run gets
    no verdict. None: 0.2, where it is known. 1: any share."""


def _one_or_many(value: object) -> object:
    """Take one text as a list of one."""
    return (value,) if isinstance(value, str) else value


def _secret(value: object) -> object:
    """Take what YAML reads as a number, too: an error would show the value."""
    if value is None or isinstance(value, SecretStr):
        return value
    return SecretStr(str(value))


Secret = Annotated[SecretStr, BeforeValidator(_secret)]
"""Text that no output shows."""


class StorageSection(Section):
    """Where the data folder lies: below a folder, or in a bucket of an S3 server."""

    storage_type: Annotated[Literal["local_fs", "parallel_fs", "s3"], Use(closed=True)] = "local_fs"
    """DLIO's key. `s3`: storage_root is a bucket; s3://... in dataset.data_folder says the same."""
    storage_root: Annotated[
        str, Use(by=f"{WRITES} verify", when=lambda job: job.below_root, closed=True)
    ] = "./"
    """Folder that a relative data_folder starts from; of `s3`, the bucket."""
    endpoint_url: Annotated[
        tuple[str, ...], Field(strict=False, max_length=1024), BeforeValidator(_one_or_many)
    ] = ()
    """URLs of the S3 servers, dealt to the workers in turn. []: AWS_ENDPOINT_URL, else AWS."""
    region: str | None = None
    """Region of the bucket. null: AWS_REGION, else us-east-1."""
    access_key_id: Secret | None = None
    """Credentials of the bucket. null: AWS_ACCESS_KEY_ID in the environment of rank 0; without
    both, requests are not signed."""
    secret_access_key: Secret | None = None
    """Its other half. null: AWS_SECRET_ACCESS_KEY in the environment of rank 0, which other
    processes of the host cannot read, as they can a command line."""
    get_seconds: Annotated[float, DURATION, Field(gt=0, le=3600)] = 60.0
    """A request to a bucket that takes longer is given up, and tried again."""
    retries: Annotated[int, Field(ge=0, le=100)] = 8
    """Times that a request is tried again: after a refusal (503), a time-out, a lost connection."""
    proxy: str | None = None
    """URL of a proxy that requests to a bucket go through, which is then measured as well. null:
    none; http_proxy and the like in the environment are not used."""
    ca_file: str | None = None
    """File of certificates (PEM) of a private authority, which signs those of the servers. null:
    AWS_CA_BUNDLE, else SSL_CERT_FILE in the environment of rank 0, beside the public ones."""
    verify_tls: bool = True
    """Whether the certificate of a server is checked. `false` takes any; the verdict says so."""


class OutputSection(Section):
    """Where results go."""

    folder: Annotated[str | None, Use(by=f"{RUNS} predict steptime checkpoint")] = None
    """The run's folder; None: a new one, outputs/<workload>/<date>-<time>."""
    log: Annotated[str | None, Use(by=f"{PLANS} verify steptime checkpoint")] = None
    """File that gets a copy of what is printed, each line with its time; None: no copy."""
    stall_seconds: Annotated[
        float, DURATION, Field(gt=0, le=1_000_000), Use(by=f"{RUNS} checkpoint")
    ] = 300.0
    """A run that makes no progress for this time is ended; computing is progress."""
    drop_caches: Annotated[
        bool,
        Use(
            by=f"{RUNS} checkpoint",
            when=lambda job: job.has_page_cache and not job.drops_all_caches,
        ),
    ] = True
    """Before a run, drop the dataset's pages from the page cache if some are there. With O_DIRECT,
    only if the command line asks for it."""
    drop_each_epoch: Annotated[
        bool | None, Use(by="run size", when=lambda job: job.has_epochs and job.drops_caches)
    ] = None
    """Do so before each further epoch as well. None: in edition v3.0 alone, as its DLIO does."""
    drop_all_caches: Annotated[
        bool, Use(by=f"{RUNS} checkpoint", when=lambda job: job.has_page_cache)
    ] = False
    """Drop the host's whole page cache instead (root only)."""


class SizeSection(Section):
    """The search for the most accelerators (`dlemu size`)."""

    confirm: Annotated[int, Field(ge=0, le=1000)] = 5
    """Consecutive passing runs that confirm the answer; 0 skips them."""
    start: Positive | None = None
    """Accelerators of the first run; None: a number that should fail, predicted or probed."""
    max_accelerators: Positive = 512
    """Most accelerators that are tried."""
    quick: bool = False
    """Use a smaller dataset than the rule asks for; the result says so."""
    steady: bool = False
    """Measure on until five rounds of the storage's rate agree, for ten minutes at most; the answer
    is that of the later rate."""
    targets: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Data folders to size, one after the other; empty: dataset.data_folder."""
    names: Annotated[tuple[FileName, ...], Field(strict=False)] = ()
    """Names of the targets in the table, and of their files."""
    drives: Annotated[tuple[Positive, ...], Field(strict=False)] = ()
    """Drive counts of the targets; empty: found from the device."""
    workloads: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Workloads of the table; empty: the one chosen."""


class PredictSection(Section):
    """The prediction (`dlemu predict`)."""

    accelerators: Positive | None = None
    """Predict AU and rate at this number, and what so many need of a storage, also without a
    drive; None: the largest number that passes, or, with predict.minutes, 8."""
    minutes: bool = False
    """Predict the minutes that one pass over the dataset takes as well: time to train."""
    calibration: Annotated[str | None, Use(by="predict size calibrate")] = None
    """File that `dlemu calibrate` wrote; None: predict from the datasheet alone."""
    host_cpus: Annotated[int, Field(ge=1, le=4096)] | None = None
    """CPU cores of a host: predict what a published DLIO run on it would show as well; None: by
    the calibration."""


class ClientSection(Section):
    """The hosts that train, as the storage sees them."""

    nic_gbps: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Gb/s that a host's network carries in each direction, all its links together; null: by the
    kernel, which does not know it in most virtual machines and containers."""


class ServerSection(Section):
    """The storage's servers, for a prediction."""

    read_bandwidth: Bandwidth | None = None
    """Bytes per second that all of them give together; null: no limit but the drives."""
    write_bandwidth: Annotated[Bandwidth | None, Use(by="predict")] = None
    """Bytes per second that all of them take together, of checkpoints; null: as above."""


class DaliSection(Section):
    """NVIDIA DALI's settings (`reader.data_loader=dali`)."""

    device: Literal["cpu", "gpu"] = "cpu"
    """Where DALI's pipeline ends: in the host's memory or in the GPU's."""
    gpus_per_host: Annotated[
        AtOnce | None, Use(when=lambda job: job.on_gpu or job.computes_on_gpu)
    ] = None
    """GPUs that the accelerators are dealt to in turn; None: all of the host."""


def _user_batches(value: object) -> object:
    return value if value == "auto" else tuple(value) if isinstance(value, list) else value


class SteptimeSection(Section):
    """The measurement of real training steps (`dlemu steptime`)."""

    model: str | None = None
    """`unet3d`, `resnet50`, `cosmoflow`, or PACKAGE.MODULE:FUNCTION of your own, which is called
    with the batch size and the device and returns a function that does one step. None: the network
    that the workload's name begins with."""
    preprocess: str | None = None
    """PACKAGE.MODULE:FUNCTION of your own, which returns a function that prepares one sample, given
    its number, as a worker does it. It is timed in one process, then in as many at once as the job
    has workers, and becomes reader.preprocess_time. None: it is not timed."""
    batches: Annotated[
        Literal["auto"]
        | Annotated[tuple[Positive, ...], Field(strict=False, min_length=1, max_length=100)],
        BeforeValidator(_user_batches),
    ] = "auto"
    """Batch sizes. `auto`: a quarter, half, one and two times reader.batch_size."""
    compile: bool = False
    """Compile the network with torch.compile."""
    precision: Literal["bf16", "fp16", "tf32", "fp32"] = "bf16"
    """Of dlemu's networks on a GPU. `bf16`, `fp16`: by autocast, over float32 weights. `tf32`:
    float32, whose products the tensor cores round. `fp32`: float32 throughout."""
    graph: bool = False
    """Replay the step of a dlemu network as one CUDA graph, which takes a single launch."""
    device: Literal["cuda", "cpu"] = "cuda"
    """`cpu` tries the command on a host without a GPU."""
    layout: Literal["auto", "channels_last", "contiguous"] = "auto"
    """Order of a tensor's axes in memory. `auto`: the faster one."""
    steps: Annotated[int, Field(ge=2, le=1_000_000)] = 100
    """Least steps of each batch size; a fifth more come before, to warm up."""
    seconds: Annotated[float, DURATION, Field(ge=0, le=86_400)] = 20.0
    """Least seconds of each batch size; a quarter more come before, to warm up."""
    side: Annotated[int, Field(ge=32, le=1024, multiple_of=32)] | None = None
    """Voxels or pixels along each axis of the input. None: the benchmark's, 128 or 224."""


POLICIES: Registry[type] = Registry(
    "dlemu.cache_policies",
    type,
    "POLICY",
    "it must be a class as Lru of dlemu.loaders.cache.hits",
    none="dlemu.loaders.cache.hits:Nothing",
    lru="dlemu.loaders.cache.hits:Lru",
    keep="dlemu.loaders.cache.hits:Keep",
)
"""What a cache gives up, by `cache.policy`: imported where a cache is planned."""

CachePolicy = Annotated[str, known_by(POLICIES.place), Names(lambda: POLICIES)]
_CACHED = Use(by="run size predict", when=lambda job: job.caches)


def _capacity(value: object) -> object:
    """Take "500GiB" as bytes; a number up to 1 is a share of the dataset."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return float(parse_bytes(value))
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 1 < value < 2**20:
        raise ValueError(
            "must be a share of the dataset up to 1, or bytes with a unit such as 500GiB, "
            f"got {value}"
        )
    return value


class CacheSection(Section):
    """A cache between the data folder, its origin, and training."""

    folder: str | None = None
    """Folder of a read-through cache of dlemu's own, on the cache's drive; null: no such cache.
    Each host has its own, which all its ranks share."""
    capacity: Annotated[
        float,
        BeforeValidator(_capacity),
        Field(gt=0, le=2**60),
        _CACHED,
    ] = 1.0
    """Bytes with a unit such as 500GiB, or a share of the dataset up to 1. It is never exceeded."""
    policy: Annotated[CachePolicy, _CACHED] = "lru"
    """What is given up for a new file: the least recently read one (`lru`), or nothing (`keep`:
    what came first stays). `none`: nothing is cached."""
    fill: Annotated[
        Literal["sync", "async", "off"],
        BeforeValidator(off_for_false),
        _CACHED,
    ] = "async"
    """When a missed file is written to the cache. `sync`: before training gets it. `async`: by a
    thread of the reader, meanwhile. `off`: never."""
    warm: Annotated[bool | Literal["found"], Use(when=_CACHED.when)] = False
    """What the cache holds when the epochs begin. `false`: nothing. `true`: as many files as it can
    hold, which are copied and timed before. `found`: what an earlier run has left."""
    origin: Annotated[str | None, Use(by="run")] = None
    """Folder whose drive or mount is watched as the origin of a cache that is mounted already."""
    devices: Annotated[tuple[str, ...], Field(strict=False), Use(by="run")] = ()
    """Folders whose drives are watched as the cache of what is mounted."""


class OriginSection(Section):
    """An emulated slow origin: a what-if, labelled so wherever its figures are shown."""

    read_bandwidth: Annotated[Bandwidth | None, Use(by="run size predict")] = None
    """Most bytes per second that each host reads from the data folder; null: as it gives. For
    `dlemu predict` it is the rate of the origin."""
    latency: Annotated[float, DURATION, Field(ge=0, le=3600)] = 0.0
    """Seconds that are added to each file that is read from the data folder."""
