"""Starts programs as MPI ranks."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.lab import warm

_SHORT = """
import sys
from importlib import import_module
for place, value in {settings!r}.items():
    module, _, name = place.rpartition(".")
    setattr(import_module(module), name, value)
from dlemu.__main__ import main
sys.exit(main())
"""
"""`-m dlemu` with settings of the tests; see tests/conftest.py."""


def mpirun(num_ranks: int, *command: str) -> list[str]:
    """Return the command line that runs `command` as so many ranks; skip the test without MPI."""
    pytest.importorskip("mpi4py", reason="pip install 'dlemu[mpi]'")
    beside = Path(sys.executable).with_name("mpirun")
    launcher = str(beside) if beside.exists() else shutil.which("mpirun")
    if launcher is None:
        pytest.skip(f"no mpirun beside {sys.executable} or on PATH; pip install 'dlemu[mpi]'")
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    words = list(command)
    if warm.settings and warm.COMMAND[1:] in (words[at : at + 2] for at in range(len(words))):
        at = words.index("-m")
        words[at : at + 2] = ["-c", _SHORT.format(settings=dict(warm.settings))]
    return [launcher, "-n", str(num_ranks), "--oversubscribe", *as_root, *words]
