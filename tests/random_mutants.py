"""Draws changes of the product by a seed: an operator, a condition or a number, anywhere."""

import ast
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.mutants import Mutation, tracked

_PRODUCT = ("dlemu/", "datagen/")
_WIDE = ("tests/test_golden.py", "tests/test_refusals.py")
"""Notice most."""
_OF_THE_TEXT = "tests/test_mutants.py"
"""Compares the list with the code as it is written, which a drawn change writes in another form."""
_NOWHERE = ("dlemu/storage/gpu/cuda.py", "dlemu/run/compute.py", "dlemu/loaders/dali/")
"""Needs a GPU, which the tests of most hosts do without."""
_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult},
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
}


def draw(root: Path, number: int, seed: int, only: Sequence[str] = ("",)) -> list[Mutation]:
    """Return mutations: files with one of the words in their name, changed whole.

    Each kind of change is as likely as the others: numbers are by far the most frequent.
    """
    files = [name for name in tracked(root) if name.startswith(_PRODUCT) and name.endswith(".py")]
    kinds: dict[str, list[tuple[str, ast.Module, ast.expr, ast.expr]]] = {}
    for file in files:
        if any(word in file for word in only) and not file.startswith(_NOWHERE):
            tree = ast.parse((root / file).read_text())
            for node, other in _changes(tree):
                kinds.setdefault(type(node).__name__, []).append((file, tree, node, other))
    generator = random.Random(seed)
    drawn = []
    for _ in range(number):
        kind = kinds[generator.choice(sorted(kinds))]
        drawn.append(_mutation(root, *kind.pop(generator.randrange(len(kind)))))
        kinds = {name: left for name, left in kinds.items() if left}
    return drawn


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield expressions, and what might stand there by mistake."""
    for node in ast.iter_child_nodes(tree):
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


class _Put(ast.NodeTransformer):
    """Puts one expression in the place of another."""

    def __init__(self, own: ast.AST, other: ast.AST) -> None:
        self._own, self._other = own, other

    def visit(self, node: ast.AST) -> Any:
        return self._other if node is self._own else self.generic_visit(node)


def _mutation(root: Path, file: str, tree: ast.Module, node: ast.expr, other: ast.expr) -> Mutation:
    """Return the mutation that puts one expression in the place of another."""
    what = f"line {node.lineno}: {ast.unparse(node)} -> {ast.unparse(other)}"
    new = ast.unparse(_Put(node, other).visit(tree))
    _Put(other, node).visit(tree)
    old = (root / file).read_text()
    return Mutation(file, what, old, new, _tests_of(root, file), drawn=True)


def _tests_of(root: Path, file: str) -> tuple[str, ...]:
    """Return all tests, those nearest to a module first.

    Those of its name, those of its room, the ones that see all, those that import it, and the rest.
    """
    path = Path(file)
    parts = path.with_suffix("").parts
    module = ".".join(parts if parts[0] == "dlemu" else ("dlemu", *parts))
    room = root / "tests" / module.split(".")[1]
    parent, _, name = module.rpartition(".")
    naming = (f"from {module} import", f"import {module}", f"from {parent} import {name}")
    found = []
    for test in (root / "tests").rglob("test_*.py"):
        inside, own = room in test.parents, str(test.relative_to(root))
        imports = any(word in test.read_text() for word in naming)
        near = (test.stem == f"test_{path.stem}", inside and imports, inside, own in _WIDE, imports)
        if own != _OF_THE_TEXT:
            found.append(((*near, True).index(True), own))
    return tuple(own for _, own in sorted(found))
