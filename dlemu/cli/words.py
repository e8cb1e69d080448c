"""The words of a command line, by kind: options, key=value, and others.

The words of DLIO, `mlpstorage` and MLPerf Storage v1.0's `benchmark.sh` work where they mean the
same. Where they do not, one line says what to write.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlemu.config.compose import known_workloads, refuse_tilde, set_key, without_secrets
from dlemu.errors import WorkloadError, did_you_mean
from dlemu.plugins import is_url

if TYPE_CHECKING:
    from argparse import ArgumentParser

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
    "--multirun": Option("a job of each of several values, as reader.batch_size=1,2", "", "-m"),
    "--full": Option("read every byte, not only the sizes"),
    "--verify": Option("compare every byte that is read with what was written"),
    "--repair": Option("write bad files again"),
    "--wear": Option("show what drives count of their wear, and the rate that they sustain"),
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
_KEYS = {
    ("--num-accelerators", "-na"): "num_accelerators={}",
    ("--max-accelerators", "-ma"): "num_accelerators={}",
    ("--num-client-hosts", "-nc"): "num_hosts={}",
    ("--client-host-memory-in-gb", "-cm"): "host_memory={}GiB",
    ("--data-dir", "-dd"): "dataset.data_folder={}",
}
"""Options of mlpstorage, and what dlemu takes for their value."""
_FLAGS = {
    "--open": "division=open",
    "--closed": "division=closed",
    "--o-direct": "reader.odirect=true",
}
_MODES = {"closed": ["--closed"], "open": ["--open"], "whatif": []}
_PARAMS = ("--params", "--param", "-p")
_IDLE = ("--allow-invalid-params", "-aip")
_NAMES = ("--workload", "--model")
_TYPE = "--accelerator-type"
_BY_MPIRUN = "write mpirun and its own options before dlemu run"
_IN_REPORT = "dlemu report FOLDER shows what lies below outputs/"
_REFUSED = {
    "--results-dir": "write output.folder=FOLDER",
    "--loops": "write runs=N",
    "--what-if": "write --cfg job, which prints what would be run",
    "--debug": "write --verbose",
    "--stream-log-level": "write --verbose or --quiet",
    **dict.fromkeys(("--hosts", "--num-processes", "--exec-type", "--mpi-bin"), _BY_MPIRUN),
    **dict.fromkeys(("--mpi-params", "--mpi-btl", "--oversubscribe"), _BY_MPIRUN),
    "--allow-run-as-root": _BY_MPIRUN,
    "--ssh-username": "leave it out, each rank reads what it needs of its host",
    "--num-parallel": "write mpirun -n N dlemu datagen …",
    "--systemname": "leave it out, the summary names the host",
    "--drop-caches-timeout-seconds": "leave it out, a drop takes the time that it takes",
    "--config-file": "leave it out, keys of a job may be in workload=FILE.yaml",
    "training": "write dlemu datasize, datagen or run",
    "checkpointing": "write dlemu checkpoint model=NAME checkpoint.checkpoint_folder=FOLDER",
    **dict.fromkeys(("vectordb", "kvcache"), "dlemu does not emulate these"),
    **dict.fromkeys(("reports", "reportgen", "history"), _IN_REPORT),
    **dict.fromkeys(("configview", "whatif"), "dlemu run … --cfg job prints what would be run"),
    "closed": "write dlemu run … division=closed",
    "open": "write dlemu run …, whose division is open",
    "object": "write dataset.data_folder=s3://BUCKET/FOLDER",
}
"""Words of mlpstorage that mean nothing here, and what to write; docs/from_dlio.md has a row for
each."""


@dataclass(frozen=True)
class Words:
    """The words of the command line after the command."""

    overrides: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    """Values of the options that were given, "" for those that have none."""
    others: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)
    """Those of `others` that stand behind a word `--`."""

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
            WorkloadError: there are several, or it is a URL.
        """
        if len(self.others) > 1:
            raise WorkloadError(f"one folder is needed, got {', '.join(self.others)}")
        return self.folders[0] if self.others else None

    @property
    def folders(self) -> list[Path]:
        """The folders of this host that stand there as words of their own.

        Raises:
            WorkloadError: one is a URL.
        """
        if url := next(filter(is_url, self.others), None):
            raise WorkloadError(f"{url} is no folder of this host; name one, or a mount of it")
        return list(map(Path, self.others))


def is_key_value(word: str) -> bool:
    """Return whether a word sets a key; a path may hold a = too."""
    key, is_set, _ = word.partition("=")
    return bool(is_set and _KEY.fullmatch(key))


def refusal(word: str) -> str:
    """Return the line for an option or a command of mlpstorage; "" if it has none of that name."""
    return f"{word} is a word of mlpstorage; {_REFUSED[word]}" if word in _REFUSED else ""


def before_command(words: Sequence[str]) -> Sequence[str]:
    """Return the words before a word `--`: those behind it may be another program's."""
    return words[: words.index("--")] if "--" in words else words


def with_command_first(words: Sequence[str]) -> list[str]:
    """Return `run --model unet3d …` for mlpstorage's `closed training unet3d run file …`.

    Raises:
        WorkloadError: the data lie in a bucket, which is named in another way here.
    """
    mode = words[:1] if words[:1] and words[0] in _MODES else []
    match words[len(mode) :]:
        case ["training", "datasize" | "datagen" | "run" as command, *rest]:
            model = []
        case ["training", name, "datasize" | "datagen" | "run" as command, *rest]:
            model = ["--model", name]
        case _:
            return [*words]
    if rest[:1] == ["object"]:
        raise WorkloadError(refusal("object"))
    rest = rest[1:] if rest[:1] == ["file"] else rest
    return [command, *model, *(_MODES[mode[0]] if mode else []), *rest]


