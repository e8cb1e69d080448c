"""Who may import whom: a table of folders, and no circle among the modules."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

from tests.lab.prose import Prose

ROOT = Path(__file__).parents[1]

GROUND = {"errors", "findings", "units", "clock", "terminal", "plugins"}
"""Modules that stand in dlemu/ itself; every folder may import them."""

MAY_IMPORT = {
    "ranks": "",
    "host": "",
    "workloads": "",
    "storage": "host ranks",
    "formats": "storage",
    "config": "formats storage",
    "dataset": "config formats host ranks storage",
    "judge": "config dataset host ranks storage",
    "datagen": "config dataset formats host ranks storage",
    "tools": "config host judge ranks storage",
    "checkpoint": "config datagen dataset host judge ranks storage",
    "loaders": "config datagen dataset formats host ranks storage",
    "contract": "config datagen dataset formats loaders ranks report storage",
    "api": "config datagen dataset loaders ranks storage",
    "report": "checkpoint config host judge storage tools",
    "run": "checkpoint config datagen dataset host judge loaders ranks report storage tools",
    "meter": "config host judge ranks report run storage",
    "integrations": "meter",
    "watch": "config host judge meter ranks report run storage",
    "sizing": "checkpoint config datagen dataset host judge loaders ranks report run storage",
    "library": "config ranks report sizing",
    "cli": "checkpoint config datagen dataset host judge library loaders ranks report run sizing "
    "storage tools watch",
}
"""Who may import whom, beside the ground. docs/architecture.md says why."""

SPEAKERS = {
    "cli",
    "contract",
    "library",
    "judge.folders",
    "run",
    "sizing",
    "ranks.ending",
    "ranks.watchdog",
    "__main__",
}
"""Who may say something on the terminal; everybody else returns or raises it."""

OPTIONAL = {"torch", "mpi4py", "matplotlib", "nvidia", "pynvml", "cupy", "pyarrow", "obstore"}
MAY_NEED = {
    *("loaders.plain", "loaders.pytorch", "loaders.dali.loader", "loaders.dali.pipelines"),
    *("integrations.lightning", "integrations.transformers"),
    *("report.png", "tools.steptime.networks"),
}
"""Modules that are imported on demand, and may import these as they are."""

INTERFACE = {"hydra": {"config.compose"}, "rich": {"cli.progress", "report.text"}}
"""Libraries of the command line, and the modules that know them."""

PROSE_OF_ITS_OWN = {
    "report": "the words of findings",
    "cli": "what a command says of itself: help, questions, what it was asked",
    "errors": "the lines of errors",
}
"""Folders that may have prose; others hand on findings, whose sentences stand in report/words."""

FEW = {
    "datagen": (11, "the notes of a survey are texts, as those of a user's loader may be"),
    "formats": (1, "the note of a survey on parquet files"),
    "units": (6, "a number with its unit"),
    "terminal": (2, "dlemu: before an error, and what is said where stdout is full"),
    "plugins": (1, "the version of a checkout that is not installed"),
    "library": (1, "a picture that cannot be drawn is told to a notebook"),
}
"""Folders and modules with a few texts, how many, and what for."""

DIRECT = {"storage"}
"""Who may know O_DIRECT: others ask storage."""

RIDDLES = {
    r"tiers?": "a cache is called a cache",
    r"from which on": "at least; or say what happens from there",
    r"came to(?! (a|its|their) (step|end))": "the totals of",
    r"foretells?|foretold": "predict, forecast",
    r"whoever": "name who or what it is",
    r"(?<!mark )(the|a|an|each|its|of|at|'s) begins?": "start; begin is a verb",
    r"begins? (of|and end of)": "start; begin is a verb",
    r"as which": "say it in two sentences",
    r"can be meant by|than is said": "say who does it",
    r"worth saying": "name the threshold for what it is compared with",
    r"nobody can tell": "it is not known",
    r"for want of": "because there is no",
    r"thereof|wherein|whereby": "of it; in which",
    r"what there is(?! in)": "say which part",
    r"of them all": "of all",
    r"the keys that they are": "the keys of the same meaning",
    r"that the (start|end) of .{3,30} takes": "seconds that the start of it takes",
    r"looks so long": "seconds for which it looks",
    r"an? example whole": "a complete example",
    r"without feeling": "name the limit",
    r"a place that you may use": "a path that you can write to",
}
"""Words that need reading twice, and what to write instead. No text of the project has them."""

EMPTY_NAMES = {"utils", "util", "common", "helpers", "base", "factory", "handler", "manager"}


def find_modules() -> dict[str, Path]:
    """Return the files of the package by their names below dlemu."""
    modules = {}
    for folder, above in ((ROOT / "dlemu", ""), (ROOT / "datagen", "datagen.")):
        for path in sorted(folder.glob("**/*.py")):  # does not follow the links in dlemu/
            name = above + ".".join(path.relative_to(folder).with_suffix("").parts)
            modules[name.removesuffix(".__init__")] = path
    modules["workloads"] = ROOT / "workloads" / "__init__.py"
    return modules


MODULES = find_modules()
TESTS = sorted(ROOT.glob("tests/**/*.py"))
BENCHMARKS = sorted(ROOT.glob("benchmarks/*.py"))
TEXTS = [
    each
    for kind in (
        "*.md",
        "docs/*.md",
        "docs/*.rst",
        "examples/*",
        "tests/**/*.toml",
        "tests/golden/*",
    )
    for each in ROOT.glob(kind)
    if each.is_file()
]


# Each rule is one test for all modules, and each file is parsed once: a test for each would take
# pytest longer than the rule.


def folder_of(module: str) -> str:
    return module.partition(".")[0]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


def imports_of(module: str) -> set[str]:
    """Return the modules of dlemu that one imports, anywhere in it."""
    names = (name.split(".") for name in names_imported(MODULES[module]))
    found = (".".join(more) for first, *more in names if first == "dlemu")
    return {name if name in MODULES else name.rpartition(".")[0] or "__init__" for name in found}


@cache
def names_imported(path: Path) -> list[str]:
    """Return the full names that a file imports, anywhere in it."""
    names = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports from .: absolute imports only"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def test_folders_import_what_the_table_has() -> None:
    used: dict[str, set[str]] = {folder: set() for folder in GROUND | MAY_IMPORT.keys()}
    for module in MODULES.keys() - {"__init__", "__main__"}:  # they hand on what the folders offer
        folder = folder_of(module)
        assert folder in used, f"give dlemu/{folder} its row in MAY_IMPORT"
        allowed = MAY_IMPORT.get(folder, "").split()
        for imported in imports_of(module):
            if (other := folder_of(imported)) not in GROUND | {folder}:
                assert other in allowed, (
                    f"dlemu.{module} imports dlemu.{imported}, but {folder} may import only "
                    f"{', '.join(sorted(allowed))}"
                )
                used[folder].add(other)
    assert used == {folder: set(MAY_IMPORT.get(folder, "").split()) for folder in used}, (
        "the table is wider than the imports"
    )


def test_folders_import_in_one_direction() -> None:
    TopologicalSorter({folder: names.split() for folder, names in MAY_IMPORT.items()}).prepare()


def test_only_speakers_say_something() -> None:
    """The others return their text, so that a library user decides where it goes."""
    words = {f"dlemu.terminal.{name}" for name in ("say", "complain", "answer")}
    for module, path in MODULES.items():
        speaks = {folder_of(module), module} & SPEAKERS
        assert speaks or not words & {*names_imported(path)}, module
        calls = [node.func for node in nodes_of(path) if isinstance(node, ast.Call)]
        prints = [func for func in calls if isinstance(func, ast.Name) and func.id == "print"]
        assert module == "terminal" or not prints, module


def test_the_interface_s_libraries_stay_there() -> None:
    for module, path in MODULES.items():
        imported = {name.partition(".")[0] for name in names_imported(path)}
        for library, allowed in INTERFACE.items():
            assert library not in imported or module in allowed, f"{module} imports {library}"


def test_o_direct_is_storage_s() -> None:
    for module, path in MODULES.items():
        names = {node.attr for node in nodes_of(path) if isinstance(node, ast.Attribute)}
        assert "O_DIRECT" not in names or {folder_of(module), module} & DIRECT, module


SYSTEM_ERRORS = (OSError.__name__, "FileNotFoundError", "PermissionError", "BlockingIOError")


def bare_in(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that print the text of an error of the operating system themselves.

    That is its strerror, or the whole of an error that only the system can have raised, within a
    text or as `str(error)`: "Input/output error" names neither file nor call nor remedy.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "strerror":
            yield node.lineno
        if not (isinstance(node, ast.ExceptHandler) and node.name and node.type):
            continue
        caught = {each.id for each in ast.walk(node.type) if isinstance(each, ast.Name)}
        if not caught or not caught <= {*SYSTEM_ERRORS}:
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.FormattedValue):
                shown: list[ast.expr] = [inner.value]
            elif isinstance(inner, ast.Call) and getattr(inner.func, "id", "") == "str":
                shown = inner.args
            else:
                continue
            if any(isinstance(each, ast.Name) and each.id == node.name for each in shown):
                yield inner.lineno


def test_one_place_makes_the_lines_of_system_errors() -> None:
    """`errors.system_line` and `DlemuError.of_system`: file, what was tried, why, what to do."""
    for module, path in MODULES.items():
        lines = [*bare_in(ast.parse(path.read_text()))]
        assert module == "errors" or module in FOREIGN_ERRORS or not lines, (module, lines)


FOREIGN_ERRORS = {"storage.gpu.cuda"}
"""Modules whose OSError is a library's: the loader's text says which file it could not load."""


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("try: x()\nexcept OSError as e:\n  raise RunError(f'{p} ({e.strerror})')", [3]),
        ("try: x()\nexcept OSError as e:\n  raise RunError(f'{p}: {e}')", [3]),
        ("try: x()\nexcept OSError as e:\n  raise RunError(str(e))", [3]),
        ("raise OSError(n, os.strerror(n))", [1]),
        ("try: x()\nexcept OSError as e:\n  raise RunError.of_system(e, p, 'failed')", []),
        ("try: x()\nexcept DlemuError as e:\n  raise RunError(f'{p}: {e}')", []),
    ],
)
def test_a_bare_error_is_found(text: str, lines: list[int]) -> None:
    assert [*bare_in(ast.parse(text))] == lines


def test_sentences_about_results_stand_in_the_report() -> None:
    """No folder has prose but those of the table, and single modules a few: tests/lab/prose.py.

    What is raised is no prose in this sense, nor is what describes a key at the key itself: the one
    is an error's line, the other its documentation.
    """
    prose, found = Prose(MODULES.values()), defaultdict(list)
    for module, path in MODULES.items():
        for line, text in prose.of(path):
            found[folder_of(module)].append(f"{path.relative_to(ROOT)}:{line}: {text}")
    for folder in found.keys() - PROSE_OF_ITS_OWN.keys():
        number, why = FEW.get(folder, (0, "report/words has the sentences"))
        assert len(found[folder]) == number, (why, found[folder])


PROSE_OF = {
    "said": ('def f(): return f"{n} files"', 1),
    "joined": ('a = "one" + " and two"', 1),
    "in a table": ('TABLE = {"kind": "a drive is slow"}', 1),
    "a docstring": ('"""Prose that nobody prints."""', 0),
    "raised": ('def f(): raise RunError(f"{path} is not there")', 0),
    "raised by a name": ('def f():\n    why = "it is full"\n    raise RunError(f"no: {why}")', 0),
    "raised by a second name": (
        'def f():\n    why = "it is full"\n    no = f"no: {why}"\n    raise RunError(no)',
        0,
    ),
    "raised from a table": (
        'WHY = {"key": "it is full"}\n'
        'def f():\n    for key, why in WHY.items():\n        raise RunError(f"{key}: {why}")',
        0,
    ),
    "a table that is not raised": ('WHY = {"key": "it is full"}\ndef f(): return WHY["key"]', 1),
    "a phase": ('def f(live):\n    with live.doing("writing the files"): pass', 0),
    "what a phase waits for": ('def waiting_for(self): return "it waits for files"', 0),
    "raised by who calls": (
        'def why(n): return f"{n} is too many"\ndef f(): raise RunError(why(3))',
        0,
    ),
    "said by one of its callers": (
        'def why(n): return f"{n} is too many"\n'
        "def f(): raise RunError(why(3))\ndef g(): say(why(3))",
        1,
    ),
    "looked at by one of its callers": (
        'def why(n): return f"{n} is too many"\n'
        "def f(): raise RunError(why(3))\ndef g(): return 3 if why(3) else 4",
        0,
    ),
    "a table of a class": (
        'class A:\n    why = "it is full"\n    def f(self): raise RunError(self.why)',
        0,
    ),
    "what a key may be": ('SIZE = ParsedText(size, words="bytes (as 4 KiB)")', 0),
    "a pattern": ('NAME = re.compile(r"Open Kernel Module (\\d+)")', 0),
    "commands of a key": ('KEY = Use(by="run size")', 0),
    "a command": ('def f(pid): return f"kill -9 {pid}"', 0),
    "a command within a sentence": ('def f(pid): return f"kill -9 {pid} ends it"', 1),
    "a thread": ('run = Thread(target=f, name="host observer")', 0),
    "not raised by that name": ('def f():\n    why = "it is full"\n    return why', 1),
    "a thing's name": ('def f(self): self.name = f"{n} (CUDA events)"', 0),
    "a name": ('Name = Literal["host cpu"]\nlimit = "host cpu"', 0),
    "a key": ('key = "reader.read_threads"', 0),
}


@pytest.mark.parametrize("case", PROSE_OF)
def test_prose_is_counted_wherever_it_stands(case: str, tmp_path: Path) -> None:
    text, number = PROSE_OF[case]
    path = tmp_path / "module.py"
    path.write_text(text)
    assert len(Prose([path]).of(path)) == number


def test_a_folder_says_what_it_is_for() -> None:
    for folder in MAY_IMPORT:
        assert len(ast.get_docstring(tree_of(MODULES[folder])) or "") > 40, folder


def test_no_import_leads_back() -> None:
    """Imports within functions and for types count as well: a cycle is a cycle."""
    TopologicalSorter({module: imports_of(module) - {module} for module in MODULES}).prepare()


def test_a_module_is_named_for_what_it_does() -> None:
    assert [module for module in MODULES if EMPTY_NAMES & set(module.split("."))] == []


def test_a_class_name_means_one_thing() -> None:
    homes = defaultdict(list)
    for module, path in MODULES.items():
        if folder_of(module) == "integrations":  # one callback a framework, by the same name
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(module)
    assert {name: each for name, each in homes.items() if len(each) > 1} == {}


def test_words_are_understood_at_first_sight() -> None:
    riddle = re.compile(
        "|".join(rf"(?P<r{n}>\b({each})\b)" for n, each in enumerate(RIDDLES)), re.I
    )
    hints, found = [*RIDDLES.values()], []
    for path in sorted({*MODULES.values(), *TESTS, *BENCHMARKS, *TEXTS} - {Path(__file__)}):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for hit in riddle.finditer(line):
                hint = hints[int(str(hit.lastgroup)[1:])]
                found.append(f"{path.relative_to(ROOT)}:{number}: {hit[0]!r}: {hint}")
    assert found == []


def test_tests_and_benchmarks_share_the_lab_alone() -> None:
    """Tests know no benchmark; benchmarks know of the tests only tests/lab."""
    for path in TESTS:
        if "benchmarks" in path.read_text():  # to parse all of them takes longest
            names = names_imported(path)
            assert not [name for name in names if name.startswith("benchmarks")], path
    for path in [*BENCHMARKS, *ROOT.glob("tests/lab/*.py")]:
        tests = [name for name in names_imported(path) if name.startswith("tests.")]
        assert all(name.startswith("tests.lab.") for name in tests), path


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_says_what_it_measures_and_how_it_is_run(path: Path) -> None:
    import_module(f"benchmarks.{path.stem}".removesuffix(".__init__"))
    told = ast.get_docstring(tree_of(path)) or ""
    if "__main__" in path.read_text():
        assert f"benchmarks.{path.stem}" in told


def test_the_tables_name_only_what_is_there() -> None:
    assert MODULES.keys() >= MAY_NEED
    assert {each for modules in INTERFACE.values() for each in modules} <= MODULES.keys()


def test_what_needs_no_extra_imports_none() -> None:
    names = [f"dlemu.{name}" for name in sorted(MODULES.keys() - MAY_NEED)]
    program = (
        "import sys, dlemu\n"
        "from importlib import import_module\n"
        "from dlemu.cli.main import run\n"
        "words = 'datasize workload=unet3d_h100 num_accelerators=8 host_memory=256GiB'.split()\n"
        "status = run(['--help']) or run(words)\n"
        f"print(sorted({OPTIONAL!r} & set(sys.modules)))\n"
        f"sys.modules.update(dict.fromkeys({OPTIONAL!r}))\n"
        f"for name in {names}: import_module(name)\n"
        "sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "[]"
