"""What cannot be is refused: tests/refusals.toml has the commands, and the line that each gets.

`make golden` writes the lines anew, and the diff is read.
"""

import re

from tests.lab.golden import REFUSALS, Refusal, refused

_REMEDY = re.compile(
    r"; |\bdid you mean |\b(write|set|add|use|name|leave|keep) |\bmust |\bneeds |\bknown: |"
    # A mistake that is its own remedy.
    r"unknown key |is none of |is not set|is needed, got |takes no |has no value|only|\?$|: dlemu |"
    r"\blists "
)
NO_REMEDY = (
    "--config-dir /nosuch",
    "dataset.data_folder=${oops}",
    "try /proc",
)
"""Ends of commands whose lines lack one: to be mended."""


def test_what_cannot_be_gets_one_line_that_helps() -> None:
    """Each exits with 1, prints nothing else, and leaves nothing."""
    text = REFUSALS.read_text()
    written, found = refused(text)
    faults = [f"{each.words}: {fault}" for each in found for fault in _faults(each)]
    assert not faults, "\n".join(faults)
    assert written == text, "if that is meant: make golden, and read the diff"


def _faults(refusal: Refusal) -> list[str]:
    """Return what is wrong with a refusal, whatever its words are."""
    lines = refusal.printed.splitlines()
    others = [line for line in lines if not line.startswith(("! ", "ignored: "))]
    line = " ".join(refusal.lines)
    lacks = " ".join(refusal.words).endswith(NO_REMEDY)
    return [
        *(["it is no single line"] if len(refusal.lines) != 1 else []),
        *(["it is not dlemu's"] if not line.startswith("dlemu: ") else []),
        *([f"it printed {others}"] if others != ["(exit 1)"] else []),
        *([f"it left {refusal.left}"] if refusal.left else []),
        *([f"it names nothing that was typed: {line}"] if not _names(line, refusal) else []),
        *([f"it has no remedy: {line}"] if bool(_REMEDY.search(line)) == lacks else []),
    ]


def _names(line: str, refusal: Refusal) -> bool:
    """Return whether a line names a word, a key or a value of the command, or a missing key."""
    if "" in refusal.words:  # which has no name
        return True
    typed = {*refusal.words}
    for word in refusal.words[1:]:
        key, _, value = word.lstrip("+~").partition("=")
        typed |= {key, value, *key.split(".")}
    return any(each in line for each in typed if each) or bool(re.search(r"\w=|\w\.\w", line))
