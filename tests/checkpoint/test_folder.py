"""A folder is only used if all in it is ours, and only what is ours is removed."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dlemu.checkpoint.folder import (
    RECORD,
    Record,
    check_own,
    check_room,
    forget,
    read_record,
    remove_steps,
    step_folder,
)
from dlemu.errors import RunError, WorkloadError

RECORDED = Record("m", 5, 0.5, "dlemu", (("a.pt", 3), ("dcp_0/.metadata", 0)), (1, 2))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with two checkpoints, one of them cut short."""
    folder = tmp_path / "ck"
    (step_folder(folder, 1) / "dcp_0").mkdir(parents=True)
    step_folder(folder, 2).mkdir()
    (step_folder(folder, 1) / "a.pt").write_bytes(b"abc")
    (step_folder(folder, 1) / "dcp_0" / ".metadata").touch()
    (step_folder(folder, 2) / "a.pt.partial").write_bytes(b"a")
    RECORDED.write(folder)
    return folder


def test_a_record_is_read_as_it_was_written(own: Path, tmp_path: Path) -> None:
    assert read_record(own) == RECORDED
    assert read_record(tmp_path / "none") is None
    assert read_record(tmp_path) is None


def test_all_that_is_ours_is_removed(own: Path) -> None:
    check_own(own, RECORDED)
    assert remove_steps(own, RECORDED) == 2
    forget(own)
    assert list(own.iterdir()) == []


def test_single_checkpoints_are_removed(own: Path) -> None:
    assert remove_steps(own, RECORDED, [1]) == 1
    forget(own)  # one is left: the record stays
    assert sorted(path.name for path in own.iterdir()) == [RECORD, "global_epoch1_step2"]


def test_nothing_foreign_is_removed(own: Path) -> None:
    for path in (own / "mine", step_folder(own, 1) / "mine", step_folder(own, 2) / "a.pt.mine"):
        path.write_text("keep")
    remove_steps(own, RECORDED)
    forget(own)
    left = {str(path.relative_to(own)) for path in own.rglob("*") if path.is_file()}
    assert left == {"mine", "global_epoch1_step1/mine", "global_epoch1_step2/a.pt.mine", RECORD}


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda folder: (folder / "weights.pt").touch(), "weights.pt"),
        (lambda folder: (folder / "global_epoch_step1").mkdir(), "global_epoch_step1"),
        (lambda folder: (folder / "global_epoch1_step3").touch(), "global_epoch1_step3"),
        (
            lambda folder: (step_folder(folder, 1) / "b.pt").touch(),
            "global_epoch1_step1/b.pt",
        ),
        (
            lambda folder: (folder / "global_epoch1_step4").symlink_to("/"),
            "global_epoch1_step4",
        ),
    ],
)
def test_a_folder_with_foreign_files_is_refused(
    own: Path, make: Callable[[Path], object], named: str
) -> None:
    make(own)
    with pytest.raises(WorkloadError) as refused:
        check_own(own, RECORDED)
    assert str(refused.value) == (
        f"checkpoint.checkpoint_folder {own} holds {named}, which dlemu has not written; name "
        "another folder"
    )


def test_checkpoints_of_others_are_foreign(own: Path) -> None:
    (own / RECORD).unlink()
    with pytest.raises(WorkloadError, match="global_epoch1_step1"):
        check_own(own, read_record(own))


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        "[]",
        json.dumps(vars(RECORDED) | {"files": [["../../etc/passwd", 1]]}),
        json.dumps(vars(RECORDED) | {"files": [["..", 1]]}),
        json.dumps(vars(RECORDED) | {"files": [["dcp_0/../../x", 1]]}),
        json.dumps(vars(RECORDED) | {"files": [["/etc/passwd", 1]]}),
        json.dumps(vars(RECORDED) | {"more": 1}),
    ],
)
def test_a_damaged_record_removes_nothing(own: Path, damage: str) -> None:
    (own / RECORD).write_text(damage)
    with pytest.raises(RunError, match="is damaged"):
        read_record(own)


@pytest.mark.parametrize(
    ("free", "checkpoints", "remedy"),
    [
        (101 << 20, 10, ""),
        (100 << 20, 10, "free space, or add checkpoint.keep=1"),
        (19 << 20, 10, "free space, or add checkpoint.keep=1 checkpoint.scale=0.9"),
        (19 << 20, 2, "free space, or add checkpoint.scale=0.9"),
        (2 << 20, 1, "free space, or add checkpoint.scale=0.09"),
        (0, 10, "free space"),
    ],
)
def test_too_little_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, checkpoints: int, remedy: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("", (), {"free": free}))
    room = partial(check_room, tmp_path / "new" / "ck", None, 10 << 20, checkpoints, "h")
    if not remedy:
        room()
    else:
        with pytest.raises(WorkloadError, match="on host h has room for") as refused:
            room()
        assert refused.value.remedy == remedy
    assert list(tmp_path.iterdir()) == []


def test_what_will_be_replaced_is_room(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = sum(512 * path.stat().st_blocks for path in own.glob("*/a*"))
    assert held > 0
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("", (), {"free": 1 << 20}))
    check_room(own, RECORDED, held, 1, "h")
    for old, num_bytes in ((RECORDED, held + 1), (None, held)):
        with pytest.raises(WorkloadError, match="has room for"):
            check_room(own, old, num_bytes, 1, "h")
