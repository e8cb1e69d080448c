"""Predictions: the closed form, its inverse, the published cells; from keys and a calibration."""

import math
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dlemu
from dlemu.config.model import Drive, load_workload
from dlemu.judge.metrics import passes
from dlemu.report.present import present
from dlemu.report.text import render_text
from dlemu.sizing.formula import (
    Calibration,
    PredictionInput,
    Reads,
    WorkersOfHost,
    dlio_files,
    predict,
    published,
    step_overhead,
)

UNET3D = PredictionInput(
    computation_time=0.323,
    batch_bytes=7 * 146_600_628,
    threshold=90,
    drive_read_bytes_per_second=14.5e9,
)
HOST = Calibration(
    workload="unet3d_h100",
    loader="pytorch",
    odirect=True,
    overhead=0.004,
    host_read_bytes_per_second=24.5e9,
)


@pytest.mark.parametrize("name", ["unet3d", "resnet50", "cosmoflow"])
@pytest.mark.parametrize("drive", ["d3_s4520", "d7_ps1010"])
def test_real_h100s_are_those_of_their_own_row(name: str, drive: str) -> None:
    keys = {"drive": drive, "drives": 3}
    found = dlemu.predict(load_workload(f"{name}_h100", keys)).document["real_h100s"]
    own = dlemu.predict(load_workload(f"{name}_real_h100", keys))
    assert isinstance(found, dict) and found["workload"] == f"{name}_real_h100"
    assert found["num_accelerators"] == own.num_accelerators
    assert found["real_accelerators"] == pytest.approx(own.real_accelerators)
    assert own.document["real_h100s"] is None, "it counts them itself"
    slower = load_workload(f"{name}_h100", keys | {"train.computation_time": 0.1})
    assert dlemu.predict(slower).document["real_h100s"] is None, "a step of one's own"


def test_the_smallest_of_drives_server_links_and_host_is_named() -> None:
    """Of 8 drives, hosts with one link of 100 Gb/s each, and a server: what each of them feeds."""
    job = replace(UNET3D, num_drives=8, num_hosts=2, nic_gbps=100.0)
    of = {"storage": 8 * 14.5e9, "network": 2 * 12.5e9 * 1448 / 1538, "host cpu": 2 * 24.5e9}
    for server, limit in ((60e9, "network"), (20e9, "server")):
        found = predict(replace(job, server_read_bytes_per_second=server), HOST)
        assert found.limit == limit
        fed = {name: rate / UNET3D.demand / 0.9 for name, rate in (of | {"server": server}).items()}
        assert found.feeds == pytest.approx(fed)
        assert found.real_accelerators == pytest.approx(min(fed.values()))
    wide = replace(job, nic_gbps=400.0)
    assert predict(wide, HOST).limit == "host cpu"
    assert predict(replace(wide, num_drives=3), HOST).limit == "storage"
    # What the page cache serves needs neither server nor link. Large frames carry a little more.
    cached = HOST.model_copy(update={"page_cache_share": 0.5})
    assert predict(job, cached).feeds["network"] == pytest.approx(2 * fed["network"])
    found = predict(replace(job, accelerators=20), HOST)
    assert found.read_bytes_per_second == pytest.approx(found.read_low)
    assert found.read_high / found.read_low == pytest.approx(8948 / 9038 / (1448 / 1538))


@pytest.mark.parametrize(
    ("seconds", "passing", "limit"), [(0.02, True, "none"), (0.04, False, "all-reduce")]
)
def test_the_jobs_all_reduce_bounds_au_by_itself(seconds: float, passing: bool, limit: str) -> None:
    still = HOST.model_copy(update={"overhead": 0.0, "jitter": 0.0})
    job = replace(UNET3D, num_drives=1000, num_hosts=60, accelerators=1, allreduce_time=seconds)
    found = predict(job, still)
    assert found.au_percentage == pytest.approx(100 * 0.323 / (0.323 + seconds))
    assert (found.au_percentage >= UNET3D.threshold, found.limit) == (passing, limit)
    assert (predict(replace(job, accelerators=None), still).num_accelerators > 0) is passing


