"""DLIO, as `make peers` sets it up, on a workload of ours."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.lab.mpirun import mpirun

DLIOS = ("2.0.0", "3.0.2")
"""Versions of DLIO: that on PyPI, and MLPerf Storage v3.0's own, which reads and writes parquet."""

FOLDER = Path(".venv-peers")
_MLPERF = FOLDER / "mlperf"
_SECONDS = 900
"""What takes longer hangs, and would hold a benchmark up for ever."""
_NAMES = {
    "dataset.record_length_bytes": "dataset.record_length",
    "dataset.record_length_bytes_stdev": "dataset.record_length_stdev",
    "dataset.record_length_bytes_resize": "dataset.record_length_resize",
}
"""Keys that the release on PyPI (2.0.0) calls by their names of before."""


def is_there() -> bool:
    """Return whether `make peers` has been run."""
    return (FOLDER / "done").exists()


def run_dlio(
    keys: Mapping[str, object], *, ranks: int = 1, generate: bool, version: str = DLIOS[0]
) -> dict[str, Any]:
    """Have DLIO generate a dataset, or train; return its summary of the latter."""
    names = _NAMES if version == DLIOS[0] else {}
    words = [
        f"++workload.{names.get(key, key)}={value}"
        for key, value in keys.items()
        if key != "workload"
    ]
    words += [
        f"++workload.workflow.generate_data={generate}",
        "++workload.workflow.checkpoint=False",
    ]
    words += [f"++workload.workflow.train={not generate}", f"workload={keys['workload']}"]
    with tempfile.TemporaryDirectory(prefix="dlio.") as results:
        command = [str(FOLDER / "bin" / "dlio_benchmark"), f"hydra.run.dir={results}", *words]
        if ranks > 1:
            launcher = [str(FOLDER / "bin" / "mpirun"), *mpirun(ranks)[1:]]
            command = [*launcher, "--bind-to", "none", *command]
        environment = {"PATH": f"{(FOLDER / 'bin').resolve()}:{os.environ['PATH']}"}
        if version != DLIOS[0]:
            environment["PYTHONPATH"] = str(_MLPERF.resolve())
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | environment,
            start_new_session=True,
        )
        try:
            out, _ = child.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"{' '.join(command)}\ndid not end in {_SECONDS} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if child.returncode:
            raise SystemExit(f"{' '.join(command)}\n{out[-4000:]}")
        if generate:
            return {}
        summary: dict[str, Any] = json.loads((Path(results) / "summary.json").read_text())
        return summary
