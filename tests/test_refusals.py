"""What cannot be is refused: tests/refusals.toml has the commands, and the line that each gets.

`make golden` writes the lines anew, and the diff is read.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import dlemu
from tests.lab.golden import REFUSALS, Refusal, refused

PRODUCT = Path(dlemu.__file__).parent
"""The package, wherever it is installed; its datagen may be a link."""

_REMEDY = re.compile(
    r"; |\bdid you mean |\b(write|set|add|use|name|leave|keep) |\bmust |\bneeds |\bknown: |"
    # A mistake that is its own remedy.
    r"unknown key |is none of |is not set|is needed, got |takes no |has no value|only|\?$|: dlemu |"
    r"\blists |^  value$"
)


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
    return [
        *(["it is no single line"] if len(refusal.lines) != 1 else []),
        *(["it is not dlemu's"] if not line.startswith("dlemu: ") else []),
        *([f"it printed {others}"] if others != ["(exit 1)"] else []),
        *([f"it left {refusal.left}"] if refusal.left else []),
        *([f"it names nothing that was typed: {line}"] if not _names(line, refusal) else []),
        *([f"it has no remedy: {line}"] if not _REMEDY.search(line) else []),
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


# --- what is damaged ------------------------------------------------------------------------------

_DAMAGED = re.compile(r"\bdamaged\b")


def _said_of_damage(path: Path) -> Iterator[tuple[int, bool]]:
    """Yield the line of each text that calls something damaged, and whether a remedy is said."""
    tree = ast.parse(path.read_text())
    above = {inner: outer for outer in ast.walk(tree) for inner in ast.iter_child_nodes(outer)}
    for text in ast.walk(tree):
        if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
            continue
        if not _DAMAGED.search(text.value):
            continue
        node: ast.expr = text
        while isinstance(outer := above[node], ast.JoinedStr | ast.BinOp | ast.FormattedValue):
            node = outer
        call = above[node]
        if isinstance(call, ast.Expr | ast.Assign):  # a docstring; the remedy itself
            continue
        words = "".join(
            str(each.value) for each in ast.walk(node) if isinstance(each, ast.Constant)
        )
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        keywords = call.keywords if isinstance(call, ast.Call) else []
        has_keyword = any(each.arg == "remedy" for each in keywords)
        yield node.lineno, has_keyword or "REMEDY" in names or _GOES_ON.search(words) is not None


# --- what no command of tests/refusals.toml reaches --------------------------------------------

_ROOMS = ("datagen", "config", "storage", "cli")
_ERRORS = {"DatasetError", "RunError", "WorkloadError", "MissingError"}
_OF_LIBRARIES = ("storage/gpu/",)
"""Their lines are those of cuFile and CUDA."""


def _said_by_errors(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and words of each error that is made of a text alone, without a remedy beside it.

    A text that ends with what another line says, such as `{error}`, is left to that.
    """
    for call in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.args):
            continue
        if call.func.id not in _ERRORS or any(each.arg == "remedy" for each in call.keywords):
            continue
        text = call.args[0]
        parts = text.values if isinstance(text, ast.JoinedStr) else [text]
        if isinstance(parts[-1], ast.Constant) and isinstance(parts[-1].value, str):
            yield (
                call.lineno,
                "".join(str(each.value) for each in parts if isinstance(each, ast.Constant)),
            )


def test_each_error_of_a_survey_a_place_or_a_key_has_a_remedy() -> None:
    found = {
        f"{name}:{line}": words
        for room in _ROOMS
        for path in sorted((PRODUCT / room).rglob("*.py"))
        if not (name := str(path.relative_to(PRODUCT))).startswith(_OF_LIBRARIES)
        for line, words in _said_by_errors(path)
    }
    assert len(found) > 50
    assert {place: words for place, words in found.items() if not _REMEDY.search(words)} == {}


_GOES_ON = re.compile(r"\b(restore|remove|run again|write the)\b")


def test_what_is_damaged_has_a_remedy() -> None:
    found = {
        f"{path.relative_to(PRODUCT)}:{line}": has
        for folder in (PRODUCT, PRODUCT / "datagen")
        for path in folder.rglob("*.py")
        for line, has in _said_of_damage(path)
    }
    assert len(found) > 20
    assert not [place for place, has in found.items() if not has]
