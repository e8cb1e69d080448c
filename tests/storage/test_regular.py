"""What is no file is refused by name, and nobody waits for its writer."""

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dlemu.datagen import read_manifest
from dlemu.errors import DatasetError, RunError
from dlemu.judge.records import read_steps, read_summary
from dlemu.storage.extents import settle_direct
from dlemu.storage.files import (
    check_regular,
    count_linked,
    open_regular,
    open_sized,
    read_regular,
)
from dlemu.storage.pagecache import cached_share, drop


def soon(call: Callable[[], object]) -> object:
    """Return what a call returns or raises; fail where it hangs."""
    came: list[object] = []

    def run() -> None:
        try:
            came.append(call())
        except Exception as error:
            came.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert came, "it hangs"
    return came[0]


def fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def a_folder(path: Path) -> Path:
    path.mkdir()
    return path


KINDS: dict[str, Callable[[Path], Path]] = {
    "a FIFO": fifo,
    "a folder": a_folder,
    "a device": lambda path: Path("/dev/null"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_named(kind: str, tmp_path: Path) -> None:
    path = KINDS[kind](tmp_path / "img.npz")
    calls: list[Callable[[], object]] = [
        lambda: open_regular(path, error=RunError),
        lambda: open_regular(path, direct=True, error=RunError),
        lambda: read_regular(path, error=RunError),
        lambda: check_regular(path, error=RunError),
    ]
    gc.collect()  # nothing of earlier tests is closed meanwhile
    before = set(os.listdir("/proc/self/fd"))
    for call in calls:
        raised = soon(call)
        assert isinstance(raised, RunError) and str(raised) == f"{path} is {kind}, not a file"
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_link_to_a_file_is_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "file")
    assert read_regular(link) == b"abc"
    number, size = open_sized(link)
    assert size == 3 and os.get_blocking(number), "a read may wait for a lock"
    os.close(number)


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "the manifest": ("dlemu.json", read_manifest),
    "a cold start": ("img.npz", lambda folder: drop([folder / "img.npz"])),
    "a sample": ("img.npz", lambda folder: cached_share([folder / "img.npz"])),
    "O_DIRECT": ("img.npz", lambda folder: settle_direct(folder / "img.npz", "auto")),
    "a run's summary": ("summary.json", read_summary),
    "a run's steps": ("steps.0.npy", read_steps),
}


@pytest.mark.parametrize("reader", READERS)
def test_no_fifo_hangs_a_reader(reader: str, tmp_path: Path) -> None:
    name, read = READERS[reader]
    path = fifo(tmp_path / name)
    raised = soon(lambda: read(tmp_path))
    assert isinstance(raised, DatasetError | RunError)
    assert str(raised) == f"{path} is a FIFO, not a file"


def test_the_sizes_of_a_manifest_may_be_no_fifo(tmp_path: Path) -> None:
    from tests.lab.commands import generate

    generate(tmp_path)
    path = tmp_path / "data" / "dlemu.files.npy"
    path.unlink()
    fifo(path)
    assert str(soon(lambda: read_manifest(tmp_path / "data"))) == f"{path} is a FIFO, not a file"


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