def test_what_overhead_and_barrier_bound_has_a_band() -> None:
    many = replace(UNET3D, num_drives=1000, num_hosts=60, accelerators=411)
    jittery = HOST.model_copy(update={"jitter": 0.003, "overhead": 0.004})

    barrier = predict(many, jittery)

    # The published run of 411 reached 91.5 to 93.0 % (docs/sizing.md).
    assert barrier.au_percentage == pytest.approx(93.2, abs=0.2)
    assert barrier.au_low < 91.5 and barrier.au_high > 93.0
    assert barrier.extrapolated and not predict(UNET3D, jittery).extrapolated
    late = jittery.model_copy(update={"jitter": 0.006})
    assert predict(replace(many, accelerators=None), late).limit == "barrier"
    slow = HOST.model_copy(update={"overhead": 0.04})
    overhead = predict(replace(many, accelerators=None), slow)
    assert (overhead.num_accelerators, overhead.limit) == (0, "step overhead")
    assert overhead.high is not None and overhead.high > 0, "36 % less overhead passes"
    step = 0.323 + 1.36 * 0.04 + 0.0036 * 0.323
    assert overhead.au_low == pytest.approx(100 * 0.323 / step)
    still = HOST.model_copy(update={"overhead": 0.0})
    ceiling = predict(replace(many, accelerators=1), still)
    assert ceiling.limit == "none"
    assert 99.6 < ceiling.au_low < ceiling.au_high == 100.0, "AU varies from run to run"
    nobody = predict(replace(many, accelerators=1))
    assert (nobody.au_percentage, nobody.limit) == (100.0, "none")
    assert nobody.au_low == pytest.approx(100 / 1.014), "as the published ceilings"


def test_a_published_run_lies_between_the_ends_of_host_and_drives() -> None:
    workload = load_workload("unet3d_h100")
    host = (64e9 / 4.3, 64e9 / 1.2)
    one = UNET3D.demand * 0.9
    many = published(workload, replace(UNET3D, num_drives=1000, num_hosts=2), 64)
    assert many and (many.low, many.high) == (int(2 * host[0] / one), int(2 * host[1] / one))
    assert many.num_accelerators == int(2 * math.sqrt(host[0] * host[1]) / one)
    assert many.figure == "host"
    four = replace(UNET3D, num_drives=1, drive_read_bytes_per_second=4 * one)
    few = published(workload, four, 640)
    assert few and (few.low, few.high, few.figure) == (3, 5, "drive")
    assert published(workload.with_keys({"dataset.format": "hdf5"}), UNET3D, 64) is None
    files = [dlio_files(load_workload(name)) for name in ("cosmoflow_h100", "resnet50_h100")]
    assert files == [("tfrecord", False), ("tfrecord", True)]


def test_iops_bound_reads_below_a_drives_best_block() -> None:
    """2 million reads of 512 bytes are 1.024 GB/s; of 1 MiB they are more than the bandwidth."""
    drive = Drive(read_bandwidth=10**10, random_read_iops=2_000_000)
    assert Reads(1e9, 1e9 / 512).rate_of(drive) == 1.024e9
    assert Reads(1e9, 1e9 / 2**20).rate_of(drive) == 1e10
    parquet = load_workload("dlrm_b200", {"dataset.num_files_train": "auto", "drive": "d7_ps1010"})
    reads = Reads.of(parquet)
    assert reads.num_bytes > parquet.bytes_per_step, "what is read between the columns counts"
    assert PredictionInput.of(parquet, Drive(read_bandwidth=10**9)).batch_bytes == reads.num_bytes


@settings(deadline=None)
@given(
    job=st.builds(
        partial(replace, UNET3D),
        threshold=st.floats(50, 99),
        drive_read_bytes_per_second=st.floats(1e8, 1e12),
        num_drives=st.integers(1, 64),
        num_hosts=st.integers(1, 64),
    ),
    host=st.floats(1e8, 1e12),
    overhead=st.floats(0, 0.1),
    jitter=st.floats(0, 0.01),
)
def test_the_most_that_pass_pass_and_one_more_fails(
    job: PredictionInput, host: float, overhead: float, jitter: float
) -> None:
    own = {"host_read_bytes_per_second": host, "overhead": overhead, "jitter": jitter}
    figures = HOST.model_copy(update=own)

    most = predict(job, figures)

    assert most.high is not None and most.low <= most.num_accelerators <= most.high
    number, real = most.num_accelerators, most.real_accelerators
    assert number <= real < number + 1, "N and N* are of one inference"
    assert most.low <= math.floor(real + 1e-9) <= most.high
    assert most.au_low < most.au_percentage <= most.au_high
    assert most.au_low < most.au_high, "every answer has a band"
    assert most.read_low < most.read_high
    one_more = predict(replace(job, accelerators=most.num_accelerators + 1), figures)
    assert not passes(one_more.au_percentage, job.threshold)
    if most.num_accelerators:
        assert passes(most.au_percentage, job.threshold)
        rate_of_all = most.num_accelerators * most.au_percentage / 100 * job.demand
        assert most.read_bytes_per_second == pytest.approx(rate_of_all)
    doubled = predict(replace(job, num_drives=2 * job.num_drives), figures)
    assert doubled.num_accelerators >= most.num_accelerators


