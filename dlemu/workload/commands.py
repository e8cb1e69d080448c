"""Commands to print: a user who copies one gets the same job.

A command names the published workload of the same name, or else `unet3d_h100`, and every key in
which the job differs from it.
"""

import os
import re
import shlex
from collections.abc import Iterable, Mapping

from dlemu.errors import WorkloadError
from dlemu.terminal import shown_line
from dlemu.workload.compose import PATH_KEYS
from dlemu.workload.model import Workload, load_workload

_PLAIN = re.compile(r"[A-Za-z_/][\w./+-]*", re.ASCII)
_NO_TEXT = ("null", "true", "false", "nan", "inf")
"""Words that Hydra does not read as text."""
_BASE = "unet3d_h100"
"""Workload that a command names if the job's own is not published."""


def command(
    name: str, workload: Workload, keys: Iterable[str], more: Mapping[str, object] | None = None
) -> str:
    """Return `dlemu <name>` for a workload, with the keys that differ from the published one.

    `keys` are those that are compared; the keys of `more` are always written. Values are quoted for
    Hydra and the shell where needed.
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
    """Return the plain value of a dotted key; for a distribution, its mean."""
    value = value_of(workload.model_dump(mode="json"), key)
    return value.get("mean") if isinstance(value, Mapping) else value


def value_of(tree: object, key: str) -> object:
    """Return the value of a dotted key; None where there is none."""
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def word(key: str, value: object) -> str:
    """Return "key=value", quoted for the shell, and for Hydra if the key is not a path."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, float) and value.is_integer():
        text = str(int(value))
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
