"""What a job asks for: frozen models with DLIO's key names; unknown keys are refused.

They hold what the user wrote. What follows from it is a property here or a function of `files`.
Keys that DLIO knows and that change nothing here are set aside by name (`Workload.ignored`).
"""

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from dlemu.errors import WorkloadError
from dlemu.units import with_unit
from dlemu.workload.sections import (
    Dali,
    DatasetSection,
    FileName,
    Metric,
    Natural,
    Output,
    Positive,
    Predict,
    Reader,
    Section,
    Size,
    Sizing,
    Storage,
    Train,
    Workflow,
)
from dlemu.workload.sections import FormatName as FormatName

_CONFIGS = Path(__file__).parents[1] / "workloads"
_MOST_YAML_BYTES = 100_000
_MOST_VALUES = 10_000
_MOST_KEYS = 1_000
_MOST_LEVELS = 50
"""Workloads have some hundred values on four levels."""

PATH_KEYS = frozenset(
    {"dataset.data_folder", "storage.storage_root", "output.folder", "predict.calibration"}
)
"""Keys whose value is one path: on the command line it is taken as it stands."""

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


_memory = BeforeValidator(lambda value: with_unit(value, least=2**20, units=("MiB", "GiB")))
_rate = BeforeValidator(
    lambda value: with_unit(value, least=10**6, units=("MB", "GB"), per=" a second")
)


class Drive(Section):
    """A drive's rates, bytes per second, by its datasheet or one's own measurement."""

    name: str = "drive"
    read_bandwidth: Annotated[Size, _rate, Field(gt=0, le=10**15)]
    write_bandwidth: Annotated[Size, _rate, Field(gt=0, le=10**15)] | None = None
    random_read_iops: Annotated[float, Field(gt=0, le=10**12)] | None = None
    random_write_iops: Annotated[float, Field(gt=0, le=10**12)] | None = None
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


class Workload(Section):
    """One job: a dataset, how it is read, and the accelerators that read it."""

    name: Annotated[FileName, Field(min_length=1)]
    """Also of a folder below outputs/, where results go."""
    framework: Literal["pytorch", "tensorflow"] = "pytorch"
    """Named for DLIO's sake; `reader.data_loader` decides."""
    workflow: Workflow = Workflow()
    dataset: DatasetSection
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
    host_memory: Annotated[Size, _memory, Field(gt=0, le=2**50)] | None = None
    """Memory of each host in bytes; None: what the host has."""
    division: Literal["open", "closed"] = "open"
    """`closed` holds the run to the rules of MLPerf Storage's closed division."""
    runs: Positive = 1
    warmup: Natural = 0
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
        if not self.dataset.data_folder:
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

    @property
    def batches_in_flight(self) -> int:
        """Batches of an accelerator that exist at once: in use, taken early, or read ahead.

        A pipelined loop takes the next batch while it computes on this one.
        """
        taken_early = 1 if self.train.loop == "pipelined" else 0
        return 1 + taken_early + self.reader.batches_ahead

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
        workload = Workload.model_validate(raw)
    except ValidationError as error:
        raise WorkloadError(_line(error)) from None
    _check_dali(workload)
    return workload


def _check_dali(workload: Workload) -> None:
    """Refuse what only DALI does where another loader reads.

    Raises:
        WorkloadError: with the words that are missing.
    """
    gds, device = workload.reader.gds, workload.dali.device
    missing = []
    if workload.reader.data_loader not in ("dali", "native_dali"):
        missing.append("reader.data_loader=dali")
    if device == "cpu":
        missing.append("dali.device=gpu")
    if (gds == "require" and missing) or (gds == "prefer" and len(missing) == 2):
        raise WorkloadError(
            f"reader.gds={gds} has no effect without {' '.join(missing)}: cuFile reads for DALI, "
            f"into a GPU; add {'it' if len(missing) == 1 else 'them'}, or leave reader.gds out"
        )
    if device == "gpu" and "reader.data_loader=dali" in missing:
        raise WorkloadError(
            "dali.device=gpu has no effect without reader.data_loader=dali; add it, or leave "
            "dali.device out"
        )


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
    """YAML 1.1 reads 1e6 as text; a number is meant. Merged keys are bounded."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > _MOST_KEYS:
            raise ValueError(f"it has a group of more than {_MOST_KEYS:,} keys")


_Loader.yaml_implicit_resolvers = dict(yaml.SafeLoader.yaml_implicit_resolvers)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return a YAML file's mapping.

    Raises:
        WorkloadError: it is no YAML, holds no mapping, or is too large for a workload.
    """
    with path.open("rb") as file:
        text = file.read(_MOST_YAML_BYTES + 1)
    if len(text) > _MOST_YAML_BYTES:
        raise WorkloadError(f"{path} has more than {_MOST_YAML_BYTES:,} bytes; is it a workload?")
    try:
        tree = yaml.load(text, _Loader)  # from bytes: UTF-8, whatever the locale
        _check_extent(tree)
    except yaml.YAMLError as error:
        raise WorkloadError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise WorkloadError(f"{path} is nested too deeply for a workload") from None
    # What the library says of a value that is none of its tag's: `!!int ""`, `2001-99-99`.
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise WorkloadError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise WorkloadError(f"{path} holds no keys; a workload has dataset, reader and train")
    return tree


def _check_extent(tree: object) -> None:
    """Refuse a tree that references to itself make endless, or as good as that.

    Raises:
        ValueError: it has too many values, each counted as often as it is referred to.
        RecursionError: it is nested too deeply.
    """
    found = 0
    level: Iterable[object] = [tree]
    for _ in range(_MOST_LEVELS):
        values = list(islice(level, _MOST_VALUES))
        found += len(values)
        if found >= _MOST_VALUES:
            raise ValueError(f"it has more than {_MOST_VALUES:,} values")
        if not values:
            return
        level = chain.from_iterable(map(_inner, values))
    raise RecursionError


def _inner(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return chain(value.keys(), value.values())
    return value if isinstance(value, (list, tuple, set)) else ()


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
    """Return a tree of dicts whose keys can be shown in one line, whatever YAML has them be."""
    if not isinstance(value, Mapping):
        return value
    shown = {key: key if str(key).isprintable() else repr(key) for key in value}
    return {str(shown[key]): _plain(inner) for key, inner in value.items()}


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
    "less_than_equal": "at most {le:,.15g}",
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
    "too_short": "text of at least one character",
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
        if text.startswith("="):
            return f"{key}{text}"
        if text.startswith(key.split(".")[0]):
            return text
        return f"{key} {text}" if text.startswith("must ") else f"{key}: {text}"
    bounds = []
    for other in errors:
        if _dotted(other["loc"]) == key:
            bound = _BOUNDS.get(other["type"])
            bounds.append(bound.format(**other.get("ctx", {})) if bound else other["msg"])
    return f"{key} must be {' or '.join(dict.fromkeys(bounds))}, got {_shown(first['input'])}"


def _shown(value: object) -> str:
    """Return a value as it is shown beside its bound."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return repr(value)
    return f"{value:,.0f}" if abs(value) < 1e15 and value == int(value) else f"{value:,}"


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
