"""Output folders: nobody else's, no run that is lost, none that is left empty."""

import fcntl
import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from dlemu.cli.main import run
from dlemu.config.model import Workload, load_workload
from dlemu.errors import RunError, WorkloadError
from dlemu.judge import folders
from dlemu.judge.folders import hold, hold_for_runs, make
from dlemu.judge.records import CONFIG, STEP, read_steps, read_summary, write_steps, write_summary
from dlemu.report.present import EXIT_STATUS
from dlemu.report.words import telling
from dlemu.run.gather import collect_files
from tests.lab.commands import QUICK, Printed, execute
from tests.lab.many_hosts import ManyHosts
from tests.lab.mpirun import mpirun
from tests.lab.stored import store_run, store_runs

ROOT = Path(__file__).parents[2]


def job(folder: Path) -> Workload:
    return load_workload("unet3d_h100", {"output.folder": str(folder)})


def attempt(folder: Path, status: str = "failed") -> None:
    """Leave in a folder what a run leaves that did not end."""
    folder.mkdir(parents=True, exist_ok=True)
    write_summary(folder, {"status": status, "error": "the disk is full"})
    (folder / CONFIG).touch()
    write_steps(folder, 0, np.zeros(2, STEP))
    (folder / "host.0.jsonl").touch()


