"""The published row that a job was made from, in which keys it differs, and files that say so."""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

import yaml
from numpy.typing import NDArray

from dlemu.config.compose import SECRET_KEYS, known_workloads, set_key
from dlemu.config.model import Workload, leaves, load_workload, use_of
from dlemu.config.refusal import NO_KEYS

_LEFT_OUT = {"given", "ignored", "made_from", "output", "steptime"}
"""What belongs to one command, not to the job."""


def published_row(workload: Workload) -> Workload | None:
    """Return the published workload that a job was made from; None where it is of its own."""
    names = (workload.made_from, workload.name)
    name = next((name for name in names if name in known_workloads()), None)
    return None if name is None else _published(name)


def origin_of(workload: Workload) -> Workload | None:
    """Return the published row of which a job has its keys; None for a file, whatever its name."""
    origin = workload.made_from
    return _published(origin) if origin in known_workloads() else None


_published = cache(load_workload)


def differing(
    workload: Workload, row: Workload, but: Collection[str] = ()
) -> dict[str, tuple[object, object]]:
    """Return the keys in which a job differs from a published row, with both values.

    Left out are keys that the closed division may change, or that change no run, and `but`.
    """
    was = dict(leaves(row.model_dump()))
    return {
        key: (value, was.get(key))
        for key, value in leaves(workload.model_dump())
        if was.get(key) != value and not (use_of(key).closed or key in but or key in NO_KEYS)
    }


def is_measured(name: str) -> bool:
    """Return whether a row that comes with dlemu has a step time that `dlemu steptime` measured."""
    return name.endswith(("_h200", "_real_h100"))


def derived_yaml(
    workload: Workload, name: str, keys: Mapping[str, object], comment: Sequence[str]
) -> str:
    """Return a workload file: `keys` (dotted) over `workload`, below lines of comment.

    A workload made from a published row names it in `defaults`, and its own keys follow; of another
    one, though it has a row's name, every key is written. Secrets are not.
    """
    tree: dict[str, Any] = {"name": name}
    base = origin_of(workload)
    usual: Mapping[str, object] = {}
    if base is not None:
        tree = {"defaults": [base.name, "_self_"], "name": name}
        usual = dict(leaves(_own(base)))
    for key, value in leaves(_own(workload)):
        if base is None or usual.get(key) != value:
            set_key(tree, key, value)
    for key, value in keys.items():
        if base is None or usual.get(key) != value:
            set_key(tree, key, value)
    text = yaml.safe_dump(tree, sort_keys=False, default_flow_style=None, width=100)
    return "".join(f"# {line}".rstrip() + "\n" for line in comment) + text


def normal(seconds: NDArray[Any]) -> dict[str, object]:
    """Return the keys of a normal `Distribution` with mean and deviation of these times."""
    return {
        "mean": float(f"{seconds.mean():.6g}"),
        "stdev": float(f"{seconds.std():.4g}"),
        "type": "normal",
    }


def _own(workload: Workload) -> dict[str, Any]:
    tree = workload.model_dump(mode="json", exclude=_LEFT_OUT | {"name"})
    for key in SECRET_KEYS:
        section: Any = tree
        *above, leaf = key.split(".")
        for part in above:
            section = section.get(part) or {}
        section.pop(leaf, None)
    return tree
