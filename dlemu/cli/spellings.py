"""The words of DLIO, `mlpstorage` and MLPerf Storage v1.0's `benchmark.sh`, in dlemu's words.

Where the meaning is the same the word works. Where it is not, one line names the page that says
what to write.
"""

from collections.abc import Iterable, Iterator, Sequence

from dlemu.config.compose import known_workloads, refuse_tilde
from dlemu.errors import WorkloadError

_KEYS = {
    **dict.fromkeys(("--num-accelerators", "-na"), "num_accelerators"),
    **dict.fromkeys(("--max-accelerators", "-ma"), "num_accelerators"),
    **dict.fromkeys(("--num-client-hosts", "-nc"), "num_hosts"),
    **dict.fromkeys(("--data-dir", "-dd"), "dataset.data_folder"),
}
"""Options whose value is that of a key."""
_GIB = "--client-host-memory-in-gb"
_NAMES = ("--workload", "--model")
_TYPE = "--accelerator-type"
_LONG = {"-cm": _GIB, "-at": _TYPE}
_PARAMS = ("--params", "--param", "-p")
_FLAGS = {
    "--open": ["division=open"],
    "--closed": ["division=closed"],
    "--o-direct": ["reader.odirect=true"],
    "--allow-invalid-params": [],
    "-aip": [],
}
_VALUED = (*_KEYS, _GIB, *_NAMES, _TYPE)
_MODES = {"closed": ["--closed"], "open": ["--open"], "whatif": []}
_COMMANDS = ("datasize", "datagen", "run")

_REFUSED = frozenset(
    (
        *("--results-dir", "--loops", "--what-if", "--debug", "--stream-log-level"),
        *("--hosts", "--num-processes", "--num-parallel", "--ssh-username", "--exec-type"),
        *("--mpi-bin", "--mpi-params", "--mpi-btl", "--oversubscribe", "--allow-run-as-root"),
        *("--systemname", "--drop-caches-timeout-seconds", "--config-file"),
        *("training", "checkpointing", "vectordb", "kvcache", "reports", "reportgen"),
        *("configview", "history", "closed", "open", "whatif", "object"),
    )
)
"""Options and commands that mean nothing here; docs/from_dlio.md has a row for each."""


def refusal(word: str) -> str:
    """Return the line for an option or a command of mlpstorage; "" if it has none of that name."""
    where = "the table in docs/from_dlio.md says what to write"
    return f"{word} is a word of mlpstorage; {where}" if word in _REFUSED else ""


def with_command_first(words: Sequence[str]) -> list[str]:
    """Return `run --model unet3d …` for mlpstorage's `closed training unet3d run file …`.

    Raises:
        WorkloadError: the data lie in a bucket, which is named in another way here.
    """
    mode = [*words[:1]] if words[:1] and words[0] in _MODES else []
    match words[len(mode) :]:
        case ["training", command, *rest] if command in _COMMANDS:
            model = []
        case ["training", name, command, *rest] if command in _COMMANDS:
            model = ["--model", name]
        case _:
            return [*words]
    if rest[:1] == ["object"]:
        raise WorkloadError(refusal("object"))
    rest = rest[1:] if rest[:1] == ["file"] else rest
    return [command, *model, *(_MODES[mode[0]] if mode else []), *rest]


def translated(words: Sequence[str]) -> list[str]:
    """Return words with the spellings of the others replaced by dlemu's.

    Raises:
        WorkloadError: a word means something else here, or lacks its value.
    """
    end = words.index("--") if "--" in words else len(words)
    own, named = [], dict[str, str]()
    for word, value in _paired(words[:end]):
        if word in (*_NAMES, _TYPE):
            named[word] = value
        elif word == _GIB:
            own.append(f"host_memory={value}GiB")
        elif word in _KEYS:
            refuse_tilde(word, value)
            own.append(f"{_KEYS[word]}={value}")
        else:
            own += _FLAGS.get(word, [_without_group(word)])
    return [*_workload(named), *own, *words[end:]]


def _paired(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each word, and the value of those that have one there."""
    left = iter(words)
    for word in left:
        option, is_set, value = word.partition("=")
        option = _LONG.get(option, option)
        if option.startswith("-") and refusal(option):
            raise WorkloadError(refusal(option))
        if option in _PARAMS:
            if is_set:  # --param=key=value
                yield value, ""
        elif option in _VALUED:
            value = value if is_set else next(left, "")
            if not value or value.startswith("-"):
                raise WorkloadError(f"{option} needs a value")
            yield option, value
        else:
            yield word, ""


def _workload(named: dict[str, str]) -> list[str]:
    """Return workload=NAME for --workload or --model with --accelerator-type."""
    if not named:
        return []
    known = known_workloads()
    model = next((named[option] for option in _NAMES if option in named), "")
    name = f"{model}_{named[_TYPE]}" if _TYPE in named else model
    if not model:
        raise WorkloadError(f"{_TYPE} {named[_TYPE]} needs --model, or write workload=NAME")
    if name not in known and _TYPE not in named:
        kinds = [each.rpartition("_")[2] for each in known if each.startswith(f"{model}_")]
        if kinds:
            raise WorkloadError(
                f"--model {model} needs {_TYPE} {' or '.join(kinds)}; or write "
                f"workload={model}_{'h100' if 'h100' in kinds else kinds[-1]}"
            )
    return [f"workload={name}"]


def _without_group(word: str) -> str:
    """Return ++workload.train.epochs=1, as DLIO has it, as train.epochs=1."""
    bare = word.lstrip("+")
    return bare.removeprefix("workload.") if bare.startswith("workload.") else word
