"""The workloads that come with dlemu hold the benchmark's numbers."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from dlemu.config.model import load_workload
from dlemu.config.published import is_measured

FOLDER = Path(__file__).parents[2] / "workloads" / "workload"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))

# MLPerf Storage v1.0 and v2.0 (B200: v3.0): seconds a step.
COMPUTATION_TIME = {
    "unet3d_h100": 0.323,
    "unet3d_a100": 0.636,
    "unet3d_b200": 0.162,
    "resnet50_h100": 0.224,
    "resnet50_a100": 0.435,
    "cosmoflow_h100": 0.00350,
    "cosmoflow_a100": 0.00551,
}
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
    assert (
        (dataset.stored_bytes, dataset.mean_bytes)
        == (dataset.record_length_bytes, 160)
        == (761, 160)
    )
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


@pytest.mark.parametrize("name", sorted(COMPUTATION_TIME))
def test_the_times_are_the_benchmarks(name: str) -> None:
    workload = load_workload(name)
    assert workload.train.computation_time.mean == COMPUTATION_TIME[name]
    assert workload.train.computation_time.stdev == 0
    assert workload.train.epochs == 5
    assert workload.train.total_training_steps == -1
    assert workload.metric.edition == "v1.0"


# In the order of the benchmark's table.
FACTS = {
    "unet3d": ("npz", 168, 1, 146_600_628, 68_341_808, 2_097_152, 7, 4, 2, "seed", "seed", 0.90),
    "resnet50": ("tfrecord", 1024, 1251, 114_660.07, 0, 150_528, 400, 8, 2, "off", "off", 0.90),
    "cosmoflow": ("tfrecord", 524_288, 1, 2_828_486, 71_311, None, 1, 4, 2, "seed", "seed", 0.70),
}


@pytest.mark.parametrize("name", [name for name in NAMES if name.split("_")[0] in FACTS])
def test_the_datasets_are_the_benchmarks(name: str) -> None:
    workload = load_workload(name)
    dataset, reader = workload.dataset, workload.reader
    assert (
        dataset.format,
        dataset.num_files_train,
        dataset.num_samples_per_file,
        dataset.record_length_bytes,
        dataset.record_length_bytes_stdev,
        dataset.record_length_bytes_resize,
        reader.batch_size,
        reader.read_threads,
        reader.prefetch_size,
        reader.file_shuffle,
        reader.sample_shuffle,
        workload.metric.au,
    ) == FACTS[name.split("_")[0]]
    if name.startswith("cosmoflow"):
        assert reader.shuffle_size == 2
