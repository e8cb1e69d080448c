"""`dlemu checkpoint` from its words to files, results and the exit status."""

import errno
import itertools
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from dlemu.checkpoint.folder import checkpoints_at
from dlemu.cli.main import run
from dlemu.config.checkpoint_sections import CheckpointSection
from tests.lab import bench, warm
from tests.lab.mpirun import mpirun
from tests.lab.waiting import LONG, until

THREE = [
    "model=unet3d",
    "model.model_size_bytes=300001",
    "model.parallelism.zero_stage=3",
    "num_accelerators=3",
    "checkpoint.num_checkpoints_write=2",
    "checkpoint.num_checkpoints_read=2",
    "checkpoint.checkpoint_folder=ck",
    "progress=off",
]
"""Three accelerators that write a file of 300 kB each."""
DCP = "checkpoint.writer=dcp"
FILES = ["model_states-0.pt", "model_states-1.pt", "model_states-2.pt"]
TWO = {f"global_epoch1_step{step}": FILES for step in (1, 2)}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def checkpoint(*words: str) -> int:
    return run(["checkpoint", *THREE, *words])


def summary(folder: str = "out") -> dict[str, Any]:
    read: dict[str, Any] = json.loads((Path(folder) / "summary.json").read_text())
    return read


def files_of(folder: str = "ck") -> dict[str, list[str]]:
    return {path.name: sorted(os.listdir(path)) for path in Path(folder).iterdir() if path.is_dir()}


