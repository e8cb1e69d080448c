"""How true the emulation is where the storage is not the limit: python -m benchmarks.emulate.

Data lies in tmpfs, so that the true AU is 100; what is missing is this program's and the host's.
DLIO, if `make peers` has set it up, runs the same cases in turn, on a dataset that it generated.

    python -m benchmarks.emulate [rounds=5] [cases=cosmoflow_1,...] [tables=cases,dense,...]
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Asked, describe_machine, goal, markdown, scratch, spread, tell
from dlemu.config.model import load_workload
from dlemu.datagen import read_manifest
from dlemu.datagen.manifest import write_manifest
from dlemu.datagen.target import Folder
from dlemu.dataset.layout import layout_of
from dlemu.judge.records import read_steps
from tests.lab.mpirun import mpirun
from tests.lab.peer import is_there, run_dlio

COSMOFLOW = {
    "workload": "cosmoflow_h100",
    "reader.data_loader": "pytorch",
    "dataset.num_files_train": "600",
    "train.epochs": "3",
}
NPZ = {
    "workload": "unet3d_h100",
    "dataset.num_files_train": "600",
    "dataset.record_length_bytes": "2828486",
    "dataset.record_length_bytes_stdev": "71311",
    "train.epochs": "3",
    "train.computation_time": "0.02",
    "reader.batch_size": "1",
}


@dataclass(frozen=True)
class Case:
    """One setting, and its goal."""

    title: str
    keys: dict[str, str]
    ranks: int = 1
    goal: float | None = 98.0
    own: dict[str, str] = field(default_factory=dict)
    """Keys that DLIO does not know; where there are some, it is not run again."""


_DROPPED = {"reader.hand_over": "none"}
CASES = {
    "cosmoflow_1": Case("CosmoFlow H100, pytorch, 1 rank", COSMOFLOW, 1, None),
    "cosmoflow_1_none": Case("the same, hand-over none", COSMOFLOW, 1, 98, _DROPPED),
    "cosmoflow_1_tf": Case(
        "the same, tensorflow", COSMOFLOW, 1, 98, {"reader.data_loader": "tensorflow"}
    ),
    "cosmoflow_2": Case("CosmoFlow H100, pytorch, 2 ranks", COSMOFLOW, 2, None),
    "cosmoflow_2_none": Case("the same, hand-over none", COSMOFLOW, 2, 95, _DROPPED),
    "npz_1": Case("2.83 MB npz, 20 ms, batch 1", NPZ, 1, 99),
    "npz_1_none": Case("the same, hand-over none", NPZ, 1, 99, _DROPPED),
    "npz_7": Case("2.83 MB npz, 20 ms, batch 7", NPZ | {"reader.batch_size": "7"}, 1, 99),
}
DENSE = {1: (1, 40), 8: (1, 40), 64: (8, 10), 111: (15, 6), 200: (30, 4)}
"""ResNet-50 H100s in one process: how many, computation_time in units of H100's, steps."""
RESNET = {
    "workload": "resnet50_h100",
    # Without the fraction all files are of one size, and links can stand for them.
    "dataset.record_length_bytes": "114660",
    "reader.data_loader": "threads",
    "reader.read_threads": "1",
    "train.epochs": "1",
}
NUM_REAL_FILES = 16
"""2.3 GB, far more than CPUs' caches hold."""


def dlemu(command: str, keys: dict[str, str], ranks: int = 1) -> None:
    """Run a dlemu command with these overrides; no verdict, or a FAIL, is no error here."""
    words = [sys.executable, "-m", "dlemu", command, *(f"{k}={v}" for k, v in keys.items())]
    if ranks > 1:
        words = mpirun(ranks, "--bind-to", "none", *words)
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode not in (0, 2) and "\nNO VERDICT: " not in done.stdout:
        raise SystemExit(f"{' '.join(words)}\n{done.stderr}")


@dataclass(frozen=True)
class Seen:
    """What a run came to."""

    au: float
    late: NDArray[np.float64]
    """Seconds by which each accelerator's compute took longer than asked for, first step left
    out. Steps begin where the last one ended, so what the program itself takes is in it, too."""
    pss: float
    """Bytes of all processes of the host, shared pages divided among those that share them."""


def run_dlemu(keys: dict[str, str], folder: Path, ranks: int = 1) -> Seen:
    """Run, and return what came of it."""
    run = folder / "run"
    dlemu("run", keys | {"output.folder": str(run)}, ranks)
    summary = json.loads((run / "summary.json").read_text())
    steps = read_steps(run)
    shutil.rmtree(run)
    steps = steps[steps["step"] > 0]
    return Seen(
        summary["metric"]["train_au_mean_percentage"],
        steps["compute"] - steps["computation_time"],
        max(host["max_pss_bytes"] or 0 for host in summary["measured"]["hosts"]),
    )


