"""--json and --csv: what scripts read is one document, and rows whose columns stay."""

import csv
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlemu.cli import scripts
from dlemu.cli.main import run
from dlemu.host.devices import lies_in_memory
from tests.lab.commands import QUICK, Printed, summary_of

Document = Callable[..., Any]
HOST = ["workload=unet3d_h100", "host_memory=64GiB"]


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture
def document(capsys: pytest.CaptureFixture[str]) -> Document:
    """The one document that a command prints; the rest goes to stderr."""

    def answer(*words: object, status: tuple[int, ...] = (0,)) -> Any:
        capsys.readouterr()
        assert run([*map(str, words), "--json"]) in status
        return json.loads(capsys.readouterr().out)

    return answer


def test_a_run_tells_what_its_summary_holds(data: str, tmp_path: Path, document: Document) -> None:
    folder, table = tmp_path / "run", tmp_path / "runs.csv"
    words = ["run", *QUICK, data, "num_accelerators=2", f"output.folder={folder}"]
    told = document(*words, "--csv", table, "--label", "a, b")
    assert told == {"folder": str(folder)} | summary_of(folder)

    (row,) = rows_of(table)
    assert tuple(row) == scripts.RUN
    assert (row["label"], row["num_accelerators"], row["runs"]) == ("a, b", "2", "1")
    assert (row["time"], row["host"]) == (told["start"], told["hostname"])
    assert told["hostname"] == told["system"][0]["host"], "DLIO's name of the first host"
    assert (row["verdict"], row["folder"]) == ("PASS", str(folder))
    assert float(row["au_percent"]) == told["metric"]["train_au_mean_percentage"]
    rate = told["measured"]["read_bytes_per_second"] / 1e6
    assert float(row["read_MB_per_second"]) == pytest.approx(rate)


def test_several_runs_are_one_row(data: str, tmp_path: Path, document: Document) -> None:
    folder, table = tmp_path / "runs", tmp_path / "runs.csv"
    words = ["run", *QUICK, data, "train.epochs=1", "warmup=1", "runs=2", f"output.folder={folder}"]
    told = document(*words, f"--csv={table}", status=(0, 2))  # a FAIL if their rates differ much
    assert told == {"folder": str(folder)} | summary_of(folder)
    (row,) = rows_of(table)
    assert (row["runs"], row["verdict"]) == ("2", told["verdict"])
    assert float(row["au_percent"]) == pytest.approx(told["au_percentage"]["mean"])
    assert float(row["samples_per_second"]) == pytest.approx(told["samples_per_second"]["mean"])


def test_the_hash_is_that_of_what_was_asked(tmp_path: Path) -> None:
    table = tmp_path / "sizes.csv"
    for more in ([], ["output.folder=elsewhere"], ["num_accelerators=2"], ["num_accelerators=3"]):
        assert run(["datasize", *HOST, *more, "--csv", str(table)]) == 0
    rows = rows_of(table)
    assert tuple(rows[0]) == scripts.DATASIZE
    hashes = [row["overrides_hash"] for row in rows]
    assert hashes[0] == hashes[1], "where results go is no part of a job"
    assert len(set(hashes)) == 3 and len({row["id"] for row in rows}) == 4


def test_the_keys_of_a_job_are_a_document(document: Document) -> None:
    told = document("run", *HOST, "train.epochs=3", "--cfg", "job")
    assert (told["train"]["epochs"], told["host_memory"]) == (3, 64 << 30)


def test_paths_are_a_row_for_each_cell(tmp_path: Path, document: Document) -> None:
    table, out = tmp_path / "cells.csv", tmp_path / "out"
    words = ["paths", str(tmp_path), "seconds=0.1", "io_sizes=64KiB", "workers=1"]
    words += ["patterns=seq_read", "paths=host_buffered", "file_size=1MiB", f"output={out}"]
    told = document(*words, "--csv", table, "--label=x")
    assert told == {"folder": str(out), **summary_of(out)}
    (row,) = rows_of(table)
    assert (row["label"], row["path"], row["target"]) == ("x", "host_buffered", str(tmp_path))
    assert row["host"] == socket.gethostname()
    assert float(row["gib_per_second"]) == told["cells"][0]["gib_per_second"]


def test_files_of_a_model_are_a_row_for_each_read(tmp_path: Path, document: Document) -> None:
    if lies_in_memory(tmp_path):
        pytest.skip("lies in memory")
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(bytes(1 << 20))
    table, files = tmp_path / "t.csv", f"files={tmp_path}/*.safetensors"
    words = ["load", files, "ways=pread,odirect", "load.readers=2", f"--csv={table}"]
    told = document(*words, f"output={tmp_path}/out")
    assert (told["num_files"], told["num_bytes"], told["model"]) == (2, 2 << 20, None)
    assert told["drive_source"]["kind"] in ("drive_by_probe", "drive_by_reading")
    assert max(cell["share_of_drive"] for cell in told["cells"]) <= 1
    rows = [(row["way"], row["readers"], row["pages_before"]) for row in rows_of(table)]
    assert rows == [("pread", "2", "0"), ("odirect", "2", "0")]
    assert len({row["id"] for row in rows_of(table)}) == 2


def test_another_table_stops_a_run_before_it_begins(
    data: str, tmp_path: Path, printed: Printed
) -> None:
    table, folder = tmp_path / "t.csv", tmp_path / "run"
    table.write_text("a,b\n")
    words = ["run", *QUICK, data, f"output.folder={folder}", "--csv", table]
    assert "t.csv has other columns" in printed(*words, status=1)
    assert table.read_text() == "a,b\n" and not folder.exists()
