"""The published row that a job was made from, and commands and files that say how it differs.

A command names the workload that the job was made from, by its name or its file, and every key in
which the job differs from it: a user who copies one gets the same job.
"""

import math
import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import yaml
from numpy.typing import NDArray

from dlemu.config.compose import PATH_KEYS, SECRET_KEYS, known_workloads, leaves, named, set_key
from dlemu.config.compose import value_of as value_of
from dlemu.config.model import Workload, load_model, load_workload, use_of
from dlemu.config.refusal import NO_KEYS
from dlemu.config.source import WordSource
from dlemu.errors import WorkloadError
from dlemu.terminal import shown_line

_PLAIN = re.compile(r"[A-Za-z_/][\w./+-]*", re.ASCII)
_NO_TEXT = ("null", "true", "false", "nan", "inf")
"""Words that Hydra does not read as text."""
_BASE = "unet3d_h100"
"""Workload that a command names if nobody knows what the job was made from."""


def command(
    name: str, workload: Workload, keys: Iterable[str], more: Mapping[str, object] | None = None
) -> str:
    """Return `dlemu <name>` for a workload, with the keys that differ from the published one.

    `keys` are those that are compared; the keys of `more` are always written. Values are quoted for
    Hydra and the shell where needed.
    """
    more = more or {}
    base, origin = _made_from(workload)
    group = "workload" if origin not in named("model") or origin in known_workloads() else "model"
    words = [f"dlemu {name}", _for_shell(f"{group}={origin}")]
    if base.name != workload.name:
        words.append(word("name", workload.name))
    for key in keys:
        value = _value(workload, key)
        if key not in more and value != _value(base, key):
            words.append(word(key, value))
    return " ".join([*words, *(word(key, value) for key, value in more.items())])


def _made_from(workload: Workload) -> tuple[Workload, str]:
    """Return the workload that this one was made from, and what `workload=` takes to name it."""
    for origin, source in (
        (workload.made_from, workload.source),
        (workload.name, WordSource.INSTALLED),
    ):
        for load in (load_workload, load_model):
            with suppress(WorkloadError, OSError):
                return load(origin, source=source), origin
    return load_workload(_BASE), _BASE


def _value(workload: Workload, key: str) -> object:
    """Return the plain value of a dotted key; for a distribution without spread, its mean."""
    value = value_of(workload.model_dump(mode="json"), key)
    if isinstance(value, Mapping) and value.get("stdev") == 0 and value.get("type") == "normal":
        return value["mean"]
    return value


def word(key: str, value: object) -> str:
    """Return "key=value", quoted for the shell, and for Hydra if the key is not a path."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, float) and value.is_integer():
        text = str(int(value))
    elif value is None:
        return f"{key}=null"
    elif isinstance(value, Mapping):
        text = "{" + ",".join(f"{inner}:{each}" for inner, each in value.items()) + "}"
    else:
        text = str(value)
    if key in PATH_KEYS:
        # The command line takes a path as it is, but for these, which have a meaning.
        text = f"./{text}" if text[:1] in ("~", "'", '"') or text == "null" else text
    elif isinstance(value, str) and (not _PLAIN.fullmatch(text) or text.lower() in _NO_TEXT):
        # Hydra needs a backslash escaped only in a run of them before a quote.
        text = re.sub(r"(\\+)(?='|\Z)", r"\1\1", text).replace("'", "\\'")
        text = f"'{text}'"
    return _for_shell(f"{key}={text}")


def _for_shell(word: str) -> str:
    """Return a word quoted for the shell, with control characters as escapes such as \\x1b."""
    if word == shown_line(word):
        return shlex.quote(word)
    data = os.fsencode(word)
    letters = (chr(b) if 32 <= b < 127 and b not in b"\\'" else f"\\x{b:02x}" for b in data)
    return f"$'{''.join(letters)}'"


_OF_STORAGE = ("storage", "server", "network", "none")
"""Limits at which what accelerators get follows from bytes alone."""
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

    Left out are keys that the closed division may change, or that change no run, secrets, and
    `but`.
    """
    was = dict(leaves(row.model_dump()))
    left_out = {*but, *NO_KEYS, *SECRET_KEYS}
    return {
        key: (value, was.get(key))
        for key, value in leaves(workload.model_dump())
        if was.get(key) != value and not (use_of(key).closed or key in left_out)
    }


def is_measured(name: str) -> bool:
    """Return whether a row that comes with dlemu has a step time that `dlemu steptime` measured."""
    return name.endswith(("_h200", "_real_h100"))


def real_h100s(
    workload: Workload, feeds: float | None, limit: str, *, at_least: bool = False
) -> dict[str, Any] | None:
    """Return how many real H100s read as much as `feeds` emulated ones with the benchmark's step.

    Their step was measured with PyTorch in bf16 (docs/fidelity.md). None: no such row, the job has
    a step time of its own, or the limit `limit` says nothing about the storage.
    """
    row, name = origin_of(workload), f"{workload.name.removesuffix('_h100')}_real_h100"
    if row is None or name not in known_workloads() or workload.name.endswith("_real_h100"):
        return None
    if feeds is None or limit not in _OF_STORAGE or workload.demand != row.demand:
        return None
    real = feeds * workload.demand / _published(name).demand
    number = math.floor(real + 1e-9)
    return {"workload": name, "num_accelerators": number, "real_accelerators": real} | {
        "at_least": at_least
    }


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
