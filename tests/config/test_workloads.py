"""The workloads that come with dlemu hold the benchmark's numbers."""

import json
import re
from pathlib import Path

import pytest

from dlemu.config.model import load_workload
from dlemu.config.published import is_measured

FOLDER = Path(__file__).parents[2] / "workloads" / "workload"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))

MEASURED = [name for name in NAMES if is_measured(name)]
"""Rows of `dlemu steptime`; their evidence is in docs/steptime/."""


@pytest.mark.parametrize("name", NAMES)
def test_a_row_names_its_source(name: str) -> None:
    """What the row asks of storage is in golden/workloads.txt."""
    workload = load_workload(name)
    assert workload.name == name and workload.ignored == ()
    text = (FOLDER / f"{name}.yaml").read_text()
    assert re.search(r"^# Source: MLPerf|^# Source: .*torchtitan|dlemu steptime", text, re.M)


@pytest.mark.parametrize("name", MEASURED)
def test_a_measured_row_is_its_evidence(name: str) -> None:
    workload = load_workload(name)
    evidence = json.loads((FOLDER.parents[1] / f"docs/steptime/{name}.json").read_text())
    [own] = [e for e in evidence["batches"] if e["batch"] == workload.reader.batch_size]
    assert workload.name == name
    time = workload.train.computation_time
    assert time.mean == pytest.approx(sum(own["step_seconds"]) / len(own["step_seconds"]), rel=1e-4)
    if time.type == "normal":
        assert time.stdev == pytest.approx(own["stdev_seconds"], rel=1e-3)
    if name.endswith("_real_h100"):
        assert workload.train.launch_time == pytest.approx(own["launch_seconds"], rel=1e-3)
