"""The main job as users run it: generate, verify, replay, report; on one rank and on several."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest

from dlemu.cli.main import run
from dlemu.config.model import Workload
from dlemu.dataset.layout import layout_of
from dlemu.dataset.plan import make_plan
from dlemu.judge.records import read_config, read_steps
from tests.lab import warm
from tests.lab.commands import QUICK, Printed, execute, generate, summary_of, with_checkout
from tests.lab.mpirun import mpirun
from tests.lab.waiting import LONG

DATA = Path(__file__).parents[1] / "data"
BY_FOUR = ["dataset.num_samples_per_file=4", "dataset.num_files_train=14"]


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        ("threads", ["dataset.format=hdf5", *BY_FOUR]),
        ("pytorch", ["dataset.format=tfrecord", *BY_FOUR]),
    ],
)
def test_generated_replayed_and_shown_again(
    loader: str, words: list[str], tmp_path: Path, printed: Printed
) -> None:
    words = [*QUICK, "dataset.record_length_bytes_stdev=0", *words]
    words += [f"dataset.data_folder={tmp_path / 'data'}", f"output.folder={tmp_path / 'run'}"]
    words += [f"reader.data_loader={loader}", "reader.read_threads=2"]
    printed("datagen", *words)
    printed("verify", "--full", *words)
    text = printed("run", *words)
    report = text[text.index("\n\n") + 2 :]
    lines = report.splitlines()
    assert lines[0].startswith("PASS: AU ") and lines[2].startswith("limit: ")
    assert lines[1] == "unet3d_h100: 1 emulated accelerator, 2 epochs of 8 steps, batches of 7"
    assert lines[-1] == f"results: {tmp_path / 'run'}" and len(lines) < 30
    names = {"summary.json", "steps.0.npy", "config.yaml", "host.0.jsonl", "series.csv"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == names
    assert printed("report", tmp_path / "run") == report, "the same, to the byte"
    steps, summary = read_steps(tmp_path / "run"), summary_of(tmp_path / "run")
    assert steps["num_samples"].sum() == 2 * 56
    assert summary["measured"]["read_bytes"] == steps["num_bytes"].sum() >= 2 * 56 * 20_000
    assert summary["status"] == "complete"
    assert summary["metric"]["train_au_meet_expectation"] == "success"


def test_an_au_under_the_threshold_exits_with_2(data: str, tmp_path: Path) -> None:
    words = ["reader.preprocess_time=0.005", "reader.preprocess=sleep", "metric.au=0.9"]
    words += ["reader.read_threads=1", f"output.folder={tmp_path}"]
    assert run(["run", *QUICK, data, *words]) == 2
    assert run(["report", str(tmp_path)]) == 2, "the same verdict, the same status"
    assert run(["report", str(tmp_path), "metric.au=0.0001"]) == 0


def test_the_peers_file_generates_runs_and_says_once_what_it_ignores(
    tmp_path: Path, printed: Printed
) -> None:
    """DLIO's own keys: folders, shapes, a distribution of times, generate_data, storage_root."""
    words = [f"storage.storage_root={tmp_path}", f"output.folder={tmp_path / 'run'}"]
    words += ["reader.multiprocessing_context=fork", "metric.au=1e-4", "metric.max_cached_share=1"]
    words.append("train.computation_time={type:uniform,min:0.001,max:0.003}")
    text = printed("run", f"workload={DATA / 'dlio_hdf5.yaml'}", *words)
    assert text.startswith("ignored: dataset.chunk_size, ")
    assert text.count("ignored:") == 1 and "evaluation.eval_time" in text.splitlines()[0]
    names = sorted(path.name for path in (tmp_path / "data" / "volumes" / "train").glob("*/*"))
    assert names[0] == "volume_00_of_64.hdf5" and len(names) == 64
    times = read_steps(tmp_path / "run")["computation_time"]
    assert 0.001 <= times.min() < times.max() <= 0.003
    assert len(np.unique(times)) == len(times), "drawn anew for every step"
    assert "ignored:" not in printed("report", tmp_path / "run")


def test_a_dataset_of_others_is_read_by_the_names_and_sizes_it_has(
    tmp_path: Path, printed: Printed
) -> None:
    """12 files as DLIO has them, but with another prefix, padding, folders."""
    for number in range(12):
        path = tmp_path / "data" / "train" / str(number % 2) / f"case_{number:05d}_of_12.hdf5"
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(path, "w", libver="latest") as file:
            file["records_0"] = np.full((1, 60 + number, 60 + number), number, np.uint8)
            file["labels"] = np.zeros(1, np.int64)
    words = [*QUICK, f"dataset.data_folder={tmp_path / 'data'}", f"output.folder={tmp_path / 'r'}"]
    words += ["dataset.format=hdf5", "dataset.num_files_train=12", "reader.batch_size=3"]
    words += ["dataset.record_length_bytes=4300", "dataset.record_length_bytes_stdev=0"]
    note = f"note: no manifest in {tmp_path / 'data'}: 12 hdf5 files were found"
    assert note in printed("run", *words)
    steps = read_steps(tmp_path / "r")
    assert steps["num_bytes"].sum() >= 2 * sum((60 + number) ** 2 for number in range(12))
    assert steps["num_samples"].sum() == 24


