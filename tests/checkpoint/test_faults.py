"""A run whose drive of checkpoints fills up or stops to answer, or which is killed while it writes.

Real processes write to a small drive of the test's own, on which a foreign file lies.
"""

import contextlib
import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlemu.checkpoint.folder import RECORD
from tests.lab import bench, warm
from tests.lab.drives import own_drive
from tests.lab.waiting import until

pytestmark = pytest.mark.root
_FOR_LONG = ("train.epochs=10000", "checkpoint.keep=2")
"""A run that ends by itself only when no test waits any more."""


@pytest.fixture
def drive() -> Iterator[Path]:
    with own_drive(96 << 20) as drive:
        (drive / "mine").write_text("keep")
        yield drive
        assert (drive / "mine").read_text() == "keep"


def words(drive: Path, asynchronous: bool = True) -> list[str]:
    """Return keys with which a small run writes 8 checkpoints of 2 MB."""
    return [
        "workflow.checkpoint=true",
        f"checkpoint.checkpoint_folder={drive / 'new' / 'ck'}",
        "checkpoint.steps_between_checkpoints=6",
        f"checkpoint.asynchronous={str(asynchronous).lower()}",
        "model.model_size_bytes=2000001",
        "train.epochs=2",
    ]


def names_in(drive: Path) -> list[str]:
    return sorted(str(path.relative_to(drive)) for path in drive.glob("new/ck/*/*"))


def fill(drive: Path) -> Path:
    """Take all room that is left, as another user would; return the file that does."""
    path = drive / "filler"
    with contextlib.suppress(OSError), path.open("ab", 0) as file:
        while True:
            file.write(bytes(1 << 20))
    return path


@contextlib.contextmanager
def frozen(drive: Path) -> Iterator[None]:
    """Let nothing be written to the drive; who tries cannot even be killed."""
    subprocess.run(["fsfreeze", "--freeze", drive], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", drive], check=True)


def has_failed(run: bench.Run, line: str) -> None:
    """Check that a run ended with one line on stderr, and that its summary has the same."""
    assert run.end() == 1
    [said] = run.errors
    assert re.fullmatch(f"dlemu: {line}\n", said), said
    told = run.summary
    assert told["status"] == "failed" and re.search(line, f"rank 0 on host x: {told['error']}")


def goes_through(workload: Path, keys: list[str], drive: Path) -> None:
    """Check that the same keys again end well, and leave what they wrote."""
    with bench.start(workload, *keys) as run:
        run.completes()
        assert run.errors == [] and "of an earlier command" in run.told()
    assert len(names_in(drive)) == 8
    assert {(drive / name).stat().st_size for name in names_in(drive)} == {2_000_001}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_drive_that_fills_up_ends_a_run(tmp_path: Path, drive: Path, asynchronous: bool) -> None:
    workload, keys = bench.small(tmp_path), words(drive, asynchronous)
    with bench.start(workload, *keys, *_FOR_LONG) as run:
        until(lambda: len(names_in(drive)) > 1, pause=0.001, by=run.process)
        # A checkpoint that is removed makes room for another, so once may not be enough.
        until(lambda: fill(drive).exists() and run.process.poll() is not None)
        has_failed(run, r"checkpoint \S+ cannot be written \(No space left on device\); free .*")
    names = names_in(drive)
    assert names and not any(name.endswith(".partial") for name in names)
    (drive / "filler").unlink()
    goes_through(workload, keys, drive)


def test_after_a_kill_during_a_write_the_same_command_works(tmp_path: Path, drive: Path) -> None:
    workload, keys = bench.small(tmp_path), words(drive)
    with bench.start(workload, *keys, *_FOR_LONG) as run:
        until(lambda: list(drive.glob("new/ck/*/*.partial")), pause=0.001, by=run.process)
        run.process.kill()
        assert run.end() == -signal.SIGKILL
        assert run.summary["status"] == "incomplete"
    assert (drive / "new/ck" / RECORD).exists()
    goes_through(workload, keys, drive)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_drive_that_stops_to_answer_is_named(
    tmp_path: Path, drive: Path, asynchronous: bool, time_flies: Callable[[], object]
) -> None:
    workload, keys = bench.small(tmp_path), words(drive, asynchronous)
    with bench.start(workload, *keys, *_FOR_LONG) as run:
        until(lambda: len(names_in(drive)) > 1, pause=0.001, by=run.process)
        with frozen(drive):
            time_flies()
            until(lambda: run.errors, pause=0.001)
        folder = re.escape(str(drive / "new/ck/global_epoch"))
        doing = rf"while writing a checkpoint: {folder}\d+_step\d+"
        has_failed(run, rf"rank 0 on host \S+: no progress for \S+( s)? \(output.*\) {doing}")


def test_dlemu_checkpoint_names_it_as_well(
    tmp_path: Path, drive: Path, time_flies: Callable[[], object]
) -> None:
    folder = drive / "new" / "ck"
    keys = ["model=unet3d", "model.model_size_bytes=2MB", "checkpoint.keep=1"]
    keys += [f"checkpoint.checkpoint_folder={folder}", "output.folder=out"]
    keys += ["checkpoint.num_checkpoints_read=0", "checkpoint.time_between_checkpoints=0"]
    many = "checkpoint.num_checkpoints_write=1000000"
    command = [*warm.COMMAND, "checkpoint", *keys, many]
    process = warm.Popen(command, stdout=-1, stderr=-1, text=True, cwd=tmp_path)
    until(lambda: list(folder.glob("*/*")), pause=0.001, by=process)
    with frozen(drive):
        time_flies()
        assert process.stderr is not None
        said = process.stderr.readline()
    doing = r"while (preparing|writing|removing) checkpoints? .*"
    line = rf"no progress for \S+( s)? \(output\.stall_seconds\) {doing}"
    assert re.fullmatch(rf"dlemu: rank 0 on host \S+: {line}\n", said) and str(folder) in said
    process.communicate()
    assert process.returncode == 1
    told = json.loads((tmp_path / "out" / "summary.json").read_text())
    # The drive is back before the command has ended: what it was writing may fail first.
    assert told["status"] == "failed"
    assert re.fullmatch(line, told["error"]) or f"{folder} cannot be written" in told["error"]
    again = warm.run(
        [*warm.COMMAND, "checkpoint", *keys, "checkpoint.num_checkpoints_write=2"], cwd=tmp_path
    )
    assert (again.returncode, again.stderr) == (0, "")
    assert [path.name for path in folder.glob("*/*")] == ["model_states-0.pt"]
