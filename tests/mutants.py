"""Does a test notice? Changes the code as somebody might by mistake, and runs the tests.

    python -m tests.mutants [--only WORD ...] [--jobs N] [--matrix]
    python -m tests.mutants --random N [--seed S] [--only WORD ...] [--jobs N]

`mutants.toml` has the list: a file, text that it holds once, what to put in its place, and the
tests that must fail then. Each job works in a copy of the checkout. A test that failed must pass
as the code is. No test may need root: its rights are put down.

The exit status is 0 if all changes were noticed but for a few, each with a reason in the list.

--matrix goes on behind the first test that notices: build/kills.json keeps which tests noticed
which change.

--random changes an operator, a condition or a number anywhere in the product instead
(`random_mutants.py`); 9 of 10 must be noticed.
"""

import argparse
import compileall
import contextlib
import gc
import importlib
import importlib.util
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import IO, Any, NoReturn

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".toml")

MOST_SURVIVORS = 5
_LONGEST = 900.0
"""Seconds that the tests of one change may take."""
_NOBODY = 65534
_PASSED, _FAILED, _NONE = 0, 1, 5
"""Exit statuses of pytest (5: no test was asked for); others: it did not come to their end."""
# Random examples must be the same each time, or a change would be noticed by chance. A test of a
# changed loop may never end.
_OPTIONS = ("-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--timeout=100")
_ALL = ("-m", "not root and not gpu")
_SOON = ("-x", "-m", "quick")
"""First by the tests that start no process: they notice most, and are soon done."""
_NEAREST = 3
"""So many files of tests see a change that was drawn before the others do."""
_PRELOADED = (
    *("pytest", "hypothesis.strategies", "_hypothesis_pytestplugin", "numpy", "pydantic", "yaml"),
    *("psutil", "h5py", "hydra", "omegaconf", "rich", "google_crc32c", "isal.isal_zlib"),
    *("torch", "obstore"),
)


class BrokenList(Exception):
    """The list or the tests are not in order, so that nothing can be said."""


@dataclass(frozen=True)
class Mutation:
    """One change of the code."""

    file: str
    what: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Files or tests, as pytest takes them."""
    reason: str = ""
    """Why no test can notice; empty: one must."""
    drawn: bool = False
    """Whether it is any change: one that cannot be imported is noticed."""

    @property
    def name(self) -> str:
        return f"{self.file}: {self.what}"


def read_list(path: Path) -> list[Mutation]:
    """Return the mutations of a list.

    Raises:
        BrokenList: an entry lacks something, or two have one name.
    """
    found = []
    for file, module in tomllib.loads(path.read_text()).items():
        for entry in module["mutations"]:
            fields: dict[str, Any] = {"file": file, "tests": module.get("tests", ()), **entry}
            fields["tests"] = tuple(fields["tests"])
            try:
                found.append(Mutation(**fields))
            except TypeError as error:
                raise BrokenList(f"{path}: {file}: {entry}: {error}") from None
            if not fields["tests"]:
                raise BrokenList(f"{path}: {found[-1].name}: it names no tests")
    names = [mutation.name for mutation in found]
    for name in names:
        if names.count(name) > 1:
            raise BrokenList(f"{path}: two mutations are called {name}")
    return found


def stale(mutations: Sequence[Mutation], root: Path) -> list[str]:
    """Return a line for each mutation whose text does not stand in its file exactly once."""
    lines = []
    for mutation in mutations:
        path = root / mutation.file
        count = path.read_text().count(mutation.old) if path.is_file() else 0
        if count != 1:
            lines.append(
                f"the list is out of date: {mutation.name}: the file holds {mutation.old!r} "
                f"{count} times, once is needed"
            )
        for test in mutation.tests:
            file, _, name = test.partition("::")
            name = name.rpartition("::")[2].partition("[")[0]
            text = (root / file).read_text() if (root / file).is_file() else ""
            if not re.search(rf"\b(def|class) {name}\b" if name else ".", text):
                lines.append(f"the list is out of date: {mutation.name}: there is no {test}")
    return lines


@dataclass(frozen=True)
class Told:
    """What the tests told of a change."""

    survived: bool
    how: str
    failed: tuple[str, ...] = ()
    claim: tuple[str, ...] = ()
    """Tests that must pass as the code is."""


def tracked(root: Path) -> list[str]:
    """Return the files that git knows or would add, but for those that are gone."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.check_output(words, cwd=root, text=True)
    return [name for name in listed.split("\0") if name and (root / name).exists()]


def copy_tracked(root: Path, folder: Path) -> None:
    """Copy these files; links stay links."""
    for name in tracked(root):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, folder / name, follow_symlinks=False)


