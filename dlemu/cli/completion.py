"""`dlemu completion SHELL`: a script that completes dlemu's words; it starts no process itself."""

import shlex
from collections.abc import Sequence

from dlemu.cli.commands import COMMANDS
from dlemu.cli.help import OPTIONS_OF_ALL, keys_of, own_keys
from dlemu.cli.words import OPTIONS, Words
from dlemu.config.keys import all_keys
from dlemu.errors import WorkloadError
from dlemu.terminal import Answer, say

SHELLS = ("bash", "zsh")


def main(words: Words) -> int:
    """Run `dlemu completion`; return the exit status."""
    if len(words.others) != 1 or words.others[0] not in SHELLS:
        raise WorkloadError(f"name a shell: dlemu completion {'|'.join(SHELLS)}")
    say(Answer(script()))
    return 0


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
