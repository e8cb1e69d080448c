"""Files are replaced whole, or not at all."""

import os
from pathlib import Path

import pytest

from dlemu.storage.atomic import partial_path, replacing, write_atomically


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"some", b"other", memoryview(b"third")):
        write_atomically(path, data)
        assert path.read_bytes() == data
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [OSError, ValueError, KeyboardInterrupt])
def test_a_block_that_fails_changes_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(error), replacing(path) as partial:
        partial.write_bytes(b"ne")
        raise error
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    partial_path(tmp_path / "file").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "file", b"")


def test_only_what_is_asked_for_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append((tmp_path / "file").exists()))
    write_atomically(tmp_path / "other", b"", sync=False)
    write_atomically(tmp_path / "file", b"")
    assert synced == [False], "once, before the file gets its name"
