"""How soon dlemu is at work: python -m benchmarks.start [rounds=5] [json=FILE].

`dlemu run` until the first step of a dataset of 10 000 files, by the step's own time stamp; and the
commands that only compute. Python itself, started with NumPy, stands beside them.
"""

import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks.harness import Asked, dlemu, in_turn, ratios, scratch, spread
from dlemu.judge.records import read_steps

KEYS: dict[str, object] = {
    "workload": "cosmoflow_h100",
    "dataset.num_files_train": "10000",
    "dataset.record_length_bytes": "8192",
    "dataset.record_length_bytes_stdev": "0",
    "train.epochs": "1",
    "train.total_training_steps": "4",
}
COMMANDS = {
    "python -c 'import numpy'": ["-c", "import numpy"],
    "dlemu --help": ["-m", "dlemu", "--help"],
    "dlemu datasize": ["-m", "dlemu", "datasize", "workload=unet3d_h100"],
}
GOALS = {
    "dlemu --help": 0.4,
    "dlemu datasize": 0.4,
    "dlemu run until the first step, threads": 1.0,
    "dlemu run until the first step, pytorch": 3.0,
}
"""Seconds on a quiet host."""


def time_command(words: list[str]) -> float:
    """Return the seconds that a Python command takes."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def time_first_step(loader: str, folder: Path) -> float:
    """Return the seconds from the command's start until the first step begins to compute."""
    run = folder / "run"
    keys = KEYS | {"dataset.data_folder": folder / "data", "output.folder": run}
    begin = time.perf_counter()  # CLOCK_MONOTONIC, which the records use as well
    dlemu("run", keys | {"reader.data_loader": loader})
    first = read_steps(run)[0]
    shutil.rmtree(run)
    return float(first["start"] + first["wait"]) - begin


def main(arguments: list[str]) -> None:
    """Measure in turn and print the table."""
    asked = Asked(arguments, "rounds")
    with scratch() as folder:
        dlemu("datagen", KEYS | {"dataset.data_folder": folder / "data"})
        sides = {name: partial(time_command, words) for name, words in COMMANDS.items()}
        for loader in ("threads", "pytorch"):
            title = f"dlemu run until the first step, {loader}"
            sides[title] = partial(time_first_step, loader, folder)
        times = in_turn(sides, asked.value("rounds", 5))
    base = times[next(iter(COMMANDS))]
    asked.show(
        {
            "command": name,
            "seconds": spread(values),
            "goal": f"≤ {GOALS[name]:g}" if name in GOALS else "-",
            "times Python with NumPy": spread(ratios(values, base, float), ".1f"),
        }
        for name, values in times.items()
    )


if __name__ == "__main__":
    main(sys.argv[1:])
