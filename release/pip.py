"""pip as a user's machine has it, the interpreters of this one, and what pip resolves."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PINS = ROOT / "constraints.txt"
OLDEST = (3, 11)

_PATIENCE = 600.0
"""Seconds for one question: where nothing fits, pip may try older versions for hours."""

_WAY = re.compile(
    r"PIP_(CERT|CLIENT_CERT|PROXY|INDEX_URL|TRUSTED_HOST|DEFAULT_TIMEOUT|RETRIES)|(https?|all|no)_proxy"
    r"|(SSL_CERT|REQUESTS_CA|CURL_CA)_\w+",
    re.IGNORECASE,
)
"""Variables that lead to PyPI. All others stay away: they may bring wheels that users lack."""
_WAY_IN_FILES = ("cert", "client-cert", "proxy", "index-url", "trusted-host", "timeout")
"""The same in pip's own configuration."""


def user_environment() -> dict[str, str]:
    """Return the environment of a user: no configuration of pip, no wheels that lie here."""
    kept = {name: value for name, value in os.environ.items() if _WAY.fullmatch(name)}
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True
    ).stdout
    for key, value in re.findall(r"^(?:global|install)\.([\w-]+)='(.*)'$", told, re.MULTILINE):
        if key in _WAY_IN_FILES:
            kept.setdefault("PIP_" + key.replace("-", "_").upper(), value)
    return kept | {
        "PATH": os.defpath,
        "HOME": os.environ.get("HOME", "/"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "LC_ALL": "C.UTF-8",
    }


def interpreters() -> dict[str, Path]:
    """Return {version: path} of one Python of each minor version that dlemu supports."""
    found: dict[str, Path] = {}
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    paths = [Path(sys.executable), *sorted(pyenv.glob("versions/3.*/bin/python"), reverse=True)]
    named = [shutil.which(f"python3.{n}") for n in range(9, 30)]
    paths += [Path(each) for each in named if each]
    code = "import ssl, sys, venv; print('%d.%d' % sys.version_info[:2])"
    for path in paths:
        done = subprocess.run([path, "-c", code], capture_output=True, text=True)
        version = done.stdout.strip()
        if done.returncode == 0 and tuple(map(int, version.split("."))) >= OLDEST:
            found.setdefault(version, path)
    return dict(sorted(found.items(), key=lambda item: int(item[0].split(".")[1])))


def pins_of(path: Path) -> dict[str, str]:
    """Return {canonical name: version} of a file of constraints."""
    lines = (line.partition("==") for line in path.read_text().split())
    return {canonical(name): version for name, _, version in lines}


@dataclass(frozen=True)
class Resolved:
    """What pip would install: its report, or, where `report` is None, why nothing fits."""

    report: dict[str, Any] | None
    said: str

    @property
    def versions(self) -> dict[str, str]:
        """{name in its canonical form: version}"""
        items = self.report["install"] if self.report else []
        return {canonical(i["metadata"]["name"]): i["metadata"]["version"] for i in items}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve(words: list[str], python: Path, environment: dict[str, str], *options: str) -> Resolved:
    """Ask pip what it would install by `words`; no wheel is fetched, only their metadata.

    pip itself is the one that runs this program, whatever `python` has. It is not quiet: then it
    would not tell who asks for what.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            *(sys.executable, "-m", "pip", "--python", str(python), "install", "--dry-run"),
            *("--report", str(report), "--use-feature=fast-deps", *options, *words),
        ]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                # A pip that is ended leaves what it has fetched.
                env=environment | {"TMPDIR": folder},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_PATIENCE,
            )
        except subprocess.TimeoutExpired:
            return Resolved(None, f"ERROR: pip found nothing that fits within {_PATIENCE:.0f} s")
        whole = done.returncode == 0 and report.exists()
        return Resolved(json.loads(report.read_text()) if whole else None, done.stdout)


def not_source(folder: str, names: list[str]) -> set[str]:
    """Return those names in a folder of the checkout that are no source, for `shutil.copytree`.

    Hidden files are left out at the top alone: DLIO's results, which tests read, have `.hydra`.
    """
    patterns = ["__pycache__", "*.egg-info"]
    if Path(folder) == ROOT:
        patterns += [".*", "build", "outputs", "dist"]
    return shutil.ignore_patterns(*patterns)(folder, names)


def build(folder: Path, environment: dict[str, str] | None = None) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it; return (sdist, wheel).

    It works in a copy, for a build leaves files behind.

    Raises:
        subprocess.CalledProcessError: setuptools refuses.
    """
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "dlemu"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=not_source)
        tools = Path(scratch) / "tools"
        python = tools / "bin" / "python"
        pip: list[str | Path] = [python, "-m", "pip", "--quiet"]
        make = f"from setuptools import build_meta as b; b.build_sdist({str(folder)!r})"
        commands: list[list[str | Path]] = [
            [sys.executable, "-m", "venv", tools],
            [*pip, "install", "setuptools>=64"],
            [python, "-c", make],
        ]
        for command in commands:
            subprocess.run(
                command,
                cwd=copy,
                env=environment,
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        (sdist,) = folder.glob("dlemu-*.tar.gz")
        wheel = [*pip, "wheel", "--no-deps", "--wheel-dir", folder, sdist]
        subprocess.run(wheel, cwd=copy, env=environment, check=True)
        (built,) = folder.glob("dlemu-*.whl")
        return sdist, built
