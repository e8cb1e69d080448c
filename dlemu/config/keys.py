"""Every key with its meaning, its values and its default, and which have no effect on a job.

All is read from the models themselves: the meaning is the docstring under a field, the effect what
its `Use` says. So the help, the completion and the page of all keys say what the code says.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dlemu.config import sections
from dlemu.config.compose import PATH_KEYS, known_workloads, leaves
from dlemu.config.model import Workload, check_workload, use_of
from dlemu.config.published import published_row
from dlemu.config.refusal import NO_KEYS, allowed, group_of, in_words, written
from dlemu.config.sections import Use
from dlemu.storage.s3 import in_bucket


@dataclass(frozen=True)
class KeyContext:
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
    def has_own_sizes(self) -> bool:
        """Whether samples have a shape, or a file lists their sizes."""
        return bool(self.workload.dataset.record_dims or self.workload.dataset.listed_sizes)

    @property
    def has_rows(self) -> bool:
        """Whether files hold rows of columns."""
        return self.workload.dataset.format == "parquet"

    @property
    def parses(self) -> bool:
        """Whether dlemu reads the bytes of a sample, not a library."""
        return self.workload.reader.decode == "raw" and not self.workload.plain_workers

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
    def drops_caches(self) -> bool:
        """Whether a run begins without its dataset in the page cache."""
        output = self.workload.output
        return (output.drop_caches or output.drop_all_caches) and not self.in_bucket

    @property
    def below_root(self) -> bool:
        """Whether the data folder is relative to storage.storage_root."""
        folder = self.workload.dataset.data_folder or ""
        return "://" not in folder and not Path(folder).is_absolute()

    @property
    def is_drawn(self) -> bool:
        """Whether an order or a time is drawn at random."""
        times = self.workload.train.computation_time, self.workload.reader.preprocess_time
        drawn = any(time.stdev > 0 or time.type == "exponential" for time in times)
        return drawn or self.is_shuffled

    @property
    def is_shuffled(self) -> bool:
        """Whether files or samples are read in a random order."""
        reader = self.workload.reader
        return (reader.file_shuffle, reader.sample_shuffle) != ("off", "off")


def idle_keys(job: KeyContext) -> tuple[str, ...]:
    """Return the user's keys that have no effect on a job.

    The user's keys are the overrides, and what the user's own workload sets to other values than
    the defaults.
    """
    return tuple(key for key in _users_keys(job.workload) if not _has_effect(key, job))


def _has_effect(key: str, job: KeyContext) -> bool:
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


_PATHS = PATH_KEYS | {"workload"}


@dataclass(frozen=True)
class Key:
    """What a user needs to know about a key."""

    name: str
    meaning: str
    values: str
    """What may be given, with the unit and the bounds: "whole number, 1 to 1,000"."""
    default: str
    """As it is written; "null" where the key is not set, "" where it must be."""
    choices: tuple[str, ...] = ()
    """All values, where they are few."""
    is_path: bool = False

    @property
    def line(self) -> str:
        """The values and the default in one line."""
        return f"{self.values}; default {self.default}" if self.default else self.values


@cache
def all_keys() -> Mapping[str, Key]:
    """Return every key that a user can set, by its dotted name, in the order of the models."""
    named = tuple(known_workloads())
    first = Key(
        name="workload",
        meaning="The job: a published workload, or a YAML file (DLIO's as they are).",
        values=f"{', '.join(named)}, or a file.yaml",
        default="",
        choices=named,
    )
    return {"workload": first} | {key.name: key for key in keys_of_model(Workload)}


def keys_of_model(model: type[BaseModel], above: str = "") -> Iterator[Key]:
    """Yield the keys of a model; their names begin with `above`."""
    docstrings = _docstrings(model)
    hints = get_type_hints(model, include_extras=True)
    fields = model.model_fields.items()
    # What has no meaning for a user is none of his keys.
    unread = {name for name, field in fields if Use(by="") in field.metadata} - docstrings.keys()
    own = [name for name in model.model_fields if name not in {*NO_KEYS, *unread}]
    for name in sorted(own, key=lambda name: _group(hints[name]) is not None):
        group, key = _group(hints[name]), f"{above}{name}"
        if group is None or docstrings.get(name):
            yield _key(key, docstrings.get(name, ""), hints[name], model.model_fields[name])
        if group is not None:
            yield from keys_of_model(group, f"{key}.")


def _key(name: str, meaning: str, hint: object, field: FieldInfo) -> Key:
    choices, kinds = allowed(hint)
    values = "path" if name in PATH_KEYS else in_words(choices, kinds)
    return Key(
        name=name,
        meaning=meaning.replace("None:", "null:").replace("empty:", "[]:"),
        values=values,
        default=written(field.get_default(call_default_factory=True)),
        choices=choices,
        is_path=name in _PATHS or values.endswith("path"),
    )


def _group(hint: object) -> type[BaseModel] | None:
    """Return the group of keys that a field holds.

    A distribution counts as one value, and columns are a list: their keys have no dotted names.
    """
    found = group_of(hint)
    return None if found in (sections.Distribution, sections.ColumnSection) else found


@cache
def _docstrings(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the text under each field of a model, as one paragraph."""
    tree = ast.parse(inspect.getsource(sys.modules[model.__module__]))
    body = next(
        n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == model.__name__
    )
    docstrings = {}
    for field, below in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            assert isinstance(field.target, ast.Name)
            docstrings[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return docstrings


def about(group: str) -> str:
    """Return what a group of keys is for: the docstring of its model."""
    hint = get_type_hints(Workload, include_extras=True).get(group)
    model = _group(hint) if hint is not None else None
    return (model.__doc__ or "").splitlines()[0] if model is not None else ""
