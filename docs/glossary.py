"""The table of docs/glossary.md: `python -m docs.glossary --write`, at the checkout's root."""

import sys
from pathlib import Path

from dlemu.cli.terms import terms
from dlemu.terminal import say
from docs.house import page_with

PAGE = Path(__file__).with_name("glossary.md")
MARKS = "<!-- python -m docs.glossary --write -->", "<!-- end -->"


def main() -> None:
    """Print the table, or put it into the page."""
    text = table()
    if sys.argv[1:] != ["--write"]:
        say(text)
        return
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page_with(page, text, MARKS), encoding="utf-8")


def table() -> str:
    """Return all words with their meaning as a table of Markdown."""
    rows = (f"| {word} | {meaning} |".replace("*", "\\*") for word, meaning in terms().items())
    return "\n".join(["| word | meaning |", "|---|---|", *rows])


if __name__ == "__main__":
    main()
