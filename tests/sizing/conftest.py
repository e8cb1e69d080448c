"""Searches without their pictures, and without their runs."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dlemu.config.model import Workload
from dlemu.judge.metrics import measure
from dlemu.judge.outcome import Outcome
from dlemu.judge.records import STEP, write_steps
from dlemu.judge.summary import Summary
from dlemu.sizing import calibrate, measured

BATCH_BYTES = 65536


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make empty files of pictures: to draw one takes longer than the search that it shows."""

    def save(plots: object, path: Path, *, title: str) -> None:
        for kind in ("png", "svg"):
            path.with_name(f"{path.name}.{kind}").write_bytes(b"")

    # A stand-in for the module, as to import matplotlib takes as long as ten searches.
    monkeypatch.setitem(sys.modules, "dlemu.report.png", SimpleNamespace(save_pictures=save))


@pytest.fixture
def no_runs(monkeypatch: pytest.MonkeyPatch, no_pictures: None) -> None:
    """Let each run be over at once: AU is 20 % with any number, and storage is the limit."""

    def run(workload: Workload, **_: object) -> Outcome:
        folder, number = Path(str(workload.output.folder)), workload.num_accelerators
        return outcome(folder, accelerators=number or 1)

    for module in (calibrate, measured):
        monkeypatch.setattr(module, "run_job", run)


def outcome(
    folder: Path,
    limit: str = "storage",
    *,
    accelerators: int = 1,
    seconds: float = 0.01,
    cached: float = 0.0,
) -> Outcome:
    """Return a run of 20 steps of a batch, each so long with 2 ms of compute, and bound by that."""
    steps = np.zeros(20 * accelerators, STEP)
    steps["accelerator"], steps["step"] = np.divmod(np.arange(len(steps)), 20)
    steps["num_samples"], steps["num_bytes"] = 1, BATCH_BYTES
    steps["compute"] = steps["computation_time"] = 0.002
    steps["wait"] = seconds - 0.002
    folder.mkdir(parents=True)
    write_steps(folder, 0, steps)
    summary = Summary(
        limit={"name": limit, "evidence": f"the {limit} was slow"},
        measured={"page_cache_share": cached},
    )
    return Outcome(folder, measure(steps), summary)
