"""Predictions from keys and a calibration; what is printed lies in tests/golden/predict.txt."""

from pathlib import Path

import pytest

import dlemu
from dlemu.config.compose import datasheet
from dlemu.config.model import Drive, load_workload
from dlemu.errors import WorkloadError
from dlemu.sizing.formula import Calibration, drives_for_one, limited

PS1010 = {"drive": "d7_ps1010"}
HOST = Calibration(
    workload="unet3d_h100",
    loader="threads",
    odirect=True,
    sample_bytes=146_600_628,
    read_threads=4,
    overhead=0.003,
    jitter=0.003,
    host_read_bytes_per_second=20e9,
    drive_read_bytes_per_second=10e9,
)
"""A host that moves 20 GB/s, with a drive that gives 10: 7.0 and 3.5 accelerators at AU 90 %."""


def predicted(name: str, keys: dict[str, object]) -> dlemu.Predicted:
    return dlemu.predict(dlemu.load_workload(name, keys))


def calibrated(folder: Path, *, keys: dict[str, object], **figures: object) -> dict[str, object]:
    """Write a calibration with other figures than HOST's; return the keys of its job and more."""
    path = folder / "calibration.json"
    found = HOST.model_copy(update=figures)
    path.write_text(found.model_dump_json())
    job = {"reader.data_loader": "threads", "reader.odirect": True}
    return {**job, "predict.calibration": str(path), **keys}


@pytest.mark.parametrize(
    ("keys", "figures", "number", "limit"),
    [
        ({}, {}, (3, 2, 4), "storage"),
        ({"drives": 4}, {}, (6, 4, 9), "host cpu"),
        ({"drive.read_bandwidth": "6GB"}, {}, (2, 1, 2), "storage"),
        ({}, {"error": 0.02}, (3, 3, 3), "storage"),
        # The loader took 10 GB/s of the drive; the host moves 20, what 7.0 take, and 36 % more.
        ({}, {"drive_limit": "loader", "host_limit": "host cpu"}, (3, 2, 9), "loader"),
        ({}, {"drive_limit": "loader", "host_limit": "loader"}, (3, 2, None), "loader"),
        # Another drive, by its datasheet, was not read by that loader.
        ({"drive.read_bandwidth": "6GB"}, {"drive_limit": "loader"}, (2, 1, 2), "storage"),
        # The four drives bound what a host that was held back may move.
        ({"drives": 4}, {"drive_limit": "storage", "host_limit": "loader"}, (6, 4, 19), "loader"),
    ],
)
def test_a_calibration_knows_the_drive_and_the_host(
    keys: dict[str, object],
    figures: dict[str, object],
    number: tuple[int, int, int | None],
    limit: str,
    tmp_path: Path,
) -> None:
    found = predicted("unet3d_h100", calibrated(tmp_path, keys=keys, **figures))

    assert (found.num_accelerators, found.low, found.high) == number
    assert found.limit == limit
    assert found.at_least is (limit == "loader")
    assert found.calibrated


def test_advice_is_not_what_is_set_already(tmp_path: Path) -> None:
    keys = calibrated(tmp_path, keys={}, drive_read_bytes_per_second=None)
    with pytest.raises(WorkloadError, match=r"calibration\.json read none; name a dat") as refused:
        predicted("unet3d_h100", keys)
    assert "predict.calibration=FILE" not in str(refused.value)


def test_one_function_says_what_a_drive_feeds() -> None:
    """`dlemu help workloads` counts at AU 100 %, a prediction at the threshold."""
    drive = Drive.model_validate(datasheet("d7_ps1010"))
    for name in ("dlrm_h100", "unet3d_h100", "dlrm_b200", "resnet50_h100"):
        workload = load_workload(name, PS1010)
        one = dlemu.predict(workload).real_accelerators * workload.metric.au
        assert 1 / drives_for_one(workload, drive) == pytest.approx(one, rel=1e-6), name
    many = load_workload("unet3d_h100", {"train.computation_time": 0.01})
    assert limited(many) == "yes: one needs 7.1 D7-PS1010"


def test_minutes_are_the_pass_at_the_rate_of_eight() -> None:
    pass_bytes = 24 * 21338 * 7_471_104
    keys: dict[str, object] = {"drive": "d3_s4520", "drives": 2, "predict.minutes": True}
    told = predicted("dlrm_dcnv2_h100", keys).document
    assert told["pass_bytes"] == pass_bytes
    for name, rate in (("minutes", 1.0), ("minutes_low", 1.36), ("minutes_high", 0.64)):
        assert told[name] == pytest.approx(pass_bytes / rate / 1.1e9 / 60)
    # The accelerators limit them as well.
    keys |= {"drive": "d7_ps1010", "drives": 8}
    assert predicted("dlrm_dcnv2_h100", keys).minutes == pytest.approx(3.90, abs=0.005)
    four = predicted("dlrm_dcnv2_h100", keys | {"predict.accelerators": 4})
    assert four.minutes == pytest.approx(7.80, abs=0.01)
    cut = predicted("dlrm_dcnv2_h100", keys | {"train.total_training_steps": 100})
    assert cut.pass_bytes == 800 * 7_471_104
    assert predicted("dlrm_dcnv2_h100", {"drive": "d7_ps1010"}).minutes is None
