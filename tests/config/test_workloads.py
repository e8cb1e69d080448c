"""The workloads that come with dlemu hold the numbers of their sources.

tests/config/test_published.py compares those of MLPerf Storage with its files.
"""

import json
import re
from collections import Counter
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


def test_dlrm_reads_40_of_200_columns() -> None:
    """The published record length is that of all columns."""
    dataset = load_workload("dlrm_b200").dataset
    assert (len(dataset.columns), len(dataset.read_columns)) == (200, 40)
    assert (dataset.stored_bytes, dataset.mean_bytes) == (761, 160)
    assert dataset.record_length_bytes == 761
    assert dataset.columns == load_workload("dlrm_mi355").dataset.columns
    types = Counter(column.dtype for column in dataset.read_columns)
    assert types == {"float32": 27, "float64": 5, "float16": 4, "int8": 4}


@pytest.mark.parametrize(
    ("name", "gpus", "published"), [("dlrm_dcnv2_h100", 8, 3.90), ("dlrm_dcnv2_h100_pcie", 4, 15)]
)
def test_the_criteo_slices_are_the_whole_dataset(name: str, gpus: int, published: float) -> None:
    """4,195,197,692 records of 912 bytes, and the minutes in which so many GPUs read them."""
    workload = load_workload(name)
    slices = workload.num_files * workload.dataset.num_samples_per_file
    assert slices * workload.dataset.mean_bytes == pytest.approx(4_195_197_692 * 912, rel=1e-4)
    minutes = slices / gpus * workload.train.computation_time.mean / 60
    assert minutes == pytest.approx(published, rel=1e-3)


def test_times_of_training_are_those_of_published_rates() -> None:
    """Sequences a second of 8 GPUs."""
    for name, rate in (("bert_h100", 7759.98), ("llama2_70b_lora_h100", 2.1552)):
        workload = load_workload(name)
        time = workload.train.computation_time.mean
        assert 8 * workload.reader.batch_size / time == pytest.approx(rate, rel=1e-4)


@pytest.mark.parametrize("name", MEASURED)
def test_a_measured_row_is_its_evidence(name: str) -> None:
    workload, published = load_workload(name), load_workload(f"{name.partition('_')[0]}_h100")
    assert (workload.dataset, workload.metric) == (published.dataset, published.metric)
    evidence = json.loads((FOLDER.parents[1] / f"docs/steptime/{name}.json").read_text())
    [own] = [e for e in evidence["batches"] if e["batch"] == workload.reader.batch_size]
    assert workload.name == name
    time = workload.train.computation_time
    assert time.mean == pytest.approx(sum(own["step_seconds"]) / len(own["step_seconds"]), rel=1e-4)
    if time.type == "normal":
        assert time.stdev == pytest.approx(own["stdev_seconds"], rel=1e-3)
    if name.endswith("_real_h100"):
        assert workload.train.launch_time == pytest.approx(own["launch_seconds"], rel=1e-3)
