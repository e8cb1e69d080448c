"""What `dlemu COMMAND --help`, `dlemu help WORD` and the shells' completion show.

The commands come from the table in commands.py, the keys and their meaning from the models.
"""

import json
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from sysconfig import get_path

from dlemu.cli.commands import COMMANDS
from dlemu.cli.terms import term_of, told
from dlemu.cli.words import OPTIONS, Words, parse
from dlemu.config.compose import known_workloads, named, read_yaml
from dlemu.config.dlio import DECLINED, IGNORED
from dlemu.config.keys import Key, about, all_keys, keys_of_model
from dlemu.config.model import read_by
from dlemu.config.published import value_of
from dlemu.errors import WorkloadError, did_you_mean
from dlemu.plugins import named_by
from dlemu.terminal import Answer, say

_WIDTH = 96


def reading(key: str) -> list[str]:
    """Return the commands that read a key, in the order of the help."""
    command, _, own = key.partition(".")
    if own and command in COMMANDS and COMMANDS[command].arguments:
        return [command]
    named = [*read_by("name"), "verify"] if key == "workload" else read_by(key)
    return [name for name in COMMANDS if name in named]


def own_keys(name: str, above: str = "") -> list[Key]:
    """Return the keys of a command without a workload; their names begin with `above`."""
    arguments = COMMANDS[name].arguments
    return [*keys_of_model(named_by(arguments), above)] if arguments else []


def keys_of(name: str) -> list[Key]:
    """Return the keys that a command reads."""
    return [*own_keys(name), *(key for key in all_keys().values() if name in reading(key.name))]


def help_of(name: str, *, whole: bool = False) -> str:
    """Return a command's help; with `whole` all its keys, not only those that most need."""
    command = COMMANDS[name]
    known = {key.name: key for key in keys_of(name)}
    short = [known.get(key) or all_keys()[key] for key in command.keys.split()]
    short = [*own_keys(name), *(key for key in short if key not in own_keys(name))]
    lines = [f"dlemu {name}: {command.line}", ""]
    lines += [f"  dlemu {name} {words}" for words in command.words.splitlines()]
    lines += ["", *textwrap.wrap(command.about, _WIDTH)] if command.about else []
    lines += ["", "Examples:"] if command.examples else []
    lines += [line for example in command.examples for line in _lines_of(example)]
    shared = ("--quiet", "--verbose", "--help") if command.function else OPTIONS_OF_ALL
    lines += ["", "Options:", *_options([*command.options, *shared])]
    rest = [key for key in known.values() if key not in short]
    if short:
        lines += ["", "Keys that most need:" if whole and rest else "Keys:", *_shown(short)]
    if rest and whole:
        lines += ["", "All others:", *_shown(rest)]
    elif rest:
        lines += ["", f"dlemu {name} --help-all shows {len(rest)} more keys."]
    if not command.function:
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
        default = f"; default {key.default}" if key.default else ""
        for text in (key.meaning, f"{key.values}{default}"):
            yield from textwrap.wrap(
                text, _WIDTH, initial_indent="      ", subsequent_indent="      "
            )


_ROWS = {"model": "dlemu checkpoint model", "weights": "dlemu load model", "drive": "drive"}
"""Groups of rows beside the workloads, and what takes a name of them."""


