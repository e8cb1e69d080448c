"""Does `dlemu size` find the N that is true? python -m benchmarks.sizing_truth [SEARCHES] [SEED]

On a loop device whose reads are held to a known rate, SEARCHES (4) for each of the three workloads
and one through PyTorch's DataLoader; root only. Samples and computation times are scaled down
together, so that a step takes 25 to 45 ms and a slow device feeds 3 to 12 accelerators.

The truth: an accelerator takes, at the threshold, AU x (bytes that the drive reads for a step) /
computation_time; counted at the drive, headers, O_DIRECT's whole blocks and the file system's own
are among them. The rate is drawn such that it is enough for N + 0.45 to N + 0.65 of them. What the
step left out reads for the others raises AU by up to 4 batches of 160, 2.5 %, which at 12.65 is
another 0.3: the same N. Nearer to a whole number there is no exact answer (docs/prediction.md).

Beside it what `dlemu predict` says, from `dlemu calibrate` on the device at one rate for each
workload, and from that host's figures with the rate as a datasheet's for the others.
"""

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import describe_machine
from benchmarks.held_drive import WORKLOADS, bytes_per_step, dataset, dlemu, rate_for, search
from tests.lab.cgroups import throttled_reads

COLUMNS = (
    "workload",
    "loader",
    "held to MB/s",
    "enough for",
    "true N",
    "found",
    "N*",
    "95 %",
    "runs",
    "seconds",
    "limit",
    "predicted, rate as a datasheet's",
    "predicted, device read",
)


def main() -> None:
    """Print a line for each search, and the count."""
    searches = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    generator = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    print(describe_machine())
    print(f"\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    off: list[int] = []
    runs: list[int] = []
    for name, scaled in WORKLOADS.items():
        loaders = ["threads"] * searches + (["pytorch"] if name == "unet3d" else [])
        with dataset(scaled) as (drive, words), tempfile.TemporaryDirectory() as results:
            step_bytes = bytes_per_step(words, Path(results, "one"))
            numbers = generator.sample(range(3, 13), searches)
            calibration = None
            for number, loader in enumerate(loaders):
                # Each accelerator has processes of its own there, and this host two cores.
                true = 3 if loader == "pytorch" else numbers[number]
                feeds = true + generator.uniform(0.45, 0.65)
                rate = rate_for(scaled, step_bytes, feeds)
                job = [*words, f"reader.data_loader={loader}"]
                found = search(job, rate, drive, Path(results, str(number)))
                off.append(found["num_accelerators"] - true)
                runs.append(len(found["points"]))
                seen = ""
                if calibration is None and loader == "threads":
                    begin = time.perf_counter()
                    calibration = _calibrate(job, rate, drive, Path(results))
                    told = _predict(job, results, f"predict.calibration={calibration}")
                    seconds = time.perf_counter() - begin
                    seen = f"{_range(told)} in {seconds:.0f} s"
                predicted = _predict(
                    job,
                    results,
                    f"drive.read_bandwidth={rate}",
                    *([f"predict.calibration={calibration}"] if loader == "threads" else []),
                )
                real, interval = "-", "-"
                if found["interval"] is not None:
                    real = f"{found['real_accelerators']:.2f}"
                    interval = " to ".join(f"{end:.2f}" for end in found["interval"])
                print(
                    f"| {name} | {loader} | {rate / 1e6:.1f} | {feeds:.2f} | {true} | "
                    f"{found['num_accelerators']} | {real} | {interval} | {runs[-1]} | "
                    f"{found['seconds']:.0f} | {found['limit']} | {_range(predicted)} | {seen} |",
                    flush=True,
                )
    num = len(off)
    print(
        f"\nexact {off.count(0)} of {num}, within 1 {sum(abs(o) <= 1 for o in off)} of {num}; "
        f"{min(runs)} to {max(runs)} runs, {sum(r <= 12 for r in runs)} of {num} in 12"
    )


def _calibrate(words: list[str], rate: int, drive: Path, folder: Path) -> Path:
    with throttled_reads(drive, rate) as group:
        dlemu("calibrate", *words, f"output.folder={folder}", enter=group.enter)
    return next(folder.glob("calibration.*.json"))


def _predict(words: list[str], folder: str, *more: str) -> dict[str, Any]:
    dlemu("predict", *words, *more, f"output.folder={folder}")
    told: dict[str, Any] = json.loads(Path(folder, "predict.json").read_text())
    return told


def _range(told: Mapping[str, Any]) -> str:
    return (
        f"{'at least ' if told['at_least'] else ''}{told['num_accelerators']} "
        f"({told['real_accelerators']:.2f}), {told['low']} to {told['high'] or '-'}"
    )


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("only root may throttle a device")
    main()
