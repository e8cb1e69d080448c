"""What `dlemu predict` prints and writes, through the command line."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

import dlemu
from dlemu.cli.main import run
from dlemu.sizing.calibration_file import Calibration, CalibrationFile
from dlemu.sizing.formula import PredictionInput, predict
from dlemu.workload.model import load_workload
from tests.lab.published_training import fit_efficiency, read_minutes, read_spreads

PS1010 = ["predict", "workload=unet3d_h100", "drive=d7_ps1010"]


def test_a_datasheet_gives_a_range(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PS1010, "drives=4"]) == 0

    # 4 x 14.5 GB/s / (0.9 x 7 x 146 600 628 B / 0.323 s) = 20.28, and 36 % less and more.
    out = shown(capsys)
    assert " accelerators 20 12 to 27 AU at 20 (%) 91.28 58.42 to 100.00 " in out
    assert " read at 20 58 GB/s 37.1 GB/s to 63.5 GB/s " in out and " here 20.28 " in out


def test_the_file_says_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert run([*PS1010, "drives=4", f"output.folder={folder}"]) == 0

    told = json.loads((folder / "predict.json").read_text())
    workload = load_workload("unet3d_h100", {"drive": "d7_ps1010", "drives": 4})
    assert workload.drive is not None
    prediction = predict(PredictionInput.of(workload, workload.drive))
    assert told.items() >= {"kind": "prediction", "workload": "unet3d_h100", "drives": 4}.items()
    assert told.items() >= asdict(prediction).items()


def test_a_server_and_links_are_told_beside_the_drives(capsys: pytest.CaptureFixture[str]) -> None:
    """A B200 asks for 6.33 GB/s: half of a link of 100 Gb/s."""
    words = ["predict", "workload=unet3d_b200", "server.read_bandwidth=60GB", "metric.au=0.9"]
    assert run([*words, "client.nic_gbps=100", "clients=4"]) == 0
    out = shown(capsys)
    assert out.startswith("predicted: a server of 60 GB/s feeds 8 accelerators of unet3d_b200 ")
    assert "; limit: network " in out and " accelerators 8 6 to 8 " in out
    assert "accelerators that each feeds: network 8.3, server 10.5 " in out
    assert " reads 6.33 GB/s at AU 100%, 51% of a host's links (4 hosts x 100 Gb/s)" in out
    assert run([*PS1010, "drives=2", "server.read_bandwidth=20GB"]) == 0
    out = shown(capsys)
    assert out.startswith("predicted: 2 x D7-PS1010 behind a server of 20 GB/s feeds ")
    assert "accelerators that each feeds: server 7.0, storage 10.1 " in out


def test_a_number_of_accelerators_may_be_asked_about(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "workload=unet3d_h100", "drive.read_bandwidth=7GB"]
    assert run([*words, "predict.accelerators=5", "num_hosts=4"]) == 0

    out = shown(capsys)
    assert "predicted: 5 accelerators of unet3d_h100 on 1 x drive: AU 44.07%, 90% required" in out
    assert " most that pass 2.4 1 to 3 " in out
    assert " AU at 5 (%) 44.07 28.20 to 59.93 " in out


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what was printed, with one space between words."""
    return " ".join(capsys.readouterr().out.split())


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    """A host that moves 20 GB/s, with a drive that gives 10."""
    found = Calibration(
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
    path = tmp_path / "calibration.json"
    path.write_text(CalibrationFile(host="h", calibrations=(found,)).model_dump_json())
    return path


def calibrated(path: Path, *more: str) -> list[str]:
    job = ["workload=unet3d_h100", "reader.data_loader=threads", "reader.odirect=true"]
    return ["predict", *job, f"predict.calibration={path}", *more]


def test_a_calibration_knows_the_drive_and_the_host(
    calibration: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The demand of one at AU 90 is 2.859 GB/s: 3.5 of them on one drive, 7.0 on one host.
    assert run(calibrated(calibration)) == 0
    out = shown(capsys)
    assert "1 x calibrated drive feeds " in out and "basis: host and drive calibrated" in out
    assert "accelerators 3 2 to 4 " in out and "here 3.50 " in out
    assert "limit: storage" in out

    assert run(calibrated(calibration, "drives=4")) == 0
    out = shown(capsys)
    # N* is the storage's number: here the host decides.
    assert "accelerators 6 4 to 9 " in out and "N*" not in out
    assert "limit: host cpu" in out

    assert run(calibrated(calibration, "drives=80", "num_hosts=80")) == 0
    out = shown(capsys)
    assert "here 279.7" in out, "80 drives are the limit of 80 hosts"


def test_another_drive_on_the_calibrated_host(
    calibration: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(calibrated(calibration, "drive.read_bandwidth=6GB")) == 0

    out = shown(capsys)
    assert "basis: host calibrated, drive from its datasheet" in out
    assert "accelerators 2 1 to 2 " in out


def test_many_accelerators_are_extrapolated(
    calibration: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(calibrated(calibration, "drives=500", "num_hosts=500")) == 0

    out = shown(capsys)
    assert "(extrapolated)" in out
    assert "extrapolated: the barrier was never compared above 400 accelerators" in out


def with_limits(path: Path, **changes: object) -> Path:
    """Write the calibration again with other figures."""
    file = json.loads(path.read_text())
    file["calibrations"][0] |= changes
    path.write_text(json.dumps(file))
    return path


def test_a_loaders_rate_is_not_the_drives(
    calibration: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = with_limits(calibration, drive_limit="loader", host_limit="host cpu")

    assert run(calibrated(path, f"output.folder={path.parent}")) == 0
    out = shown(capsys)
    # The loader took 10 GB/s of the drive; the host moves 20, what 7.0 take, and 36 % more.
    assert "accelerators at least 3 2 to 9 " in out
    assert "limit: loader " in out
    assert "so there may be more" in out and "limit: storage" not in out and "N*" not in out
    told = json.loads((path.parent / "predict.json").read_text())
    assert (told["num_accelerators"], told["at_least"], told["limit"]) == (3, True, "loader")

    # Another drive, by its datasheet, was not read by that loader.
    assert run(calibrated(path, "drive.read_bandwidth=6GB")) == 0
    assert "limit: storage " in shown(capsys)

    assert run(calibrated(with_limits(path, host_limit="loader"))) == 0
    assert "at least 3 2 or more " in shown(capsys), "nothing bounds it"


def test_a_host_that_was_held_back_may_move_more(
    calibration: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = with_limits(calibration, drive_limit="storage", host_limit="loader")

    assert run(calibrated(path, "drives=4")) == 0

    out = shown(capsys)
    assert "at least 6 4 to 19 " in out, "the four drives bound it"
    assert "limit: loader " in out


def test_a_file_of_another_version_is_refused(
    calibration: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = json.loads(calibration.read_text())
    calibration.write_text(json.dumps(file | {"version": 1}))
    assert run(calibrated(calibration)) == 1
    assert capsys.readouterr().err == (
        f"dlemu: {calibration} is not a calibration, version: Input should be 2; write it with "
        "dlemu calibrate\n"
    )


def test_an_error_that_was_set_by_hand_is_taken_as_it_is(
    calibration: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = json.loads(calibration.read_text())
    file["calibrations"][0]["error"] = 0.02
    calibration.write_text(json.dumps(file))
    assert run(calibrated(calibration)) == 0
    assert "accelerators 3 3 to 3 " in shown(capsys)


@pytest.mark.parametrize(
    ("words", "figure", "line"),
    [
        # 58 GB/s of drives against 96 cores of npz: 22 to 80 GB/s.
        (["drives=4", "predict.host_cpus=96"], "either", "may be the host's and not the drive's"),
        (["drives=8", "predict.host_cpus=48"], "host", "is the host's, not the drive's"),
        (["drives=1", "predict.host_cpus=128"], "drive", "is the drive's: the host moves more"),
    ],
)
def test_whose_figure_a_published_one_is(
    words: list[str],
    figure: str,
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dlio = ["predict.tool=dlio", f"output.folder={tmp_path}"]

    assert run([*PS1010, *dlio, *words]) == 0

    out = shown(capsys)
    assert line in out and "that run DLIO" in out
    told = json.loads((tmp_path / "predict.json").read_text())
    assert told["published_figure"] == figure
    assert told["low"] <= told["num_accelerators"] <= told["high"]
    if figure == "host":
        assert told["limit"] == "host cpu"


def test_more_cores_move_more(tmp_path: Path) -> None:
    found = []
    for cpus in (8, 16, 32):
        words = ["predict.tool=dlio", f"predict.host_cpus={cpus}", f"output.folder={tmp_path}"]
        assert run([*PS1010, "drives=40", *words]) == 0
        found.append(json.loads((tmp_path / "predict.json").read_text())["real_accelerators"])

    assert found == pytest.approx([found[0], 2 * found[0], 4 * found[0]])


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("workload=resnet50_h100", "has nothing for resnet50_h100"),
        ("reader.data_loader=pytorch", "has nothing for unet3d_h100 with reader.data_loader=py"),
        ("reader.odirect=false", "reader.odirect=false; measure it with dlemu calibrate"),
        ("reader.read_threads=8", "was measured with reader.read_threads=4, not 8"),
        (
            "dataset.record_length_bytes=1000000",
            "was measured with dataset.record_length_bytes=1.46601e+08, not 1e+06",
        ),
    ],
)
def test_the_figures_of_another_job_are_not_carried_over(
    calibration: Path, key: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = key.partition("=")[0]
    words = [word for word in calibrated(calibration) if not word.startswith(f"{name}=")]

    assert run([*words, key]) == 1

    assert line in capsys.readouterr().err


def test_a_calibration_is_not_the_published_tools(
    calibration: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(calibrated(calibration, "predict.tool=dlio", "predict.host_cpus=8")) == 1

    assert "predict.calibration was measured with dlemu" in capsys.readouterr().err


def test_advice_is_not_what_is_set_already(
    calibration: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = with_limits(calibration, drive_read_bytes_per_second=None)

    assert run(calibrated(path)) == 1

    error = capsys.readouterr().err
    assert f"drive is not set, and predict.calibration {path} read none; name a datasheet" in error
    assert "predict.calibration=FILE" not in error


def test_a_library_call_returns_the_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    keys = {"drive": "d7_ps1010", "drives": 4}
    prediction = dlemu.predict(dlemu.load_workload("unet3d_h100", keys))

    assert capsys.readouterr().out == ""
    assert (prediction.num_accelerators, prediction.low, prediction.high) == (20, 12, 27)
    assert prediction.drive.read_bandwidth == 14_500_000_000
    assert run([*PS1010, "drives=4"]) == 0
    text = dlemu.show(prediction)
    assert capsys.readouterr().out == f"{text}\n"
    assert "<td>accelerators</td><td>20</td><td>12 to 27</td>" in text._repr_html_()


def test_a_library_call_takes_a_calibration(calibration: Path) -> None:
    keys = {
        "reader.data_loader": "threads",
        "reader.odirect": True,
        "predict.calibration": str(calibration),
    }
    prediction = dlemu.predict(dlemu.load_workload("unet3d_h100", keys))

    assert (prediction.num_accelerators, prediction.calibrated) == (3, True)
    with pytest.raises(dlemu.WorkloadError, match="drive is not set"):
        dlemu.predict(dlemu.load_workload("unet3d_h100"))


DLRM = ["predict", "workload=dlrm_dcnv2_h100", "drive=d3_s4520", "predict.minutes=true"]


def test_minutes_are_the_pass_at_the_rate_of_eight(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*DLRM, "drives=2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    pass_bytes = 24 * 21338 * 7_471_104
    assert told["pass_bytes"] == pass_bytes
    assert told["minutes"] == pytest.approx(pass_bytes / 1.1e9 / 60)
    assert told["minutes_low"] == pytest.approx(pass_bytes / 1.36 / 1.1e9 / 60)
    assert told["minutes_high"] == pytest.approx(pass_bytes / 0.64 / 1.1e9 / 60)
    assert run([*DLRM, "drives=2"]) == 0
    assert "minutes of a pass 57.97 42.63 to 90.58 " in (shown(capsys))


def test_the_accelerators_limit_the_minutes_as_well() -> None:
    keys = {"drive": "d7_ps1010", "drives": 8, "predict.minutes": True}
    eight = dlemu.predict(load_workload("dlrm_dcnv2_h100", keys))
    four = dlemu.predict(load_workload("dlrm_dcnv2_h100", keys | {"predict.accelerators": 4}))
    assert eight.minutes == pytest.approx(3.90, abs=0.005)
    assert four.minutes == pytest.approx(7.80, abs=0.01)
    assert dlemu.predict(load_workload("dlrm_dcnv2_h100", {"drive": "d7_ps1010"})).minutes is None
    cut = keys | {"train.total_training_steps": 100}
    assert dlemu.predict(load_workload("dlrm_dcnv2_h100", cut)).pass_bytes == 800 * 7_471_104


def test_minutes_need_a_number_of_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*DLRM, "dataset.num_files_train=auto"]) == 1
    assert "predict.minutes needs the size of the dataset" in capsys.readouterr().err


def test_published_minutes_are_predicted_within_a_tenth_where_the_drive_limits() -> None:
    cells = read_minutes()
    share = fit_efficiency(cells)
    limited = [cell for cell in cells if cell.is_limited]
    assert [cell.name for cell in limited] == [
        *("1 x d7_ps1010", "1 x d5_p5336", "1 x d3_s4520", "8 x d3_s4520"),
    ]
    assert 0.8 < share < 0.95
    for cell in limited:
        assert cell.predict(share) == pytest.approx(cell.published, rel=0.1), cell.name


def test_jobs_that_do_not_feel_the_drive_ask_for_little_of_it() -> None:
    shares = {spread.job: spread.share(7e9) for spread in read_spreads()}
    felt = {job for job, share in shares.items() if share > 1}
    assert felt == {"DLRMv2", "GNN"}
    assert max(share for job, share in shares.items() if job not in felt) < 0.2
