"""Counts the prose in modules: words that a person reads, and that are no error's.

A literal is prose if it has a word with a blank beside it, wherever it stands and whatever it is
joined with. Not counted are docstrings, and:

- names: members of a `Literal` type, what is assigned to `name` (of a thing or by itself), the name
  of a thread, and what becomes a pattern, a type or the names of commands (`_NAMING`);
- what a key means and may be (`_DESCRIBING`): the documentation of a field, which stands at it;
- what becomes the text of an error: the operand of `raise`, the arguments of an error's class or of
  a function that returns or raises one, the name of a phase (of a watchdog, or as it is shown),
  what a loader waits for in it, and what names hand to them: one after the other, in a loop, or
  from a module's table. A function, or a name of a module or class, has texts of errors if all
  that use it, in all modules, make errors of it.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

_PROSE = re.compile(
    r"[^\W\d_]{2,}[^\s\w]* +\S|\S +[^\s\w]*[^\W\d_]{2,}|^ +[^\W\d_]{2,}|[^\W\d_]{2,} +$"
)
_ERRORS = re.compile(
    r"\w*Error|of_system|damaged|_?refusal|refuse|writing|room|_?fail\w*|complain|on_begin|made|_check_url|phase|_phase|does|doing|watch|filterwarnings"
)
"""Calls that make an error of their arguments, name a phase, or know another's text."""
_NAMING = re.compile(
    "cast|Use|Thread|split|rsplit|partition|rpartition|startswith|endswith|removeprefix|removesuffix"
)
"""Calls whose arguments no person reads: types, names of commands, what a text is searched for."""
_NAMES = ("name", "servers")
"""Functions that return how a thing is called."""
_COMMAND = re.compile(r"((dlemu|pip install|kill|kill -9|rm -r) \S+$|import sys;)")
"""What is typed, or what another Python runs."""
_DESCRIBING = re.compile(r"Key|ParsedText|Registry|ArgumentParser|add_argument")
"""Calls that take what a key, a word of the command line or a part is, for its help."""
_PHASES = ("waiting_for", "busy", "longest_at")
"""Functions that return what a phase waits for."""


