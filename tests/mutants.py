"""Does a test notice? Changes the code as somebody might by mistake, and runs the tests.

    python -m tests.mutants [--only WORD] [--jobs N]

`mutants.toml` has the list: a file, text that it holds once, what to put in its place, and the
tests that must fail then. Each job works in a copy of the checkout; there the tests must first pass
as the code is. No test may need root: its rights are put down.

The exit status is 0 if all changes were noticed but for a few, each with a reason in the list.
"""

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".toml")

MOST_SURVIVORS = 5
_LEAST_SECONDS = 60.0
"""A run of tests may take this long, or twice what all tests took as the code is."""
_NOBODY = 65534
_PASSED, _FAILED = 0, 1
"""Exit statuses of pytest; others say that no test was run, or not to its end."""
_PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not root and not gpu")
# Random examples must be the same each time, or a change would be noticed by chance.
_SEED = "--hypothesis-seed=0"


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
            if f"def {name}(" not in text if name else not text:
                lines.append(f"the list is out of date: {mutation.name}: there is no {test}")
    return lines


class Copy:
    """A copy of the checkout, in which files are changed and tests run."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._folder, self._before = folder, _without_root()
        self._seconds = 0.0
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
        for name in listed.stdout.split("\0"):
            if name and (root / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name, follow_symlinks=False)
        (folder / "tmp").mkdir()
        for path in (folder, folder / "tmp"):
            path.chmod(0o777)

    def control(self, tests: Sequence[str]) -> None:
        """Run tests on the code as it is.

        Raises:
            BrokenList: they do not pass, or would not test this copy.
        """
        if (self._folder / "dlemu").is_dir():
            imported = "import dlemu, sys; sys.exit(not dlemu.__file__.startswith(sys.argv[1]))"
            status, told = self._python(["-c", imported, str(self._folder)], _LEAST_SECONDS)
            if status != 0:
                raise BrokenList(f"the tests would not import the copy that is changed\n{told}")
        begin = time.monotonic()
        status, told = self._python([*_PYTEST, _SEED, *tests], 3600)
        self._seconds = time.monotonic() - begin
        if status != _PASSED:
            raise BrokenList(f"without any change the tests do not pass:\n{told}")

    def survives(self, mutation: Mutation) -> tuple[bool, str]:
        """Return whether no test noticed, and what was told.

        Raises:
            BrokenList: the tests could not be run.
        """
        path = self._folder / mutation.file
        text = path.read_text()
        path.write_text(text.replace(mutation.old, mutation.new))
        try:
            seconds = max(_LEAST_SECONDS, 2 * self._seconds)
            status, told = self._python([*_PYTEST, _SEED, *mutation.tests], seconds)
        finally:
            path.write_text(text)
        if status is None:
            return False, "killed: its tests did not end"
        if status not in (_PASSED, _FAILED):
            raise BrokenList(f"{mutation.name}: the tests could not be run:\n{told}")
        return status == _PASSED, "survived" if status == _PASSED else "killed"

    def _python(self, arguments: Sequence[str], seconds: float) -> tuple[int | None, str]:
        """Return exit status (None: it did not end in time) and the end of what was printed."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._folder),
            # Compiled files are told apart by size and second: a change is quicker than that.
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(self._folder / "tmp"),
            "HOME": str(self._folder / "tmp"),
        }
        process = subprocess.Popen(
            [*self._before, sys.executable, *arguments],
            cwd=self._folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            told, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, ""
        return process.returncode, "\n".join(told.splitlines()[-40:])


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


def run(
    mutations: Sequence[Mutation], *, root: Path, jobs: int = 1
) -> dict[Mutation, tuple[bool, str]]:
    """Return, for each mutation, whether it survived and what was told.

    Raises:
        BrokenList: the list is out of date, or the tests do not pass as the code is.
    """
    if lines := stale(mutations, root):
        raise BrokenList("\n".join(lines))
    left: queue.SimpleQueue[Mutation] = queue.SimpleQueue()
    for mutation in mutations:
        left.put(mutation)
    found: dict[Mutation, tuple[bool, str]] = {}
    failures: list[BaseException] = []
    tests = sorted({test for mutation in mutations for test in mutation.tests})

    def work() -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="dlemu-mutants.") as folder:
                copy = Copy(root, Path(folder))
                copy.control(tests)
                while not failures and not left.empty():
                    mutation = left.get_nowait()
                    found[mutation] = copy.survives(mutation)
                    print(f"{found[mutation][1]:<10}{mutation.name}", flush=True)
        except queue.Empty:
            pass
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt as error:  # each ends after the tests that it is at
        failures.append(error)
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    return found


def judge(found: dict[Mutation, tuple[bool, str]]) -> tuple[int, str]:
    """Return the exit status, and what is told of the survivors."""
    survivors = [mutation for mutation, (survived, _) in found.items() if survived]
    lines = [f"{len(found)} mutations, {len(survivors)} survived (at most {MOST_SURVIVORS} may)"]
    wrong = len(survivors) > MOST_SURVIVORS
    for mutation in survivors:
        lines.append(f"  {mutation.name}: {mutation.reason or 'NO REASON; add a test'}")
        wrong |= not mutation.reason
    for mutation, (survived, _) in found.items():
        if mutation.reason and not survived:
            lines.append(f"  {mutation.name} was noticed: take its reason off the list")
            wrong = True
    return int(wrong), "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORD", help="of these files or changes")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="copies to work in")
    asked = parser.parse_args()
    try:
        listed = read_list(LIST)
        if lines := stale(listed, ROOT):  # all of them, whatever was asked for
            raise BrokenList("\n".join(lines))
        mutations = [mutation for mutation in listed if asked.only in mutation.name]
        if not mutations:
            raise BrokenList(f"no mutation has {asked.only!r} in its name")
        status, told = judge(run(mutations, root=ROOT, jobs=asked.jobs))
    except BrokenList as error:
        print(error, file=sys.stderr)
        return 1
    print(told)
    return status


if __name__ == "__main__":
    sys.exit(main())
