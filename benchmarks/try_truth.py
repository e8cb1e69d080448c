"""Is the true N in the interval of `dlemu try`? python -m benchmarks.try_truth [TRIES] [SEED]

On a loop device whose reads are held to a known rate, TRIES (3) for each of the three workloads;
root only. The truth and the scaled workloads are those of benchmarks/sizing_truth.py. Each try
writes its own files, and has SECONDS for its one workload: a third of what `dlemu try` has.
"""

import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import describe_machine
from benchmarks.held_drive import WORKLOADS, Scaled, bytes_per_step, dataset, dlemu, rate_for
from tests.lab.cgroups import throttled_reads

SECONDS = 60
COLUMNS = (
    *("workload", "held to MB/s", "enough for", "true N", "first answer", "interval", "N*"),
    *("interval of N*", "runs", "seconds", "limit"),
)


def main() -> None:
    """Print a line for each try, and the count."""
    tries = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    generator = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    print(describe_machine())
    print(f"\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    within: list[bool] = []
    exact: list[bool] = []
    for name, scaled in WORKLOADS.items():
        with (
            dataset(scaled, num_steps=40, most=2, image=1 << 30) as (drive, words),
            tempfile.TemporaryDirectory() as results,
        ):
            step_bytes = bytes_per_step(words, Path(results, "one"))
            shutil.rmtree(drive / scaled.workload)  # a try would read these files
            for number, true in enumerate(generator.sample(range(1, 11), tries)):
                feeds = true + generator.uniform(0.3, 0.7)
                rate = rate_for(scaled, step_bytes, feeds)
                begin = time.perf_counter()
                found = _try(scaled, rate, drive, Path(results, str(number)))
                seconds = time.perf_counter() - begin
                at_least, high = found["at_least"], found["high"]
                within.append(found["low"] <= true and (at_least or true <= high))
                exact.append(found["num_accelerators"] == true)
                real = found["real_accelerators"]
                band = found["interval"] and " to ".join(f"{e:.2f}" for e in found["interval"])
                print(
                    f"| {name} | {rate / 1e6:.1f} | {feeds:.2f} | {true} | "
                    f"{found['num_accelerators']} | {found['low']} to {high or '-'} | "
                    f"{'-' if real is None else f'{real:.2f}'} | {band or '-'} | "
                    f"{len(found['points'])} | {seconds:.0f} | {found['limit']} |",
                    flush=True,
                )
    print(f"\nwithin the interval {sum(within)} of {len(within)}, exact {sum(exact)}")


def _try(scaled: Scaled, rate: int, drive: Path, results: Path) -> dict[str, Any]:
    keys = {
        "dataset.record_length_bytes": scaled.record_length_bytes,
        "train.computation_time": scaled.computation_time,
        "reader.data_loader": "threads",
        "reader.read_threads": 2,
        **scaled.keys,
        "workloads": scaled.workload,
        "seconds": SECONDS,
        "max_bytes": "128MiB",
        "output.folder": results,
    }
    words = [f"{key}={value}" for key, value in keys.items()]
    with throttled_reads(drive, rate) as group:
        dlemu("try", str(drive), *words, enter=group.enter)
    (found,) = json.loads((results / "sizing.json").read_text())["answers"]
    return {**found, **found["first"]}


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("only root may throttle a device")
    main()