def measure_case(case: Case, rounds: int, folder: Path) -> list[str]:
    """Return a case's row; dlemu and DLIO take turns."""
    ours = case.keys | case.own | {"dataset.data_folder": str(folder / "data")}
    theirs = case.keys | {"dataset.data_folder": str(folder / "dlio")}
    dlemu("datagen", ours)
    beside = is_there() and not case.own
    if beside:
        run_dlio(theirs, ranks=2, generate=True)
    seen, dlio = [], []
    for _ in range(rounds):
        seen.append(run_dlemu(ours, folder, case.ranks))
        if beside:
            summary = run_dlio(theirs, ranks=case.ranks, generate=False)
            dlio.append(summary["metric"]["train_au_mean_percentage"])
    au = [one.au for one in seen]
    return [
        case.title,
        spread(au),
        goal(au, least=case.goal),
        spread(dlio) if dlio else "-",
        spread([1e6 * float(np.median(one.late)) for one in seen], ".1f"),
        spread([one.pss / 1e6 for one in seen], ".0f"),
    ]


def render_cases(names: list[str], rounds: int) -> str:
    """Return the table of what DLIO can run as well."""
    rows = []
    for name in names:
        with scratch() as folder:
            rows.append(tell(measure_case(CASES[name], rounds, folder)))
    header = ["case, data in tmpfs", "AU (%), truth 100", "goal", "DLIO's AU"]
    return markdown([*header, "step later than asked, median (µs)", "PSS (MB)"], rows)


def link_files(keys: dict[str, str], folder: Path) -> None:
    """Make a dataset of many files of which only the first have bytes of their own.

    tmpfs need not hold what 200 accelerators read in a few steps: 37 GB.
    """
    few = keys | {"dataset.num_files_train": str(NUM_REAL_FILES)}
    real = folder / "real"
    if not real.exists():
        dlemu("datagen", few | {"dataset.data_folder": str(real)})
    manifest = read_manifest(real)
    assert manifest is not None
    data = Path(keys["dataset.data_folder"])
    shutil.rmtree(data, ignore_errors=True)
    (data / "train").mkdir(parents=True)
    shape = ("dataset.num_files_train", "dataset.record_length_bytes")
    layout = layout_of(load_workload(keys["workload"], {key: int(keys[key]) for key in shape}))
    num_files = layout.num_files
    for file in range(num_files):
        source = real / manifest.layout.path(file % NUM_REAL_FILES)
        os.link(source, data / layout.path(file))
    write_manifest(Folder(data), layout, np.resize(manifest.files["crc32c"], num_files))


def render_dense(rounds: int) -> str:
    """Return the table of many ResNet-50 accelerators in one process."""
    rows = []
    alone = 0.0
    with scratch() as folder:
        for number, (scale, num_steps) in DENSE.items():
            keys = RESNET | {
                "dataset.data_folder": str(folder / "data"),
                "dataset.num_files_train": str(-(-number * 400 * num_steps // 1251)),
                "accelerators_per_rank": str(number),
                "train.computation_time": f"{0.224 * scale:g}",
            }
            link_files(keys, folder)
            seen = [run_dlemu(keys, folder) for _ in range(rounds)]
            au = [one.au for one in seen]
            pss = [one.pss / 1e6 for one in seen]
            alone = alone or statistics.median(pss)
            beyond = [(each - alone) / (number - 1) for each in pss] if number > 1 else []
            rows.append(
                tell(
                    [
                        f"{number}, computation_time × {scale}",
                        spread(au),
                        goal(au, least=98),
                        spread(pss, ".0f"),
                        goal(pss, most=2000) if number == 111 else "",
                        spread(beyond) if beyond else "",
                        goal(beyond, most=5) if beyond else "",
                    ]
                )
            )
    header = ["ResNet-50 H100s in one process", "AU (%), truth 100", "goal", "PSS (MB)", "goal"]
    return markdown([*header, "MB an accelerator beyond the first", "goal"], rows)


def main(arguments: list[str]) -> None:
    """Run the cases and print the tables."""
    asked = Asked(arguments, "rounds", "cases", "tables")
    rounds, names = asked.value("rounds", 5), asked.names("cases", CASES)
    tables = {
        "dense": lambda: render_dense(rounds),
        "cases": lambda: render_cases(names, rounds),
    }
    machine = describe_machine()
    shown = [tables[name]() for name in asked.names("tables", tables)]
    print(f"{machine}; {rounds} rounds, median (min–max)\n")
    print("\n\n".join(shown))


if __name__ == "__main__":
    main(sys.argv[1:])
