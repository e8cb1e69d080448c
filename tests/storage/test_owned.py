"""Folders that are dlemu's: made, held, marked and cleaned; what is somebody else's stays."""

import errno
import fcntl
import os
import re
import shutil
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from dlemu.errors import DatasetError, WorkloadError
from dlemu.findings import Finding
from dlemu.storage import files, owned
from dlemu.storage.files import create
from dlemu.storage.owned import (
    OwnedFolder,
    direct,
    disk_bytes,
    held,
    locked,
    made,
    room,
    scratch,
)
from tests.lab.commands import execute
from tests.lab.dataset import tree
from tests.lab.waiting import LONG, until

OURS = re.compile(r"step_\d+/(part_\d+)?")


def of_steps(folder: Path, **more: Any) -> OwnedFolder:
    return OwnedFolder(
        folder, "mark.json", lambda name: bool(OURS.fullmatch(name)), "some.folder", **more
    )


@pytest.fixture
def full(tmp_path: Path) -> OwnedFolder:
    """A folder with two steps, one of them not whole."""
    folder = of_steps(tmp_path / "own")
    for name in ("step_1/part_1", "step_2/part_1.partial"):
        (folder.path / name).parent.mkdir(parents=True)
        (folder.path / name).touch()
    folder.write({"of": "a test"})
    return folder


def _fail(found: Finding) -> None:
    pytest.fail(found.kind)


