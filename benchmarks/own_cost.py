"""What dlemu itself costs at short steps, all data in memory, where each AU should be 100.

    python -m benchmarks.own_cost [only=CASE,…] [files=1200] [rounds=1] [folder=…] [json=FILE]
    python -m benchmarks.own_cost FILE…          the table of what was stored with json=

CosmoFlow has the shortest step of the published workloads, 3.5 ms. A case is processes ×
accelerators of each:

    1x8    one process, train.processes=1          auto8   as many processes as dlemu takes
    p4x2   four processes of dlemu's own           r4x1    four ranks of mpirun
    resnet:auto8, unet3d:r4x1                      the same with another workload

`only=` takes any; `files` are those of CosmoFlow, and `folder=` keeps all files for a next time.
The AU is the median of all epochs, with the least and the most. Beside it stand the barrier (from
the moment when all were there, and as the accelerators saw it), how far compute overran its
target, the ceiling that the verdict tells, the CPUs, what other guests took of them (steal), and
the limit that it names. `json=` stores the figures after each run, `keep=FOLDER` its records.
"""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import starmap
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import (
    Asked,
    describe_machine,
    dlemu,
    goal,
    lined,
    scratch,
    spread,
    tell,
)
from dlemu.config.model import load_workload
from dlemu.judge.records import map_steps

_SECONDS = 3.0
"""Of the steps of a run, without its start."""
_WORKLOADS: Mapping[str, tuple[str, int, int]] = {
    "cosmoflow": ("cosmoflow_h100", 0, 1),
    "resnet": ("resnet50_h100", 30, 1251),
    "unet3d": ("unet3d_h100", 84, 1),
}
"""Row, files (CosmoFlow's are asked for) and samples of a file."""
_LEAST = {"ranks": 96.0, "one process": 97.0}
"""AU that CosmoFlow must reach."""
_MOST_MICROSECONDS = {"p50": 60.0, "p99": 250.0}
"""From the moment when all ranks are at a barrier until it opens: what it may take."""
Figures = dict[str, Any]
"""Of a run; pairs are the median and the 99th percentile, in µs."""


