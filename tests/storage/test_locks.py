"""Folders that one process of a host holds at a time."""

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from dlemu.storage.owned import lock_folder, locked, unlock_folder


def test_a_second_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with locked(tmp_path):
        for seconds in (0.0, 0.1):
            with pytest.raises(BlockingIOError), locked(tmp_path, seconds=seconds):
                pass
    with locked(tmp_path):
        pass


def test_who_has_time_waits(tmp_path: Path) -> None:
    threading.Timer(0.1, unlock_folder, [lock_folder(tmp_path)]).start()
    with locked(tmp_path, seconds=60):
        pass


def test_a_folder_renamed_meanwhile_is_not_locked(
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
        lock_folder(folder)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_file_system_without_locks_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path), locked(tmp_path):
        pass
