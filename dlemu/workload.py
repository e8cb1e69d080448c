"""What a job asks for: frozen models with DLIO's key names; unknown keys are refused.

They hold what the user wrote. What follows from it is a property here or a function of `files`.
Keys that DLIO knows and that change nothing here are set aside by name (`Workload.ignored`).
"""

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from dlemu.errors import WorkloadError
from dlemu.units import parse_bytes

FormatName = Literal["npz", "npy", "hdf5", "tfrecord"]
ShuffleName = Literal["off", "seed", "random"]

_CONFIGS = Path(__file__).parent / "workloads"

# DLIO's keys that have no effect here (documents: DLIO "config" page, MLPerf Storage v1.0 and v2.0
# workload files). A key that could change what is read is never in this list.
_IGNORED = {
    "checkpoint",
    "evaluation",
    "profiling",
    "dataset.num_files_eval",
    "dataset.num_subfolders_eval",
    "dataset.keep_files",
    "dataset.compression_level",
    "dataset.generation_buffer_size",
    "dataset.num_files_test",
    "reader.batch_size_eval",
    "reader.computation_threads",
    "reader.pin_memory",
    "reader.read_type",
    "reader.file_access",
    "reader.dont_use_mmap",
    "reader.data_loader_classname",
    "reader.data_loader_sampler",
    "reader.reader_classname",
    "train.seed_change_epoch",
    "workflow.checkpoint",
    "workflow.debug",
    "workflow.evaluation",
    "workflow.profiling",
    "output.log_file",
    "output.log_level",
    "storage.storage_library",
    "storage.storage_options",
    "metric.exclude_end_epochs",
}


def _shuffle(value: object) -> object:
    """YAML 1.1 reads `off` as false."""
    return "off" if value is False else value


