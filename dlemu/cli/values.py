"""Keys of the commands without a workload: what each value must be, and how it is read."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dlemu.errors import WorkloadError, did_you_mean
from dlemu.workload.compose import refuse_tilde

Read = Callable[[str], Any]
"""Returns the value of a text; raises ValueError with what it must be."""


def read_values(given: Mapping[str, str], keys: Mapping[str, Read]) -> dict[str, Any]:
    """Return the values of a command's keys, each read by its function.

    Raises:
        WorkloadError: a key is unknown, or its value is refused.
    """
    values = {}
    for key, text in given.items():
        if key not in keys:
            hint = did_you_mean(key, keys) or f"; there is {', '.join(keys)}"
            raise WorkloadError(f"unknown key {key}{hint}")
        try:
            values[key] = keys[key](text)
        except ValueError as error:
            raise WorkloadError(f"{key}={text}: {error}") from None
    return values


def list_of(read: Read) -> Callable[[str], tuple[Any, ...]]:
    """Return what reads items that commas separate."""
    return lambda text: tuple(read(item) for item in text.split(",") if item)


def one_of(*choices: str) -> Callable[[str], str]:
    """Return what reads one of some words."""

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text} is none of {', '.join(choices)}")
        return text

    return read


def path_of(key: str) -> Callable[[str], Path]:
    """Return what reads a path, which must not begin with ~/."""

    def read(text: str) -> Path:
        refuse_tilde(key, text)
        return Path(text)

    return read


def number(text: str) -> float:
    """Return a number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError("must be a number") from None


def whole(text: str) -> int:
    """Return a whole number."""
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None


def truth(text: str) -> bool:
    """Return whether a text is "true"."""
    return one_of("true", "false")(text) == "true"


on_or_off = one_of("on", "off")


def key_of_workload(key: str, text: str) -> Any:
    """Return the value of a workload's key, as YAML has it.

    Raises:
        WorkloadError: it is no YAML.
    """
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise WorkloadError(f"override {key}={text} cannot be parsed; write key=value") from None


def one_folder(words: Sequence[str]) -> Path | None:
    """Return the folder that stands on the command line as a word of its own; None without one.

    Raises:
        WorkloadError: there are several.
    """
    if len(words) > 1:
        raise WorkloadError(f"one folder is needed, got {', '.join(words)}")
    return Path(words[0]) if words else None