def test_what_was_made_and_is_empty_is_removed(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    with make(tmp_path / "before"), make(tmp_path / "before" / "a" / "b") as folder:
        assert folder.is_dir()
    assert [path.name for path in tmp_path.rglob("*")] == ["before"]
    with make(tmp_path / "kept" / "a"), make(tmp_path / "kept" / "b") as folder:
        (folder / "result").touch()
    assert (tmp_path / "kept" / "b" / "result").exists() and not (tmp_path / "kept" / "a").exists()


def test_commands_of_one_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    now = SimpleNamespace(now=lambda: datetime(2026, 1, 2, 3, 4, 5))
    monkeypatch.setattr(folders, "datetime", now)
    with ExitStack() as stack:
        made = [stack.enter_context(hold(None, "job")) for _ in range(3)]
        names = ["20260102-030405", "20260102-030405-2", "20260102-030405-3"]
        assert made == [Path("outputs/job") / name for name in names]


def test_a_worker_that_lives_on_does_not_hold_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ended = context.Event()
    try:
        with hold(tmp_path, ""):
            worker = context.Process(target=ended.wait, daemon=True)
            worker.start()
        with hold(tmp_path, ""):
            pass
    finally:
        ended.set()
        worker.join()


@pytest.mark.parametrize("moment", ["open", "flock"])
@pytest.mark.parametrize("given", ["out/run", None])
def test_a_folder_that_vanishes_meanwhile_is_made_again(
    moment: str, given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that was refused removes the empty folders it made; another renames one."""
    monkeypatch.chdir(tmp_path)
    module = {"open": os, "flock": fcntl}[moment]
    call = getattr(module, moment)
    vanished: list[Path] = []

    def vanish(*words: object) -> object:
        if not vanished:
            (folder,) = [path for path in Path().glob("out*/**/*") if not any(path.iterdir())]
            vanished.append(folder)
            folder.rename("elsewhere")
        return call(*words)

    monkeypatch.setattr(module, moment, vanish)
    with hold(given, "job") as folder:
        assert vanished and folder.is_dir()
        with pytest.raises(WorkloadError, match="in use"), hold(folder, ""):
            pass


def test_a_run_that_did_not_end_is_kept_beside_and_links_lead_to_the_new_one(
    tmp_path: Path,
) -> None:
    folder, said = tmp_path / "disk" / "run", list[str]()
    for number, status in ((1, "failed"), (2, "incomplete")):
        attempt(folder, status)
        (tmp_path / str(number)).symlink_to(folder)
        before = sorted((path.name, path.read_bytes()) for path in folder.iterdir())
        with hold(folder, ""), pytest.raises(WorkloadError, match="in use"):
            hold_for_runs(job(folder), telling(said.append)).__enter__()
        with hold_for_runs(job(tmp_path / str(number)), telling(said.append)) as made:
            assert not any(made.iterdir()) and made.samefile(folder)
        kept = tmp_path / "disk" / f"run.attempt-{number}"
        assert sorted((path.name, path.read_bytes()) for path in kept.iterdir()) == before
        assert said[-1].endswith(f"holds a run that did not end; it is kept as {kept}")
    assert len(said) == 2


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda folder: attempt(folder, "complete"), "holds a run already; name another, or "),
        (lambda folder: write_summary(folder, {"epoch": 1}), "holds a run already; name another"),
        (
            lambda folder: (folder / "data").mkdir(),
            "holds a run that did not end, and other files (data); name another",
        ),
        (os.chdir, "holds a run that did not end, and is the working directory; name another"),
    ],
)
def test_what_is_no_failed_run_alone_is_never_moved(
    change: Callable[[Path], None], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    attempt(folder)
    change(folder)
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(WorkloadError) as error, hold_for_runs(job(folder), print):
        pass
    assert str(error.value).startswith(f"output.folder {folder} {line}")
    assert sorted(path.name for path in folder.iterdir()) == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_damaged_summary_is_never_moved(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{")
    with (
        pytest.raises(RunError, match=r"summary\.json is damaged"),
        hold_for_runs(job(tmp_path), print),
    ):
        pass
    assert (tmp_path / "summary.json").read_text() == "{"


@pytest.mark.mpi
def test_hosts_that_share_no_folder_have_one_report(data: str, tmp_path: Path) -> None:
    name = "host.2.jsonl"  # the first rank on host b
    here, there = tmp_path / "a" / "run", tmp_path / "b" / "run"
    there.mkdir(parents=True)
    (there / name).touch()  # of an earlier run
    # Long enough for a plot.
    times = ["train.computation_time=0.2", "train.epochs=3", "num_accelerators=3"]
    words = [*QUICK[1:], data, *times, "output.folder=run"]
    keys = {key: yaml.safe_load(value) for key, value in (word.split("=", 1) for word in words)}
    rank = ["tests.lab.ranks", str(tmp_path), "a,a,b", "run", json.dumps(keys)]
    done = execute(mpirun(3, sys.executable, "-m", *rank), cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    names = "config.yaml host.0.jsonl series.csv steps.0.npy steps.1.npy steps.2.npy summary.json"
    assert sorted(path.name for path in here.iterdir()) == sorted([*names.split(), name])
    assert (here / name).read_bytes() == (there / name).read_bytes() != b""
    assert set(read_steps(here)["accelerator"].tolist()) == {0, 1, 2}
    assert (tmp_path / "b" / "run.attempt-1" / name).read_bytes() == b""
    page = tmp_path / "page.html"
    assert run(["report", str(here), "--html", str(page)]) in EXIT_STATUS.values()
    assert "CPUs over time, host of rank 2" in page.read_text()


def test_a_shared_folder_is_written_once(tmp_path: Path) -> None:
    """Two hosts, one folder: rank 0 leaves alone what the others have written."""
    for rank in range(2):
        write_steps(tmp_path, rank, np.zeros(2, STEP))
        (tmp_path / f"host.{rank}.jsonl").touch()
    before = {path: path.stat().st_ino for path in tmp_path.iterdir()}
    ManyHosts(2).run(lambda world: collect_files(world, tmp_path))
    assert {path: path.stat().st_ino for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"status": "incomplete"}, "not ended after 1 of 2 epochs; what limited"),
        ({"status": "incomplete", "error": "interrupted"}, "interrupted after 1 of 2 epochs; what"),
        ({"status": "failed", "error": "X"}, "failed after 1 of 2 epochs: X; what limited"),
    ],
)
def test_only_epochs_that_all_ranks_have_ended_count(
    keys: dict[str, str], line: str, tmp_path: Path, printed: Printed
) -> None:
    folder = tmp_path / "run"
    store_run(folder, wait=0.1)
    steps = np.load(folder / "steps.0.npy")
    write_steps(folder, 0, steps[steps["accelerator"] < 2])
    write_steps(folder, 1, steps[(steps["accelerator"] >= 2) & (steps["epoch"] == 0)])
    unknown: dict[str, object] = {"metric": {}, "measured": {}, "limit": None}
    write_summary(folder, read_summary(folder) | unknown | keys)
    out = printed("report", folder, status=1)
    (verdict,) = [text for text in out.splitlines() if text.startswith("NO VERDICT")]
    assert verdict.startswith(f"NO VERDICT: {line}")
    assert "4 emulated accelerators, 1 epoch of" in out


def test_of_several_runs_those_that_ended_are_shown(tmp_path: Path, printed: Printed) -> None:
    out = tmp_path / "out"
    store_runs(out)
    summary = read_summary(out)
    cut = {key: summary[key] for key in ("kind", "label", "division", "workload", "start")}
    cut |= {"status": "incomplete", "error": "interrupted"}
    write_summary(out, cut | {"runs": summary["runs"][:3]})
    lines = printed("report", out, status=1).splitlines()
    assert lines[0] == "NO VERDICT: interrupted after 2 of 3 runs"
    assert f"run.3 did not end: dlemu report {out}/run.3" in lines
    assert [line for line in lines if line.startswith("run.2 ")]
    write_summary(out, cut | {"runs": []})
    names = " ".join(f"{out}/{name}" for name in ("run.1", "run.2", "run.3", "warmup.1"))
    assert printed("report", out, status=1) == (
        f"dlemu: {out}: no verdict (incomplete), no whole run that counts: interrupted; "
        f"dlemu report {names} shows what is there\n"
    )
