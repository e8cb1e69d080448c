"""A run that cannot go on says why in one line, and leaves nothing behind.

Each fault is a real one, in a whole `dlemu run`, alone or on two ranks.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.bench import Run, folder_on_disk, small, start
from tests.lab.drives import mounted
from tests.lab.slow_files import slow_files
from tests.lab.waiting import until

_LONG = {"train__computation_time": 0.05, "train__epochs": 100}
"""A run that ends by itself only when no test waits any more."""
ANY = -1
"""Any exit status but 0: mpirun's own, for a rank that a signal ended."""
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


def fails(run: Run, *words: str, status: int = 1, summary: str | None = "failed") -> None:
    """Check that a run ends by itself, as it should, and says these words in its one line.

    `summary` has the states that its summary may have.
    """
    ended = run.end()
    said = [line for line in run.errors if line.startswith("dlemu: ")]
    assert ended and status in (ended, ANY), run.told()
    assert len(said) == 1, run.told()
    for word in words:
        assert word in said[0], said[0]
    assert "Traceback" not in run.told()
    assert not re.search(r"^(PASS|FAIL|limit):", "".join(run.out), re.MULTILINE), run.told()
    if summary is not None:
        written = run.summary
        assert written["status"] in summary
        assert written["metric"] == {} and written["limit"] is None
        if written["status"] == "failed":
            assert written["error"] in said[0], written["error"]
    leaves_nothing(run)


def leaves_nothing(run: Run) -> None:
    """Check that no process is left, and nothing of it in /dev/shm."""
    until(lambda: not run.alive(), "the end of all processes")
    assert run.shared is not None
    assert os.listdir(run.shared) == []


def a_file(folder: Path, number: int = 10) -> Path:
    return sorted((folder / "data" / "train").iterdir())[number]


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("loader", "format", "damage", "word"),
    [("threads", "npz", Path.unlink, "missing"), ("pytorch", "hdf5", cut, "bytes")],
)
def test_a_damaged_file_is_named(
    tmp_path: Path, loader: str, format: str, damage: Callable[[Path], None], word: str
) -> None:
    workload = small(tmp_path, dataset__format=format, reader__data_loader=loader)
    path = a_file(tmp_path)
    damage(path)
    with start(workload, own_shared=True) as run:
        fails(run, str(path), word)


