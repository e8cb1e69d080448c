"""Commands to print: whoever copies one gets the job that it is about.

A workload may come from a file and from overrides; a command names the shipped workload of the
same name, or another, and every key that this one has otherwise.
"""

import re
import shlex
from collections.abc import Iterable, Mapping

from dlemu.errors import WorkloadError
from dlemu.workload import Workload, load_workload

_PLAIN = re.compile(r"[\w./+-]+", re.ASCII)
_BASE = "unet3d_h100"
"""Workload that a command names for a job that is not among the shipped ones."""


def command(
    name: str,
    workload: Workload,
    keys: Iterable[str],
    more: Mapping[str, object] | None = None,
) -> str:
    """Return `dlemu <name>` for a workload, with those of the keys that say something.

    `more` are keys that are always written. Values that Hydra or a shell would take for something
    else are quoted.
    """
    more = more or {}
    words = [f"dlemu {name}"]
    try:
        base = load_workload(workload.name)
        words.append(f"workload={workload.name}")
    except WorkloadError:
        base = load_workload(_BASE)
        words += [f"workload={_BASE}", word("name", workload.name)]
    for key in keys:
        value = _value(workload, key)
        if key not in more and value is not None and value != _value(base, key):
            words.append(word(key, value))
    return " ".join([*words, *(word(key, value) for key, value in more.items())])


def _value(workload: Workload, key: str) -> object:
    """Return the plain value of a dotted key; of a distribution its mean."""
    value: object = workload.model_dump(mode="json")
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value.get("mean") if isinstance(value, Mapping) else value


def word(key: str, value: object) -> str:
    """Return `key=value` as an override, quoted for Hydra and for a shell."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, float) and value.is_integer():
        text = str(int(value))
    else:
        text = str(value)
    if not isinstance(value, (list, tuple)) and not _PLAIN.fullmatch(text):
        text = "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return shlex.quote(f"{key}={text}")