class Prose:
    """The prose of some modules, which use each other's names."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._trees = {path: ast.parse(path.read_text()) for path in paths}
        self._parents: dict[ast.AST, ast.AST] = {}
        self._scopes: dict[ast.AST, ast.AST] = {}
        """The function that each node stands in, or the module."""
        self._functions: set[tuple[ast.AST, str]] = set()
        self._loads: dict[ast.AST, dict[str, list[ast.AST]]] = defaultdict(
            lambda: defaultdict(list)
        )
        """Where names are used in a function or module, what is within its functions included."""
        for tree in self._trees.values():
            self._look_through(tree, tree, (tree,))
        self._homes: dict[str, list[ast.AST]] = defaultdict(list)
        """Modules by the end of their dotted name."""
        for path, tree in self._trees.items():
            parts = path.parts[:-1] if path.stem == "__init__" else (*path.parts[:-1], path.stem)
            for start in range(len(parts)):
                self._homes[".".join(parts[start:])].append(tree)
        self._literals = frozenset(self._members())
        self._uses = self._find_uses()
        self._known: dict[tuple[ast.AST, str], bool] = {}
        """Whether a name of a module has texts of errors."""

    def of(self, path: Path) -> list[tuple[int, str]]:
        """Return line and text of each literal of a module that is prose."""
        found = []
        for node in ast.walk(self._trees[path]):
            if not isinstance(node, ast.Constant | ast.JoinedStr):
                continue
            text = self._text_of(node)
            if text is None or text in self._literals or not _is_prose(text):
                continue
            if not self._is_of_an_error(node):
                found.append((node.lineno, text))
        return found

    def _look_through(self, node: ast.AST, scope: ast.AST, above: tuple[ast.AST, ...]) -> None:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            for each in above:
                self._loads[each][node.id].append(node)
        for child in ast.iter_child_nodes(node):
            self._parents[child], self._scopes[child] = node, scope
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                self._functions.add((above[0], child.name))
                self._look_through(child, child, (*above, child))
            else:
                self._look_through(child, scope, above)

    def _members(self) -> Iterator[str]:
        """Yield the members of all `Literal` types."""
        for node in self._parents:
            if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Literal":
                inner = (each for each in ast.walk(node.slice) if isinstance(each, ast.Constant))
                yield from (each.value for each in inner if isinstance(each.value, str))

    def _find_uses(self) -> dict[tuple[ast.AST, str], list[ast.AST]]:
        """Return where names are used, by their module.

        That of an attribute may be anybody's whose class has such a one, or a module's.
        """
        owners: dict[str, list[ast.AST]] = defaultdict(list)
        uses: dict[tuple[ast.AST, str], list[ast.AST]] = defaultdict(list)
        for node, parent in self._parents.items():
            if isinstance(parent, ast.ClassDef):
                names = _named_by(node) | {getattr(node, "name", "")}
                for name in names:
                    owners[name].append(self._module_of(node))
        for tree in self._trees.values():
            taken = dict(self._imports(tree))
            for name, nodes in self._loads[tree].items():
                theirs, own = taken.get(name, ([tree], name))
                for each in theirs:
                    uses[each, own] += nodes
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    home, inner = taken.get(getattr(node.value, "id", ""), ([], ""))
                    for each in home if inner == "*" else owners[node.attr]:
                        uses[each, node.attr].append(node)
        return uses

    def _imports(self, tree: ast.AST) -> Iterator[tuple[str, tuple[list[ast.AST], str]]]:
        """Yield the names that a module imports, whose they are and how they are called there.

        The name of a module itself is "*".
        """
        for node in ast.walk(tree):
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                module = f"{node.module}".removeprefix("dlemu.")  # type: ignore[attr-defined]
                whole = self._homes.get(f"{module}.{alias.name}")
                yield (
                    alias.asname or alias.name,
                    (whole, "*") if whole else (self._homes.get(module, []), alias.name),
                )

    def _has_texts_of_errors(self, module: ast.AST, name: str) -> bool:
        """Return whether all that use a function make errors of what it returns.

        Of a table, or another name of a module or class, one use is enough: others look into it.

        A use within the function itself is as its others; to look whether there is a text is none.
        """
        key = module, name
        if key not in self._known:
            self._known[key] = True  # as long as it is looked for
            uses = [
                node
                for node in self._uses.get(key, ())
                if getattr(self._scopes[node], "name", "") != name and not self._is_test(node)
            ]
            before = {**self._known}
            enough = all if (module, name) in self._functions else any
            if not (uses and enough(map(self._is_of_an_error, uses))):
                self._known = {**before, key: False}  # what was found by it is not
        return self._known[key]

    def _is_a_type(self, node: ast.AST) -> bool:
        while isinstance(node, ast.expr):
            above = self._parents[node]
            if node in (getattr(above, "returns", None), getattr(above, "annotation", None)):
                return True
            node = above
        return False

    def _is_test(self, node: ast.AST) -> bool:
        inner = node
        while isinstance(self._parents[inner], ast.expr):
            above = self._parents[inner]
            if isinstance(above, ast.NamedExpr):
                return False
            if isinstance(above, ast.Compare | ast.UnaryOp) or inner is getattr(
                above, "test", None
            ):
                return True
            inner = above
        return inner is getattr(self._parents[inner], "test", None)

    def _is_of_an_error(self, node: ast.AST) -> bool:
        """Return whether a node becomes the text of an error, by itself or by a name."""
        inner = node
        while inner in self._parents:
            inner = self._parents[inner]
            if self._takes_errors(inner) or _gives_a_name(inner):
                return True
            if names := _named_by(inner):
                if isinstance(self._parents.get(inner), ast.Module | ast.ClassDef):
                    return any(self._has_texts_of_errors(self._scopes[inner], n) for n in names)
                return self._reaches_an_error(names, self._scopes[inner])
            if isinstance(inner, ast.stmt):
                return False
        return False

    def _module_of(self, node: ast.AST) -> ast.AST:
        while node in self._scopes:
            node = self._scopes[node]
        return node

    def _takes_errors(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            full = f"{getattr(getattr(node.func, 'value', None), 'id', '')}.{name}"
            return any(kind.fullmatch(name) for kind in (_ERRORS, _NAMING, _DESCRIBING)) or (
                full.startswith("re.")
            )
        if isinstance(node, ast.keyword):
            return node.arg in ("name", "thread_name_prefix")
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom):
            name = getattr(self._scopes[node], "name", "")
            return name in (*_PHASES, *_NAMES) or self._has_texts_of_errors(
                self._module_of(node), name
            )
        return isinstance(node, ast.Raise | ast.Assert)

    def _reaches_an_error(self, names: frozenset[str], scope: ast.AST) -> bool:
        """Return whether one of these names, or one that takes theirs, stands in an error's text.

        It is looked for in the function, or in the module, that the names are of.
        """
        handed: set[str] = set()
        for node in (node for name in names for node in self._loads[scope][name]):
            inner = node
            while not isinstance(inner, ast.stmt):
                inner = self._parents[inner]
                if self._takes_errors(inner):
                    return True
                handed |= _named_by(inner)
        more = frozenset(handed) | names
        return more != names and self._reaches_an_error(more, scope)

    def _text_of(self, node: ast.Constant | ast.JoinedStr) -> str | None:
        """Return the text of a literal, a letter for each value in it; None for other constants."""
        parent = self._parents[node]
        if isinstance(parent, ast.Expr | ast.JoinedStr):  # a docstring; counted as a whole
            return None
        if isinstance(parent, ast.Compare):  # nobody reads what a text is compared with
            return None
        if self._is_a_type(node):
            return None
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        parts = (str(each.value) if isinstance(each, ast.Constant) else "x" for each in node.values)
        return "".join(parts)


def _is_prose(text: str) -> bool:
    return bool(_PROSE.search(text)) and not _COMMAND.match(text)


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
