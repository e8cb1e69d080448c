"""What `dlemu COMMAND --help` and `dlemu help WORD` show: usage, examples, options, keys.

The keys and their meaning come from the models. This module says which command reads which key, and
which of them most users need.
"""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dlemu.cli.words import OPTIONS
from dlemu.errors import WorkloadError, did_you_mean
from dlemu.workload.commands import value_of
from dlemu.workload.compose import known_workloads, read_yaml
from dlemu.workload.keys import Key, about, all_keys
from dlemu.workload.model import read_by


@dataclass(frozen=True)
class Usage:
    """What is shown of a command beside its keys."""

    words: str
    """Behind the command's name, in the usage line."""
    examples: tuple[str, ...]
    """Commands that run as they stand, in this order over all commands."""
    keys: str
    """The keys that most users need, the most important first."""


_DATA = "workload=cosmoflow_h100 dataset.data_folder=data/cosmoflow dataset.num_files_train=340"
_KEYS_AND = "workload=NAME [key=value ...]"
_OR_FOLDER = "[FOLDER] [workload=NAME] [key=value ...]"

USAGES: dict[str, Usage] = {
    "datasize": Usage(
        _KEYS_AND,
        (
            "dlemu datasize workload=unet3d_h100 num_accelerators=8",
            "dlemu datasize workload=unet3d_h100 num_accelerators=8 host_memory=256GiB num_hosts=2",
        ),
        "workload num_accelerators host_memory num_hosts",
    ),
    "datagen": Usage(
        _OR_FOLDER,
        (
            f"dlemu datagen {_DATA}",
            "dlemu datagen workload=unet3d_h100 dataset.data_folder=data/unet3d "
            "dataset.num_files_train=16 dataset.record_length_bytes=4MB "
            "dataset.record_length_bytes_stdev=1MB",
        ),
        "workload dataset.data_folder dataset.num_files_train num_accelerators dataset.format "
        "dataset.num_subfolders_train dataset.record_length_bytes output.log",
    ),
    "verify": Usage(
        "FOLDER [--full] [--repair]",
        ("dlemu verify data/cosmoflow", "dlemu verify data/cosmoflow --full --repair"),
        "dataset.data_folder",
    ),
    "run": Usage(
        _OR_FOLDER,
        (
            f"dlemu run {_DATA}",
            f"dlemu run {_DATA} num_accelerators=2 train.epochs=2 reader.odirect=true",
        ),
        "workload dataset.data_folder dataset.num_files_train num_accelerators train.epochs "
        "reader.data_loader reader.read_threads reader.odirect train.loop reader.hand_over "
        "metric.au runs warmup output.folder output.log",
    ),
    "size": Usage(
        _OR_FOLDER,
        (
            f"dlemu size {_DATA} size.quick=true size.confirm=1 train.epochs=2",
            f"dlemu size {_DATA} size.quick=true size.confirm=1 size.max_accelerators=2",
        ),
        "workload dataset.data_folder dataset.num_files_train size.quick size.confirm size.start "
        "size.max_accelerators size.targets size.workloads train.epochs reader.data_loader "
        "reader.odirect metric.au output.folder output.log",
    ),
    "calibrate": Usage(
        _OR_FOLDER,
        (
            "dlemu calibrate workload=cosmoflow_h100",
            f"dlemu calibrate {_DATA} predict.calibration=cosmoflow.json",
        ),
        "workload dataset.data_folder predict.calibration reader.data_loader reader.odirect "
        "output.log",
    ),
    "predict": Usage(
        _KEYS_AND,
        (
            "dlemu predict workload=unet3d_h100 drive=d7_ps1010 drives=4",
            "dlemu predict workload=unet3d_h100 drive.read_bandwidth=7GB predict.accelerators=2",
            "dlemu predict workload=unet3d_h100 drive=d7_ps1010 origin.read_bandwidth=2GB "
            "cache.capacity=0.8",
            "dlemu predict workload=dlrm_dcnv2_h100 drive=d3_s4520 drives=2 predict.minutes=true",
            "dlemu predict workload=unet3d_b200 server.read_bandwidth=60GB client.nic_gbps=100 "
            "num_hosts=4",
        ),
        "workload drive drives drive.read_bandwidth predict.calibration predict.accelerators "
        "predict.minutes cache.capacity cache.policy origin.read_bandwidth server.read_bandwidth "
        "client.nic_gbps num_hosts metric.au",
    ),
    "checkpoint": Usage(
        "model=NAME checkpoint.checkpoint_folder=FOLDER [key=value ...]",
        (
            "dlemu checkpoint model=unet3d checkpoint.checkpoint_folder=data/checkpoints "
            "checkpoint.num_checkpoints_write=2 checkpoint.num_checkpoints_read=2",
            "dlemu checkpoint model=llama3_8b checkpoint.checkpoint_folder=data/checkpoints "
            "checkpoint.scale=0.001 checkpoint.time_between_checkpoints=0 checkpoint.mtbf=3h",
        ),
        "model checkpoint.checkpoint_folder num_accelerators checkpoint.mode checkpoint.scale "
        "checkpoint.num_checkpoints_write checkpoint.num_checkpoints_read checkpoint.keep "
        "checkpoint.odirect checkpoint.max_seconds checkpoint.mtbf output.folder output.log",
    ),
    "steptime": Usage(
        _KEYS_AND,
        (
            "dlemu steptime workload=unet3d_h100",
            "dlemu steptime workload=cosmoflow_h100 steptime.device=cpu steptime.batches=[1] "
            "steptime.side=32 steptime.steps=3 steptime.seconds=0",
        ),
        "workload steptime.model steptime.batches steptime.compile steptime.device steptime.steps "
        "steptime.seconds output.folder output.log",
    ),
}

