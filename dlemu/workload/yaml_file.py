"""A YAML file, read within bounds: a small file may hold references that make it endless."""

import re
from collections.abc import Iterable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import yaml

from dlemu.errors import WorkloadError

# Workloads have some hundred values on four levels.
_MOST_BYTES = 100_000
_MOST_VALUES = 10_000
_MOST_KEYS = 1_000
_MOST_LEVELS = 50

# All but the first are raised for a value that does not fit its tag: `!!int ""`, `2001-99-99`.
_NOT_YAML = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, OverflowError)


class _Loader(yaml.SafeLoader):
    """Reads 1e6 as a number, which YAML 1.1 takes for text, and bounds merged keys."""

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
    """Return a YAML file's mapping."""
    with path.open("rb") as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise WorkloadError(f"{path} has more than {_MOST_BYTES:,} bytes; is it a workload?")
    try:
        tree = yaml.load(text, _Loader)  # from bytes: UTF-8, whatever the locale
        _check_extent(tree)
    except RecursionError:
        raise WorkloadError(f"{path} is nested too deeply for a workload") from None
    except _NOT_YAML as error:
        raise WorkloadError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise WorkloadError(f"{path} holds no keys; a workload has dataset, reader and train")
    return tree


def _check_extent(tree: object) -> None:
    """Refuse a tree that references make endless, or nearly so.

    Raises:
        ValueError: it has too many values; each counts as often as it is referred to.
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
