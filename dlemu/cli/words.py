"""The words of a command line, by kind: options, key=value, and others."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlemu.cli.spellings import translated
from dlemu.config.compose import refuse_tilde, set_key, without_secrets
from dlemu.errors import WorkloadError, did_you_mean

_KEY = re.compile(r"[+~]*(?:[\w.@]*|hydra/[\w/]*)", re.ASCII)
"""A key, or a group of Hydra's own keys, as in hydra/job_logging=none."""


@dataclass(frozen=True)
class Option:
    """A word that begins with a dash."""

    meaning: str
    value: str = ""
    """Name of its value, "" if it has none."""
    short: str = ""


OPTIONS: dict[str, Option] = {
    "--config-dir": Option("look for workload files there too, as DLIO does", "FOLDER", "-cd"),
    "--cfg": Option("show all keys with their values, and do nothing else", "job", "-c"),
    "--dry-run": Option("say what would be done, and do not do it"),
    "--multirun": Option("a run of each of several values, as reader.batch_size=1,2", "", "-m"),
    "--full": Option("read every byte, not only the sizes"),
    "--verify": Option("compare every byte that is read with what was written"),
    "--repair": Option("write bad files again"),
    "--html": Option("write a page", "FILE"),
    "--json": Option("print one JSON document on stdout, and all else on stderr"),
    "--csv": Option("append a row to a table", "FILE"),
    "--label": Option("the row's label", "TEXT"),
    "--trace": Option("write steps, waits and barriers for Perfetto", "FILE"),
    "--quiet": Option("print the verdict or the answer only, and errors", short="-q"),
    "--verbose": Option("print results in full", short="-v"),
    "--help": Option("show this", short="-h"),
    "--help-all": Option("show the rarely used keys too"),
}
DRY_RUN = "--dry-run"
"""Option of the commands that write or replay: show what they would do."""
FOR_SCRIPTS = ("--json", "--csv", "--label")
_OF_ALL = ("--quiet", "--verbose", "--help", "--help-all")
"""Options that `main` has taken before words are parsed."""
_VALUED = tuple(name for name, option in OPTIONS.items() if option.value)
_SHORT = {option.short: name for name, option in OPTIONS.items() if option.short}


@dataclass(frozen=True)
class Words:
    """What stands on the command line after the command."""

    overrides: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    """Values of the options that were given, "" for those that have none."""
    others: list[str] = field(default_factory=list)

    def path(self, option: str) -> Path | None:
        """Return the file or folder that an option names; None if it was not given."""
        return Path(self.options[option]) if option in self.options else None

    @property
    def as_typed(self) -> list[str]:
        """All words again, sorted by kind, for a command that is printed; no secrets."""
        options = [f"{name}={value}" if value else name for name, value in self.options.items()]
        return [*self.others, *without_secrets(self.overrides), *options]

    @property
    def values(self) -> dict[str, str]:
        """The overrides by key, for commands that have keys of their own."""
        pairs = (override.partition("=") for override in self.overrides)
        return {key.lstrip("+"): value for key, _, value in pairs}

    def tree(self, command: str) -> dict[str, Any]:
        """Return the overrides as a tree of texts; a key may begin with the command's name."""
        tree: dict[str, Any] = {}
        for key, text in self.values.items():
            refuse_tilde(key, text)
            set_key(tree, key.removeprefix(f"{command}."), text)
        return tree

    @property
    def folder(self) -> Path | None:
        """The folder that stands there as a word of its own; None without one.

        Raises:
            WorkloadError: there are several.
        """
        if len(self.others) > 1:
            raise WorkloadError(f"one folder is needed, got {', '.join(self.others)}")
        return Path(self.others[0]) if self.others else None


def is_key_value(word: str) -> bool:
    """Return whether a word sets a key; a path may hold a = too."""
    key, is_set, _ = word.partition("=")
    return bool(is_set and _KEY.fullmatch(key))


def parse(words: Sequence[str], options: Sequence[str] = (), *, deletes: bool = False) -> Words:
    """Return the words by kind; options may stand anywhere, as in Hydra, up to a word `--`.

    With `deletes`, a word such as ~train.seed is an override, as in Hydra, and the spellings of
    DLIO and MLPerf Storage are taken as well.
    """
    parsed = Words()
    left = iter(translated(words) if deletes else words)
    for word in left:
        if not word:
            raise WorkloadError("a word of the command line is empty: is a shell variable not set?")
        if word == "=":
            raise WorkloadError("= stands alone; write key=value, without blanks")
        if word == "--":
            parsed.others.extend(left)
        elif word.startswith("-"):
            option, is_set, value = word.partition("=")
            option = _SHORT.get(option, option)
            if option not in options:
                hint = did_you_mean(option, (*options, *_OF_ALL), cutoff=0.7)
                value = value or next(left, "")
                if not hint and value and option not in OPTIONS:
                    key = option.strip("-").replace("-", "_")
                    hint = f"; a key has no dashes: {key}={value}"
                hint = hint or " (dlemu --help lists them)"
                raise WorkloadError(f"unknown option {word}{hint}")
            if option in _VALUED and not is_set:
                value = _behind(option, next(left, ""))
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


def _behind(option: str, word: str) -> str:
    """Return the word behind an option as its value, "" if it is another option or an override."""
    takes_any = OPTIONS[option].value == "TEXT"
    return "" if word.startswith("-") or (is_key_value(word) and not takes_any) else word
