"""Types of keys, each with its units and bounds, and what a key is used for."""

import math
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    field_validator,
    model_validator,
)

from dlemu.config.refusal import Names as Names
from dlemu.config.refusal import ParsedText, describe, known_keys, unknown_key
from dlemu.errors import WorkloadError
from dlemu.formats import FORMATS
from dlemu.plugins import Registry, is_url
from dlemu.units import parse_bytes, parse_seconds, unmistakable, with_unit

T = TypeVar("T")
RUNS = "run size calibrate"
WRITES = f"datagen {RUNS}"
PLANS = f"datasize {WRITES} predict"


@dataclass(frozen=True, kw_only=True)
class KeyContext:
    """What decides whether a key has an effect on a job; `keys.context_of` has each condition."""

    counts_memory: bool
    """The hosts' memory decides how many files are needed."""
    counts_hosts: bool
    """num_hosts does: it is counted where there are several."""
    any_number: bool
    """The number of accelerators is left to the ranks."""
    saves: bool
    """Checkpoints are written during the run."""
    saves_to_servers: bool
    """They are no files of a folder."""
    saves_by_epochs: bool
    """They are due after epochs, not after a number of steps."""
    saves_asynchronously: bool
    """Training goes on while they are written."""
    has_many: bool
    """Files hold several samples."""
    has_dims: bool
    """Samples have a shape."""
    has_own_sizes: bool
    """Samples have a shape, or a file lists their sizes."""
    has_rows: bool
    """Files hold rows of columns."""
    has_columns: bool
    """The columns are named."""
    is_hdf5: bool
    """Files are HDF5."""
    has_paths: bool
    """The dataset lies in a folder, whose files the kernel opens."""
    has_page_cache: bool
    """The host's page cache may hold the dataset."""
    below_root: bool
    """The data folder is relative to storage.storage_root."""
    parses: bool
    """dlemu reads the bytes of a sample, not a library."""
    streamed: bool
    """Files are read from end to end."""
    by_tf_data: bool
    """Files are read in tf.data's order."""
    by_pytorch: bool
    """PyTorch's DataLoader reads."""
    by_dali: bool
    """DALI reads."""
    on_gpu: bool
    """DALI reads into a GPU."""
    has_workers: bool
    """Workers read, not the rank itself."""
    plain_workers: bool
    """Workers do what those of a plain DataLoader do."""
    starts_workers: bool
    """A run takes as long to start them as a job."""
    hands_over: bool
    """Training gets the batches."""
    prepares: bool
    """Workers spend time on each sample."""
    computes_on_gpu: bool
    """Real GPUs compute."""
    trains: bool
    """They compute the steps of a network."""
    shuffles_samples: bool
    """Samples are read in a random order."""
    is_shuffled: bool
    """Files or samples are."""
    is_drawn: bool
    """An order or a time is drawn at random."""
    step_varies: bool
    """The time of a step is."""
    has_epochs: bool
    """There are several epochs."""
    leaves_out_steps: bool
    """The edition counts without the steps that keys of `metric` name."""
    drops_caches: bool
    """A run begins without its dataset in the page cache."""
    drops_all_caches: bool
    """It begins without anything in the page cache."""
    caches: bool
    """There is a cache of dlemu's own."""


@dataclass(frozen=True)
class Use:
    """What a key is used for; written at its field, or at that of its group for all keys of it."""

    by: str | None = None
    """Commands that read it, with blanks between them; None: those of the group."""
    when: Callable[["KeyContext"], bool] | None = None
    """Whether it has an effect on a job; None: as the group, always without one."""
    closed: bool | None = None
    """Whether a submission to the closed division may change it (rule 3.6.2), or it changes no
    run; None: as the group, else no."""


def off_for_false(value: object) -> object:
    """Take false as "off": YAML 1.1 reads `off` as false."""
    return "off" if value is False else value


def _size(value: object) -> object:
    """Accept "14.5GB"."""
    return parse_bytes(value) if isinstance(value, str) else value


def _sample_size(value: object) -> object:
    """Accept "1MB" for a mean size, which may be a fraction of a byte."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return float(parse_bytes(value))


_BYTES = "bytes (as 4096, 64KiB, 1MB)"
_SIZE, SAMPLE_SIZE = ParsedText(_size, words=_BYTES), ParsedText(_sample_size, words=_BYTES)


_MOST_NAME_BYTES = 200
"""File systems allow 255; a number, a date or a format is appended to such a name."""


def _file_name(value: str) -> str:
    """Refuse a name that would lead out of its folder, or that a file system refuses."""
    if (
        value.startswith(".")
        or "/" in value
        or not value.isprintable()
        or len(value.encode()) > _MOST_NAME_BYTES
    ):
        raise ValueError(
            "must be part of a file name: no path, no leading dot, no control characters, at most "
            f"{_MOST_NAME_BYTES} bytes; got {value[:80]!a}"
        )
    return value


def _switch(value: object) -> object:
    """Accept booleans: YAML 1.1 reads on and off as true and false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


