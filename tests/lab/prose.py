"""Counts the prose in a module: words that a person reads, and that are no error's.

A literal is prose if it has a word with a blank beside it, wherever it stands and whatever it is
joined with. Not counted are docstrings, names (members of a `Literal` type, and what is assigned to
`name`, of a thing or by itself), and what becomes the
text of an error: the operand of `raise`, the arguments of an error's class or of a function that
returns or raises one, the name of a phase (of a watchdog, or as it is shown), what a loader waits
for in it, and what names hand to them: one after the other, in a loop, or from a module's table.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_PROSE = re.compile(
    r"[^\W\d_]{2,}[^\s\w]* +\S|\S +[^\s\w]*[^\W\d_]{2,}|^ +[^\W\d_]{2,}|[^\W\d_]{2,} +$"
)
_ERRORS = re.compile(
    r"\w*Error|of_system|damaged|_?refusal|room|phase|_phase|does|doing|watch|filterwarnings"
)
"""Calls that make an error of their arguments, name a phase, or know another's text."""
_PHASES = "waiting_for"
"""Functions that return what a phase waits for."""


def prose_in(path: Path, names: frozenset[str]) -> list[tuple[int, str]]:
    """Return line and text of each literal that is prose; `names` are not."""
    tree = ast.parse(path.read_text())
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found = []
    for node in ast.walk(tree):
        text = _text_of(node, parents)
        if text is None or text in names or not _PROSE.search(text):
            continue
        if not _is_of_an_error(node, parents):
            found.append((node.lineno, text))  # type: ignore[attr-defined]
    return found


def names_in(paths: Iterator[Path]) -> frozenset[str]:
    """Return the members of all `Literal` types of some modules."""
    members = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
                inner = (each for each in ast.walk(node.slice) if isinstance(each, ast.Constant))
                members |= {each.value for each in inner if isinstance(each.value, str)}
    return frozenset(members)


def _text_of(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> str | None:
    """Return the text of a literal, a letter for each value in it; None for other nodes."""
    parent = parents.get(node)
    if isinstance(parent, ast.Expr | ast.JoinedStr):  # a docstring; counted as a whole
        return None
    if node in (getattr(parent, "returns", None), getattr(parent, "annotation", None)):
        return None
    if isinstance(node, ast.JoinedStr):
        parts = (str(each.value) if isinstance(each, ast.Constant) else "x" for each in node.values)
        return "".join(parts)
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return str(node.value) if is_text else None  # type: ignore[attr-defined]


def _is_of_an_error(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> bool:
    """Return whether a literal becomes the text of an error, by itself or by a local name."""
    inner = node
    while inner in parents:
        inner = parents[inner]
        if _takes_errors(inner):
            return True
        if _gives_a_name(inner):
            return True
        if names := _named_by(inner):
            return _reaches_an_error(names, _function_of(inner, parents), parents)
        if isinstance(inner, ast.stmt):
            function = _function_of(inner, parents)
            return isinstance(inner, ast.Return) and getattr(function, "name", "") == _PHASES
    return False


def _gives_a_name(node: ast.AST) -> bool:
    """Return whether a statement assigns to `name`, `self.name` or, with others, `name, rate`."""
    if not isinstance(node, ast.Assign):
        return False
    inside = (each for target in node.targets for each in ast.walk(target))
    names = (
        each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in inside
    )
    return "name" in names


def _named_by(node: ast.AST) -> frozenset[str]:
    """Return the names that a statement or a `:=` gives to what is in it."""
    targets: list[ast.AST] = []
    if isinstance(node, ast.Assign):
        targets += node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr | ast.For):
        targets.append(node.target)
    inside = (each for target in targets for each in ast.walk(target))
    return frozenset(each.id for each in inside if isinstance(each, ast.Name))


def _takes_errors(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        return _ERRORS.fullmatch(name) is not None
    return isinstance(node, ast.Raise | ast.Assert)


def _function_of(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> ast.AST:
    while node in parents and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        node = parents[node]
    return node


def _reaches_an_error(
    names: frozenset[str], function: ast.AST, parents: Mapping[ast.AST, ast.AST]
) -> bool:
    """Return whether one of these names, or one that takes theirs, stands in an error's text.

    It is looked for in the function, or in the module, that the names are of.
    """
    handed: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load):
            inner: ast.AST = node
            while inner in parents:
                inner = parents[inner]
                if _takes_errors(inner):
                    return True
                handed |= _named_by(inner)
                if isinstance(inner, ast.stmt):
                    break
    more = frozenset(handed) | names
    return more != names and _reaches_an_error(more, function, parents)
