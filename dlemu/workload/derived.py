"""A workload file that differs from another workload in a few keys, and says where from."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from numpy.typing import NDArray

from dlemu.workload.compose import SECRET_KEYS, known_workloads, set_key
from dlemu.workload.model import Workload, leaves, load_workload

_LEFT_OUT = {"given", "ignored", "made_from", "output", "steptime"}
"""What belongs to one command, not to the job."""


def derived_yaml(
    workload: Workload, name: str, keys: Mapping[str, object], comment: Sequence[str]
) -> str:
    """Return a workload file: `keys` (dotted) over `workload`, below lines of comment.

    A workload made from a published row names it in `defaults`, and its own keys follow; of another
    one every key is written. Secrets are not.
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


def origin_of(workload: Workload) -> Workload | None:
    """Return the published row that a workload was made from; None for a file of the user's."""
    published = workload.made_from in known_workloads()
    return load_workload(workload.made_from) if published else None


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
