"""Write the page of all keys from the models: `python -m docs.keys`, at the checkout's root.

python -m docs.keys            print the page
python -m docs.keys --write    put it into docs/keys.md
"""

import sys
from pathlib import Path

from dlemu.cli.commands import COMMANDS
from dlemu.cli.help import by_group, own_keys, reading
from dlemu.config.keys import Key, about, all_keys

PAGE = Path(__file__).with_name("keys.md")
FEW = 5
"""A command with more keys of its own has a section of its own."""

HEAD = """\
# All keys

`dlemu help KEY` shows one of them, `dlemu COMMAND --help-all` those of a command. The command
`python -m docs.keys --write` makes this page from the models: `dlemu/config/` has
those of jobs.

- A key is written as `key=value`, in any order behind the command.
- A default holds where the workload's file says nothing. `dlemu run workload=NAME --cfg job`
  shows all values of a workload.
- Sizes take a unit: `4096`, `64KiB` (2^10), `1MB` (10^6). Times are in seconds.
- Behind the command of its group the group's name may be left out: `dlemu paths . seconds=5`.
- `null` means "not set". A list is written as `"key=[A,B]"`.
- Unknown keys are refused. DLIO's keys that have no effect are accepted and named.
"""


def render() -> str:
    """Return the page."""
    sections: dict[str, list[Key]] = {}
    for group, keys in by_group():
        sections.setdefault(group.partition(".")[0], []).extend(keys)
    for name in COMMANDS:
        keys = [key for key in own_keys(name, f"{name}.") if not _is_of_job(name, key)]
        if keys:
            section = name if len(keys) > FEW else "Keys of other commands"
            sections.setdefault(section, []).extend(keys)
    return "\n".join([HEAD, *(_section(name, keys) for name, keys in sections.items())])


def _is_of_job(command: str, key: Key) -> bool:
    """Return whether a command takes a key of a workload's group."""
    own = key.name.removeprefix(f"{command}.")
    return "." in own and own in all_keys()


def _section(group: str, keys: list[Key]) -> str:
    lines = [f"## {group or 'Keys of no group'}", ""]
    if about(group) or group in COMMANDS:
        lines += [about(group) or f"Keys of `dlemu {group}` alone.", ""]
    lines += ["| key | meaning | values | default | read by |", "|---|---|---|---|---|"]
    for key in keys:
        commands = ", ".join(reading(key.name)) or "none"
        default = f"`{key.default}`" if key.default else ""
        cells = (f"`{key.name}`", key.meaning, key.values, default, commands)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def main(words: list[str]) -> int:
    """Print the page, or write it."""
    if words == ["--write"]:
        PAGE.write_text(render(), encoding="utf-8")
    else:
        sys.stdout.write(render())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
