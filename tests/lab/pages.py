"""Commands that pages, help and results name, in their order, and what becomes of each in a test.

A command is a line of an indented block, or words between backticks. A line that ends in a
backslash goes on below; `JOB="..."` and `export` hold for what follows. How many there are:

    python -m tests.lab.pages
"""

import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

Kind = Literal["run", "composed", "named", "other"]
"""`run`: as it stands. `composed`: with all its keys, for it needs MPI, a second host or a GPU.
`named`: words of it are left out, or the reader's to fill in. `other`: no command of dlemu."""

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
_OTHERS = "make|python|moto_server|curl|cd|pip"
_BLOCK = re.compile(rf"^ {{4}}(?:\$ )?((?:dlemu|mpirun|sudo|{_OTHERS}) .*)$")
_SETS = re.compile(r'^ {4}(?:export )?((?:[A-Z_]+=(?:"[^"]*"|\S+) ?)+)$')
_LOOP = re.compile(r"^ {4}for (\w+) in (.*); do (.*); done$")
_INLINE = re.compile(r"`((?:dlemu|mpirun|python -m|make) [^`]+)`")
_COMMENT = re.compile(r"  +#.*")
_TO_FILL_IN = re.compile(r"…|\.\.\.|\[[A-Z=]|(?<![=\w])[A-Z]+(?:_[A-Z]+)*$|=[A-Z]+(?:\.yaml)?$|=$")
_GPU = re.compile(r"train.compute=gpu|cufile|:gpu\d|/dev/nvme|^steptime$")
_MODIFIES = ("--wear", "--full", "--dry-run")
"""Options that a page names together with their command."""
_LAUNCHERS = ("torchrun", "mpirun", "accelerate")


@dataclass(frozen=True)
class Command:
    """A command of a page."""

    text: str
    line: int
    variables: Mapping[str, str]
    """The shell's, by name, as the page has set them."""

    @property
    def all_words(self) -> list[str]:
        """Its words, those of a launcher too, without variables before them."""
        text = re.sub(r"\$(\w+)", lambda found: self.variables.get(found[1], found[0]), self.text)
        words = shlex.split(text)
        while re.match(r"[A-Z_]+=", words[0]):
            del words[0]
        return words

    @property
    def words(self) -> list[str]:
        """The words behind `dlemu`."""
        return self.all_words[self.all_words.index("dlemu") + 1 :]

    @property
    def kind(self) -> Kind:
        """What becomes of it."""
        if "dlemu" not in self.all_words:
            return "other"
        words = self.words
        is_name = words[0][0] != "-" and all(word in _MODIFIES for word in words[1:])
        if is_name or any(_TO_FILL_IN.search(word) for word in words):
            return "named"
        needs_more = self.all_words[0] in ("mpirun", "sudo") or any(map(_GPU.search, words))
        return "composed" if needs_more or {*_LAUNCHERS} & {*words} else "run"


def commands_of(page: str) -> Iterator[Command]:
    """Yield the commands of a page."""
    variables: dict[str, str] = {}
    lines = enumerate(page.splitlines(), 1)
    for number, line in lines:
        while line.startswith("    ") and line.endswith("\\"):
            line = f"{line[:-1].rstrip()} {next(lines)[1].strip()}"
        if found := _SETS.match(line):
            variables |= dict(each.split("=", 1) for each in shlex.split(found[1]))
        elif found := _BLOCK.match(line):
            yield Command(_COMMENT.sub("", found[1]).strip(), number, dict(variables))
        elif found := _LOOP.match(line):
            for value in found[2].split():
                yield Command(found[3], number, variables | {found[1]: value})
        elif not line.startswith("    "):
            for text in _INLINE.findall(line):
                yield Command(text, number, dict(variables))


def shrink(source: Path, target: Path, shares: Mapping[str, float]) -> None:
    """Copy the installed rows; the numbers of these keys become a share of what they are."""
    for path in source.rglob("*.yaml"):
        text = path.read_text()
        for key, share in shares.items():
            numbers = re.compile(rf"^( *{key}: )([\d.]+)(?=$|  #)", re.MULTILINE)
            text = numbers.sub(partial(_part, share), text)
        new = target / path.relative_to(source)
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text)


def _part(share: float, found: re.Match[str]) -> str:
    key, number = found.groups()
    small = float(number) * share
    if number.isdigit():
        return f"{key}{max(1, round(small)) if share else 0}"
    return f"{key}{small:.9g}"


def main() -> None:
    """Print the number of commands of each kind."""
    kinds = Counter(each.kind for page in PAGES for each in commands_of(page.read_text()))
    sys.stdout.write("".join(f"{number:5} {kind}\n" for kind, number in kinds.most_common()))


if __name__ == "__main__":
    main()
