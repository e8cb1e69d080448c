"""A folder is only used if all in it is ours, and only what is ours is removed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dlemu.checkpoint import command as writing
from dlemu.checkpoint.folder import (
    RECORD,
    CheckpointFolder,
    CheckpointRecord,
    checkpoints_at,
    examine,
    opened,
    step_folder,
)
from dlemu.checkpoint.plan import ShardPlan
from dlemu.config.checkpoint_sections import CheckpointSection
from dlemu.config.model import Workload, load_model
from dlemu.errors import RunError, WorkloadError
from dlemu.ranks.watchdog import Watchdog
from dlemu.ranks.world import Alone

RECORDED = CheckpointRecord("m", 5, 0.5, "dlemu", (("a.pt", 3), ("dcp_0/.metadata", 0)), (1, 2))


def place(folder: Path) -> CheckpointFolder:
    return checkpoints_at(folder, None, CheckpointSection()).of(RECORDED)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with two checkpoints, one of them cut short."""
    folder = tmp_path / "ck"
    (step_folder(folder, 1) / "dcp_0").mkdir(parents=True)
    step_folder(folder, 2).mkdir()
    (step_folder(folder, 1) / "a.pt").write_bytes(b"abc")
    (step_folder(folder, 1) / "dcp_0" / ".metadata").touch()
    (step_folder(folder, 2) / "a.pt.partial").write_bytes(b"a")
    place(folder).write(vars(RECORDED))
    return folder


def test_nothing_foreign_is_removed(own: Path) -> None:
    for path in (own / "mine", step_folder(own, 1) / "mine", step_folder(own, 2) / "a.pt.mine"):
        path.write_text("keep")
    place(own).remove()
    place(own).forget()
    left = {str(path.relative_to(own)) for path in own.rglob("*") if path.is_file()}
    assert left == {"mine", "global_epoch1_step1/mine", "global_epoch1_step2/a.pt.mine", RECORD}


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda folder: (folder / "weights.pt").touch(), "weights.pt"),
        (lambda folder: (folder / "global_epoch1_step3").touch(), "global_epoch1_step3"),
        (lambda folder: (step_folder(folder, 1) / "b.pt").touch(), "global_epoch1_step1/b.pt"),
        (lambda folder: (folder / "global_epoch1_step4").symlink_to("/"), "global_epoch1_step4"),
        (lambda folder: (folder / RECORD).unlink(), "global_epoch1_step1"),
    ],
)
def test_a_folder_with_foreign_files_is_refused(
    own: Path, make: Callable[[Path], object], named: str
) -> None:
    make(own)
    with pytest.raises(WorkloadError) as refused:
        examine(*job(own))
    assert str(refused.value) == (
        f"checkpoint.checkpoint_folder {own} holds {named}, which dlemu has not written; name "
        "another folder"
    )


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        "[]",
        json.dumps(vars(RECORDED) | {"files": [["dcp_0/../../x", 1]]}),
        json.dumps(vars(RECORDED) | {"more": 1}),
    ],
)
def test_a_damaged_record_removes_nothing(own: Path, damage: str) -> None:
    (own / RECORD).write_text(damage)
    with pytest.raises(RunError, match="is damaged"):
        place(own).record()


def job(folder: Path, num_bytes: int = 10 << 20, **keys: object) -> tuple[Workload, ShardPlan]:
    """Return a job that writes checkpoints of one file, and its plan."""
    words = {"model.model_size_bytes": num_bytes, "checkpoint.checkpoint_folder": str(folder)}
    given = {f"checkpoint.{name}": value for name, value in keys.items()}
    workload = load_model("unet3d", words | given)
    return workload, ShardPlan.of(workload, Alone())


def has_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: (free, 0, free))


@pytest.mark.parametrize(
    ("free", "checkpoints", "remedy"),
    [
        (100 << 20, 10, "free space, or add checkpoint.keep=1"),
        (19 << 20, 2, "free space, or add checkpoint.scale=0.9"),
        (0, 10, "free space"),
    ],
)
def test_too_little_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, checkpoints: int, remedy: str
) -> None:
    has_free(monkeypatch, free)
    with pytest.raises(WorkloadError, match=f"too little for {checkpoints} ch") as refused:
        examine(*job(tmp_path / "new" / "ck", num_checkpoints_write=checkpoints))
    assert refused.value.remedy == remedy
    assert list(tmp_path.iterdir()) == []


def test_what_will_be_replaced_is_room(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = sum(512 * path.stat().st_blocks for path in own.glob("*/a*"))
    assert held > 0
    has_free(monkeypatch, 1 << 20)
    examine(*job(own, held, num_checkpoints_write=1))
    with pytest.raises(WorkloadError, match="too little for"):
        examine(*job(own, held + 1, num_checkpoints_write=1))
    place(own).remove()
    with pytest.raises(WorkloadError, match="too little for"):
        examine(*job(own, held, num_checkpoints_write=1))


def test_no_folder_is_made_once_all_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that ends the process removes them: what is made later would have no record."""
    held: list[bool] = []

    def seen(act: Callable[..., object]) -> Callable[..., object]:
        return lambda *given: held.append(writes._gate.locked()) or act(*given)  # type: ignore[func-returns-value]

    workload, plan = job(tmp_path / "ck")
    monkeypatch.setattr(writing, "_END_SECONDS", 0.0)
    for name in ("remove", "make"):
        monkeypatch.setattr(CheckpointFolder, name, seen(getattr(CheckpointFolder, name)))
    with opened(workload, plan, Alone(), print) as folder:
        dog = Watchdog(1e9, Alone())
        writes = writing.CheckpointJob(workload, plan, folder, Alone(), dog)
        writes._make(step_folder(folder.path, 1))
        assert len(list(folder.path.iterdir())) == 2
        writes.clean()
        writes._make(step_folder(folder.path, 2))
        assert held == [True, True], "neither comes in between the other"
        assert list(folder.path.iterdir()) == []
