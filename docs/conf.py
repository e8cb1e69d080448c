"""How Sphinx builds these pages: `make docs`."""

import ast
import re
import sys
from importlib.metadata import version as version_of
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs.house import first_sentence, folder_path

project = "dlemu"
author = "the authors of dlemu"
release = version_of("dlemu")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = "dlemu"
html_static_path = ["_static"]
html_css_files = ["dlemu.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
smartquotes_action = "q"  # quotes only: --dry-run keeps its hyphens

autodoc_member_order = "groupwise"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
# Optional libraries may be absent; the modules that need them are documented all the same.
OPTIONAL = ("torch", "mpi4py", "matplotlib", "nvidia", "cupy")
autodoc_mock_imports = [name for name in OPTIONAL if find_spec(name) is None]


class Modules(SphinxDirective):
    """`.. modules:: storage` lists a folder's modules and their public names, by reading them."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        folder = self.arguments[0]
        path = folder_path(folder)
        lines = [".. list-table::", "   :header-rows: 1", "   :widths: auto", ""]
        lines += ["   * - module", "     - what it does", "     - public names"]
        for module in sorted(path.glob("**/*.py")):
            inner = module.relative_to(path).with_suffix("").parts
            tree = ast.parse(module.read_text(encoding="utf-8"))
            names = ", ".join(f"``{name}``" for name in _public_names(tree))
            where = ".".join(("dlemu", folder, *inner)).removesuffix(".__init__")
            said = _to_rest(first_sentence(tree))
            lines += [f"   * - ``{where}``", f"     - {said}", f"     - {names}"]
        return self.parse_text_to_nodes(StringList(lines, source=str(path)))


def _public_names(tree: ast.Module) -> list[str]:
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    ]


def _mend(_app: Any, _what: str, name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Make reST of a docstring: Raises becomes fields, and an indented example a code block."""
    if name == "dlemu":  # its example stands in docs/library.md
        del lines[1:]
    mended: list[str] = []
    section = ""
    for line in lines:
        field = re.match(r"    (\w+): ?(.*)", line)
        if re.fullmatch(r"(Raises|Args|Attributes):", line):
            section = {"Raises": "raises", "Args": "param", "Attributes": "var"}[line[:-1]]
        elif section and field:
            mended.append(f":{section} {field[1]}: {_to_rest(field[2])}")
        elif section and line.startswith("     "):
            mended.append("    " + _to_rest(line.strip()))
        elif line.startswith("    "):
            if not (mended and mended[-1].startswith("    ")) and not _in_code(mended):
                mended += [".. code-block:: text", ""]
            mended.append(line)
        else:
            section = section if not line.strip() else ""
            mended.append(_to_rest(line))
    lines[:] = mended


def _in_code(lines: list[str]) -> bool:
    """Whether the last line that is not empty belongs to a code block."""
    return next((line for line in reversed(lines) if line.strip()), "").startswith("    ")


def _to_rest(line: str) -> str:
    """Write `names` as reST has them; escape what it takes for emphasis or for a link."""
    parts = re.split(r"(`+[^`]*`+)", line)
    return "".join(
        f"``{part.strip('`')}``" if part.startswith("`") else re.sub(r"([*|]|_\b)", r"\\\1", part)
        for part in parts
    )


def setup(app: Any) -> None:
    """Add what this file defines."""
    app.add_directive("modules", Modules)
    app.connect("autodoc-process-docstring", _mend)