def test_a_folder_is_held_by_one_and_stays_only_if_it_is_used(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with held(folder, key="some.folder"):
        line = rf"^some.folder {folder} is in use by another dlemu; wait for its end, or name anot"
        with pytest.raises(WorkloadError, match=line), held(folder, key="some.folder"):
            pass
    assert not list(tmp_path.iterdir())
    with pytest.raises(ZeroDivisionError), held(folder):
        (folder / "file").touch()
        1 / 0  # noqa: B018
    assert [path.name for path in folder.iterdir()] == ["file"]
    with pytest.raises(FileExistsError), held(folder, new=True):
        pass
    with pytest.raises(NotADirectoryError), made(folder / "file" / "below"):
        pass


def test_an_empty_folder_is_removed_before_another_can_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, there = tmp_path / "folder", list[tuple[int, bool]]()
    monkeypatch.setattr(fcntl, "flock", lambda lock, how: there.append((how, folder.exists())))
    with held(folder):
        pass
    assert there[1:] == [(fcntl.LOCK_UN, False)]


def test_the_empty_folder_of_a_faster_command_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, make = tmp_path / "folder", Path.mkdir

    def late(path: Path, *args: Any, **keys: Any) -> None:
        if path == folder:
            os.makedirs(path, exist_ok=True)  # as another command does just now
        make(path, *args, **keys)

    monkeypatch.setattr(Path, "mkdir", late)
    with made(folder):
        pass
    assert folder.is_dir()


def test_what_is_dlemus_is_known_and_removed(full: OwnedFolder) -> None:
    assert full.fields() == {"of": "a test"}
    wanted = ["step_1/", "step_1/part_1", "step_2/", "step_2/part_1.partial"]
    assert full.entries() == wanted
    (full.path / "lost+found" / "1").mkdir(parents=True)
    assert full.entries() == wanted, "it is the file system's"
    (full.path / "lost+found" / "1").rmdir()
    (full.path / "lost+found").rmdir()
    full.clean()
    assert not full.path.exists()
    full.clean()
    assert full.entries() == [] and full.fields() is None


def test_a_file_that_gets_its_name_meanwhile_is_removed(
    full: OwnedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a thread that is being stopped."""
    below, partial = OwnedFolder._below, full.path / "step_2" / "part_1.partial"

    def named(self: OwnedFolder, start: str = "") -> list[str]:
        found = list(below(self, start))
        partial.rename(partial.with_suffix(""))
        return found

    monkeypatch.setattr(OwnedFolder, "_below", named)
    full.remove("step_2/")
    assert {path.name for path in full.path.rglob("*")} == {"mark.json", "step_1", "part_1"}


@pytest.mark.parametrize("name", ["mine", "step_1/mine", "step_9/part_1/", "step_x/", "link"])
def test_what_is_foreign_is_refused_and_stays(full: OwnedFolder, name: str) -> None:
    path = full.path / name
    if name.endswith("/"):
        path.mkdir(parents=True)
    else:
        path.symlink_to(full.path.parent) if name == "link" else path.touch()
    with pytest.raises(WorkloadError) as error:
        full.entries()
    assert str(error.value) == (
        f"some.folder {full.path} holds {name.rstrip('/')}, which dlemu has not written; name "
        "another folder"
    )
    full.clean()
    assert os.path.lexists(path) and full.fields() == {"of": "a test"}
    assert not (full.path / "step_1" / "part_1").exists()


def test_a_step_that_is_a_link_is_not_followed(full: OwnedFolder) -> None:
    other = full.path.parent / "other"
    (full.path / "step_1").rename(other)
    (full.path / "step_1").symlink_to(other)
    with pytest.raises(WorkloadError, match="holds step_1, which dlemu has not written"):
        full.entries()
    full.clean()
    assert tree(other).keys() == {"part_1"}


def test_without_a_mark_nothing_is_dlemus(full: OwnedFolder) -> None:
    (full.path / "mark.json").unlink()
    with pytest.raises(WorkloadError, match="holds step_1, which"):
        full.entries()


def test_a_link_is_dlemus_only_if_somebody_named_it(full: OwnedFolder) -> None:
    link = full.path.parent / "link"
    link.symlink_to(full.path)
    assert of_steps(link).entries() == full.entries()
    with pytest.raises(WorkloadError, match="link is a symbolic link, not made by dlemu; rename"):
        of_steps(link, is_named=False).entries()


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder, line = of_steps(tmp_path / "file"), r"^some.folder .*file cannot be used \("
    with pytest.raises(WorkloadError, match=line):
        folder.entries()
    with pytest.raises(WorkloadError, match=line), folder.held():
        pass


def test_a_folder_for_a_while_is_marked_and_goes_and_a_foreign_one_stays(
    full: OwnedFolder,
) -> None:
    with full.passing({"of": "another"}, _fail):
        assert full.fields() == {"of": "another"}
    assert not full.path.exists()
    full.path.mkdir()
    (full.path / "mine").touch()
    refused = pytest.raises(WorkloadError, match="holds mine, which dlemu has not written")
    with refused, full.passing({}, _fail):
        pass
    assert tree(full.path).keys() == {"mine"}


def test_scratch_files_go_at_any_end_and_those_of_a_killed_process_first(tmp_path: Path) -> None:
    for name in ("mine", "a"):
        (tmp_path / name).touch()
    with pytest.raises(KeyboardInterrupt), scratch(tmp_path, ["a", "b"]):
        assert [*tmp_path.iterdir()] == [tmp_path / "mine"]
        (tmp_path / "b").touch()
        raise KeyboardInterrupt
    assert [*tmp_path.iterdir()] == [tmp_path / "mine"]
    (tmp_path / "mine").unlink()
    with scratch(tmp_path, ["a"]):
        pass
    assert tmp_path.exists(), "a target's folder is the user's, empty or not"


def test_scratch_files_go_where_their_removal_takes_longer_than_an_interrupt_waits(
    tmp_path: Path,
) -> None:
    """Before: a drive that was being written held the first removal, and all files stayed."""
    code = f"""
import os, pathlib, time
from dlemu.ranks import ending
from dlemu.storage.owned import scratch
folder, ending._ACT_SECONDS = pathlib.Path({str(tmp_path)!r}), 0.0
with scratch(folder, ["a", "b", "-c"]):
    os.unlink = lambda path: time.sleep({LONG})
    for name in ("a", "b", "-c", "mine"):
        (folder / name).touch()
    ending.end_process(KeyboardInterrupt(), 7)
"""
    ended = execute([sys.executable, "-c", code], cwd=tmp_path)
    assert ended.returncode == 7, ended.stderr
    until(lambda: [*tmp_path.iterdir()] == [tmp_path / "mine"], "the files' end")


def test_direct_is_what_the_file_system_says(tmp_path: Path) -> None:
    for number in files.NO_DIRECT:
        with patch.object(owned, "create", side_effect=OSError(number, os.strerror(number))):
            assert not direct(tmp_path) and not list(tmp_path.iterdir())
    with patch.object(owned, "create", side_effect=lambda path, **_: create(path)):
        assert direct(tmp_path) and not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError):
        direct(tmp_path / "none")


def test_what_has_no_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: (9000, 1, 3000))
    folder = tmp_path / "not" / "there"
    assert disk_bytes(folder) == (9000, 3000)
    room(folder, 3000, "", what="")
    room(folder, 3001, "", what="", held_bytes=1)
    with pytest.raises(DatasetError) as error:
        room(folder, 3001, "free space", what="a file", error=DatasetError)
    assert str(error.value) == (
        f"{folder} has 2.9 KiB free, too little for a file, 2.9 KiB; free space"
    )


def test_who_has_time_waits(tmp_path: Path) -> None:
    lock = locked(tmp_path)
    lock.__enter__()
    threading.Timer(0.1, lock.__exit__, [None, None, None]).start()
    with held(tmp_path, seconds=60):
        pass


def test_a_folder_renamed_meanwhile_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    flock, descriptors = fcntl.flock, len(os.listdir("/proc/self/fd"))

    def rename(*words: int) -> None:
        folder.rename(tmp_path / "other")
        folder.mkdir()
        flock(*words)

    monkeypatch.setattr(fcntl, "flock", rename)
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        locked(folder).__enter__()
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_file_system_without_locks_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=error))
    with held(tmp_path), held(tmp_path):
        pass
