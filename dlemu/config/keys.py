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
from typing import get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dlemu.config.compose import PATH_KEYS, known_workloads, leaves
from dlemu.config.model import Workload, check_workload, use_of
from dlemu.config.published import published_row
from dlemu.config.refusal import NO_KEYS, allowed, group_of, in_words, written
from dlemu.config.sections import ColumnSection
from dlemu.config.types import Distribution, KeyContext, Use
from dlemu.plugins import is_url


def context_of(workload: Workload, command: str = "run", hosts: int = 1) -> KeyContext:
    """Return what decides whether a key has an effect on a workload under a command.

    `hosts` are those of the ranks. Only of "run" and "size" is that known for all keys.
    """
    dataset, reader, train = workload.dataset, workload.reader, workload.train
    checkpoint, output = workload.checkpoint, workload.output
    folder, loader = dataset.data_folder or "", reader.loader
    counts_memory = dataset.num_files_train == "auto" or workload.division == "closed"
    if command == "size":
        counts_memory = not workload.size.quick
    saves = workload.workflow.checkpoint
    place = workload.place
    is_shuffled = (reader.file_shuffle, reader.sample_shuffle) != ("off", "off")
    times = train.computation_time, reader.preprocess_time
    return KeyContext(
        counts_memory=counts_memory,
        counts_hosts=counts_memory and (hosts == 1 or workload.host_memory is not None),
        any_number=workload.num_accelerators is None,
        saves=saves,
        saves_to_servers=saves and is_url(checkpoint.checkpoint_folder or ""),
        saves_by_epochs=checkpoint.steps_between_checkpoints is None,
        saves_asynchronously=checkpoint.asynchronous,
        has_many=dataset.num_samples_per_file > 1,
        has_dims=bool(dataset.record_dims),
        has_own_sizes=bool(dataset.record_dims or dataset.listed_sizes),
        has_rows=dataset.format == "parquet",
        has_columns=bool(dataset.parquet.columns),
        is_hdf5=dataset.format == "hdf5",
        has_paths=place.has_paths,
        has_page_cache=place.has_page_cache,
        below_root=not is_url(folder) and not Path(folder).is_absolute(),
        parses=reader.decode == "raw" and not workload.plain_workers,
        streamed=workload.streamed,
        by_tf_data=workload.by_tf_data,
        by_pytorch=loader.is_dataloader,
        by_dali=loader.by_dali,
        on_gpu=loader.by_dali and workload.dali.device == "gpu",
        has_workers=reader.read_threads > 0,
        plain_workers=workload.plain_workers,
        starts_workers=workload.starts_workers,
        hands_over=workload.hands_over,
        prepares=reader.preprocess_time.mean > 0,
        computes_on_gpu=train.compute == "gpu",
        trains=train.compute == "gpu" and train.network is not None,
        shuffles_samples=reader.sample_shuffle != "off",
        is_shuffled=is_shuffled,
        is_drawn=is_shuffled or any(each.stdev > 0 or each.type == "exponential" for each in times),
        step_varies=times[0].stdev > 0 or times[0].type == "exponential",
        has_epochs=train.epochs > 1,
        leaves_out_steps=workload.metric.edition != "v1.0",
        drops_caches=(output.drop_caches or output.drop_all_caches) and place.has_page_cache,
        drops_all_caches=output.drop_all_caches,
        caches=workload.cache.folder is not None,
    )


def idle_keys(workload: Workload, command: str = "run", hosts: int = 1) -> tuple[str, ...]:
    """Return the user's keys that have no effect on a job with ranks on so many hosts.

    The user's keys are the overrides, and what the user's own workload sets to other values than
    the defaults.
    """
    job = context_of(workload, command, hosts)
    has_endurance = workload.drive is not None and workload.drive.endurance is not None
    return tuple(
        key
        for key in _users_keys(workload)
        if not (key == "drive" and has_endurance)  # for the line on wear
        and not _has_effect(use_of(key), job, command)
    )


def _has_effect(use: Use, job: KeyContext, command: str) -> bool:
    return command in (use.by or "").split() and (use.when is None or use.when(job))


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
    return None if found in (Distribution, ColumnSection) else found


@cache
def _classes(module: str) -> Mapping[str, ast.ClassDef]:
    """Return the classes of a module as they are written, by name."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


@cache
def _docstrings(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the text under each field of a model, as one paragraph."""
    docstrings = {}
    for field, below in pairwise(_classes(model.__module__)[model.__name__].body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            assert isinstance(field.target, ast.Name)
            docstrings[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return docstrings


def about(group: str) -> str:
    """Return what a group of keys is for: the docstring of its model."""
    hint = get_type_hints(Workload, include_extras=True).get(group)
    model = _group(hint) if hint is not None else None
    return (model.__doc__ or "").splitlines()[0] if model is not None else ""
