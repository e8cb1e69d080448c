"""Storage that stops to answer ends a command in time, in every phase; so does the first Ctrl-C."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab import warm
from tests.lab.bench import Run, small, start
from tests.lab.slow_files import slow_files
from tests.lab.waiting import LONG, until


def file_name(number: int) -> str:
    return f"img_{number:02d}_of_24.npz"


PHASES = {
    "the manifest": ("dlemu.json", "open", (), "while looking at the dataset in "),
    "the survey": ("train", "list", (), "while looking at the dataset in "),
    "a surveyed file": (file_name(12), "open", (), "while looking at the dataset in "),
    "the loader": (file_name(0), "open", ("reader.odirect=auto",), "while opening the loader"),
    "the cold start": (
        file_name(7),
        "open",
        ("runs=2",),
        "while dropping the dataset from the page cache",
    ),
    "the sample": (file_name(7), "open", ("output.drop_caches=false",), "the data folder and its"),
    "a first read": (  # of another file than the one whose page shows what the kernel tells
        file_name(1),
        "read",
        ("output.drop_caches=false",),
        "while replaying epoch 1",
    ),
}
"""What never answers, on what, the keys that lead there, and what names the phase."""


def at(log: Path, name: str) -> None:
    """Return once somebody waits for this file or folder."""
    until(lambda: log.exists() and f" {name} hangs\n" in log.read_text(), f"a hang at {name}")


@contextlib.contextmanager
def hanging(workload: Path, stalls: str, on: str, *words: str, num_ranks: int = 1) -> Iterator[Run]:
    """Yield a run that waits for a file or folder; nothing of it outlives the `with`."""
    log = workload.with_name("log")
    with (
        slow_files(workload.with_name("data"), seconds=0, stalls=stalls, on=on, log=log) as point,
        start(workload, f"dataset.data_folder={point}", *words, num_ranks=num_ranks) as run,
    ):
        at(log, stalls)
        yield run
        assert "Traceback" not in run.told()
        until(lambda: not run.alive(), "the end of all processes")


@contextlib.contextmanager
def in_phase(folder: Path, phase: str) -> Iterator[Run]:
    """Yield a run that hangs in a phase."""
    name, on, keys, _ = PHASES[phase]
    workload = small(folder)
    if "survey" in phase:
        (folder / "data" / "dlemu.json").unlink()
    with hanging(workload, name, on, *keys) as run:
        yield run


@pytest.mark.parametrize("phase", PHASES)
def test_the_watchdog_ends_a_phase_that_makes_no_progress(
    tmp_path: Path, phase: str, time_flies: Callable[[], object]
) -> None:
    name, _, _, words = PHASES[phase]
    with in_phase(tmp_path, phase) as run:
        time_flies()
        assert run.end(LONG) == 1, run.told()
        (line,) = (line for line in run.errors if line.startswith("dlemu: "))
        assert line.startswith("dlemu: rank 0 on host ")
        assert "no progress for " in line and "(output.stall_seconds)" in line and words in line
        if name != "dlemu.json" and phase != "the loader":  # others have one file to be at
            assert name in line
        if "looking at the dataset" not in words:
            assert run.summary["status"] == "failed" and run.summary["error"] in line


@pytest.mark.parametrize("phase", ["the manifest", "the loader", "the cold start", "a first read"])
def test_the_first_ctrl_c_ends_a_phase_that_hangs(tmp_path: Path, phase: str) -> None:
    with in_phase(tmp_path, phase) as run:
        os.killpg(run.process.pid, signal.SIGINT)
        assert run.end(LONG) == 130, run.told()
        assert run.errors == ["dlemu: interrupted\n"], run.told()
        if phase != "the manifest":
            assert run.summary["status"] == "incomplete"
            assert run.summary["error"] == "interrupted"


@pytest.mark.mpi
def test_ctrl_c_ends_ranks_that_hang(tmp_path: Path) -> None:
    with hanging(small(tmp_path), file_name(7), "open", num_ranks=2) as run:
        run.process.send_signal(signal.SIGINT)
        assert run.end(LONG) != 0


def test_a_probe_that_gets_no_answer_comes_to_an_end(tmp_path: Path) -> None:
    """Reads that the probe alone makes never return: it is given up, the run is not."""
    workload = small(
        tmp_path, reader__read_threads=1, reader__preprocess_time=0.02, reader__preprocess="sleep"
    )
    # One step, so that the epoch reads few files; the sample of files has all.
    with (
        slow_files(tmp_path / "data", seconds=0, stalls=file_name(20), on="read") as point,
        start(
            workload,
            f"dataset.data_folder={point}",
            "train.total_training_steps=3",
            "reader.file_shuffle=off",
            "reader.prefetch_size=1",
        ) as run,
    ):
        run.completes()


COMMANDS = {
    "datagen": ("dlemu.json", "open", ["datagen"]),
    "report": ("summary.json", "open", ["report"]),
    "verify's listing": ("train", "list", ["verify"]),
    "verify --full": (file_name(3), "read", ["verify", "--full"]),
    "size": ("dlemu.json", "open", ["size", "size.quick=true"]),
    "calibrate": ("dlemu.json", "open", ["calibrate"]),
}


@contextlib.contextmanager
def command(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command; kill what is left of it in the end."""
    process: subprocess.Popen[str] = warm.Popen(
        [*warm.COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_first_ctrl_c_ends_every_command(tmp_path: Path, name: str) -> None:
    stalls, on, words = COMMANDS[name]
    workload = small(tmp_path)
    (tmp_path / "data" / "summary.json").write_text("{}")
    log = tmp_path / "log"
    with slow_files(tmp_path / "data", seconds=0, stalls=stalls, on=on, log=log) as point:
        keys = [f"workload={workload}", f"dataset.data_folder={point}"]
        with command(tmp_path, *words, *(keys if name != "report" else [str(point)])) as process:
            at(log, stalls)
            os.killpg(process.pid, signal.SIGINT)
            out, errors = process.communicate(timeout=LONG)
            assert (process.returncode, errors) == (130, "dlemu: interrupted\n"), out + errors


def test_the_first_ctrl_c_ends_paths_and_its_files_go(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with command(tmp_path, "paths", "target", "seconds=60", "file_size=1GiB") as process:
        until(lambda: list(target.glob("dlemu_paths.[0-9]")), "its files", by=process)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=LONG)
    assert (process.returncode, errors) == (130, "dlemu: interrupted\n")
    assert not list(target.iterdir())


def test_a_fifo_in_a_files_place_ends_a_run_at_once(tmp_path: Path) -> None:
    workload = small(tmp_path)
    path = tmp_path / "data" / "train" / file_name(5)
    path.unlink()
    os.mkfifo(path)
    for keys in ((), ("output.drop_caches=false",)):
        with start(workload, *keys) as run:
            assert run.end(LONG) == 1
            assert run.errors == [f"dlemu: {path} is a FIFO, not a file\n"]