class Copy:
    """A copy of the checkout, in which files are changed and tests run."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._folder = folder
        self._sound: set[str] = set()
        copy_tracked(root, folder)
        (folder / "tmp").mkdir()
        for path in (folder, folder / "tmp"):
            path.chmod(0o777)
        # By their content: a change comes too soon after the last one to be told by its time.
        mode = PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(folder, quiet=2, invalidation_mode=mode)
        self._server = subprocess.Popen(
            [*_without_root(), sys.executable, __file__, "--serve"],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(folder),
                "PYTHONDONTWRITEBYTECODE": "",  # of tests, which pytest rewrites; they stay
                "TMPDIR": str(folder / "tmp"),
                "HOME": str(folder / "tmp"),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def close(self) -> None:
        """End the process that runs tests."""
        self._server.communicate()

    def judge(self, mutations: Sequence[Mutation], matrix: bool) -> Iterator[tuple[Mutation, Told]]:
        """Yield of each change of one file what was found.

        Raises:
            BrokenList: the tests could not be run, or do not pass as the code is.
        """
        found = {each: self._told(each, matrix) for each in mutations}
        claims = {test for told in found.values() for test in told.claim} - self._sound
        status, text, _ = self._run([*_ALL, *sorted(claims)]) if claims else (_PASSED, "", ())
        if status != _PASSED:
            raise BrokenList(f"without any change the tests do not pass:\n{text}")
        self._sound.update(claims)
        yield from found.items()

    def _told(self, mutation: Mutation, matrix: bool) -> Told:
        path = self._folder / mutation.file
        text = path.read_text()
        path.write_text(text.replace(mutation.old, mutation.new))
        tests = mutation.tests
        rounds: list[tuple[tuple[str, ...], tuple[str, ...]]] = [(_ALL, tests)]
        if not matrix:
            rounds = [(_SOON, tests), (("-x", *_ALL), tests)]
        if mutation.drawn:
            rounds.insert(0, (_SOON, tests[:_NEAREST]))
        try:
            for options, asked in rounds:
                status, words, failed = self._run([*options, *asked], _LONGEST)
                if status == _FAILED:
                    return Told(False, "killed", failed, failed)
                if status in (_PASSED, _NONE) or (status is None and mutation.drawn):
                    continue
                if status is not None and not mutation.drawn:
                    raise BrokenList(f"{mutation.name}: the tests could not be run:\n{words}")
                how = "did not end" if status is None else "could not begin"
                # One that begins as the code is will do, where others need the same code.
                claim = mutation.tests if status is None else mutation.tests[:1]
                return Told(False, f"killed: its tests {how}", (), claim)
        finally:
            path.write_text(text)
        return Told(True, "survived")

    def _run(
        self, words: Sequence[str], seconds: float = _LONGEST
    ) -> tuple[int | None, str, tuple[str, ...]]:
        """Run pytest with words.

        Return its exit status (None: it did not end in time), the end of what it printed, and the
        test functions that failed.
        """
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps([words, seconds]) + "\n")
        self._server.stdin.flush()
        line = self._server.stdout.readline()
        if not line:
            raise BrokenList("the process that runs the tests has ended")
        status, told, failed = json.loads(line)
        return status, told, tuple(failed)


def serve() -> None:
    """Run the tests that are named on standard input, each time in a process forked off.

    What all tests import of others is imported before, which is most of the work of a short run.
    """
    sys.path[0] = os.getcwd()
    for name in _PRELOADED if Path("dlemu").is_dir() else ("pytest",):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is collected in a process that was forked off is copied first
    assert "dlemu" not in sys.modules, "what is to be changed must not be imported yet"
    for line in sys.stdin:
        words, seconds = json.loads(line)
        with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as failed:
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                os.setsid()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                _test(words, failed)
            status = _wait(pid, seconds)
            said.seek(0)
            failed.seek(0)
            told = "\n".join(said.read().splitlines()[-40:])
            found = dict.fromkeys(failed.read().splitlines())
        print(json.dumps([status, told, [*found]]), flush=True)


@dataclass(eq=False)  # pytest puts plugins into sets
class _Failed:
    """A plugin of pytest: writes the names of test functions that failed."""

    file: IO[str]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            print(report.nodeid.partition("[")[0], file=self.file)


def _test(words: Sequence[str], failed: IO[str]) -> NoReturn:
    import pytest

    status = 3  # pytest's own for what it did not expect
    try:
        found = importlib.util.find_spec("dlemu")
        if Path("dlemu").is_dir() and not (found and str(found.origin).startswith(os.getcwd())):
            print("the tests would not import the copy that is changed")
        else:
            status = pytest.main([*_OPTIONS, *words], plugins=[_Failed(failed)])
    finally:
        failed.flush()
        sys.stdout.flush()
        os._exit(status)


def _wait(pid: int, seconds: float) -> int | None:
    """Return a child's exit status; None if it had to be killed, and all that it began with it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):  # on a busy host it may have no group yet
        os.killpg(pid, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _without_root() -> list[str]:
    """Return the command that a program is given to, to be run without root's rights.

    Raises:
        BrokenList: this is root, and neither way works here.
    """
    if os.geteuid() != 0:
        return []
    ways = [
        # Of root's own files it remains the owner, so that a Python in root's home can be run.
        ["unshare", "--user", f"--map-user={_NOBODY}"],
        ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"],
    ]
    for way in ways:
        command = [*way, sys.executable, "-c", "import os, sys; sys.exit(os.geteuid() == 0)"]
        if shutil.which(way[0]) and subprocess.run(command, capture_output=True).returncode == 0:
            return way
    raise BrokenList("root's rights cannot be put down here; run it as another user")


Found = dict[Mutation, Told]


def run(mutations: Sequence[Mutation], *, root: Path, jobs: int = 1, matrix: bool = False) -> Found:
    """Return what the tests told of each mutation.

    matrix: not only of the first test that noticed.

    Raises:
        BrokenList: the list is out of date, or tests do not pass as the code is; all others are
            run before.
    """
    if lines := stale(mutations, root):
        raise BrokenList("\n".join(lines))
    groups = [[*group] for _, group in groupby(mutations, lambda mutation: mutation.file)]
    jobs = min(jobs, len(groups))
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    found: Found = {}
    broken: list[str] = []

    def work(group: Sequence[Mutation]) -> None:
        copy = copies.get()
        try:
            for mutation, told in copy.judge(group, matrix):
                found[mutation] = told
                print(f"{told.how:<10}{mutation.name}", flush=True)
        except BrokenList as error:
            broken.append(str(error))
            print(f"{group[0].file}: {error}", flush=True)
        finally:
            copies.put(copy)

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(jobs) as pool:
        for _ in range(jobs):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dlemu-mutants."))
            copies.put(stack.enter_context(contextlib.closing(Copy(root, Path(folder)))))
        try:
            for _ in pool.map(work, groups):
                pass
        except BaseException:  # each ends after the tests that it is at
            pool.shutdown(cancel_futures=True)
            raise
    if broken:
        raise BrokenList("\n".join(broken))
    return found


def judge(found: Found) -> tuple[int, str]:
    """Return the exit status, and what is told of the survivors.

    Of changes that were drawn a tenth may survive, and none needs a reason.
    """
    drawn = any(mutation.drawn for mutation in found)
    most = len(found) // 10 if drawn else MOST_SURVIVORS
    survivors = [mutation for mutation, told in found.items() if told.survived]
    lines = [f"{len(found)} mutations, {len(survivors)} survived (at most {most} may)"]
    wrong = len(survivors) > most
    for mutation in survivors:
        reason = mutation.reason or ("any change" if drawn else "NO REASON; add a test")
        lines.append(f"  {mutation.name}: {reason}")
        wrong |= not (drawn or mutation.reason)
    for mutation, told in found.items():
        if mutation.reason and not told.survived:
            lines.append(f"  {mutation.name} was noticed: take its reason off the list")
            wrong = True
    return int(wrong), "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="of these files or changes")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--random", type=int, metavar="N", help="change code anywhere, N times")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of what is drawn")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="copies to work in")
    parser.add_argument("--matrix", action="store_true", help="which tests notice which change")
    asked = parser.parse_args()
    if asked.serve:
        serve()
        return 0
    try:
        words = asked.only or [""]
        if asked.random:
            from tests.random_mutants import draw

            mutations = draw(ROOT, asked.random, asked.seed, words)
        else:
            listed = read_list(LIST)
            if lines := stale(listed, ROOT):  # all of them, whatever was asked for
                raise BrokenList("\n".join(lines))
            mutations = [each for each in listed if any(word in each.name for word in words)]
            if not mutations:
                raise BrokenList(f"no mutation has {' or '.join(words)} in its name")
        found = run(mutations, root=ROOT, jobs=asked.jobs, matrix=asked.matrix)
    except BrokenList as error:
        print(error, file=sys.stderr)
        return 1
    status, told = judge(found)
    print(told)
    if asked.matrix:
        (ROOT / "build").mkdir(exist_ok=True)
        kills = {mutation.name: told.failed for mutation, told in found.items()}
        (ROOT / "build" / "kills.json").write_text(json.dumps(kills, indent=1))
    return status


if __name__ == "__main__":
    sys.exit(main())
