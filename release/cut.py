"""May this version be released? Then print the tag to set.

    python -m release.cut VERSION [--no-tests] [--python VERSION ...]

Checked are: nothing is uncommitted; setup.cfg has the version; CHANGELOG.md has its section with a
date, at most 60 lines, and nothing is left under Unreleased; the pages build; wheel and sdist
install in clean environments on each Python that is found, from PyPI alone, the same files by both;
and the quick tests pass there with the installed package, from a folder without dlemu's source.
--no-tests leaves these out, --python all other Pythons; then no tag is proposed.

The exit status is 1 where one fails. Nothing is published.
"""

import argparse
import datetime
import filecmp
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from release.pip import PINS, ROOT, build, interpreters, user_environment

MOST_LINES = 60
SOURCE = ("dlemu", "datagen", "workloads")
"""What the tests of an installed package must not find beside them."""
ABOUT_THE_SOURCE = (
    *("test_layers.py", "test_mutants.py", "test_docs.py", "test_packaging.py", "test_fuzz.py"),
    "release",
    "cli/test_help_of_words.py::test_pages_that_are_named_are_found",
    "judge/test_metrics.py::test_nothing_else_compares_utilisation_with_a_threshold",
)
"""Tests that read dlemu's source or the pages, which nobody installs: files, folders and tests."""


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m release.cut", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("version")
    parser.add_argument("--no-tests", action="store_true", help="leave the tests out")
    parser.add_argument("--python", nargs="+", metavar="VERSION", help="3.11 ...: these alone")
    asked = parser.parse_args(words)
    wrong = [*untidy(), *unready(asked.version, ROOT)]
    print("\n".join(wrong) or "tree, version and CHANGELOG: fine", flush=True)
    if wrong:
        return 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sdist, wheel = build(folder, user_environment())
        print(f"{sdist.name}: {sdist.stat().st_size:,} B, {wheel.name}: {wheel.stat().st_size:,} B")
        _run(["make", "docs"], ROOT)
        for version, python in interpreters().items():
            if asked.python and version not in asked.python:
                continue
            if not _installs(version, python, folder, tests=not asked.no_tests):
                return 1
    if asked.python or asked.no_tests:
        print("fine as far as it was tried; without --python and --no-tests all is")
        return 0
    print(
        f"{asked.version} may be released:\n"
        f"  git tag -a v{asked.version} -m 'dlemu {asked.version}'"
    )
    return 0


def untidy() -> Iterator[str]:
    """Yield what is not committed."""
    done = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    if done.stdout:
        yield f"the tree has changes that are not committed:\n{done.stdout.rstrip()}"


def unready(version: str, folder: Path) -> Iterator[str]:
    """Yield what setup.cfg and CHANGELOG.md of a checkout lack for a version."""
    (named,) = re.findall(r"^version = (.*)$", (folder / "setup.cfg").read_text(), re.MULTILINE)
    if named != version:
        yield f"setup.cfg has version {named}, not {version}"
    changes = (folder / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (.*)\n((?:(?!## ).*\n?)*)", changes, re.MULTILINE))
    if sections.get("Unreleased", "").strip():
        yield f"CHANGELOG.md: move what stands under Unreleased into the section {version}"
    heading = next((each for each in sections if each.split(" - ")[0] == version), None)
    if heading is None:
        yield f"CHANGELOG.md has no section: ## {version} - {datetime.date.today()}"
        return
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", heading.partition(" - ")[2]):
        yield f"CHANGELOG.md: the section has no date: ## {version} - {datetime.date.today()}"
    lines = len(sections[heading].strip().splitlines()) + 1
    if lines > MOST_LINES:
        yield f"CHANGELOG.md: the section {version} has {lines} lines; at most {MOST_LINES}"


def _installs(version: str, python: Path, folder: Path, *, tests: bool) -> bool:
    """Install wheel and sdist, each in an environment of its own, and run the quick tests."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    sites = []
    for what in (wheel, sdist):
        venv = folder / f"venv-{version}-{what.suffix[1:]}"
        _run([str(python), "-m", "venv", str(venv)], folder)
        _install(venv, "--upgrade", "pip")
        _install(venv, str(what))
        told = _run([str(venv / "bin" / "dlemu"), "--version"], folder)
        print(f"Python {version}: {what.name}: {told.strip()}", flush=True)
        sites.append(next(venv.glob("lib/python*/site-packages")))
    if unlike := different(sites[0] / "dlemu", sites[1] / "dlemu"):
        print(f"Python {version}: wheel and sdist install different files: {', '.join(unlike)}")
        return False
    if not tests:
        return True
    environment = sites[0].parents[2]
    _install(environment, f"{wheel}[test]")
    passed = _test(version, environment, sdist, folder)
    for each in folder.glob(f"venv-{version}-*"):
        shutil.rmtree(each)
    return passed


def _install(venv: Path, *words: str) -> None:
    """Install with the pins into an environment, as a user's pip does it."""
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "-c", str(PINS)]
    _run([*pip, *words], venv, user_environment())


def _test(version: str, environment: Path, sdist: Path, folder: Path) -> bool:
    """Run the quick tests out of the sdist, whose source of dlemu is taken away."""
    source = folder / f"tests-{version}"
    with tarfile.open(sdist) as file:
        file.extractall(source, filter="data")
    (top,) = source.iterdir()
    for name in (*SOURCE, "dlemu.egg-info"):
        shutil.rmtree(top / name, ignore_errors=True)
    words = [str(environment / "bin" / "python"), *["-m", "pytest", "-q", "-n", "2", "-m", "quick"]]
    words += [
        f"{'--deselect' if '::' in each else '--ignore'}=tests/{each}" for each in ABOUT_THE_SOURCE
    ]
    done = subprocess.run(words, cwd=top, stdout=subprocess.PIPE, text=True)
    shown = re.findall(r"^(?:FAILED|ERROR) .*$|^.*\d+ (?:passed|failed).*$", done.stdout, re.M)
    print(
        f"Python {version}: quick tests, installed:", "\n".join(shown or [done.stdout]), flush=True
    )
    return done.returncode == 0


def different(one: Path, other: Path) -> list[str]:
    """Return the files that only one of two folders has, or that differ."""

    def files(folder: Path) -> set[str]:
        paths = (path for path in folder.glob("**/*") if path.is_file())
        return {str(p.relative_to(folder)) for p in paths if "__pycache__" not in p.parts}

    a, b = files(one), files(other)
    _, unlike, unread = filecmp.cmpfiles(one, other, sorted(a & b), shallow=False)
    return sorted({*(a ^ b), *unlike, *unread})


def _run(words: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    if environment is None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
