"""DLIO 2.0.0 writes checkpoints when asked; `make peers` sets it up, elsewhere this is skipped."""

import zipfile
from pathlib import Path

import pytest

from tests.lab.peer import dlio_checkpoints, is_there

pytestmark = pytest.mark.skipif(not is_there(), reason="no DLIO here; make peers sets it up")


@pytest.mark.timeout(1000)
def test_dlio_writes_as_many_bytes_as_asked(tmp_path: Path) -> None:
    with dlio_checkpoints(tmp_path, 1_000_001) as write:
        found = [write(), write()]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model-1-1-0.pt", "model-1-2-0.pt"]
    for told in found:
        with zipfile.ZipFile(told["path"]) as file:
            assert 1_000_001 in [each.file_size for each in file.infolist()]
        assert 0 < told["written"][0] < told["on the drive"][0]
