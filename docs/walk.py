"""Make a walk-through anew: run the commands of its page, in order, and write what they print.

    python -m docs.walk docs/first_sizing.md            print the page
    python -m docs.walk docs/first_sizing.md --write    write it

A command is an indented line that begins with `$ dlemu`, and goes on behind a backslash. What
follows it, indented, is what it printed. All commands run in one new, empty folder below the
current one, which is removed at the end: so the current folder decides which drive is measured.
"""

import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

_WIDTH = 100


def remade(page: str, folder: Path) -> str:
    """Return the page with what its commands print in a folder."""
    return "\n".join([*_remade(iter(page.splitlines()), folder), ""])


def _remade(lines: Iterator[str], folder: Path) -> Iterator[str]:
    in_output = False
    for line in lines:
        is_command = line.startswith("    $ ")
        if in_output and not is_command and (line.startswith("    ") or not line):
            continue
        if in_output and not is_command:
            yield ""
        in_output = is_command
        yield line
        if not is_command:
            continue
        command = [line[6:]]
        while command[-1].endswith("\\"):
            command.append(next(lines))
            yield command[-1]
        words = " ".join(each.rstrip("\\").strip() for each in command)
        yield from _printed(words, folder)


def _printed(command: str, folder: Path) -> Iterator[str]:
    """Yield what a command prints; lines that are longer than the page are folded."""
    words = f"{sys.executable} -m dlemu{command.removeprefix('dlemu')}"
    done = subprocess.run(words, shell=True, capture_output=True, text=True, cwd=folder)
    if done.returncode == 1:
        sys.exit(f"{command}\n{done.stderr}")
    for line in done.stdout.replace(f"{folder}/", "").rstrip().splitlines():
        if len(line) <= _WIDTH:
            yield f"    {line}".rstrip()
        else:
            yield from textwrap.wrap(line, _WIDTH, initial_indent="    ", subsequent_indent=" " * 8)


def main(words: list[str]) -> int:
    """Print or write the page; return the exit status."""
    path = Path(words[0])
    with tempfile.TemporaryDirectory(dir=".") as folder:
        page = remade(path.read_text(encoding="utf-8"), Path(folder).resolve())
    if words[1:] == ["--write"]:
        path.write_text(page, encoding="utf-8")
    else:
        sys.stdout.write(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
