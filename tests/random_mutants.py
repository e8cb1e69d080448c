"""Draws changes of the product by a seed: an operator, a condition or a number, anywhere."""

import ast
import random
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_PRODUCT = ("dlemu", "datagen")
_WIDE = ("tests/test_golden.py", "tests/test_refusals.py")
"""Notice most."""
_NOWHERE = ("dlemu/storage/gpu/cuda.py", "dlemu/run/compute.py", "dlemu/loaders/dali/")
"""Needs a GPU, which the tests of most hosts do without."""
_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult},
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
}


def draw(root: Path, number: int, seed: int, only: Sequence[str] = ("",)) -> list[dict[str, Any]]:
    """Return the fields of mutations: files with one of the words in their name, changed whole.

    Each kind of change is as likely as the others: numbers are by far the most frequent.
    """
    command = ["git", "ls-files", *(f"{folder}/*.py" for folder in _PRODUCT)]
    names = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    files = [name for name in names.stdout.split() if any(word in name for word in only)]
    files = [name for name in files if not name.startswith(_NOWHERE)]
    kinds: dict[str, list[tuple[str, ast.expr, ast.expr]]] = {}
    for file in files:
        for node, other in _changes(ast.parse((root / file).read_text())):
            kinds.setdefault(type(node).__name__, []).append((file, node, other))
    generator = random.Random(seed)
    drawn = []
    for _ in range(number):
        kind = kinds[generator.choice(sorted(kinds))]
        drawn.append(_fields(root, *kind.pop(generator.randrange(len(kind)))))
        kinds = {name: left for name, left in kinds.items() if left}
    return drawn


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield expressions, and what might stand there by mistake."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.JoinedStr):
            continue  # Python 3.11 does not tell where its parts stand
        if _cannot_matter(node):
            continue
        yield from _changes(node)
        match node:
            case ast.BinOp(left, op, right) if type(op) in _OTHER and not _is_text(left, right):
                yield node, ast.BinOp(left, _other(op), right)
            case ast.BoolOp(op, values):
                yield node, ast.BoolOp(_other(op), values)
            case ast.Compare(left, [op, *more], values):
                yield node, ast.Compare(left, [_other(op), *more], values)
            case ast.IfExp(test, body, orelse):
                yield node, ast.IfExp(test, orelse, body)
            case ast.If(ast.Name() | ast.Call() | ast.Attribute() as test):
                yield test, ast.UnaryOp(ast.Not(), test)
            case ast.UnaryOp(ast.Not(), operand):
                yield node, operand
            case ast.Constant(int() | float() as value) if not isinstance(value, bool):
                yield (
                    node,
                    ast.Constant(2 * value + 1 if isinstance(value, int) else 2 * value + 1.0),
                )


def _cannot_matter(node: ast.AST) -> bool:
    """Return whether it is but words for people, or for the checker of types."""
    match node:
        case ast.Raise() | ast.FunctionDef(name="__repr__" | "__str__"):
            return True
        case ast.If(ast.Name("TYPE_CHECKING")) | ast.Assert() | ast.arg():
            return True
    return False


def _is_text(*nodes: ast.expr) -> bool:
    """Return whether something is joined or filled in that is no number."""
    return any(
        isinstance(node, ast.JoinedStr | ast.List | ast.Tuple)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
        for node in nodes
    )


def _other(operator: ast.AST) -> Any:
    return _OTHER[type(operator)]()


def _fields(root: Path, file: str, node: ast.expr, other: ast.expr) -> dict[str, Any]:
    """Return the fields of a mutation that puts one expression in the place of another."""
    text = (root / file).read_text()
    lines = text.encode().splitlines(keepends=True)
    begin, end = (
        len(b"".join(lines[: line - 1])) + column
        for line, column in (
            (node.lineno, node.col_offset),
            (node.end_lineno or 0, node.end_col_offset or 0),
        )
    )
    data = text.encode()
    own, new = data[begin:end].decode(), ast.unparse(other)
    changed = data[:begin] + f"({new})".encode() + data[end:]
    what = f"line {node.lineno}: {' '.join(own.split())} -> {new}"
    return {
        "file": file,
        "what": what,
        "old": text,
        "new": changed.decode(),
        "tests": _tests_of(root, file),
        "drawn": True,
    }


def _tests_of(root: Path, file: str) -> tuple[str, ...]:
    """Return the tests of a module, nearest first.

    That of its name, those of its room, the ones that see all, and those that import it.
    """
    path = Path(file)
    parts = path.with_suffix("").parts
    module = ".".join(parts if parts[0] == "dlemu" else ("dlemu", *parts))
    room = root / "tests" / module.split(".")[1]
    parent, _, name = module.rpartition(".")
    naming = (f"from {module} import", f"import {module}", f"from {parent} import {name}")
    found = sorted((root / "tests").rglob("test_*.py"))
    importing = [each for each in found if any(word in each.read_text() for word in naming)]
    named = (each for each in found if each.stem == f"test_{path.stem}")
    own = sorted(named, key=lambda each: room not in each.parents)
    near = [
        *own,
        *(each for each in importing if each.parent == room),
        *sorted(room.rglob("test_*.py")),
    ]
    chosen = [*near, *(root / each for each in _WIDE), *importing]
    names = [str(each.relative_to(root)) for each in chosen if each.exists()]
    return tuple(dict.fromkeys(names))