def test_files_are_written_read_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoint("output.folder=out", "--verify", "checkpoint.mtbf=3h") == 0
    said = capsys.readouterr().out
    assert files_of() == TWO
    assert {path.stat().st_size for path in Path("ck").glob("*/*.pt")} == {300_001}
    told = summary()
    own = told["checkpoint"]
    assert (told["status"], told["num_accelerators"], own["num_bytes"]) == ("complete", 3, 900_003)
    assert [len(own[name]) for name in ("saves", "loads")] == [2, 2]
    assert own["cached_share"] is not None, "they were dropped from memory before, and looked at"
    assert told["metric"]["checkpoint_size_GB"] == 900_003 / 2**30
    for entry in (*own["saves"], *own["loads"]):
        assert 0 < entry["least_seconds"] <= entry["mean_seconds"] <= entry["seconds"]
        assert entry["seconds"] <= entry["between_barriers_seconds"]
    assert all(entry["parts"]["compare"] > 0 for entry in own["loads"])
    assert "save 2 of 2: " in said and "load 2 of 2: " in said
    assert run(["report", "out"]) == 0
    report = capsys.readouterr().out
    assert said.endswith(f"\n\n{report}"), "to the byte"
    assert run(["report", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": "out"} | told


def test_a_refusal_keeps_the_checkpoints_of_before_and_an_empty_folder() -> None:
    words = ("checkpoint.num_checkpoints_read=0", "model.model_size_bytes=900TB")
    Path("ck").mkdir()
    assert checkpoint(*words) == 1
    assert os.listdir("ck") == []
    assert checkpoint(words[0]) == 0
    assert checkpoint(*words) == 1
    assert files_of() == TWO


def test_a_damaged_checkpoint_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoint("checkpoint.num_checkpoints_read=0") == 0
    path = Path("ck/global_epoch1_step2/model_states-1.pt")
    with path.open("r+b") as file:
        file.seek(200_000)
        other = bytes(255 - each for each in file.read(7))
        file.seek(200_000)
        file.write(other)
    reads = ("checkpoint.num_checkpoints_write=0", "checkpoint.num_checkpoints_read=2")
    assert checkpoint(*reads) == 0  # the sizes fit, and nothing is compared
    capsys.readouterr()
    assert checkpoint(*reads, "--verify", "output.folder=out") == 1
    line = f"{path} is damaged at byte 200,000; write the checkpoints again"
    assert capsys.readouterr().err == f"dlemu: {line}\n"
    assert (summary()["status"], summary()["error"]) == ("failed", line)
    assert files_of() == TWO


@pytest.mark.parametrize(
    ("bound", "words", "status", "verdict"),
    [
        (1000, [], 0, "PASS"),
        (1e-6, [], 2, "FAIL"),
        (1000, ["checkpoint.fsync=false", "checkpoint.odirect=false"], 1, "NO VERDICT"),
    ],
)
def test_a_bound_passes_or_fails(
    capsys: pytest.CaptureFixture[str], bound: float, words: list[str], status: int, verdict: str
) -> None:
    words = ["checkpoint.num_checkpoints_read=0", f"checkpoint.max_seconds={bound}", *words]
    assert run(["-q", "checkpoint", *THREE, *words, "output.folder=out"]) == status
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{verdict}: ")
    assert run(["report", "out"]) == status


def test_torch_writes_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    torch = pytest.importorskip("torch")
    synced: list[Path] = []
    monkeypatch.setattr("dlemu.checkpoint.files.sync_folder", synced.append)
    assert checkpoint(DCP, "output.folder=out") == 0
    assert len(synced) == 2 * 3, "of each accelerator's folder, as checkpoint.fsync=true asks"
    told = summary()
    assert [entry["num_bytes"] for entry in told["checkpoint"]["saves"]] == [900_003] * 2
    assert [each["kind"] for each in told["notes"]] == ["not_read_back"]
    assert told["measured"]["wear"]["file_bytes_written"] == 2 * 900_003
    state = {FILES[1]: torch.zeros(300_001, dtype=torch.uint8)}
    reader = dcp.FileSystemReader("ck/global_epoch1_step2/dcp_1")
    dcp.load(state, storage_reader=reader, no_dist=True)
    assert len(set(state[FILES[1]].tolist())) == 256
    assert checkpoint() == 0  # ours replaces them
    assert files_of() == TWO


_SAVES = [
    "model=unet3d",
    "checkpoint.checkpoint_folder=ck",
    "checkpoint.time_between_checkpoints=0",
]
_SAVES += ["checkpoint.num_checkpoints_write=1000", "checkpoint.num_checkpoints_read=0"]
_SAVES += ["checkpoint.keep=1", "model.model_size_bytes=20MB", "output.folder=out"]


def test_an_interrupt_leaves_nothing() -> None:
    command = [*warm.COMMAND, "checkpoint", *_SAVES]
    process = warm.Popen(command, stdout=-1, stderr=-1, text=True, cwd=Path.cwd())
    until(lambda: list(Path("ck").glob("*/*.partial")), "a file", pause=0.001, by=process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=LONG)
    assert (process.returncode, said) == (130, "dlemu: interrupted\n")
    assert not Path("ck").exists()
    assert summary()["status"] == "incomplete"


def killed_at(step: int, words: list[str]) -> int | None:
    """Run a command that is killed at this change of a file; return its status."""
    with pytest.MonkeyPatch.context() as patch:
        calls = itertools.count()

        def counted(own: Callable[..., Any]) -> Callable[..., Any]:
            def call(*given: Any, **how: Any) -> Any:
                if next(calls) == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return own(*given, **how)

            return call

        for name in ("mkdir", "pwrite", "fsync", "rename", "unlink", "rmdir"):
            patch.setattr(os, name, counted(getattr(os, name)))
        child = get_context("fork").Process(target=lambda: sys.exit(run(words)))
        child.start()
        child.join()
    return child.exitcode


def test_killed_at_any_step_it_leaves_what_the_record_names() -> None:
    words = ["-q", "checkpoint", *_SAVES[:3], "model.model_size_bytes=3MB", "checkpoint.keep=1"]
    words += ["checkpoint.num_checkpoints_write=2", "checkpoint.num_checkpoints_read=1", "--verify"]
    for step in itertools.count():
        if (status := killed_at(step, words)) == 0:
            break
        assert status == -signal.SIGKILL
        place = checkpoints_at(Path("ck"), None, CheckpointSection())
        place.of(place.record()).entries()  # raises where something else is there
    assert step > 20
    assert files_of() == {"global_epoch1_step2": FILES[:1]}


@pytest.mark.parametrize(
    ("number", "said", "remedy"),
    [
        (errno.ENOSPC, "is full", "free space, or add checkpoint.keep=1 or a smaller checkpoint."),
        (errno.EIO, "cannot be written", "name another checkpoint.checkpoint_folder"),
    ],
)
def test_a_drive_that_refuses_a_write_is_named_and_nothing_is_left(
    number: int,
    said: str,
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fsync(file: int) -> None:
        if os.readlink(f"/proc/self/fd/{file}").endswith(".pt.partial"):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    assert checkpoint("output.folder=out") == 1
    line = f"dlemu: ck {said} ({os.strerror(number)}), what was written is removed; {remedy}"
    assert capsys.readouterr().err.startswith(line)
    assert not Path("ck").exists()


@pytest.mark.mpi
def test_a_rank_that_is_killed_is_named() -> None:
    """The launcher interrupts the others in their pause, before they look."""
    words = [*_SAVES, "num_accelerators=3", "checkpoint.time_between_checkpoints=600"]
    command = mpirun(3, *warm.COMMAND, "checkpoint", *words)
    with bench.launched(command, Path("out")) as run:
        until(lambda: list(Path("ck").glob("*_step1")), "a checkpoint", pause=0.001, by=run.process)
        run.ranks()[1].kill()
        assert run.end() != 0
    said = [line for line in run.errors if line.startswith("dlemu: ")]
    if not said:  # mpirun has ended the others before they noticed, and names the one itself
        assert any("process rank 1 " in line for line in run.errors), run.told()
        return
    line = r"rank 1 on host \S+ ended without a word \(killed\? out of memory\?\)"
    assert re.fullmatch(f"dlemu: {line}\n", said[0]), run.told()
    assert run.summary["status"] == "failed" and re.fullmatch(line, run.summary["error"])
