"""How true the emulation is where the storage is not the limit: python -m benchmarks.emulate.

Data lies in tmpfs, so that the true AU is 100; what is missing is this program's and the host's.
DLIO's figures for the same cases, on the same kind of host: 77 and 48 (CosmoFlow, one and two
ranks), 92 and 83 (2.83 MB npz at 20 ms, batch 1 and 7). Each case is run `rounds` times.

    python -m benchmarks.emulate [rounds=5] [cases=cosmoflow_1,...]
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.machine import describe_machine, markdown, spread
from dlemu.clock import WallClock, timer_error
from dlemu.records import read_steps
from tests.mpirun import mpirun

COSMOFLOW = {
    "workload": "cosmoflow_h100",
    "dataset.num_files_train": "600",
    "train.epochs": "3",
}
NPZ = COSMOFLOW | {
    "dataset.format": "npz",
    "train.computation_time": "0.02",
    "reader.read_threads": "4",
}
RESNET = {
    "workload": "resnet50_h100",
    "dataset.num_files_train": "24",
    "dataset.num_samples_per_file": "1251",
    "reader.data_loader": "threads",
    "reader.read_threads": "1",
    "train.epochs": "1",
}


@dataclass(frozen=True)
class Case:
    """One setting, its goal, and what DLIO shows there."""

    title: str
    keys: dict[str, str]
    ranks: int = 1
    goal: float = 98.0
    dlio: str = "-"


CASES = {
    "cosmoflow_1": Case("CosmoFlow H100, pytorch, 1 rank", COSMOFLOW, 1, 98, "77"),
    "cosmoflow_2": Case("CosmoFlow H100, pytorch, 2 ranks", COSMOFLOW, 2, 95, "48"),
    "npz_1": Case("2.83 MB npz, 20 ms, batch 1", NPZ, 1, 99, "92"),
    "npz_7": Case("2.83 MB npz, 20 ms, batch 7", NPZ | {"reader.batch_size": "7"}, 1, 99, "83"),
    "resnet_64": Case(
        "64 ResNet-50 H100 in one process, computation_time x 8",
        RESNET
        | {
            "accelerators_per_rank": "64",
            "train.computation_time": "1.792",
            "dataset.num_files_train": "246",
        },
    ),
    "resnet_200": Case(
        "200 ResNet-50 H100 in one process, computation_time x 30",
        RESNET
        | {
            "accelerators_per_rank": "200",
            "train.computation_time": "6.72",
            "dataset.num_files_train": "256",
        },
    ),
}


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder in tmpfs that is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="dlemu-emulate.", dir="/dev/shm"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def dlemu(command: str, keys: dict[str, str], ranks: int = 1) -> None:
    """Run a dlemu command with these overrides; 2 (under the threshold) is no error here."""
    words = [sys.executable, "-m", "dlemu", command, *(f"{k}={v}" for k, v in keys.items())]
    if ranks > 1:
        words = mpirun(ranks, *words)
        words[1:1] = ["--bind-to", "none"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode not in (0, 2):
        raise SystemExit(f"{' '.join(words)}\n{done.stderr}")


def measure(case: Case, rounds: int, folder: Path) -> list[str]:
    """Return a case's row: AU, cost of a step beyond its parts, memory."""
    keys = case.keys | {"dataset.data_folder": str(folder / "data")}
    dlemu("datagen", keys)
    au, beyond, memory = [], [], []
    for number in range(rounds):
        run = folder / f"run{number}"
        dlemu("run", keys | {"output.folder": str(run)}, case.ranks)
        summary = json.loads((run / "summary.json").read_text())
        au.append(summary["metric"]["train_au_mean_percentage"])
        memory.append(max(h["max_pss_bytes"] for h in summary["measured"]["hosts"]) / 1e6)
        beyond.append(1e6 * _step_cost(run))
    shutil.rmtree(folder / "data")
    reached = "yes" if float(np.median(au)) >= case.goal else "NO"
    return [
        case.title,
        spread(au),
        f"≥ {case.goal:g}: {reached}",
        case.dlio,
        spread(beyond, ".0f"),
        spread(memory, ".0f"),
    ]


def _step_cost(run: Path) -> float:
    """Return the median seconds of a step beyond wait, compute asked for, and barrier.

    Steps begin where the last one ended, so that what the program itself takes shows up as compute
    beyond what was asked: the sleep that ends late, and the bookkeeping before it.
    """
    steps = read_steps(run)
    steps = steps[steps["step"] > 0]
    return float(np.median(steps["compute"] - steps["computation_time"]))


def render_clock(rounds: int) -> str:
    """Return how late the sleeps of a 3.5 ms step end, and what they cost."""
    errors = [
        timer_error(WallClock.calibrate(), seconds=0.0035, num_sleeps=300) for _ in range(rounds)
    ]
    rows = [
        [
            "mean error (% of 3.5 ms)",
            spread([100 * e.mean / 0.0035 for e in errors], ".3f"),
            "≤ 0.2",
        ],
        ["median error (µs)", spread([1e6 * e.median for e in errors], ".1f"), "-"],
        ["p99 (µs)", spread([1e6 * e.p99 for e in errors], ".0f"), "≤ 50"],
        ["CPU (% of a core)", spread([100 * e.cpu_share for e in errors], ".2f"), "≤ 3"],
    ]
    return markdown(["sleep of a 3.5 ms step", "measured", "goal"], rows)


def main(arguments: list[str]) -> None:
    """Run the cases and print the table."""
    given = dict(argument.split("=", 1) for argument in arguments)
    rounds = int(given.get("rounds", 5))
    names = given["cases"].split(",") if "cases" in given else list(CASES)
    rows = []
    for name in names:
        with scratch() as folder:
            rows.append(measure(CASES[name], rounds, folder))
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    print(f"{describe_machine()}; {rounds} rounds, median (min–max)\n")
    print(f"{render_clock(rounds)}\n")
    print(
        markdown(
            [
                "case, data in tmpfs",
                "AU (%), truth 100",
                "goal",
                "DLIO",
                "step beyond its parts (µs)",
                "PSS of all processes (MB)",
            ],
            rows,
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
