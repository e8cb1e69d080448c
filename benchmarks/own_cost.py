"""What dlemu itself costs: python -m benchmarks.own_cost [only=CASE,…] [files=1200] [rounds=1] …

All data lie in memory, so each AU should be 100. CosmoFlow has the shortest step of the published
workloads, 3.5 ms. A case is processes × accelerators of each:

    1x8    one process, train.processes=1          auto8   as many processes as dlemu takes
    p4x2   four processes of dlemu's own           r4x1    four ranks of mpirun
    resnet:auto8, unet3d:r4x1                      the same with another workload

`only=` takes any; `files` are those of CosmoFlow, and `folder=` keeps all files for a next time.
Beside the AU stand the barrier (from the moment when all were there, and as the accelerators saw
it), how far compute overran its target, the CPUs, and the limit that the verdict names.
"""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import Asked, dlemu, goal, in_turn, scratch, spread, tell
from dlemu.config.model import load_workload
from dlemu.judge.records import map_steps

_SECONDS = 2.0
"""Of the steps of a run, without its start."""
_WORKLOADS: Mapping[str, tuple[str, int, int]] = {
    "cosmoflow": ("cosmoflow_h100", 0, 1),
    "resnet": ("resnet50_h100", 30, 1251),
    "unet3d": ("unet3d_h100", 84, 1),
}
"""Row, files (CosmoFlow's are asked for) and samples of a file."""
_LEAST = {"ranks": 96.0, "one process": 97.0}
"""AU that CosmoFlow must reach."""


def default_cases(cpus: int) -> list[str]:
    """Return what a host of so many CPUs shows: accelerators and ranks up to their number."""
    accelerators = [number for number in (1, 2, 4, 8, 16, 32) if number <= 4 * cpus]
    ranks = [number for number in (2, 4, 8, 16) if number <= max(2, cpus // 2)]
    cases = [f"1x{number}" for number in accelerators if number > 1]
    cases += [f"auto{number}" for number in accelerators]
    cases += [f"r{number}x1" for number in ranks]
    return [*cases, "resnet:auto8", "resnet:r2x1", "unet3d:auto2", "unet3d:r2x1"]


def run(folder: Path, files: int, case: str) -> dict[str, Any]:
    """Make the run of a case; return its figures."""
    name, _, how = case.rpartition(":")
    name = name or "cosmoflow"
    found = re.fullmatch(r"(?:auto|([pr]?)(\d+)x)(\d+)", how)
    if found is None or name not in _WORKLOADS:
        raise SystemExit(f"{case} is no case; as 1x8, p4x2, auto8, r4x1 or resnet:auto8")
    kind, processes, total = found[1], int(found[2] or 1), int(found[2] or 1) * int(found[3])
    row, num_files, samples = _WORKLOADS[name]
    num_files = num_files or files
    job = load_workload(row)
    keys: dict[str, object] = {"workload": row, "num_accelerators": total}
    keys |= {"dataset.num_files_train": num_files, "dataset.data_folder": folder / name}
    if not (folder / name).exists():
        dlemu("datagen", keys)
    most = max(4, round(_SECONDS / job.train.computation_time.mean))
    steps = min(num_files * samples // (job.reader.batch_size * total), most)
    keys |= {"train.total_training_steps": steps, "train.epochs": max(2, round(most / steps))}
    keys |= {"output.folder": folder / "run", "output.drop_caches": False}
    keys |= {"metric.max_cached_share": 1}
    # Trees of before, which may stand beside this one, have one process always.
    if kind in ("", "p") and hasattr(job.train, "processes"):
        keys["train.processes"] = processes
    begin = time.perf_counter()
    dlemu("run", keys, ranks=processes if kind == "r" else 1)
    return figures(folder / "run", time.perf_counter() - begin)


def figures(folder: Path, seconds: float) -> dict[str, Any]:
    """Return what a run's files say; its folder is removed."""
    summary = json.loads((folder / "summary.json").read_text())
    steps = np.concatenate([part.ravel() for _, part in map_steps(folder)])
    steps = steps[steps["step"] > 0]
    order = np.lexsort((steps["accelerator"], steps["step"], steps["epoch"]))
    total = summary["num_accelerators"]
    barrier = steps["barrier"][order].reshape(-1, total)
    over = steps["compute"] - steps["computation_time"]
    (host,) = summary["measured"]["hosts"]
    shutil.rmtree(folder)

    def micro(values: Any) -> str:
        half, most = np.quantile(values, (0.5, 0.99)) * 1e6
        return f"{half:.0f} / {most:,.0f}"

    metric = summary["metric"]
    return {
        "au": metric["train_au_mean_percentage"],
        "rate": metric["train_throughput_mean_samples_per_second"],
        "processes": summary["num_ranks"],
        "met": micro(barrier.min(axis=1)),
        "barrier": micro(barrier),
        "over": micro(over),
        "cpus": 100 * host["cpu_share"],
        "cost": host["process_cpu_seconds"] / max(summary["measured"]["read_bytes"], 1) * 1e9,
        "memory": (host["max_pss_bytes"] or 0) / 2**20,
        "limit": (summary["limit"] or {"name": "-"})["name"],
        "seconds": seconds,
    }


def row_of(case: str, rounds: list[dict[str, Any]]) -> dict[str, str]:
    """Return the line of a case."""
    aus, last = [each["au"] for each in rounds], rounds[-1]
    wanted = 99.0 if ":" in case else _LEAST["ranks" if case.startswith("r") else "one process"]
    return tell(
        {
            "case": case,
            "processes": str(last["processes"]),
            "AU %": spread(aus, ".1f"),
            "goal": goal(aus, least=wanted),
            "samples/s": f"{median(each['rate'] for each in rounds):,.0f}",
            "opens p50 / p99 µs": last["met"],
            "barrier p50 / p99 µs": last["barrier"],
            "over p50 / p99 µs": last["over"],
            "CPUs %": f"{last['cpus']:.0f}",
            "CPU-s/GB": spread([each["cost"] for each in rounds], ".3f"),
            "memory MiB": f"{last['memory']:,.0f}",
            "limit": ", ".join(dict.fromkeys(each["limit"] for each in rounds)),
            "whole run s": f"{median(each['seconds'] for each in rounds):.1f}",
        }
    )


def main(arguments: list[str]) -> None:
    """Measure in turn and print the table."""
    asked = Asked(arguments, "only", "files", "rounds", "folder")
    cases = asked.names("only", default_cases(os.cpu_count() or 1))
    with scratch() as own:
        folder = Path(asked.value("folder", str(own)))
        sides = {case: partial(run, folder, asked.value("files", 1200), case) for case in cases}
        found = in_turn(sides, asked.value("rounds", 1))
        asked.show(row_of(case, rounds) for case, rounds in found.items())


if __name__ == "__main__":
    main(sys.argv[1:])
