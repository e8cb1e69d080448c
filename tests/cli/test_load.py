"""`dlemu load`: its words, its table, and what scripts get."""

import csv
import json
from pathlib import Path

import pytest

from dlemu.cli.main import run
from dlemu.host.devices import lies_in_memory


def test_files_are_measured_and_told_to_scripts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if lies_in_memory(tmp_path):
        pytest.skip("lies in memory")
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(bytes(1 << 20))
    words = [f"files={tmp_path}/*.safetensors", "ways=pread,odirect", "load.readers=2"]

    assert run(["load", *words, "--json", "--csv", str(tmp_path / "t.csv"), "progress=off"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert [cell["way"] for cell in told["cells"]] == ["pread", "odirect"]
    assert (told["num_files"], told["num_bytes"], told["model"]) == (2, 2 << 20, None)
    rows = list(csv.DictReader((tmp_path / "t.csv").open()))
    assert [(row["way"], row["readers"], row["pages_before"]) for row in rows] == [
        ("pread", "2", "0"),
        ("odirect", "2", "0"),
    ]
    assert "probed" in told["drive_source"]
