"""Draw the folders of dlemu and who imports whom: `python -m docs.house`, at the checkout's root.

    python -m docs.house            print the drawing
    python -m docs.house --write    put it into docs/architecture.md

It reads the table in tests/test_layers.py and the first sentence of each folder's docstring, so
that the page cannot tell something else than what the test enforces.
"""

import ast
import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
MARKS = "<!-- python -m docs.house --write -->", "<!-- end -->"


def folder_path(folder: str) -> Path:
    """Return where a folder of the package lies: two of them stand at the top."""
    return ROOT / folder if folder in ("datagen", "workloads") else ROOT / "dlemu" / folder


def first_sentence(tree: ast.Module) -> str:
    """Return the first sentence of a module's docstring."""
    words = " ".join((ast.get_docstring(tree) or "").split())
    return re.split(r"(?<=[.?])\s", words, maxsplit=1)[0]


def purpose(folder: str) -> str:
    """Return what a folder's `__init__`, or a module, says that it is for."""
    path = folder_path(folder)
    module = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return first_sentence(ast.parse(module.read_text(encoding="utf-8")))


def floors(may_import: Mapping[str, str]) -> list[list[str]]:
    """Return the folders floor by floor: each imports from lower floors only."""
    floor: dict[str, int] = {}
    while len(floor) < len(may_import):
        for folder, names in may_import.items():
            below = names.split()
            if folder not in floor and all(name in floor for name in below):
                floor[folder] = max((floor[name] + 1 for name in below), default=1)
    top = max(floor.values())
    return [sorted(f for f in floor if floor[f] == number) for number in range(1, top + 1)]


def draw(may_import: Mapping[str, str]) -> str:
    """Return the drawing and the table, in Markdown."""
    storeys = floors(may_import)
    lines = ["```text"]
    for number in range(len(storeys), 0, -1):
        lines.append(f"{number} | {'   '.join(storeys[number - 1])}")
    lines += ["0 | the ground: errors, findings, units, clock, terminal, plugins", "```", ""]
    lines += ["| folder | what it is for | may import, beside the ground |", "|---|---|---|"]
    for storey in reversed(storeys):
        for folder in storey:
            names = ", ".join(may_import[folder].split()) or "nothing"
            lines.append(f"| `{folder}` | {purpose(folder)} | {names} |")
    return "\n".join(lines)


def page_with(page: str, drawing: str, marks: tuple[str, str] = MARKS) -> str:
    """Return the page with what was made between its marks."""
    begin, end = marks
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{drawing}\n\n{end}{after}"


def print_or_write(words: list[str], page: Path, made: str, marks: tuple[str, str] = MARKS) -> int:
    """Print what was made, or put it into its page if the words are `--write`; return 0."""
    if words == ["--write"]:
        text = page.read_text(encoding="utf-8")
        page.write_text(page_with(text, made, marks), encoding="utf-8")
    else:
        sys.stdout.write(made + "\n")
    return 0


def main(words: list[str]) -> int:
    from tests.test_layers import MAY_IMPORT

    return print_or_write(words, PAGE, draw(MAY_IMPORT))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
