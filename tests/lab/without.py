"""Runs commands of dlemu in a Python that has not got some packages, though they are installed.

    python -m tests.lab.without MODULE,MODULE COMMAND ...

Each COMMAND is a line of words for `dlemu`; behind each stands a line `-> STATUS`.
"""

import importlib.machinery
import re
import shlex
import sys
from collections.abc import Iterator
from typing import Any

MISSING = set(sys.argv[1].split(","))


class Without:
    """What finds modules on sys.path, but for those that are missing."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if MISSING & {name, name.partition(".")[0]}:
            return None
        return importlib.machinery.PathFinder.find_spec(name, path, target)

    @staticmethod
    def find_distributions(*context: Any) -> Iterator[Any]:
        for each in importlib.machinery.PathFinder.find_distributions(*context):
            if re.sub("[-.]", "_", each.metadata["Name"]).lower() not in MISSING:
                yield each

    invalidate_caches = importlib.machinery.PathFinder.invalidate_caches


def main() -> None:
    finders: list[Any] = sys.meta_path
    finders[finders.index(importlib.machinery.PathFinder)] = Without
    from dlemu.cli.main import run

    for words in sys.argv[2:]:
        status = run(shlex.split(words))
        print(f"-> {status}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
