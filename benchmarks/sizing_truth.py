"""Do `dlemu size` and `dlemu try` find the N that is true? python -m benchmarks.sizing_truth

    python -m benchmarks.sizing_truth [commands=size,try] [searches=4] [seed=1]

On a loop device whose reads are held to a known rate, so many searches for each of the three
workloads; root only. Samples and computation times are scaled down together, so that a step takes
25 to 45 ms and a slow device feeds few accelerators. `try` writes its own files, and has a minute
for its one workload: a third of what `dlemu try` has.

The truth: an accelerator takes, at the threshold, AU x (bytes that the drive reads for a step) /
computation_time; counted at the drive, headers, O_DIRECT's whole blocks and the file system's own
are among them. For `size` the rate is drawn such that it is enough for N + 0.45 to N + 0.65 of
them, for `try` N + 0.3 to N + 0.7. What the step left out reads for the others raises AU by up to 4
batches of 160, 2.5 %, which at 10.65 is another 0.3: the same N. Nearer to a whole number there is
no exact answer (docs/prediction.md).
"""

import json
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import Asked, describe_machine, markdown, tell
from benchmarks.held_drive import (
    WORKLOADS,
    Scaled,
    bytes_per_step,
    dataset,
    dlemu,
    rate_for,
    search,
)
from tests.lab.cgroups import throttled_reads

_SECONDS = 60
"""Of `dlemu try`."""
_HEADER = (
    *("command", "workload", "loader", "held to MB/s", "enough for", "true N", "found", "N*"),
    *("range of N, or interval of N*", "runs", "limit"),
)


def try_it(scaled: Scaled, rate: int, drive: Path, results: Path) -> dict[str, Any]:
    """Try the drive, held to a rate; return the answer in sizing.json."""
    keys = {
        "dataset.record_length_bytes": scaled.record_length_bytes,
        "train.computation_time": scaled.computation_time,
        "reader.data_loader": "threads",
        "reader.read_threads": 2,
        **scaled.keys,
        "workloads": scaled.workload,
        "seconds": _SECONDS,
        "max_bytes": "128MiB",
        "output.folder": results,
    }
    words = [f"{key}={value}" for key, value in keys.items()]
    with throttled_reads(drive, rate) as group:
        dlemu("try", str(drive), *words, enter=group.enter)
    (found,) = json.loads((results / "sizing.json").read_text())["answers"]
    return {**found, **found["first"]}


def searched(
    command: str, scaled: Scaled, searches: int, generator: random.Random
) -> list[tuple[list[str], int, bool]]:
    """Return of each search its row, how far N is off, and whether the range holds the true one."""
    found, tries = [], command == "try"
    small: dict[str, Any] = {"num_steps": 40, "most": 2, "image": 1 << 30} if tries else {}
    with dataset(scaled, **small) as (drive, words), tempfile.TemporaryDirectory() as results:
        step_bytes = bytes_per_step(words, Path(results, "one"))
        if tries:
            shutil.rmtree(drive / scaled.workload)  # a try would read these files
        jobs = [
            (true, "threads") for true in generator.sample(range(1 + 2 * (not tries), 11), searches)
        ]
        if not tries and scaled.workload.startswith("unet3d"):
            jobs.append((3, "pytorch"))  # whose accelerators have processes of their own
        for number, (true, loader) in enumerate(jobs):
            feeds = true + (generator.uniform(0.3, 0.7) if tries else generator.uniform(0.45, 0.65))
            rate, folder = rate_for(scaled, step_bytes, feeds), Path(results, str(number))
            if tries:
                answer = try_it(scaled, rate, drive, folder)
                low, high = answer["low"], answer["high"]
                held = low <= true and (answer["at_least"] or true <= high)
                span = f"{low} to {high or '-'}"
            else:
                answer = search([*words, f"reader.data_loader={loader}"], rate, drive, folder)
                interval = answer["interval"]
                held = abs(answer["num_accelerators"] - true) <= 1
                span = "-" if interval is None else " to ".join(f"{end:.2f}" for end in interval)
            real = answer["real_accelerators"]
            row = [
                *(command, scaled.workload, loader, f"{rate / 1e6:.1f}", f"{feeds:.2f}"),
                *(str(true), str(answer["num_accelerators"])),
                *("-" if real is None else f"{real:.2f}", span),
                *(str(len(answer["points"])), answer["limit"]),
            ]
            found.append((tell(row), answer["num_accelerators"] - true, held))
    return found


def main(arguments: list[str]) -> None:
    """Print a line for each search, and the count of each command."""
    asked = Asked(arguments, "commands", "searches", "seed")
    generator = random.Random(asked.value("seed", 1))
    print(describe_machine(), flush=True)
    for command in asked.names("commands", ["size", "try"]):
        found = [
            each
            for scaled in WORKLOADS.values()
            for each in searched(command, scaled, asked.value("searches", 4), generator)
        ]
        rows, off, held = zip(*found, strict=True)
        print(f"\n{markdown(_HEADER, rows)}\n")
        print(f"{command}: exact {off.count(0)} of {len(off)}, within 1 or the range {sum(held)}")


if __name__ == "__main__":
    main(sys.argv[1:])
