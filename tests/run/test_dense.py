"""Many accelerators in one process, as `accelerators_per_rank` asks for: real threads and files."""

from pathlib import Path
from typing import Any

import numpy as np

from dlemu.judge.records import Steps, read_steps
from tests.lab import warm
from tests.lab.commands import summary_of

NUM_STEPS = 6
COMPUTATION_TIME = 0.25


def run_dense(folder: Path, num_accelerators: int) -> tuple[dict[str, Any], Steps]:
    """Generate and run; return the summary and (steps, accelerators) records."""
    keys = {
        "workload": "resnet50_h100",
        "dataset.data_folder": folder / "data",
        "dataset.num_samples_per_file": 10,
        "dataset.num_files_train": -(-2 * num_accelerators * NUM_STEPS // 10),
        "dataset.record_length_bytes": 4096,
        "reader.batch_size": 2,
        "reader.data_loader": "threads",
        "reader.read_threads": 1,
        "train.computation_time": COMPUTATION_TIME,
        "train.epochs": 1,
        "accelerators_per_rank": num_accelerators,
        "output.folder": folder / "run",
    }
    words = [f"{key}={value}" for key, value in keys.items()]
    for command in ("datagen", "run"):
        done = warm.run([*warm.COMMAND, command, *words])
        assert done.returncode in (0, 2) or "\nNO VERDICT: " in done.stdout, done.stderr
    steps = read_steps(folder / "run").reshape(-1, num_accelerators)
    return summary_of(folder / "run"), steps


def test_200_accelerators_in_one_process_each_have_their_steps(tmp_path: Path) -> None:
    summary, steps = run_dense(tmp_path / "200", 200)

    assert (summary["num_accelerators"], summary["num_ranks"]) == (200, 1)
    assert steps.shape == (NUM_STEPS, 200)
    assert (steps["accelerator"] == np.arange(200)).all()
    assert (steps["num_samples"] == 2).all()
    assert (steps["num_bytes"] >= 2 * 4096).all(), "each reads for itself"
    whole = steps["wait"] + steps["compute"] + steps["barrier"]
    ends = steps["start"] + whole
    assert np.allclose(steps["start"][1:], ends[:-1], atol=1e-6), "no time between steps"
    assert np.allclose(ends, ends[:, :1], atol=1e-6), "all are released at once"
    late = steps["compute"] - steps["computation_time"]
    assert (late > -1e-6).all()
