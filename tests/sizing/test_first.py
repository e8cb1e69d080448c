"""`dlemu try` on small files: its answer, its refusals, and what stays in the folder."""

import csv
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.request import Request, urlopen

import numpy as np
import pytest

from dlemu.cli.main import run as run_command
from dlemu.cli.tools import trial_of
from dlemu.cli.words import parse
from dlemu.config.model import Workload, load_workload
from dlemu.config.sections import StorageSection
from dlemu.errors import DatasetError, DlemuError, WorkloadError
from dlemu.findings import remark
from dlemu.ranks import ending
from dlemu.report.sizing import _next as next_of
from dlemu.report.sizing import present_sizing
from dlemu.report.text import render_text
from dlemu.sizing.answers import Sized, document_of
from dlemu.sizing.first import Trial, _planned, full_measurement, scratch_folder, try_storage
from dlemu.storage.folder import Folder
from dlemu.storage.place import path_of, place_of
from dlemu.storage.s3 import access_of
from dlemu.terminal import silent
from tests.lab import warm
from tests.lab.commands import Printed
from tests.lab.drives import drive_folder
from tests.lab.object_server import Moto, moto_server
from tests.lab.waiting import LONG, until

TINY = {
    "dataset.record_length_bytes": 4096,
    "dataset.record_length_bytes_stdev": 512,
    "reader.data_loader": "threads",
    "reader.read_threads": 1,
    "reader.prefetch_size": 1,
    "train.computation_time": 0.02,
    "metric.au": 1e-4,
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
    # On a busy host the readers of the probe may come late: without a piece there is no rate.
    monkeypatch.setattr("dlemu.storage.probe._LAST_READS_SECONDS", LONG)


def test_few_files_have_the_mean_of_the_workload(tmp_path: Path) -> None:
    """Of any seed 20 volumes are 10 % off."""
    files = _planned(tmp_path, load_workload("unet3d_h100"), 20)
    sizes = files.layout.sizes(np.arange(20))
    assert sizes.mean() == pytest.approx(files.layout.mean_bytes, rel=0.03)


def tiny(name: str = "cosmoflow_h100", **keys: object) -> Workload:
    return load_workload(name, {**TINY, **{k.replace("__", "."): v for k, v in keys.items()}})


def trial(drive: Path, out: Path, *workloads: Workload, **more: Any) -> Trial:
    values: dict[str, Any] = {
        "seconds": 10,
        "max_bytes": 1 << 20,
        "output": {"folder": str(out)},
    } | more
    return Trial(folder=drive, jobs=workloads or (tiny(),), **values)


@pytest.mark.parametrize("key", ["workload", "workloads"])
def test_a_workload_is_named_as_other_commands_have_it(drive: Path, key: str) -> None:
    path = Path(__file__).parents[2] / "examples" / "speech.yaml"
    asked = trial_of(parse([str(drive), f"{key}={path}", "seconds=10"]))
    assert asked.workloads == (str(path),)
    assert [job.name for job in asked.jobs] == ["speech"] and asked.seconds == 10


def tried(
    drive: Path, out: Path, *workloads: Workload, say: Callable[[str], None] = silent, **more: Any
) -> list[Sized]:
    return try_storage(trial(drive, out, *workloads, **more), say)


def left(drive: Path) -> set[str]:
    return {path.name for path in drive.iterdir()} - {"lost+found"}


def test_its_folder_is_a_result_as_any_other(
    drive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [f"{key}={value}" for key, value in TINY.items()]
    words = ["workloads=unet3d_h100,cosmoflow_h100", "seconds=10", "max_bytes=1MiB"]
    out, rows = tmp_path / "out", tmp_path / "rows.csv"
    options = ["--json", f"--csv={rows}", "--label=first", f"output.folder={out}"]
    assert run_command(["try", str(drive), *words, *options, *keys, "reader.batch_size=1"]) == 0

    assert left(drive) == set()
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert [line[:3] for line in printed.err.splitlines() if line[1:3] == "/2"] == ["1/2", "2/2"]
    stored = json.loads((out / "sizing.json").read_text())
    assert document.pop("folder") == str(out)
    assert document == {name: stored[name] for name in document}
    for told in document["answers"]:
        assert (told["num_accelerators"], told["at_least"]) == (3, True)
        assert (told["low"], told["high"], told["first"]["written"]) == (3, None, True)
    # The runs read the few files again and again: 12 steps for 3 accelerators take more samples.
    assert (out / "runs" / f"{drive.name}.cosmoflow_h100.01.n3" / "summary.json").is_file()
    row, _ = csv.DictReader(rows.open())
    assert (row["num_accelerators"], row["label"], row["first"]) == ("3", "first", "true")
    assert "cosmoflow_h100" in (out / "table.md").read_text()
    assert "a first answer, not by the benchmark's rule" in (out / "table.md").read_text()
    assert run_command(["report", str(out)]) == 0
    assert capsys.readouterr().out == render_text(present_sizing(document)) + "\n"
    assert run_command(["compare", str(out), str(out)]) == 0


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Moto]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    with moto_server() as server:
        urlopen(Request(f"{server.url}/training", method="PUT")).close()
        yield server


def test_a_bucket_is_tried_as_a_folder_is(bucket: Moto, tmp_path: Path, printed: Printed) -> None:
    own, where = tmp_path / "out", "s3://training/some/where"
    keys = [f"{key}={value}" for key, value in TINY.items()]
    keys += [f"storage.endpoint_url={bucket.url}", "reader.batch_size=1"]
    words = ["workloads=cosmoflow_h100", "seconds=10", "max_bytes=64KiB", f"output.folder={own}"]
    printed("try", where, *words, *keys, "keep=true")
    place = place_of(path_of(where), access_of(StorageSection(endpoint_url=(bucket.url,))))
    assert any("dlemu-try/cosmoflow_h100/train/" in name for name, _ in place.list(""))

    (own / "sizing.json").unlink()
    said = printed("try", f"{where}/", *words, *keys)
    assert "there already" in said and not list(place.list("")), "what was kept is read, then goes"
    (told,) = json.loads((own / "sizing.json").read_text())["answers"]
    assert (told["num_accelerators"], told["first"]["written"]) == (3, False)
    assert "small objects were read again and again" in said and "O_DIRECT" not in said
    assert "the drive" not in said, "its server's are not known"
    for command in told["first"]["commands"]:
        assert "storage.endpoint_url=" in command
        assert f"dataset.data_folder={where}/cosmoflow_h100 " in f"{command} "
    assert printed("report", own)

    place.put("dlemu-try/notes.txt", [b"mine"])
    said = printed("try", where, *words, *keys, status=1)
    assert f"folder {where}/dlemu-try holds notes.txt, which dlemu has not written" in said
    assert [name for name, _ in place.list("")] == ["dlemu-try/notes.txt"]


def test_what_is_not_installed_is_said(
    drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(job: Workload, world: object) -> None:
        if job.reader.data_loader == "pytorch":
            raise WorkloadError("torch is missing")

    monkeypatch.setattr("dlemu.sizing.first.check_job", check)
    said: list[str] = []
    job = tiny(reader__data_loader="pytorch")
    (found,) = try_storage(trial(drive, tmp_path, job), said.append)
    assert f"{job.name}: torch is missing; here threads read, which take less CPU time" in said
    assert remark("other_loader", reads="threads", asked="pytorch") in found.findings


def test_what_a_dataloader_makes_is_told_beside_the_answer(
    drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is asked for, though its workload be read by threads; of the answer's number."""
    monkeypatch.setattr("dlemu.sizing.first.workers_of", makes := Mock(return_value={}))
    makes.return_value = {"samples_per_second": 1900.0, "read_threads": 4, "accelerators": 3}
    makes.return_value |= {"au_percentage": 61.0, "enough": 8, "cpus": 8}
    job = tiny()
    (found,) = tried(drive, tmp_path / "out", job)
    assert makes.call_args.args == (job, 3)
    assert makes.call_args.kwargs == {"timed": False}, "too little time is left"
    text = render_text(present_sizing(document_of([found], drive)))
    assert "cosmoflow_h100: each of 3 PyTorch DataLoaders on this host makes at most 1,900" in text
    makes.return_value = {}
    (none,) = tried(drive, tmp_path / "none", job)
    assert "DataLoader" not in render_text(present_sizing(document_of([none], drive)))


def test_one_next_command_is_of_a_workload_that_the_storage_limits() -> None:
    def answer(name: str, number: int, *commands: str, at_least: bool = False) -> dict[str, Any]:
        first = {"commands": commands, "full": f"of {name}"}
        told = {"workload": name, "num_accelerators": number, "at_least": at_least}
        return {**told, "first": first}

    def last(*answers: dict[str, Any]) -> list[str]:
        return render_text(list(next_of(answers))).splitlines()

    none, host = answer("a", 0, "dlemu a"), answer("b", 4, "dlemu b", at_least=True)
    drive = answer("c", 2, "dlemu c", "dlemu d")
    assert last(none, host, drive) == ["next: the full measurement of c of c", "dlemu c && dlemu d"]
    assert last(host, none) == ["next: the full measurement of b of b", "dlemu b"]
    assert last(answer("d", 1)) == ["the full measurement of d of d"], "there is no room for it"


def test_the_printed_commands_run_as_they_stand(drive: Path, tmp_path: Path) -> None:
    found = tried(drive, tmp_path / "1")

    full = found[0].first
    assert full is not None
    assert full.full.startswith("writes ")
    assert full.full.endswith("(quick: the dataset of the benchmark's rule has no room here)")
    datagen, size = full.commands
    shown = render_text(present_sizing(document_of(found, drive)))
    assert shown.splitlines()[-1] == f"{datagen} && {size}"
    assert run_command(shlex.split(datagen)[1:]) == 0
    # All but the search itself, which would take a while.
    assert run_command([*shlex.split(size)[1:], "--cfg", "job"]) == 0
    for line in (datagen, size):
        assert f"dataset.data_folder={drive}/cosmoflow_h100" in line
    # The dataset that it has written is read by the next try, stays, and is enough.
    again = tried(drive, tmp_path / "2")
    assert left(drive) == {"cosmoflow_h100"}
    now = again[0].first
    assert now is not None and not now.written and now.commands == (size,)
    assert now.full.startswith("measures for about ")


def test_kept_files_are_read_by_the_next(drive: Path, tmp_path: Path) -> None:
    said: list[str] = []
    (one,) = tried(drive, tmp_path / "1", keep=True, say=said.append)
    assert one.first and one.first.written
    assert any("writing " in line for line in said), said
    said.clear()
    assert left(drive) == {"dlemu-try"}
    (drive / "dlemu-try" / "foreign").write_text("not ours")

    (two,) = tried(drive, tmp_path / "2", say=said.append)

    assert two.first and not two.first.written
    assert any(", there already" in line for line in said)
    assert (drive / "dlemu-try" / "foreign").read_text() == "not ours"
    assert not list((drive / "dlemu-try").rglob("img_*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_during_a_run_leaves_nothing_or_what_the_next_removes(
    number: signal.Signals, drive: Path, tmp_path: Path
) -> None:
    keys = [f"{key}={value}" for key, value in TINY.items()]
    words = ["workloads=cosmoflow_h100", "max_bytes=1MiB", f"output.folder={tmp_path / 'out'}"]
    child = warm.Popen(
        [*warm.COMMAND, "try", str(drive), *words, *keys, "train.computation_time=1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    until(lambda: list((tmp_path / "out").glob("runs/*/summary.json")), "the first run", by=child)
    assert left(drive) == {"dlemu-try"}
    os.killpg(child.pid, number)

    status = child.wait()
    if number == signal.SIGKILL:
        assert left(drive) == {"dlemu-try"}
        tried(drive, tmp_path / "next")
    else:
        assert status == 130
    assert left(drive) == set()


def test_what_cannot_be_removed_is_told_of(
    drive: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with scratch_folder(place_of(drive), keep=False) as own:
        monkeypatch.setattr("os.unlink", Mock(side_effect=OSError))
        act, late = ending._last_acts[-1]
        act(KeyboardInterrupt())
        monkeypatch.undo()
        late()
    told = (
        f"dlemu: files are left in {own.path}; the same command uses or removes them, or "
        f"rm -r {own.path}\n"
    )
    assert capsys.readouterr().err == 2 * told


LEFT: dict[str, Callable[[Path], object]] = {
    "no list of files": lambda data: (data / "dlemu.files.npy").unlink(),
    "no manifest": lambda data: (data / "dlemu.json").unlink(),
    "a file less": lambda data: next(data.glob("train/img_*")).unlink(),
    "a file cut": lambda data: os.truncate(next(data.glob("train/img_*")), 100),
    "samples alone": lambda data: list(map(Path.unlink, data.glob("dlemu*"))),
    "of another workload": lambda data: data.rename(data.with_name("unet3d_h100")),
}
"""What a removal that was cut short may leave of a try's files."""


@pytest.mark.parametrize("harm", LEFT.values(), ids=LEFT)
def test_what_a_stopped_removal_has_left_does_not_stop_the_next(
    harm: Callable[[Path], object], drive: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    tried(drive, tmp_path / "1", keep=True)
    harm(drive / "dlemu-try" / "cosmoflow_h100")
    (one,) = tried(drive, tmp_path / "2", say=said.append)
    assert one.num_accelerators == 3 and one.first and one.first.written
    assert any("is left of a command that was stopped, and is removed" in line for line in said)
    assert left(drive) == set()


@pytest.mark.parametrize(
    ("free", "files", "told"),
    [  # for 8 accelerators, and 5 epochs of 4; 1 epoch of twice the files; those of one epoch
        (28 * 10**9, "28000", "writes 26.1 GiB in about 28 s, then measures for about 3:29:42"),
        (20 * 10**9, "5600", "writes 5.2 GiB in about 5.6 s, then measures for about 8:43 (quick"),
        (10**9, "", "needs 2.6 GiB even for a quick search; 953.7 MiB are free"),
    ],
)
def test_the_full_measurement_is_what_has_room(
    free: int, files: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"host_memory": "1GiB", "dataset.record_length_bytes": 1e6}
    job = load_workload("unet3d_h100", keys | {"dataset.record_length_bytes_stdev": 0})
    planned = _planned(tmp_path / "dlemu-try", job, 20)
    monkeypatch.setattr(Folder, "room", lambda self: (0, free))
    place = place_of(tmp_path)
    found, commands = full_measurement(place, planned, 4, 6, feeds=4.2, write_rate=1e9)
    assert found.startswith(told) and len(commands) == (2 if files else 0)
    assert all(f"dataset.num_files_train={files}" in line for line in commands[:1])
    assert all(("size.quick=true" in line) == ("(quick" in told) for line in commands[1:])


def test_no_room_is_said_in_one_line(drive: Path, tmp_path: Path) -> None:
    with pytest.raises(DlemuError) as refused:
        tried(drive, tmp_path, max_bytes=4096)

    said = str(refused.value)
    assert "may write 4.0 KiB to " in said and " free; 8.0 KiB are needed: raise max_b" in said
    assert "\n" not in str(refused.value) and left(drive) == set()
    with pytest.raises(DatasetError, match=r"^/dev/shm lies in memory, where no drive is read"):
        try_storage(trial(Path("/dev/shm"), tmp_path), pytest.fail)
