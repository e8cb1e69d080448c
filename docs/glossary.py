"""The table of docs/glossary.md: `python -m docs.glossary --write`, at the checkout's root."""

import sys
from pathlib import Path

from dlemu.cli.terms import terms
from docs.house import print_or_write

PAGE = Path(__file__).with_name("glossary.md")
MARKS = "<!-- python -m docs.glossary --write -->", "<!-- end -->"


def main(words: list[str]) -> int:
    """Print the table, or put it into the page."""
    return print_or_write(words, PAGE, table(), MARKS)


def table() -> str:
    """Return all words with their meaning as a table of Markdown."""
    rows = (f"| {word} | {meaning} |".replace("*", "\\*") for word, meaning in terms().items())
    return "\n".join(["| word | meaning |", "|---|---|", *rows])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