def _size(value: object) -> object:
    """Accept "14.5GB", and 14.5e9, which YAML reads as a number with a point."""
    if isinstance(value, str):
        return parse_bytes(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


Shuffle = Annotated[ShuffleName, BeforeValidator(_shuffle)]
Positive = Annotated[int, Field(ge=1)]
Size = Annotated[int, BeforeValidator(_size)]


class Section(BaseModel):
    """A frozen group of keys, strict about types: 8 is no text, and true no number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _seconds(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"must be a number of seconds, got {value}") from None


class Distribution(Section):
    """Seconds drawn anew for every step and accelerator; a draw below zero counts as zero.

    Named by mean and stdev, or as DLIO does by `min` and `max` (uniform), `shape` and `scale`
    (gamma), `scale` (exponential).
    """

    type: Literal["normal", "uniform", "gamma", "exponential"] = "normal"
    mean: Annotated[float, Field(ge=0)]
    stdev: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="before")
    @classmethod
    def _dlio_names(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        value = dict(value)
        match value:
            case {"type": "uniform", "min": float() | int(), "max": float() | int()}:
                low, high = _seconds(value.pop("min")), _seconds(value.pop("max"))
                value |= {"mean": (low + high) / 2, "stdev": (high - low) / math.sqrt(12)}
            case {"type": "gamma", "shape": float() | int(), "scale": float() | int()}:
                shape, scale = _seconds(value.pop("shape")), _seconds(value.pop("scale"))
                value |= {"mean": shape * scale, "stdev": math.sqrt(abs(shape)) * scale}
            case {"type": "exponential", "scale": float() | int()}:
                value["mean"] = _seconds(value.pop("scale"))
        return value

    @model_validator(mode="after")
    def _gamma(self) -> Self:
        if self.type == "gamma" and self.mean == 0 and self.stdev > 0:
            raise ValueError("no gamma distribution has mean 0 and a stdev; set mean above 0")
        return self

    def draw(self, generator: np.random.Generator) -> float:
        """Return one draw in seconds."""
        if self.stdev == 0 and self.type != "exponential":
            return self.mean
        match self.type:
            case "normal":
                drawn = generator.normal(self.mean, self.stdev)
            case "uniform":
                half = self.stdev * math.sqrt(3)
                drawn = generator.uniform(self.mean - half, self.mean + half)
            case "gamma":
                shape = (self.mean / self.stdev) ** 2
                drawn = generator.gamma(shape, self.mean / shape)
            case "exponential":
                drawn = generator.exponential(self.mean)
        return max(0.0, float(drawn))


def _distribution(value: object) -> object:
    """A plain number of seconds is a distribution without spread."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {"mean": _seconds(value)}
    if not isinstance(value, (dict, Distribution)):
        raise ValueError(f"must be seconds or a distribution's keys, got {value!r}")
    return value


Duration = Annotated[Distribution, BeforeValidator(_distribution)]


def _with_stdev(section: Any, key: str) -> Any:
    """Return a section in which DLIO's separate `<key>_stdev` has joined its distribution."""
    if not isinstance(section, dict) or f"{key}_stdev" not in section:
        return section
    section = dict(section)
    stdev, mean = section.pop(f"{key}_stdev"), section.get(key, 0.0)
    section[key] = {"mean": mean} if not isinstance(mean, dict) else dict(mean)
    section[key].setdefault("stdev", stdev)
    return section


class Workflow(Section):
    """Which parts of the job `dlemu run` does."""

    generate_data: bool = False
    """Generate the dataset first, unless it is complete already."""
    train: bool = True
    """Replay the reading."""


class Dataset(Section):
    """The files of the training set."""

    data_folder: str | None = None
    """Where the files lie; files are at `train/` below it."""
    format: FormatName
    num_files_train: Positive | Literal["auto"]
    """Number of files, or "auto": the benchmark's rule for this job (`dlemu datasize`)."""
    num_samples_per_file: Positive = 1
    record_length_bytes: Annotated[float, Field(ge=1)] = 65536.0
    """Mean size of a sample, before compression (DLIO: 65536)."""
    record_length_bytes_stdev: Annotated[float, Field(ge=0)] = 0.0
    """Standard deviation of that size over the samples."""
    record_length_bytes_resize: Annotated[int, Field(ge=1)] | None = None
    """What training gets of each sample: cut, or padded with zeros. None hands over all of it."""
    record_dims: Annotated[tuple[Positive, ...], Field(strict=False)] = ()
    """Shape of a sample, in elements; where it is set it decides the size."""
    record_element_type: str = "uint8"
    """NumPy name of a sample's element type."""
    num_subfolders_train: Annotated[int, Field(ge=0)] = 0
    file_prefix: str = "img"
    num_dset_per_record: Annotated[int, Field(ge=1, le=1)] = 1
    """HDF5 datasets that a sample is cut into; only 1 is supported."""
    compression: Literal["none"] = "none"
    """Compressed files cannot be read in place, and no MLPerf workload compresses."""
    enable_chunking: Literal[False] = False
    chunk_size: int = 0
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the files' sizes and content (train.seed orders the reading)."""

    @model_validator(mode="before")
    @classmethod
    def _older_names(cls, value: Any) -> Any:
        """DLIO's own older names, and numbers that YAML writes without a point."""
        if isinstance(value, dict):
            value = dict(value)
            for old in ("record_length", "record_length_stdev", "record_length_resize"):
                if old in value:
                    value.setdefault(old.replace("length", "length_bytes"), value.pop(old))
            resize = value.get("record_length_bytes_resize")
            if isinstance(resize, float) and resize.is_integer():
                value["record_length_bytes_resize"] = int(resize)
            if value.get("record_length_bytes_resize") == 0:
                value["record_length_bytes_resize"] = None
        return value

    @model_validator(mode="after")
    def _element_type(self) -> Self:
        try:
            kind: str = np.dtype(self.record_element_type).kind
        except (TypeError, ValueError, SyntaxError):
            kind = ""
        if kind not in tuple("biufc"):  # bool, integers, floats, complex
            raise ValueError(
                f"dataset.record_element_type must be a NumPy type such as uint8 or float32, "
                f"got {self.record_element_type!r}"
            )
        return self

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return np.dtype(self.record_element_type).itemsize

    @property
    def mean_bytes(self) -> float:
        """Mean size of a sample in bytes: of record_dims where set, else record_length_bytes."""
        if self.record_dims:
            return float(math.prod(self.record_dims) * self.element_bytes)
        return self.record_length_bytes


class Reader(Section):
    """How the samples are read."""

    data_loader: Literal["pytorch", "threads", "dali", "tensorflow", "native_dali"] = "pytorch"
    """`tensorflow` is read through pytorch's DataLoader in the order that tf.data keeps."""
    batch_size: Positive = 1
    """Samples of one accelerator and step (DLIO: 1)."""
    read_threads: Annotated[int, Field(ge=0)] = 1
    """Workers of each accelerator; 0 reads in the rank itself."""
    prefetch_size: Annotated[int, Field(ge=0)] = 2
    """Batches read ahead by each accelerator (MLPerf Storage: 2)."""
    file_shuffle: Shuffle = "off"
    sample_shuffle: Shuffle = "off"
    shuffle_size: Positive = 2
    """Samples in the shuffle buffer of a stream, where files hold many (MLPerf's CosmoFlow: 2)."""
    transfer_size: Annotated[Size, Field(ge=4096)] = 262_144
    """Bytes of one read of a multi-sample file (DLIO: 262144)."""
    piece_bytes: Annotated[Size, Field(ge=4096)] = 1_048_576
    """Bytes of one read of a single-sample file."""
    io_depth: Positive = 1
    """Reads that a worker keeps outstanding."""
    odirect: bool | Literal["auto"] = False
    """Bypass the page cache; `auto` falls back to buffered reads and says so."""
    preprocess_time: Duration = Distribution(mean=0.0)
    """Seconds that a worker sleeps for each sample."""
    decode: Literal["raw", "library"] = "raw"
    """`library` parses through np.load, h5py and TFRecord with CRC, as frameworks do."""
    check_crc: bool = False
    """Check the files' own checksums in `raw` too."""
    multiprocessing_context: Literal["fork", "forkserver", "spawn"] = "fork"
    gds: Annotated[Literal["require", "prefer", "off"], BeforeValidator(_shuffle)] = "off"
    """Whether cuFile must, may or must not bypass the host's memory."""

    @model_validator(mode="before")
    @classmethod
    def _older_names(cls, value: Any) -> Any:
        return _with_stdev(value, "preprocess_time")


class Train(Section):
    """The emulated training."""

    epochs: Positive = 1
    computation_time: Duration = Distribution(mean=0.0)
    """Seconds that an accelerator computes on a batch."""
    total_training_steps: int = -1
    """At most this many steps per epoch; -1: as many as the dataset gives."""
    seed: Annotated[int, Field(ge=0)] = 123
    """Order of reading and draws of time (DLIO: 123)."""
    compute: Literal["sleep", "gpu"] = "sleep"
    """`gpu` keeps a real GPU busy instead, so that copies contend as they would."""

    @model_validator(mode="before")
    @classmethod
    def _older_names(cls, value: Any) -> Any:
        return _with_stdev(value, "computation_time")

    @model_validator(mode="after")
    def _steps(self) -> Self:
        if self.total_training_steps != -1 and self.total_training_steps < 2:
            raise ValueError(
                "train.total_training_steps must be -1 (all) or at least 2, "
                f"got {self.total_training_steps}"
            )
        return self


class Metric(Section):
    """What is computed and demanded of a run."""

    au: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Least accelerator utilisation that passes, 0 to 1."""
    edition: Literal["v1.0", "v2.0"] = "v1.0"
    """Whose formulas decide (docs/metrics.md)."""
    exclude_start_steps: Annotated[int, Field(ge=0)] = 1
    """Steps left out at an epoch's start (edition v2.0)."""
    exclude_end_steps: Annotated[int, Field(ge=0)] = 0
    """Steps left out at an epoch's end (edition v2.0)."""
    max_cached_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Largest share of bytes from the page cache; a run above it has failed. None: no bound."""


class Storage(Section):
    """DLIO's description of the storage; files are reached through the file system only."""

    storage_type: Literal["local_fs", "parallel_fs"] = "local_fs"
    storage_root: str = "./"
    """Folder that a relative data_folder starts from."""


class Output(Section):
    """Where results go."""

    folder: str | None = None
    """The run's folder; None: outputs/<workload>/<date>-<time>."""
    stall_seconds: Annotated[float, Field(gt=0)] = 300.0
    """A run in which no step finishes for so long is ended."""
    drop_caches: bool = True
    """Drop the dataset's pages from the page cache before a run."""
    drop_all_caches: bool = False
    """Drop the host's whole page cache instead (root only)."""


class Sizing(Section):
    """The search for the most accelerators (`dlemu size`)."""

    confirm: Annotated[int, Field(ge=0)] = 5
    """Consecutive passing runs that confirm the answer; 0 skips them."""
    start: Positive | None = None
    """Accelerators of the first run; None: 1."""
    max_accelerators: Positive = 512
    quick: bool = False
    """Use a dataset smaller than the rule asks for; the result is labelled so."""
    targets: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Data folders to size one after the other; empty: dataset.data_folder."""
    names: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Names of the targets in the table."""
    drives: Annotated[tuple[Positive, ...], Field(strict=False)] = ()
    """Drive counts of the targets; empty: found from the device."""
    workloads: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Workloads of the table; empty: the one chosen."""


class Drive(Section):
    """A drive's rates, bytes per second, by its datasheet or one's own measurement."""

    name: str = "drive"
    read_bandwidth: Annotated[Size, Field(gt=0)]
    write_bandwidth: Annotated[Size, Field(gt=0)] | None = None
    random_read_iops: Annotated[float, Field(gt=0)] | None = None
    random_write_iops: Annotated[float, Field(gt=0)] | None = None
    interface: str | None = None
    source: str | None = None


def _datasheet(value: object) -> object:
    """Return the rates of a drive that is named, or what was given."""
    if not isinstance(value, str):
        return value
    known = {path.stem: path for path in sorted((_CONFIGS / "drive").glob("*.yaml"))}
    if value not in known:
        raise ValueError(
            f"no datasheet of drive {value!r}; known: {', '.join(known)}; or give its rates"
        )
    return read_yaml(known[value])


class Predict(Section):
    """The prediction (`dlemu predict`)."""

    accelerators: Positive | None = None
    """Predict AU and rate at this number; None: the largest number that passes."""
    calibration: str | None = None
    """File that `dlemu calibrate` wrote; None: from the datasheet alone."""


class Dali(Section):
    """NVIDIA DALI's settings (`reader.data_loader=dali`)."""

    device: Literal["cpu", "gpu"] = "cpu"
    gpus_per_host: Positive | None = None
    """GPUs that the accelerators share in turn; None: all that are there."""


class Workload(Section):
    """One job: a dataset, how it is read, and the accelerators that read it."""

    name: str
    framework: Literal["pytorch", "tensorflow"] = "pytorch"
    """Named for DLIO's sake; `reader.data_loader` decides."""
    workflow: Workflow = Workflow()
    dataset: Dataset
    reader: Reader = Reader()
    train: Train = Train()
    metric: Metric = Metric()
    storage: Storage = Storage()
    output: Output = Output()
    dali: Dali = Dali()
    size: Sizing = Sizing()
    predict: Predict = Predict()
    drive: Annotated[Drive, BeforeValidator(_datasheet)] | None = None
    """A datasheet of workloads/drive/ by its name, or the rates themselves."""
    drives: Positive = 1
    """Number of such drives (`dlemu predict`)."""
    accelerators_per_rank: Positive = 1
    num_accelerators: Positive | None = None
    """Emulated accelerators over all ranks, spread evenly; None: accelerators_per_rank of each."""
    num_hosts: Positive = 1
    """Hosts, where no ranks say so (datasize, datagen, predict)."""
    host_memory: Annotated[int, BeforeValidator(_size), Field(gt=0)] | None = None
    """Memory of each host in bytes; None: what the host has."""
    division: Literal["open", "closed"] = "open"
    """`closed` holds the run to the rules of MLPerf Storage's closed division."""
    runs: Positive = 1
    warmup: Annotated[int, Field(ge=0)] = 0
    """Runs before those that count."""
    ignored: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Keys that were given and have no effect here."""
    given: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Keys that the user overrode, for the closed division's check."""

    @property
    def data_folder(self) -> Path:
        """Where the dataset lies.

        Raises:
            WorkloadError: dataset.data_folder is not set.
        """
        if self.dataset.data_folder is None:
            raise WorkloadError(
                "dataset.data_folder is not set; add dataset.data_folder=/path/on/the/storage"
            )
        return Path(self.storage.storage_root, self.dataset.data_folder)

    @property
    def num_files(self) -> int:
        """Number of files, once "auto" has been settled (`job.settle`)."""
        assert self.dataset.num_files_train != "auto", "settled before anything reads it"
        return self.dataset.num_files_train

    @property
    def demand(self) -> float:
        """Bytes per second that one accelerator takes at full utilisation."""
        seconds = self.train.computation_time.mean
        return math.inf if seconds == 0 else self.bytes_per_step / seconds

    @property
    def bytes_per_step(self) -> float:
        """Mean bytes of one accelerator's batch."""
        return self.reader.batch_size * self.dataset.mean_bytes

    def with_keys(self, keys: Mapping[str, object]) -> "Workload":
        """Return a copy in which the dotted keys have these values, checked like any other.

        Raises:
            WorkloadError: a key is unknown or a value out of bounds.
        """
        tree = self.model_dump(exclude={"ignored"})
        for key, value in keys.items():
            _set(tree, key, value)
        return check_workload(tree).model_copy(update={"ignored": self.ignored})


def check_workload(tree: Mapping[str, Any]) -> Workload:
    """Return the workload that a tree of plain values describes (a composed config, a DLIO file).

    Raises:
        WorkloadError: the first key that is unknown, missing, of a wrong type or out of bounds.
    """
    raw = _plain(tree)
    if "ignored" in raw:
        raise WorkloadError(_unknown("ignored"))
    _rename(raw)
    ignored = list(_leaves({"model": raw.pop("model", {})}))
    for key in sorted(_IGNORED):
        section, _, leaf = key.partition(".")
        if not leaf and section in raw:
            value = raw.pop(section)
            ignored += list(_leaves({section: value})) or [section]
        elif isinstance(raw.get(section), dict) and leaf in raw[section]:
            del raw[section][leaf]
            ignored.append(key)
    raw["ignored"] = tuple(dict.fromkeys(ignored))
    raw.setdefault("name", "workload")
    try:
        return Workload.model_validate(raw)
    except ValidationError as error:
        raise WorkloadError(_line(error)) from None


def load_workload(name: str | Path, overrides: Mapping[str, object] | None = None) -> Workload:
    """Return a workload by its name ("unet3d_h100") or the path of a YAML file, DLIO's included.

    `overrides` are dotted keys: {"reader.read_threads": 8}.

    Raises:
        WorkloadError: no such workload, or a key or value that cannot be.
    """
    known = {path.stem: path for path in sorted((_CONFIGS / "workload").glob("*.yaml"))}
    path = Path(name) if Path(name).suffix in (".yaml", ".yml") else known.get(str(name))
    if path is None or not path.is_file():
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise WorkloadError(f"no workload {name}{hint} (known: {', '.join(known)}, or a file.yaml)")
    tree = read_yaml(path)
    tree.setdefault("name", path.stem)
    for key, value in (overrides or {}).items():
        _set(tree, key, value)
    tree["given"] = tuple(overrides or ())
    return check_workload(tree)


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1e6 as text; a number is meant."""


_Loader.yaml_implicit_resolvers = dict(yaml.SafeLoader.yaml_implicit_resolvers)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return a YAML file's mapping.

    Raises:
        WorkloadError: it is no YAML, or holds no mapping.
    """
    try:
        tree = yaml.load(path.read_text(), _Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise WorkloadError(f"{path} holds no keys; a workload has dataset, reader and train")
    return tree


def _rename(raw: dict[str, Any]) -> None:
    """Put what DLIO keeps in another place where it is looked for here."""
    model = raw.get("model")
    if isinstance(model, dict):
        model = model.pop("name", None)
    elif "model" in raw:
        del raw["model"]
    if model is not None:
        raw.setdefault("name", str(model))
    if "data_reader" in raw:
        raw.setdefault("reader", raw.pop("data_reader"))
    output = raw.get("output")
    if isinstance(output, dict) and isinstance(output.get("metric"), dict):
        metric = raw.setdefault("metric", {})
        if isinstance(metric, dict):
            raw["metric"] = output.pop("metric") | metric


def _set(tree: dict[str, Any], key: str, value: object) -> None:
    *sections, leaf = key.split(".")
    for section in sections:
        below = tree.setdefault(section, {})
        if not isinstance(below, dict):
            below = tree[section] = {}
        tree = below
    tree[leaf] = value


def _plain(value: Any) -> Any:
    return {str(k): _plain(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


def _known_keys(model: type[BaseModel], above: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        if name in ("ignored", "given"):
            continue
        inner = field.annotation
        yield f"{above}{name}"
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from _known_keys(inner, f"{above}{name}.")


def _unknown(key: str) -> str:
    """Return the line for an unknown key, with the nearest of its own section, or of any."""
    section, _, leaf = key.rpartition(".")
    known = sorted({*_known_keys(Workload), *_IGNORED, "model"})
    for names in ([name for name in known if name.rpartition(".")[0] == section], known):
        leaves = {name.rpartition(".")[2]: name for name in reversed(names)}
        near = difflib.get_close_matches(leaf, leaves, n=1, cutoff=0.7)
        if near:
            return f"unknown key {key}; did you mean {leaves[near[0]]}?"
    return f"unknown key {key}"


_BOUNDS = {
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "greater than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}",
    "literal_error": "{expected}",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "finite_number": "a finite number",
    "tuple_type": "a list",
    "model_type": "a group of keys",
}


def _line(error: ValidationError) -> str:
    """Return the first error in one line: the key, the bound, the value."""
    errors = error.errors(include_url=False)
    # Of a choice between types pydantic reports every branch: the keys are the same, join bounds.
    first = errors[0]
    key = _dotted(first["loc"])
    if first["type"] == "extra_forbidden":
        return _unknown(key)
    if first["type"] == "missing":
        return f"{key} is not set"
    if first["type"] == "value_error":
        text = str(first["ctx"]["error"])
        if text.startswith(key.split(".")[0]):
            return text
        return f"{key} {text}" if text.startswith("must ") else f"{key}: {text}"
    bounds = []
    for other in errors:
        if _dotted(other["loc"]) == key:
            bound = _BOUNDS.get(other["type"])
            bounds.append(bound.format(**other.get("ctx", {})) if bound else other["msg"])
    return f"{key} must be {' or '.join(dict.fromkeys(bounds))}, got {first['input']!r}"


def _dotted(location: tuple[int | str, ...]) -> str:
    """Return a key without the names that pydantic gives to the branches of a choice."""
    parts: list[str] = []
    model: type[BaseModel] | None = Workload
    for part in location:
        if model is None:
            if isinstance(part, int):
                parts[-1] += f"[{part}]"
            break
        parts.append(str(part))
        field = model.model_fields.get(str(part))
        inner = field.annotation if field is not None else None
        if isinstance(inner, type) and issubclass(inner, Section):
            model = inner
        else:
            model = Drive if part == "drive" else None
    return ".".join(part for part in parts if part not in ("Drive", "str"))
