"""A module imports only from lower levels, or without a cycle from its own."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LEVELS = [
    # words: what everything else is said in
    "errors units clock world links ending regular terminal",
    # the job
    "workload sections records folders",
    # pure, or bytes
    "files plan metrics prediction idle formats devices host processes intervals pagecache cached "
    "observe losses storage cuda cufile gds latency energy",
    # do
    "datagen loaders replay sizing probe progress blocks settle gpu_compute enough commands "
    "stream_clock",
    # tell
    "verdict watchdog proof report evidence witness sweep paths drive_table plots search_log",
    # put together
    "cold job meter doctor",
    # whole commands
    "protocol closed stored page rereport targets size calibrate predict training compose",
    # run
    "cli __init__ __main__ workloads",
]
"""Modules and packages of dlemu, by level from 0."""

OPTIONAL = {"torch", "mpi4py", "matplotlib", "nvidia", "cupy"}
MAY_NEED = {
    "loaders.pytorch": {"torch"},
    "loaders.dali": {"nvidia", "torch", "cupy"},
    "loaders.dali_pipelines": {"nvidia", "torch", "cupy"},
    "loaders.dali_readers": {"nvidia", "torch", "cupy"},
    "plots": {"matplotlib"},
}
"""Modules that are imported on demand, and what they may import as they are."""

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


def level_of(module: str) -> int | None:
    for level, names in enumerate(LEVELS):
        if module.partition(".")[0] in names.split():
            return level
    return None


def imports_of(module: str) -> Iterator[str]:
    """Yield the modules of dlemu that one imports, anywhere in it."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (below(alias.name) for alias in node.names if within(alias.name))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports from .: absolute imports only"
            if node.module is not None and within(node.module):
                for alias in node.names:
                    inner = below(f"{node.module}.{alias.name}")
                    yield inner if inner in MODULES else below(node.module)


def within(name: str) -> bool:
    return name.partition(".")[0] == "dlemu"


def below(name: str) -> str:
    return name.removeprefix("dlemu").lstrip(".") or "__init__"


def imported_at_once(tree: ast.Module) -> Iterator[str]:
    """Yield the packages that a module imports when it is imported itself."""
    for node in tree.body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        inner = [] if isinstance(node, ast.FunctionDef | ast.ClassDef) else ast.walk(node)
        for found in inner:
            if isinstance(found, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in found.names)
            elif isinstance(found, ast.ImportFrom) and found.module is not None:
                yield found.module.partition(".")[0]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_a_level_and_imports_from_no_higher(module: str) -> None:
    level = level_of(module)
    assert level is not None, f"give dlemu.{module} its place in LEVELS"
    for imported in imports_of(module):
        other = level_of(imported)
        assert other is not None and other <= level, (
            f"dlemu.{module} of level {level} imports dlemu.{imported} of level {other}"
        )


def test_no_import_leads_back() -> None:
    """Imports within functions and for types count as well: a cycle is a cycle."""
    graph = {module: set(imports_of(module)) - {module} for module in MODULES}
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("module", MODULES)
def test_a_module_is_named_for_what_it_does(module: str) -> None:
    assert not EMPTY_NAMES & set(module.split("."))


@pytest.mark.parametrize("module", MODULES)
def test_optional_libraries_are_imported_on_demand(module: str) -> None:
    tree = ast.parse(MODULES[module].read_text())
    at_once = OPTIONAL & set(imported_at_once(tree))
    assert at_once <= MAY_NEED.get(module, set())


def test_the_level_table_names_only_what_is_there() -> None:
    there = {module.partition(".")[0] for module in MODULES}
    assert {name for names in LEVELS for name in names.split()} <= there


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["datasize", "workload=unet3d_h100", "num_accelerators=8", "host_memory=256GiB"],
    ],
)
def test_what_needs_no_extra_imports_none(arguments: list[str]) -> None:
    program = (
        "import sys, dlemu\n"
        "from dlemu.cli import run\n"
        f"status = run({arguments!r})\n"
        f"print(sorted({OPTIONAL!r} & set(sys.modules)))\n"
        "sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "[]"