Switch = Annotated[Literal["on", "off"], BeforeValidator(_switch)]
FileName = Annotated[str, AfterValidator(_file_name)]
"""Part of a file's or folder's name."""
FullName = Annotated[str, Field(min_length=1), AfterValidator(_file_name)]
Shuffle = Annotated[Literal["off", "seed", "random"], BeforeValidator(off_for_false)]

MOST_FILES = 10**8
MOST_AXES = 30
"""Of a sample. HDF5 allows 32, of which dlemu takes two: the samples, and a column."""
LARGEST_SAMPLE = 10**11
# Each number has an upper bound, larger than in any real job: a typing error is refused before it
# costs memory or time.
Positive = Annotated[int, Field(ge=1, le=1_000_000)]
"""A number of things: accelerators, steps, samples of a batch."""
Natural = Annotated[int, Field(ge=0, le=1_000_000)]
"""A number of things that may be none."""


def _duration(value: object) -> object:
    """Accept "3h", "30min" and "50ms"."""
    return parse_seconds(value) if isinstance(value, str) else value


DURATION = ParsedText(_duration, words="seconds (as 90, 50ms, 3min)")
Seconds = Annotated[float, DURATION, Field(ge=0, le=1_000_000)]
SampleBytes = Annotated[float, SAMPLE_SIZE, Field(ge=1, le=LARGEST_SAMPLE)]
Seed = Annotated[int, Field(ge=0, le=2**64 - 1)]
Size = Annotated[int, _SIZE]
ReadBytes = Annotated[Size, Field(ge=4096, le=2**30)]
"""Bytes of one read; a worker has io_depth buffers of this size."""


MostBytes = Annotated[
    Size, BeforeValidator(lambda value: with_unit(value, least=4096, units=("KiB", "GiB")))
]
"""A size that needs a unit: a small bare number is refused."""


def _bandwidth(value: object) -> object:
    value = value.removesuffix("/s") if isinstance(value, str) else value
    return with_unit(value, least=10**6, units=("MB", "GB"), per=" a second")


_bandwidth_again = PlainSerializer(lambda value: unmistakable(value, 10**6))
_BANDWIDTH = ParsedText(_bandwidth, words="bytes per second (as 4096, 64KiB, 1MB)")
Bandwidth = Annotated[Size, _BANDWIDTH, _bandwidth_again, Field(gt=0, le=10**15)]
"""Bytes per second."""


class Strict(BaseModel):
    """A frozen group of fields with strict types: 8 is not taken as text, nor true as a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Section(Strict):
    """A group of keys."""

    @field_validator("*", mode="before")
    @classmethod
    def _whole(cls, value: object) -> object:
        """Take 1e6, alone or in a list, as the whole number that it is."""
        if isinstance(value, list):
            return [*map(cls._whole, value)]
        return int(value) if isinstance(value, float) and value.is_integer() else value


class Arguments(Section):
    """What a command without a workload is asked for; values may be texts of the command line.

    Raises:
        WorkloadError: a key is unknown, or a value is refused.
    """

    model_config = ConfigDict(strict=False)

    def __init__(self, **values: Any) -> None:
        """Check the values of all keys."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            # A text of the command line is shown as it was typed.
            line = re.sub(r"got '(.+)'$", r"got \1", describe(error, type(self), ()))
            raise WorkloadError(line) from None

    @classmethod
    def refuse_unknown(cls, keys: Iterable[str]) -> None:
        """Name the first key that there is not: one that is missing may be written there.

        Raises:
            WorkloadError: the line has the nearest key.
        """
        known = {*known_keys(cls)}
        for key in keys:
            if key not in known:
                raise WorkloadError(unknown_key(key, cls, ()))


def _listed(value: object) -> object:
    """Take "A,B" and "[A,B]" as a list."""
    if not isinstance(value, str):
        return value
    return tuple(filter(None, (item.strip() for item in value.strip("[]").split(","))))


def _results(value: object) -> object:
    """Take output.folder=PLACE, as other commands have it, for output=PLACE."""
    if isinstance(value, dict) and value.keys() == {"folder"}:
        return value["folder"]
    return value


def _local(value: object) -> object:
    """Refuse URLs, of which a Path would make names of files."""
    if isinstance(value, str) and is_url(value):
        raise ValueError(f"{value} is no folder of this host; name one, or a mount of it")
    return value


LocalPath = Annotated[Path, BeforeValidator(_local)]
ResultsFolder = Annotated[Path, BeforeValidator(_results)]
"""Where a command without a workload keeps its results: output=PLACE, or output.folder=PLACE."""
Listed = Annotated[tuple[T, ...], BeforeValidator(_listed), Field(min_length=1)]
"""One thing or several, on the command line with commas between them."""


def known_by(check: Callable[[str], object]) -> AfterValidator:
    """Return the validator of a name: `check` raises where nobody knows it."""
    return AfterValidator(lambda name: (check(name), name)[1])


