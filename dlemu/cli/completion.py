"""`dlemu completion SHELL`: a script that completes dlemu's words; it starts no process itself."""

import shlex
from collections.abc import Sequence

from dlemu.cli.commands import COMMANDS
from dlemu.cli.help import OPTIONS_OF_ALL, keys_of, own_keys
from dlemu.cli.words import OPTIONS, parse
from dlemu.errors import WorkloadError
from dlemu.terminal import Answer, say
from dlemu.workload.keys import all_keys

SHELLS = ("bash", "zsh")


def main(arguments: Sequence[str]) -> int:
    """Run `dlemu completion` with its arguments; return the exit status."""
    words = parse(arguments)
    if len(words.others) != 1 or words.others[0] not in SHELLS:
        raise WorkloadError(f"name a shell: dlemu completion {'|'.join(SHELLS)}")
    say(Answer(script(words.others[0])))
    return 0


def script(shell: str) -> str:
    """Return the script for a shell."""
    words = words_of_commands()
    paths = [name for name, option in OPTIONS.items() if option.value in ("FILE", "FOLDER")]
    paths += [OPTIONS[name].short for name in paths if OPTIONS[name].short]
    filled = {
        "__TABLES__": _TABLES,
        "__WORDS__": "\n".join(_case(*each) for each in words.items()),
        "__VALUES__": "\n".join(_case(*each) for each in values_of_keys().items()),
        "__COMMANDS__": " ".join(words),
        "__PATHS__": "|".join(paths),
    }
    text = {"bash": _BASH, "zsh": _ZSH}[shell]
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
    found["help"] = [*found, *all_keys(), *sorted(groups), "keys"]
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


_TABLES = """\
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
"""

_BASH = """\
# bash completion of dlemu; made by: dlemu completion bash
__TABLES__
_dlemu() {
  # The shell may split words at = and :, so the line itself is read.
  local line="${COMP_LINE:0:COMP_POINT}" cur known key head item i
  local -a before
  cur="${line##*[[:space:]]}"
  read -ra before <<< "${line%"$cur"}"
  COMPREPLY=()
  for ((i = 0; i < ${#before[@]}; i++)); do
    [[ ${before[i]##*/} == dlemu ]] && break
  done
  local command="${before[i + 1]-}" last="${before[${#before[@]} - 1]-}"
  if [[ -z $command ]]; then
    COMPREPLY=($(compgen -W "__COMMANDS__" -- "$cur"))
  elif [[ $cur == *=* ]]; then
    key="${cur%%=*}" head="${cur%%=*}=" known=""
    key="${key##+}"
    known="$(_dlemu_values "${key##+}")"
    while read -r item; do
      [[ -n $item ]] && COMPREPLY+=("$head$item")
    done < <(
      compgen -W "${known%/}" -- "${cur#"$head"}"
      [[ $known == */ || $key == --* ]] && compgen -f -- "${cur#"$head"}"
    )
    [[ $known == */ || $key == --* ]] && compopt -o filenames -o nospace 2> /dev/null
    # What stands before the last = is kept by the shell, where it splits words there.
    [[ $COMP_WORDBREAKS == *=* ]] && COMPREPLY=("${COMPREPLY[@]#"$head"}")
  elif [[ $last == @(__PATHS__) ]]; then
    compopt -o filenames 2> /dev/null
    COMPREPLY=($(compgen -f -- "$cur"))
  elif [[ $last == @(--cfg|-c) ]]; then
    COMPREPLY=($(compgen -W job -- "$cur"))
  else
    COMPREPLY=($(compgen -W "$(_dlemu_words "$command")" -- "$cur"))
    if [[ $cur != -* && $command != help && $command != completion ]]; then
      while read -r item; do
        [[ -n $item ]] && COMPREPLY+=("$item/")
      done < <(compgen -d -- "$cur")
    fi
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=/] ]] && compopt -o nospace 2> /dev/null
  fi
  return 0
}
complete -F _dlemu dlemu
"""


_ZSH = """\
#compdef dlemu
# zsh completion of dlemu; made by: dlemu completion zsh
__TABLES__
_dlemu() {
  local cur="${words[CURRENT]}" last="${words[CURRENT-1]}" known
  local -a found equal
  if (( CURRENT == 2 )); then
    compadd -- __COMMANDS__
  elif [[ $cur == *=* ]]; then
    known="$(_dlemu_values "${${cur%%=*}##+}")"
    compset -P 1 '*='
    found=(${=known%/})
    compadd -- $found
    [[ $known == */ || $cur == --* ]] && _files
  elif [[ $last == (__PATHS__) ]]; then
    _files
  elif [[ $last == (--cfg|-c) ]]; then
    compadd -- job
  else
    found=(${=$(_dlemu_words "${words[2]}")})
    equal=(${(M)found:#*=})
    found=(${found:#*=})
    compadd -- $found
    compadd -S '' -- $equal
    [[ ${words[2]} != (help|completion) && $cur != -* ]] && _files -/
  fi
  return 0
}
(( $+functions[compdef] )) && compdef _dlemu dlemu
[[ $funcstack[1] == _dlemu ]] && _dlemu
"""