def help_on(words: Sequence[str]) -> str:
    """Return the help on a key, a group of keys, all of them, a word of the output, or a row.

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
    term = term_of(" ".join(words))
    found = [textwrap.fill(told(term), _WIDTH)] if term else []
    if word in groups:
        found.append(f"{_heading(word)}\n" + "\n".join(_shown(groups[word])))
    if page := _page(word):
        found.append(f"the page {word}: {page}")
    if found:
        return "\n\n".join(found)
    if word in OPTIONS:
        return f"{f'{word} {OPTIONS[word].value}'.rstrip()}: {OPTIONS[word].meaning}"
    if word in IGNORED:
        why = DECLINED.get(word, "changes nothing of what is read")
        return f"{word}: a key of DLIO that has no effect here: it {why}"
    if word in known_workloads():
        return str(workloads([word]))
    if row := next((group for group in _ROWS if word in named(group)), ""):
        return f"{word}: a row of {row}/, for {_ROWS[row]}={word}"
    above = word.rpartition(".")[0]
    if above in keys:  # train.computation_time.mean
        return _whole(keys[above])
    of_commands = (key for name in COMMANDS for key in own_keys(name, f"{name}."))
    if same := [key for key in (*keys.values(), *of_commands) if key.name.endswith(f".{word}")]:
        return "\n\n".join(map(_whole, same))
    leaves = {name.rpartition(".")[2]: name for name in reversed([*keys])}
    known = [*keys, *COMMANDS, *groups, "keys", "workloads"]
    hint = did_you_mean(word, known) or did_you_mean(
        word.rpartition(".")[2], leaves, cutoff=0.7, full=leaves
    )
    raise WorkloadError(
        f"no help on {word}{hint or '; dlemu help keys lists all keys, dlemu --help all commands'}"
    )


def _page(name: str) -> Path | None:
    """Return where a page lies: in the checkout, or where pip has put it."""
    own, installed = Path(__file__).parents[2] / "docs", Path(get_path("data"), "share/doc/dlemu")
    return next(filter(Path.is_file, (folder / f"{name}.md" for folder in (own, installed))), None)


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
    found = {name: value_of(read_yaml(path), key) for name, path in known_workloads().items()}
    found = {name: value for name, value in found.items() if value is not None and key != "name"}
    width = max(map(len, found), default=0)
    for name, value in found.items():
        yield f"  {name:<{width}}  {value}"


def workloads(words: Sequence[str]) -> Answer:
    """Return what the published workloads ask of storage; words are prefixes of their names."""
    from dlemu.report.text import answer_of
    from dlemu.report.tools import present_workloads
    from dlemu.sizing.formula import workload_rows

    asked, names = parse(words, ["--json"]), [*known_workloads()]
    if asked.overrides:
        raise WorkloadError(f"dlemu help workloads takes no keys, got {asked.overrides[0]}")
    for begin in asked.others:
        if not any(name.startswith(begin) for name in names):
            hint = did_you_mean(begin, names) or "; dlemu help workloads lists all"
            raise WorkloadError(f"no workload begins with {begin}{hint}")
    documents = workload_rows(asked.others or [""])
    if "--json" in asked.options:
        return Answer(json.dumps(documents, indent=1))
    return answer_of(present_workloads(documents))


# --- completion -----------------------------------------------------------------------------------

SHELLS = ("bash", "zsh")


def completion(words: Words) -> None:
    """Print what `dlemu completion` is asked for."""
    if len(words.others) != 1 or words.others[0] not in SHELLS:
        raise WorkloadError(f"name a shell: dlemu completion {'|'.join(SHELLS)}")
    say(Answer(script()))


def script() -> str:
    """Return the script, which is the same for each shell."""
    words = words_of_commands()
    paths = [name for name, option in OPTIONS.items() if option.value in ("FILE", "FOLDER")]
    paths += [OPTIONS[name].short for name in paths if OPTIONS[name].short]
    filled = {
        "__WORDS__": "\n".join(_case(*each) for each in words.items()),
        "__VALUES__": "\n".join(_case(*each) for each in values_of_keys().items()),
        "__COMMANDS__": " ".join(words),
        "__PATHS__": "|".join(paths),
    }
    text = _SCRIPT
    for mark, filling in filled.items():
        text = text.replace(mark, filling)
    return text.rstrip()


def words_of_commands() -> dict[str, list[str]]:
    """Return what may follow each command: options, and keys with their =."""
    found = {}
    for name, command in COMMANDS.items():
        options = dict.fromkeys((*command.options, *OPTIONS_OF_ALL))
        shells = SHELLS if name == "completion" else ()
        found[name] = [*shells, *options, *(f"{key.name}=" for key in keys_of(name))]
    groups = {f"{key.rpartition('.')[0]}" for key in all_keys()} - {""}
    found["help"] = [*found, *all_keys(), *sorted(groups), "keys", "workloads"]
    return found


def values_of_keys() -> dict[str, list[str]]:
    """Return the values of each key that has few; a path is marked by a single /."""
    found: dict[str, list[str]] = {"size.targets": ["/"]}
    for key in [*all_keys().values(), *(key for name in COMMANDS for key in own_keys(name))]:
        values = [*key.choices, *(["/"] if key.is_path else [])]
        if values:
            found[key.name] = list(dict.fromkeys((*found.get(key.name, ()), *values)))
    return found


def _case(name: str, words: Sequence[str]) -> str:
    return f"    {name}) echo {shlex.quote(' '.join(words))} ;;"


_SCRIPT = """\
# Completion of dlemu in bash and, with its bashcompinit, in zsh; made by: dlemu completion bash
[[ -n ${ZSH_VERSION-} ]] && autoload -U +X bashcompinit && bashcompinit
_dlemu_words() {
  case "$1" in
__WORDS__
  esac
}
_dlemu_values() {
  case "$1" in
__VALUES__
  esac
}
_dlemu() {
  # A shell may split words at = and :, so the line itself is read.
  local line="${COMP_LINE:0:$COMP_POINT}" cur command last head="" known="" paths="" item
  cur="${line##*[[:space:]]}"
  line="${line%"$cur"}"
  line="${line#*dlemu[[:space:]]}"
  command="${line%%[[:space:]]*}"
  last="${line%"${line##*[![:space:]]}"}"
  last="${last##*[[:space:]]}"
  if [[ -z $command ]]; then
    known="__COMMANDS__"
  elif [[ $cur == *=* ]]; then
    head="${cur%%=*}="
    known="${head%=}"
    known="$(_dlemu_values "${known##+}")"
    [[ $known == */ || $head == --* ]] && paths=all
  elif [[ $last == @(__PATHS__) ]]; then
    paths=all
  elif [[ $last == @(--cfg|-c) ]]; then
    known=job
  else
    known="$(_dlemu_words "$command")"
    [[ $cur != -* && $command != @(help|completion) ]] && paths=folders
  fi
  cur="${cur#"$head"}"
  # What stands before the last = is kept by the shell, where it splits words there.
  [[ ${COMP_WORDBREAKS-} == *=* ]] && head=""
  COMPREPLY=()
  for item in ${known%/}; do
    [[ $item == *= ]] || item="$item "
    [[ $item == "$cur"* ]] && COMPREPLY+=("$head$item")
  done
  [[ -n $paths ]] && for item in "$cur"*; do
    [[ -d $item ]] && COMPREPLY+=("$head$(printf %q "$item")/")
    [[ -f $item && $paths == all ]] && COMPREPLY+=("$head$(printf %q "$item") ")
  done
  return 0
}
complete -o nospace -F _dlemu dlemu
"""
