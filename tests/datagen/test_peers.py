"""DLIO 2.0.0 trains on what dlemu writes, and dlemu on what DLIO writes.

`make peers` sets DLIO up and runs this; elsewhere it is skipped.
"""

from pathlib import Path
from typing import Any

import pytest

from dlemu.cli.main import run
from dlemu.datagen import generate, read_manifest
from dlemu.results.records import read_steps, read_summary
from dlemu.workload.model import load_workload
from dlemu.world.world import Alone
from tests.lab.peer import is_there, run_dlio

pytestmark = pytest.mark.skipif(not is_there(), reason="no DLIO here; make peers sets it up")

NUM_FILES, BATCH, SIDE = 12, 3, 64
SHAPES: dict[str, dict[str, Any]] = {
    "npz": {},
    "npy": {},
    "hdf5": {"dataset.num_samples_per_file": 2},
    "tfrecord": {
        "framework": "tensorflow",
        "reader.data_loader": "tensorflow",
        "dataset.num_samples_per_file": 2,
    },
}


def keys_of(format: str, folder: Path) -> dict[str, Any]:
    """Return a small job in words that both know."""
    return {
        "workload": "unet3d_h100",
        "dataset.data_folder": str(folder),
        "dataset.format": format,
        "dataset.num_files_train": NUM_FILES,
        "dataset.record_length_bytes": SIDE**2,
        "dataset.record_length_bytes_stdev": 0,
        "dataset.record_length_bytes_resize": SIDE**2,
        "reader.batch_size": BATCH,
        "reader.read_threads": 1,
        "train.epochs": 2,
        "train.computation_time": 0.01,
    } | SHAPES[format]


def steps_of(format: str) -> int:
    """Return the steps of an epoch."""
    return int(NUM_FILES * SHAPES[format].get("dataset.num_samples_per_file", 1)) // BATCH


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("format", SHAPES)
def test_dlio_trains_on_what_dlemu_writes(tmp_path: Path, format: str) -> None:
    keys = keys_of(format, tmp_path / "data")
    words = {key: value for key, value in keys.items() if key not in ("workload", "framework")}
    generate(load_workload("unet3d_h100", words), world=Alone())
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")}

    summary = run_dlio(keys, generate=False)

    assert summary["num_files_train"] == NUM_FILES
    rates = summary["metric"]["train_throughput_samples_per_second"]
    assert len(rates) == 2 and min(rates) > 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")} == before


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("format", SHAPES)
def test_dlemu_runs_on_what_dlio_writes(
    tmp_path: Path, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = keys_of(format, tmp_path / "data")
    run_dlio(keys, generate=True)
    assert read_manifest(tmp_path / "data") is None
    capsys.readouterr()
    words = [f"{key}={value}" for key, value in keys.items()]

    run(["run", *words, f"output.folder={tmp_path / 'run'}"])  # so few steps give no verdict

    summary = read_summary(tmp_path / "run")
    assert summary["status"] == "complete", capsys.readouterr().err
    steps = read_steps(tmp_path / "run")
    assert len(steps) == 2 * steps_of(format)
    assert (steps["num_samples"] == BATCH).all()
    assert steps["num_bytes"].sum() >= 2 * steps_of(format) * BATCH * SIDE**2
    assert f"no manifest in {tmp_path / 'data'}" in " ".join(summary["notes"])