FormatName = Annotated[str, known_by(FORMATS.__getitem__), Names(lambda: FORMATS)]

LOADERS: Registry[type] = Registry(
    "dlemu.loaders",
    type,
    "LOADER",
    "it must be a class as ThreadsLoader of dlemu.loaders.threads",
    pytorch="dlemu.loaders.pytorch:PyTorchLoader",
    threads="dlemu.loaders.threads:ThreadsLoader",
    dali="dlemu.loaders.dali.loader:DaliLoader",
    tensorflow="dlemu.loaders.threads:ThreadsLoader",
    native_dali="dlemu.loaders.dali.loader:DaliLoader",
)
"""Loaders by `reader.data_loader`: imported where they read, not where a key is checked."""

LoaderName = Annotated[str, known_by(LOADERS.place), Names(lambda: LOADERS)]


@dataclass(frozen=True)
class LoaderFacts:
    """What keys and verdicts must know of a loader while it is not imported.

    What can be asked of the class stands there: `check`, `reads`, `descriptors` of `Loader`.
    """

    is_dataloader: bool = False
    """PyTorch's DataLoader: it hands batches over; its workers may cost what a plain one's do."""
    by_tf_data: bool = False
    """Files are read in tf.data's order, and as far ahead."""
    by_dali: bool = False
    """NVIDIA DALI reads; `dali.*` and reader.gds are its keys."""
    package: str = ""
    """What it needs, by the name that `dlemu doctor` gives it."""
    installed_by: str = ""
    """What pip installs for it."""


_DALI = LoaderFacts(by_dali=True, package="DALI", installed_by="dlemu[dali-cuda13]")
LOADER_FACTS = {
    "pytorch": LoaderFacts(is_dataloader=True, package="PyTorch", installed_by="dlemu[torch]"),
    "tensorflow": LoaderFacts(by_tf_data=True),
    "dali": _DALI,
    "native_dali": _DALI,
}
"""Of loaders of the house; others have those of threads."""


def facts_of_loader(name: str) -> LoaderFacts:
    """Return the facts of a loader."""
    return LOADER_FACTS.get(name, LoaderFacts())


def _seconds(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"must be a number of seconds, got {value}") from None


class Distribution(Section):
    """Seconds, drawn for every step and accelerator; a draw below zero counts as zero.

    Given by mean and stdev, or by DLIO's keys: `min` and `max` (uniform), `shape` and `scale`
    (gamma), `scale` (exponential), `lam` (poisson: whole seconds). Or by `quantiles`, equally
    likely times: a draw is one of them.
    """

    type: Literal["normal", "uniform", "gamma", "exponential", "poisson", "quantiles"] = "normal"
    mean: Seconds
    stdev: Seconds = 0.0
    quantiles: Annotated[tuple[Seconds, ...], Field(strict=False, max_length=1000)] = ()

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
            case {"type": "poisson", "lam": float() | int()}:
                value["mean"] = _seconds(value.pop("lam"))
                value["stdev"] = math.sqrt(abs(value["mean"]))
            case {"type": "quantiles", "quantiles": [*times]} if times:
                times = [_seconds(time) for time in times]
                value = {"mean": float(np.mean(times)), "stdev": float(np.std(times))} | value
        if value.get("type") != "quantiles":
            value.pop("quantiles", None)  # of the distribution that another type has replaced
        return value

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        if self.type == "gamma" and self.mean == 0 and self.stdev > 0:
            raise ValueError("no gamma distribution has mean 0 and a stdev; set mean above 0")
        if self.type == "quantiles" and not self.quantiles:
            raise ValueError("type=quantiles needs quantiles, a list of seconds")
        if self.quantiles and not math.isclose(
            self.mean, float(np.mean(self.quantiles)), rel_tol=1e-3
        ):
            raise ValueError(
                f"mean {self.mean:g} is not that of quantiles; for another mean set type=normal too"
            )
        return self

    @property
    def longest(self) -> float:
        """Seconds that at most one draw in 10^15 exceeds."""
        if self.quantiles:
            return max(self.quantiles)
        scale = {"exponential": self.mean, "poisson": 1.0}.get(self.type, 0.0)
        if self.type == "gamma" and self.stdev:
            scale = self.stdev**2 / self.mean
        return self.mean + 10 * self.stdev + 40 * scale

    def draw(self, generator: "np.random.Generator") -> float:
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
            case "poisson":
                drawn = generator.poisson(self.mean)
            case "quantiles":
                drawn = self.quantiles[generator.integers(len(self.quantiles))]
        return max(0.0, float(drawn))


def _distribution(value: object) -> object:
    """Take a plain number of seconds, or "50ms", as a distribution without spread."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = parse_seconds(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {"mean": _seconds(value)}
    if not isinstance(value, (dict, Distribution)):
        raise ValueError(f"must be seconds or a distribution's keys, got {value!r}")
    return value


_SECONDS = "seconds, or the keys mean, stdev and type below it"
Duration = Annotated[Distribution, ParsedText(_distribution, words=_SECONDS)]
