"""A small job for the command line, and ways to give commands."""

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dlemu.cli.main import run
from dlemu.config.compose import compose_words
from dlemu.config.model import Workload, check_workload
from dlemu.datagen import write
from dlemu.judge.outcome import Outcome
from dlemu.ranks.world import Alone
from dlemu.run.job import run_job
from tests.lab import warm
from tests.lab.waiting import LONG

Printed = Callable[..., str]
"""What the fixture `printed` gives."""
SIZES = [
    "dataset.num_files_train=56",
    "dataset.record_length_bytes=20000",
    "dataset.record_length_bytes_stdev=5000",
    "dataset.record_length_bytes_resize=2000",
]
SMALL = ["workload=unet3d_h100", *SIZES]
"""56 files of 20 kB: 8 steps of one accelerator."""
QUICK = [
    *SMALL,
    "reader.data_loader=threads",
    "reader.hand_over=batch",
    "train.computation_time=0.005",
    "train.epochs=2",
    "metric.au=0.0001",
    "metric.max_cached_share=1",
]
"""The same, over in a tenth of a second, and passed on the busiest of hosts, from memory too."""


def generate(folder: Path, words: Sequence[str] = SMALL) -> str:
    """Write the small dataset below a folder; return the override that names it."""
    data = f"dataset.data_folder={folder / 'data'}"
    assert run(["datagen", *words, data]) == 0
    return data


def small_job(folder: Path, **keys: object) -> Workload:
    """Return the quick job over folder/data, which is written if it was not; results: folder/run.

    `keys` are dotted, with "__" for the dot.
    """
    places = [f"dataset.data_folder={folder / 'data'}", f"output.folder={folder / 'run'}"]
    quick = check_workload(compose_words([*QUICK, *places]))
    job = quick.with_keys({key.replace("__", "."): value for key, value in keys.items()})
    write.generate(job, world=Alone())
    return job


def ran(job: Workload) -> Outcome:
    """Run a job in this process, and say nothing."""
    outcome = run_job(job, world=Alone(), say=lambda text: None)
    assert outcome is not None
    return outcome


def summary_of(folder: Path) -> dict[str, Any]:
    """Return the summary that a run has left in its folder."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def dlemu(*words: str, cwd: Path, timeout: float = LONG) -> subprocess.CompletedProcess[str]:
    """Run `dlemu` as a process of its own."""
    return warm.run([*warm.COMMAND, *words], cwd=cwd, timeout=timeout)


def execute(
    command: Sequence[str], *, cwd: Path, timeout: float = LONG
) -> subprocess.CompletedProcess[str]:
    """Run a command that imports this checkout's dlemu."""
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=with_checkout(), timeout=timeout
    )


def with_checkout() -> dict[str, str]:
    """Return the environment, with this checkout on Python's path."""
    path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
