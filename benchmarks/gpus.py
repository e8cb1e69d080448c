"""All GPUs of a host at once, one rank each: python -m benchmarks.gpus FOLDER [key=value …]

    rounds=3 cases=NAME,… json=found.json
    python -m benchmarks.gpus table JSON...     the table of stored runs

`mpirun -n NUM_GPUS dlemu run` of UNet3D and ResNet-50, round after round. Files of UNet3D have
16 MB, so that no drive is the limit. What the GPUs did is read from nvidia-smi while a run goes on.
On a host without a GPU two ranks run the case `sleep`, to try the program.
"""

import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    Asked,
    Lines,
    Store,
    dlemu,
    gpu_program,
    in_turn,
    lined,
    spread,
    stored_runs,
)
from tests.lab.commands import summary_of

NETS = {
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
    keys = {"dataset.data_folder": folder / net, "output.folder": out}
    seen: dict[str, list[tuple[float, float]]] = {}
    with (folder / "looks.csv").open("w+") as looks:
        watch = subprocess.Popen(_LOOK, stdout=looks) if gpus else None
        dlemu("run", keys, *NETS[net], *CASES[case], ranks=gpus or 2)
        if watch is not None:
            watch.terminate()
            watch.wait()
        looks.seek(0)
        for line in (line for line in looks if line.endswith("\n")):
            number, busy, used = line.split(", ")
            seen.setdefault(number, []).append((float(busy), float(used) * 2**20))
    summary = summary_of(out)
    metric = summary["metric"]
    print(net, case, metric["train_au_meet_expectation"], metric["train_au_percentage"][-1])
    return {
        "net": net,
        "case": case,
        "au": metric["train_au_percentage"],
        "samples_per_second": metric["train_throughput_samples_per_second"],
        "path": summary["measured"]["path"],
        "busy": [statistics.fmean(busy for busy, _ in each) for each in seen.values()],
        "most_bytes": [max(used for _, used in each) for each in seen.values()],
    }


def _medians(runs: Iterable[dict[str, Any]], key: str, form: str, unit: int = 1) -> str:
    """Return a figure of each GPU."""
    found = zip(*(run[key] for run in runs), strict=True)
    return " and ".join(f"{statistics.median(each) / unit:{form}}" for each in found)


def table(files: Iterable[Iterable[dict[str, Any]]]) -> Lines:
    """Yield a line for each net and case: median, least and most of the rounds' last epochs."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in chain.from_iterable(files):
        cells.setdefault((run["net"], run["case"]), []).append(run)
    for (net, case), own in cells.items():
        yield {
            "net": net,
            "case": case,
            "runs": str(len(own)),
            "AU (%)": spread([run["au"][-1] for run in own]),
            "samples/s": spread([run["samples_per_second"][-1] for run in own], ",.1f"),
            "GPUs busy (%)": _medians(own, "busy", ".0f"),
            "memory (MiB)": _medians(own, "most_bytes", ",.0f", 2**20),
            "path": ", ".join(dict.fromkeys(run["path"] for run in own)),
        }


def experiment(folder: Path, asked: Asked, store: Store) -> str:
    import torch

    gpus = torch.cuda.device_count()
    for net, words in NETS.items():
        if not (folder / net).exists():
            dlemu("datagen", {"dataset.data_folder": folder / net}, *words)
    cases = asked.names("cases", CASES if gpus else ["sleep"])
    sides = {
        f"{net} {case}": partial(measure, folder, gpus, net, case) for net in NETS for case in cases
    }
    found = in_turn(sides, asked.value("rounds", 3)).values()
    store([*chain.from_iterable(found)])
    return lined(table(found))


PRINTS = {"table": lambda paths, asked: lined(table(stored_runs(paths)))}

if __name__ == "__main__":
    gpu_program(sys.argv[1:], __doc__, PRINTS, experiment, "rounds", "cases")
