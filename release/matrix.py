"""All tests on each Python that is found here, with the packages that PyPI has for it.

    python -m release.matrix [--python VERSION ...] [--quick] [--jobs N]

Each Python has an environment of its own, `.venv-VERSION`, which stays: `make test` again is
`make test PYTHON=pythonVERSION VENV=.venv-VERSION`. A summary stands at the end, and the exit
status is 1 where a test failed. One after the other, for tests take all cores.
"""

import argparse
import os
import re
import subprocess
import sys
import time

from release.pip import ROOT, interpreters, user_environment


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m release.matrix", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--python", nargs="+", metavar="VERSION", help="3.11 ...: these alone")
    parser.add_argument("--quick", action="store_true", help="only tests that start no process")
    parser.add_argument("--jobs", type=int, metavar="N", help="tests at a time")
    asked = parser.parse_args()
    found = interpreters()
    table, failed = [], False
    for version, python in found.items():
        if asked.python and version not in asked.python:
            continue
        began = time.monotonic()
        target = "quick" if asked.quick else "test"
        words = ["make", target, f"PYTHON={python}", f"VENV=.venv-{version}"]
        words += [f"JOBS={asked.jobs}"] if asked.jobs else []
        print(f"$ {' '.join(words)}", flush=True)
        environment = user_environment() | {"PATH": os.environ["PATH"]}
        done = subprocess.run(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        failed |= done.returncode != 0
        lines = re.findall(
            r"^(?:FAILED|ERROR|SKIPPED) .*$|^=* ?\d+ (?:passed|failed).*$", done.stdout, re.M
        )
        print("\n".join(lines or done.stdout.splitlines()[-20:]), flush=True)
        counts = lines[-1].strip("= ") if lines else "no tests ran"
        table.append(f"{version:8} {time.monotonic() - began:6.0f} s  {counts}")
    print("\n".join(table))
    return 1 if failed or not table else 0


if __name__ == "__main__":
    sys.exit(main())