# --- several ranks --------------------------------------------------------------------------------


@pytest.mark.mpi
def test_ranks_make_one_run(data: str, tmp_path: Path) -> None:
    """Of three ranks, one has no accelerator."""
    words = [*QUICK, data, "reader.batch_size=3", "output.folder=run", "num_accelerators=2"]
    words += ["metric.au=1", "reader.preprocess_time=0.01", "reader.preprocess=sleep"]
    done = execute(mpirun(3, "--bind-to", "none", *warm.command(), "run", *words), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    verdicts = re.findall(r"^(PASS|FAIL): ", done.stdout, re.MULTILINE)
    assert verdicts == ["FAIL"], "rank 0 alone speaks"
    assert done.stdout.count("results: run") == 1 and done.stdout.endswith("\nresults: run\n")
    assert "Traceback" not in done.stderr
    assert len(list((tmp_path / "run").glob("steps.*.npy"))) == 3
    assert summary_of(tmp_path / "run")["num_accelerators"] == 2
    steps = read_steps(tmp_path / "run")
    assert len(steps) == 2 * (56 // 6) * 2, "as many steps on every accelerator"
    assert set(steps["accelerator"].tolist()) == {0, 1}


def on_ranks(*words: str, cwd: Path) -> tuple[int, list[str]]:
    """Return the exit status of two ranks and what they leave on the terminal, line by line."""
    command = mpirun(2, *warm.command(), *words)
    out, environment = subprocess.STDOUT, with_checkout()
    done = subprocess.run(
        command, stdout=-1, stderr=out, text=True, cwd=cwd, env=environment, timeout=LONG
    )
    return done.returncode, [line for line in done.stdout.splitlines() if line]


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("command", "line"),
    [
        # Found by the plan, which every rank makes.
        ("run reader.batch_size=15", "56 samples are too few for 2 steps: a step of 2 accelera"),
        ("try .", "this command measures from one process, and 2 ranks were started: start it"),
    ],
)
def test_what_all_ranks_find_wrong_one_says(
    command: str, line: str, data: str, tmp_path: Path
) -> None:
    name, word = command.split()
    status, lines = on_ranks(name, *([*QUICK, data] if name == "run" else []), word, cwd=tmp_path)
    (ours,) = (text for text in lines if "dlemu" in text)
    assert status == 1 and ours.startswith(f"dlemu: {line}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.mpi
def test_the_line_that_says_how_a_command_ended_is_the_last(tmp_path: Path) -> None:
    data = generate(tmp_path)
    path = sorted((tmp_path / "data" / "train").iterdir())[20]  # of rank 1
    os.truncate(path, 1000)
    words = [*QUICK, data, "reader.file_shuffle=off", "output.folder=run"]
    status, lines = on_ranks("run", *words, cwd=tmp_path)
    assert status == 1 and sum(line.startswith("dlemu: ") for line in lines) == 1
    assert lines[-1].startswith("dlemu: rank 1 on host ") and str(path) in lines[-1]


def opened(trace: Path) -> set[str]:
    """Return the names of dataset files that processes opened, by strace's account."""
    found = set()
    for path in trace.parent.glob(f"{trace.name}*"):
        calls = re.findall(r'openat\([^"]*"([^"]+)".* = \d+$', path.read_text(), re.MULTILINE)
        found |= {Path(name).name for name in calls if "/train/" in name}
    return found


def planned(workload: Workload, accelerator: int, epoch: int) -> set[str]:
    """Return the names of the files that the plan gives to one of two accelerators."""
    layout = layout_of(workload)
    plan = make_plan(workload, layout, num_accelerators=2, epoch=epoch)
    samples = np.concatenate([plan.fetch(step, accelerator) for step in range(plan.num_steps)])
    return {Path(layout.path(int(file))).name for file in layout.file_of(samples)}


@pytest.mark.mpi
def test_two_ranks_open_disjoint_files_and_together_the_plans(data: str, tmp_path: Path) -> None:
    """What each rank opened, as the kernel saw it, against the plan."""
    if shutil.which("strace") is None:
        pytest.skip("no strace; apt-get install strace")
    # Caches are left as they are: dropping them opens every file as well.
    words = [data, "train.epochs=1", "output.drop_caches=false", "output.folder=run"]
    words += ["reader.read_threads=2", "metric.au=0.0001"]
    script = tmp_path / "traced.sh"
    script.write_text(
        f"exec strace -ff -qq --seccomp-bpf -e trace=openat"
        f" -o {tmp_path}/trace.$OMPI_COMM_WORLD_RANK"
        f" {shlex.join([*warm.command(), 'run', *QUICK, *words])}\n"
    )
    done = execute(mpirun(2, "--bind-to", "none", "bash", str(script)), cwd=tmp_path)
    if "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    workload = read_config(tmp_path / "run", {})
    first, second = (opened(tmp_path / f"trace.{rank}") for rank in (0, 1))
    # Rank 0 also looks into the first file, and into some for the probe after the run.
    assert second == planned(workload, 1, 0)
    assert planned(workload, 0, 0) <= first
    assert len(planned(workload, 0, 0)) == len(second) == 28
    assert not planned(workload, 0, 0) & second
