"""A dataset is extended to more files: those that stay get new names, and keep their bytes."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlemu.datagen import generate, read_manifest, survey, target, verify
from dlemu.errors import DatasetError
from dlemu.ranks.world import Alone
from tests.datagen.test_write import KINDS
from tests.lab.dataset import generated, tree, workload_of


def stamps(folder: Path) -> dict[int, int]:
    """Return when each file below train/ was written, by inode."""
    files = [path.stat() for path in (folder / "train").rglob("*") if path.is_file()]
    return {status.st_ino: status.st_mtime_ns for status in files}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind['format']}")
def test_it_is_as_if_written_at_once(tmp_path: Path, kind: dict[str, Any]) -> None:
    """More digits, too: img_8_of_9 becomes img_08_of_11."""
    generated(tmp_path / "data", **{**kind, "num_files_train": 9})
    before = stamps(tmp_path / "data")

    manifest = generate(
        workload_of(tmp_path / "data", **{**kind, "num_files_train": 11}), world=Alone()
    )
    generated(tmp_path / "whole", **{**kind, "num_files_train": 11})

    assert tree(tmp_path / "data") == tree(tmp_path / "whole")
    after = stamps(tmp_path / "data")
    assert 11 * len(before) == 9 * len(after)
    assert before.items() <= after.items(), "those that stay are not rewritten"
    assert manifest.files_written == 2
    assert manifest.describe().endswith("; 2 written now, the others were there")
    assert verify(tmp_path / "data", full=True, world=Alone()) == []


class Killed(BaseException):
    """The process ends here: whatever is tried after that has no effect."""


def kill_at(call: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Let a process change the file system so many times; return how often it wanted to."""
    count = 0

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*words: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            if count > call:
                raise Killed
            return change(*words, **more)

        return changed

    for name in ("rename", "unlink", "mkdir", "rmdir", "pwrite", "write", "ftruncate"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    return lambda: count


@pytest.mark.parametrize("kind", [KINDS[1], KINDS[5]], ids=["npz", "tfrecord"])
def test_killed_anywhere_it_continues(
    tmp_path: Path, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread, so that every run changes the file system in the same order."""
    monkeypatch.setattr(target, "FILES_IN_FLIGHT", 1)
    kind = {**kind, "num_samples_per_file": 2}
    generated(tmp_path / "small", **{**kind, "num_files_train": 9})
    generated(tmp_path / "whole", **{**kind, "num_files_train": 11})
    whole, data = tree(tmp_path / "whole"), tmp_path / "data"
    larger = workload_of(data, **{**kind, "num_files_train": 11})
    smaller = workload_of(data, **{**kind, "num_files_train": 9})
    used = unfinished = 0

    for call in range(1000):
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(tmp_path / "small", data)
        with monkeypatch.context() as patch:
            wanted = kill_at(call, patch)
            with contextlib.suppress(Killed):
                generate(larger, world=Alone())
            wished = wanted()
        if wished <= call:
            break
        manifest = read_manifest(data)
        if manifest is None:
            unfinished += 1
            with pytest.raises(DatasetError, match="is unfinished; start dlemu datagen again"):
                survey(data, larger)
            with pytest.raises(DatasetError, match="holds an unfinished dataset of 11 "):
                generate(smaller, world=Alone())
        else:
            used += 1
            assert [
                fault for fault in verify(data, full=True, world=Alone()) if not fault.extra
            ] == []
        generate(larger, world=Alone())
        assert tree(data) == whole, call

    assert used > 5 and unfinished > 15


def test_names_that_are_taken_are_not_written_over(tmp_path: Path) -> None:
    generated(tmp_path, num_files_train=9)
    taken = tmp_path / "train" / "img_02_of_10.npz"
    taken.write_bytes(b"mine")
    before = tree(tmp_path)

    with pytest.raises(DatasetError) as error:
        generated(tmp_path, num_files_train=10)

    assert str(error.value) == (
        f"{taken} has a name that a file of the larger dataset will have; move it elsewhere"
    )
    assert tree(tmp_path) == before
