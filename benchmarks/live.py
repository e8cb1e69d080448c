"""What the live line costs: python -m benchmarks.live [rounds=3] [steps=1000].

The same run with and without the line, in turn: 1 and 64 accelerators, steps of 10 ms, data in
memory. The line is drawn on a pseudo terminal of 80 columns, with the state of a search above it.
Shown are the CPU time of its thread per second of the run, by the thread's own clock, and what a
step takes beyond its computation time: the 10th percentile, because others may use the host.
"""

import contextlib
import os
import pty
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.emulate import dlemu
from benchmarks.harness import Asked, describe_machine, markdown, scratch, spread, yes
from dlemu.cli.progress import show_progress
from dlemu.results.records import read_steps
from dlemu.run.job import run_job
from dlemu.run.live import Live
from dlemu.terminal import silent
from dlemu.workload.model import load_workload
from dlemu.world.world import Alone

KEYS = {
    "dataset.num_files_train": 100,
    "dataset.num_samples_per_file": 640,
    "dataset.record_length_bytes": 1000,
    "dataset.record_length_bytes_stdev": 0,
    "reader.batch_size": 1,
    "reader.data_loader": "threads",
    "reader.read_threads": 1,
    "train.computation_time": 0.01,
    "train.epochs": 1,
}
STATE = "run 3 of about 8, trying 12 accelerators, best so far 9 PASS"
GOAL = 0.1
"""Most CPU time of the thread, in percent of a core."""


@contextlib.contextmanager
def terminal() -> Iterator[None]:
    """Make stderr a pseudo terminal, which another process reads."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    with (
        subprocess.Popen(["cat"], stdin=ours, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL),
        open(theirs, "w", encoding="utf-8") as stream,
    ):
        os.close(ours)
        before, sys.stderr = sys.stderr, stream
        try:
            yield
        finally:
            sys.stderr = before


def measure(keys: dict[str, object], folder: Path, *, shown: bool) -> tuple[float, float]:
    """Return percent of a core that the line's thread took, and µs of a step beyond compute."""
    live = Live()
    live.job = STATE
    workload = load_workload("resnet50_h100", keys | {"output.folder": str(folder)})
    with terminal(), show_progress("size", live.now, on=shown):
        begin = time.perf_counter()
        run_job(workload, world=Alone(), say=silent, live=live)
        seconds = time.perf_counter() - begin
        used = sum(
            time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))
            for thread in threading.enumerate()
            if thread.name == "live line"
        )
    steps = read_steps(folder)
    late = (steps["compute"] + steps["wait"] + steps["barrier"] - steps["computation_time"])[1:]
    return 100 * used / seconds, 1e6 * float(np.quantile(late, 0.1))


def main(arguments: list[str]) -> None:
    """Measure in turn and print the table."""
    asked = Asked(arguments, "rounds", "steps")
    rounds, num_steps = asked.value("rounds", 3), asked.value("steps", 1000)
    rows = []
    with scratch() as folder:
        keys: dict[str, object] = KEYS | {"dataset.data_folder": str(folder / "data")}
        words = {"workload": "resnet50_h100"} | {key: str(value) for key, value in keys.items()}
        dlemu("datagen", words)
        keys["train.total_training_steps"] = num_steps
        for number in (1, 64):
            keys["accelerators_per_rank"] = number
            found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
            for each in range(rounds):
                for shown, results in found.items():
                    run = folder / f"{number}.{each}.{shown}"
                    results.append(measure(keys, run, shown=shown))
            cpu, late = zip(*found[True], strict=True)
            without = [late for _, late in found[False]]
            rows.append(
                [
                    str(number),
                    spread(cpu, ".3f"),
                    f"≤ {GOAL:g}: {yes(max(cpu) <= GOAL)}",
                    spread(without, ".0f"),
                    spread(late, ".0f"),
                ]
            )
    print(f"{describe_machine()}; {rounds} rounds in turn, median (min–max)\n")
    header = ["accelerators", "the line's thread (% of a core)", "goal"]
    print(markdown([*header, "a step beyond compute, without (µs)", "with (µs)"], rows))


if __name__ == "__main__":
    main(sys.argv[1:])
