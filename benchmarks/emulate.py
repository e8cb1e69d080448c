"""How true the emulation is where the storage is not the limit: python -m benchmarks.emulate.

Data lies in tmpfs, so that the true AU is 100; what is missing is this program's and the host's.
DLIO, if `make peers` has set it up, runs the same cases in turn, on a dataset that it generated.
Then many accelerators run in one process, until memory would be the limit.

    python -m benchmarks.emulate [rounds=5] [cases=WORD,...] [json=FILE]
"""

import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import Asked, Lines, dlemu, goal, in_turn, scratch, spread, tell
from dlemu.judge.records import read_steps
from tests.lab.commands import summary_of
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
CASES: dict[str, tuple[Mapping[str, str], int, float]] = {
    "CosmoFlow H100, pytorch, 1 rank": (COSMOFLOW, 1, 98),
    "CosmoFlow H100, pytorch, 2 ranks": (COSMOFLOW, 2, 95),
    "2.83 MB npz, 20 ms, batch 1": (NPZ, 1, 99),
    "2.83 MB npz, 20 ms, batch 7": (NPZ | {"reader.batch_size": "7"}, 1, 99),
}
"""Keys, ranks, and the AU wanted."""
OURS = {"train.loop": "pipelined", "reader.hand_over": "none"}
"""What DLIO does not know."""
DENSE = {1: (1, 40), 8: (1, 40), 64: (8, 10), 200: (30, 4)}
"""ResNet-50 H100s in one process: how many, computation_time in units of H100's, steps."""
RESNET = {
    "workload": "resnet50_h100",
    # A fiftieth, so that memory holds the dataset.
    "dataset.record_length_bytes": "2293",
    "reader.data_loader": "threads",
    "reader.read_threads": "1",
    "train.epochs": "1",
}


class Seen(NamedTuple):
    """Totals of a run of ours."""

    au: float
    late: float
    """Median of the microseconds by which each accelerator's compute took longer than asked for,
    first step left out. Steps begin where the last one ended, so what the program itself takes is
    in it, too."""
    pss: float
    """MB of all processes of the host, shared pages divided among those that share them."""


def run_ours(keys: Mapping[str, str], folder: Path, ranks: int = 1) -> Seen:
    """Run, and return what came of it."""
    run = folder / "run"
    dlemu("run", {**keys, "output.folder": run}, ranks=ranks)
    summary, steps = summary_of(run), read_steps(run)
    shutil.rmtree(run)
    steps = steps[steps["step"] > 0]
    return Seen(
        summary["metric"]["train_au_mean_percentage"],
        1e6 * float(np.median(steps["compute"] - steps["computation_time"])),
        max(host["max_pss_bytes"] or 0 for host in summary["measured"]["hosts"]) / 1e6,
    )


def line(
    title: str, own: list[Seen], wanted: float, dlio: str = "-", beyond: str = ""
) -> dict[str, str]:
    """Return the line of a case."""
    au, late, pss = zip(*own, strict=True)
    return tell(
        {
            "case, data in tmpfs": title,
            "AU (%), truth 100": spread(au),
            "goal": goal(au, least=wanted),
            "DLIO's AU": dlio,
            "step later than asked, median (µs)": spread(late, ".1f"),
            "PSS (MB)": spread(pss, ".0f"),
            "MB an accelerator beyond the first": beyond,
        }
    )


def beside_dlio(title: str, rounds: int) -> dict[str, str]:
    """Return the line of a case that DLIO can run as well."""
    keys, ranks, wanted = CASES[title]
    with scratch() as folder:
        ours = {**keys, **OURS, "dataset.data_folder": str(folder / "data")}
        theirs = {**keys, "dataset.data_folder": str(folder / "dlio")}
        dlemu("datagen", ours)
        sides: dict[str, Callable[[], Any]] = {"dlemu": partial(run_ours, ours, folder, ranks)}
        if is_there():
            run_dlio(theirs, ranks=2, generate=True)
            sides["DLIO"] = partial(run_dlio, theirs, ranks=ranks, generate=False)
        found = in_turn(sides, rounds)
    aus = [each["metric"]["train_au_mean_percentage"] for each in found.get("DLIO", [])]
    return line(title, found["dlemu"], wanted, spread(aus) if aus else "-")


def many_in_one_process(rounds: int) -> Lines:
    """Yield a line for each number of ResNet-50 accelerators in one process."""
    alone = 0.0
    with scratch() as folder:
        for number, (scale, num_steps) in DENSE.items():
            keys = RESNET | {
                "dataset.data_folder": str(folder / "data"),
                "dataset.num_files_train": str(-(-number * 400 * num_steps // 1251)),
                "accelerators_per_rank": str(number),
                "train.computation_time": f"{0.224 * scale:g}",
            }
            dlemu("datagen", keys)
            own = [run_ours(keys, folder) for _ in range(rounds)]
            alone = alone or median(each.pss for each in own)
            beyond = [(each.pss - alone) / (number - 1) for each in own] if number > 1 else []
            told = f"{spread(beyond)}, {goal(beyond, most=5)}" if beyond else ""
            shutil.rmtree(folder / "data")
            title = f"{number} ResNet-50 H100s in one process, computation_time × {scale}"
            yield line(title, own, 98, beyond=told)


def main(arguments: list[str]) -> None:
    """Run the cases and print the table."""
    asked = Asked(arguments, "rounds", "cases")
    rounds, words = asked.value("rounds", 5), asked.names("cases", [""])
    titles = [title for title in CASES if any(word in title for word in words)]
    rows = [beside_dlio(title, rounds) for title in titles]
    if any(word in "in one process" for word in words):
        rows += many_in_one_process(rounds)
    asked.show(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
