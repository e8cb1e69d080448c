"""Commands to print: whoever copies one gets the job that it is about.

A workload may come from a file and from overrides; a command names the shipped workload of the
same name, or another, and every key that this one has otherwise.
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
"""Words that Hydra takes for something else than text."""
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
    """Return "key=value" quoted for the shell, and for Hydra where that reads more than a path."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, float) and value.is_integer():
        text = str(int(value))
    else:
        text = str(value)
    if key in PATH_KEYS:
        # Taken as it stands, unless it could be meant for a shell or for Hydra.
        text = f"./{text}" if text[:1] in ("~", "'", '"') or text == "null" else text
    elif isinstance(value, str) and (not _PLAIN.fullmatch(text) or text.lower() in _NO_TEXT):
        # Hydra reads a backslash as one, unless a quote follows the run of them.
        text = re.sub(r"(\\+)(?='|\Z)", r"\1\1", text).replace("'", "\\'")
        text = f"'{text}'"
    return _for_shell(f"{key}={text}")


def _for_shell(word: str) -> str:
    """Return a word that a shell reads back, without a character that a terminal obeys."""
    if word == shown_line(word):
        return shlex.quote(word)
    data = os.fsencode(word)
    letters = (chr(b) if 32 <= b < 127 and b not in b"\\'" else f"\\x{b:02x}" for b in data)
    return f"$'{''.join(letters)}'"