@pytest.mark.root
def test_an_unreadable_file_is_named() -> None:
    # `make coverage` would have this user write to a folder that is not his.
    uncounted = ("env", "-u", "COVERAGE_PROCESS_CONFIG")
    nobody = (*uncounted, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    if subprocess.run([*nobody, sys.executable, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"nobody else can start {sys.executable}: it, or its library, is root's alone")
    with folder_on_disk() as folder:  # nobody else comes to the others
        workload = small(folder)
        path = a_file(folder)
        path.chmod(0)
        os.chown(folder, 65534, 65534)
        with start(workload, before=nobody, own_shared=True) as run:
            fails(run, str(path), "Permission denied")


def another(path: Path) -> None:
    """Put an equal file in its place, as `mv` does."""
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.replace(path)


OF_MANY = {"dataset__num_files_train": 2, "dataset__num_samples_per_file": 30}


@pytest.mark.parametrize(
    ("loader", "keys", "replace", "word"),
    [
        ("pytorch", {"dataset__format": "npz"}, cut, "bytes"),
        ("threads", {"dataset__format": "tfrecord", **OF_MANY}, another, "replaced"),
    ],
)
def test_a_file_replaced_during_the_run_is_named(
    tmp_path: Path, loader: str, keys: dict[str, object], replace: Callable[[Path], None], word: str
) -> None:
    workload = small(tmp_path, reader__data_loader=loader, **(keys | _LONG))
    with start(workload, own_shared=True) as run:
        run.wait_for("epoch 1 of 100")
        path = a_file(tmp_path, 0)
        replace(path)
        fails(run, str(path), word)


@pytest.mark.mpi
def test_a_rank_that_fails_ends_one_that_is_stuck(tmp_path: Path) -> None:
    workload = small(tmp_path, reader__data_loader="pytorch", reader__file_shuffle="off")
    cut(a_file(tmp_path, 5))
    with (
        slow_files(tmp_path / "data", seconds=0, stalls=a_file(tmp_path, 4).name) as point,
        start(workload, f"dataset.data_folder={point}", num_ranks=2, own_shared=True) as run,
    ):
        name = str(point / "train" / a_file(tmp_path, 5).name)
        # The stuck rank may be killed before it could record why.
        fails(run, "rank 1 on host ", name, "bytes", summary="failed or incomplete")


@pytest.mark.mpi
def test_a_worker_that_is_killed_is_named(tmp_path: Path) -> None:
    workload = small(tmp_path, reader__data_loader="pytorch", **_LONG)
    with start(workload, num_ranks=2, own_shared=True) as run:
        run.wait_for("epoch 1 of 100")
        worker = run.ranks()[1].children()[0]
        worker.kill()
        killed = f"(pid {worker.pid}) was killed by SIGKILL"
        fails(run, "rank 1 on host ", "of accelerator", killed)


@pytest.mark.mpi
@pytest.mark.parametrize(("culprit", "loader"), [(0, "threads"), (1, "pytorch")])
def test_a_rank_that_is_killed_is_named(tmp_path: Path, culprit: int, loader: str) -> None:
    workload = small(tmp_path, reader__data_loader=loader, **_LONG)
    with start(workload, num_ranks=2, own_shared=True) as run:
        run.wait_for("epoch 1 of 100")
        run.ranks()[culprit].kill()
        run.end()
        if not any(line.startswith("dlemu: ") for line in run.errors):
            # mpirun has ended the other rank before it noticed, and names the one itself.
            assert any(f"process rank {culprit} " in line for line in run.errors), run.told()
            leaves_nothing(run)
            return
        summary = "incomplete" if culprit == 0 else "failed"
        fails(run, f"rank {culprit} on host ", "ended without a word", summary=summary, status=ANY)


def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    workload = small(tmp_path, reader__data_loader="pytorch", **_LONG)
    with start(workload, own_shared=True) as run:
        run.wait_for("epoch 1 of 100")
        run.process.terminate()
        fails(run, "interrupted", status=130, summary="incomplete")


@pytest.mark.mpi
@pytest.mark.parametrize("told", [(0, 1), (1,)])
def test_interrupted_ranks_say_so(tmp_path: Path, told: tuple[int, ...]) -> None:
    """Whichever signal mpirun gets, its ranks get SIGTERM, and SIGKILL a fifth of a second later.

    On a busy host that is too early to say anything; here mpirun stands still till they have. There
    rank 0 may also hear of it from the other rank before the signal comes to itself.
    """
    with start(small(tmp_path, **_LONG), num_ranks=2, own_shared=True) as run:
        run.wait_for("epoch 1 of 100")
        ranks = run.ranks()
        run.process.send_signal(signal.SIGSTOP)
        for rank in told:
            ranks[rank].terminate()
        until(lambda: "error" in run.summary, "a word of the ranks")
        run.process.send_signal(signal.SIGCONT)
        assert run.end() != 0
        assert run.summary["status"] == "incomplete" and run.summary["error"] == "interrupted"
        leaves_nothing(run)


@pytest.mark.parametrize(
    ("num_ranks", "loader"), [(1, "pytorch"), pytest.param(2, "threads", marks=pytest.mark.mpi)]
)
def test_a_read_that_never_ends_is_named(
    tmp_path: Path, num_ranks: int, loader: str, time_flies: Callable[[], object]
) -> None:
    workload = small(tmp_path, reader__data_loader=loader, reader__file_shuffle="off", **_LONG)
    stuck, log = a_file(tmp_path, 8 + num_ranks - 1), tmp_path / "log"
    with (
        slow_files(tmp_path / "data", seconds=0, stalls=stuck.name, log=log) as point,
        start(
            workload, f"dataset.data_folder={point}", num_ranks=num_ranks, own_shared=True
        ) as run,
    ):
        until(
            lambda: log.exists() and f"{stuck.name} hangs" in log.read_text(),
            "the read",
            by=run.process,
        )
        time_flies()
        fails(run, f"rank {num_ranks - 1} on host ", stuck.name, "output.stall_seconds")


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    workload = small(tmp_path, train__epochs=20)
    results = tmp_path / "results"
    with mounted(results, "size=32k"):
        with start(workload, f"output.folder={results}/run", own_shared=True) as run:
            fails(run, f"{results}/run", "No space left", summary=None)
        if (results / "run" / "summary.json").exists():
            told = json.loads((results / "run" / "summary.json").read_text())
            assert told["status"] == "failed" and "No space left" in told["error"]