_WIDTH = 96


def reading(key: str) -> list[str]:
    """Return the commands that read a key, in the order of the help."""
    named = [*read_by(key)] if key != "workload" else [*read_by("name"), "verify"]
    return [name for name in USAGES if name in named]


def keys_of(command: str) -> list[Key]:
    """Return the keys that a command reads."""
    return [key for key in all_keys().values() if command in reading(key.name)]


def help_of(command: str, purpose: str, options: Sequence[str], *, whole: bool = False) -> str:
    """Return a command's help; with `whole` all its keys, not only those that most need."""
    usage = USAGES[command]
    own = keys_of(command)
    short = [all_keys()[name] for name in usage.keys.split()]
    lines = [f"dlemu {command}: {purpose}", "", f"  dlemu {command} {usage.words}", "", "Examples:"]
    lines += [line for example in usage.examples for line in _lines_of(example)]
    lines += ["", "Options:", *_options([*options, *OPTIONS_OF_ALL])]
    if whole:
        rare = [key for key in own if key not in short]
        lines += ["", "Keys that most need:", *_shown(short), "", "All others:", *_shown(rare)]
    else:
        lines += ["", "Keys:", *_shown(short)]
        rest = len(own) - len(set(short) & set(own))
        lines += ["", f"dlemu {command} --help-all shows {rest} more keys."] if rest > 0 else [""]
    lines.append(
        "A default holds where the workload's file says nothing; --cfg job shows the values."
    )
    return "\n".join(lines)


OPTIONS_OF_ALL = ("--config-dir", "--cfg", "--quiet", "--verbose", "--help", "--help-all")
"""Options of each command for a workload."""


def _options(names: Iterable[str]) -> Iterator[str]:
    for name in dict.fromkeys(names):
        option = OPTIONS[name]
        shown = ", ".join(filter(None, (option.short, f"{name} {option.value}".rstrip())))
        yield f"  {shown:<27}{option.meaning}"


def _lines_of(command: str) -> list[str]:
    """Return a command as lines that a shell joins again."""
    lines = textwrap.wrap(
        command, _WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False
    )
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _shown(keys: Iterable[Key]) -> Iterator[str]:
    for key in keys:
        yield f"  {key.name}"
        for text in (key.meaning, key.line):
            yield from textwrap.wrap(
                text, _WIDTH, initial_indent="      ", subsequent_indent="      "
            )


def help_on(words: Sequence[str], commands: Iterable[str]) -> str:
    """Return the help on a key, a group of keys, or all of them.

    Raises:
        WorkloadError: there is none of that name.
    """
    word = words[0].partition("=")[0].lstrip("+~").removeprefix("workload.")
    keys = all_keys()
    if word in keys:
        return _whole(keys[word])
    if word == "keys":
        parts = [f"{_heading(group)}\n" + "\n".join(_shown(own)) for group, own in by_group()]
        return "\n\n".join(parts)
    groups = dict(by_group())
    if word in groups:
        return f"{_heading(word)}\n" + "\n".join(_shown(groups[word]))
    above = word.rpartition(".")[0]
    if above in keys:  # train.computation_time.mean
        return _whole(keys[above])
    if word in ("workloads", "drives"):
        return ", ".join(keys[word[:-1]].choices)
    leaves = {name.rpartition(".")[2]: name for name in reversed([*keys])}
    known = [*keys, *commands, *groups, "keys", "workloads"]
    hint = did_you_mean(word, known) or did_you_mean(
        word.rpartition(".")[2], leaves, cutoff=0.7, full=leaves
    )
    raise WorkloadError(
        f"no help on {word}{hint or '; dlemu help keys lists all keys, dlemu --help all commands'}"
    )


def by_group() -> list[tuple[str, list[Key]]]:
    """Return the keys by group; those of no group come first, under ""."""
    groups: dict[str, list[Key]] = {}
    for key in all_keys().values():
        groups.setdefault(key.name.rpartition(".")[0], []).append(key)
    return list(groups.items())


def _heading(group: str) -> str:
    return f"{group}: {about(group)}" if group else "Keys of no group:"


def _whole(key: Key) -> str:
    """Return all about one key."""
    named = reading(key.name)
    shown = ", ".join(f"dlemu {name}" for name in named)
    lines = [key.name, *textwrap.wrap(key.meaning, _WIDTH), "", f"values   {key.values}"]
    lines += [f"default  {key.default}"] if key.default else []
    lines += [f"read by  {shown or 'none: it has no effect here'}"]
    below = [name for name in all_keys() if name.startswith(f"{key.name}.")]
    lines += [f"below    {', '.join(below)}"] if below else []
    settings = list(_settings(key.name))
    return "\n".join(
        [*lines, *(["", "Where a published workload sets it:"] if settings else []), *settings]
    )


def _settings(key: str) -> Iterator[str]:
    """Yield the values that the published workloads give a key."""
    for name, path in known_workloads().items():
        value = value_of(read_yaml(path), key)
        if value is not None and key != "name":
            yield f"  {name:<16}{value}"
