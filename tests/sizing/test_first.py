"""`dlemu try` on small files: its answer, its refusals, and what stays in the folder."""

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dlemu.cli.main import run as run_command
from dlemu.cli.try_ import parse_trial
from dlemu.datagen import generate
from dlemu.errors import DatasetError, DlemuError, WorkloadError
from dlemu.sizing.first import WORKLOADS, Trial, try_storage
from dlemu.sizing.first_files import scratch_folder
from dlemu.workload.model import Workload, load_workload
from dlemu.world import ending
from dlemu.world.world import Alone
from tests.lab import warm
from tests.lab.drives import drive_folder
from tests.lab.waiting import until

TINY = {
    "dataset.record_length_bytes": 4096,
    "dataset.record_length_bytes_stdev": 512,
    "reader.data_loader": "threads",
    "reader.read_threads": 1,
    "reader.prefetch_size": 1,
    "train.computation_time": 0.02,
    "metric.au": 0.01,
}
"""So little is asked that every storage feeds all that are tried."""


@pytest.fixture
def drive() -> Iterator[Path]:
    with drive_folder(64 << 20) as folder:
        yield folder


@pytest.fixture(autouse=True)
def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try at most 3 accelerators: nothing fails here."""
    monkeypatch.setattr("dlemu.sizing.first._MOST_ACCELERATORS", 3)


def tiny(name: str = "cosmoflow_h100", **keys: object) -> Workload:
    return load_workload(name, {**TINY, **{k.replace("__", "."): v for k, v in keys.items()}})


def trial(drive: Path, tmp_path: Path, *workloads: Workload, **more: Any) -> Trial:
    values: dict[str, Any] = {"seconds": 10, "max_bytes": 1 << 20, "output": str(tmp_path / "out")}
    return Trial(folder=drive, workloads=workloads or (tiny(),), **(values | more))


def left(drive: Path) -> set[str]:
    return {path.name for path in drive.iterdir()} - {"lost+found"}


def test_it_answers_for_each_workload_and_leaves_nothing(drive: Path, tmp_path: Path) -> None:
    unet3d = tiny("unet3d_h100", reader__batch_size=1)
    said: list[str] = []

    found = try_storage(trial(drive, tmp_path, unet3d, tiny()), said.append)

    assert left(drive) == set()
    assert [a.estimate.num_accelerators for a in found.answers] == [3, 3]
    assert all(a.estimate.at_least and a.files.written for a in found.answers)
    assert [line[:3] for line in said if line[1:3] == "/2"] == ["1/2", "2/2"]
    assert said[1].startswith("storage:  ") and "\nhost:     " in said[1]
    assert all(line.endswith(" left") for line in said[2:])
    stored = json.loads((tmp_path / "out" / "try.json").read_text())
    assert [(a["workload"], a["low"], a["high"]) for a in stored["answers"]] == [
        ("unet3d_h100", 3, None),
        ("cosmoflow_h100", 3, None),
    ]
    text = str(found)
    assert text.startswith(f"first answer for {drive}: from ")
    assert "with O_DIRECT, not by the benchmark's rule" in text
    assert "unet3d_h100     at least 3    3 or more" in text
    # The runs read the few files again and again: 12 steps for 3 accelerators take more samples.
    assert (tmp_path / "out" / "runs" / "cosmoflow_h100.01.n3" / "summary.json").is_file()


def test_the_printed_commands_run_as_they_stand(drive: Path, tmp_path: Path) -> None:
    found = try_storage(trial(drive, tmp_path), lambda text: None)

    full = found.answers[0].full
    assert full.quick, "five times this host's memory is no room for here"
    assert str(full).startswith("quick, for the rule asks for more than is free: ")
    datagen, size = full.commands
    assert run_command(shlex.split(datagen)[1:]) == 0
    # All but the search itself, which would take a while.
    assert run_command([*shlex.split(size)[1:], "--cfg", "job"]) == 0
    for line in (datagen, size):
        assert f"dataset.data_folder={drive}/cosmoflow_h100" in line and line in str(found)
    # The dataset that it has written is read by the next try, stays, and is enough.
    again = try_storage(trial(drive, tmp_path, output=str(tmp_path / "2")), lambda text: None)
    assert not again.answers[0].files.written
    assert left(drive) == {"cosmoflow_h100"}
    assert again.answers[0].full.commands == (size,)


def test_a_dataset_that_is_there_is_read_and_stays(drive: Path, tmp_path: Path) -> None:
    own = tiny(
        dataset__data_folder=str(drive / "data"),
        dataset__num_files_train=20,
        dataset__seed=7,
        dataset__file_prefix="own",
    )
    generate(own, world=Alone())
    before = sorted(path.name for path in (drive / "data").rglob("*"))
    said: list[str] = []

    found = try_storage(trial(drive, tmp_path), said.append)

    assert not found.answers[0].files.written and found.answers[0].files.layout.num_files == 20
    assert "data: 20 files, 80.0 KiB, there already; " in "\n".join(said)
    assert sorted(path.name for path in (drive / "data").rglob("*")) == before
    assert left(drive) == {"data"}


def test_kept_files_are_read_by_the_next(drive: Path, tmp_path: Path) -> None:
    first = try_storage(trial(drive, tmp_path, keep=True), lambda text: None)
    assert first.answers[0].files.written
    assert left(drive) == {"dlemu-try"}
    (drive / "dlemu-try" / "foreign").write_text("not ours")

    second = try_storage(trial(drive, tmp_path, output=str(tmp_path / "2")), lambda text: None)

    assert not second.answers[0].files.written
    assert [path.name for path in (drive / "dlemu-try").iterdir()] == ["foreign"]


def test_an_interruption_at_any_line_leaves_nothing(drive: Path, tmp_path: Path) -> None:
    for lines in range(4):
        said: list[str] = []

        def interrupt(text: str, said: list[str] = said, lines: int = lines) -> None:
            said.append(text)
            if len(said) > lines:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            try_storage(trial(drive, tmp_path), interrupt)
        assert left(drive) == set()
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


def test_a_signal_during_a_run_leaves_nothing(drive: Path, tmp_path: Path) -> None:
    keys = [f"{key}={value}" for key, value in TINY.items()]
    words = ["workloads=cosmoflow_h100", "max_bytes=1MiB", f"output.folder={tmp_path / 'out'}"]
    child = warm.Popen(
        [*warm.COMMAND, "try", str(drive), *words, *keys, "train.computation_time=1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    until(lambda: list((tmp_path / "out").glob("runs/*/summary.json")), "the first run")
    assert left(drive) == {"dlemu-try"}
    os.kill(child.pid, signal.SIGINT)

    assert child.wait() == 130
    assert left(drive) == set()


def test_a_removal_that_is_interrupted_is_done_again_by_the_last_act(drive: Path) -> None:
    acts = []

    def interrupted(own: Path) -> None:
        acts.extend(ending._last_acts)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("dlemu.sizing.first_files.remove", interrupted)
        with scratch_folder(drive, keep=False) as own:
            (own / "img_0_of_1.npz").touch()
    assert left(drive) == {"dlemu-try"}
    acts[-1](KeyboardInterrupt())
    assert left(drive) == set()


def test_what_a_killed_removal_leaves_is_taken_by_the_next(drive: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("os.rmdir", Mock(side_effect=KeyboardInterrupt))
        with scratch_folder(drive, keep=False) as own:
            (own / "cosmoflow_h100").mkdir()
    assert left(drive) == {"dlemu-try"}

    try_storage(trial(drive, tmp_path), lambda text: None)
    assert left(drive) == set()


def test_what_cannot_be_removed_is_told_of(
    drive: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with scratch_folder(drive, keep=False) as own:
        monkeypatch.setattr("os.unlink", Mock(side_effect=OSError))
        ending._last_acts[-1](KeyboardInterrupt())
        monkeypatch.undo()
    assert capsys.readouterr().err == (
        f"dlemu: {own} could not be removed; remove it, or let the next dlemu try do it\n"
    )


def test_a_second_try_at_the_same_time_is_refused(drive: Path, tmp_path: Path) -> None:
    with (
        scratch_folder(drive, keep=False),
        pytest.raises(DatasetError, match=r"dlemu-try is in use by another dlemu try"),
    ):
        try_storage(trial(drive, tmp_path), lambda text: None)
    assert left(drive) == set()


def test_a_folder_of_that_name_that_is_somebody_else_s_is_left_alone(
    drive: Path, tmp_path: Path
) -> None:
    (drive / "dlemu-try").mkdir()
    (drive / "dlemu-try" / "img_0_of_1.npz").write_text("precious")

    with pytest.raises(DatasetError, match="no dlemu try has made it; rename it"):
        try_storage(trial(drive, tmp_path), lambda text: None)
    assert (drive / "dlemu-try" / "img_0_of_1.npz").read_text() == "precious"


def test_no_room_is_said_in_one_line(drive: Path, tmp_path: Path) -> None:
    with pytest.raises(DlemuError) as refused:
        try_storage(trial(drive, tmp_path, max_bytes=4096), lambda text: None)

    text = str(refused.value)
    assert "dlemu try may write 4.0 KiB of it; 8.0 KiB are needed: raise max_bytes, or" in text
    assert "\n" not in text
    assert left(drive) == set()


@pytest.mark.parametrize(
    ("folder", "line"),
    [
        ("/nowhere", "/nowhere is no folder; name one on the storage to be tried"),
        ("/dev/shm", "/dev/shm lies in memory, where no drive is read; name a folder on the"),
        ("/proc", "/proc cannot be written ("),
    ],
)
def test_a_folder_that_cannot_be_tried_gets_one_line(
    folder: str, line: str, tmp_path: Path
) -> None:
    with pytest.raises(DatasetError) as refused:
        try_storage(trial(Path(folder), tmp_path), lambda text: None)

    assert str(refused.value).startswith(line)
    assert not (tmp_path / "out").exists()


def test_its_words() -> None:
    asked = parse_trial(["/mnt/d", "seconds=60", "try.max_bytes=2GiB", "keep=true"])

    assert (asked.folder, asked.seconds, asked.max_bytes) == (Path("/mnt/d"), 60, 2 << 30)
    assert asked.keep and [w.name for w in asked.workloads] == list(WORKLOADS)
    one = parse_trial(["/mnt/d", "workloads=unet3d_b200", "reader.data_loader=threads"])
    assert [(w.name, w.reader.data_loader) for w in one.workloads] == [("unet3d_b200", "threads")]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "one folder is needed, on the storage: dlemu try FOLDER"),
        (["/a", "second=3"], "unknown key second; did you mean seconds?"),
        (["/a", "seconds=x"], "seconds=x: must be a number"),
        (["/a", "/b"], "one folder is needed, got /a, /b"),
        (["/a", "workloads="], "workloads= names none; write workloads=unet3d_h100,"),
        (["/a", "reader.batch_size={"], "override reader.batch_size={ cannot be parsed"),
        (["/a", "seconds=5"], "seconds must be from 10 to 3600, got 5"),
        (["/a", "keep=1"], "keep=1: 1 is none of true, false"),
        (["/a", "workloads=unet3d"], "no workload unet3d; did you mean"),
        (["/a", "reader.odirect=false"], "unknown key reader.odirect; there is seconds"),
        (["/a", "train.computation_time=0"], "train.computation_time of unet3d_h100 must be"),
        (["/a", "reader.nothing=1"], "unknown key reader.nothing"),
    ],
)
def test_a_wrong_word_gets_one_line(words: list[str], line: str) -> None:
    with pytest.raises(WorkloadError) as refused:
        parse_trial(words)

    assert str(refused.value).startswith(line)