def default_cases(cpus: int) -> list[str]:
    """Return what a host of so many CPUs shows: accelerators and ranks up to their number."""
    accelerators = [number for number in (1, 2, 4, 8, 16, 32) if number <= 4 * cpus]
    ranks = [number for number in (2, 4, 8, 16) if number <= max(2, cpus // 2)]
    cases = [f"1x{number}" for number in accelerators if number > 1]
    cases += [f"auto{number}" for number in accelerators]
    cases += [f"r{number}x1" for number in ranks]
    return [*cases, "resnet:auto8", "resnet:r2x1", "unet3d:auto2", "unet3d:r2x1"]


def run(folder: Path, files: int, case: str, keep: Path | None = None) -> Figures:
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
    keys |= {"train.total_training_steps": steps, "train.epochs": max(4, round(most / steps))}
    keys |= {"output.folder": folder / "run", "output.drop_caches": False}
    keys |= {"metric.max_cached_share": 1}
    # Trees of before, which may stand beside this one, have one process always.
    if kind in ("", "p") and hasattr(job.train, "processes"):
        keys["train.processes"] = processes
    begin = time.perf_counter()
    dlemu("run", keys, ranks=processes if kind == "r" else 1)
    return figures(folder / "run", time.perf_counter() - begin, keep)


def figures(folder: Path, seconds: float, keep: Path | None = None) -> Figures:
    """Return what a run's files say; its folder is removed, or its records moved to `keep`."""
    summary = json.loads((folder / "summary.json").read_text())
    steps = np.concatenate([part.ravel() for _, part in map_steps(folder)])
    steps = steps[steps["step"] > 0]
    order = np.lexsort((steps["accelerator"], steps["step"], steps["epoch"]))
    total = summary["num_accelerators"]
    barrier = steps["barrier"][order].reshape(-1, total)
    over = steps["compute"] - steps["computation_time"]
    (host,) = summary["measured"]["hosts"]
    if keep is not None:
        keep.mkdir(parents=True)
        for name in ("steps.*", "host.*", "summary.json"):
            for path in folder.glob(name):
                shutil.move(path, keep)
    shutil.rmtree(folder)

    def micro(values: Any) -> list[float]:
        return [round(float(each) * 1e6, 1) for each in np.quantile(values, (0.5, 0.99))]

    metric, limit = summary["metric"], summary["limit"] or {"name": "-", "explains": None}
    return {
        "au": metric["train_au_mean_percentage"],
        "aus": metric["train_au_percentage"],
        "steal": host["host_steal_share"],
        "rate": metric["train_throughput_mean_samples_per_second"],
        "processes": summary["num_ranks"],
        "met": micro(barrier.min(axis=1)),
        "barrier": micro(barrier),
        "over": micro(over),
        "ceiling": summary.get("ceiling_au_percentage"),
        "cpus": 100 * host["cpu_share"],
        "cost": host["process_cpu_seconds"] / max(summary["measured"]["read_bytes"], 1) * 1e9,
        "memory": (host["max_pss_bytes"] or 0) / 2**20,
        "limit": limit["name"],
        "explains": limit.get("explains"),
        "seconds": seconds,
    }


def row_of(case: str, rounds: Sequence[Figures]) -> dict[str, str]:
    """Return the line of a case."""
    last, ranks = rounds[-1], case.startswith("r") and ":" not in case
    wanted = 99.0 if ":" in case else _LEAST["ranks" if ranks else "one process"]
    # Of each epoch: other guests of the same machine disturb some. Stored files of before lack it.
    epochs = [au for each in rounds for au in each.get("aus", [each["au"]])]
    goals = [goal(epochs, least=wanted)]
    if ranks:
        goals += [
            f"{name} {goal([each['met'][at] for each in rounds], most=most)}"
            for at, (name, most) in enumerate(_MOST_MICROSECONDS.items())
        ]

    def of(name: str, form: str) -> str:
        return spread([each[name] for each in rounds], form)

    def micro(name: str) -> str:
        half, most = (median(each[name][at] for each in rounds) for at in range(2))
        return f"{half:.0f} / {most:,.0f}"

    return {
        "case": case,
        "processes": str(last["processes"]),
        "AU %, epochs": spread(epochs, ".1f"),
        "goal": "; ".join(goals),
        "samples/s": f"{median(each['rate'] for each in rounds):,.0f}",
        "opens p50 / p99 µs": micro("met"),
        "barrier p50 / p99 µs": micro("barrier"),
        "over p50 / p99 µs": micro("over"),
        "ceiling %": "" if last["ceiling"] is None else of("ceiling", ".1f"),
        "CPUs %": f"{median(each['cpus'] for each in rounds):.0f}",
        "steal %": f"{100 * median(each.get('steal') or 0.0 for each in rounds):.1f}",
        "CPU-s/GB": of("cost", ".3f"),
        "memory MiB": f"{last['memory']:,.0f}",
        "limit": ", ".join(dict.fromkeys(each["limit"] for each in rounds)),
        "whole run s": f"{median(each['seconds'] for each in rounds):.1f}",
    }


def main(arguments: list[str]) -> None:
    """Measure in turn and print the table; or print what was stored."""
    if arguments and all(each.endswith(".json") and "=" not in each for each in arguments):
        for file in arguments:
            stored = json.loads(Path(file).read_text())
            print(f"{stored['machine']}\n\n{lined(starmap(row_of, stored['cases'].items()))}\n")
        return
    asked = Asked(arguments, "only", "files", "rounds", "folder", "keep")
    cases = asked.names("only", default_cases(os.cpu_count() or 1))
    machine, found = describe_machine(), dict[str, list[Figures]]()
    with scratch() as own:
        folder, keep = Path(asked.value("folder", str(own))), asked.value("keep", "")
        for number in range(asked.value("rounds", 1)):
            for case in cases if number % 2 == 0 else reversed(cases):
                kept = Path(keep) / f"{case.replace(':', '_')}.{number}" if keep else None
                one = run(folder, asked.value("files", 1200), case, kept)
                found.setdefault(case, []).append(one)
                tell(row_of(case, [one]))
                if file := asked.value("json", ""):
                    Path(file).write_text(json.dumps({"machine": machine, "cases": found}))
    print(f"{machine}\n\n{lined(starmap(row_of, found.items()))}")


if __name__ == "__main__":
    main(sys.argv[1:])