def parse(words: Sequence[str], options: Sequence[str] = (), *, for_job: bool = False) -> Words:
    """Return the words by kind; options may stand anywhere, as in Hydra, up to a word `--`.

    With `for_job`, a word such as ~train.seed is an override, as in Hydra, and the words of the
    others are taken as well.
    """
    from argparse import SUPPRESS, ArgumentError, ArgumentParser  # --help needs none of it

    end = len(before_command(words))
    parser = ArgumentParser(
        add_help=False, allow_abbrev=False, exit_on_error=False, argument_default=SUPPRESS
    )
    for name in options:
        flags = [name, *filter(None, [OPTIONS[name].short])]
        if OPTIONS[name].value:
            parser.add_argument(*flags, dest=name, type=partial(_value, name))
        else:
            parser.add_argument(*flags, dest=name, action="store_const", const="")
    if for_job:
        _add_spellings(parser)
        _refuse_cut(before_command(words), options)
    try:
        found, left = parser.parse_known_args(words[:end])
    except ArgumentError as error:
        option = (error.argument_name or "").partition("/")[0]
        takes_none = option in OPTIONS and not OPTIONS[option].value
        raise WorkloadError(f"{option} {'has no' if takes_none else 'needs a'} value") from None
    given = vars(found)
    parsed = Words(options={name: given[name] for name in options if name in given})
    for place, word in enumerate(left := [*_workload(given), *given.get("own", ()), *left]):
        if not word:
            raise WorkloadError("a word of the command line is empty: is a shell variable not set?")
        if word == "=":
            raise WorkloadError("= stands alone; write key=value, without blanks")
        if word.startswith("-"):
            raise WorkloadError(_unknown(word, left[place + 1 :], options, for_job=for_job))
        if for_job:  # ++workload.train.epochs=1, as DLIO has it
            bare = word.lstrip("+")
            word = bare.removeprefix("workload.") if bare.startswith("workload.") else word
        is_override = is_key_value(word) or (for_job and word.startswith("~"))
        (parsed.overrides if is_override else parsed.others).append(word)
    parsed.behind.extend(words[end + 1 :])
    parsed.others.extend(parsed.behind)
    if DRY_RUN in parsed.options and {"--json", "--csv"} & parsed.options.keys():
        raise WorkloadError(f"{DRY_RUN} prints lines only; leave out --json and --csv")
    return parsed


def _value(option: str, word: str) -> str:
    """Return the value of an option."""
    refuse_tilde(option, word)
    if not word or (is_key_value(word) and OPTIONS[option].value != "TEXT"):
        raise ValueError
    return word


def _own(option: str, meant: str, word: str) -> str:
    """Return what dlemu takes for the value of another's option."""
    refuse_tilde(option, word)
    return meant.format(word)


def _add_spellings(parser: "ArgumentParser") -> None:
    """Have a parser take the options of the others; `own` has what they mean."""
    for options, meant in _KEYS.items():
        own = partial(_own, options[0], meant)
        parser.add_argument(*options, dest="own", action="append", type=own)
    for option, meant in _FLAGS.items():
        parser.add_argument(option, dest="own", action="append_const", const=meant)
    parser.add_argument(*_PARAMS, dest="own", action="extend", nargs="*")
    parser.add_argument(*_IDLE, action="store_true")
    for option in _NAMES:
        parser.add_argument(option, dest=option)
    parser.add_argument(_TYPE, "-at", dest=_TYPE)


def _refuse_cut(words: Sequence[str], options: Sequence[str]) -> None:
    """Refuse -m as a short -ma: argparse takes what begins with one dash when it is cut."""
    spelled = (*(each for several in _KEYS for each in several), *_PARAMS, *_IDLE, "-at")
    known = {*spelled, *(OPTIONS[name].short for name in options)}
    for place, word in enumerate(words):
        begin = word.partition("=")[0]
        is_short = len(begin) > 1 and begin[0] == "-" != begin[1]
        if is_short and begin not in known and any(each.startswith(begin) for each in spelled):
            raise WorkloadError(_unknown(word, words[place + 1 :], options, for_job=True))


def _unknown(word: str, behind: Sequence[str], options: Sequence[str], *, for_job: bool) -> str:
    """Return the line for an option that a command does not have."""
    option, _, value = word.partition("=")
    if for_job and refusal(option):
        return refusal(option)
    if for_job and option in ("-m", "--multirun"):
        return f"{option} is not taken here; leave it out (predict answers a,b for each as it is)"
    hint = did_you_mean(option, (*options, *_OF_ALL), cutoff=0.7)
    value = value or next(iter(behind), "")
    if not hint and value and option.startswith("--") and option not in OPTIONS:
        hint = f"; a key has no dashes: {option.strip('-').replace('-', '_')}={value}"
    return f"unknown option {word}{hint or ' (dlemu --help lists them)'}"


def _workload(named: Mapping[str, str]) -> list[str]:
    """Return workload=NAME for --workload or --model with --accelerator-type."""
    if not {*_NAMES, _TYPE} & named.keys():
        return []
    known = known_workloads()
    model = next((named[option] for option in _NAMES if option in named), "")
    name = f"{model}_{named[_TYPE]}" if _TYPE in named else model
    if not model:
        raise WorkloadError(f"{_TYPE} {named[_TYPE]} needs --model, or write workload=NAME")
    if name not in known and _TYPE not in named:
        begin = f"{model}_"
        kinds = [each.removeprefix(begin) for each in known if each.startswith(begin)]
        if kinds:
            raise WorkloadError(
                f"--model {model} needs {_TYPE} {' or '.join(kinds)}; or write "
                f"workload={model}_{'h100' if 'h100' in kinds else kinds[-1]}"
            )
    return [f"workload={name}"]
