"""Words that are refused, and advice that helps."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from dlemu.host.processes import is_stopped
from tests.lab.commands import Printed


@pytest.mark.parametrize("label", ["two\nlines", "\x1b[2J", "a\u202eb"])
def test_a_label_is_one_line_that_can_be_shown(
    label: str, tmp_path: Path, printed: Printed
) -> None:
    table = tmp_path / "t.csv"
    words = ["datasize", "workload=unet3d_h100", "--csv", table, f"--label={label}"]
    assert "--label must be one line of printable text, got" in printed(*words, status=1)
    assert not table.exists()


def test_an_au_that_no_run_can_miss_is_refused(printed: Printed) -> None:
    said = printed("datasize", "workload=unet3d_h100", "metric.au=1e-320", status=1)
    assert "metric.au must be" in said and "1e-06" in said


def test_the_advice_of_verify_helps(data: str, tmp_path: Path, printed: Printed) -> None:
    folder = shutil.copytree(data.partition("=")[2], tmp_path / "data")
    extra, file = folder / "train" / "extra.npz", next((folder / "train").iterdir())
    extra.write_bytes(b"x")
    said = printed("verify", folder, status=1)
    assert "--repair" not in said and f"move what is extra out of {folder}, and verify" in said
    file.unlink()
    assert f"dlemu verify {folder} --repair writes them again" in printed(
        "verify", folder, status=1
    )
    assert "--repair" not in printed("verify", folder, "--repair", status=1)
    extra.unlink()
    assert "no bad files" in printed("verify", folder)


def test_a_stopped_worker_is_named() -> None:
    process = subprocess.Popen(["sleep", "600"])
    try:
        assert not is_stopped(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert is_stopped(process.pid)
    finally:
        process.kill()
        process.wait()
    assert not is_stopped(process.pid)


def test_the_doctor_looks_at_the_gpu_of_dali(tmp_path: Path, printed: Printed) -> None:
    words = ["doctor", tmp_path, "reader.data_loader=dali", "dali.device=gpu", "--json"]
    if Path("/dev/nvidia0").exists():
        pytest.skip("this host has a GPU")
    found, _ = json.JSONDecoder().raw_decode(printed(*words, status=1))
    assert found["wanted"] == {"data_loader": "dali", "on_gpu": True, "gds": "off"}
    assert "GPU" in [each["name"] for each in found["problems"]]


def test_results_go_where_output_folder_says(tmp_path: Path, printed: Printed) -> None:
    (tmp_path / "file").write_bytes(bytes(8192))
    for key in ("output", "output.folder"):
        folder = tmp_path / key
        printed("load", f"files={tmp_path / 'file'}", f"{key}={folder}")
        assert (folder / "summary.json").is_file()
