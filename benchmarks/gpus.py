"""All GPUs of a host at once, one rank each: python -m benchmarks.gpus FOLDER [key=value …]

    rounds=3 cases=NAME,… json=found.json
    python -m benchmarks.gpus table JSON...     the table of stored runs

`mpirun -n NUM_GPUS dlemu run` of UNet3D and ResNet-50, round after round. Files of UNet3D have
16 MB, so that no drive is the limit. What the GPUs did is read from nvidia-smi while a run goes on.
On a host without a GPU two ranks run the case `sleep`, to try the program.
"""

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    Asked,
    Store,
    gpu_program,
    in_turn,
    lined,
    output_of,
    spread,
    stored_runs,
    tell,
)
from tests.lab.mpirun import mpirun

NETS: dict[str, list[str]] = {
    "unet3d": [
        "workload=unet3d_h100",
        "dataset.record_length_bytes=16000000",
        "dataset.record_length_bytes_stdev=0",
        "dataset.num_files_train=140",
        "train.epochs=2",
    ],
    "resnet50": ["workload=resnet50_h100", "dataset.num_files_train=16", "train.epochs=1"],
}
_DALI = ["reader.data_loader=dali", "dali.device=gpu"]
CASES: dict[str, list[str]] = {
    "sleep": [],
    "compute": ["train.compute=gpu"],
    "dali-host": [*_DALI, "reader.gds=off"],
    "dali-cufile": [*_DALI, "reader.gds=prefer"],
}
_LOOK = ["nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used", "-lms", "100"]
_LOOK += ["--format=csv,noheader,nounits"]


def measure(folder: Path, gpus: int, net: str, case: str) -> dict[str, Any]:
    """Run a case once; return what its summary and nvidia-smi say."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    words = [*NETS[net], f"dataset.data_folder={folder / net}", *CASES[case]]
    command = [sys.executable, "-m", "dlemu", "run", *words, f"output.folder={out}"]
    seen: dict[str, list[tuple[float, float]]] = {}
    with (folder / "looks.csv").open("w+") as looks:
        watch = subprocess.Popen(_LOOK, stdout=looks) if gpus else None
        done = subprocess.run(
            mpirun(gpus or 2, "--bind-to", "none", *command), capture_output=True, text=True
        )
        if watch is not None:
            watch.terminate()
            watch.wait()
        looks.seek(0)
        for line in (line for line in looks if line.endswith("\n")):
            number, busy, used = line.split(", ")
            seen.setdefault(number, []).append((float(busy), float(used) * 2**20))
    if not (out / "summary.json").exists():
        raise SystemExit(f"{net} {case}:\n{done.stdout}{done.stderr}")
    summary = json.loads((out / "summary.json").read_text())
    metric = summary["metric"]
    tell([net, case, metric["train_au_meet_expectation"], str(metric["train_au_percentage"][-1])])
    return {
        "net": net,
        "case": case,
        "rc": done.returncode,
        "au": metric["train_au_percentage"],
        "samples_per_second": metric["train_throughput_samples_per_second"],
        "verdict": metric["train_au_meet_expectation"],
        "path": summary["measured"]["path"],
        "busy": [statistics.fmean(busy for busy, _ in each) for each in seen.values()],
        "most_bytes": [max(used for _, used in each) for each in seen.values()],
    }


def table(files: Iterable[Sequence[dict[str, Any]]]) -> str:
    """Return a line for each net and case: median, least and most of the rounds' last epochs."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in (run for runs in files for run in runs):
        cells.setdefault((run["net"], run["case"]), []).append(run)
    rows = []
    for (net, case), own in cells.items():
        busy = zip(*(run["busy"] for run in own), strict=True)
        used = zip(*(run["most_bytes"] for run in own), strict=True)
        rows.append(
            {
                "net": net,
                "case": case,
                "runs": str(len(own)),
                "AU (%)": spread([run["au"][-1] for run in own]),
                "samples/s": spread([run["samples_per_second"][-1] for run in own], ",.1f"),
                "GPUs busy (%)": " and ".join(f"{statistics.median(each):.0f}" for each in busy),
                "memory (MiB)": " and ".join(
                    f"{statistics.median(each) / 2**20:,.0f}" for each in used
                ),
                "path": ", ".join(dict.fromkeys(run["path"] for run in own)),
            }
        )
    return lined(rows)


def experiment(folder: Path, asked: Asked, store: Store) -> str:
    import torch

    gpus = torch.cuda.device_count()
    for net, keys in NETS.items():
        if not (folder / net).exists():
            words = [*keys, f"dataset.data_folder={folder / net}"]
            output_of([sys.executable, "-m", "dlemu", "datagen", *words])
    cases = asked.names("cases", CASES if gpus else ["sleep"])
    sides = {
        f"{net} {case}": partial(measure, folder, gpus, net, case) for net in NETS for case in cases
    }
    runs = [run for each in in_turn(sides, asked.value("rounds", 3)).values() for run in each]
    store(runs)
    return table([runs])


PRINTS = {"table": lambda paths, asked: table(stored_runs(paths))}

if __name__ == "__main__":
    gpu_program(sys.argv[1:], __doc__, PRINTS, experiment, "rounds", "cases")
