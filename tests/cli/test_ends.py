"""Under a launcher, the line that says how a command ended is the last one on the terminal."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.lab import warm
from tests.lab.commands import QUICK, generate, with_checkout
from tests.lab.mpirun import mpirun

pytestmark = pytest.mark.mpi


def on_ranks(num_ranks: int, *words: str, cwd: Path) -> tuple[int, list[str]]:
    """Return the launcher's exit status and what it leaves on the terminal, line by line."""
    done = subprocess.run(
        mpirun(num_ranks, *warm.command(), *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env=with_checkout(),
        timeout=120,
    )
    return done.returncode, [line for line in done.stdout.splitlines() if line]


def test_a_run_without_a_verdict(data: str, tmp_path: Path) -> None:
    words = [*QUICK, data, "metric.max_cached_share=0", "output.drop_caches=false"]
    status, lines = on_ranks(2, "run", *words, "output.folder=run", cwd=tmp_path)
    assert (status, lines[-1]) == (1, "results: run")
    assert any(line.startswith("NO VERDICT: ") for line in lines)


@pytest.mark.parametrize("culprit", [0, 1])
def test_an_error_of_one_rank(tmp_path: Path, culprit: int) -> None:
    data = generate(tmp_path)
    path = sorted((tmp_path / "data" / "train").iterdir())[21 - culprit]
    os.truncate(path, 1000)
    words = [*QUICK, data, "reader.file_shuffle=off", "output.folder=run"]
    status, lines = on_ranks(2, "run", *words, cwd=tmp_path)
    assert status == 1
    assert lines[-1].startswith(f"dlemu: rank {culprit} on host ") and str(path) in lines[-1]
    assert sum(line.startswith("dlemu: ") for line in lines) == 1


@pytest.mark.parametrize("words", ["paths .", "steptime workload=unet3d_h100"])
def test_a_command_that_measures_on_one_rank_refuses_several(tmp_path: Path, words: str) -> None:
    (tmp_path / "one").write_text("x")
    status, lines = on_ranks(2, *words.split(), cwd=tmp_path)
    line = "this command measures from one process, and 2 ranks were started: start it without"
    assert status == 1 and sum(line in each for each in lines) == 1
    assert sorted(os.listdir(tmp_path)) == ["one"], "nothing was measured"
