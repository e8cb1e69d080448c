"""A small job, and searches without their pictures or without their runs."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dlemu.config.model import Workload, load_workload
from dlemu.datagen.write import generate
from dlemu.findings import note
from dlemu.judge.metrics import measure
from dlemu.judge.outcome import Outcome
from dlemu.judge.records import STEP, dump_workload, write_steps
from dlemu.judge.summary import Summary
from dlemu.ranks.world import Alone
from dlemu.sizing import calibrate, measured

BATCH_BYTES = 4096
TINY = {
    "dataset.record_length_bytes": BATCH_BYTES,
    "dataset.record_length_bytes_stdev": 0,
    "dataset.num_files_train": 200,
    "reader.data_loader": "threads",
    "reader.read_threads": 1,
    "train.computation_time": 0.002,
    "train.epochs": 1,
    "train.total_training_steps": 60,
    "metric.au": 0.01,
    "size.quick": True,
    "size.confirm": 2,
    "size.max_accelerators": 3,
}
"""200 samples: 66 steps with 3 accelerators, of which 4 are read ahead."""


def tiny(folder: Path, **keys: object) -> Workload:
    """Return a workload whose dataset and results lie in a folder."""
    own: dict[str, object] = {
        "dataset.data_folder": str(folder / "data"),
        "output.folder": str(folder / "results"),
    }
    own |= {key.replace("__", "."): value for key, value in keys.items()}
    return load_workload("cosmoflow_h100", TINY | own)


@pytest.fixture
def job(tmp_path: Path) -> Workload:
    workload = tiny(tmp_path)
    generate(workload, world=Alone())
    return workload


def results_of(workload: Workload) -> Path:
    assert workload.output.folder is not None
    return Path(workload.output.folder)


def file_of(workload: Workload) -> str:
    """Write a workload's file; return the word of a command that names it."""
    file = results_of(workload).with_name("own.yaml")
    file.write_text(dump_workload(workload))
    return f"workload={file}"


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
        limit={"name": limit, "evidence": [note("lost", lost_share=0.5).fields]},
        measured={"page_cache_share": cached},
    )
    return Outcome(folder, measure(steps), summary)
