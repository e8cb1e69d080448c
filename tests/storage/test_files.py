"""Files are replaced whole or not at all; what is no file is refused by name, and nobody waits."""

import errno
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dlemu.datagen.manifest import read_manifest
from dlemu.errors import DatasetError, RunError
from dlemu.judge.records import read_steps, read_summary
from dlemu.storage import files
from dlemu.storage.extents import settle_direct
from dlemu.storage.files import (
    check_regular,
    count_linked,
    create,
    open_regular,
    open_sized,
    read_regular,
    replacing,
    write_atomically,
    writing,
)
from dlemu.storage.pagecache import cached_share, drop
from tests.lab.waiting import LONG


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


def refusal(call: Callable[[], object]) -> str:
    """Return what a call is refused for; fail where it hangs."""
    came: list[str] = []

    def run() -> None:
        with pytest.raises((DatasetError, RunError)) as error:
            call()
        came.append(str(error.value))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LONG)
    assert came, "it hangs, or is not refused"
    return came[0]


@pytest.mark.parametrize("kind", ["FIFO", "folder", "device"])
def test_what_is_no_file_is_named(kind: str, tmp_path: Path) -> None:
    path = Path("/dev/null") if kind == "device" else tmp_path / "img.npz"
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    gc.collect()  # nothing of earlier tests is closed meanwhile
    before = set(os.listdir("/proc/self/fd"))
    for call in (
        lambda: open_regular(path),
        lambda: open_regular(path, direct=True),
        lambda: read_regular(path),
        lambda: check_regular(path, error=RunError),
    ):
        assert refusal(call) == f"{path} is a {kind}, not a file"
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_link_to_a_file_is_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "file")
    assert read_regular(link) == b"abc"
    number, size = open_sized(link)
    assert size == 3 and os.get_blocking(number), "a read may wait for a lock"
    os.close(number)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("dlemu.json", read_manifest),
        ("img.npz", lambda folder: drop([folder / "img.npz"])),
        ("img.npz", lambda folder: cached_share([folder / "img.npz"])),
        ("img.npz", lambda folder: settle_direct(folder / "img.npz", "auto")),
        ("summary.json", read_summary),
        ("steps.0.npy", read_steps),
    ],
)
def test_no_fifo_hangs_a_reader(name: str, read: Callable[[Path], object], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    assert refusal(lambda: read(tmp_path)) == f"{tmp_path / name} is a FIFO, not a file"


def test_names_of_one_file_are_counted(tmp_path: Path) -> None:
    """A dataset of a hundred names may be one file."""
    plain, linked, other = (tmp_path / name for name in ("plain", "linked", "other"))
    for path in (plain, linked, other):
        path.touch()
    assert count_linked(map(str, [plain, other, tmp_path / "missing", plain])) == 0
    (tmp_path / "hard").hardlink_to(linked)
    (tmp_path / "soft").symlink_to(other)
    assert count_linked([str(linked)]) == 1, "its other name may lie anywhere"
    assert count_linked(str(tmp_path / name) for name in ("plain", "hard", "soft", "other")) == 3


def test_an_error_of_the_drive_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's calls on an open file know no name."""

    def fails(number: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(OSError, match="Input/output error") as error:
        write_atomically(tmp_path / "mark", b"x")
    assert error.value.filename == str(tmp_path / "mark")
    assert [*tmp_path.iterdir()] == []
