"""DLIO 2.0.0 writes checkpoints beside ours: `make peers` sets it up, elsewhere this is skipped."""

import zipfile
from pathlib import Path

import pytest

from benchmarks.checkpoint import beside_dlio
from tests.lab.peer import dlio_checkpoints, is_there

pytestmark = pytest.mark.skipif(not is_there(), reason="no DLIO here; make peers sets it up")


@pytest.mark.timeout(1000)
def test_dlio_writes_as_many_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with dlio_checkpoints(tmp_path, 1_000_001) as write:
        told = write()
    with zipfile.ZipFile(told["path"]) as file:
        assert 1_000_001 in [each.file_size for each in file.infolist()]
    assert 0 < told["written"][0] < told["on the drive"][0]
    beside_dlio(tmp_path / "both", rounds=1, num_bytes=1_000_001)
    table = [line.count("|") for line in capsys.readouterr().out.splitlines()[:4]]
    assert table == [6, 6, 6, 6] and not (tmp_path / "both").exists()
