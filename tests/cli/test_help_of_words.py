"""`dlemu help WORD` has an answer for each word of each output, and for what errors name."""

import re
import tomllib
from collections.abc import Iterator
from typing import get_args

from dlemu.cli.main import _answer
from dlemu.cli.terms import term_of, terms
from dlemu.errors import WorkloadError
from dlemu.judge.bottleneck import LimitName
from tests.lab.golden import FOLDER, REFUSALS
from tests.lab.pages import ROOT

_TABLE = re.compile(r" *-{20,}")
_CELLS = re.compile(r"  +")
_LABEL = re.compile(r"(?!defaults)([a-zA-Z][\w*/ -]{1,32}): (?!dlemu )\S")
_NO_TEXT = re.compile(r"\$ .*(--json|help)|\$ (cat|render (limits|load|watch))\b")
"""Commands that print JSON, files or help, or whose lines begin with names of the lab's own."""
_OF_THE_LAB = re.compile(
    r"\d|[AB]$|NumPy|PyTorch|Python|h5py|.*(cannot run here|loads in|_h100|on a GPU)"
)
"""Columns by number, names of results, packages; rows and sentences that have a name in them."""


def words_of(text: str) -> Iterator[str]:
    """Yield heads of tables, the rows of those over epochs and of the doctor, and labels."""
    skipped = is_named = False
    lines = text.splitlines()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("$ "):
            skipped, is_named = _NO_TEXT.match(line) is not None, False
        elif skipped or _TABLE.fullmatch(line):
            continue
        elif _TABLE.fullmatch(below):
            heads = _CELLS.split(line.strip())
            yield from heads
            is_named = heads[0] in ("per epoch", "check")
        elif is_named and line.strip():
            yield _CELLS.split(line.strip())[0]
        else:
            is_named = is_named and bool(line.strip())
            yield from [found[1]] if (found := _LABEL.match(line)) else []


WORDS = sorted(
    {word for path in FOLDER.glob("*.txt") for word in words_of(path.read_text())}
    | {*get_args(LimitName)}
)


def test_each_word_of_each_output_has_its_help() -> None:
    assert len(WORDS) > 120
    missing = []
    for word in (word for word in WORDS if not _OF_THE_LAB.match(word)):
        try:
            assert _answer(["help", *word.split()])
        except WorkloadError:
            missing.append(word)
    assert not missing, f"give dlemu/cli/terms.yaml these words: {missing}"


_REMEDY = re.compile(r"(?:; |did you mean |write |set )(.*)")
_NAMED = re.compile(r"(?<![\w/.-])(--[a-z-]{4,}|(?:[a-z_]+\.)+[a-z_]+)(?=[=\s,;)]|$)")
_FILES = re.compile(r".*\.(json|yaml|csv|data)$|hydra\.")


def test_what_the_remedies_of_errors_name_has_its_help() -> None:
    told = tomllib.loads(REFUSALS.read_text()).values()
    remedies = [
        each for entries in told for line in entries.values() for each in _REMEDY.findall(line)
    ]
    named = {each for text in remedies for each in _NAMED.findall(text) if not _FILES.match(each)}
    assert len(named) > 40
    missing = []
    for each in sorted(named):
        try:
            assert _answer(["help", each])
        except WorkloadError:
            missing.append(each)
    assert missing == []


def test_pages_that_are_named_are_found() -> None:
    assert len(terms()) > 150
    named = {page for text in terms().values() for page in re.findall(r"\((\w+)\.md", text)}
    assert named
    for page in named | {"rules", "training_loops"}:
        told = str(_answer(["help", page]))
        assert f"the page {page}: {ROOT / 'docs' / page}.md" in told
    assert term_of("nothing of the kind") is None
