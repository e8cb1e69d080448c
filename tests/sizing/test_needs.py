"""What a number of accelerators needs, beside what the prediction says of the drives it names."""

import csv
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import dlemu
from dlemu.cli.main import run
from dlemu.config.compose import datasheet, named
from dlemu.config.model import Drive, load_workload
from dlemu.errors import WorkloadError
from dlemu.sizing.formula import PredictionInput
from dlemu.sizing.formula import predict as formula
from dlemu.sizing.needs import asks_for_needs, needs_of

NAMES = ("unet3d_h100", "resnet50_h100", "cosmoflow_h100", "dlrm_b200")
load = cache(load_workload)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("number", [1, 8, 256, 4096])
def test_so_many_drives_feed_them_and_one_fewer_do_not(name: str, number: int) -> None:
    found = needs_of(load(name).with_keys({"predict.accelerators": number}))
    drives = {drive.name: drive for drive in map(_drive, named("drive"))}
    assert [row["drive"] for row in found["storages"]] == sorted(
        drives, key=lambda each: -drives[each].read_rate
    )
    for row in found["storages"]:
        job = PredictionInput.of(load(name), drives[row["drive"]])
        for num, enough in ((row["rule"], True), (row["rule"] - 1, False)):
            if num:
                # Not N*, which is as large as a number that passes by the rounding of AU.
                fed = formula(replace(job, num_drives=num)).feeds["storage"]
                assert (fed >= number * (1 - 1e-9)) is enough
        assert row["rule"] <= row["bare"] <= row["rule"] / load(name).metric.au + 1


def _drive(name: str) -> Drive:
    return Drive.model_validate(datasheet(name))


def test_rates_hosts_dataset_and_checkpoint() -> None:
    """The 3D U-Net of the benchmark: 7 x 146,600,628 bytes in 0.323 s."""
    keys: dict[str, object] = {"predict.accelerators": 250, "host_memory": "512GiB"}
    job = load_workload("unet3d_h100", keys)
    found = needs_of(job)
    rule, bare = found["rule"], found["bare"]
    assert bare["read_bytes_per_second"] == pytest.approx(250 * 7 * 146_600_628 / 0.323)
    assert rule["read_bytes_per_second"] == pytest.approx(0.9 * bare["read_bytes_per_second"])
    assert bare["samples_per_second"] == pytest.approx(250 * 7 / 0.323)
    reads = rule["reads_per_second"] * found["bytes_of_a_read"]
    assert reads == pytest.approx(rule["read_bytes_per_second"])
    assert found["num_hosts"] == 32, "the last of them has two"
    assert rule["host_bytes_per_second"] == pytest.approx(rule["read_bytes_per_second"] / 32)
    assert 8e-9 * rule["host_bytes_per_second"] < rule["host_gbps"] * 0.95
    size = dlemu.dataset_size(job.with_keys({"num_hosts": 32}), num_accelerators=250)
    assert found["dataset"]["num_files"] == size.num_files == 875_000
    assert found["dataset"]["decided_by"] == "steps"
    saved = found["checkpoint"]
    assert saved["num_bytes"] == 499_153_191
    assert saved["every_seconds"] == pytest.approx(2 * 500 * 0.323 / 0.9)
    assert saved["write_bytes_per_second"] == pytest.approx(
        499_153_191 / (0.05 * 358.889), rel=1e-4
    )
    in_time = needs_of(job.with_keys({"checkpoint.max_seconds": 2.0}))["checkpoint"]
    assert in_time["write_bytes_per_second"] == pytest.approx(499_153_191 / 2)
    assert needs_of(load_workload("resnet50_h100", keys))["checkpoint"] is None
    four = needs_of(job.with_keys({"num_hosts": 4, "given": ("num_hosts",)}))
    assert four["num_hosts"] == 4


def test_what_is_asked_of_drives_that_are_named_is_the_prediction_and_the_need() -> None:
    own = load_workload(
        "unet3d_h100", {"predict.accelerators": 5, "drive.read_bandwidth": 7 * 10**9}
    )
    assert not asks_for_needs(own)
    needs = dlemu.predict(own).needs
    assert needs is not None
    first = needs["storages"][0]
    assert (first["drive"], first["rule"], first["bare"]) == ("drive", 3, 3)
    assert dlemu.predict(own.with_keys({"predict.accelerators": None})).needs is None


def test_commands(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table, words = tmp_path / "needs.csv", ["predict", "predict.accelerators=256", "--json"]
    names = "workload=unet3d_h100,cosmoflow_h100"
    assert run([*words, names, "--csv", str(table), f"output.folder={tmp_path}"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["workload"] for each in found["answers"]] == ["unet3d_h100", "cosmoflow_h100"]
    assert json.loads((tmp_path / "predict.json").read_text()) == found
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 2 * 2 * len(named("drive"))
    assert rows[0]["drives"] == "51" and rows[1]["au_percent"] == "100.0"
    assert len({row["id"] for row in rows}) == len(rows)
    assert run(["predict", names, "num_accelerators=256"]) == 1
    assert "predict.accelerators=256 tells what 256 need" in capsys.readouterr().err
    assert run(["predict", "workload=unet3d_h100", "num_accelerators=8", "drive=d7_ps1010"]) == 0
    assert "predict.accelerators=8 tells what 8 need" in capsys.readouterr().err
    with pytest.raises(WorkloadError, match="must be above 0 for a prediction"):
        needs_of(
            load_workload("unet3d_h100", {"predict.accelerators": 2, "train.computation_time": 0})
        )
