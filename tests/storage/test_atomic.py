"""Files are replaced whole, or not at all."""

import errno
import os
from pathlib import Path

import pytest

from dlemu.storage import files
from dlemu.storage.files import create, replacing, write_atomically, writing


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


def test_only_what_is_asked_for_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append((tmp_path / "file").exists()))
    write_atomically(tmp_path / "other", b"", sync=False)
    write_atomically(tmp_path / "file", b"")
    assert synced == [False], "once, before the file gets its name"


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("sync", [False, True])
def test_what_is_written_past_the_page_cache_is_not_left_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool, sync: bool
) -> None:
    """Where O_DIRECT is refused, its pages are written out and dropped."""
    done: list[str] = []

    def opens(path: Path, *, direct: bool) -> int:
        if direct and refused:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return create(path)

    monkeypatch.setattr(files, "create", opens)
    monkeypatch.setattr(os, "fsync", lambda number: done.append("synced"))
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: done.append("dropped"))
    with writing(tmp_path / "file", direct=True, sync=sync) as write:
        write(memoryview(b"a" * 4096), 0, 4096)
        write(memoryview(b"b" * 4096), 4096, 5)
    assert (tmp_path / "file").read_bytes() == b"a" * 4096 + b"b" * 5
    assert done == ["synced"] * (sync or refused) + ["dropped"] * refused
