"""Starts programs as MPI ranks."""

import os
import shutil
import sys
from pathlib import Path

import pytest


def mpirun(num_ranks: int, *command: str) -> list[str]:
    """Return the command line that runs `command` as so many ranks; skip the test without MPI."""
    pytest.importorskip("mpi4py", reason="pip install 'dlemu[mpi]'")
    beside = Path(sys.executable).with_name("mpirun")
    launcher = str(beside) if beside.exists() else shutil.which("mpirun")
    if launcher is None:
        pytest.skip(f"no mpirun beside {sys.executable} or on PATH; pip install 'dlemu[mpi]'")
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [launcher, "-n", str(num_ranks), "--oversubscribe", *as_root, *command]
