"""A workload file that differs from another workload in a few keys, and says where from."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from dlemu.workload.compose import known_workloads, set_key
from dlemu.workload.model import Workload


def derived_yaml(
    workload: Workload, name: str, keys: Mapping[str, object], comment: Sequence[str]
) -> str:
    """Return a workload file: `keys` (dotted) over `workload`, below lines of comment.

    A published workload is named in `defaults`; of another one every key is written.
    """
    tree: dict[str, Any]
    if workload.name in known_workloads():
        tree = {"defaults": [workload.name, "_self_"], "name": name}
    else:
        tree = workload.model_dump(mode="json", exclude={"given", "ignored", "output", "steptime"})
        tree["name"] = name
    for key, value in keys.items():
        set_key(tree, key, value)
    text = yaml.safe_dump(tree, sort_keys=False, default_flow_style=None, width=100)
    return "".join(f"# {line}".rstrip() + "\n" for line in comment) + text
