"""Does every documented install resolve, from PyPI alone, on each Python that is found here?

    python -m release.resolve [--all] [--python VERSION ...] [--pins FILE]

pip says what it would install (`--dry-run --report`) in the environment of a user: no
configuration, no wheels on this disk, no extra index; only the variables that lead to PyPI are
passed. Each Python is asked with constraints.txt and without. Nothing is installed.

An install is a part of the union of all: where that resolves, what it found fits each part as well.
So the union is asked, and the README's, where a conflict shows soonest; --all asks each install,
which says the ones that a bad pin prevents.

The exit status is 1 where an install does not resolve, and the pin that prevents it is named; 3
where PyPI cannot be reached, so that nothing is known.
"""

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from release.pip import (
    PINS,
    Resolved,
    build,
    canonical,
    interpreters,
    pins_of,
    resolve,
    user_environment,
)
from release.relay import relayed

INSTALLS = (
    *("", "torch,mpi,plot", "torch,mpi", "test", "dali-cuda12", "dali-cuda13", "gds", "s3"),
    *("docs", "parquet"),
)
"""Extras as the pages name them: `pip install '.[EXTRAS]'`."""
UNION = "test,dali-cuda12,dali-cuda13"
"""What has all of them: `test` has the others."""
SOON = ("torch,mpi,plot", UNION)
UNKNOWN = 3
"""Exit status where PyPI could not be reached."""
_TOGETHER = 4
"""Processes at a time."""
_UNREACHABLE = re.compile(
    r"connection broken|NewConnectionError|Could not fetch URL|(Connect|Read)Timeout|ProxyError"
)


@dataclass(frozen=True)
class Case:
    version: str
    python: Path
    extras: str
    pinned: bool

    def __str__(self) -> str:
        wanted = f".[{self.extras}]" if self.extras else "."
        pins = "-c constraints.txt " if self.pinned else ""
        return f"Python {self.version}: pip install {pins}'{wanted}'"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m release.resolve", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--all", action="store_true", help="ask each install, not the union")
    parser.add_argument("--python", nargs="+", metavar="VERSION", help="3.11 ...: these alone")
    parser.add_argument("--pins", type=Path, default=PINS, metavar="FILE")
    asked = parser.parse_args(words)
    found = interpreters()
    for version in set(asked.python or ()) - found.keys():
        parser.error(f"no Python {version} here; found: {', '.join(found)}")
    pythons = {v: found[v] for v in found if not asked.python or v in asked.python}
    environment = user_environment()
    pins = pins_of(asked.pins)
    try:
        with tempfile.TemporaryDirectory() as folder, relayed(environment, pins, [*pythons]) as way:
            _, wheel = build(Path(folder), way)
            check = _Check(wheel, asked.pins, way)
            return check.run(pythons, INSTALLS if asked.all else SOON)
    except OSError as error:
        print(f"PyPI cannot be reached, so nothing was resolved: {error}")
        return UNKNOWN


@dataclass(frozen=True)
class _Check:
    wheel: Path
    pins: Path
    environment: dict[str, str]

    def run(self, pythons: dict[str, Path], wanted: Iterable[str]) -> int:
        """Print a line for each case, and the pins to blame; return the exit status."""
        cases = [
            Case(version, python, extras, pinned)
            for version, python in pythons.items()
            for pinned in (True, False)
            for extras in wanted
        ]
        statuses = {0}
        with ThreadPoolExecutor(_TOGETHER) as pool:
            for case, (done, seconds) in zip(cases, pool.map(self._one, cases), strict=True):
                if done.report is not None:
                    print(f"{case}: {len(done.versions)} packages, {seconds:.0f} s", flush=True)
                    continue
                unreached = _UNREACHABLE.search(done.said) is not None
                statuses.add(UNKNOWN if unreached else 1)
                print(f"{case}: {'NOT KNOWN' if unreached else 'DOES NOT RESOLVE'}", flush=True)
                for line in blame(done.said, self.pins.read_text() if case.pinned else ""):
                    print(f"  {line}", flush=True)
        return 1 if 1 in statuses else max(statuses)

    def _one(self, case: Case) -> tuple[Resolved, float]:
        began = time.monotonic()
        wanted = f"{self.wheel}[{case.extras}]" if case.extras else str(self.wheel)
        pins = ["-c", str(self.pins.resolve())] if case.pinned else []
        done = resolve(["--ignore-installed", *pins, wanted], case.python, self.environment)
        return done, time.monotonic() - began


def blame(said: str, pins: str) -> list[str]:
    """Return lines on why pip found nothing: the pins that it names, and who asks for another.

    Args:
        said: what pip printed.
        pins: the text of the file of constraints, or nothing.
    """
    if _UNREACHABLE.search(said):
        return [f"PyPI cannot be reached: {_last_line(said)}"]
    pinned = {canonical(line.partition("==")[0]): line for line in pins.split() if "==" in line}
    errors = said[said.find("ERROR:") :]
    named = [canonical(name) for name in re.findall(r"\(constraint\) ([\w.-]+)==", errors)]
    named += [
        canonical(name)
        for name in re.findall(r"satisfies the requirement ([\w.-]+)", errors)
        + re.findall(r"No matching distribution found for ([\w.-]+)", errors)
    ]
    lines = [f"pin {pinned[name]}" for name in dict.fromkeys(named) if name in pinned]
    lines += [line.strip() for line in errors.splitlines() if " depends on " in line]
    return lines or [line for line in errors.splitlines() if line.strip()]


def _last_line(said: str) -> str:
    return next((line for line in reversed(said.splitlines()) if line.strip()), "pip said nothing")


if __name__ == "__main__":
    sys.exit(main())
