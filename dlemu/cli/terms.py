"""The words of dlemu's output and pages: `dlemu help WORD`, and the table of docs/glossary.md."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml


@cache
def terms() -> Mapping[str, str]:
    """Return the meaning of each word, as Markdown, in the order of the alphabet."""
    found: dict[str, str] = yaml.safe_load(Path(__file__).with_name("terms.yaml").read_text())
    return found


def term_of(text: str) -> str | None:
    """Return the term that a word of the output is: "lost: barrier (%)" is "barrier"."""
    known = {word.lower(): word for word in terms()} | {word: word for word in terms()}
    text = re.sub(r" *\([^)]*\)| at \d+$", "", text).strip()
    parts = text.split()
    shorter = (" ".join(parts[:count]).rstrip(",:;") for count in range(len(parts), 0, -1))
    for each in (text, text.partition(": ")[2], *shorter):
        for form in (each, each.lower(), each.lower().removesuffix("s")):
            if form in known:
                return known[form]
    return None


def told(term: str) -> str:
    """Return a term and its meaning as plain text, with the command that finds a page."""
    text = re.sub(r"\[([^]]+)\]\((\w+)\.md[^)]*\)", r'"\1" (dlemu help \2)', terms()[term])
    return f"{term}: {text}".replace("`", "")
