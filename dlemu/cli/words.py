"""The words of a command line, by kind: options, key=value, and others."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from dlemu.errors import WorkloadError, did_you_mean
from dlemu.workload.compose import refuse_tilde

_KEY = re.compile(r"[+~]*[\w.@]*", re.ASCII)
_VALUED = ("--config-dir", "--cfg", "--html")
_SHORT = {"-cd": "--config-dir", "-c": "--cfg"}  # Hydra's own


@dataclass(frozen=True)
class Words:
    """What stands on the command line after the command."""

    overrides: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    """Values of the options that were given, "" for those that have none."""
    others: list[str] = field(default_factory=list)

    @property
    def as_typed(self) -> list[str]:
        """All words again, sorted by kind, for a command that is printed."""
        options = [f"{name}={value}" if value else name for name, value in self.options.items()]
        return [*self.others, *self.overrides, *options]

    @property
    def values(self) -> dict[str, str]:
        """The overrides by key, for commands that have keys of their own."""
        pairs = (override.partition("=") for override in self.overrides)
        return {key: value for key, _, value in pairs}


def is_key_value(word: str) -> bool:
    """Return whether a word sets a key; a path may hold a = too."""
    key, is_set, _ = word.partition("=")
    return bool(is_set and _KEY.fullmatch(key))


def parse(words: Sequence[str], options: Sequence[str] = (), *, deletes: bool = False) -> Words:
    """Return the words by kind; options may stand anywhere, as in Hydra, up to a word `--`.

    With `deletes`, a word such as ~train.seed is an override, as in Hydra.
    """
    parsed = Words()
    left = iter(words)
    for word in left:
        if word == "--":
            parsed.others.extend(left)
        elif word.startswith("-"):
            option, is_set, value = word.partition("=")
            option = _SHORT.get(option, option)
            if option not in options:
                hint = did_you_mean(option, options) or " (dlemu --help lists them)"
                raise WorkloadError(f"unknown option {word}{hint}")
            if option in _VALUED and not is_set:
                value = next(left, "")
            refuse_tilde(option, value if is_set else "")
            if bool(value) != (option in _VALUED):
                lack = "needs a value" if option in _VALUED else "has no value"
                raise WorkloadError(f"{option} {lack}")
            parsed.options[option] = value
        elif is_key_value(word) or (deletes and word.startswith("~")):
            parsed.overrides.append(word)
        else:
            parsed.others.append(word)
    return parsed
