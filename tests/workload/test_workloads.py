"""The workloads that come with dlemu hold the benchmark's numbers."""

import json
from pathlib import Path

import pytest

from dlemu.workload.model import Workload, load_workload
from dlemu.workload.published import what_it_stands_for

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


MEASURED = [name for name in NAMES if name.endswith("_h200")]
"""Rows of `dlemu steptime`; their evidence is in docs/steptime/."""


def test_every_workload_is_known_here() -> None:
    assert set(NAMES) == {*COMPUTATION_TIME, *MEASURED}


@pytest.mark.parametrize("name", MEASURED)
def test_a_measured_row_is_its_evidence(name: str) -> None:
    workload = load_workload(name)
    evidence = json.loads((FOLDER.parents[1] / f"docs/steptime/{name}.json").read_text())
    [own] = [e for e in evidence["batches"] if e["batch"] == workload.reader.batch_size]
    assert workload.name == name
    time = workload.train.computation_time
    assert time.mean == pytest.approx(sum(own["step_seconds"]) / len(own["step_seconds"]), rel=1e-4)
    assert time.stdev == pytest.approx(own["stdev_seconds"], rel=1e-3)


@pytest.mark.parametrize(
    ("name", "told"),
    [("unet3d_h100", "2.0 times"), ("resnet50_h100", "2.7 times"), ("cosmoflow_h100", "")],
)
def test_a_published_row_says_what_it_stands_for(name: str, told: str) -> None:
    """Only where the measured step differs by more than 1.3 times, and only for the row's own."""
    line = what_it_stands_for(load_workload(name))
    assert told in line and bool(line) == bool(told) and "\n" not in line
    assert what_it_stands_for(load_workload(name, {"train.computation_time": 0.5})) == ""
    assert what_it_stands_for(load_workload("unet3d_a100")) == ""


@pytest.mark.parametrize("name", sorted(COMPUTATION_TIME))
def test_the_times_are_the_benchmarks(name: str) -> None:
    workload = load_workload(name)
    assert workload.name == name
    assert workload.train.computation_time.mean == COMPUTATION_TIME[name]
    assert workload.train.computation_time.stdev == 0
    assert workload.train.epochs == 5
    assert workload.train.total_training_steps == -1
    assert workload.metric.edition == "v1.0"
    assert workload.reader.prefetch_size == 2
    assert workload.ignored == ()


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("unet3d")])
def test_unet3d(name: str) -> None:
    assert _facts(load_workload(name)) == (
        *("npz", 168, 1, 146_600_628, 68_341_808, 2_097_152),
        *(7, 4, "seed", "seed", 0.90),
    )


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("resnet50")])
def test_resnet50(name: str) -> None:
    assert _facts(load_workload(name)) == (
        *("tfrecord", 1024, 1251, 114_660.07, 0, 150_528),
        *(400, 8, "off", "off", 0.90),
    )


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("cosmoflow")])
def test_cosmoflow(name: str) -> None:
    workload = load_workload(name)
    assert workload.reader.shuffle_size == 2
    assert _facts(workload) == (
        *("tfrecord", 524_288, 1, 2_828_486, 71_311, None),
        *(1, 4, "seed", "seed", 0.70),
    )


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("unet3d_h100", 3.177),
        ("resnet50_h100", 0.2048),
        ("cosmoflow_h100", 0.808),
        ("unet3d_b200", 6.335),
    ],
)
def test_what_an_accelerator_asks_of_storage(name: str, gigabytes: float) -> None:
    assert load_workload(name).demand / 1e9 == pytest.approx(gigabytes, rel=3e-4)


@pytest.mark.parametrize("name", sorted(COMPUTATION_TIME))
def test_a_comment_names_the_source(name: str) -> None:
    assert "# Source: MLPerf Storage v" in (FOLDER / f"{name}.yaml").read_text()


def _facts(workload: Workload) -> tuple[object, ...]:
    """Return the numbers in the order of the benchmark's table."""
    dataset, reader = workload.dataset, workload.reader
    return (
        dataset.format,
        dataset.num_files_train,
        dataset.num_samples_per_file,
        dataset.record_length_bytes,
        dataset.record_length_bytes_stdev,
        dataset.record_length_bytes_resize,
        reader.batch_size,
        reader.read_threads,
        reader.file_shuffle,
        reader.sample_shuffle,
        workload.metric.au,
    )