def test_a_very_fast_drive_feeds_no_more_than_n_star() -> None:
    """AU has two decimals: of 600,000 accelerators that is 33, which were above N*."""
    job = replace(UNET3D, drive_read_bytes_per_second=6e14)
    fastest = predict(replace(job, batch_bytes=10**6))
    assert fastest.num_accelerators > 100_000
    assert fastest.num_accelerators <= fastest.real_accelerators


def test_a_calibration_gives_its_own_runs_back() -> None:
    overhead = step_overhead(0.323, 98.5, jitter=0.001)
    moved = 10 * 0.77 * UNET3D.demand
    figures = HOST.model_copy(
        update={"overhead": overhead, "jitter": 0.001, "host_read_bytes_per_second": moved}
    )
    ample = replace(UNET3D, num_drives=100)

    assert predict(replace(ample, accelerators=1), figures).au_percentage == pytest.approx(98.5)
    assert predict(replace(ample, accelerators=10), figures).au_percentage == pytest.approx(77.0)


# --- from keys and a calibration; what is printed lies in tests/golden/predict.txt ----------------


PS1010 = {"drive": "d7_ps1010"}
CALIBRATED = Calibration(
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
    path = tmp_path / "calibration.json"
    path.write_text(CALIBRATED.model_copy(update=figures).model_dump_json())
    job = {"reader.data_loader": "threads", "reader.odirect": True}
    found = predicted("unet3d_h100", {**job, "predict.calibration": str(path), **keys})

    assert (found.num_accelerators, found.low, found.high) == number
    assert found.limit == limit
    assert found.at_least is (limit == "loader")
    assert found.calibrated


def test_what_a_dataloader_makes_is_told_of_the_calibrated_host(tmp_path: Path) -> None:
    """Three accelerators with 4 workers each, 8 a worker and 60 of all: 20 samples/s each."""
    path = tmp_path / "calibration.json"
    made: dict[str, Any] = {"cpus": 8, "one": 8.0, "all": 60.0}
    keys: dict[str, object] = {"reader.odirect": True, "predict.calibration": str(path)}
    keys |= {"reader.data_loader": "pytorch", "dataset.format": "npz"}

    def told(host: str, **more: object) -> tuple[dict[str, Any], str]:
        figures = {"loader": "pytorch", "workers": WorkersOfHost(**made), "host": host}
        path.write_text(CALIBRATED.model_copy(update=figures).model_dump_json())
        document = predicted("unet3d_h100", keys | more).document
        return cast(dict[str, Any], document["dataloader"]), render_text(present(document))

    found, text = told("another")
    assert (found["samples_per_second"], found["accelerators"]) == (20.0, 3)
    assert found["au_percentage"] == pytest.approx(100 * 20 * 0.323 / 7)
    line = "each of 3 PyTorch DataLoaders on host another makes at most 20 samples/s with 4 workers"
    assert f"{line}: AU 92% whatever the storage; no number of workers is enough on 8 CPUs" in text
    assert "on this host makes" in told(socket.gethostname())[1]
    assert told("another", num_hosts=3)[0]["samples_per_second"] == 32.0, "one on each"
    found, text = told("another", **{"predict.accelerators": 1})
    assert (found["accelerators"], found["enough"]) == (1, 4)
    made |= {"one": 2.0, "all": 16.0}
    assert told("another", **{"predict.accelerators": 1})[0]["enough"] is None


def test_minutes_are_the_pass_at_the_rate_of_eight() -> None:
    keys: dict[str, object] = {"drive": "d7_ps1010", "drives": 8, "predict.minutes": True}
    whole = predicted("dlrm_dcnv2_h100", keys)
    assert whole.pass_bytes == 24 * 21338 * 7_471_104
    # The accelerators limit them, not the drives.
    assert whole.minutes == pytest.approx(3.90, abs=0.005)
    four = predicted("dlrm_dcnv2_h100", keys | {"predict.accelerators": 4})
    assert four.minutes == pytest.approx(7.80, abs=0.01)
    cut = predicted("dlrm_dcnv2_h100", keys | {"train.total_training_steps": 100})
    assert cut.pass_bytes == 800 * 7_471_104
    assert predicted("dlrm_dcnv2_h100", {"drive": "d7_ps1010"}).minutes is None
